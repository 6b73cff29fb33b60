/* Block: a piece of shared memory with the buffer protocol. */
#include "ext.h"

#include <string.h>

/* Received bytes of at least this size stay in the heap; smaller ones are copied to private memory. */
typedef struct block_object {
    ext_shared shared;
    int by_value;
} block_object;

static PyTypeObject *block_type;

PyObject *ext_block_new(shoal_block *block, int by_value)
{
    PyObject *self = ext_shared_new(block_type, block);
    if (self != NULL) {
        ((block_object *)self)->by_value = by_value;
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

int ext_add_block(PyObject *module)
{
    static PyGetSetDef properties[] = {
        {"id", block_id, NULL, "The number of the block, the same in every process.", NULL},
        {"size", block_size, NULL, "Its size in bytes.", NULL},
        {"address", block_address, NULL, "The address of its bytes in this process.", NULL},
        {"by_value", block_by_value, NULL, "Whether its bytes came by value: they belong to this process alone.", NULL},
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
    return block_type != NULL ? 0 : -1;
}
