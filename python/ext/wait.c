/* Calls that wait: timeouts, signals. */
#include "ext.h"

#include <math.h>
#include <pthread.h>

#define LONGEST 9.2e9 /* seconds that fit into nanoseconds */

static pthread_t main_thread;
static _Thread_local int prepared;

int ext_timeout(PyObject *seconds, int64_t *out_timeout)
{
    if (seconds == NULL || Py_IsNone(seconds)) {
        *out_timeout = SHOAL_FOREVER;
        return 0;
    }
    double number = PyFloat_AsDouble(seconds);
    if (number == -1.0 && PyErr_Occurred() != NULL) {
        return -1;
    }
    if (isnan(number)) {
        PyErr_SetString(PyExc_ValueError, "a timeout cannot be NaN");
        return -1;
    }
    *out_timeout = number <= 0 ? SHOAL_NOW : number >= LONGEST ? SHOAL_FOREVER : SHOAL_SECONDS(number);
    return 0;
}

/* The library calls this in a thread that waits, without the interpreter's lock. If a handler raises, the exception
 * stays with the thread until the call that waits returns. */
static bool run_signal_handlers(void *context)
{
    (void)context;
    if (!Py_IsInitialized()) { /* the library cleans up after the interpreter */
        return false;
    }
    PyGILState_STATE state = PyGILState_Ensure();
    bool raised = PyErr_CheckSignals() != 0;
    PyGILState_Release(state);
    return raised;
}

void ext_let_signals_end_waits(void)
{
    if (!prepared) { /* Python runs handlers in the main thread only */
        prepared = 1;
        if (pthread_equal(pthread_self(), main_thread)) {
            shoal_set_interrupt(run_signal_handlers, NULL);
        }
    }
}

/* The exception of a handler that waits to be raised. */
static PyObject *late_type, *late_value, *late_traceback;

static int raise_late(void *unused)
{
    (void)unused;
    PyErr_Restore(late_type, late_value, late_traceback);
    late_type = NULL;
    return PyErr_Occurred() != NULL ? -1 : 0;
}

void ext_raise_later(void)
{
    if (late_type != NULL || Py_AddPendingCall(raise_late, NULL) != 0) {
        PyErr_WriteUnraisable(NULL); /* a second one before the first was raised */
        return;
    }
    PyErr_Fetch(&late_type, &late_value, &late_traceback);
}

/* A thread that forks becomes the main thread of its child. */
static void become_main(void)
{
    main_thread = pthread_self();
    prepared = 0;
}

int ext_add_waits(PyObject *module)
{
    (void)module;
    PyObject *threading = PyImport_ImportModule("threading");
    PyObject *thread = threading != NULL ? PyObject_CallMethod(threading, "main_thread", NULL) : NULL;
    PyObject *ident = thread != NULL ? PyObject_GetAttrString(thread, "ident") : NULL;
    unsigned long number = ident != NULL ? PyLong_AsUnsignedLong(ident) : 0;
    Py_XDECREF(ident);
    Py_XDECREF(thread);
    Py_XDECREF(threading);
    if (PyErr_Occurred() != NULL) {
        return -1;
    }
    main_thread = (pthread_t)number;
    pthread_atfork(NULL, NULL, become_main);
    return 0;
}
