/* Blocks: pieces of shared memory, named by a handle that every process of the world understands.
 *
 * A block lives as long as somebody holds it: a process, or a message on its way. What a killed process held returns
 * by itself. References are counted as those of every shared object: handle.h.
 */
#ifndef SHOAL_BLOCK_H
#define SHOAL_BLOCK_H

#include <shoal/error.h>
#include <shoal/handle.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a block of size bytes (0 is allowed), aligned to 64 bytes, to the page from 16 KiB. Its bytes are what the
 * last user of that memory left, unless `shoal_block_create_zeroed` is called. The caller owns one reference. Joins
 * or makes the world at the first call. Does not block, except for the system giving memory. Any thread. Errors:
 * SHOAL_ENOMEM with the sizes, SHOAL_ELIMIT, SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_block_create(size_t size, shoal_block **out_block);
SHOAL_MUST_USE shoal_err shoal_block_create_zeroed(size_t size, shoal_block **out_block);

/* The bytes of a block, at an address that never changes in this process, and their number. NULL and 0 for NULL and when the world was left. */
void *shoal_block_data(const shoal_block *block);
size_t shoal_block_size(const shoal_block *block);

/* The number of a block, which is the same in every process for as long as the block lives; 0 for NULL and when the world was left. */
uint64_t shoal_block_id(const shoal_block *block);

#ifdef __cplusplus
}
#endif
#endif
