/* Arguments of methods. The limited API has no parser for METH_FASTCALL. */
#include "ext.h"

#include <string.h>

/* Returns the number of the argument with that name; -1 if there is none, -2 and an exception on failure. */
static Py_ssize_t find_name(PyObject *name, ext_name *names, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (names[i].interned == NULL && (names[i].interned = PyUnicode_InternFromString(names[i].text)) == NULL) {
            return -2;
        }
        if (names[i].interned == name) {
            return i;
        }
    }
    for (Py_ssize_t i = 0; i < count; i++) { /* a name that the program computed: f(**{...}) */
        if (PyUnicode_CompareWithASCIIString(name, names[i].text) == 0) {
            return i;
        }
    }
    return -1;
}

static int take_keyword(const char *method, PyObject *name, PyObject *value, ext_name *names, Py_ssize_t count,
                        PyObject **out_values)
{
    Py_ssize_t i = find_name(name, names, count);
    if (i < 0) {
        if (i == -1) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument %R", method, name);
        }
        return -1;
    }
    if (out_values[i] != NULL) {
        PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%s'", method, names[i].text);
        return -1;
    }
    out_values[i] = value;
    return 0;
}

int ext_arguments(const char *method, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, ext_name *names,
                  Py_ssize_t count, Py_ssize_t required, PyObject **out_values)
{
    if (nargs > count) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %zd arguments (%zd given)", method, count, nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        out_values[i] = i < nargs ? args[i] : NULL;
    }
    Py_ssize_t keywords = kwnames != NULL ? PyTuple_Size(kwnames) : 0;
    for (Py_ssize_t i = 0; i < keywords; i++) {
        if (take_keyword(method, PyTuple_GetItem(kwnames, i), args[nargs + i], names, count, out_values) != 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < required; i++) {
        if (out_values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", method, names[i].text);
            return -1;
        }
    }
    return 0;
}

int ext_block_and_timeout(PyObject *block, PyObject *timeout, int64_t *out_timeout)
{
    int wait = block == NULL || Py_IsTrue(block) ? 1 : Py_IsFalse(block) ? 0 : PyObject_IsTrue(block);
    if (wait < 0) {
        return -1;
    }
    if (!wait) {
        *out_timeout = SHOAL_NOW;
        return 0;
    }
    return ext_timeout(timeout, out_timeout);
}
