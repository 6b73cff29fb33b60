/* Lock and RLock, and what a Condition has in common with them. */
#include "sync.h"

/* ---- the three kinds ---- */

/* The functions of each kind are inlined, with the kind as a constant, into the methods of Lock and RLock. */
#define INLINED static inline __attribute__((always_inline))

static shoal_err lock(shoal_kind kind, void *handle, int64_t timeout)
{
    switch (kind) {
    case SHOAL_KIND_LOCK: return shoal_lock_lock(handle, timeout);
    case SHOAL_KIND_RLOCK: return shoal_rlock_lock(handle, timeout);
    default: return shoal_condition_lock(handle, timeout);
    }
}

/* Fails with SHOAL_EOWNERDEAD if an owner died, so that the usual way need not ask for that. */
INLINED shoal_err try_lock(shoal_kind kind, void *handle)
{
    switch (kind) {
    case SHOAL_KIND_LOCK: return shoal_lock_lock_consistent(handle, SHOAL_NOW);
    case SHOAL_KIND_RLOCK: return shoal_rlock_lock_consistent(handle, SHOAL_NOW);
    default: return shoal_condition_lock_consistent(handle, SHOAL_NOW);
    }
}

INLINED shoal_err unlock(shoal_kind kind, void *handle)
{
    switch (kind) {
    case SHOAL_KIND_LOCK: return shoal_lock_unlock(handle);
    case SHOAL_KIND_RLOCK: return shoal_rlock_unlock(handle);
    default: return shoal_condition_unlock(handle);
    }
}

static bool owner_died(ext_shared *self)
{
    switch (self->kind) {
    case SHOAL_KIND_LOCK: return shoal_lock_owner_died(self->handle);
    case SHOAL_KIND_RLOCK: return shoal_rlock_owner_died(self->handle);
    default: return shoal_condition_owner_died(self->handle);
    }
}

static shoal_err mark_consistent(ext_shared *self)
{
    switch (self->kind) {
    case SHOAL_KIND_LOCK: return shoal_lock_mark_consistent(self->handle);
    case SHOAL_KIND_RLOCK: return shoal_rlock_mark_consistent(self->handle);
    default: return shoal_condition_mark_consistent(self->handle);
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

int sync_warn_of_death(sync_lock *self)
{
    if (self->warned || !owner_died(&self->shared)) {
        return 0;
    }
    self->warned = 1;
    return PyErr_WarnEx(PyExc_RuntimeWarning,
                        "a process died while it held this lock: what the lock protects may be half changed", 1);
}

/* Not inlined: it would make the usual way longer. */
static __attribute__((noinline)) shoal_err wait_for_lock(sync_lock *self, int64_t timeout)
{
    shoal_err err;
    EXT_WAIT(err, lock(self->shared.kind, self->shared.handle, timeout));
    return err;
}

/* pthread_self() without a call. */
static inline pthread_t this_thread(void)
{
    return (pthread_t)__builtin_thread_pointer();
}

INLINED void note_holder(sync_lock *self, shoal_kind kind)
{
    if (kind == SHOAL_KIND_LOCK) {
        self->holder = this_thread();
        self->forks = sync_forks;
    }
}

/* Goes on after a try to lock that returned err. */
static shoal_err lock_after_try(sync_lock *self, shoal_err err, int64_t timeout)
{
    if (err == SHOAL_EOWNERDEAD) {
        err = lock(self->shared.kind, self->shared.handle, SHOAL_NOW);
    }
    if (err == SHOAL_ETIMEDOUT && timeout > SHOAL_NOW) {
        err = wait_for_lock(self, timeout);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    note_holder(self, self->shared.kind);
    return SHOAL_OK;
}

shoal_err sync_lock_once(sync_lock *self, int64_t timeout)
{
    return lock_after_try(self, try_lock(self->shared.kind, self->shared.handle), timeout);
}

/* What acquire() returns, after a try to lock. */
static PyObject *answer(sync_lock *self, shoal_err err)
{
    if (err == SHOAL_ETIMEDOUT) {
        return Py_NewRef(Py_False);
    }
    if (err != SHOAL_OK) {
        return ext_raise(err);
    }
    if (sync_warn_of_death(self) == 0) {
        return Py_NewRef(Py_True);
    }
    if (sync_give(self) != SHOAL_OK) { /* the warning is an exception, so the caller does not have the lock */
        PyErr_WriteUnraisable((PyObject *)self);
    }
    return NULL;
}

shoal_err sync_give(sync_lock *self)
{
    shoal_err err = unlock(self->shared.kind, self->shared.handle);
    if (err != SHOAL_OK) {
        return err;
    }
    self->forks = 0;
    return SHOAL_OK;
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

static __attribute__((noinline)) PyObject *release_error(shoal_err err)
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

/* Lock and RLock have methods of their own, which look neither for an outer lock nor at the kind. A locked instruction
 * waits until all before it is done, so a pair takes as long as what is around its two exchanges. */

static __attribute__((noinline)) PyObject *acquire_after_try(sync_lock *self, shoal_err err, int64_t timeout)
{
    return answer(self, lock_after_try(self, err, timeout));
}

INLINED PyObject *acquire(sync_lock *self, shoal_kind kind, int64_t timeout)
{
    shoal_err err = try_lock(kind, self->shared.handle);
    if (__builtin_expect(err != SHOAL_OK, 0)) {
        return acquire_after_try(self, err, timeout);
    }
    note_holder(self, kind);
    return PyBool_FromLong(1); /* a function of this Python, which need not count references to True (from 3.12 on) */
}

static __attribute__((noinline)) PyObject *acquire_with(sync_lock *self, PyObject *const *args, Py_ssize_t nargs,
                                                        PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("block"), EXT_NAME("timeout")};
    PyObject *values[2] = {nargs > 0 ? args[0] : NULL, nargs > 1 ? args[1] : NULL};
    int64_t timeout;
    if (((nargs > 2 || kwnames != NULL) && ext_arguments("acquire", args, nargs, kwnames, names, 2, 0, values) != 0) ||
        ext_block_and_timeout(values[0], values[1], &timeout) != 0) {
        return NULL;
    }
    return acquire(self, self->shared.kind, timeout);
}

/* The holder is forgotten first, so that nothing has to be kept over the call. No other thread runs in between. If the
 * call fails, nobody holds the lock, or this process cannot tell. */
INLINED PyObject *release(sync_lock *self, shoal_kind kind)
{
    if (kind == SHOAL_KIND_LOCK) {
        self->forks = 0;
    }
    shoal_err err = unlock(kind, self->shared.handle);
    if (__builtin_expect(err != SHOAL_OK, 0)) {
        return release_error(err);
    }
    return (Py_NewRef)(Py_None); /* the function, as in acquire */
}

/* The four methods of a kind; real finds the lock of an object. */
#define METHODS(scope, prefix, real, kind)                                                                             \
    scope PyObject *prefix##_acquire(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)       \
    {                                                                                                                  \
        return nargs == 0 && kwnames == NULL ? acquire(real(self), kind, SHOAL_FOREVER)                                \
                                             : acquire_with(real(self), args, nargs, kwnames);                         \
    }                                                                                                                  \
    scope PyObject *prefix##_enter(PyObject *self, PyObject *unused)                                                   \
    {                                                                                                                  \
        (void)unused;                                                                                                  \
        return acquire(real(self), kind, SHOAL_FOREVER);                                                               \
    }                                                                                                                  \
    scope PyObject *prefix##_release(PyObject *self, PyObject *unused)                                                 \
    {                                                                                                                  \
        (void)unused;                                                                                                  \
        return release(real(self), kind);                                                                              \
    }                                                                                                                  \
    scope PyObject *prefix##_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)                             \
    {                                                                                                                  \
        (void)args;                                                                                                    \
        (void)nargs;                                                                                                   \
        return release(real(self), kind);                                                                              \
    }

INLINED sync_lock *itself(PyObject *obj)
{
    return (sync_lock *)obj;
}

METHODS(static, lock, itself, SHOAL_KIND_LOCK)
METHODS(static, rlock, itself, SHOAL_KIND_RLOCK)
METHODS(, sync, sync_real_lock, sync_real_lock(self)->shared.kind)

/* ---- what the standard module's locks show of themselves in _semlock ---- */

PyObject *sync_semlock(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(self);
}

PyObject *sync_get_owner_died(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(owner_died(&sync_real_lock(self)->shared));
}

int sync_set_owner_died(PyObject *self, PyObject *value, void *unused)
{
    (void)unused;
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "cannot delete owner_died");
        return -1;
    }
    int died = PyObject_IsTrue(value);
    if (died < 0) {
        return -1;
    }
    if (died) {
        PyErr_SetString(PyExc_ValueError, "owner_died can only be set to False");
        return -1;
    }
    shoal_err err = mark_consistent(&sync_real_lock(self)->shared);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
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
    SYNC_LOCK_METHODS(lock),
    {NULL, NULL, 0, NULL},
};

static PyMethodDef rlock_methods[] = {
    SYNC_LOCK_METHODS(rlock),
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
        {Py_tp_methods, rlock_methods},
        {Py_tp_getset, lock_properties},
        {0, NULL},
    };
    if (ext_shared_type_add(module, "shoal._shoal.Lock", SHOAL_KIND_LOCK, sizeof(sync_lock), lock_slots) == NULL) {
        return -1;
    }
    return ext_shared_type_add(module, "shoal._shoal.RLock", SHOAL_KIND_RLOCK, sizeof(sync_lock), rlock_slots) ? 0 : -1;
}
