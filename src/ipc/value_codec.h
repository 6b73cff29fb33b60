/* A value on the wire: MessagePack bytes, and the shared objects that they name, in order of first use.
 *
 * Extension type 1 holds {u8 kind, u32 index, little endian} into that array, so the bytes never hold an address.
 * Extension type 2 holds {u32 tag, little endian} and the bytes of a foreign value. Integers take the shortest form, floats are always 64 bits wide. The decoder takes every form of an integer, and
 * 32-bit floats.
 */
#ifndef SH_IPC_VALUE_CODEC_H
#define SH_IPC_VALUE_CODEC_H

#include <shoal/value.h>

#define SH_EXT_OBJECT 1
#define SH_EXT_OBJECT_SIZE 5
#define SH_EXT_FOREIGN 2
#define SH_EXT_FOREIGN_HEAD 4

#define SH_ENCODING_BYTES 512
#define SH_ENCODING_OBJECTS 16

typedef struct sh_encoding {
    uint8_t *bytes;
    size_t size;
    shoal_block **objects; /* borrowed from the value: each is in here once */
    size_t object_count;

    /* Private. What is small stays inside, so that most messages allocate nothing; hence the struct must not be
     * moved. */
    size_t capacity;
    size_t object_capacity;
    void *object_index; /* tree over the objects, once they are more than are searched one by one */
    uint8_t small_bytes[SH_ENCODING_BYTES];
    shoal_block *small_objects[SH_ENCODING_OBJECTS];
} sh_encoding;

/* Writes the value as bytes into the caller's struct, which points into the value until fini; after a failure there
 * is nothing to fini.
 * Errors: SHOAL_EINVAL for NULL; SHOAL_ENOMEM; SHOAL_ELIMIT for a string or bytes of 4 GiB and more. */
SHOAL_MUST_USE shoal_err sh_encoding_init(sh_encoding *e, const shoal_value *value);
void sh_encoding_fini(sh_encoding *e);

/* Reads one value. objects[i] are references of the caller's; each use in the value retains its own. The bytes may
 * be hostile, and may lie in shared memory that changes meanwhile: they are copied once and only the copy is read.
 * Memory is taken in proportion to size at most.
 * Errors: SHOAL_ECORRUPT with the byte in the text: truncated, bytes left over, nested deeper than
 * SHOAL_VALUE_DEPTH, a key that is no string, text that is not UTF-8 or holds a NUL, an
 * unknown extension, an index without its object, an object of another kind; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err sh_value_decode(const void *bytes, size_t size, shoal_block *const *objects,
                                         size_t object_count, shoal_value **out_value);

#endif
