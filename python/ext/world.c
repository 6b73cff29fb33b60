/* The world: lists, statistics, audits; creating, joining and leaving one. shoal/world.py has the public functions. */
#include "codec.h"
#include "ext.h"

#include <stdlib.h>
#include <string.h>

/* ---- lists and statistics ---- */

/* The texts come from worlds of other programs, which may be damaged or of another version. */
static PyObject *text(const char *bytes)
{
    return PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)strlen(bytes), "replace");
}

static PyObject *entry_dict(const shoal_ps_entry *e)
{
    return Py_BuildValue("{s:N,s:K,s:K,s:K,s:i,s:I,s:N,s:N,s:N,s:K,s:K}", "world", text(e->world), "world_used",
                         (unsigned long long)e->world_used, "world_limit", (unsigned long long)e->world_limit,
                         "world_recovered", (unsigned long long)e->world_recovered, "pid", (int)e->pid, "slot",
                         (unsigned)e->slot, "name", text(e->name), "state", text(e->state), "doing", text(e->doing),
                         "references", (unsigned long long)e->references, "cached", (unsigned long long)e->cached);
}

static bool add_entry(const shoal_ps_entry *entry, void *list)
{
    PyObject *dict = entry_dict(entry);
    bool added = dict != NULL && PyList_Append(list, dict) == 0;
    Py_XDECREF(dict);
    return added;
}

static PyObject *world_list(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *list = PyList_New(0);
    shoal_err err = list != NULL ? shoal_world_list(add_entry, list) : SHOAL_OK;
    if (err != SHOAL_OK && PyErr_Occurred() == NULL) {
        ext_raise(err);
    }
    if (PyErr_Occurred() != NULL) {
        Py_CLEAR(list);
    }
    return list;
}

static PyObject *world_info(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    shoal_world_info i;
    shoal_err err;
    Py_BEGIN_ALLOW_THREADS;
    err = shoal_world_info_get(&i);
    Py_END_ALLOW_THREADS;
    if (err != SHOAL_OK) {
        return ext_raise(err);
    }
    return Py_BuildValue("{s:s,s:K,s:K,s:K,s:K,s:K,s:I,s:K,s:K}", "name", i.name, "reserved",
                         (unsigned long long)i.reserved, "heap_limit", (unsigned long long)i.heap_limit, "heap_used",
                         (unsigned long long)i.heap_used, "blocks_live", (unsigned long long)i.blocks_live,
                         "bytes_live", (unsigned long long)i.bytes_live, "processes", (unsigned)i.processes,
                         "recovered", (unsigned long long)i.recovered, "locks_repaired",
                         (unsigned long long)i.locks_repaired);
}

/* The text of a finding comes with SHOAL_ECORRUPT, which ext_raise makes a shoal.Error. */
static PyObject *world_audit(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    shoal_audit a;
    shoal_err err;
    Py_BEGIN_ALLOW_THREADS;
    err = shoal_world_audit(&a);
    Py_END_ALLOW_THREADS;
    if (err != SHOAL_OK) {
        return ext_raise(err);
    }
    return Py_BuildValue("{s:K,s:K}", "blocks", (unsigned long long)a.blocks, "references",
                         (unsigned long long)a.references);
}

static PyObject *world_sweep(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    uint32_t recovered = 0;
    shoal_err err;
    Py_BEGIN_ALLOW_THREADS;
    err = shoal_world_sweep(&recovered);
    Py_END_ALLOW_THREADS;
    return err == SHOAL_OK ? PyLong_FromUnsignedLong(recovered) : ext_raise(err);
}

static PyObject *world_trim(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    shoal_err err;
    Py_BEGIN_ALLOW_THREADS;
    err = shoal_world_trim();
    Py_END_ALLOW_THREADS;
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
}

/* ---- creating, joining and leaving ---- */

static PyObject *world_create(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "heap_limit", NULL};
    (void)module;
    shoal_world_options options = {0};
    PyObject *limit = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|zO!:create", names, &options.name, &PyLong_Type, &limit)) {
        return NULL;
    }
    options.heap_limit = limit != NULL ? PyLong_AsUnsignedLongLong(limit) : 0; /* 0 asks for the default */
    if (PyErr_Occurred() != NULL) {
        return NULL;
    }
    shoal_err err = shoal_world_create(&options);
    return err == SHOAL_OK ? Py_NewRef(Py_None) : ext_raise(err);
}

static PyObject *world_join(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "unpickle", NULL};
    (void)module;
    const char *name;
    int unpickle = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|p:join", names, &name, &unpickle)) {
        return NULL;
    }
    shoal_err err = shoal_world_join(name);
    if (err != SHOAL_OK) {
        return ext_raise_missing(err);
    }
    ext_unpickle_allowed = unpickle;
    Py_RETURN_NONE;
}

/* For forked children, which must not run the atexit handlers that they inherited. With os._exit() the process would
 * count as killed: a barrier at which it has waited would break. */
static PyObject *world_quick_exit(PyObject *module, PyObject *status)
{
    (void)module;
    int number = (int)PyLong_AsLong(status);
    if (number == -1 && PyErr_Occurred() != NULL) {
        return NULL;
    }
    quick_exit(number); /* runs the library's handler */
}

/* Keeps the interpreter's lock: no other thread of the interpreter may enter the library meanwhile. */
static PyObject *world_leave(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    shoal_world_leave();
    ext_unpickle_allowed = 1; /* the next world may be this process's own */
    Py_RETURN_NONE;
}

int ext_add_world(PyObject *module)
{
    static PyMethodDef methods[] = {
        {"world_list", world_list, METH_NOARGS, "See shoal.world.ps."},
        {"world_info", world_info, METH_NOARGS, "See shoal.world.info."},
        {"audit", world_audit, METH_NOARGS, "See shoal.world.audit."},
        {"world_sweep", world_sweep, METH_NOARGS, "See shoal.world.sweep."},
        {"world_trim", world_trim, METH_NOARGS, "See shoal.world.trim."},
        {"world_create", (PyCFunction)(void (*)(void))world_create, METH_VARARGS | METH_KEYWORDS,
         "See shoal.world.create."},
        {"world_join", (PyCFunction)(void (*)(void))world_join, METH_VARARGS | METH_KEYWORDS, "See shoal.world.join."},
        {"quick_exit", world_quick_exit, METH_O,
         "quick_exit(status): ends the process like os._exit(), but leaves the world as an exit does."},
        {"world_leave", world_leave, METH_NOARGS, "See shoal.world.leave."},
        {NULL, NULL, 0, NULL},
    };
    return PyModule_AddFunctions(module, methods);
}
