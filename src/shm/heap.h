/* The heap: blocks and references. Cells are given by their offset. Every function works on behalf of c, and its
 * process may die at any instruction (layout.h says what holds then). */
#ifndef SH_SHM_HEAP_H
#define SH_SHM_HEAP_H

#include "shm/world.h"

/* A block found by its id. sh_heap_find returns false if there cannot be such a block: ids come from messages and are
 * not trusted. */
typedef struct sh_found {
    sh_meta_shm *meta;
    char *data;
    uint64_t size; /* as requested */
    uint64_t room; /* the size of the class */
    sh_kind kind;
    uint32_t klass;
} sh_found;

bool sh_heap_find(uint64_t id, sh_found *out_found);

/* Returns the number of spans, for a walk over all of them: never more than fit into the world, whatever its header
 * says. */
uint32_t sh_heap_spans(void);

/* Allocates a block of SH_KIND_DATA and stores its only reference in the empty cell. klass: SH_CLASS_SYNC or
 * sh_class_of(size). Errors: SHOAL_ENOMEM with sizes, SHOAL_EINVAL. */
shoal_err sh_heap_alloc(sh_ctx *c, uint32_t klass, uint64_t size, uint64_t cell, uint64_t *out_id);

/* Sets the kind of a new block, after the words that are references in that kind have been set to 0. */
void sh_heap_set_kind(uint64_t id, sh_kind kind);

/* Drops the reference in the cell. If it was the last one, destroys the block and releases what it refers to. */
void sh_heap_release(sh_ctx *c, uint64_t cell);

/* Empties the destroy stack of the slot. sh_heap_release calls it. */
void sh_heap_drain(sh_ctx *c);

/* Moves a part of the weight (or all of it) from one cell of this slot to another, which is empty or refers to the same
 * block. */
void sh_heap_split(sh_ctx *c, uint64_t from, uint64_t to, uint64_t weight);

/* Moves the whole reference out of a word that another process may write, such as a word of a message. The caller has
 * loaded it once and checked it; the cell gets the value that sh_block_expect returned for it, and the word is emptied,
 * whatever it holds by now. */
void sh_heap_move(sh_ctx *c, uint64_t from, uint64_t cell, sh_ref value);

/* Moves a part of the weight of a cell of this slot, not all of it, to a word that another process may write. Replaces
 * what the word holds, which should be nothing. */
void sh_heap_give(sh_ctx *c, uint64_t cell, uint64_t to, uint64_t weight);

/* Returns how much weight a message carries. The creator's first messages carry enough for a receiver to send the block
 * on a few times without drawing; all others carry little, so that 100 million messages can hold one block. */
static inline uint64_t sh_weight_to_share(uint64_t weight)
{
    return weight > SH_WEIGHT_MORE + 1 ? 16 : 1;
}

shoal_err sh_heap_share_little(sh_ctx *c, uint64_t cell, uint64_t *out_weight); /* for a weight below 2 */

/* Returns how much of a cell's weight goes with a message: never all of it. Draws more from the block if the cell has
 * too little to share. Errors: SHOAL_ELIMIT if the block has too many holders to count. */
static inline shoal_err sh_heap_share(sh_ctx *c, uint64_t cell, uint64_t *out_weight)
{
    uint64_t weight = sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(cell)));
    if (__builtin_expect(weight < 2, 0)) {
        return sh_heap_share_little(c, cell, out_weight);
    }
    *out_weight = sh_weight_to_share(weight);
    return SHOAL_OK;
}

/* Draws weight from a block's word into a cell of this slot that is empty or refers to the block. Somebody must keep
 * the block alive meanwhile. Errors: SHOAL_ELIMIT, SHOAL_ECORRUPT if it is not alive. */
shoal_err sh_heap_draw(sh_ctx *c, uint64_t id, uint64_t cell);

/* Gives all but SH_WEIGHT_MORE back to the block's word, if the cell has accumulated more than SH_WEIGHT_HOLD. */
void sh_heap_give_back(sh_ctx *c, uint64_t cell);

/* Makes a free block findable: sets the bit in its span and the bits in the class map. Harmless if it is listed
 * already, or no longer free. */
void sh_heap_list(uint64_t id);

/* Corrects the class map for a span, after a process died while changing it. */
void sh_heap_list_span(uint32_t span);

/* Called when no span can be made: recovers the dead, and lists the blocks of the class that the caches of the living
 * contain. Returns true if a free block may have been found. No intent may be open. */
bool sh_heap_uncover(sh_ctx *c, uint32_t klass);

/* Internal to the heap: span.c. */
bool sh_span_claim(sh_ctx *c, uint32_t klass, uint64_t *out_ids, uint32_t want, uint32_t *out_got);
shoal_err sh_span_make(sh_ctx *c, uint32_t klass, uint64_t asked); /* asked: for the error text */
void sh_span_finish(uint32_t span, uint32_t klass, uint64_t base);
bool sh_span_is_listed(uint32_t klass, uint32_t span); /* in all levels of the class map */
sh_a64 *sh_span_map_word(uint32_t span, uint32_t klass, uint32_t word);

/* Returns where the number of committed bytes of a large block is stored, in whole pages; NULL if the block is not
 * large. With SH_COMMIT_UNSURE added: there may be memory, but nobody may rely on it. That is stored before memory is
 * committed and before it is given back, so that no death hides memory from trim. */
sh_a64 *sh_heap_committed(uint64_t id);

/* For recovery: finishes the block that the open intent of the dead slot names. */
void sh_heap_redo(sh_ctx *c, sh_intent_code code, uint64_t id, bool applied);

#endif
