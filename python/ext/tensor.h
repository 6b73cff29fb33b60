/* What the files about tensors share: tensor.c, dlpack.c and files.c. */
#ifndef SHOAL_PYTHON_TENSOR_H
#define SHOAL_PYTHON_TENSOR_H

#include "ext.h"

/* Makes a Tensor around a handle and takes over the caller's reference. If t is NULL, sets the exception for the
 * library's last error. */
PyObject *ext_tensor_new(shoal_tensor *t);

/* Makes the capsule of Tensor.__dlpack__. flags are those of shoal_tensor_to_dlpack. versioned: "dltensor_versioned",
 * otherwise "dltensor". bool_as_bytes: elements of dtype bool are called u8, for libraries that do not know bool. */
PyObject *ext_dlpack_export(shoal_tensor *t, uint64_t flags, int versioned, int bool_as_bytes);

/* Takes the tensor out of a capsule of either kind. bytes_as_bool: elements of dtype u8 are called bool. */
shoal_tensor *ext_dlpack_import(PyObject *capsule, int bytes_as_bool);

/* Adds the functions of files.c. */
int ext_add_files(PyObject *module);

#endif
