/* The heap: blocks and references, on cells given by their offset. Every function works in the name of c and may be
 * interrupted by death anywhere (layout.h says what holds then). */
#ifndef SH_SHM_HEAP_H
#define SH_SHM_HEAP_H

#include "shm/world.h"

/* A block found by its id. False when no such block can be: ids come from messages and are not believed. */
typedef struct sh_found {
    sh_meta_shm *meta;
    char *data;
    uint64_t size; /* as asked */
    uint64_t room; /* of the class */
    sh_kind kind;
    uint32_t klass;
} sh_found;

bool sh_heap_find(uint64_t id, sh_found *out_found);

/* How many spans there are, for those who walk over all of them: never more than fit into the world, whatever it says. */
uint32_t sh_heap_spans(void);

/* Allocates a block of SH_KIND_DATA and puts its only reference into the empty cell. klass: SH_CLASS_SYNC or
 * sh_class_of(size). Errors: SHOAL_ENOMEM with sizes, SHOAL_EINVAL. */
shoal_err sh_heap_alloc(sh_ctx *c, uint32_t klass, uint64_t size, uint64_t cell, uint64_t *out_id);

/* Says what a new block is, after the words that are references in that kind have been set to 0. */
void sh_heap_set_kind(uint64_t id, sh_kind kind);

/* Drops the reference in the cell. With the last one the block is destroyed and what it refers to is released as
 * well. */
void sh_heap_release(sh_ctx *c, uint64_t cell);

/* Finishes the destroy stack of the slot. sh_heap_release does it by itself. */
void sh_heap_drain(sh_ctx *c);

/* Moves a part of the weight (or all of it) from one cell of ours to another that is empty, or that refers to the
 * same block. */
void sh_heap_split(sh_ctx *c, uint64_t from, uint64_t to, uint64_t weight);

/* The maker's first messages carry enough for a receiver to send it on a few times without drawing; all others carry
 * little, so that 100 million messages can hold one block. */
static inline uint64_t sh_weight_to_share(uint64_t weight)
{
    return weight > SH_WEIGHT_MORE + 1 ? 16 : 1;
}

shoal_err sh_heap_share_little(sh_ctx *c, uint64_t cell, uint64_t *out_weight); /* of a weight below 2 */

/* How much of a cell's weight goes with a message: never all of it. Draws more from the block when the cell has too
 * little to share. Errors: SHOAL_ELIMIT when the block has more holders than can be counted. */
static inline shoal_err sh_heap_share(sh_ctx *c, uint64_t cell, uint64_t *out_weight)
{
    uint64_t weight = sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(cell)));
    if (__builtin_expect(weight < 2, 0)) {
        return sh_heap_share_little(c, cell, out_weight);
    }
    *out_weight = sh_weight_to_share(weight);
    return SHOAL_OK;
}

/* Draws weight from a block's word into a cell of ours that is empty or refers to it. Somebody must keep the block
 * alive meanwhile. Errors: SHOAL_ELIMIT, SHOAL_ECORRUPT when it is not alive. */
shoal_err sh_heap_draw(sh_ctx *c, uint64_t id, uint64_t cell);

/* The cell has gathered more than SH_WEIGHT_HOLD: gives all but SH_WEIGHT_MORE back to the block's word. */
void sh_heap_give_back(sh_ctx *c, uint64_t cell);

/* Makes a free block findable: bit in its span, bits in the class map. Harmless when it is listed, or not free any
 * more. */
void sh_heap_list(uint64_t id);

/* Sets the class map right for a span, when somebody died while changing it. */
void sh_heap_list_span(uint32_t span);

/* No span can be made: recovers the dead, and lists what the caches of the living have of the class. True when a free
 * block may have come to light. No note may be open. */
bool sh_heap_uncover(sh_ctx *c, uint32_t klass);

/* Internal to the heap: span.c. */
bool sh_span_claim(sh_ctx *c, uint32_t klass, uint64_t *out_ids, uint32_t want, uint32_t *out_got);
shoal_err sh_span_make(sh_ctx *c, uint32_t klass, uint64_t asked); /* asked: for the error's words */
void sh_span_finish(uint32_t span, uint32_t klass, uint64_t base);
bool sh_span_is_listed(uint32_t klass, uint32_t span); /* in all levels of the class map */
sh_a64 *sh_span_map_word(uint32_t span, uint32_t klass, uint32_t word);

/* Bytes committed behind a large block, whole pages. With SH_COMMIT_UNSURE added: memory may be there, but nobody may
 * count on it. It is said before memory comes and before it goes, so that no death hides memory from trim. */
sh_a64 *sh_heap_committed(uint64_t id);

/* In recovery: the block that the dead slot's open note names. */
void sh_heap_redo(sh_ctx *c, sh_intent_code code, uint64_t id, bool applied);

#endif
