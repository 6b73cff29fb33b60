/* Records: blocks that describe something larger to other processes. A record holds references to other blocks, then
 * bytes, laid out like a message (shm/kind.h). It is complete before another process can see it, and never changes
 * afterwards. But a reader trusts nothing in it, because another process could write there nevertheless. */
#ifndef SH_SHARE_RECORD_H
#define SH_SHARE_RECORD_H

#include "shm/block.h"
#include "shm/kind.h"

/* Creates a record that refers to the objects. Errors: SHOAL_ENOMEM, SHOAL_ELIMIT, SHOAL_EFORK. */
shoal_err sh_record_create(sh_kind kind, shoal_block *const *objects, size_t count, const void *bytes, size_t size,
                           shoal_block **out_record);

/* The contents of a record that the caller holds, checked against the size of its block. */
typedef struct sh_record {
    uint64_t count, size;
    sh_a64 *references;
    const char *bytes;
} sh_record;

bool sh_record_read(const shoal_block *record, sh_record *out);

/* Opens a handle for object i of the record, which the caller owns. Errors: SHOAL_ECORRUPT, SHOAL_ENOMEM,
 * SHOAL_ELIMIT. */
shoal_err sh_record_open(const sh_record *record, uint64_t i, shoal_block **out_block);

#endif
