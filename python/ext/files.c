/* Files of tensors (safetensors). shoal/_files.py has the public functions. */
#include "tensor.h"

static PyObject *tensors_dict(const shoal_tensors *set)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict != NULL && i < shoal_tensors_count(set); i++) {
        PyObject *tensor = ext_tensor_new(shoal_tensor_retain(shoal_tensors_at(set, i)));
        if (tensor == NULL || PyDict_SetItemString(dict, shoal_tensors_name(set, i), tensor) != 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(tensor);
    }
    return dict;
}

static PyObject *safetensors_read(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *path;
    if (!PyArg_ParseTuple(args, "O&:safetensors_read", PyUnicode_FSConverter, &path)) {
        return NULL;
    }
    const char *name = PyBytes_AsString(path);
    shoal_tensors *set;
    Py_BEGIN_ALLOW_THREADS;
    set = shoal_safetensors_read(name);
    Py_END_ALLOW_THREADS;
    Py_DECREF(path);
    if (set == NULL) {
        return ext_raise_missing(shoal_last_error());
    }
    PyObject *dict = tensors_dict(set);
    shoal_tensors_destroy(set);
    return dict;
}

typedef int (*add_item)(shoal_tensors *set, const char *name, PyObject *value);

static int add_tensor(shoal_tensors *set, const char *name, PyObject *value)
{
    shoal_tensor *t = ext_shared_handle(value, SHOAL_KIND_TENSOR);
    if (t == NULL) {
        return -1;
    }
    shoal_err err = shoal_tensors_add(set, name, t);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    return 0;
}

static int add_text(shoal_tensors *set, const char *name, PyObject *value)
{
    PyObject *text = PyUnicode_AsUTF8String(value);
    if (text == NULL) {
        return -1;
    }
    shoal_err err = shoal_tensors_set_text(set, name, PyBytes_AsString(text));
    Py_DECREF(text);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    return 0;
}

static int add_all(shoal_tensors *set, PyObject *dict, add_item add)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
        PyObject *name = PyUnicode_AsUTF8String(key);
        int added = name != NULL ? add(set, PyBytes_AsString(name), value) : -1;
        Py_XDECREF(name);
        if (added != 0) {
            return -1;
        }
    }
    return 0;
}

/* safetensors_write(path, {name: Tensor}, {name: text}) */
static PyObject *safetensors_write(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *path, *tensors, *metadata;
    if (!PyArg_ParseTuple(args, "O&O!O!:safetensors_write", PyUnicode_FSConverter, &path, &PyDict_Type, &tensors,
                          &PyDict_Type, &metadata)) {
        return NULL;
    }
    const char *name = PyBytes_AsString(path);
    shoal_tensors *set = shoal_tensors_create();
    shoal_err err = set != NULL ? SHOAL_OK : shoal_last_error();
    if (err == SHOAL_OK && add_all(set, tensors, add_tensor) == 0 && add_all(set, metadata, add_text) == 0) {
        Py_BEGIN_ALLOW_THREADS;
        err = shoal_safetensors_write(name, set);
        Py_END_ALLOW_THREADS;
    }
    if (err != SHOAL_OK) {
        ext_raise_missing(err);
    }
    shoal_tensors_destroy(set);
    Py_DECREF(path);
    return PyErr_Occurred() == NULL ? Py_NewRef(Py_None) : NULL;
}

int ext_add_files(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"safetensors_read", safetensors_read, METH_VARARGS, "See shoal.load."},
        {"safetensors_write", safetensors_write, METH_VARARGS, "See shoal.save."},
        {NULL, NULL, 0, NULL},
    };
    return PyModule_AddFunctions(module, methods);
}
