/* What the files of the locks, semaphores, conditions, events and barriers share. */
#ifndef SHOAL_PYTHON_SYNC_H
#define SHOAL_PYTHON_SYNC_H

#include "ext.h"

#include <pthread.h>

/* A Lock, an RLock or a Condition. */
typedef struct sync_lock {
    ext_shared shared;
    struct sync_lock *outer; /* of a Condition: the Lock or RLock that it was made with, or NULL. Owned. */
    pthread_t holder;        /* of a Lock: the thread that acquired it through this object */
    unsigned long forks;     /* and the number of sync_forks then; 0: none did */
    char warned;             /* the program was told that a process died while it held the lock */
} sync_lock;

/* 1 more than the number of forks between the first process and this one. A thread that a fork copied is another
 * thread, with the same pthread_t. */
extern unsigned long sync_forks;

/* The Lock or RLock of a Condition, or the object itself. */
static inline sync_lock *sync_real_lock(PyObject *obj)
{
    sync_lock *self = (sync_lock *)obj;
    return self->outer != NULL ? self->outer : self;
}

/* Takes a lock once. An error of the library is not yet an exception. */
shoal_err sync_lock_once(sync_lock *self, int64_t timeout);

/* Releases a lock once. An error of the library is not yet an exception. */
shoal_err sync_give(sync_lock *self);

/* For the holder of a lock: if a process died while it held the lock, warns of that, once. Returns -1 if the warning is
 * an exception. */
int sync_warn_of_death(sync_lock *self);

/* How many times the calling thread holds it. A Lock that was acquired through another object of this process counts
 * for each thread. */
uint32_t sync_depth(sync_lock *self);

/* Makes an object without a handle, for __new__; __init__ makes the handle. */
PyObject *sync_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* Gives an object the handle that __init__ made, in the place of an older one. */
void sync_set_handle(PyObject *obj, void *handle);

/* Reads the only argument of wait(timeout=None). */
int sync_wait_timeout(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, int64_t *out_timeout);

/* Methods and properties that Lock, RLock and Condition have in common. The first four are those of a Condition. */
PyObject *sync_acquire(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *sync_release(PyObject *self, PyObject *unused);
PyObject *sync_enter(PyObject *self, PyObject *unused);
PyObject *sync_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *sync_get_value(PyObject *self, PyObject *unused);
PyObject *sync_is_zero(PyObject *self, PyObject *unused);
PyObject *sync_is_mine(PyObject *self, PyObject *unused);
PyObject *sync_count(PyObject *self, PyObject *unused);
PyObject *sync_semlock(PyObject *self, void *unused);
PyObject *sync_get_owner_died(PyObject *self, void *unused);
int sync_set_owner_died(PyObject *self, PyObject *value, void *unused);

#define SYNC_FAST(function) ((PyCFunction)(void (*)(void))(function))
#define SYNC_LOCK_METHODS(prefix)                                                                                      \
    {"acquire", SYNC_FAST(prefix##_acquire), METH_FASTCALL | METH_KEYWORDS,                                            \
     "acquire($self, /, block=True, timeout=None)\n--\n\n"                                                             \
     "Take the lock and return True. Return False if it is not free, after at most timeout seconds."},                 \
        {"release", prefix##_release, METH_NOARGS, "release($self, /)\n--\n\nRelease the lock once."},                 \
        {"__enter__", prefix##_enter, METH_NOARGS, NULL}, {"__exit__", SYNC_FAST(prefix##_exit), METH_FASTCALL, NULL}, \
        {"_get_value", sync_get_value, METH_NOARGS, "1 if it is free, else 0."},                                       \
        {"_is_zero", sync_is_zero, METH_NOARGS, "Whether somebody holds it."},                                         \
        {"_is_mine", sync_is_mine, METH_NOARGS, "Whether this thread holds it."},                                      \
    {                                                                                                                  \
        "_count", sync_count, METH_NOARGS,                                                                             \
            "How many times this thread holds it; 1 if another thread of this process does."                           \
    }

#define SYNC_LOCK_PROPERTIES                                                                                           \
    {"owner_died", sync_get_owner_died, sync_set_owner_died,                                                           \
     "Whether a process died while it held the lock. A holder sets it to False; until then every process sees True.",  \
     NULL},                                                                                                            \
    {                                                                                                                  \
        "_semlock", sync_semlock, NULL, "The object itself, which has the methods of the standard _semlock.", NULL     \
    }

int sync_add_locks(PyObject *module);
int sync_add_semaphore(PyObject *module);
int sync_add_event(PyObject *module);
int sync_add_condition(PyObject *module);
int sync_add_barrier(PyObject *module);

#endif
