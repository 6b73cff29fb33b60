/* Encodes and decodes values as messages: MessagePack bytes, and an array of the shared objects that they name, in
 * order of first use.
 *
 * Extension type 1 holds {u8 kind, u32 index, little endian} into that array, so the bytes never hold an address.
 * Extension type 2 holds {u32 tag, little endian} and the bytes of a foreign value. Integers take the shortest form;
 * floats always have 64 bits. The decoder accepts every form of an integer, and 32-bit floats.
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
    shoal_block **objects; /* borrowed from the value; each object is here once */
    size_t object_count;

    /* Private. Small contents stay inside the struct, so most messages allocate nothing. So the struct must not be
     * moved. */
    size_t capacity; /* 0: the bytes are those of a packed value */
    size_t object_capacity;
    void *object_index; /* tree over the objects, once there are too many for a linear search */
    uint8_t small_bytes[SH_ENCODING_BYTES];
    shoal_block *small_objects[SH_ENCODING_OBJECTS];
} sh_encoding;

/* Encodes the value into the caller's struct, which points into the value until sh_encoding_fini. Calls
 * sh_value_before_put for each object; if that fails, so does this. After a failure there is nothing to fini.
 * Errors: SHOAL_EINVAL if value is NULL; SHOAL_ENOMEM; SHOAL_ELIMIT if a string or bytes have 4 GiB or more. */
SHOAL_MUST_USE shoal_err sh_encoding_init(sh_encoding *e, const shoal_value *value);
void sh_encoding_fini(sh_encoding *e);

/* Decodes one value. The caller owns the references objects[i]; each use in the value retains a separate one. The bytes
 * may be hostile, and may be in shared memory that changes meanwhile: they are copied once, and only the copy is read.
 * Memory use is at most proportional to size.
 * Errors: SHOAL_ECORRUPT, with the byte in the text, if the bytes are truncated, bytes are left over, the value is
 * nested deeper than SHOAL_VALUE_DEPTH, a key is not a string, a text is not UTF-8 or holds a NUL, an extension is
 * unknown, or an index has no object or one of another kind; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err sh_value_decode(const void *bytes, size_t size, shoal_block *const *objects,
                                         size_t object_count, shoal_value **out_value);

#endif
