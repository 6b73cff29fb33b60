/* The core of a queue: moving along its rings, pending messages, put and get with waiting. */
#include "ipc/queue_core.h"

#include "ipc/delivery.h"
#include "ipc/message_write.h"
#include "ipc/queue.h"
#include "ipc/queue_steps.h"
#include "ipc/receipt.h"
#include "ipc/value.h"
#include "ipc/watch.h"
#include "shm/waits.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- rings ---- */

static shoal_err damaged(const shoal_block *q, uint32_t ring)
{
    return sh_fail(SHOAL_ECORRUPT, "queue %llu: ring %u is damaged", (unsigned long long)q->id, ring);
}

/* Inside: opens ring number n, which is the last known one or the one after it. */
shoal_err sh_queue_open_ring(shoal_block *q, uint32_t n)
{
    sh_queue_view *v = sh_queue_view_of(q);
    uint32_t count = sh_load_relaxed(&v->count);
    if (n < count) {
        return SHOAL_OK;
    }
    sh_ref ref = sh_load_acquire(n == 0 ? &sh_queue_shm_of(q)->rings : &v->rings[n - 1].shm->next);
    if (n >= SH_RINGS_MAX || n != count || sh_ref_weight(ref) == 0 || !sh_ring_open(sh_ref_id(ref), &v->rings[n])) {
        return damaged(q, n);
    }
    sh_store_release(&v->count, n + 1);
    return SHOAL_OK;
}

/* Inside: drops the pending messages and their references. */
static void drop_pending(sh_ctx *c, void *view)
{
    sh_queue_view *v = view;
    uint32_t count = sh_load_relaxed(&v->pending_count);
    sh_store_relaxed(&v->pending_count, 0);
    v->get_mode &= SH_GET_SLOW;
    for (uint32_t i = 0; i < count; i++) {
        if (v->pending[i].block != NULL) {
            sh_block_unref(c, v->pending[i].block);
        }
    }
}

/* Inside: called when the handle is released. A queue that is released with pending messages loses them. */
static void let_go(sh_ctx *c, void *view)
{
    drop_pending(c, view);
    sh_watch_forget(view);
    sh_receipts_forget(view);
}

/* Inside: creates the view at the first use of a queue that was received. It starts at the rings in use. */
shoal_err sh_queue_prepare_slow(shoal_block *q, const char *what)
{
    SH_TRY(sh_block_require(q, SH_KIND_QUEUE, what));
    if (q->size < sizeof(sh_queue_shm)) {
        return sh_fail(SHOAL_ECORRUPT, "queue %llu is damaged", (unsigned long long)q->id);
    }
    q->extra = calloc(1, sizeof(sh_queue_view));
    if (q->extra == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a queue");
    }
    shoal_err err = sh_queue_open_ring(q, 0);
    if (err == SHOAL_OK && sh_queue_is_acknowledged(q)) {
        sh_queue_view_of(q)->get_mode = SH_GET_SLOW;
        q->let_go = let_go;
        err = sh_deliveries_open(q);
    }
    if (err != SHOAL_OK) {
        free(q->extra);
        q->extra = NULL;
        q->let_go = NULL;
    }
    return err;
}

/* ---- pending messages ---- */

/* Inside: appends a pending message. Returns false if there is no room. */
static bool add_pending(shoal_block *q, const sh_taken *taken)
{
    sh_queue_view *v = sh_queue_view_of(q);
    uint32_t count = sh_load_relaxed(&v->pending_count);
    if (count == SH_PENDING_MAX) {
        return false;
    }
    v->pending[count] = *taken;
    v->pending_owner = sh_peers_now->self();
    v->get_mode = SH_GET_PENDING;
    q->let_go = let_go;
    sh_store_release(&v->pending_count, count + 1);
    return true;
}

void sh_queue_keep_taken(shoal_block *q, const sh_taken *taken)
{
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return; /* this process has no world any more */
    }
    bool kept = add_pending(q, taken);
    sh_leave();
    if (kept) {
        sh_gate_wake(&sh_queue_shm_of(q)->not_empty, 1); /* another thread of this process may wait there */
        return;
    }
    /* More threads ran out of memory at once than there is room for. The message loses its place in the order, but is
     * kept. */
    sh_put back = {.kind = taken->kind, .word = taken->word, .given = taken->block};
    if (sh_queue_put_word(q, &back, SHOAL_NOW) != SHOAL_OK) {
        sh_block_release(taken->block);
    }
}

static shoal_err fail_closed(const shoal_block *q)
{
    return sh_fail(SHOAL_ECLOSED, sh_load_relaxed(&sh_queue_shm_of(q)->of_pipe) != 0
                                      ? "the other end of the pipe is closed"
                                      : "the queue is closed");
}

/* Inside: moves on to ring n + 1 for puts or gets. Returns SHOAL_ECLOSED if ring n was sealed. */
static shoal_err next_ring(shoal_block *q, sh_a32 *mine, uint32_t n)
{
    if (sh_queue_is_closed(q) && sh_load_acquire(&sh_queue_view_of(q)->rings[n].shm->next) == 0) {
        return fail_closed(q);
    }
    SH_TRY(sh_queue_open_ring(q, n + 1));
    sh_store_release(mine, n + 1);
    return SHOAL_OK;
}

void sh_queue_link(sh_ctx *c, sh_a64 *next, shoal_block *b)
{
    sh_ref ref = sh_load_relaxed((sh_a64 *)sh_at(b->cell));
    uint64_t nothing = 0;
    sh_intent_begin(c, SH_INTENT_LINK, sh_offset_of(next), 0, 0, ref, b->cell, 0, 0);
    SH_DEATH("queue.grow.begun");
    bool linked = sh_cas_seq_cst(next, &nothing, ref); /* pairs with the acquire in open_ring */
    SH_DEATH("queue.grow.linked"); /* death: next holds exactly this reference, so recovery empties the cell */
    if (linked) {
        sh_store_release((sh_a64 *)sh_at(b->cell), 0);
    }
    sh_intent_end(c);
    sh_block_unref(c, b); /* frees it if another process was faster */
}

/* Inside: links a ring of twice the size behind the full one, then closes the full one. */
static shoal_err grow(sh_ctx *c, shoal_block *q, const sh_ring *ring)
{
    if (sh_load_acquire(&ring->shm->next) == 0) {
        shoal_block *b;
        uint64_t bytes = sh_ring_bytes(ring->order + 1);
        if (ring->order + 1 > SH_RING_ORDER_MAX) {
            return sh_fail(SHOAL_ELIMIT, "queue %llu holds 2^%d messages", (unsigned long long)q->id,
                           SH_RING_ORDER_MAX);
        }
        SH_TRY(sh_block_new(c, sh_class_of(bytes), bytes, &b));
        sh_block_become(b, SH_KIND_RING);
        sh_store_release(&((sh_ring_shm *)b->data)->order, ring->order + 1);
        sh_queue_link(c, &ring->shm->next, b);
    }
    SH_DEATH("queue.grow.unclosed");
    sh_ring_close(ring); /* AGAIN: there is room again; the next ring is used later */
    return SHOAL_OK;
}

/* ---- put ---- */

shoal_err sh_queue_put_once(sh_ctx *c, shoal_block *q, sh_entry_kind kind, const sh_transfer *t, bool *out_full)
{
    sh_queue_view *v = sh_queue_view_of(q);
    sh_queue_shm *shm = sh_queue_shm_of(q);
    uint64_t bound = sh_load_relaxed(&shm->bound);
    *out_full = false;
    for (;;) {
        uint32_t n = sh_load_relaxed(&v->put);
        const sh_ring *ring = &v->rings[n];
        shoal_err err = SHOAL_OK;
        if (__builtin_expect(sh_queue_is_closed(q), 0)) {
            return fail_closed(q);
        }
        switch (sh_ring_put(c, ring, kind, t->word, t->cell, t->value, bound, q->id)) {
        case SH_RING_DONE: return SHOAL_OK;
        case SH_RING_FULL:
            if (bound != 0) {
                *out_full = true;
                return SHOAL_OK;
            }
            err = grow(c, q, ring);
            break;
        case SH_RING_NEXT: err = next_ring(q, &v->put, n); break;
        default: err = damaged(q, n); break;
        }
        if (err != SHOAL_OK) {
            return err;
        }
    }
}

static int64_t waiting_bytes(const sh_queue_shm *shm)
{
    return (int64_t)(sh_load_seq_cst(&shm->put_bytes) - sh_load_seq_cst(&shm->taken_bytes));
}

static bool has_space(const sh_queue_shm *shm)
{
    uint64_t most = sh_load_relaxed(&shm->most_bytes);
    return most == 0 || waiting_bytes(shm) < (int64_t)most;
}

uint64_t sh_queue_cost_of_message(const char *data, uint64_t size)
{
    uint64_t more =
        size >= sizeof(sh_message_shm) ? sh_load_relaxed(&((sh_message_shm *)(uintptr_t)data)->count) >> 33 : 0;
    return SH_QUEUE_ENTRY_COST + size + more * 4096;
}

/* Inside: returns what the messages cost that are in the rings now. They may come and go meanwhile. */
static uint64_t cost_of_rings(shoal_block *q)
{
    const sh_queue_view *v = sh_queue_view_of(q);
    uint64_t sum = 0;
    for (uint32_t n = sh_load_relaxed(&v->get); n < sh_load_relaxed(&v->count); n++) {
        const sh_ring *ring = &v->rings[n];
        uint64_t begin = sh_ring_takes(ring), end = sh_ring_puts(ring), size = UINT64_C(1) << ring->order;
        end = end - begin > size && end > begin ? begin + size : end; /* more than that is forged */
        for (uint64_t i = begin; i < end; i++) {
            const sh_a128 *entry = sh_ring_entry(ring, i);
            uint64_t state = sh_load_acquire(&entry->lo), word = sh_load_acquire(&entry->hi);
            sh_found f;
            bool message = sh_entry_kind_of(state) == SH_ENTRY_MESSAGE && sh_heap_find(sh_ref_id(word), &f);
            sum += message ? sh_queue_cost_of_message(f.data, f.size) : SH_QUEUE_ENTRY_COST;
        }
    }
    return sum;
}

#define FULL_LONG SH_SLICE_SHORT /* a queue that is full for so long may only seem to be */

/* Inside: returns whether the bound in bytes allows another message. */
static bool admit(shoal_block *q)
{
    sh_queue_view *v = sh_queue_view_of(q);
    sh_queue_shm *shm = sh_queue_shm_of(q);
    if (v->put_bytes < SH_QUEUE_STEP && v->full_since == 0) {
        return true;
    }
    sh_add_acq_rel(&shm->put_bytes, v->put_bytes);
    v->put_bytes = 0;
    int64_t waiting = waiting_bytes(shm), most = (int64_t)sh_load_relaxed(&shm->most_bytes);
    int64_t now = waiting >= most ? sh_now() : 0;
    bool full_long = waiting >= most && v->full_since != 0 && now - v->full_since >= FULL_LONG;
    if (full_long || waiting < -most) {
        uint64_t taken = sh_load_acquire(&shm->taken_bytes);
        uint64_t right = sh_load_acquire(&shm->put_bytes) - cost_of_rings(q);
        (void)sh_cas_acq_rel(&shm->taken_bytes, &taken, right); /* if another process was faster, look again later */
    }
    if (has_space(shm) || sh_queue_is_closed(q)) {
        v->full_since = 0;
    } else if (v->full_since == 0 || full_long) {
        v->full_since = now != 0 ? now : sh_now();
    }
    return v->full_since == 0;
}

void sh_queue_add_taken(const shoal_block *q, bool all)
{
    sh_queue_view *v = sh_queue_view_of(q);
    sh_queue_shm *shm = sh_queue_shm_of(q);
    sh_add_acq_rel(&shm->taken_bytes, v->taken_bytes);
    sh_fence_seq_cst(); /* before the load in sh_gate_wake */
    v->taken_bytes = 0;
    if (all || waiting_bytes(shm) <= (int64_t)(sh_load_relaxed(&shm->most_bytes) / 4 * 3)) {
        sh_gate_wake(&shm->not_full, INT_MAX);
    }
}

static bool has_room(shoal_block *q)
{
    if (!has_space(sh_queue_shm_of(q))) {
        return sh_queue_is_closed(q);
    }
    const sh_ring *ring = &sh_queue_view_of(q)->rings[sh_load_acquire(&sh_queue_view_of(q)->put)];
    uint64_t bound = sh_load_relaxed(&sh_queue_shm_of(q)->bound);
    return bound == 0 || sh_ring_puts(ring) - sh_ring_takes(ring) < bound || sh_queue_is_closed(q);
}

bool sh_queue_is_ready(shoal_block *q)
{
    sh_peek peek;
    if (sh_load_acquire(&sh_queue_view_of(q)->pending_count) != 0) {
        return true;
    }
    const sh_ring *ring = &sh_queue_view_of(q)->rings[sh_load_acquire(&sh_queue_view_of(q)->get)];
    sh_ring_result r = sh_ring_peek(ring, &peek);
    if (sh_queue_is_acknowledged(q)) { /* messages that are out may come back, so it ends only when none is out */
        return r == SH_RING_DONE || r == SH_RING_BROKEN ||
               (r == SH_RING_NEXT && sh_load_acquire(&ring->shm->next) != 0) || sh_deliveries_ready(q) ||
               (sh_queue_is_closed(q) && sh_deliveries_may_be_over(q));
    }
    return r != SH_RING_EMPTY || sh_queue_is_closed(q);
}

/* Waits until the predicate may have become true. Returns false if the time ran out. */
bool sh_queue_wait(shoal_block *q, sh_wait *wait, bool (*predicate)(shoal_block *), sh_gate *gate)
{
    while (sh_wait_spin(wait)) {
        if (predicate(q)) {
            return true;
        }
    }
    uint32_t prepared = sh_gate_prepare(gate);
    if (predicate(q)) {
        return true;
    }
    const sh_queue_shm *shm = sh_queue_shm_of(q);
    wait->name = sh_waits_name(gate == &shm->all_done                ? SH_WAITS_DONE
                               : gate == &shm->not_full              ? SH_WAITS_PUT
                               : sh_load_relaxed(&shm->of_pipe) != 0 ? SH_WAITS_RECEIVE
                                                                     : SH_WAITS_GET,
                               q->id);
    return sh_wait_park(wait, gate, prepared) || predicate(q);
}

static shoal_err put_once(sh_ctx *c, shoal_block *q, const sh_put *r, bool *out_full)
{
    sh_transfer t = {.word = r->word};
    shoal_block *shared = r->given != NULL ? r->given : r->shared;
    /* The only reference of this process: no other thread can use the block, and while this thread is inside none can
     * receive it. So its whole weight can go. */
    if (r->given != NULL && sh_block_can_move(r->given)) {
        sh_block_lighten(c, r->given);
        t = sh_transfer_all(r->given);
    } else if (shared != NULL) {
        SH_TRY(sh_transfer_part(c, shared, &t));
    }
    return sh_queue_put_once(c, q, r->kind, &t, out_full);
}

shoal_err sh_queue_put_word(shoal_block *q, const sh_put *r, int64_t timeout)
{
    sh_wait wait;
    bool full = false, waiting = false;
    for (;;) {
        sh_ctx *c = sh_enter_held();
        if (c == NULL) {
            return shoal_last_error();
        }
        shoal_err err = sh_queue_prepare(q, "shoal_queue_put");
        bool counted = err == SHOAL_OK && sh_load_relaxed(&sh_queue_shm_of(q)->most_bytes) != 0;
        full = counted && !admit(q);
        if (err == SHOAL_OK && !full) {
            uint64_t cost = sh_queue_cost(r->kind, r->given);
            err = put_once(c, q, r, &full);
            sh_queue_view_of(q)->put_bytes += counted && err == SHOAL_OK && !full ? cost : 0;
        }
        if (err == SHOAL_OK && !full && r->given != NULL) {
            sh_block_unref(c, r->given); /* before sh_leave: no other thread may find a handle that holds nothing */
        }
        sh_leave();
        if (err != SHOAL_OK) {
            if (waiting) {
                sh_gate_wake(&sh_queue_shm_of(q)->not_full, 1); /* woken for room that this call does not use */
            }
            return err;
        }
        if (!full) {
            sh_queue_wake_getter(q);
            return SHOAL_OK;
        }
        if (!waiting) {
            waiting = true;
            sh_wait_init(&wait, timeout, SH_SLICE_LONG, &sh_queue_shm_of(q)->not_full);
        }
        if (timeout <= SHOAL_NOW || !sh_queue_wait(q, &wait, has_room, &sh_queue_shm_of(q)->not_full)) {
            return sh_fail_waiting(timeout, sh_load_relaxed(&sh_queue_shm_of(q)->of_pipe) != 0
                                                ? "the pipe stayed full"
                                                : "the queue stayed full");
        }
    }
}

/* ---- get ---- */

/* Checks that the message is what the caller asked for and fits. If raw bytes do not fit, out_size gets their size. */
static shoal_err check_wanted(const sh_peek *peek, sh_want wanted, size_t capacity, size_t *out_size)
{
    if (wanted >= 0) {
        shoal_kind right = (shoal_kind)wanted;
        shoal_kind kind = peek->kind == SH_ENTRY_BLOCK ? sh_block_kind_of(sh_ref_id(peek->word)) : SHOAL_KIND_NONE;
        if (peek->kind != SH_ENTRY_BLOCK || (kind != SHOAL_KIND_NONE && kind != right)) {
            return sh_fail(SHOAL_ETYPE, "the oldest message is not a %s", sh_kind_shared_name(right));
        }
        return SHOAL_OK;
    }
    if (wanted != SH_WANT_BYTES) {
        return SHOAL_OK;
    }
    size_t size = peek->kind - SH_ENTRY_BYTES_0;
    if (peek->kind == SH_ENTRY_MESSAGE) {
        /* Not ours yet: if another process takes it now, this reads garbage, but then the CAS fails or try_get looks
         * again. */
        sh_found f;
        if (!sh_heap_find(sh_ref_id(peek->word), &f)) {
            return SHOAL_OK;
        }
        shoal_block message = {.data = f.data, .size = f.size, .kind = f.kind};
        if (sh_message_bytes(&message, &size) == NULL) {
            return sh_fail(SHOAL_ETYPE, "the oldest message is a value, not raw bytes");
        }
    } else if (peek->kind > SH_ENTRY_BYTES_8) {
        return sh_fail(SHOAL_ETYPE, "the oldest message is not raw bytes");
    }
    if (size > capacity) {
        *out_size = size;
        return sh_fail(SHOAL_EINVAL, "the oldest message has %zu bytes, but the buffer has only %zu", size, capacity);
    }
    return SHOAL_OK;
}

/* Inside: takes the message that peek saw. Takes a reference to nothing too, so that it does not block the queue. */
static shoal_err take(sh_ctx *c, shoal_block *q, const sh_ring *ring, const sh_peek *peek, sh_taken *out,
                      bool *out_again)
{
    shoal_block *b = NULL;
    uint64_t value = 0;
    shoal_err err = SHOAL_OK;
    if (peek->kind == SH_ENTRY_BLOCK || peek->kind == SH_ENTRY_MESSAGE) {
        err = sh_block_expect(c, peek->word, &b, &value);
        if (err != SHOAL_OK && err != SHOAL_ECORRUPT) {
            return err;
        }
    }
    if (!sh_queue_take(c, q, ring, peek, b, value)) {
        *out_again = true;
        return SHOAL_OK;
    }
    *out = (sh_taken){.kind = peek->kind, .word = peek->word, .block = b};
    return err;
}

shoal_err sh_queue_watch(shoal_queue *queue, const char *call, int *out_fd)
{
    shoal_block *q = (shoal_block *)queue;
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_queue_prepare(q, call);
    if (err == SHOAL_OK && sh_queue_is_acknowledged(q)) {
        err = sh_deliveries_open(q);
    }
    if (err == SHOAL_OK) {
        q->let_go = let_go;
    }
    sh_leave();
    SH_TRY(err);
    return sh_watch_fd(q, out_fd);
}

sh_ring_result sh_queue_peek(shoal_block *q, const sh_ring **out_ring, sh_peek *out_peek)
{
    sh_queue_view *v = sh_queue_view_of(q);
    for (;;) {
        uint32_t n = sh_load_relaxed(&v->get);
        *out_ring = &v->rings[n];
        sh_ring_result r = sh_ring_peek(*out_ring, out_peek);
        if (r == SH_RING_BROKEN) {
            damaged(q, n);
        }
        if (r != SH_RING_NEXT) {
            return r;
        }
        if (next_ring(q, &v->get, n) != SHOAL_OK) {
            return SH_RING_BROKEN;
        }
    }
}

/* Inside: takes the oldest pending message, if there is one and it is what the caller asked for. */
static shoal_err try_pending(sh_ctx *c, shoal_block *q, sh_want wanted, size_t capacity, sh_taken *out,
                             size_t *out_size, bool *out_got)
{
    sh_queue_view *v = sh_queue_view_of(q);
    if (v->pending_owner != sh_peers_now->self()) { /* this is a forked child: the messages belong to its parent */
        drop_pending(c, v);
        return SHOAL_OK;
    }
    shoal_err err =
        check_wanted(&(sh_peek){.kind = v->pending[0].kind, .word = v->pending[0].word}, wanted, capacity, out_size);
    if (err != SHOAL_OK) {
        return err;
    }
    uint32_t left = sh_load_relaxed(&v->pending_count) - 1;
    *out = v->pending[0];
    *out_got = true;
    memmove(&v->pending[0], &v->pending[1], left * sizeof v->pending[0]);
    sh_store_release(&v->pending_count, left);
    v->get_mode = left > 0 ? SH_GET_PENDING : 0;
    return SHOAL_OK;
}

/* Inside: tries once to get a message. */
static shoal_err try_get(sh_ctx *c, shoal_block *q, sh_want wanted, size_t capacity, sh_taken *out, size_t *out_size,
                         bool *out_empty)
{
    *out_empty = false;
    if (__builtin_expect(sh_load_relaxed(&sh_queue_view_of(q)->pending_count) != 0, 0)) {
        bool got = false;
        shoal_err err = try_pending(c, q, wanted, capacity, out, out_size, &got);
        if (err != SHOAL_OK || got) {
            return err;
        }
    }
    for (;;) {
        const sh_ring *ring;
        sh_peek peek;
        bool closed = sh_queue_is_closed(q); /* before looking at the ring: all puts before the close are then seen */
        sh_ring_result r = sh_queue_peek(q, &ring, &peek);
        if (r == SH_RING_BROKEN) {
            return shoal_last_error();
        }
        if (r == SH_RING_EMPTY && !closed) {
            *out_empty = true;
            return SHOAL_OK;
        }
        if (r == SH_RING_EMPTY) { /* a put may have checked before the close: it either comes in time, or fails */
            sh_ring_seal(ring);
            continue;
        }
        bool again = false;
        shoal_err err = check_wanted(&peek, wanted, capacity, out_size);
        if (err == SHOAL_OK) {
            err = take(c, q, ring, &peek, out, &again);
        } else {
            again = !sh_ring_is_oldest(ring, &peek); /* another process may have taken and rewritten what was checked */
        }
        if (!again) {
            return err;
        }
    }
}

shoal_err sh_queue_get_word(shoal_block *q, sh_want wanted, size_t capacity, int64_t timeout, sh_taken *out,
                            size_t *out_size)
{
    sh_wait wait;
    bool empty = false, waiting = false;
    for (;;) {
        sh_ctx *c = sh_enter_held();
        if (c == NULL) {
            return shoal_last_error();
        }
        shoal_err err = sh_queue_prepare(q, "shoal_queue_get");
        if (err == SHOAL_OK && sh_queue_is_acknowledged(q)) {
            err = sh_fail(SHOAL_EINVAL, "get: this is an acknowledged queue: use shoal_queue_get_delivery");
        }
        if (err == SHOAL_OK) {
            err = try_get(c, q, wanted, capacity, out, out_size, &empty);
        }
        if (err == SHOAL_OK && !empty) {
            sh_queue_wake_putter(q, out->kind, out->block);
        } else if (err == SHOAL_OK && sh_queue_view_of(q)->taken_bytes > 0) {
            sh_queue_add_taken(q, true);
        }
        sh_leave();
        if (err != SHOAL_OK) {
            if (waiting) {
                sh_gate_wake(&sh_queue_shm_of(q)->not_empty, 1); /* woken for a message that this call leaves there */
            }
            return err;
        }
        if (!empty) {
            sh_watch_got(sh_queue_view_of(q));
            return SHOAL_OK;
        }
        sh_watch_got(sh_queue_view_of(q));
        if (!waiting) {
            waiting = true;
            sh_wait_init(&wait, timeout, SH_SLICE_LONG, &sh_queue_shm_of(q)->not_empty);
        }
        if (timeout <= SHOAL_NOW || !sh_queue_wait(q, &wait, sh_queue_is_ready, &sh_queue_shm_of(q)->not_empty)) {
            return sh_fail_waiting(timeout, "the queue stayed empty");
        }
    }
}
