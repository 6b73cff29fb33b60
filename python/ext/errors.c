/* Errors of the library as exceptions. */
#include "ext.h"

PyObject *ext_error, *ext_closed, *ext_full, *ext_empty;
static PyObject *broken_barrier;

static PyObject *exception_for(shoal_err err)
{
    switch (err) {
    case SHOAL_EINVAL: return PyExc_ValueError;
    case SHOAL_ENOMEM: return PyExc_MemoryError;
    case SHOAL_ETIMEDOUT: return PyExc_TimeoutError;
    case SHOAL_ECLOSED: return ext_closed;
    case SHOAL_EBROKEN: return broken_barrier;
    case SHOAL_EPERM: return PyExc_PermissionError;
    case SHOAL_ETYPE: return PyExc_TypeError;
    case SHOAL_EOS: return PyExc_OSError;
    default: return ext_error;
    }
}

PyObject *ext_raise(shoal_err err)
{
    if (err == SHOAL_EINTR && PyErr_Occurred() != NULL) {
        return NULL;
    }
    const char *text = shoal_last_error() == err ? shoal_last_error_text() : "";
    PyErr_SetString(exception_for(err), text[0] != 0 ? text : shoal_err_name(err));
    return NULL;
}

PyObject *ext_raise_missing(shoal_err err)
{
    if (err != SHOAL_ENOENT) {
        return ext_raise(err);
    }
    PyErr_SetString(PyExc_FileNotFoundError, shoal_last_error_text());
    return NULL;
}

static PyObject *raise_last(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    return ext_raise(shoal_last_error());
}

static PyObject *take_name(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *found = module != NULL ? PyObject_GetAttrString(module, name) : NULL;
    Py_XDECREF(module);
    return found;
}

int ext_add_errors(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"raise_last", raise_last, METH_NOARGS,
         "raise_last(): raises the exception for the library's last error in this thread (for the torch glue)."},
        {NULL, NULL, 0, NULL},
    };
    ext_error = PyErr_NewExceptionWithDoc("shoal.Error", "An error of the library that has no exception of its own.",
                                          PyExc_RuntimeError, NULL);
    ext_closed =
        ext_error == NULL
            ? NULL
            : PyErr_NewExceptionWithDoc("shoal.Closed", "The queue was closed for all processes.", ext_error, NULL);
    ext_full = take_name("queue", "Full");
    ext_empty = take_name("queue", "Empty");
    broken_barrier = take_name("threading", "BrokenBarrierError");
    if (ext_closed == NULL || ext_full == NULL || ext_empty == NULL || broken_barrier == NULL ||
        PyModule_AddFunctions(module, functions) != 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Error", ext_error) == 0 ? PyModule_AddObjectRef(module, "Closed", ext_closed)
                                                                  : -1;
}
