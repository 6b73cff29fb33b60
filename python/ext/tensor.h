/* What the files about tensors share: tensor.c, tensor_make.c, tensor_buffer.c, dlpack.c, card.c and files.c. */
#ifndef SHOAL_PYTHON_TENSOR_H
#define SHOAL_PYTHON_TENSOR_H

#include "ext.h"

typedef struct tensor_object {
    ext_shared shared;
    shoal_dlpack *pin; /* for __array_interface__, whose users do not tell when they end; otherwise NULL */
} ext_tensor;

/* Makes a Tensor around a handle and takes over the caller's reference. If t is NULL, sets the exception for the
 * library's last error. */
PyObject *ext_tensor_new(shoal_tensor *t);

/* Returns the handle of a Tensor, or sets the exception and returns NULL. */
shoal_tensor *ext_tensor_handle(PyObject *self);

/* Make a tuple of numbers, and of a tensor's strides, each times scale. */
PyObject *ext_tensor_numbers(int count, const int64_t *from, int64_t scale);
PyObject *ext_tensor_strides(const shoal_tensor *t, int64_t scale);

/* Checks whether it is the name of a dtype. Sets no exception. */
int ext_tensor_is_dtype(const char *name, shoal_dtype *out_dtype);

/* The constructor: Tensor(dtype, shape, data=None, shared=False, device="cpu"). */
PyObject *ext_tensor_make(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* Slots and a property of the type; finalize drops the pin. */
int ext_tensor_get_buffer(PyObject *self, Py_buffer *view, int flags);
void ext_tensor_release_buffer(PyObject *self, Py_buffer *view);
PyObject *ext_tensor_array_interface(PyObject *self, void *unused);
void ext_tensor_finalize(PyObject *self);

/* Where Tensor.__dlpack__ exports to. */
typedef struct ext_destination {
    uint64_t flags;    /* of shoal_tensor_to_dlpack */
    int versioned;     /* the capsule is "dltensor_versioned", otherwise "dltensor" */
    int bool_as_bytes; /* elements of dtype bool are called u8, for libraries that do not know bool */
    int to_cpu;        /* a copy of a GPU's tensor, for the CPU */
    int has_stream;    /* on a GPU: the receiver's stream waits for Shoal's work, and Shoal waits for it at the end */
    void *stream;
} ext_destination;

/* Reads the arguments of __dlpack__: dl_device, None or (type, id); stream; copy. */
int ext_dlpack_destination(const shoal_tensor *t, PyObject *device, PyObject *stream, PyObject *copy,
                           ext_destination *to);

/* Makes the capsule. */
PyObject *ext_dlpack_export(shoal_tensor *t, const ext_destination *to);

/* Finds the device of a tensor in DLPack's numbers. */
int ext_dlpack_device(shoal_tensor *t, shoal_dlpack_device *out_device);

/* Takes the tensor out of a capsule of either kind. bytes_as_bool: elements of dtype u8 are called bool. */
shoal_tensor *ext_dlpack_import(PyObject *capsule, int bytes_as_bool);

/* Reads the name of a device: "cpu", "cuda", or "cuda:N" if N is this process's GPU. */
int ext_card_device(const char *name, shoal_device *out_device);

/* Adds the functions of card.c. */
int ext_add_card(PyObject *module);

/* Adds the functions of files.c. */
int ext_add_files(PyObject *module);

#endif
