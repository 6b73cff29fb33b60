/* Lock and RLock, and what a Condition has in common with them. */
#include "sync.h"

/* ---- the three kinds ---- */

static shoal_err lock(ext_shared *self, int64_t timeout)
{
    switch (self->kind) {
    case SHOAL_KIND_LOCK: return shoal_lock_lock(self->handle, timeout);
    case SHOAL_KIND_RLOCK: return shoal_rlock_lock(self->handle, timeout);
    default: return shoal_condition_lock(self->handle, timeout);
    }
}

static shoal_err unlock(ext_shared *self)
{
    switch (self->kind) {
    case SHOAL_KIND_LOCK: return shoal_lock_unlock(self->handle);
    case SHOAL_KIND_RLOCK: return shoal_rlock_unlock(self->handle);
    default: return shoal_condition_unlock(self->handle);
    }
}

/* *out_depth: how many times the calling thread holds it; not set for a Lock. */
static shoal_holder holder(ext_shared *self, uint32_t *out_depth)
{
    switch (self->kind) {
    case SHOAL_KIND_LOCK: return shoal_lock_holder(self->handle);
    case SHOAL_KIND_RLOCK: return shoal_rlock_holder(self->handle, out_depth);
    default: return shoal_condition_holder(self->handle, out_depth);
    }
}

/* ---- taking and giving ---- */

int sync_owner_died(sync_lock *self)
{
    self->owner_died = 1;
    if (self->warned) {
        return 0;
    }
    self->warned = 1;
    return PyErr_WarnEx(PyExc_RuntimeWarning,
                        "a process died while it held this lock: what the lock protects may be half changed", 1);
}

static int after_death(sync_lock *self)
{
    if (sync_owner_died(self) == 0) {
        return 1;
    }
    if (sync_give(self) != SHOAL_OK) { /* the warning is an exception, so the caller does not have the lock */
        PyErr_WriteUnraisable((PyObject *)self);
    }
    return -1;
}

/* Not inlined: it would make the usual way longer. */
static __attribute__((noinline)) shoal_err wait_for_lock(sync_lock *self, int64_t timeout)
{
    shoal_err err;
    EXT_WAIT(err, lock(&self->shared, timeout));
    return err;
}

/* pthread_self() without a call. */
static inline pthread_t this_thread(void)
{
    return (pthread_t)__builtin_thread_pointer();
}

static inline void note_holder(sync_lock *self)
{
    self->holder = this_thread();
    self->forks = sync_forks;
}

shoal_err sync_lock_once(sync_lock *self, int64_t timeout)
{
    shoal_err err = lock(&self->shared, SHOAL_NOW);
    if (err == SHOAL_ETIMEDOUT && timeout > SHOAL_NOW) {
        err = wait_for_lock(self, timeout);
    }
    if (err == SHOAL_OK || err == SHOAL_EOWNERDEAD) {
        note_holder(self);
    }
    return err;
}

/* What acquire() returns, after a try to lock. */
static PyObject *answer(sync_lock *self, shoal_err err)
{
    if (err == SHOAL_OK) {
        return Py_NewRef(Py_True);
    }
    if (err == SHOAL_ETIMEDOUT) {
        return Py_NewRef(Py_False);
    }
    if (err == SHOAL_EOWNERDEAD) {
        return after_death(self) == 1 ? Py_NewRef(Py_True) : NULL;
    }
    return ext_raise(err);
}

shoal_err sync_give(sync_lock *self)
{
    shoal_err err = unlock(&self->shared);
    if (err == SHOAL_OK) {
        self->forks = 0;
    }
    return err;
}

uint32_t sync_depth(sync_lock *self)
{
    uint32_t depth = 0;
    shoal_holder by = holder(&self->shared, &depth);
    if (self->shared.kind != SHOAL_KIND_LOCK) {
        return depth;
    }
    return by == SHOAL_HOLDER_SELF && (self->forks != sync_forks || pthread_equal(self->holder, this_thread()));
}

static PyObject *release_error(shoal_err err)
{
    if (err == SHOAL_ESTATE) {
        PyErr_SetString(PyExc_ValueError, "semaphore or lock released too many times");
        return NULL;
    }
    if (err == SHOAL_EPERM) {
        PyErr_SetString(PyExc_AssertionError, "attempt to release recursive lock not owned by thread");
        return NULL;
    }
    return ext_raise(err);
}

/* ---- methods ---- */

PyObject *sync_acquire(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const char *const names[] = {"block", "timeout"};
    PyObject *values[2];
    int64_t timeout = SHOAL_FOREVER;
    sync_lock *real = sync_real_lock(self);
    if (nargs == 0 && kwnames == NULL && real->shared.kind == SHOAL_KIND_LOCK) { /* the most frequent call */
        shoal_err err = shoal_lock_lock(real->shared.handle, SHOAL_NOW);
        if (err == SHOAL_OK) {
            note_holder(real);
            return Py_NewRef(Py_True);
        }
        if (err == SHOAL_EOWNERDEAD) {
            note_holder(real);
            return answer(real, err);
        }
    }
    if ((nargs != 0 || kwnames != NULL) && (ext_arguments("acquire", args, nargs, kwnames, names, 2, 0, values) != 0 ||
                                            ext_block_and_timeout(values[0], values[1], &timeout) != 0)) {
        return NULL;
    }
    return answer(real, sync_lock_once(real, timeout));
}

PyObject *sync_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    sync_lock *real = sync_real_lock(self);
    return answer(real, sync_lock_once(real, SHOAL_FOREVER));
}

PyObject *sync_release(PyObject *self, PyObject *unused)
{
    (void)unused;
    sync_lock *real = sync_real_lock(self);
    shoal_err err;
    if (real->shared.kind == SHOAL_KIND_LOCK) { /* the most frequent call */
        err = shoal_lock_unlock(real->shared.handle);
        real->forks = err == SHOAL_OK ? 0 : real->forks;
    } else {
        err = sync_give(real);
    }
    return err == SHOAL_OK ? Py_NewRef(Py_None) : release_error(err);
}

PyObject *sync_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)args;
    (void)nargs;
    return sync_release(self, NULL);
}

/* ---- what the standard module's locks show of themselves in _semlock ---- */

PyObject *sync_semlock(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

PyObject *sync_get_owner_died(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(sync_real_lock(self)->owner_died);
}

int sync_set_owner_died(PyObject *self, PyObject *value, void *unused)
{
    (void)unused;
    int died = value != NULL ? PyObject_IsTrue(value) : 0;
    if (died < 0) {
        return -1;
    }
    sync_real_lock(self)->owner_died = (char)died;
    return 0;
}

PyObject *sync_get_value(PyObject *self, PyObject *unused)
{
    uint32_t depth;
    (void)unused;
    return PyLong_FromLong(holder(&sync_real_lock(self)->shared, &depth) == SHOAL_HOLDER_NONE);
}

PyObject *sync_is_zero(PyObject *self, PyObject *unused)
{
    uint32_t depth;
    (void)unused;
    return PyBool_FromLong(holder(&sync_real_lock(self)->shared, &depth) != SHOAL_HOLDER_NONE);
}

PyObject *sync_is_mine(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(sync_depth(sync_real_lock(self)) != 0);
}

/* How many times this thread holds it; if another thread of the process does, 1. */
PyObject *sync_count(PyObject *self, PyObject *unused)
{
    (void)unused;
    uint32_t depth = sync_depth(sync_real_lock(self));
    if (depth == 0 && holder(&sync_real_lock(self)->shared, &depth) == SHOAL_HOLDER_SELF) {
        depth = 1;
    }
    return PyLong_FromUnsignedLong(depth);
}

/* ---- types ---- */

static int lock_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    shoal_lock *made;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Lock", names)) {
        return -1;
    }
    shoal_err err = shoal_lock_create(&made);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    sync_set_handle(self, made);
    return 0;
}

static int rlock_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    shoal_rlock *made;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":RLock", names)) {
        return -1;
    }
    shoal_err err = shoal_rlock_create(&made);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    sync_set_handle(self, made);
    return 0;
}

static PyMethodDef lock_methods[] = {
    SYNC_LOCK_METHODS,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lock_properties[] = {
    SYNC_LOCK_PROPERTIES,
    {NULL, NULL, NULL, NULL, NULL},
};

int sync_add_locks(PyObject *module)
{
    static PyType_Slot lock_slots[] = {
        {Py_tp_doc, "Lock(): a lock that is not recursive."},
        {Py_tp_new, sync_new},
        {Py_tp_init, lock_init},
        {Py_tp_methods, lock_methods},
        {Py_tp_getset, lock_properties},
        {0, NULL},
    };
    static PyType_Slot rlock_slots[] = {
        {Py_tp_doc, "RLock(): a recursive lock."},
        {Py_tp_new, sync_new},
        {Py_tp_init, rlock_init},
        {Py_tp_methods, lock_methods},
        {Py_tp_getset, lock_properties},
        {0, NULL},
    };
    if (ext_shared_type_add(module, "shoal._shoal.Lock", SHOAL_KIND_LOCK, sizeof(sync_lock), lock_slots) == NULL) {
        return -1;
    }
    return ext_shared_type_add(module, "shoal._shoal.RLock", SHOAL_KIND_RLOCK, sizeof(sync_lock), rlock_slots) ? 0 : -1;
}
