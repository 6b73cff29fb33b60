/* What the files of the codec share: codec.c, array.c, torch.c. */
#ifndef SHOAL_PYTHON_CODEC_H
#define SHOAL_PYTHON_CODEC_H

#include "ext.h"

/* The tags of foreign values. They are part of what travels: never give a number another meaning. */
enum {
    CODEC_PICKLE = 0x50590001,
    CODEC_TUPLE = 0x50590002,
    CODEC_ARRAY = 0x50590003,
    CODEC_TORCH = 0x50590004,
    CODEC_SMALL_ARRAY = 0x50590005,
};

/* Whether received pickles may be loaded: not in a process that only joined its world, unless it said so. */
extern int ext_unpickle_allowed;

/* Whether the class of a wrapper has nothing to add to the shared object, so that it can travel as itself. May set an
 * exception. */
int ext_shared_is_plain(PyObject *obj);

/* Makes a value from an object by pickling it, whatever it is. */
shoal_value *ext_encode_pickle(PyObject *obj);

/* Makes a value from a pickle and the list of its shared objects. */
shoal_value *ext_pickle_value(PyObject *pickle, PyObject *objects);

/* Makes a list of wrappers from the members of a value's list, except for the first. */
PyObject *ext_objects_of(const shoal_value *list);

/* numpy arrays. encode returns 1 and a value; 0 if obj is not an array, or one that only pickle can carry; -1 with an
 * exception. decode checks that shape, strides and offset stay inside the block; the caller keeps its reference. block
 * is NULL for a small array. */
int ext_array_encode(PyObject *obj, shoal_value **out_value);
PyObject *ext_array_decode(const void *bytes, size_t size, shoal_block *block);
int ext_array_add(PyObject *module);

/* torch tensors, in the same way. memory is the value with the block, or the tensor on a card; NULL if there is none. */
int ext_torch_encode(PyObject *obj, shoal_value **out_value);
PyObject *ext_torch_decode(const void *bytes, size_t size, const shoal_value *memory);
int ext_torch_add(PyObject *module);

#endif
