/* The module itself. */
#include "ext.h"

static PyModuleDef module_def = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "shoal._shoal",
    .m_doc = "The C library's objects for Python. Use shoal and shoal.multiprocessing, which are built on them.",
    .m_size = -1,
};

/* Only the main interpreter, with its lock, may import this: the library knows processes and threads, not
 * interpreters, and the objects here are not made for threads that run at the same time. */
static int check_interpreter(void)
{
    PyObject *sys = PyImport_ImportModule("sys");
    PyObject *flag = sys != NULL ? PyObject_CallMethod(sys, "_is_gil_enabled", NULL) : NULL;
    int locked = flag == NULL || PyObject_IsTrue(flag); /* before 3.13 there is no such function and always a lock */
    Py_XDECREF(flag);
    Py_XDECREF(sys);
    PyErr_Clear();
    if (!locked) {
        PyErr_SetString(PyExc_ImportError, "shoal does not work in a free-threaded Python: use a build with the GIL");
        return -1;
    }
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0) {
        PyErr_SetString(PyExc_ImportError, "shoal does not work in a subinterpreter: import it in the main one");
        return -1;
    }
    return 0;
}

PyMODINIT_FUNC PyInit__shoal(void);

PyMODINIT_FUNC PyInit__shoal(void)
{
    static int (*const parts[])(PyObject *) = {
        ext_add_errors, ext_add_waits,   ext_add_shared,  ext_add_block,  ext_add_codec, ext_add_queue, ext_add_pipe,
        ext_add_sync,   ext_add_process, ext_add_program, ext_add_tensor, ext_add_world, ext_add_pool,
    };
    if (check_interpreter() != 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&module_def);
    for (size_t i = 0; module != NULL && i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i](module) != 0) {
            Py_CLEAR(module);
        }
    }
    if (module != NULL && PyModule_AddStringConstant(module, "__version__", SHOAL_VERSION) != 0) {
        Py_CLEAR(module);
    }
    return module;
}
