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

/* 1: received pickles may be loaded. 0 in a process that only joined its world, unless it allowed them. */
extern int ext_unpickle_allowed;

/* Returns whether the class of a wrapper adds nothing to the shared object, so that the object can travel as itself.
 * May set an exception. */
int ext_shared_is_plain(PyObject *obj);

/* Makes a value from an object by pickling it, whatever it is. */
shoal_value *ext_encode_pickle(PyObject *obj);

/* Makes a value from a pickle and the list of its shared objects. */
shoal_value *ext_pickle_value(PyObject *pickle, PyObject *objects);

/* Makes a list of wrappers from the members of a value's list, except for the first. */
PyObject *ext_objects_of(const shoal_value *list);

/* The objects of a message that must not become two if they are in it twice: containers, arrays, tensors, shared
 * objects. Pickle carries messages with one of them twice, or with containers nested deeper than EXT_KNOWN_DEPTH, and
 * so the circular ones. */
#define EXT_KNOWN_FEW 64
#define EXT_KNOWN_DEPTH 16

typedef struct ext_known {
    PyObject **seen; /* in the order in which they came; those that only one container refers to are left out */
    uint32_t count, capacity;
    uint32_t *index; /* a hash table of numbers in seen + 1, once there are many */
    size_t places;   /* in the table; 0: there is none */
    int depth;
    PyObject *few[EXT_KNOWN_FEW];
} ext_known;

void ext_known_init(ext_known *known);
void ext_known_fini(ext_known *known);

/* Returns 1 if the object is new, and 0 if it was there or cannot be remembered. */
int ext_known_add(ext_known *known, PyObject *obj);

/* Forgets all objects but the first count ones. */
void ext_known_forget(ext_known *known, uint32_t count);

/* What encoders return beside 1 (done) and -1 (an exception is set). */
enum { EXT_PICKLE = 0 /* only pickle can carry it */, EXT_TREE = 2 /* it has members that need a tree of values */ };

/* Makes a packed value of a list, tuple or dict of plain members (packed.c). */
int ext_pack(PyObject *obj, ext_known *known, shoal_value **out_value);

int ext_pack_add(void);

/* Makes the object of MessagePack bytes without shared objects (unpack.c). */
PyObject *ext_unpack(const void *bytes, size_t size);
int ext_unpack_add(void);

#define EXT_FOREIGN 2 /* the extension type of foreign values */

/* The first member of a list that is a tuple in Python. */
static const uint8_t ext_tuple_mark[] = {
    0xd6, EXT_FOREIGN, CODEC_TUPLE & 0xff, CODEC_TUPLE >> 8 & 0xff, CODEC_TUPLE >> 16 & 0xff, CODEC_TUPLE >> 24 & 0xff};

/* Makes the object of a foreign value without shared objects. */
PyObject *ext_decode_foreign(uint32_t tag, const void *bytes, size_t size);

/* numpy arrays. encode returns 1 and a value; 0 if obj is not an array, or one that only pickle can carry; -1 with an
 * exception. decode checks that shape, strides and offset stay inside the block; the caller keeps its reference. block
 * is NULL for a small array. */
int ext_array_encode(PyObject *obj, shoal_value **out_value);
PyObject *ext_array_decode(const void *bytes, size_t size, shoal_block *block);
int ext_array_add(PyObject *module);

/* torch tensors, in the same way. memory is the value with the block, or the tensor on a GPU; NULL if there is none. */
int ext_torch_encode(PyObject *obj, shoal_value **out_value);
PyObject *ext_torch_decode(const void *bytes, size_t size, const shoal_value *memory);
int ext_torch_add(PyObject *module);

#endif
