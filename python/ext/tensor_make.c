/* The constructor of Tensor. */
#include "tensor.h"

#include <string.h>

int ext_tensor_is_dtype(const char *name, shoal_dtype *out_dtype)
{
    for (int dtype = 0; dtype < SHOAL_DTYPES; dtype++) {
        if (strcmp(name, shoal_dtype_name((shoal_dtype)dtype)) == 0) {
            *out_dtype = (shoal_dtype)dtype;
            return 1;
        }
    }
    return 0;
}

static int find_dtype(const char *name, shoal_dtype *out_dtype)
{
    if (ext_tensor_is_dtype(name, out_dtype)) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "unknown dtype %s", name);
    return -1;
}

static int read_shape(PyObject *sizes, int *out_ndim, int64_t *out_shape)
{
    Py_ssize_t ndim = PyTuple_Size(sizes);
    if (ndim > SHOAL_MAX_DIMS) {
        PyErr_Format(PyExc_ValueError, "%zd dims are more than %d", ndim, SHOAL_MAX_DIMS);
        return -1;
    }
    for (Py_ssize_t i = 0; i < ndim; i++) {
        out_shape[i] = PyLong_AsLongLong(PyTuple_GetItem(sizes, i));
        if (out_shape[i] == -1 && PyErr_Occurred() != NULL) {
            return -1;
        }
    }
    *out_ndim = (int)ndim;
    return 0;
}

/* Makes a tensor of zeros, or of a copy of data if there is some. */
static shoal_tensor *make(shoal_device device, int shared, shoal_dtype dtype, int ndim, const int64_t *shape,
                          const void *data)
{
    if (device == SHOAL_CUDA) {
        return data != NULL ? shoal_from_data_on(device, dtype, data, ndim, shape)
                            : shoal_full_on(device, dtype, 0, ndim, shape);
    }
    shoal_tensor *t = shared ? shoal_empty_shared(dtype, ndim, shape) : shoal_empty(dtype, ndim, shape);
    size_t size = (size_t)shoal_tensor_count(t) * shoal_dtype_size(dtype);
    if (t != NULL && size > 0 && data != NULL) {
        memcpy(shoal_tensor_data(t), data, size);
    } else if (t != NULL && size > 0) {
        memset(shoal_tensor_data(t), 0, size);
    }
    return t;
}

/* Checks the size of the data; a shape that has no size is left to the library. */
static int fits(const Py_buffer *data, shoal_dtype dtype, int ndim, const int64_t *shape)
{
    Py_ssize_t size = (Py_ssize_t)shoal_dtype_size(dtype);
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0 || __builtin_mul_overflow(size, (Py_ssize_t)shape[i], &size)) {
            return 1;
        }
    }
    if (data->obj == NULL || data->len == size) {
        return 1;
    }
    PyErr_Format(PyExc_ValueError, "the data has %zd bytes, and the shape needs %zd", data->len, size);
    return 0;
}

/* Tensor(dtype, shape, data=None, shared=False, device="cpu"): shoal.tensor has a friendlier way. */
PyObject *ext_tensor_make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"dtype", "shape", "data", "shared", "device", NULL};
    const char *name, *place = "cpu";
    PyObject *sizes;
    Py_buffer data = {0};
    int shared = 0, ndim;
    int64_t shape[SHOAL_MAX_DIMS];
    shoal_dtype dtype;
    shoal_device device;
    if (PyTuple_Size(args) > 0 && !PyUnicode_Check(PyTuple_GetItem(args, 0))) {
        PyErr_SetString(PyExc_TypeError,
                        "Tensor() takes a dtype and a shape; use shoal.tensor() to make one from data");
        return NULL;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO!|z*ps:Tensor", names, &name, &PyTuple_Type, &sizes, &data,
                                     &shared, &place)) {
        return NULL;
    }
    PyObject *tensor = NULL;
    if (find_dtype(name, &dtype) == 0 && ext_card_device(place, &device) == 0 && read_shape(sizes, &ndim, shape) == 0 &&
        fits(&data, dtype, ndim, shape)) {
        shoal_tensor *t;
        Py_BEGIN_ALLOW_THREADS;
        t = make(device, shared, dtype, ndim, shape, data.obj != NULL ? data.buf : NULL);
        Py_END_ALLOW_THREADS;
        tensor = t != NULL ? ext_shared_new(type, t) : ext_raise(shoal_last_error());
    }
    if (data.obj != NULL) {
        PyBuffer_Release(&data);
    }
    return tensor;
}
