/* C programs and Python in one world: starts a program whose arguments are plain values, and takes those of a C
 * parent. */
#include "codec.h"

#include <stdlib.h>

static PyObject *start_c_program(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"argv", "arguments", "name", NULL};
    (void)module;
    PyObject *words, *obj, *texts;
    const char *name = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|z", names, &words, &obj, &name)) {
        return NULL;
    }
    char **argv = ext_argv(words, &texts);
    if (argv == NULL) {
        return NULL;
    }
    shoal_process *process = NULL;
    shoal_value *value = ext_encode(obj);
    if (value != NULL && argv[0] != NULL) {
        const shoal_process_options options = {.name = name};
        shoal_err err = shoal_process_start_program(argv[0], argv, value, &options, &process);
        if (err != SHOAL_OK) {
            ext_raise_missing(err);
        }
    } else if (value != NULL) {
        shoal_value_destroy(value);
        PyErr_SetString(PyExc_ValueError, "argv is empty; its first word must be the program");
    }
    Py_DECREF(texts);
    free(argv);
    return process != NULL ? ext_process_wrap(process) : NULL;
}

/* The arguments belong to the library, so Python gets a copy. */
static PyObject *decode_copy(const shoal_value *value)
{
    shoal_value *copy = value != NULL ? shoal_value_copy(value) : shoal_value_null();
    return copy != NULL ? ext_decode(copy) : ext_raise(shoal_last_error());
}

static PyObject *program_arguments(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    const shoal_value *args;
    shoal_err err = shoal_child_begin(NULL, &args);
    if (err == SHOAL_ENOENT) {
        PyErr_SetString(PyExc_RuntimeError, "this process has no arguments: it was started neither by a C program of "
                                            "Shoal nor by shoal.program.Program");
        return NULL;
    }
    return err == SHOAL_OK ? decode_copy(args) : ext_raise(err);
}

static PyObject *set_result(PyObject *module, PyObject *obj)
{
    (void)module;
    shoal_value *value = ext_encode(obj);
    if (value == NULL) {
        return NULL;
    }
    shoal_err err = shoal_return(value);
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
}

static PyObject *result_of(PyObject *module, PyObject *obj)
{
    (void)module;
    shoal_process *process = ext_process_handle(obj);
    return process != NULL ? decode_copy(shoal_process_result(process)) : NULL;
}

int ext_add_program(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"start_c_program", (PyCFunction)(void (*)(void))start_c_program, METH_VARARGS | METH_KEYWORDS,
         "start_c_program(argv, arguments, name=None): starts a program that gets the arguments from "
         "shoal_child_begin. Returns a Process."},
        {"program_arguments", program_arguments, METH_NOARGS,
         "Joins the world of the C program that started this process, and returns its arguments."},
        {"set_result", set_result, METH_O, "Sets the result of this process for its parent."},
        {"result_of", result_of, METH_O, "The result of a Process that has ended; None if it gave none."},
        {NULL, NULL, 0, NULL},
    };
    return PyModule_AddFunctions(module, functions);
}
