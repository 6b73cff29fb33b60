/* Condition: with its own recursive lock, which is inside the library's condition, or with a Lock or RLock of the
 * caller.
 *
 * With a lock L of the caller, the library's condition C has a lock of its own beside it:
 *
 *   wait     holds L:   lock C, release L, wait at C, unlock C, take L again
 *   notify   holds L:   lock C, notify, unlock C
 *
 * No notice is lost. A notifier needs L, which the waiter has until it has locked C; and then it needs C, which the
 * library's wait unlocks only when the waiter stands in its queue. So whoever notifies after the waiter gave up L finds
 * it in the queue. There is no deadlock: C is locked by those who hold L, and by waiters that were woken, who do not
 * wait for L before they have unlocked C. C protects no data of the program, so nobody asks whether its owner died; L
 * says so of its own. */
#include "sync.h"

static PyObject *not_held(const char *text)
{
    PyErr_SetString(PyExc_AssertionError, text);
    return NULL;
}

/* ---- with the caller's lock ---- */

static shoal_err lock_inner(sync_lock *self)
{
    shoal_err err = shoal_condition_lock(self->shared.handle, SHOAL_NOW);
    if (err == SHOAL_ETIMEDOUT) {
        EXT_WAIT(err, shoal_condition_lock(self->shared.handle, SHOAL_FOREVER));
    }
    return err;
}

/* The exceptions of what happened while the caller did not have its lock. The first one counts. */
typedef struct saved_exception {
    PyObject *type, *value, *traceback;
} saved_exception;

static void save_exception(saved_exception *saved)
{
    if (saved->type == NULL) {
        PyErr_Fetch(&saved->type, &saved->value, &saved->traceback);
    }
    PyErr_Clear();
}

/* Takes the caller's lock again. A signal handler that raises in the meantime does not end this: the caller expects to
 * have its lock, whatever happened. */
static void take_again(sync_lock *lock, uint32_t depth, saved_exception *saved)
{
    while (depth > 0) {
        shoal_err err = sync_lock_once(lock, SHOAL_FOREVER);
        if (err == SHOAL_OK) {
            depth--;
            continue;
        }
        ext_raise(err);
        save_exception(saved);
        if (err != SHOAL_EINTR) {
            return; /* this process is no longer in the world of the lock */
        }
    }
    if (sync_warn_of_death(lock) != 0) { /* it has the lock, and the warning is an exception */
        save_exception(saved);
    }
}

/* Waits with C locked and L given up, and unlocks C. */
static shoal_err wait_inner(sync_lock *self, int64_t timeout, saved_exception *saved)
{
    shoal_err err;
    EXT_WAIT(err, shoal_condition_wait(self->shared.handle, timeout));
    if (err != SHOAL_OK && err != SHOAL_ETIMEDOUT) {
        ext_raise(err);
        save_exception(saved);
    }
    shoal_err unlocked = shoal_condition_unlock(self->shared.handle);
    if (unlocked != SHOAL_OK) {
        ext_raise(unlocked);
        save_exception(saved);
    }
    return err;
}

static PyObject *wait_with_outer(sync_lock *self, int64_t timeout)
{
    sync_lock *lock = (sync_lock *)Py_NewRef((PyObject *)self->outer);
    saved_exception saved = {NULL, NULL, NULL};
    uint32_t depth = sync_depth(lock);
    shoal_err err = depth != 0 ? lock_inner(self) : SHOAL_EPERM;
    if (err == SHOAL_OK) {
        for (uint32_t i = 0; i < depth; i++) {
            (void)sync_give(lock); /* it fails only if another process released a Lock that is not its own */
        }
        err = wait_inner(self, timeout, &saved);
        take_again(lock, depth, &saved);
    } else if (err != SHOAL_EPERM) {
        ext_raise(err);
        save_exception(&saved);
    }
    Py_DECREF(lock);
    if (saved.type != NULL) {
        PyErr_Restore(saved.type, saved.value, saved.traceback);
        return NULL;
    }
    return err == SHOAL_EPERM ? not_held("must acquire() condition before using wait()")
                              : Py_NewRef(err == SHOAL_ETIMEDOUT ? Py_False : Py_True);
}

static PyObject *notify_with_outer(sync_lock *self, uint32_t count)
{
    if (sync_depth(self->outer) == 0) {
        return not_held("lock is not owned");
    }
    shoal_err err = lock_inner(self);
    if (err != SHOAL_OK) {
        return ext_raise(err);
    }
    err = shoal_condition_notify(self->shared.handle, count);
    shoal_err unlocked = shoal_condition_unlock(self->shared.handle);
    err = err == SHOAL_OK ? unlocked : err;
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
}

/* ---- methods ---- */

static PyObject *condition_wait(PyObject *obj, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    sync_lock *self = (sync_lock *)obj;
    int64_t timeout;
    shoal_err err;
    if (sync_wait_timeout(args, nargs, kwnames, &timeout) != 0) {
        return NULL;
    }
    if (self->outer != NULL) {
        return wait_with_outer(self, timeout);
    }
    EXT_WAIT(err, shoal_condition_wait(self->shared.handle, timeout));
    if (err == SHOAL_EPERM) {
        return not_held("must acquire() condition before using wait()");
    }
    if (err != SHOAL_OK && err != SHOAL_ETIMEDOUT) {
        return ext_raise(err);
    }
    return sync_warn_of_death(self) == 0 ? PyBool_FromLong(err == SHOAL_OK) : NULL;
}

static PyObject *notify(sync_lock *self, uint32_t count)
{
    if (self->outer != NULL) {
        return notify_with_outer(self, count);
    }
    shoal_err err = shoal_condition_notify(self->shared.handle, count);
    if (err == SHOAL_EPERM) {
        return not_held("lock is not owned");
    }
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
}

static PyObject *condition_notify(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static ext_name names[] = {EXT_NAME("n")};
    PyObject *n;
    int64_t count = 1;
    int overflow = 0;
    if (ext_arguments("notify", args, nargs, kwnames, names, 1, 0, &n) != 0) {
        return NULL;
    }
    if (n != NULL) {
        count = PyLong_AsLongLongAndOverflow(n, &overflow);
    }
    if (count == -1 && overflow == 0 && PyErr_Occurred() != NULL) {
        return NULL;
    }
    bool all = overflow > 0 || count > UINT32_MAX;
    return notify((sync_lock *)self, all ? UINT32_MAX : overflow < 0 || count < 0 ? 0 : (uint32_t)count);
}

static PyObject *condition_notify_all(PyObject *self, PyObject *unused)
{
    (void)unused;
    return notify((sync_lock *)self, UINT32_MAX);
}

/* ---- the type ---- */

static int condition_set_outer(PyObject *obj, PyObject *lock, void *unused)
{
    sync_lock *self = (sync_lock *)obj;
    (void)unused;
    if (lock == NULL || !PyObject_TypeCheck(lock, ext_shared_type) ||
        (((ext_shared *)lock)->kind != SHOAL_KIND_LOCK && ((ext_shared *)lock)->kind != SHOAL_KIND_RLOCK)) {
        PyErr_SetString(PyExc_TypeError, "the lock of a Condition must be a Lock or an RLock of shoal.multiprocessing");
        return -1;
    }
    sync_lock *old = self->outer;
    self->outer = (sync_lock *)Py_NewRef(lock);
    Py_XDECREF((PyObject *)old);
    return 0;
}

static PyObject *condition_outer(PyObject *self, void *unused)
{
    (void)unused;
    sync_lock *outer = ((sync_lock *)self)->outer;
    return Py_NewRef(outer != NULL ? (PyObject *)outer : Py_None);
}

static int condition_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lock", NULL};
    PyObject *lock = Py_None;
    shoal_condition *made;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Condition", names, &lock) ||
        (!Py_IsNone(lock) && condition_set_outer(self, lock, NULL) != 0)) {
        return -1;
    }
    shoal_err err = shoal_condition_create(&made);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    sync_set_handle(self, made);
    return 0;
}

static int condition_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((sync_lock *)self)->outer);
    return 0;
}

static int condition_clear(PyObject *self)
{
    Py_CLEAR(((sync_lock *)self)->outer);
    return 0;
}

static void condition_dealloc(PyObject *self)
{
    destructor base = (destructor)PyType_GetSlot(ext_shared_type, Py_tp_dealloc);
    condition_clear(self);
    base(self);
}

int sync_add_condition(PyObject *module)
{
    static PyMethodDef methods[] = {
        SYNC_LOCK_METHODS(sync),
        {"wait", SYNC_FAST(condition_wait), METH_FASTCALL | METH_KEYWORDS,
         "wait($self, /, timeout=None)\n--\n\n"
         "Release the lock, wait for a notification and take the lock again. Return False if timeout seconds passed."},
        {"notify", SYNC_FAST(condition_notify), METH_FASTCALL | METH_KEYWORDS,
         "notify($self, /, n=1)\n--\n\nWake at most n of those who wait, the oldest first."},
        {"notify_all", condition_notify_all, METH_NOARGS, "notify_all($self, /)\n--\n\nWake all who wait."},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        SYNC_LOCK_PROPERTIES,
        {"_outer", condition_outer, condition_set_outer, "The lock that it was made with, or None.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Condition(lock=None): a condition with a lock."},
        {Py_tp_new, sync_new},
        {Py_tp_init, condition_init},
        {Py_tp_dealloc, condition_dealloc},
        {Py_tp_traverse, condition_traverse},
        {Py_tp_clear, condition_clear},
        {Py_tp_methods, methods},
        {Py_tp_getset, properties},
        {0, NULL},
    };
    return ext_shared_type_add(module, "shoal._shoal.Condition", SHOAL_KIND_CONDITION, sizeof(sync_lock), slots) ? 0
                                                                                                                 : -1;
}
