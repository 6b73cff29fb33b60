/* Barrier. For one with an action see _wait_with_action in shoal/multiprocessing/synchronize.py. */
#include "sync.h"

typedef struct barrier_object {
    ext_shared shared;
    uint32_t parties; /* 0 in an object that C code sent, which does not say it */
    char has_timeout;
    char has_action;
    int64_t timeout; /* of a wait() without one, if has_timeout */
} barrier_object;

static int barrier_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"parties", NULL};
    int parties;
    shoal_barrier *made;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i:Barrier", names, &parties)) {
        return -1;
    }
    shoal_err err = shoal_barrier_create(parties > 0 ? (uint32_t)parties : 0, &made);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    sync_set_handle(self, made);
    ((barrier_object *)self)->parties = (uint32_t)parties;
    return 0;
}

static PyObject *barrier_configure(PyObject *obj, PyObject *args)
{
    barrier_object *self = (barrier_object *)obj;
    PyObject *timeout;
    unsigned parties;
    int has_action;
    if (!PyArg_ParseTuple(args, "IOp:_configure", &parties, &timeout, &has_action) ||
        ext_timeout(timeout, &self->timeout) != 0) {
        return NULL;
    }
    self->parties = parties;
    self->has_timeout = !Py_IsNone(timeout);
    self->has_action = (char)has_action;
    return Py_NewRef(Py_None);
}

static PyObject *wait_once(barrier_object *self, int64_t timeout)
{
    uint32_t index;
    shoal_err err;
    EXT_WAIT(err, shoal_barrier_wait(self->shared.handle, timeout, &index));
    if (err == SHOAL_OK) {
        return PyLong_FromUnsignedLong(index);
    }
    if (err == SHOAL_ETIMEDOUT) { /* a party that is too late breaks the barrier */
        (void)shoal_fail(SHOAL_EBROKEN, "the barrier is broken: the timeout passed");
        err = SHOAL_EBROKEN;
    }
    return ext_raise(err);
}

static PyObject *barrier_wait(PyObject *obj, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("timeout")};
    barrier_object *self = (barrier_object *)obj;
    PyObject *timeout;
    int64_t limit;
    if (ext_arguments("wait", args, nargs, kwnames, names, 1, 0, &timeout) != 0) {
        return NULL;
    }
    if (self->has_action) {
        return PyObject_CallMethod(obj, "_wait_with_action", "O", timeout != NULL ? timeout : Py_None);
    }
    if ((timeout == NULL || Py_IsNone(timeout)) && self->has_timeout) {
        limit = self->timeout;
    } else if (ext_timeout(timeout, &limit) != 0) {
        return NULL;
    }
    return wait_once(self, limit);
}

/* wait() without the action and the default timeout. */
static PyObject *barrier_wait_plain(PyObject *self, PyObject *timeout)
{
    int64_t limit;
    return ext_timeout(timeout, &limit) == 0 ? wait_once((barrier_object *)self, limit) : NULL;
}

static PyObject *barrier_abort(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_barrier_abort(((ext_shared *)self)->handle);
    return Py_NewRef(Py_None);
}

static PyObject *barrier_reset(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_barrier_reset(((ext_shared *)self)->handle);
    return Py_NewRef(Py_None);
}

static PyObject *barrier_parties(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(((barrier_object *)self)->parties);
}

static PyObject *barrier_n_waiting(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLong(shoal_barrier_waiting(((ext_shared *)self)->handle));
}

static PyObject *barrier_broken(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(shoal_barrier_is_broken(((ext_shared *)self)->handle));
}

int sync_add_barrier(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"wait", SYNC_FAST(barrier_wait), METH_FASTCALL | METH_KEYWORDS,
         "wait($self, /, timeout=None)\n--\n\n"
         "Wait until all parties wait. Then each returns with another number from 0 to parties - 1."},
        {"abort", barrier_abort, METH_NOARGS,
         "abort($self, /)\n--\n\nBreak the barrier: all who wait, now or later, get BrokenBarrierError."},
        {"reset", barrier_reset, METH_NOARGS,
         "reset($self, /)\n--\n\nMake the barrier usable again. Those who wait now get BrokenBarrierError."},
        {"_configure", barrier_configure, METH_VARARGS, "_configure(parties, timeout, has_action)"},
        {"_wait_plain", barrier_wait_plain, METH_O, "Wait without the action and the default timeout."},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"parties", barrier_parties, NULL, "The number of parties.", NULL},
        {"n_waiting", barrier_n_waiting, NULL, "The number of parties that wait now.", NULL},
        {"broken", barrier_broken, NULL, "Whether the barrier is broken.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Barrier(parties): parties processes or threads wait for each other."},
        {Py_tp_new, sync_new},
        {Py_tp_init, barrier_init},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {0, NULL},
    };
    return ext_shared_type_add(module, "shoal._shoal.Barrier", SHOAL_KIND_BARRIER, sizeof(barrier_object), slots) ? 0
                                                                                                                  : -1;
}
