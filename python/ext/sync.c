/* Locks, semaphores, conditions, events and barriers: what they share. The classes that programs use are in
 * shoal/multiprocessing/synchronize.py; they inherit their methods from the types here. */
#include "sync.h"

unsigned long sync_forks = 1;

static void count_fork(void)
{
    sync_forks++;
}

PyObject *sync_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    return ext_shared_new(type, NULL);
}

void sync_set_handle(PyObject *obj, void *handle)
{
    ext_shared_close((ext_shared *)obj);
    ((ext_shared *)obj)->handle = handle;
}

int sync_wait_timeout(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, int64_t *out_timeout)
{
    static ext_name names[] = {EXT_NAME("timeout")};
    PyObject *timeout;
    if (ext_arguments("wait", args, nargs, kwnames, names, 1, 0, &timeout) != 0) {
        return -1;
    }
    return ext_timeout(timeout, out_timeout);
}

int ext_add_sync(PyObject *module)
{
    static int (*const parts[])(PyObject *) = {sync_add_locks, sync_add_semaphore, sync_add_event, sync_add_condition,
                                               sync_add_barrier};
    pthread_atfork(NULL, NULL, count_fork);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (parts[i](module) != 0) {
            return -1;
        }
    }
    return 0;
}
