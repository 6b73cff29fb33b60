/* Blocks: pieces of shared memory that every process of the world can use.
 *
 * A block exists as long as a process or a message refers to it. If a process is killed, its references are dropped
 * automatically. Retain and release are in handle.h; queue.h sends blocks to other processes.
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

/* Make a block of size bytes (0 is allowed). shoal_block_create leaves the bytes as the last user of that memory
 * left them; shoal_block_create_zeroed zeroes them. The block is aligned to 64 bytes, and from 16 KiB on to a page.
 * The caller owns one reference: shoal_release. The first call in a process makes its world. Does not block, except
 * while the system provides memory. Thread-safe. Errors: SHOAL_ENOMEM if the heap is full or a limit of world.h is
 * reached (the text has the sizes); SHOAL_EOS if the program has closed the world's memory file; SHOAL_EFORK; if
 * there is no world yet, those of shoal_world_create. */
SHOAL_MUST_USE shoal_err shoal_block_create(size_t size, shoal_block **out_block);
SHOAL_MUST_USE shoal_err shoal_block_create_zeroed(size_t size, shoal_block **out_block);

/* Returns the address of a block's bytes. It does not change in this process; in other processes it may differ.
 * Returns NULL for NULL and after the process left the world. Does not block. Thread-safe. */
void *shoal_block_data(const shoal_block *block);

/* Returns the size of a block in bytes, as requested. Returns 0 for NULL and after the process left the world. Does
 * not block. Thread-safe. */
size_t shoal_block_size(const shoal_block *block);

/* Returns the number of a block. It is the same in every process, and unique as long as the block exists. Returns 0
 * for NULL and after the process left the world. Does not block. Thread-safe. */
uint64_t shoal_block_id(const shoal_block *block);

/* Makes this process's view of a block private. From now on this process has its own copy of the bytes, at the same
 * address: nobody else sees its writes, and it sees nobody else's. Other processes are not affected. A child of fork
 * inherits the copy, as its own. It is for a child of fork that must not share arrays which its parent was sent.
 *
 * The view stays private until this process has released its last reference, also if a message brings the block again.
 * A put sends the block itself, not the private copy. Does nothing if the view is private already. The block must have
 * at least 16 KiB: smaller ones share their pages with others. No other thread of this process may write to the block
 * meanwhile. Blocks while it copies. Each private view takes one or two of the system's mappings (vm.max_map_count). If
 * the system has none left at the release, the block is kept until a later release or call of this, and a line is
 * logged. Errors: SHOAL_EINVAL if the block is smaller; SHOAL_ENOMEM if there is no memory or no mapping left, and then
 * nothing has changed; SHOAL_ETYPE; SHOAL_ESTATE; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_block_make_private(shoal_block *block);

/* Finds the block that contains an address, among the blocks that this process holds. It is for a binding that gets a
 * pointer back from another library. The caller owns one reference: shoal_release. Takes time in proportion to the
 * number of blocks that this process holds, if the address is in the memory of the world. Does not block. Thread-safe.
 * Errors: SHOAL_ENOENT if the address is in no such block; SHOAL_EFORK; if there is no world yet, those of
 * shoal_world_create. */
SHOAL_MUST_USE shoal_err shoal_block_find(const void *address, shoal_block **out_block);

/* Opens a block by its number (shoal_block_id). It is for a binding that tells another process of the world the number
 * by its own means. A process that holds the block must keep its reference until this call has returned, and must be
 * alive then: otherwise the number may name another block by now. The caller owns one reference: shoal_release. Does
 * not block. Thread-safe. Errors: SHOAL_ENOENT if no block has this number; SHOAL_ELIMIT if the block has too many
 * holders; SHOAL_ENOMEM; SHOAL_EFORK; if there is no world yet, those of shoal_world_create. */
SHOAL_MUST_USE shoal_err shoal_block_open(uint64_t id, shoal_block **out_block);

#ifdef __cplusplus
}
#endif
#endif
