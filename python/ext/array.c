/* numpy arrays as values.
 *
 * An array over a Block that was made to be shared travels by handle: the receiver sees the same memory. Any other
 * array travels by value. From LARGE bytes on its elements are copied once, into a block that then belongs to the
 * receiver; smaller ones are copied into the message and out of it, which is cheaper than a block.
 *
 * Only numbers take this way. Structured arrays, objects, strings, times and subclasses are pickled.
 */
#include "codec.h"

#include <stddef.h>
#include <string.h>

#define LARGE 65536
#define MOST_DIMS 32
#define DTYPE_TEXT 16
#define NESTING 16 /* of views that are followed to find a block */

typedef struct array_head {
    char dtype[DTYPE_TEXT]; /* as numpy writes it: "<f4" */
    uint8_t ndim, by_value, read_only, fortran;
    int64_t offset;              /* of the first element, in bytes */
    int64_t dims[2 * MOST_DIMS]; /* ndim sizes, then ndim strides in bytes; the rest does not travel */
} array_head;

static PyObject *array_type; /* numpy.ndarray, once numpy is imported */
static PyObject *dtype_type; /* numpy.dtype */
static PyObject *dtypes;     /* text: numpy.dtype */
static PyObject *text_dtype, *text_str, *text_kind, *text_base, *text_obj;

static int find_numpy(int import)
{
    if (array_type != NULL) {
        return 1;
    }
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("numpy")) == NULL) {
        return -1;
    }
    PyObject *numpy = import ? PyImport_Import(name) : PyImport_GetModule(name);
    if (numpy == NULL) {
        return PyErr_Occurred() != NULL ? -1 : 0;
    }
    PyObject *array = PyObject_GetAttrString(numpy, "ndarray");
    dtype_type = array != NULL ? PyObject_GetAttrString(numpy, "dtype") : NULL;
    Py_DECREF(numpy);
    if (dtype_type == NULL) { /* numpy is only half imported */
        Py_XDECREF(array);
        PyErr_Clear();
        return import ? -1 : 0;
    }
    array_type = array;
    return 1;
}

/* ---- encoding ---- */

/* Follows the views of an array down to the Block that holds its elements. Returns a new reference; NULL without an
 * exception if there is none. */
static PyObject *find_block(PyObject *array)
{
    PyObject *at = Py_NewRef(array);
    for (int i = 0; i < NESTING && at != NULL; i++) {
        PyObject *next;
        if (PyObject_TypeCheck(at, ext_shared_type)) {
            if (((ext_shared *)at)->kind == SHOAL_KIND_BLOCK) {
                return at;
            }
            break;
        }
        if (PyMemoryView_Check(at)) {
            next = PyObject_GetAttr(at, text_obj);
        } else { /* an array, or what numpy's as_strided puts between */
            next = PyObject_GetAttr(at, text_base);
        }
        Py_DECREF(at);
        at = next;
    }
    Py_XDECREF(at);
    PyErr_Clear();
    return NULL;
}

/* Writes the dtype as text. Returns 0 if it is not one of plain numbers. */
static int describe_dtype(PyObject *array, array_head *head)
{
    PyObject *dtype = PyObject_GetAttr(array, text_dtype);
    PyObject *kind = dtype != NULL ? PyObject_GetAttr(dtype, text_kind) : NULL;
    PyObject *text = kind != NULL ? PyObject_GetAttr(dtype, text_str) : NULL;
    const char *letter = text != NULL ? PyUnicode_AsUTF8AndSize(kind, NULL) : NULL;
    Py_ssize_t size = 0;
    const char *name = letter != NULL ? PyUnicode_AsUTF8AndSize(text, &size) : NULL;
    int fits = name != NULL && size < DTYPE_TEXT && strchr("biufc", letter[0]) != NULL;
    if (fits) {
        memcpy(head->dtype, name, (size_t)size);
    }
    Py_XDECREF(text);
    Py_XDECREF(kind);
    Py_XDECREF(dtype);
    PyErr_Clear();
    return fits;
}

static size_t head_size(const array_head *head)
{
    return offsetof(array_head, dims) + 2 * sizeof(int64_t) * head->ndim;
}

static int in_block(const array_head *head, shoal_block *block, shoal_value **out_value)
{
    shoal_value *list = shoal_list_add(shoal_value_list(), shoal_value_foreign(CODEC_ARRAY, head, head_size(head)));
    *out_value = shoal_list_add(list, shoal_value_block(block));
    if (*out_value == NULL) {
        ext_raise(shoal_last_error());
        return -1;
    }
    return 1;
}

static int encode_shared_array(PyObject *holder, const Py_buffer *view, array_head *head, shoal_value **out_value)
{
    shoal_block *block = ext_shared_handle(holder, SHOAL_KIND_BLOCK);
    if (block == NULL) {
        return -1;
    }
    head->read_only = (uint8_t)(view->readonly != 0); /* what travels by value is the receiver's own, as with pickle */
    head->offset = (const char *)view->buf - (const char *)shoal_block_data(block);
    for (int i = 0; i < view->ndim; i++) {
        head->dims[view->ndim + i] = view->strides[i];
    }
    return in_block(head, block, out_value);
}

static int copy_elements(void *to, const Py_buffer *view, int fortran)
{
    return PyBuffer_ToContiguous(to, view, view->len, fortran ? 'F' : 'C');
}

static int encode_large(const Py_buffer *view, array_head *head, shoal_value **out_value)
{
    shoal_block *block;
    shoal_err err = shoal_block_create((size_t)view->len, &block);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    int done = copy_elements(shoal_block_data(block), view, head->fortran) == 0 ? in_block(head, block, out_value) : -1;
    shoal_block_release(block);
    return done;
}

static int encode_small(const Py_buffer *view, array_head *head, shoal_value **out_value)
{
    char room[sizeof *head + LARGE];
    size_t size = head_size(head);
    memcpy(room, head, size);
    if (copy_elements(room + size, view, head->fortran) != 0) {
        return -1;
    }
    *out_value = shoal_value_foreign(CODEC_SMALL_ARRAY, room, size + (size_t)view->len);
    if (*out_value == NULL) {
        ext_raise(shoal_last_error());
        return -1;
    }
    return 1;
}

static int encode_view(PyObject *obj, const Py_buffer *view, shoal_value **out_value)
{
    array_head head;
    memset(&head, 0, sizeof head);
    if (view->ndim > MOST_DIMS || !describe_dtype(obj, &head)) {
        return 0;
    }
    head.ndim = (uint8_t)view->ndim;
    for (int i = 0; i < view->ndim; i++) {
        head.dims[i] = view->shape[i];
    }
    PyObject *holder = find_block(obj);
    if (holder != NULL && !ext_block_is_by_value(holder)) {
        int done = encode_shared_array(holder, view, &head, out_value);
        Py_DECREF(holder);
        return done;
    }
    Py_XDECREF(holder);
    head.by_value = 1;
    head.fortran = (uint8_t)(view->ndim > 1 && PyBuffer_IsContiguous(view, 'F') && !PyBuffer_IsContiguous(view, 'C'));
    return view->len >= LARGE ? encode_large(view, &head, out_value) : encode_small(view, &head, out_value);
}

int ext_array_encode(PyObject *obj, shoal_value **out_value)
{
    int found = find_numpy(0);
    if (found != 1 || (PyObject *)Py_TYPE(obj) != array_type) {
        return found < 0 ? -1 : 0;
    }
    Py_buffer view;
    if (PyObject_GetBuffer(obj, &view, PyBUF_FULL_RO) != 0) {
        PyErr_Clear(); /* numpy has no buffers of times */
        return 0;
    }
    int done = encode_view(obj, &view, out_value);
    PyBuffer_Release(&view);
    return done;
}

/* ---- decoding ---- */

static PyObject *find_dtype(const char *text)
{
    PyObject *key = PyUnicode_FromString(text);
    PyObject *dtype = key != NULL ? PyDict_GetItemWithError(dtypes, key) : NULL;
    if (dtype != NULL) {
        Py_INCREF(dtype);
    } else if (key != NULL && PyErr_Occurred() == NULL) {
        dtype = PyObject_CallFunctionObjArgs(dtype_type, key, NULL);
        if (dtype != NULL && PyDict_SetItem(dtypes, key, dtype) != 0) {
            Py_CLEAR(dtype);
        }
    }
    Py_XDECREF(key);
    return dtype;
}

static PyObject *tuple_of(const int64_t *numbers, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL || PyTuple_SetItem(tuple, i, number) != 0) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

/* numpy checks that the array stays inside the buffer. holder: a Block, or NULL for new private memory. */
static PyObject *make_array(const array_head *head, PyObject *holder)
{
    PyObject *dtype = find_dtype(head->dtype);
    PyObject *shape = dtype != NULL ? tuple_of(head->dims, head->ndim) : NULL;
    PyObject *array = NULL;
    const char *order = head->fortran ? "F" : "C";
    if (shape != NULL && holder != NULL && !head->by_value) {
        PyObject *strides = tuple_of(head->dims + head->ndim, head->ndim);
        array = strides == NULL ? NULL
                                : PyObject_CallFunction(array_type, "OOOLO", shape, dtype, holder,
                                                        (long long)head->offset, strides);
        Py_XDECREF(strides);
    } else if (shape != NULL && holder != NULL) {
        array = PyObject_CallFunction(array_type, "OOOiOs", shape, dtype, holder, 0, Py_None, order);
    } else if (shape != NULL) {
        array = PyObject_CallFunction(array_type, "OOOiOs", shape, dtype, Py_None, 0, Py_None, order);
    }
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    return array;
}

static int fill(PyObject *array, const char *elements, size_t size)
{
    Py_buffer view;
    if (PyObject_GetBuffer(array, &view, PyBUF_ANY_CONTIGUOUS | PyBUF_WRITABLE) != 0) {
        return -1;
    }
    int fits = (size_t)view.len == size;
    if (fits) {
        memcpy(view.buf, elements, size);
    } else {
        PyErr_SetString(PyExc_ValueError, "the message of an array has the wrong number of bytes");
    }
    PyBuffer_Release(&view);
    return fits ? 0 : -1;
}

static PyObject *set_read_only(PyObject *array)
{
    PyObject *done = array != NULL ? PyObject_CallMethod(array, "setflags", "O", Py_False) : NULL;
    if (done == NULL) {
        Py_CLEAR(array);
    }
    Py_XDECREF(done);
    return array;
}

/* Reads the head. Returns its size; 0 and an exception if it is invalid. */
static size_t read_head(const void *bytes, size_t size, array_head *out_head)
{
    memset(out_head, 0, sizeof *out_head);
    if (size >= offsetof(array_head, dims)) {
        memcpy(out_head, bytes, offsetof(array_head, dims));
    }
    if (size < offsetof(array_head, dims) || out_head->ndim > MOST_DIMS || size < head_size(out_head)) {
        PyErr_SetString(PyExc_ValueError, "the message of an array is invalid");
        return 0;
    }
    memcpy(out_head, bytes, head_size(out_head));
    out_head->dtype[DTYPE_TEXT - 1] = 0;
    return head_size(out_head);
}

PyObject *ext_array_decode(const void *bytes, size_t size, shoal_block *block)
{
    array_head head;
    size_t begin = find_numpy(1) == 1 ? read_head(bytes, size, &head) : 0;
    if (begin == 0) {
        return NULL;
    }
    PyObject *array;
    if (block != NULL) {
        PyObject *holder = ext_block_new(shoal_block_retain(block), head.by_value);
        array = holder != NULL ? make_array(&head, holder) : NULL;
        Py_XDECREF(holder);
    } else {
        array = make_array(&head, NULL);
        if (array != NULL && fill(array, (const char *)bytes + begin, size - begin) != 0) {
            Py_CLEAR(array);
        }
    }
    return array != NULL && head.read_only ? set_read_only(array) : array;
}

/* ---- the functions of the module ---- */

static PyObject *block_of(PyObject *module, PyObject *obj)
{
    (void)module;
    if (find_numpy(0) < 0) {
        return NULL;
    }
    PyObject *block = array_type != NULL ? find_block(obj) : NULL;
    if (block == NULL) {
        Py_RETURN_NONE;
    }
    return block;
}

int ext_array_add(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"block_of", block_of, METH_O, "Returns the Block that holds the elements of an array, or None."},
        {NULL, NULL, 0, NULL},
    };
    dtypes = PyDict_New();
    text_dtype = PyUnicode_InternFromString("dtype");
    text_str = PyUnicode_InternFromString("str");
    text_kind = PyUnicode_InternFromString("kind");
    text_base = PyUnicode_InternFromString("base");
    text_obj = PyUnicode_InternFromString("obj");
    if (dtypes == NULL || text_dtype == NULL || text_str == NULL || text_kind == NULL || text_base == NULL ||
        text_obj == NULL) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
