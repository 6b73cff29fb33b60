/* Semaphore. A BoundedSemaphore is one with a bound. */
#include "sync.h"

#include <limits.h>

typedef struct semaphore_object {
    ext_shared shared;
    int bounded;
    int bound;
} semaphore_object;

static PyObject *semaphore_maxvalue(PyObject *obj, void *unused)
{
    semaphore_object *self = (semaphore_object *)obj;
    (void)unused;
    return PyLong_FromLong(self->bounded ? self->bound : INT_MAX);
}

static int semaphore_set_maxvalue(PyObject *obj, PyObject *value, void *unused)
{
    semaphore_object *self = (semaphore_object *)obj;
    (void)unused;
    long bound = value != NULL ? PyLong_AsLong(value) : -1;
    if (bound < 0 || bound > INT_MAX) {
        if (PyErr_Occurred() == NULL) {
            PyErr_SetString(PyExc_ValueError, "the largest value of a semaphore must be from 0 to 2147483647");
        }
        return -1;
    }
    self->bounded = 1;
    self->bound = (int)bound;
    return 0;
}

/* A bound of 0, which the standard module allows, is kept here: the library takes that for no bound. */
static int semaphore_init(PyObject *obj, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"value", "bound", NULL};
    int value = 1;
    PyObject *bound = Py_None;
    shoal_semaphore *made;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|iO:Semaphore", names, &value, &bound)) {
        return -1;
    }
    if (value < 0) {
        PyErr_SetString(PyExc_ValueError, "the value of a semaphore cannot be negative");
        return -1;
    }
    if (!Py_IsNone(bound) && semaphore_set_maxvalue(obj, bound, NULL) != 0) {
        return -1;
    }
    semaphore_object *self = (semaphore_object *)obj;
    shoal_err err =
        shoal_semaphore_create((uint32_t)value, self->bounded && self->bound == 0 ? 1 : (uint32_t)self->bound, &made);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    sync_set_handle(obj, made);
    return 0;
}

static PyObject *take(PyObject *obj, int64_t timeout)
{
    shoal_semaphore *handle = ((ext_shared *)obj)->handle;
    shoal_err err = SHOAL_ETIMEDOUT;
    if (timeout <= SHOAL_NOW || handle == NULL || shoal_semaphore_value(handle) != 0) {
        err = shoal_semaphore_wait(handle, SHOAL_NOW);
    }
    if (err == SHOAL_ETIMEDOUT && timeout > SHOAL_NOW) {
        EXT_WAIT(err, shoal_semaphore_wait(handle, timeout));
    }
    if (err != SHOAL_OK && err != SHOAL_ETIMEDOUT) {
        return ext_raise(err);
    }
    return Py_NewRef(err == SHOAL_OK ? Py_True : Py_False);
}

static PyObject *semaphore_acquire(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("block"), EXT_NAME("timeout")};
    PyObject *values[2];
    int64_t timeout;
    if (ext_arguments("acquire", args, nargs, kwnames, names, 2, 0, values) != 0 ||
        ext_block_and_timeout(values[0], values[1], &timeout) != 0) {
        return NULL;
    }
    return take(self, timeout);
}

static PyObject *semaphore_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return take(self, SHOAL_FOREVER);
}

static PyObject *semaphore_release(PyObject *obj, PyObject *unused)
{
    semaphore_object *self = (semaphore_object *)obj;
    (void)unused;
    shoal_err err = self->bounded && self->bound == 0 ? SHOAL_ESTATE : shoal_semaphore_post(self->shared.handle, 1);
    if (err == SHOAL_ESTATE) {
        PyErr_SetString(PyExc_ValueError, "semaphore or lock released too many times");
        return NULL;
    }
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
}

static PyObject *semaphore_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)args;
    (void)nargs;
    return semaphore_release(self, NULL);
}

static PyObject *semaphore_get_value(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(shoal_semaphore_value(((ext_shared *)self)->handle));
}

static PyObject *semaphore_is_zero(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(shoal_semaphore_value(((ext_shared *)self)->handle) == 0);
}

static PyObject *semaphore_semlock(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

int sync_add_semaphore(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"acquire", SYNC_FAST(semaphore_acquire), METH_FASTCALL | METH_KEYWORDS,
         "acquire($self, /, block=True, timeout=None)\n--\n\n"
         "Take one from the value and return True. Return False if it is 0 for timeout seconds."},
        {"release", semaphore_release, METH_NOARGS, "release($self, /)\n--\n\nAdd one to the value."},
        {"__enter__", semaphore_enter, METH_NOARGS, NULL},
        {"__exit__", SYNC_FAST(semaphore_exit), METH_FASTCALL, NULL},
        {"get_value", semaphore_get_value, METH_NOARGS, "get_value($self, /)\n--\n\nReturn the value."},
        {"_get_value", semaphore_get_value, METH_NOARGS, "The value."},
        {"_is_zero", semaphore_is_zero, METH_NOARGS, "Whether the value is 0."},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"maxvalue", semaphore_maxvalue, semaphore_set_maxvalue, "The largest value that release() allows.", NULL},
        {"_semlock", semaphore_semlock, NULL, "The object itself, which has the methods of the standard _semlock.",
         NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Semaphore(value=1, bound=None): a counter that acquire() takes one from."},
        {Py_tp_new, sync_new},
        {Py_tp_init, semaphore_init},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {0, NULL},
    };
    return ext_shared_type_add(module, "shoal._shoal.Semaphore", SHOAL_KIND_SEMAPHORE, sizeof(semaphore_object), slots)
               ? 0
               : -1;
}
