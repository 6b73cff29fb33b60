/* Event. */
#include "sync.h"

static int event_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    shoal_event *made;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Event", names)) {
        return -1;
    }
    shoal_err err = shoal_event_create(&made);
    if (err != SHOAL_OK) {
        ext_raise(err);
        return -1;
    }
    sync_set_handle(self, made);
    return 0;
}

static PyObject *event_is_set(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(shoal_event_is_set(((ext_shared *)self)->handle));
}

static PyObject *event_set(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_event_set(((ext_shared *)self)->handle);
    return Py_NewRef(Py_None);
}

static PyObject *event_clear(PyObject *self, PyObject *unused)
{
    (void)unused;
    shoal_event_clear(((ext_shared *)self)->handle);
    return Py_NewRef(Py_None);
}

static PyObject *event_wait(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    shoal_event *handle = ((ext_shared *)self)->handle;
    int64_t timeout;
    if (sync_wait_timeout(args, nargs, kwnames, &timeout) != 0) {
        return NULL;
    }
    shoal_err err = SHOAL_OK;
    if (!shoal_event_is_set(handle)) {
        EXT_WAIT(err, shoal_event_wait(handle, timeout));
    }
    if (err != SHOAL_OK && err != SHOAL_ETIMEDOUT) {
        return ext_raise(err);
    }
    return Py_NewRef(err == SHOAL_OK ? Py_True : Py_False);
}

int sync_add_event(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"is_set", event_is_set, METH_NOARGS, "is_set($self, /)\n--\n\nReturn whether the flag is set."},
        {"set", event_set, METH_NOARGS, "set($self, /)\n--\n\nSet the flag and wake everyone who waits for it."},
        {"clear", event_clear, METH_NOARGS, "clear($self, /)\n--\n\nClear the flag."},
        {"wait", SYNC_FAST(event_wait), METH_FASTCALL | METH_KEYWORDS,
         "wait($self, /, timeout=None)\n--\n\n"
         "Wait until the flag is set and return True. Return False after timeout seconds."},
        {NULL, NULL, 0, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Event(): a flag that can be set, cleared and waited for."},
        {Py_tp_new, sync_new},
        {Py_tp_init, event_init},
        {Py_tp_methods, methods},
        {0, NULL},
    };
    return ext_shared_type_add(module, "shoal._shoal.Event", SHOAL_KIND_EVENT, sizeof(ext_shared), slots) ? 0 : -1;
}
