/* Private views of blocks: this process sees its own copy of a block's bytes at the block's address.
 *
 * The address belongs to the block, and later to another block of this process. So the file's pages must be back there
 * before this process can get the block's memory again:
 *   - Nobody frees the block while this process holds a reference. This process's last reference goes in sh_block_unref
 *     only, which ends the view first; a put of the last reference does not move the reference of a private block into
 *     the queue, but shares it, and releases it afterwards (queue_core.c).
 *   - Both steps run inside (sh_enter), so no other thread of this process allocates or receives in between. Other
 *     processes are not concerned: their mappings are their own.
 *   - If the pages cannot be mapped again (vm.max_map_count), this process keeps the reference and the view. It is
 *     stuck: the next view that ends, or begins, tries again.
 *   - A process that ends or leaves the world keeps its views until the mapping is gone, although its references go
 *     earlier: calls are refused from then on, so it gets no block any more, and its threads must not write into a
 *     block that another process may have by now. If it frees such a block, it frees the file's pages by the fd
 *     (sh_decommit).
 *
 * The pages hold nothing of the heap itself: blocks from SH_PRIVATE_MIN on have whole pages, and the kind SH_KIND_DATA
 * has no reference words. A view is private memory, so neither recovery nor audit nor any other process knows of it.
 *
 * fork: the child's memory has the view, copy on write, and its handles say so. death: nothing to repair. */
#include "base/death.h"
#include "base/error.h"
#include "base/log.h"
#include "os/memory.h"
#include "shm/handle.h"

#include <errno.h>
#include <string.h>

#define SH_PRIVATE_MIN 16384u /* from here on blocks are aligned to pages, and so are their sizes (class.h) */

static uint64_t pages_of(const shoal_block *b)
{
    return (b->size + SH_PAGE - 1) / SH_PAGE * SH_PAGE;
}

static bool reattach(shoal_block *b)
{
    int file = sh_world_file();
    if (file < 0 || !sh_memory_reattach_pages(file, sh_offset_of(b->data), b->data, pages_of(b))) {
        return false;
    }
    b->view = SH_BLOCK_SHARED;
    return true;
}

static shoal_block *find_stuck(void)
{
    for (size_t i = 0; i < sh_handles.bucket_count; i++) {
        for (shoal_block *b = sh_handles.buckets[i]; b != NULL; b = b->next) {
            if (b->view == SH_BLOCK_STUCK && sh_load_acquire(&b->refs) == 1) { /* else a message has brought it again */
                return b;
            }
        }
    }
    return NULL;
}

/* Releases the blocks that were kept because their views could not end. */
static void release_stuck(sh_ctx *c)
{
    for (shoal_block *b; sh_handles.stuck > 0 && (b = find_stuck()) != NULL && reattach(b);) {
        sh_handles.stuck--;
        sh_block_unref(c, b);
    }
}

bool sh_block_end_view(sh_ctx *c, shoal_block *block)
{
    if (reattach(block)) {
        SH_DEATH("block.view.ended"); /* death: the address space is gone; recovery drops the reference as any other */
        release_stuck(c);
        return true;
    }
    if (sh_handles.stuck == 0) {
        sh_log("block %llu cannot be given back, because its private view cannot end: %s; it is tried again later",
               (unsigned long long)block->id, sh_world_file() < 0 ? "the world's file is closed" : strerror(errno));
    }
    sh_handles.stuck += block->view != SH_BLOCK_STUCK;
    block->view = SH_BLOCK_STUCK;
    sh_store_relaxed(&block->refs, 1);
    return false;
}

static shoal_err begin_view(sh_ctx *c, shoal_block *b)
{
    release_stuck(c);
    if (b->view != SH_BLOCK_SHARED) {
        return SHOAL_OK;
    }
    int file = sh_world_file();
    if (file < 0) {
        return sh_world_file_lost();
    }
    if (!sh_memory_detach_pages(file, sh_offset_of(b->data), b->data, pages_of(b))) {
        return sh_fail(SHOAL_ENOMEM, "a private copy of %llu bytes: %s", (unsigned long long)b->size, strerror(errno));
    }
    b->view = SH_BLOCK_PRIVATE;
    SH_DEATH("block.view.begun"); /* death: the same */
    return SHOAL_OK;
}

shoal_err shoal_block_make_private(shoal_block *block)
{
    SH_TRY(sh_block_require(block, SH_KIND_DATA, "shoal_block_make_private"));
    if (block->size < SH_PRIVATE_MIN) {
        return sh_fail(SHOAL_EINVAL, "shoal_block_make_private: the block has %llu bytes, and must have at least %u",
                       (unsigned long long)block->size, SH_PRIVATE_MIN);
    }
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = begin_view(c, block);
    sh_leave();
    return err;
}
