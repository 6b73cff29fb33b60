/* Operations of which recovery can tell, after a death, whether they took effect.
 *
 * One compare-and-swap ("the swap") is the step that counts. Before it, the process writes its intent into its slot:
 * what it is about to do, and what must follow. The swap leaves the operation's tag in the word. Then the process does
 * the follow-up and closes the intent. If it dies in between, recovery reads the intent: it finishes the
 * operation if the tag is there or was confirmed, and drops it otherwise.
 *
 * A tag vanishes when another process swaps the word again. That process first calls sh_intent_confirm: if the tagged
 * operation is the one that is open in its slot at this moment, it raises the slot's `confirmed` to it. The sequence in
 * a tag has 24 bits, that of the slot 64. Why 24 are enough: a tag equals the slot's open operation only if their low
 * bits agree AND the operation's target is this word. An older tag of the same slot, with the same low bits, in the
 * same word, is impossible: sh_intent_begin never chooses a sequence whose tag it has just read there.
 *
 * A confirming process P may be stopped between its load of the word and its load of the slot, for 2^24 operations of
 * that slot and more. Then the slot may have an operation O open on this word whose tag equals the one that P saw, and
 * O's swap may yet fail. So sh_intent_confirm_slow loads the word once more, after the slot, and confirms only if it is
 * unchanged. Then the tag in it is O's: if an older operation of the slot had left it there, O would have seen it
 * before its own swap, and chosen another sequence; and after that load only O's swap can bring the tag. If the word
 * has changed, P has nothing to confirm: its own swap will fail.
 *
 * Reading another slot costs a cache miss, so a process remembers the sequence last seen in each slot: an operation
 * older than that is closed. "Older" is decided from a part of its sequence, so the remembered value must not be half a
 * wrap of that part behind the slot:
 *
 *   24 bits, in a tag    Remembered for one step of sh_coarse_time, in which no slot makes 2^23 operations.
 *                        The clock is read before the slot, to remember, and after the tag, to ask; so wherever the
 *                        process is stopped, less than a step passes between the two loads.
 *   52 bits, in a ring   An entry has room for more bits of the sequence than the tag has (ring.h): no slot makes 2^51
 *                        operations in half a year. No clock: a put need not read it.
 */
#ifndef SH_SHM_INTENT_H
#define SH_SHM_INTENT_H

#include "base/death.h"
#include "shm/world.h"

#include <time.h>

#define SH_SEQ_LONG_BITS 52
#define SH_SEQ_LONG_MASK ((UINT64_C(1) << SH_SEQ_LONG_BITS) - 1)

/* Opens an operation whose swap will replace a word that now has the tags seen_a and seen_b (0 for none). The caller
 * has confirmed both. Returns its sequence. */
static inline uint64_t sh_intent_open(sh_ctx *c, sh_intent_code code, uint64_t target, uint64_t seen_a, uint64_t seen_b,
                                      uint64_t word, uint64_t cell, uint64_t value, uint64_t extra)
{
    sh_intent_shm *op = &c->slot->intent;
    uint64_t seq = sh_load_relaxed(&op->seq) + 1;
    while ((seq & SH_SEQ_MASK) == 0 || sh_tag(c->index, seq) == seen_a || sh_tag(c->index, seq) == seen_b) {
        seq++;
    }
    /* code is NONE here: a death among these stores leaves no intent, and nothing has happened yet. */
    sh_store_relaxed(&op->target, target);
    sh_store_relaxed(&op->word, word);
    sh_store_relaxed(&op->cell, cell);
    sh_store_relaxed(&op->value, value);
    sh_store_relaxed(&op->extra, extra);
    sh_store_release(&op->seq, seq);
    sh_store_release(&op->code, (uint64_t)code); /* pairs with the acquire in recovery: the intent is complete */
    return seq;
}

/* The same; returns the tag to write. */
static inline uint64_t sh_intent_begin(sh_ctx *c, sh_intent_code code, uint64_t target, uint64_t seen_a,
                                       uint64_t seen_b, uint64_t word, uint64_t cell, uint64_t value, uint64_t extra)
{
    return sh_tag(c->index, sh_intent_open(c, code, target, seen_a, seen_b, word, cell, value, extra));
}

static inline void sh_intent_end(sh_ctx *c)
{
    sh_store_release(&c->slot->intent.code, SH_INTENT_NONE);
}

/* mask: the bits of the word that must be unchanged since `seen`. */
void sh_intent_confirm_slow(uint64_t tag, uint64_t target, const sh_a64 *word, uint64_t seen, uint64_t mask);

/* Forgets the sequences seen: they belong to another world. */
void sh_intent_forget(void);

extern uint64_t sh_intent_seen[SH_SLOTS];      /* the sequence last read in each slot; 0: none */
extern uint64_t sh_intent_seen_when[SH_SLOTS]; /* when, or earlier: sh_coarse_time */
extern uint64_t sh_intent_seen_tick[SH_SLOTS]; /* the same by sh_coarse_tick */

/* A clock that costs almost nothing. It has 64 bits and does not wrap, but it may begin again: see sh_coarse_tick.
 *
 * On x86-64 a step is 2^22 ticks of the time stamp counter: 4 ms at 1 GHz, 0.7 ms at 6 GHz. 2^23 operations in one step
 * would be two per tick. An operation takes at least 9 cycles of a core (measured: a dozen stores, and a locked swap
 * that must finish before the next begins), so a core would have to run 18 times as fast as its counter. None runs 6
 * times as fast: the counters tick at 1 GHz and more, the cores at less than 6. Elsewhere a step is 2 ms: 2^23
 * operations in it would be four per nanosecond. */
static inline uint64_t sh_coarse_time(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc() >> 22;
#else
    return (uint64_t)sh_now() >> 21;
#endif
}

/* The time stamp counter restarts when a machine wakes up from suspend, so a step of sh_coarse_time may come a second
 * time: when the machine has run for as long since then as it had run before. This clock of the kernel does not go
 * back, and what it misses, a suspended machine's time, no process runs in. It has moved on by then, since it lags
 * behind the time by a few ticks of the kernel at most. So if both clocks say the same as before, it is the same step.
 * It is not enough alone: under a hypervisor its tick may be late, for more than 2^23 operations. A read costs a few
 * nanoseconds, without a system call. */
static inline uint64_t sh_coarse_tick(void)
{
#if defined(__x86_64__)
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#else
    return 0; /* sh_now does not go back */
#endif
}

/* Checks for a tag that means nothing, or is of an earlier operation of this slot, which is closed. */
static inline bool sh_intent_is_over(const sh_ctx *c, uint64_t tag)
{
    uint32_t slot = (uint32_t)(tag >> SH_SEQ_BITS);
    return slot == c->index || (tag & SH_SEQ_MASK) == 0 || slot >= SH_SLOTS;
}

/* Called before a tag in the object at target is replaced. word held `seen` when the tag was read, in the bits of the
 * mask; if it no longer does, nothing is confirmed. */
static inline void sh_intent_confirm_in(const sh_ctx *c, uint64_t tag, uint64_t target, const sh_a64 *word,
                                        uint64_t seen, uint64_t mask)
{
    uint32_t slot = (uint32_t)(tag >> SH_SEQ_BITS);
    if (sh_intent_is_over(c, tag)) {
        return;
    }
    uint32_t behind = (uint32_t)((sh_intent_seen[slot] - tag) & SH_SEQ_MASK);
    if (behind != 0 && behind < (1u << (SH_SEQ_BITS - 1)) && sh_intent_seen_when[slot] == sh_coarse_time() &&
        sh_intent_seen_tick[slot] == sh_coarse_tick()) {
        return; /* that slot has begun a later operation since */
    }
    sh_intent_confirm_slow(tag, target, word, seen, mask);
}

/* The same if the target is the word in which the tag was read. */
static inline void sh_intent_confirm(const sh_ctx *c, uint64_t tag, uint64_t target)
{
    sh_intent_confirm_in(c, tag, target, (const sh_a64 *)sh_at(target), tag, SH_TAG_MASK);
}

/* The same if more bits of the sequence are known than the tag has. */
static inline void sh_intent_confirm_long(const sh_ctx *c, uint64_t tag, uint64_t more, uint64_t target,
                                          const sh_a64 *word, uint64_t seen)
{
    if (sh_intent_is_over(c, tag)) {
        return;
    }
    uint64_t seq = more << SH_SEQ_BITS | (tag & SH_SEQ_MASK);
    uint64_t behind = (sh_intent_seen[tag >> SH_SEQ_BITS] - seq) & SH_SEQ_LONG_MASK;
    if (behind == 0 || behind >> (SH_SEQ_LONG_BITS - 1) != 0) {
        sh_intent_confirm_slow(tag, target, word, seen, UINT64_MAX);
    }
}

/* For recovery: checks whether the open operation of this slot took effect. tag_a, tag_b: the tags in the word now. */
static inline bool sh_intent_applied(const sh_slot_shm *slot, uint32_t index, uint64_t tag_a, uint64_t tag_b)
{
    uint64_t seq = sh_load_acquire(&slot->intent.seq);
    uint64_t tag = sh_tag(index, seq);
    return tag_a == tag || tag_b == tag || sh_load_acquire(&slot->confirmed) == seq;
}

#endif
