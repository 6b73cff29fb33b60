/* Block: a piece of shared memory with the buffer protocol. */
#include "ext.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

typedef struct block_object {
    ext_shared shared;
    int by_value;
    struct block_object *previous, *next; /* in the list of blocks by value */
} block_object;

static PyTypeObject *block_type;

/* ---- blocks by value, and fork ----
 *
 * What was received by value must stay private: a forked child and its parent must not see each other's writes. Their
 * memory is shared, so the child takes a private copy of each such block before anything else runs in it, and the
 * parent waits for that. The wait ends when the child closes its end of a pipe, which its death does too. Small blocks
 * are not here: their bytes were copied out (array.c, reduction.py). */

static block_object *first; /* under the interpreter's lock */
static int gate[2] = {-1, -1};

static void leave_list(ext_shared *shared)
{
    block_object *self = (block_object *)shared;
    if (self->previous != NULL) {
        self->previous->next = self->next;
    } else if (first == self) {
        first = self->next;
    }
    if (self->next != NULL) {
        self->next->previous = self->previous;
    }
    self->previous = self->next = NULL;
}

static void set_by_value(block_object *self, int by_value)
{
    if (by_value && !self->by_value) {
        self->next = first;
        if (first != NULL) {
            first->previous = self;
        }
        first = self;
        self->shared.closing = leave_list;
    } else if (!by_value && self->by_value) {
        leave_list(&self->shared);
        self->shared.closing = NULL;
    }
    self->by_value = by_value;
}

int ext_block_is_by_value(PyObject *block)
{
    return ((block_object *)block)->by_value;
}

static PyObject *block_is_by_value(PyObject *module, PyObject *id)
{
    (void)module;
    unsigned long long number = PyLong_AsUnsignedLongLong(id);
    if (PyErr_Occurred() != NULL) {
        return NULL;
    }
    int found = 0;
    for (block_object *b = first; b != NULL && !found; b = b->next) {
        found = shoal_block_id(b->shared.handle) == number;
    }
    return PyBool_FromLong(found);
}

/* Takes over the reference. */
static PyObject *wrap(shoal_err err, shoal_block *block)
{
    return err == SHOAL_OK ? ext_block_new(block, 0) : ext_raise_missing(err);
}

static PyObject *block_find(PyObject *module, PyObject *address)
{
    (void)module;
    shoal_block *block = NULL;
    void *pointer = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred() != NULL) {
        return NULL;
    }
    shoal_err err = pointer != NULL ? shoal_block_find(pointer, &block) : SHOAL_ENOENT;
    if (err == SHOAL_ENOENT) {
        Py_RETURN_NONE;
    }
    return wrap(err, block);
}

static PyObject *block_open(PyObject *module, PyObject *id)
{
    (void)module;
    shoal_block *block = NULL;
    unsigned long long number = PyLong_AsUnsignedLongLong(id);
    if (PyErr_Occurred() != NULL) {
        return NULL;
    }
    shoal_err err = shoal_block_open(number, &block);
    return wrap(err, block);
}

static PyObject *before_fork(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    if (first != NULL && pipe2(gate, O_CLOEXEC) != 0) {
        gate[0] = gate[1] = -1; /* the child may then see writes that its parent makes in its first moments */
    }
    Py_RETURN_NONE;
}

static void close_gate(int i)
{
    if (gate[i] >= 0) {
        close(gate[i]);
        gate[i] = -1;
    }
}

static PyObject *after_fork_in_parent(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    close_gate(1);
    if (gate[0] >= 0) {
        char byte;
        ssize_t n;
        do {
            n = read(gate[0], &byte, 1);
        } while (n < 0 && errno == EINTR);
    }
    close_gate(0);
    Py_RETURN_NONE;
}

static PyObject *after_fork_in_child(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    close_gate(0);
    for (block_object *b = first; b != NULL; b = b->next) {
        if (shoal_block_make_private(b->shared.handle) != SHOAL_OK) {
            PyErr_WarnFormat(PyExc_RuntimeWarning, 1, "a received array stays shared with the parent: %s",
                             shoal_last_error_text());
            PyErr_Clear();
        }
    }
    close_gate(1);
    Py_RETURN_NONE;
}

static int register_fork(PyObject *module)
{
    PyObject *os = PyImport_ImportModule("os");
    PyObject *call = os != NULL ? PyObject_GetAttrString(os, "register_at_fork") : NULL;
    PyObject *hooks = call != NULL ? PyDict_New() : NULL;
    static const char *const names[][2] = {{"before", "_before_fork"},
                                           {"after_in_parent", "_after_fork_in_parent"},
                                           {"after_in_child", "_after_fork_in_child"}};
    int done = hooks != NULL ? 0 : -1;
    for (int i = 0; done == 0 && i < 3; i++) {
        PyObject *hook = PyObject_GetAttrString(module, names[i][1]);
        done = hook != NULL ? PyDict_SetItemString(hooks, names[i][0], hook) : -1;
        Py_XDECREF(hook);
    }
    PyObject *empty = done == 0 ? PyTuple_New(0) : NULL;
    PyObject *result = empty != NULL ? PyObject_Call(call, empty, hooks) : NULL;
    done = result != NULL ? 0 : -1;
    Py_XDECREF(result);
    Py_XDECREF(empty);
    Py_XDECREF(hooks);
    Py_XDECREF(call);
    Py_XDECREF(os);
    return done;
}

/* ---- the type ---- */

PyObject *ext_block_new(shoal_block *block, int by_value)
{
    PyObject *self = ext_shared_new(block_type, block);
    if (self != NULL) {
        set_by_value((block_object *)self, by_value);
    }
    return self;
}

static PyObject *block_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"size", "zeroed", NULL};
    Py_ssize_t size;
    int zeroed = 0;
    shoal_block *block;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n|p", names, &size, &zeroed)) {
        return NULL;
    }
    if (size < 0) {
        PyErr_SetString(PyExc_ValueError, "the size of a block cannot be negative");
        return NULL;
    }
    shoal_err err = zeroed ? shoal_block_create_zeroed((size_t)size, &block) : shoal_block_create((size_t)size, &block);
    return err == SHOAL_OK ? ext_shared_new(type, block) : ext_raise(err);
}

static int block_get_buffer(PyObject *self, Py_buffer *view, int flags)
{
    shoal_block *block = ext_shared_handle(self, SHOAL_KIND_BLOCK);
    if (block == NULL) {
        view->obj = NULL;
        return -1;
    }
    void *data = shoal_block_data(block);
    if (data == NULL) {
        view->obj = NULL;
        PyErr_SetString(PyExc_ValueError, "this process has left the world of the block");
        return -1;
    }
    return PyBuffer_FillInfo(view, self, data, (Py_ssize_t)shoal_block_size(block), 0, flags);
}

static PyObject *block_id(PyObject *self, void *unused)
{
    (void)unused;
    shoal_block *block = ext_shared_handle(self, SHOAL_KIND_BLOCK);
    return block != NULL ? PyLong_FromUnsignedLongLong(shoal_block_id(block)) : NULL;
}

static PyObject *block_size(PyObject *self, void *unused)
{
    (void)unused;
    shoal_block *block = ext_shared_handle(self, SHOAL_KIND_BLOCK);
    return block != NULL ? PyLong_FromSize_t(shoal_block_size(block)) : NULL;
}

static PyObject *block_address(PyObject *self, void *unused)
{
    (void)unused;
    shoal_block *block = ext_shared_handle(self, SHOAL_KIND_BLOCK);
    return block != NULL ? PyLong_FromVoidPtr(shoal_block_data(block)) : NULL;
}

static PyObject *block_by_value(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(((block_object *)self)->by_value);
}

static int block_set_by_value(PyObject *self, PyObject *flag, void *unused)
{
    (void)unused;
    int by_value = flag != NULL ? PyObject_IsTrue(flag) : 0;
    if (by_value < 0 || ext_shared_handle(self, SHOAL_KIND_BLOCK) == NULL) {
        return -1;
    }
    set_by_value((block_object *)self, by_value);
    return 0;
}

int ext_add_block(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"block_find", block_find, METH_O,
         "block_find(address): returns the Block of this process that contains the address, or None."},
        {"block_open", block_open, METH_O,
         "block_open(id): returns the Block with this number, which another process must hold meanwhile."},
        {"block_is_by_value", block_is_by_value, METH_O,
         "block_is_by_value(id): whether the bytes of this block came by value, and belong to this process alone."},
        {"_before_fork", before_fork, METH_NOARGS, NULL},
        {"_after_fork_in_parent", after_fork_in_parent, METH_NOARGS, NULL},
        {"_after_fork_in_child", after_fork_in_child, METH_NOARGS, NULL},
        {NULL, NULL, 0, NULL},
    };
    static PyGetSetDef properties[] = {
        {"id", block_id, NULL, "The number of the block, the same in every process.", NULL},
        {"size", block_size, NULL, "Its size in bytes.", NULL},
        {"address", block_address, NULL, "The address of its bytes in this process.", NULL},
        {"by_value", block_by_value, block_set_by_value,
         "Whether its bytes came by value: they belong to this process alone.", NULL},
        {NULL, NULL, NULL, NULL, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, "Block(size, zeroed=False): memory in the shared heap, with the buffer protocol."},
        {Py_tp_new, block_new},
        {Py_tp_getset, properties},
        {Py_bf_getbuffer, block_get_buffer},
        {0, NULL},
    };
    block_type = ext_shared_type_add(module, "shoal._shoal.Block", SHOAL_KIND_BLOCK, sizeof(block_object), slots);
    return block_type != NULL && PyModule_AddFunctions(module, functions) == 0 ? register_fork(module) : -1;
}
