/* The memory of a Tensor for others: the buffer protocol, and __array_interface__ for numpy. */
#include "tensor.h"

#include <stdlib.h>

/* The formats of the buffer protocol, and of numpy. Neither has bf16: it is shown as its bits. */
static const struct {
    char *buffer;
    const char *numpy;
} formats[SHOAL_DTYPES] = {
    [SHOAL_F32] = {"f", "<f4"}, [SHOAL_F64] = {"d", "<f8"}, [SHOAL_BF16] = {"H", "<u2"}, [SHOAL_F16] = {"e", "<f2"},
    [SHOAL_I64] = {"l", "<i8"}, [SHOAL_I32] = {"i", "<i4"}, [SHOAL_U8] = {"B", "|u1"},   [SHOAL_B8] = {"?", "|b1"},
};

typedef struct view_parts {
    shoal_dlpack *pack;
    Py_ssize_t strides[SHOAL_MAX_DIMS]; /* in bytes */
} view_parts;

static int pack_memory(PyObject *self, shoal_dlpack **out_pack)
{
    shoal_tensor *t = ext_tensor_handle(self);
    if (t == NULL) {
        return -1;
    }
    if (shoal_tensor_device(t) != SHOAL_CPU) {
        PyErr_SetString(PyExc_BufferError, "the tensor is on the GPU, which the CPU cannot read: use t.cpu()");
        return -1;
    }
    shoal_err err = shoal_tensor_to_dlpack(t, 0, out_pack);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    return 0;
}

static void fill_view(Py_buffer *view, const shoal_tensor *t, view_parts *parts)
{
    static char nothing[8]; /* numpy does not like NULL, not even for an array without elements */
    shoal_dlpack *pack = parts->pack;
    view->itemsize = (Py_ssize_t)shoal_dtype_size(shoal_tensor_dtype(t));
    for (int i = 0; i < pack->tensor.ndim; i++) {
        parts->strides[i] = (Py_ssize_t)shoal_tensor_stride(t, i) * view->itemsize;
    }
    view->buf = pack->tensor.data != NULL ? (char *)pack->tensor.data + pack->tensor.byte_offset : nothing;
    view->len = (Py_ssize_t)shoal_tensor_count(t) * view->itemsize;
    view->ndim = pack->tensor.ndim;
    view->format = formats[shoal_tensor_dtype(t)].buffer;
    view->shape = (Py_ssize_t *)pack->tensor.shape;
    view->strides = parts->strides;
    view->suboffsets = NULL;
    view->readonly = 0;
    view->internal = parts;
}

/* Leaves out of a full view what the flags do not ask for. Sets BufferError if it cannot be left out. */
static int trim_view(Py_buffer *view, int flags)
{
    int c_order = PyBuffer_IsContiguous(view, 'C');
    int fits = (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS       ? c_order
               : (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS     ? PyBuffer_IsContiguous(view, 'F')
               : (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS ? PyBuffer_IsContiguous(view, 'A')
               : (flags & PyBUF_STRIDES) == PyBUF_STRIDES               ? 1
                                                                        : c_order;
    if (!fits) {
        PyErr_SetString(PyExc_BufferError, "the tensor is not contiguous in the way that was asked for");
        return -1;
    }
    if ((flags & PyBUF_STRIDES) != PyBUF_STRIDES) {
        view->strides = NULL;
    }
    if ((flags & PyBUF_ND) != PyBUF_ND) {
        view->shape = NULL;
        view->ndim = 1;
    }
    if ((flags & PyBUF_FORMAT) != PyBUF_FORMAT) {
        view->format = NULL;
    }
    return 0;
}

static void free_parts(view_parts *parts)
{
    parts->pack->deleter(parts->pack);
    free(parts);
}

int ext_tensor_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    view->obj = NULL;
    view_parts *parts = calloc(1, sizeof *parts);
    if (parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (pack_memory(self, &parts->pack) != 0) {
        free(parts);
        return -1;
    }
    fill_view(view, ext_tensor_handle(self), parts);
    if (trim_view(view, flags) != 0) {
        free_parts(parts);
        return -1;
    }
    view->obj = Py_NewRef(self);
    return 0;
}

void ext_tensor_release_buffer(PyObject *self, Py_buffer *view)
{
    (void)self;
    free_parts(view->internal);
}

PyObject *ext_tensor_array_interface(PyObject *self, void *unused)
{
    (void)unused;
    ext_tensor *object = (ext_tensor *)self;
    if (object->pin == NULL && pack_memory(self, &object->pin) != 0) {
        return NULL;
    }
    shoal_tensor *t = ext_tensor_handle(self);
    PyObject *shape = ext_tensor_numbers(shoal_tensor_ndim(t), shoal_tensor_shape(t), 1);
    PyObject *strides = ext_tensor_strides(t, (int64_t)shoal_dtype_size(shoal_tensor_dtype(t)));
    PyObject *address = PyLong_FromVoidPtr(shoal_tensor_data(t));
    PyObject *dict = NULL;
    if (shape != NULL && strides != NULL && address != NULL) {
        dict = Py_BuildValue("{s:i,s:O,s:O,s:s,s:(OO)}", "version", 3, "shape", shape, "strides", strides, "typestr",
                             formats[shoal_tensor_dtype(t)].numpy, "data", address, Py_False);
    }
    Py_XDECREF(shape);
    Py_XDECREF(strides);
    Py_XDECREF(address);
    return dict;
}

void ext_tensor_finalize(PyObject *self)
{
    shoal_dlpack *pin = ((ext_tensor *)self)->pin;
    ((ext_tensor *)self)->pin = NULL;
    if (pin != NULL) {
        pin->deleter(pin);
    }
}
