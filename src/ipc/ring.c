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
    *out_ring = (sh_ring){.shm = shm,
                          .entries = shm->entries,
                          .line_mask = (UINT64_C(1) << (order - 2)) - 1,
                          .order = (uint32_t)order,
                          .stride = order <= SH_RING_SMALL ? 5 : 1};
    return true;
}

/* How many laps the entry at a position is ahead of it: 0, or 1 when it was taken; BEHIND when the last lap's message is
 * still there. More when the hint that led us here lagged by more than a lap. */
#define BEHIND SH_ENTRY_LAP_MASK

static inline uint64_t laps_ahead(const sh_ring *ring, uint64_t state, uint64_t position)
{
    return (state - sh_ring_lap(ring, position)) >> SH_ENTRY_LAP_SHIFT;
}

/* From a position that is not beyond the first unused one, to that one. A state of a later lap says how far the ring is
 * at least. False when the memory holds what no ring does. */
static bool settle_tail(const sh_ring *ring, uint64_t *position)
{
    for (uint64_t steps = 0; steps >> ring->order <= 2; steps++) {
        uint64_t state = sh_load_acquire(&sh_ring_entry(ring, *position)->lo);
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
        uint64_t ahead = laps_ahead(ring, sh_load_acquire(&sh_ring_entry(ring, *position)->lo), *position);
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

/* Nothing can be put at the position now. Why: FULL, NEXT, BROKEN; or AGAIN, and *tail has moved on if it had to. */
static sh_ring_result find_tail(const sh_ring *ring, uint64_t *hint, uint64_t *tail)
{
    uint64_t lo = sh_load_acquire(&sh_ring_entry(ring, *tail)->lo), ahead = laps_ahead(ring, lo, *tail);
    if (ahead == BEHIND && sh_entry_kind_of(lo) > SH_ENTRY_CLOSED) {
        return (lo & SH_ENTRY_CLOSING) != 0 ? SH_RING_NEXT : SH_RING_FULL;
    }
    if (ahead == 0 && sh_entry_kind_of(lo) == SH_ENTRY_CLOSED) {
        return SH_RING_NEXT;
    }
    return settle_tail(ring, tail) || has_moved(&ring->shm->tail, hint, tail) ? SH_RING_AGAIN : SH_RING_BROKEN;
}

sh_ring_result sh_ring_put(sh_ctx *c, const sh_ring *ring, sh_entry_kind kind, uint64_t word, uint64_t cell,
                           uint64_t value, uint64_t bound, uint64_t queue_id)
{
    uint64_t hint = sh_load_acquire(&ring->shm->tail), tail = hint;
    sh_ring_result r;
    do {
        r = sh_ring_put_at(c, ring, tail, kind, word, cell, value, bound, queue_id);
    } while (r == SH_RING_AGAIN && (r = find_tail(ring, &hint, &tail)) == SH_RING_AGAIN);
    return r;
}

sh_ring_result sh_ring_peek(const sh_ring *ring, sh_peek *out_peek)
{
    uint64_t hint = sh_load_acquire(&ring->shm->head), head = hint;
    for (;;) {
        sh_ring_result r = sh_ring_peek_at(ring, head, out_peek);
        if (r != SH_RING_AGAIN) {
            return r;
        }
        if (!settle_head(ring, &head) && !has_moved(&ring->shm->head, &hint, &head)) {
            return SH_RING_BROKEN;
        }
        sh_ring_move_hint(&ring->shm->head, head);
    }
}

bool sh_ring_is_oldest(const sh_ring *ring, const sh_peek *peek)
{
    sh_peek now;
    return sh_ring_peek(ring, &now) == SH_RING_DONE && now.position == peek->position && now.state == peek->state;
}

sh_ring_result sh_ring_close(const sh_ring *ring)
{
    uint64_t tail = sh_load_acquire(&ring->shm->tail);
    if (!settle_tail(ring, &tail)) {
        return SH_RING_BROKEN;
    }
    sh_a128 *entry = sh_ring_entry(ring, tail);
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
    sh_a128 *entry = sh_ring_entry(ring, head);
    uint64_t lo = sh_load_acquire(&entry->lo), hi = sh_load_acquire(&entry->hi);
    if (laps_ahead(ring, lo, head) != 0 || sh_entry_kind_of(lo) != SH_ENTRY_EMPTY) {
        return SH_RING_AGAIN;
    }
    uint64_t closed = lo | (uint64_t)SH_ENTRY_CLOSED << SH_ENTRY_KIND_SHIFT; /* EMPTY is 0; the tags stay */
    return sh_cas128(entry, lo, hi, closed, hi) ? SH_RING_DONE : SH_RING_AGAIN;
}

uint64_t sh_ring_puts(const sh_ring *ring)
{
    uint64_t tail = sh_load_acquire(&ring->shm->tail);
    settle_tail(ring, &tail);
    sh_ring_move_hint(&ring->shm->tail, tail);
    return tail;
}

uint64_t sh_ring_takes(const sh_ring *ring)
{
    uint64_t head = sh_load_acquire(&ring->shm->head);
    settle_head(ring, &head);
    sh_ring_move_hint(&ring->shm->head, head);
    return head;
}
