/* Rings: opening them, and the cases that ring_steps.h leaves out: hints that lag, full rings, ends of rings. */
#include "ipc/ring.h"

#define SLACK_LAPS_ORDER 16

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
                          .slack = UINT64_C(1) << (order + SLACK_LAPS_ORDER),
                          .line_mask = (UINT64_C(1) << (order - 2)) - 1,
                          .order = (uint32_t)order,
                          .stride = order <= SH_RING_SMALL ? 5 : 1};
    return true;
}

/* death: or a stop, anywhere: base is valid, and the next process raises it. */
bool sh_ring_raise(sh_ring_side *side, uint64_t position)
{
    uint64_t base = sh_load_acquire(&side->base);
    while (base < position && !sh_cas_acq_rel(&side->base, &base, position)) { /* pairs with the acquire in is_near */
    }
    return base <= position;
}

/* Returns how many laps the entry at a position is ahead of it: 0; 1 if it was taken; BEHIND if the last lap's message
 * is still there; more if the hint that led here lagged by more than a lap. */
#define BEHIND SH_ENTRY_LAP_MASK

static inline uint64_t laps_ahead(const sh_ring *ring, uint64_t state, uint64_t position)
{
    return (state - sh_ring_lap(ring, position)) >> SH_ENTRY_LAP_SHIFT;
}

/* Returns where to start: at the hint, or at base if the hint went back below it. */
static uint64_t begin(const sh_ring_side *side)
{
    uint64_t hint = sh_load_acquire(&side->hint), base = sh_load_acquire(&side->base);
    return hint > base ? hint : base;
}

/* Returns the state of the entry at the position. Moves the position first if it is out of date (ring.h). */
static uint64_t look(const sh_ring *ring, const sh_ring_side *side, uint64_t *position)
{
    for (;;) {
        uint64_t state = sh_load_acquire(&sh_ring_entry(ring, *position)->lo);
        if (*position >= sh_load_acquire(&side->base)) {
            return state;
        }
        *position = begin(side);
    }
}

/* Returns DONE if the position is that of the next put, otherwise advances it and returns AGAIN. Returns BROKEN if the
 * memory holds a state that no ring can have. */
static sh_ring_result step_tail(const sh_ring *ring, uint64_t *position, uint64_t *out_state)
{
    uint64_t state = look(ring, &ring->shm->tail, position), ahead = laps_ahead(ring, state, *position);
    bool unused = sh_entry_kind_of(state) <= SH_ENTRY_CLOSED;
    *out_state = state;
    if (ahead == BEHIND || (ahead == 0 && unused)) {
        return ahead == 0 || !unused ? SH_RING_DONE : SH_RING_BROKEN;
    }
    *position += ((unused ? ahead - 1 : ahead) << ring->order) + 1;
    return ahead > SH_ENTRY_LAP_MASK / 2 ? SH_RING_BROKEN : SH_RING_AGAIN;
}

/* The same for the next take. */
static sh_ring_result step_head(const sh_ring *ring, uint64_t *position, uint64_t *out_state)
{
    uint64_t state = look(ring, &ring->shm->head, position), ahead = laps_ahead(ring, state, *position);
    *out_state = state;
    if (ahead == 0) {
        return SH_RING_DONE;
    }
    *position += ((ahead - 1) << ring->order) + 1;
    return ahead > SH_ENTRY_LAP_MASK / 2 ? SH_RING_BROKEN : SH_RING_AGAIN;
}

typedef sh_ring_result step(const sh_ring *ring, uint64_t *position, uint64_t *out_state);

/* Advances a position that is not beyond that of the next put (step_tail) or take (step_head) to that one, and returns
 * its state in out_state. A state of a later lap gives a lower bound for how far the ring is, so this takes less than
 * three laps of steps, unless others keep ahead of this process. Then every entry has changed, and it starts again.
 * Returns false if the memory holds a state that no ring can have. */
static bool settle(const sh_ring *ring, const sh_ring_side *side, step *next, uint64_t *position, uint64_t *out_state)
{
    for (;;) {
        const sh_a128 *first = sh_ring_entry(ring, *position);
        uint64_t before = sh_load_acquire(&first->lo);
        for (uint64_t steps = 0; steps >> ring->order <= 2; steps++) {
            sh_ring_result r = next(ring, position, out_state);
            if (r != SH_RING_AGAIN) {
                return r == SH_RING_DONE;
            }
        }
        if (sh_load_acquire(&first->lo) == before) {
            return false;
        }
        *position = begin(side);
    }
}

/* Called when a put at the position failed. Returns why: FULL, NEXT, BROKEN; or AGAIN, with *tail advanced if it had to
 * be. */
static sh_ring_result find_tail(const sh_ring *ring, uint64_t *tail)
{
    uint64_t state;
    if (!settle(ring, &ring->shm->tail, step_tail, tail, &state)) {
        return SH_RING_BROKEN;
    }
    if (sh_entry_kind_of(state) > SH_ENTRY_CLOSED) { /* of the last lap */
        return (state & SH_ENTRY_CLOSING) != 0 ? SH_RING_NEXT : SH_RING_FULL;
    }
    return sh_entry_kind_of(state) == SH_ENTRY_CLOSED ? SH_RING_NEXT : SH_RING_AGAIN;
}

sh_ring_result sh_ring_put(sh_ctx *c, const sh_ring *ring, sh_entry_kind kind, uint64_t word, uint64_t cell,
                           uint64_t value, uint64_t bound, uint64_t queue_id)
{
    uint64_t tail = begin(&ring->shm->tail);
    sh_ring_result r;
    do {
        r = sh_ring_put_at(c, ring, tail, kind, word, cell, value, bound, queue_id);
    } while (r == SH_RING_AGAIN && (r = find_tail(ring, &tail)) == SH_RING_AGAIN);
    return r;
}

sh_ring_result sh_ring_peek(const sh_ring *ring, sh_peek *out_peek)
{
    uint64_t head = begin(&ring->shm->head), state;
    for (;;) {
        sh_ring_result r = sh_ring_peek_at(ring, head, out_peek);
        if (r != SH_RING_AGAIN) {
            return r;
        }
        if (!settle(ring, &ring->shm->head, step_head, &head, &state)) {
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
    uint64_t tail = begin(&ring->shm->tail), lo;
    if (!settle(ring, &ring->shm->tail, step_tail, &tail, &lo)) {
        return SH_RING_BROKEN;
    }
    sh_a128 *entry = sh_ring_entry(ring, tail);
    uint64_t hi = sh_load_acquire(&entry->hi); /* if lo has changed since, the CAS fails */
    if (sh_entry_kind_of(lo) <= SH_ENTRY_CLOSED) {
        return SH_RING_AGAIN;
    }
    if ((lo & SH_ENTRY_CLOSING) == 0 && !sh_cas128(entry, lo, hi, lo | SH_ENTRY_CLOSING, hi)) {
        return SH_RING_AGAIN;
    }
    return SH_RING_DONE;
}

sh_ring_result sh_ring_seal(const sh_ring *ring)
{
    uint64_t head = begin(&ring->shm->head), lo;
    if (!settle(ring, &ring->shm->head, step_head, &head, &lo)) {
        return SH_RING_BROKEN;
    }
    sh_a128 *entry = sh_ring_entry(ring, head);
    uint64_t hi = sh_load_acquire(&entry->hi); /* if lo has changed since, the CAS fails */
    if (sh_entry_kind_of(lo) != SH_ENTRY_EMPTY) {
        return SH_RING_AGAIN;
    }
    uint64_t closed = lo | (uint64_t)SH_ENTRY_CLOSED << SH_ENTRY_KIND_SHIFT; /* EMPTY is 0; the tags are kept */
    return sh_cas128(entry, lo, hi, closed, hi) ? SH_RING_DONE : SH_RING_AGAIN;
}

static uint64_t count(const sh_ring *ring, sh_ring_side *side, step *next)
{
    uint64_t position = begin(side), state;
    settle(ring, side, next, &position, &state);
    sh_ring_move_hint(side, position);
    return position;
}

uint64_t sh_ring_puts(const sh_ring *ring)
{
    return count(ring, &ring->shm->tail, step_tail);
}

uint64_t sh_ring_takes(const sh_ring *ring)
{
    return count(ring, &ring->shm->head, step_head);
}
