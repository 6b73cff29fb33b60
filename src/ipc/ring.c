#include "ipc/ring.h"

uint64_t sh_ring_bytes(uint32_t order)
{
    return sizeof(sh_ring_shm) + (sizeof(sh_a128) << order);
}

bool sh_ring_open(uint64_t id, sh_ring *out_ring)
{
    sh_found f;
    if (!sh_heap_find(id, &f) || f.kind != SH_KIND_RING || f.size < sizeof(sh_ring_shm)) {
        return false;
    }
    sh_ring_shm *shm = (sh_ring_shm *)f.data;
    uint64_t order = sh_load_acquire(&shm->order);
    if (order < SH_RING_ORDER_MIN || order > SH_RING_ORDER_MAX || sh_ring_bytes((uint32_t)order) > f.size) {
        return false;
    }
    *out_ring = (sh_ring){.shm = shm, .order = (uint32_t)order};
    return true;
}

/* Four entries share a cache line; positions that follow each other do not. */
static inline sh_a128 *entry_at(const sh_ring *ring, uint64_t position)
{
    uint64_t lines = UINT64_C(1) << (ring->order - 2);
    uint64_t index = (position & (lines - 1)) << 2 | ((position >> (ring->order - 2)) & 3);
    return &ring->shm->entries[index];
}

static inline uint64_t lap_of(const sh_ring *ring, uint64_t position)
{
    return (position >> ring->order) & SH_ENTRY_LAP_MASK;
}

static inline uint64_t state_lap(uint64_t state)
{
    return state >> SH_ENTRY_LAP_SHIFT;
}

static inline uint64_t state_make(uint64_t lap, sh_entry_kind kind, uint64_t tag)
{
    return (lap & SH_ENTRY_LAP_MASK) << SH_ENTRY_LAP_SHIFT | (uint64_t)kind << SH_ENTRY_KIND_SHIFT | tag;
}

/* How many laps the entry at a position is ahead of it: 0, or 1 when it was taken; BEHIND when the last lap's message is
 * still there. More when the hint that led us here lagged by more than a lap. */
#define BEHIND SH_ENTRY_LAP_MASK

static inline uint64_t laps_ahead(const sh_ring *ring, uint64_t state, uint64_t position)
{
    return (state_lap(state) - lap_of(ring, position)) & SH_ENTRY_LAP_MASK;
}

/* Moves a hint on. Not a swap: a process that is stopped in between may set it back. That costs those who come next a
 * few steps (settle_tail, settle_head) and nothing else, and saves everybody a locked instruction. */
static inline void move_hint(sh_a64 *hint, uint64_t to)
{
    if ((int64_t)(to - sh_racy_load(hint)) > 0) {
        sh_racy_store(hint, to);
    }
}

/* From a position that is not beyond the first unused one, to that one. A state of a later lap says how far the ring is
 * at least. False when the memory holds what no ring does. */
static bool settle_tail(const sh_ring *ring, uint64_t *position)
{
    for (uint64_t steps = 0; steps >> ring->order <= 2; steps++) {
        uint64_t state = sh_load_acquire(&entry_at(ring, *position)->lo);
        uint64_t ahead = laps_ahead(ring, state, *position);
        bool unused = sh_entry_kind_of(state) <= SH_ENTRY_CLOSED;
        if (ahead == BEHIND || (ahead == 0 && unused)) {
            return ahead == 0 || !unused;
        }
        if (ahead > SH_ENTRY_LAP_MASK / 2) {
            return false;
        }
        *position += ((unused ? ahead - 1 : ahead) << ring->order) + 1;
    }
    return false;
}

/* The same for the first position that was not taken. */
static bool settle_head(const sh_ring *ring, uint64_t *position)
{
    for (uint64_t steps = 0; steps >> ring->order <= 2; steps++) {
        uint64_t ahead = laps_ahead(ring, sh_load_acquire(&entry_at(ring, *position)->lo), *position);
        if (ahead == 0) {
            return true;
        }
        if (ahead > SH_ENTRY_LAP_MASK / 2) {
            return false;
        }
        *position += ((ahead - 1) << ring->order) + 1;
    }
    return false;
}

/* After more steps than the ring has entries: did others run away from us? Then we begin again where they are now. */
static bool has_moved(const sh_a64 *shared, uint64_t *hint, uint64_t *position)
{
    uint64_t now = sh_load_acquire(shared);
    bool moved = now != *hint;
    *hint = *position = now;
    return moved;
}

/* With a bound below the size of the ring: is the message `bound` positions back still there? Takes happen in order,
 * so then as many are. */
static bool at_bound(const sh_ring *ring, uint64_t tail, uint64_t bound)
{
    if (bound == 0 || bound >> ring->order != 0 || tail < bound) {
        return false;
    }
    uint64_t state = sh_load_acquire(&entry_at(ring, tail - bound)->lo);
    return state_lap(state) == lap_of(ring, tail - bound);
}

sh_ring_result sh_ring_put(sh_ctx *c, const sh_ring *ring, sh_entry_kind kind, uint64_t word, uint64_t cell,
                           uint64_t value, uint64_t bound, uint64_t queue_id)
{
    uint64_t hint = sh_load_acquire(&ring->shm->tail), tail = hint;
    for (;;) {
        sh_a128 *entry = entry_at(ring, tail);
        uint64_t lo = sh_load_acquire(&entry->lo), hi = sh_load_acquire(&entry->hi);
        uint64_t lap = lap_of(ring, tail);
        if (__builtin_expect(state_lap(lo) != lap || sh_entry_kind_of(lo) != SH_ENTRY_EMPTY, 0)) {
            if (laps_ahead(ring, lo, tail) == BEHIND && sh_entry_kind_of(lo) > SH_ENTRY_CLOSED) {
                return (lo & SH_ENTRY_CLOSING) != 0 ? SH_RING_NEXT : SH_RING_FULL;
            }
            if (state_lap(lo) == lap && sh_entry_kind_of(lo) == SH_ENTRY_CLOSED) {
                return SH_RING_NEXT;
            }
            if (!settle_tail(ring, &tail) && !has_moved(&ring->shm->tail, &hint, &tail)) {
                return SH_RING_BROKEN;
            }
            continue;
        }
        if (at_bound(ring, tail, bound)) {
            return SH_RING_FULL;
        }
        uint64_t target = sh_offset_of(entry), seen = lo & SH_TAG_MASK;
        if (sh_load_acquire(&entry->lo) != lo) {
            continue; /* hi was read of another moment: it may be a message, not a tag */
        }
        sh_op_confirm(c, seen, target);
        sh_op_confirm(c, hi & SH_TAG_MASK, target);
        uint64_t tag = sh_op_begin(c, SH_OP_ENTRY, target, seen, hi & SH_TAG_MASK, 0, cell, value, queue_id);
        SH_DEATH("ring.put.begun"); /* death: no tag; nothing was put, the cell keeps its reference */
        /* Full barrier, releases the message, pairs with the acquire of lo in sh_ring_peek. */
        bool done = sh_cas128(entry, lo, hi, state_make(lap, kind, tag), word);
        SH_DEATH("ring.put.applied"); /* death: the tag is there; recovery sets the cell and wakes the takers */
        if (done) {
            move_hint(&ring->shm->tail, tail + 1);
            if (cell != 0) {
                sh_store_release((sh_a64 *)sh_at(cell), value);
            }
            SH_DEATH("ring.put.moved");
            sh_op_end(c);
            __builtin_prefetch(entry_at(ring, tail + 1), 1); /* the next put finds it at hand */
            return SH_RING_DONE;
        }
        sh_op_end(c);
    }
}

sh_ring_result sh_ring_peek(const sh_ring *ring, sh_peek *out_peek)
{
    uint64_t hint = sh_load_acquire(&ring->shm->head), head = hint;
    for (;;) {
        sh_a128 *entry = entry_at(ring, head);
        uint64_t state = sh_load_acquire(&entry->lo);
        if (__builtin_expect(state_lap(state) != lap_of(ring, head), 0)) {
            if (!settle_head(ring, &head) && !has_moved(&ring->shm->head, &hint, &head)) {
                return SH_RING_BROKEN;
            }
            move_hint(&ring->shm->head, head);
            continue;
        }
        out_peek->kind = sh_entry_kind_of(state);
        if (out_peek->kind <= SH_ENTRY_CLOSED) {
            return out_peek->kind == SH_ENTRY_CLOSED ? SH_RING_NEXT : SH_RING_EMPTY;
        }
        out_peek->position = head;
        out_peek->state = state;
        out_peek->word = sh_load_acquire(&entry->hi); /* if it changes, the swap of sh_ring_take fails */
        return SH_RING_DONE;
    }
}

bool sh_ring_is_oldest(const sh_ring *ring, const sh_peek *peek)
{
    sh_peek now;
    return sh_ring_peek(ring, &now) == SH_RING_DONE && now.position == peek->position && now.state == peek->state;
}

sh_ring_result sh_ring_take(sh_ctx *c, const sh_ring *ring, const sh_peek *peek, uint64_t cell, uint64_t value,
                            uint64_t queue_id)
{
    sh_a128 *entry = entry_at(ring, peek->position);
    sh_entry_kind after = (peek->state & SH_ENTRY_CLOSING) != 0 ? SH_ENTRY_CLOSED : SH_ENTRY_EMPTY;
    uint64_t put_tag = peek->state & SH_TAG_MASK;
    uint64_t tag = sh_op_begin(c, SH_OP_ENTRY, sh_offset_of(entry), put_tag, 0, 0, cell, value, queue_id);
    SH_DEATH("ring.take.begun");
    bool done =
        sh_cas128(entry, peek->state, peek->word, state_make(lap_of(ring, peek->position) + 1, after, tag), put_tag);
    SH_DEATH(
        /* death: the tag is there; the message was taken, recovery gives its reference to the slot and then back */
        "ring.take.applied");
    if (done) {
        move_hint(&ring->shm->head, peek->position + 1);
        if (cell != 0) {
            sh_store_release((sh_a64 *)sh_at(cell), value);
        }
        SH_DEATH("ring.take.moved");
    }
    sh_op_end(c);
    return done ? SH_RING_DONE : SH_RING_AGAIN;
}

sh_ring_result sh_ring_close(const sh_ring *ring)
{
    uint64_t tail = sh_load_acquire(&ring->shm->tail);
    if (!settle_tail(ring, &tail)) {
        return SH_RING_BROKEN;
    }
    sh_a128 *entry = entry_at(ring, tail);
    uint64_t lo = sh_load_acquire(&entry->lo), hi = sh_load_acquire(&entry->hi);
    if (laps_ahead(ring, lo, tail) != BEHIND || sh_entry_kind_of(lo) <= SH_ENTRY_CLOSED) {
        return SH_RING_AGAIN;
    }
    if ((lo & SH_ENTRY_CLOSING) == 0 && !sh_cas128(entry, lo, hi, lo | SH_ENTRY_CLOSING, hi)) {
        return SH_RING_AGAIN;
    }
    return SH_RING_DONE;
}

sh_ring_result sh_ring_seal(const sh_ring *ring)
{
    uint64_t head = sh_load_acquire(&ring->shm->head);
    if (!settle_head(ring, &head)) {
        return SH_RING_BROKEN;
    }
    sh_a128 *entry = entry_at(ring, head);
    uint64_t lo = sh_load_acquire(&entry->lo), hi = sh_load_acquire(&entry->hi);
    if (state_lap(lo) != lap_of(ring, head) || sh_entry_kind_of(lo) != SH_ENTRY_EMPTY) {
        return SH_RING_AGAIN;
    }
    uint64_t closed = lo | (uint64_t)SH_ENTRY_CLOSED << SH_ENTRY_KIND_SHIFT; /* EMPTY is 0; the tags stay */
    return sh_cas128(entry, lo, hi, closed, hi) ? SH_RING_DONE : SH_RING_AGAIN;
}

uint64_t sh_ring_puts(const sh_ring *ring)
{
    uint64_t tail = sh_load_acquire(&ring->shm->tail);
    settle_tail(ring, &tail);
    move_hint(&ring->shm->tail, tail);
    return tail;
}

uint64_t sh_ring_takes(const sh_ring *ring)
{
    uint64_t head = sh_load_acquire(&ring->shm->head);
    settle_head(ring, &head);
    move_hint(&ring->shm->head, head);
    return head;
}
