/* Operations that can be told, after a death, to have happened or not.
 *
 * One compare-and-swap is the step that counts. Before it the slot writes down what it is about to do and what must
 * follow; the swap leaves the operation's tag in the word; afterwards the follow-up is done and the note is struck
 * out. Whoever dies in between leaves a note from which its recovery finishes (the tag is there, or was confirmed)
 * or forgets (it is not).
 *
 * A tag vanishes when another process swaps the word again. That process first calls sh_op_confirm: if the tagged
 * operation is the one that is open in its slot at this moment, the slot's `confirmed` is raised to it. The sequence
 * in a tag has 24 bits; the slot's own has 64. Why 24 are enough: a tag equals the slot's open operation only if
 * their low bits agree AND the operation's target is this word; an older tag of the same slot, with the same low
 * bits, in the same word, is excluded because sh_op_begin never chooses a sequence whose tag it has just read there.
 *
 * To look at the other slot costs a cache miss, so we remember the sequence last seen in each slot: an operation
 * older than that is closed. "Older" is told from a part of its sequence, so what we remember must not be half a wrap of
 * that part behind the slot:
 *
 *   24 bits, in a tag    the memory is good for a twentieth of a second: no slot makes 2^23 operations in that time.
 *                        The clock is read before the slot, when we remember, and after the tag, when we ask; so
 *                        wherever we are stopped, what lies between the two looks is less than that.
 *   52 bits, in a ring   where an entry has room for more of them than the tag has (ring.h): no slot makes 2^51
 *                        operations in half a year. No clock: a put need not read it.
 */
#ifndef SH_SHM_OP_H
#define SH_SHM_OP_H

#include "base/death.h"
#include "shm/world.h"

#define SH_SEQ_LONG_BITS 52
#define SH_SEQ_LONG_MASK ((UINT64_C(1) << SH_SEQ_LONG_BITS) - 1)

/* Opens an operation whose swap will replace a word that now carries the tags seen_a and seen_b (0 for none; both
 * must have been confirmed already). Returns its sequence. */
static inline uint64_t sh_op_open(sh_ctx *c, sh_op_code code, uint64_t target, uint64_t seen_a, uint64_t seen_b,
                                  uint64_t word, uint64_t cell, uint64_t value, uint64_t extra)
{
    sh_op_shm *op = &c->slot->op;
    uint64_t seq = sh_load_relaxed(&op->seq) + 1;
    while ((seq & SH_SEQ_MASK) == 0 || sh_tag(c->index, seq) == seen_a || sh_tag(c->index, seq) == seen_b) {
        seq++;
    }
    /* code is NONE here: a death among these stores leaves no note, and nothing has happened yet. */
    sh_store_relaxed(&op->target, target);
    sh_store_relaxed(&op->word, word);
    sh_store_relaxed(&op->cell, cell);
    sh_store_relaxed(&op->value, value);
    sh_store_relaxed(&op->extra, extra);
    sh_store_release(&op->seq, seq);
    sh_store_release(&op->code, (uint64_t)code); /* pairs with the acquire in recovery: the note is whole */
    return seq;
}

/* The same; returns the tag to write. */
static inline uint64_t sh_op_begin(sh_ctx *c, sh_op_code code, uint64_t target, uint64_t seen_a, uint64_t seen_b,
                                   uint64_t word, uint64_t cell, uint64_t value, uint64_t extra)
{
    return sh_tag(c->index, sh_op_open(c, code, target, seen_a, seen_b, word, cell, value, extra));
}

static inline void sh_op_end(sh_ctx *c)
{
    sh_store_release(&c->slot->op.code, SH_OP_NONE);
}

void sh_op_confirm_slow(uint64_t tag, uint64_t target);

/* Forgets what was seen: it was another world's. */
void sh_op_forget(void);

extern uint64_t sh_op_seen[SH_SLOTS];      /* sequence last read in each slot; 0: none */
extern uint32_t sh_op_seen_when[SH_SLOTS]; /* and when, or before: sh_coarse_time */

/* About 50 ms a step; wraps. */
static inline uint32_t sh_coarse_time(void)
{
#if defined(__x86_64__)
    return (uint32_t)(__builtin_ia32_rdtsc() >> 27);
#else
    return (uint32_t)(sh_now() >> 25);
#endif
}

/* A tag that says nothing, or is of an earlier operation of our own, which is closed. */
static inline bool sh_op_is_over(const sh_ctx *c, uint64_t tag)
{
    uint32_t slot = (uint32_t)(tag >> SH_SEQ_BITS);
    return slot == c->index || (tag & SH_SEQ_MASK) == 0 || slot >= SH_SLOTS;
}

/* Before a tag is replaced in the word at target. */
static inline void sh_op_confirm(const sh_ctx *c, uint64_t tag, uint64_t target)
{
    uint32_t slot = (uint32_t)(tag >> SH_SEQ_BITS);
    if (sh_op_is_over(c, tag)) {
        return;
    }
    uint32_t behind = (uint32_t)((sh_op_seen[slot] - tag) & SH_SEQ_MASK);
    if (behind != 0 && behind < (1u << (SH_SEQ_BITS - 1)) && sh_op_seen_when[slot] == sh_coarse_time()) {
        return; /* that slot has gone on since */
    }
    sh_op_confirm_slow(tag, target);
}

/* The same where more bits of the sequence than the tag has are known. */
static inline void sh_op_confirm_long(const sh_ctx *c, uint64_t tag, uint64_t more, uint64_t target)
{
    if (sh_op_is_over(c, tag)) {
        return;
    }
    uint64_t seq = more << SH_SEQ_BITS | (tag & SH_SEQ_MASK);
    uint64_t behind = (sh_op_seen[tag >> SH_SEQ_BITS] - seq) & SH_SEQ_LONG_MASK;
    if (behind == 0 || behind >> (SH_SEQ_LONG_BITS - 1) != 0) {
        sh_op_confirm_slow(tag, target);
    }
}

/* In recovery: did the open operation of this slot take effect? tags: those found in the word now. */
static inline bool sh_op_applied(const sh_slot_shm *slot, uint32_t index, uint64_t tag_a, uint64_t tag_b)
{
    uint64_t seq = sh_load_acquire(&slot->op.seq);
    uint64_t tag = sh_tag(index, seq);
    return tag_a == tag || tag_b == tag || sh_load_acquire(&slot->confirmed) == seq;
}

#endif
