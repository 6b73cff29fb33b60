/* The steps of a ring that every message takes, as inline functions. ring.h says what they do; ring.c has the rare
 * cases. */
#ifndef SH_IPC_RING_STEPS_H
#define SH_IPC_RING_STEPS_H

#include "ipc/ring.h"

/* Four entries share a cache line, but consecutive positions are in different lines. A small ring does not use its
 * lines in sequence: there a taker often waits for the very next message, and a hardware prefetcher that fetches the
 * line next to the one being written would take it away from the waiter again and again. In a large ring, where
 * messages stream, the prefetcher helps. */
#define SH_RING_SMALL 6

static inline sh_a128 *sh_ring_entry(const sh_ring *ring, uint64_t position)
{
    uint64_t line = (position * ring->stride) & ring->line_mask;
    return &ring->entries[line << 2 | ((position >> (ring->order - 2)) & 3)];
}

/* Returns the lap of a position, shifted to its place in a state. The upper bits are cut off. */
static inline uint64_t sh_ring_lap(const sh_ring *ring, uint64_t position)
{
    return (position >> ring->order) << SH_ENTRY_LAP_SHIFT;
}

#define SH_ENTRY_LAP (SH_ENTRY_LAP_MASK << SH_ENTRY_LAP_SHIFT)
#define SH_ENTRY_KIND (UINT64_C(15) << SH_ENTRY_KIND_SHIFT)

/* Advances a hint. This is not a CAS: a process that is stopped in between may set the hint back by any number of laps.
 * Then those who come next start at base (ring.h). A state says which lap it belongs to, so they take less than three
 * laps of steps, once. In return nobody pays for a locked instruction. */
static inline void sh_ring_move_hint(sh_ring_side *side, uint64_t to)
{
    if ((int64_t)(to - sh_racy_load(&side->hint)) > 0) {
        sh_racy_store(&side->hint, to);
    }
}

/* Raises base to the position, which is not beyond the true one. Returns false if base is above it. */
bool sh_ring_raise(sh_ring_side *side, uint64_t position);

/* Called after reading the entry: returns whether that read identified the lap (ring.h). If it did, base is near the
 * position too, so this process may put or take there. */
static inline bool sh_ring_is_near(const sh_ring *ring, sh_ring_side *side, uint64_t position)
{
    uint64_t above = position - sh_load_acquire(&side->base); /* acquire: not before that read; pairs with raise */
    return __builtin_expect(above <= ring->slack, 1) || sh_ring_raise(side, position);
}

/* Returns whether the ring holds `bound` messages, for a bound below its size: whether the message `bound` positions
 * back is still there. Takes happen in order, so then all after it are there too. */
static inline bool sh_ring_at_bound(const sh_ring *ring, uint64_t tail, uint64_t bound)
{
    if (bound == 0 || bound >> ring->order != 0 || tail < bound) {
        return false;
    }
    uint64_t state = sh_load_acquire(&sh_ring_entry(ring, tail - bound)->lo);
    return ((state ^ sh_ring_lap(ring, tail - bound)) & SH_ENTRY_LAP) == 0;
}

/* Tries to put at the position, which is not beyond the first unused one. Returns AGAIN if the entry holds something
 * else, the position is out of date, or another process was faster; sh_ring_put handles that. */
static inline __attribute__((always_inline)) sh_ring_result sh_ring_put_at(sh_ctx *c, const sh_ring *ring,
                                                                           uint64_t tail, sh_entry_kind kind,
                                                                           uint64_t word, uint64_t cell, uint64_t value,
                                                                           uint64_t bound, uint64_t queue_id)
{
    sh_a128 *entry = sh_ring_entry(ring, tail);
    sh_prefetch_write(entry); /* the line comes once, for writing, not first for reading and then again for writing */
    uint64_t lo = sh_load_acquire(&entry->lo), hi = sh_load_acquire(&entry->hi), lap = sh_ring_lap(ring, tail);
    if (((lo ^ lap) & (SH_ENTRY_LAP | SH_ENTRY_KIND)) != 0 || /* EMPTY is 0 */
        !sh_ring_is_near(ring, &ring->shm->tail, tail)) {
        return SH_RING_AGAIN;
    }
    if (bound != 0 && sh_ring_at_bound(ring, tail, bound)) { /* true now only if lo has not changed */
        return sh_load_acquire(&entry->lo) == lo ? SH_RING_FULL : SH_RING_AGAIN;
    }
    if (sh_load_acquire(&entry->lo) != lo) {
        return SH_RING_AGAIN; /* hi may belong to another state: it may be a message, not a tag */
    }
    uint64_t target = sh_offset_of(entry), take_tag = lo & SH_TAG_MASK, put_tag = hi & SH_TAG_MASK;
    sh_intent_confirm_long(c, take_tag, hi >> SH_TAG_BITS, target, &entry->lo, lo);
    sh_intent_confirm_in(c, put_tag, target, &entry->lo, lo, UINT64_MAX); /* hi cannot change while lo stays */
    uint64_t tag = sh_intent_begin(c, SH_INTENT_ENTRY, target, take_tag, put_tag, 0, cell, value, queue_id);
    SH_DEATH("ring.put.begun"); /* death: no tag; nothing was put, the cell keeps its reference */
    /* Full barrier. Releases the message; pairs with the acquire of lo in sh_ring_peek_at. */
    bool done = sh_cas128(entry, lo, hi, lap | (uint64_t)kind << SH_ENTRY_KIND_SHIFT | tag, word);
    SH_DEATH("ring.put.applied"); /* death: the tag is there; recovery sets the cell and wakes the takers */
    if (done) {
        sh_ring_move_hint(&ring->shm->tail, tail + 1);
        if (cell != 0) {
            sh_store_release((sh_a64 *)sh_at(cell), value);
        }
        SH_DEATH("ring.put.moved");
    }
    sh_intent_end(c);
    return done ? SH_RING_DONE : SH_RING_AGAIN;
}

/* Fills in the peek for its entry, whose state is of the right lap. */
static inline sh_ring_result sh_ring_see(sh_peek *peek, uint64_t state)
{
    peek->state = state;
    peek->kind = sh_entry_kind_of(state);
    if (peek->kind <= SH_ENTRY_CLOSED) {
        return peek->kind == SH_ENTRY_CLOSED ? SH_RING_NEXT : SH_RING_EMPTY;
    }
    peek->word = sh_load_acquire(&peek->entry->hi); /* if it changes, the CAS of sh_ring_take fails */
    return SH_RING_DONE;
}

/* Looks at the position, which is not beyond the first that was not taken. Returns AGAIN if that message was taken;
 * sh_ring_peek handles that. */
static inline sh_ring_result sh_ring_peek_at(const sh_ring *ring, uint64_t head, sh_peek *out_peek)
{
    sh_a128 *entry = sh_ring_entry(ring, head);
    uint64_t state = sh_load_acquire(&entry->lo);
    if (((state ^ sh_ring_lap(ring, head)) & SH_ENTRY_LAP) != 0 || !sh_ring_is_near(ring, &ring->shm->head, head)) {
        return SH_RING_AGAIN;
    }
    out_peek->entry = entry;
    out_peek->position = head;
    sh_ring_result r = sh_ring_see(out_peek, state);
    if (r == SH_RING_DONE) {
        sh_prefetch_write(entry); /* for the take, while this process prepares it */
    }
    return r;
}

/* Returns whether there is a message at the position. This is a guess, for choosing how to wait. */
static inline bool sh_ring_is_full_at(const sh_ring *ring, uint64_t position)
{
    uint64_t state = sh_load_acquire(&sh_ring_entry(ring, position)->lo);
    return ((state ^ sh_ring_lap(ring, position)) & SH_ENTRY_LAP) == 0 && sh_entry_kind_of(state) > SH_ENTRY_CLOSED;
}

/* Called after EMPTY: watches the entry a little longer for a message. Returns AGAIN if that message is already
 * taken.
 *
 * It does not prefetch the entry for the take, as peek does: a CPU that guesses that the watch ends now would prefetch
 * at once, and take the cache line away from the process that is about to write the message. */
static inline sh_ring_result sh_ring_watch(const sh_ring *ring, sh_peek *peek)
{
    uint64_t state = sh_spin_while(&peek->entry->lo, peek->state);
    bool same = ((state ^ peek->state) & SH_ENTRY_LAP) == 0 && sh_ring_is_near(ring, &ring->shm->head, peek->position);
    return same ? sh_ring_see(peek, state) : SH_RING_AGAIN;
}

static inline sh_ring_result sh_ring_take(sh_ctx *c, const sh_ring *ring, const sh_peek *peek, uint64_t cell,
                                          uint64_t value, uint64_t queue_id)
{
    sh_a128 *entry = peek->entry;
    /* CLOSING becomes CLOSED, which is 1; otherwise EMPTY, which is 0. */
    uint64_t after = (peek->state & SH_ENTRY_CLOSING) >> (SH_ENTRY_CLOSING_SHIFT - SH_ENTRY_KIND_SHIFT);
    uint64_t put_tag = peek->state & SH_TAG_MASK;
    uint64_t seq = sh_intent_open(c, SH_INTENT_ENTRY, sh_offset_of(entry), put_tag, 0, 0, cell, value, queue_id);
    SH_DEATH("ring.take.begun");
    uint64_t lap = (peek->state & SH_ENTRY_LAP) + (UINT64_C(1) << SH_ENTRY_LAP_SHIFT);
    uint64_t taken = lap | after | sh_tag(c->index, seq);
    uint64_t other = (seq >> SH_SEQ_BITS) << SH_TAG_BITS | put_tag;
    bool done = sh_cas128(entry, peek->state, peek->word, taken, other);
    SH_DEATH(
        /* death: the tag is there; the message was taken; recovery gives its reference to the slot and then back */
        "ring.take.applied");
    if (__builtin_expect(done, 1)) {
        sh_ring_move_hint(&ring->shm->head, peek->position + 1);
        if (cell != 0) {
            sh_store_release((sh_a64 *)sh_at(cell), value);
        }
        SH_DEATH("ring.take.moved");
    }
    sh_intent_end(c);
    return done ? SH_RING_DONE : SH_RING_AGAIN;
}

#endif
