/* Tensor: the library's tensors in Python. tensor_make.c makes one from its arguments, tensor_buffer.c and dlpack.c
 * show its memory to others, and card.c has what is special about GPUs.
 *
 * Every view of the memory holds a pack (shoal_dlpack): as long as one exists, the memory stays, and a private tensor
 * cannot move into the heap. */
#include "tensor.h"

#include <stdlib.h>
#include <string.h>

static PyTypeObject *tensor_type;

PyObject *ext_tensor_new(shoal_tensor *t)
{
    return t != NULL ? ext_shared_new(tensor_type, t) : ext_raise(shoal_last_error());
}

shoal_tensor *ext_tensor_handle(PyObject *self)
{
    return ext_shared_handle(self, SHOAL_KIND_TENSOR);
}

/* ---- properties ---- */

PyObject *ext_tensor_numbers(int count, const int64_t *from, int64_t scale)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(from[i] * scale);
        if (number == NULL || PyTuple_SetItem(tuple, i, number) != 0) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

static PyObject *tensor_shape(PyObject *self, void *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    return t != NULL ? ext_tensor_numbers(shoal_tensor_ndim(t), shoal_tensor_shape(t), 1) : NULL;
}

PyObject *ext_tensor_strides(const shoal_tensor *t, int64_t scale)
{
    int64_t strides[SHOAL_MAX_DIMS];
    int ndim = shoal_tensor_ndim(t);
    for (int i = 0; i < ndim; i++) {
        strides[i] = shoal_tensor_stride(t, i);
    }
    return ext_tensor_numbers(ndim, strides, scale);
}

static PyObject *tensor_strides(PyObject *self, void *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    return t != NULL ? ext_tensor_strides(t, 1) : NULL;
}

static PyObject *tensor_ndim(PyObject *self, void *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    return t != NULL ? PyLong_FromLong(shoal_tensor_ndim(t)) : NULL;
}

static PyObject *tensor_size(PyObject *self, void *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    return t != NULL ? PyLong_FromLongLong(shoal_tensor_count(t)) : NULL;
}

static PyObject *tensor_dtype(PyObject *self, void *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    return t != NULL ? PyUnicode_FromString(shoal_dtype_name(shoal_tensor_dtype(t))) : NULL;
}

static PyObject *tensor_device(PyObject *self, void *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    return t != NULL ? PyUnicode_FromString(shoal_tensor_device(t) == SHOAL_CUDA ? "cuda" : "cpu") : NULL;
}

static PyObject *tensor_is_shared(PyObject *self, void *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    return t != NULL ? PyBool_FromLong(shoal_tensor_is_shared(t)) : NULL;
}

static PyObject *tensor_storage_id(PyObject *self, void *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    return t != NULL ? PyLong_FromUnsignedLongLong(shoal_tensor_storage_id(t)) : NULL;
}

static PyObject *tensor_repr(PyObject *self)
{
    shoal_tensor *t = ((ext_shared *)self)->handle;
    if (t == NULL) {
        return PyUnicode_FromString("<closed shoal.Tensor>");
    }
    size_t length = shoal_tensor_format(t, NULL, 0);
    char *text = malloc(length + 1);
    if (text == NULL) {
        return PyErr_NoMemory();
    }
    shoal_tensor_format(t, text, length + 1);
    PyObject *lines = PyUnicode_FromStringAndSize(text, (Py_ssize_t)length);
    PyObject *indented = lines != NULL ? PyObject_CallMethod(lines, "replace", "ss", "\n", "\n             ") : NULL;
    PyObject *repr = indented != NULL ? PyUnicode_FromFormat("shoal.Tensor(%U)", indented) : NULL;
    Py_XDECREF(indented);
    Py_XDECREF(lines);
    free(text);
    return repr;
}

/* ---- DLPack ---- */

static PyObject *tensor_dlpack_device(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    shoal_dlpack_device device;
    return t != NULL && ext_dlpack_device(t, &device) == 0 ? Py_BuildValue("(ii)", device.type, device.id) : NULL;
}

/* Moves private memory into the heap before torch gets its address. So the torch tensor can be sent, and both tensors
 * stay the same memory. What cannot move, because something else has its address, stays private. */
static void share_with_torch(shoal_tensor *t)
{
    PyObject *name = PyUnicode_FromString("torch");
    PyObject *torch = name != NULL ? PyImport_GetModule(name) : NULL;
    if (torch != NULL && shoal_tensor_device(t) == SHOAL_CPU && !shoal_tensor_is_shared(t)) {
        (void)!shoal_tensor_share(t);
    }
    Py_XDECREF(torch);
    Py_XDECREF(name);
    PyErr_Clear();
}

static PyObject *tensor_dlpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"stream", "max_version", "dl_device", "copy", "_bool_as_bytes", NULL};
    PyObject *stream = Py_None, *version = Py_None, *device = Py_None, *copy = Py_None;
    int bool_as_bytes = 0, major = 0, minor = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOOp:__dlpack__", names, &stream, &version, &device, &copy,
                                     &bool_as_bytes)) {
        return NULL;
    }
    if (!Py_IsNone(version) && !PyTuple_Check(version)) {
        PyErr_SetString(PyExc_TypeError, "max_version must be None or a tuple of two numbers");
        return NULL;
    }
    if (!Py_IsNone(version) && !PyArg_ParseTuple(version, "ii:max_version", &major, &minor)) {
        return NULL;
    }
    shoal_tensor *t = ext_tensor_handle(self);
    ext_destination to = {.versioned = major >= SHOAL_DLPACK_MAJOR, .bool_as_bytes = bool_as_bytes};
    if (t == NULL || ext_dlpack_destination(t, device, stream, copy, &to) != 0) {
        return NULL;
    }
    share_with_torch(t);
    return ext_dlpack_export(t, &to);
}

static PyObject *tensor_from_capsule(PyObject *cls, PyObject *args)
{
    PyObject *capsule;
    int bytes_as_bool = 0;
    if (!PyArg_ParseTuple(args, "O|p:_from_capsule", &capsule, &bytes_as_bool)) {
        return NULL;
    }
    shoal_tensor *t = ext_dlpack_import(capsule, bytes_as_bool);
    return t != NULL ? ext_shared_new((PyTypeObject *)cls, t) : NULL;
}

/* ---- methods ---- */

static PyObject *tensor_share(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    if (t == NULL) {
        return NULL;
    }
    shoal_err err = shoal_tensor_share(t);
    return err == SHOAL_OK ? Py_NewRef(self) : ext_raise(err);
}

/* What the library computes belongs to a scope of this thread: keeps the result and ends the scope. */
static PyObject *keep_result(size_t mark, shoal_tensor *result)
{
    shoal_tensor_retain(result);
    shoal_scope_release(mark);
    return ext_tensor_new(result);
}

static PyObject *tensor_clone(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    size_t mark = shoal_scope_mark();
    return t != NULL ? keep_result(mark, shoal_clone(t)) : NULL;
}

static PyObject *tensor_move(PyObject *self, shoal_device device)
{
    shoal_tensor *t = ext_tensor_handle(self), *moved;
    if (t == NULL) {
        return NULL;
    }
    size_t mark = shoal_scope_mark();
    Py_BEGIN_ALLOW_THREADS; /* it may wait for the GPU */
    moved = shoal_to_device(t, device);
    Py_END_ALLOW_THREADS;
    return moved != NULL ? keep_result(mark, moved) : ext_raise(shoal_last_error());
}

static PyObject *tensor_cpu(PyObject *self, PyObject *unused)
{
    (void)unused;
    return tensor_move(self, SHOAL_CPU);
}

static PyObject *tensor_cuda(PyObject *self, PyObject *unused)
{
    (void)unused;
    return tensor_move(self, SHOAL_CUDA);
}

static PyObject *tensor_to(PyObject *self, PyObject *name)
{
    shoal_dtype dtype;
    shoal_device device;
    shoal_tensor *t = ext_tensor_handle(self);
    const char *text = t != NULL && PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    if (text == NULL) {
        if (PyErr_Occurred() == NULL) {
            PyErr_SetString(PyExc_TypeError, "to() takes a dtype such as 'f32', or a device: 'cpu' or 'cuda'");
        }
        return NULL;
    }
    size_t mark = shoal_scope_mark();
    if (ext_tensor_is_dtype(text, &dtype)) {
        return keep_result(mark, shoal_to_dtype(t, dtype));
    }
    if (strncmp(text, "cpu", 3) != 0 && strncmp(text, "cuda", 4) != 0) {
        PyErr_Format(PyExc_TypeError, "unknown dtype or device %s; the devices are 'cpu' and 'cuda'", text);
        return NULL;
    }
    return ext_card_device(text, &device) == 0 ? tensor_move(self, device) : NULL;
}

/* memoryview has the numbers of all dtypes but the two halves, which become f32 before. What is on the GPU is
 * copied. */
static PyObject *tensor_tolist(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    if (t == NULL) {
        return NULL;
    }
    if (shoal_tensor_device(t) != SHOAL_CPU) {
        PyObject *copy = tensor_cpu(self, NULL), *list = copy != NULL ? tensor_tolist(copy, NULL) : NULL;
        Py_XDECREF(copy);
        return list;
    }
    shoal_dtype dtype = shoal_tensor_dtype(t);
    size_t mark = shoal_scope_mark();
    PyObject *readable =
        dtype == SHOAL_F16 || dtype == SHOAL_BF16 ? keep_result(mark, shoal_to_dtype(t, SHOAL_F32)) : Py_NewRef(self);
    PyObject *view = readable != NULL ? PyMemoryView_FromObject(readable) : NULL;
    PyObject *list = view != NULL ? PyObject_CallMethod(view, "tolist", NULL) : NULL;
    Py_XDECREF(view);
    Py_XDECREF(readable);
    return list;
}

static PyObject *tensor_item(PyObject *self, PyObject *unused)
{
    shoal_tensor *t = ext_tensor_handle(self);
    if (t == NULL) {
        return NULL;
    }
    if (shoal_tensor_count(t) != 1) {
        PyErr_Format(PyExc_ValueError, "item() needs a tensor with one element, and this one has %lld",
                     (long long)shoal_tensor_count(t));
        return NULL;
    }
    PyObject *item = tensor_tolist(self, unused);
    for (int i = 0; item != NULL && i < shoal_tensor_ndim(t); i++) {
        PyObject *inner = Py_XNewRef(PyList_GetItem(item, 0));
        Py_DECREF(item);
        item = inner;
    }
    return item;
}

static PyObject *tensor_deepcopy(PyObject *self, PyObject *memo)
{
    return tensor_clone(self, memo);
}

static PyObject *tensor_copy(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_tensor *t = ext_tensor_handle(self);
    return t != NULL ? ext_shared_new(Py_TYPE(self), shoal_tensor_retain(t)) : NULL;
}

/* ---- as a number, and as what it is not ---- */

static PyObject *convert_item(PyObject *self, PyObject *(*convert)(PyObject *))
{
    PyObject *item = tensor_item(self, NULL);
    PyObject *number = item != NULL ? convert(item) : NULL;
    Py_XDECREF(item);
    return number;
}

static PyObject *tensor_float(PyObject *self)
{
    return convert_item(self, PyNumber_Float);
}

static PyObject *tensor_int(PyObject *self)
{
    return convert_item(self, PyNumber_Long);
}

/* Without this, Python would take a tensor for false if its length is 0. */
static int tensor_bool(PyObject *self)
{
    PyObject *item = tensor_item(self, NULL);
    int truth = item != NULL ? PyObject_IsTrue(item) : -1;
    Py_XDECREF(item);
    return truth;
}

static Py_ssize_t tensor_length(PyObject *self)
{
    shoal_tensor *t = ext_tensor_handle(self);
    if (t == NULL) {
        return -1;
    }
    if (shoal_tensor_ndim(t) == 0) {
        PyErr_SetString(PyExc_TypeError, "a tensor without dims has no length");
        return -1;
    }
    return (Py_ssize_t)shoal_tensor_shape(t)[0];
}

static int refuse_assignment(PyObject *self, PyObject *index, PyObject *value)
{
    (void)index;
    (void)value;
    shoal_tensor *t = ((ext_shared *)self)->handle;
    PyErr_Format(PyExc_TypeError, "a shoal.Tensor has no indexing: use %s",
                 shoal_tensor_device(t) == SHOAL_CUDA
                     ? "t.torch(), which has the same memory, or t.cpu().numpy(), which is a copy"
                     : "t.numpy() or t.torch(), which have the same memory");
    return -1;
}

static PyObject *refuse_index(PyObject *self, PyObject *index)
{
    refuse_assignment(self, index, NULL);
    return NULL;
}

/* What needs another package is written in Python. */
static PyObject *call_python(const char *function, PyObject *self)
{
    PyObject *module = PyImport_ImportModule("shoal._tensor");
    PyObject *result = module != NULL ? PyObject_CallMethod(module, function, "O", self) : NULL;
    Py_XDECREF(module);
    return result;
}

static PyObject *tensor_numpy(PyObject *self, PyObject *unused)
{
    (void)unused;
    return call_python("to_numpy", self);
}

static PyObject *tensor_torch(PyObject *self, PyObject *unused)
{
    (void)unused;
    return call_python("to_torch", self);
}

static PyGetSetDef properties[] = {
    {"shape", tensor_shape, NULL, "The size of each dim, a tuple.", NULL},
    {"strides", tensor_strides, NULL, "The stride of each dim in elements (numpy has bytes), a tuple.", NULL},
    {"ndim", tensor_ndim, NULL, "The number of dims.", NULL},
    {"size", tensor_size, NULL, "The number of elements.", NULL},
    {"dtype", tensor_dtype, NULL, "The element type: 'f32', 'f64', 'bf16', 'f16', 'i64', 'i32', 'u8' or 'bool'.", NULL},
    {"device", tensor_device, NULL, "Where the elements are: 'cpu' or 'cuda'.", NULL},
    {"is_shared", tensor_is_shared, NULL, "Whether the memory is in the shared heap.", NULL},
    {"storage_id", tensor_storage_id, NULL, "The number of the memory: tensors with the same number share it.", NULL},
    {"__array_interface__", ext_tensor_array_interface, NULL, "For numpy and others. The memory no longer moves.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    {"share", tensor_share, METH_NOARGS,
     "share($self)\n--\n\nMoves the memory into the shared heap, for all tensors over it, and returns the tensor. A "
     "queue does the same when it is put. Raises shoal.Error as long as a view of private memory exists (numpy(), "
     "torch(), memoryview): share it first."},
    {"clone", tensor_clone, METH_NOARGS, "clone($self)\n--\n\nReturns a contiguous copy in private memory."},
    {"to", tensor_to, METH_O,
     "to($self, dtype_or_device, /)\n--\n\nReturns the tensor with another dtype ('f32'), or on another device ('cpu' "
     "or 'cuda'); over the same memory if it is so already."},
    {"cpu", tensor_cpu, METH_NOARGS,
     "cpu($self)\n--\n\nReturns the tensor in the memory of the CPU; waits for the GPU."},
    {"cuda", tensor_cuda, METH_NOARGS,
     "cuda($self)\n--\n\nReturns the tensor on this process's GPU. Raises shoal.Error if there is none."},
    {"tolist", tensor_tolist, METH_NOARGS, "tolist($self)\n--\n\nReturns the elements as nested lists of numbers."},
    {"item", tensor_item, METH_NOARGS, "item($self)\n--\n\nReturns the element of a tensor that has only one."},
    {"__copy__", tensor_copy, METH_NOARGS, "For copy.copy: another object over the same memory."},
    {"__deepcopy__", tensor_deepcopy, METH_O, "For copy.deepcopy: clone()."},
    {"numpy", tensor_numpy, METH_NOARGS,
     "numpy($self)\n--\n\nReturns a numpy array over the same memory. numpy has no bf16: it gets uint16, the bits."},
    {"torch", tensor_torch, METH_NOARGS,
     "torch($self)\n--\n\nReturns a torch tensor over the same memory, which is moved into the shared heap first. "
     "Either "
     "of them can be sent. If numpy() or a memoryview has the address of private memory, it stays private; then a put "
     "of the torch tensor moves that to memory of its own: share() the tensor first."},
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS,
     "Exports the memory to another library without a copy. max_version of (1, 0) or later gives a versioned capsule. "
     "stream is the receiver's, for a tensor on the GPU: it waits for Shoal's work."},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS,
     "The device in DLPack's numbers: (1, 0) is the CPU, (2, n) GPU n."},
    {"_from_capsule", tensor_from_capsule, METH_VARARGS | METH_CLASS, "See shoal.from_dlpack."},
    {NULL, NULL, 0, NULL},
};

int ext_add_tensor(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_doc, "A tensor of the library: what C and Python programs exchange. shoal.tensor and shoal.from_dlpack "
                    "make one; numpy() and torch() give its memory to those packages without a copy. It has no "
                    "arithmetic and no indexing: those packages have. float() and int() work with one element."},
        {Py_tp_new, ext_tensor_make},
        {Py_tp_finalize, ext_tensor_finalize},
        {Py_tp_repr, tensor_repr},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {Py_nb_float, tensor_float},
        {Py_nb_int, tensor_int},
        {Py_nb_bool, tensor_bool},
        {Py_mp_length, tensor_length},
        {Py_mp_subscript, refuse_index},
        {Py_mp_ass_subscript, refuse_assignment},
        {Py_bf_getbuffer, ext_tensor_get_buffer},
        {Py_bf_releasebuffer, ext_tensor_release_buffer},
        {0, NULL},
    };
    tensor_type = ext_shared_type_add(module, "shoal._shoal.Tensor", SHOAL_KIND_TENSOR, sizeof(ext_tensor), slots);
    return tensor_type != NULL && ext_add_card(module) == 0 ? ext_add_files(module) : -1;
}
