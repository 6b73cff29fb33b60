/* The table of this process's handles, and how to receive a block that is in it: the steps that nearly every handle
 * takes, inline. block.h explains them, block.c has the rest. */
#ifndef SH_SHM_HANDLE_H
#define SH_SHM_HANDLE_H

#include "shm/block.h"
#include "shm/kind.h"

/* For blocks that come and go: the handle of a received block stays in the table, with its cell, when the process has
 * sent the block on. It is idle then: its cell is empty, so nothing is held, and this process does not know what the
 * block is now. If a block of that id comes again, its addresses are the same and only their contents are read. */
#define SH_IDLE_MAX 32

/* Private to the process, under the lock of sh_enter. */
typedef struct sh_handle_table {
    shoal_block **buckets;
    size_t bucket_count; /* a power of two */
    size_t count;
    uint64_t *free_cells;
    size_t free_count, free_room;
    size_t cells;       /* the number of cells, free or not; free_room is at least that */
    size_t next_chunk;  /* bytes of the next chunk of cells */
    bool growing;       /* at this moment: a signal handler that forks must not do the same */
    shoal_block *spare; /* freed handles for reuse, so that receiving and releasing a block need not call malloc */
    size_t spare_count;
    shoal_block *idle[SH_IDLE_MAX]; /* by age, as a ring; NULL where a handle is in use again */
    size_t idle_next, idle_count;
    size_t stuck; /* handles of SH_BLOCK_STUCK */
} sh_handle_table;

extern sh_handle_table sh_handles;
extern uint64_t sh_handle_tenures; /* the last shoal_block.tenure; not reset between worlds */

static inline size_t sh_handle_bucket(uint64_t id)
{
    return (size_t)((id * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (sh_handles.bucket_count - 1);
}

static inline shoal_block *sh_handle_find(uint64_t id)
{
    if (sh_handles.bucket_count == 0) {
        return NULL;
    }
    shoal_block *b = sh_handles.buckets[sh_handle_bucket(id)];
    while (b != NULL && b->id != id) {
        b = b->next;
    }
    return b;
}

/* Stores for `shoal ps` how many blocks this process holds. */
static inline void sh_handle_tell(void)
{
    sh_racy_store(&sh_the_world.self.slot->held, sh_handles.count - sh_handles.idle_count);
}

static inline void sh_handle_end_idle(shoal_block *b)
{
    sh_handles.idle[b->idle_at - 1] = NULL;
    b->idle_at = 0;
    sh_handles.idle_count--;
}

static inline bool sh_handle_can_be_sent(const sh_found *f)
{
    return f->kind < SH_KIND_COUNT && !sh_kinds[f->kind].is_private &&
           sh_word_weight(sh_load_acquire(&f->meta->word)) != 0;
}

/* Updates an idle handle to the block that has its id now. Returns false if that is not a block that can be sent. */
static inline bool sh_handle_look_again(shoal_block *b)
{
    uint64_t info = sh_load_relaxed(&b->meta->info), size = info & SH_INFO_SIZE_MASK;
    sh_found f = {.meta = b->meta, .kind = (sh_kind)(info >> 56)};
    if (!sh_handle_can_be_sent(&f)) {
        return false;
    }
    b->size = size <= b->room ? size : b->room;
    b->kind = f.kind;
    return true;
}

/* The rest of the two below: a block without a handle, or no such block. */
shoal_err sh_block_expect_unknown(sh_ctx *c, sh_ref ref, shoal_block **out_block, uint64_t *out_value);
void sh_block_arrived_first(shoal_block *block);

/* Gives back to the block what the handle's cell has accumulated. Returns the weight that the cell has now. */
uint64_t sh_block_lighten(sh_ctx *c, const shoal_block *block);

/* Receives a block, in two steps. expect finds or makes the handle for a reference that is about to move into this
 * slot: its cell is block->cell, and *out_value is what the cell will hold afterwards. Then the caller calls either
 * sh_block_arrived (the cell holds it; the caller has one more reference) or sh_block_unexpect. Errors: SHOAL_ENOMEM,
 * SHOAL_ECORRUPT if the id does not name a block that can be sent. */
static inline shoal_err sh_block_expect(sh_ctx *c, sh_ref ref, shoal_block **out_block, uint64_t *out_value)
{
    uint64_t id = sh_ref_id(ref), weight = sh_ref_weight(ref);
    shoal_block *b = sh_handle_find(id);
    if (__builtin_expect(b == NULL || weight == 0, 0)) {
        return sh_block_expect_unknown(c, ref, out_block, out_value);
    }
    uint64_t have = sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(b->cell)));
    /* A handle with an empty cell, idle or sent on just now, says what the block was, not what it is. */
    if (have == 0 && !sh_handle_look_again(b)) {
        return sh_fail(SHOAL_ECORRUPT, "a message refers to block %llu, which does not exist", (unsigned long long)id);
    }
    if (__builtin_expect(have > SH_WEIGHT_HOLD, 0)) {
        have = sh_block_lighten(c, b); /* once in thousands of receives */
    }
    *out_value = sh_ref_make(id, have + weight);
    *out_block = b;
    return SHOAL_OK;
}

static inline void sh_block_arrived(shoal_block *block)
{
    if (block->idle_at != 0) {
        sh_handle_end_idle(block);
        block->tenure = ++sh_handle_tenures;
        sh_handle_tell();
    } else if (sh_load_relaxed(&block->refs) == 0) {
        sh_block_arrived_first(block);
    }
    sh_count_up(&block->refs);
}

void sh_block_unexpect(shoal_block *block);

#endif
