#include "ipc/queue.h"

#include "ipc/message_write.h"
#include "ipc/value.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define BOUND_MAX (UINT64_C(1) << 30)
#define RINGS_MAX (SH_RING_ORDER_MAX + 1)
#define ORDER_UNBOUNDED 6u /* the first ring: 64 messages, 1 KiB */

/* What this process knows of the rings, in block->extra. rings[i] is written once, inside, before count says so; so it can be read
 * anywhere. */
typedef struct queue_view {
    sh_a32 count;
    sh_a32 put, get; /* the rings where we put and get: hints, forward only */
    sh_ring rings[RINGS_MAX];
} queue_view;

static inline sh_queue_shm *shm_of(const shoal_block *q)
{
    return (sh_queue_shm *)q->data;
}

static inline queue_view *view_of(const shoal_block *q)
{
    return q->extra;
}

/* ---- rings ---- */

/* Inside: opens ring number n, which is the last one known or the one after it. */
static shoal_err open_ring(shoal_block *q, uint32_t n)
{
    queue_view *v = view_of(q);
    uint32_t count = sh_load_relaxed(&v->count);
    if (n < count) {
        return SHOAL_OK;
    }
    sh_ref ref = sh_load_acquire(n == 0 ? &shm_of(q)->rings : &v->rings[n - 1].shm->next);
    if (n >= RINGS_MAX || n != count || sh_ref_weight(ref) == 0 || !sh_ring_open(sh_ref_id(ref), &v->rings[n])) {
        return sh_fail(SHOAL_ECORRUPT, "queue %llu: ring %u is damaged", (unsigned long long)q->id, n);
    }
    sh_store_release(&v->count, n + 1);
    return SHOAL_OK;
}

/* Inside: the view, made at the first use of a queue that was received; it starts at the rings in use. */
static shoal_err prepare(shoal_block *q, const char *what)
{
    if (__builtin_expect(q != NULL && q->extra != NULL && q->kind == SH_KIND_QUEUE, 1)) {
        return SHOAL_OK;
    }
    shoal_err err = sh_block_require(q, SH_KIND_QUEUE, what);
    if (err != SHOAL_OK) {
        return err;
    }
    if (q->size < sizeof(sh_queue_shm)) {
        return sh_fail(SHOAL_ECORRUPT, "queue %llu is damaged", (unsigned long long)q->id);
    }
    q->extra = calloc(1, sizeof(queue_view));
    if (q->extra == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a queue");
    }
    err = open_ring(q, 0);
    if (err != SHOAL_OK) {
        free(q->extra);
        q->extra = NULL;
    }
    return err;
}

/* Inside: goes on to ring n + 1 for puts or gets. */
static shoal_err next_ring(shoal_block *q, sh_a32 *mine, uint32_t n)
{
    shoal_err err = open_ring(q, n + 1);
    if (err == SHOAL_OK) {
        sh_store_release(mine, n + 1);
    }
    return err;
}

/* Inside: a ring of twice the size behind the full one, which is then closed. */
static shoal_err grow(sh_ctx *c, shoal_block *q, const sh_ring *ring)
{
    if (sh_load_acquire(&ring->shm->next) == 0) {
        shoal_block *b;
        uint64_t bytes = sh_ring_bytes(ring->order + 1);
        if (ring->order + 1 > SH_RING_ORDER_MAX) {
            return sh_fail(SHOAL_ELIMIT, "queue %llu holds 2^%d messages", (unsigned long long)q->id, SH_RING_ORDER_MAX);
        }
        shoal_err err = sh_block_new(c, sh_class_of(bytes), bytes, &b);
        if (err != SHOAL_OK) {
            return err;
        }
        sh_block_become(b, SH_KIND_RING);
        sh_store_release(&((sh_ring_shm *)b->data)->order, ring->order + 1);
        sh_ref ref = sh_load_relaxed((sh_a64 *)sh_at(b->cell));
        uint64_t nothing = 0;
        sh_op_begin(c, SH_OP_LINK, sh_offset_of(&ring->shm->next), 0, 0, ref, b->cell, 0, 0);
        SH_DEATH("queue.grow.begun");
        bool linked = sh_cas_seq_cst(&ring->shm->next, &nothing, ref); /* pairs with the acquire in open_ring */
        SH_DEATH("queue.grow.linked"); /* death: next holds our very reference, so recovery empties the cell */
        if (linked) {
            sh_store_release((sh_a64 *)sh_at(b->cell), 0);
        }
        sh_op_end(c);
        sh_block_unref(c, b); /* releases it when another was quicker */
    }
    SH_DEATH("queue.grow.unclosed");
    sh_ring_close(ring); /* AGAIN: there is room again; the next ring waits for its time */
    return SHOAL_OK;
}

/* ---- put ---- */

/* Inside: one attempt. FULL only when the queue has a bound, and when it is closed err is SHOAL_ECLOSED. */
static shoal_err put_word(sh_ctx *c, shoal_block *q, sh_entry_kind kind, uint64_t word, uint64_t cell, uint64_t value, bool *out_full)
{
    queue_view *v = view_of(q);
    sh_queue_shm *shm = shm_of(q);
    uint64_t bound = sh_load_relaxed(&shm->bound);
    *out_full = false;
    for (;;) {
        uint32_t n = sh_load_relaxed(&v->put);
        const sh_ring *ring = &v->rings[n];
        shoal_err err = SHOAL_OK;
        if (__builtin_expect((sh_load_acquire(&shm->flags) & SH_QUEUE_CLOSED) != 0, 0)) {
            return sh_fail(SHOAL_ECLOSED, "the queue is closed");
        }
        switch (sh_ring_put(c, ring, kind, word, cell, value, bound, q->id)) {
        case SH_RING_DONE:
            return SHOAL_OK;
        case SH_RING_FULL:
            if (bound != 0) {
                *out_full = true;
                return SHOAL_OK;
            }
            err = grow(c, q, ring);
            break;
        case SH_RING_NEXT:
            err = next_ring(q, &v->put, n);
            break;
        default:
            break;
        }
        if (err != SHOAL_OK) {
            return err;
        }
    }
}

static bool has_room(shoal_block *q)
{
    const sh_ring *ring = &view_of(q)->rings[sh_load_acquire(&view_of(q)->put)];
    uint64_t bound = sh_load_relaxed(&shm_of(q)->bound);
    return bound == 0 || sh_ring_puts(ring) - sh_ring_takes(ring) < bound ||
           (sh_load_acquire(&shm_of(q)->flags) & SH_QUEUE_CLOSED) != 0;
}

static bool is_ready(shoal_block *q)
{
    sh_peek peek;
    const sh_ring *ring = &view_of(q)->rings[sh_load_acquire(&view_of(q)->get)];
    sh_ring_result r = sh_ring_peek(ring, &peek);
    return r != SH_RING_EMPTY || (sh_load_acquire(&shm_of(q)->flags) & SH_QUEUE_CLOSED) != 0;
}

/* Waits until the predicate may have become true. False when the time is over. */
static bool wait_for(shoal_block *q, sh_wait *wait, bool (*predicate)(shoal_block *), sh_gate *gate)
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
    sh_slot_shm *slot = sh_the_world.self.slot;
    sh_store_release(&slot->waiting, q->id + 1);
    bool in_time = sh_wait_park(wait, gate, prepared);
    sh_store_release(&slot->waiting, 0);
    return in_time || predicate(q);
}

/* Puts a word, waiting for room. cell and value are worked out anew each time: prepare_cell may be NULL. */
typedef struct put_request {
    sh_entry_kind kind;
    uint64_t word;
    shoal_block *moved;  /* its whole reference goes along: a message */
    shoal_block *shared; /* a part of its weight goes along: a block */
} put_request;

static shoal_err put_once(sh_ctx *c, shoal_block *q, const put_request *r, bool *out_full)
{
    uint64_t word = r->word, cell = 0, value = 0;
    if (r->moved != NULL) {
        cell = r->moved->cell;
        word = sh_load_relaxed((sh_a64 *)sh_at(cell));
    } else if (r->shared != NULL) {
        uint64_t weight;
        cell = r->shared->cell;
        shoal_err err = sh_heap_share(c, cell, &weight);
        if (err != SHOAL_OK) {
            return err;
        }
        sh_ref ref = sh_load_relaxed((sh_a64 *)sh_at(cell));
        word = sh_ref_make(r->shared->id, weight);
        value = sh_ref_make(r->shared->id, sh_ref_weight(ref) - weight);
    }
    return put_word(c, q, r->kind, word, cell, value, out_full);
}

static shoal_err put(shoal_block *q, const put_request *r, int64_t timeout)
{
    sh_wait wait;
    bool full = false, waiting = false;
    for (;;) {
        sh_ctx *c = sh_enter();
        if (c == NULL) {
            return shoal_last_error();
        }
        shoal_err err = prepare(q, "put");
        if (err == SHOAL_OK) {
            err = put_once(c, q, r, &full);
        }
        sh_leave();
        if (err != SHOAL_OK) {
            return err;
        }
        if (!full) {
            sh_gate_wake(&shm_of(q)->not_empty, 1); /* the swap in the ring was a full barrier */
            return SHOAL_OK;
        }
        if (!waiting) {
            waiting = true;
            sh_wait_init(&wait, timeout, SH_SLICE_LONG);
        }
        if (timeout == SHOAL_NOW || !wait_for(q, &wait, has_room, &shm_of(q)->not_full)) {
            return sh_fail(SHOAL_ETIMEDOUT, "the queue stayed full");
        }
    }
}

/* ---- get ---- */

typedef enum want { WANT_ANY, WANT_BYTES, WANT_BLOCK } want;

typedef struct taken {
    sh_entry_kind kind;
    uint64_t word;
    shoal_block *block; /* for BLOCK and MESSAGE: one reference is the caller's */
} taken;

/* Is the message what the caller asked for, and does it fit? Size of raw bytes in out_size. */
static shoal_err check_wanted(const sh_peek *peek, want wanted, size_t capacity, size_t *out_size)
{
    if (wanted == WANT_BLOCK && peek->kind != SH_ENTRY_BLOCK) {
        return sh_fail(SHOAL_ETYPE, "the oldest message is not a block");
    }
    if (wanted != WANT_BYTES) {
        return SHOAL_OK;
    }
    size_t size = peek->kind - SH_ENTRY_BYTES_0;
    if (peek->kind == SH_ENTRY_MESSAGE) {
        /* Not ours yet: if another takes it now we read what is nonsense, and our swap fails. */
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
        return sh_fail(SHOAL_EINVAL, "the oldest message has %zu bytes, the buffer %zu", size, capacity);
    }
    return SHOAL_OK;
}

/* Inside: takes what was looked at. A reference that names nothing is taken too, so that it does not stop the queue. */
static shoal_err take(sh_ctx *c, shoal_block *q, const sh_ring *ring, const sh_peek *peek, taken *out, bool *out_again)
{
    shoal_block *b = NULL;
    uint64_t cell = 0, value = 0;
    shoal_err err = SHOAL_OK;
    if (peek->kind == SH_ENTRY_BLOCK || peek->kind == SH_ENTRY_MESSAGE) {
        err = sh_block_expect(c, peek->word, &b, &value);
        if (err != SHOAL_OK && err != SHOAL_ECORRUPT) {
            return err;
        }
        cell = b != NULL ? b->cell : 0;
    }
    if (sh_ring_take(c, ring, peek, cell, value, q->id) == SH_RING_AGAIN) {
        if (b != NULL) {
            sh_block_unexpect(b);
        }
        *out_again = true;
        return SHOAL_OK;
    }
    if (b != NULL) {
        sh_block_arrived(b);
    }
    *out = (taken){.kind = peek->kind, .word = peek->word, .block = b};
    return err;
}

/* Inside: one attempt. */
static shoal_err try_get(sh_ctx *c, shoal_block *q, want wanted, size_t capacity, taken *out, size_t *out_size, bool *out_empty)
{
    queue_view *v = view_of(q);
    *out_empty = false;
    for (;;) {
        uint32_t n = sh_load_relaxed(&v->get);
        const sh_ring *ring = &v->rings[n];
        sh_peek peek;
        bool closed = (sh_load_acquire(&shm_of(q)->flags) & SH_QUEUE_CLOSED) != 0; /* before the look: what was put before is seen */
        sh_ring_result r = sh_ring_peek(ring, &peek);
        if (r == SH_RING_EMPTY) {
            *out_empty = !closed;
            return closed ? sh_fail(SHOAL_ECLOSED, "the queue is closed and empty") : SHOAL_OK;
        }
        if (r == SH_RING_NEXT) {
            shoal_err err = next_ring(q, &v->get, n);
            if (err != SHOAL_OK) {
                return err;
            }
            continue;
        }
        bool again = false;
        shoal_err err = check_wanted(&peek, wanted, capacity, out_size);
        if (err == SHOAL_OK) {
            err = take(c, q, ring, &peek, out, &again);
        }
        if (!again) {
            return err;
        }
    }
}

static shoal_err get(shoal_block *q, want wanted, size_t capacity, int64_t timeout, taken *out, size_t *out_size)
{
    sh_wait wait;
    bool empty = false, waiting = false;
    for (;;) {
        sh_ctx *c = sh_enter();
        if (c == NULL) {
            return shoal_last_error();
        }
        shoal_err err = prepare(q, "get");
        if (err == SHOAL_OK) {
            err = try_get(c, q, wanted, capacity, out, out_size, &empty);
        }
        sh_leave();
        if (err != SHOAL_OK) {
            return err;
        }
        if (!empty) {
            if (sh_load_relaxed(&shm_of(q)->bound) != 0) {
                sh_gate_wake(&shm_of(q)->not_full, 1); /* the swap in the ring was a full barrier */
            }
            return SHOAL_OK;
        }
        if (!waiting) {
            waiting = true;
            sh_wait_init(&wait, timeout, SH_SLICE_LONG);
        }
        if (timeout == SHOAL_NOW || !wait_for(q, &wait, is_ready, &shm_of(q)->not_empty)) {
            return sh_fail(SHOAL_ETIMEDOUT, "the queue stayed empty");
        }
    }
}

/* ---- the public face ---- */

shoal_err shoal_queue_create(uint64_t bound, shoal_queue **out_queue)
{
    if (bound > BOUND_MAX) {
        return sh_fail(SHOAL_EINVAL, "a queue for %llu messages: at most %llu", (unsigned long long)bound,
                       (unsigned long long)BOUND_MAX);
    }
    uint32_t order = bound == 0 ? ORDER_UNBOUNDED : SH_RING_ORDER_MIN;
    while (bound > UINT64_C(1) << order) {
        order++;
    }
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_block *q = NULL, *ring = NULL;
    shoal_err err = sh_block_new(c, sh_class_of(sizeof(sh_queue_shm)), sizeof(sh_queue_shm), &q);
    if (err == SHOAL_OK) {
        sh_block_become(q, SH_KIND_QUEUE);
        sh_store_relaxed(&shm_of(q)->bound, bound);
        err = sh_block_new(c, sh_class_of(sh_ring_bytes(order)), sh_ring_bytes(order), &ring);
    }
    if (err == SHOAL_OK) {
        sh_block_become(ring, SH_KIND_RING);
        sh_store_release(&((sh_ring_shm *)ring->data)->order, order);
        sh_heap_split(c, ring->cell, sh_offset_of(&shm_of(q)->rings), sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(ring->cell))));
        sh_block_unref(c, ring);
        err = prepare(q, "queue");
    }
    if (err != SHOAL_OK && q != NULL) {
        sh_block_unref(c, q);
    }
    sh_leave();
    if (err == SHOAL_OK) {
        *out_queue = (shoal_queue *)q;
    }
    return err;
}

shoal_err shoal_queue_put_bytes(shoal_queue *queue, const void *bytes, size_t size, int64_t timeout)
{
    if (size <= 8) {
        put_request r = {.kind = (sh_entry_kind)(SH_ENTRY_BYTES_0 + size)};
        if (size > 0) {
            memcpy(&r.word, bytes, size);
        }
        return put((shoal_block *)queue, &r, timeout);
    }
    shoal_block *message;
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_message_new(c, 0, size, true, &message);
    sh_leave();
    if (err != SHOAL_OK) {
        return err;
    }
    memcpy(sh_message_room(message), bytes, size);
    err = put((shoal_block *)queue, &(put_request){.kind = SH_ENTRY_MESSAGE, .moved = message}, timeout);
    shoal_release(message); /* its reference went along, or it goes now */
    return err;
}

shoal_err shoal_queue_put_block(shoal_queue *queue, shoal_block *block, int64_t timeout)
{
    if (block == NULL) {
        return sh_fail(SHOAL_EINVAL, "put_block: NULL");
    }
    return put((shoal_block *)queue, &(put_request){.kind = SH_ENTRY_BLOCK, .shared = block}, timeout);
}

/* A value that is not one word. */
static shoal_err put_message(shoal_block *q, const shoal_value *value, int64_t timeout)
{
    sh_encoding e;
    shoal_err err = sh_encoding_init(&e, value);
    if (err != SHOAL_OK) {
        return err;
    }
    shoal_block *message = NULL;
    sh_ctx *c = sh_enter();
    err = c == NULL ? shoal_last_error() : sh_message_new(c, e.object_count, e.size, false, &message);
    if (err == SHOAL_OK && e.object_count > 0) {
        err = sh_message_refer(c, message, e.objects, e.object_count);
    }
    if (c != NULL) {
        sh_leave();
    }
    if (err == SHOAL_OK) {
        memcpy(sh_message_room(message), e.bytes, e.size);
        err = put(q, &(put_request){.kind = SH_ENTRY_MESSAGE, .moved = message}, timeout);
    }
    shoal_release(message);
    sh_encoding_fini(&e);
    return err;
}

shoal_err shoal_queue_put(shoal_queue *queue, shoal_value *value, int64_t timeout)
{
    shoal_block *q = (shoal_block *)queue;
    shoal_err err;
    if (value == NULL) {
        return shoal_last_error() != SHOAL_OK ? shoal_last_error() : sh_fail(SHOAL_EINVAL, "put: NULL");
    }
    if (value->type == SHOAL_INT) {
        err = put(q, &(put_request){.kind = SH_ENTRY_INT, .word = (uint64_t)value->as.integer}, timeout);
    } else if (value->type == SHOAL_FLOAT) {
        put_request r = {.kind = SH_ENTRY_FLOAT};
        memcpy(&r.word, &value->as.number, 8);
        err = put(q, &r, timeout);
    } else if (value->type == SHOAL_OBJECT) {
        err = put(q, &(put_request){.kind = SH_ENTRY_BLOCK, .shared = value->as.object}, timeout);
    } else {
        err = put_message(q, value, timeout);
    }
    if (err == SHOAL_OK) {
        shoal_value_destroy(value);
    }
    return err;
}

static shoal_err value_of_message(shoal_block *message, shoal_value **out_value)
{
    shoal_block **objects = NULL;
    size_t count = 0;
    sh_ctx *c = sh_enter();
    shoal_err err = c == NULL ? shoal_last_error() : sh_message_objects(c, message, false, &objects, &count);
    if (c != NULL) {
        sh_leave();
    }
    if (err == SHOAL_OK) {
        err = sh_message_decode(message, objects, count, out_value);
        for (size_t i = 0; i < count; i++) {
            shoal_release(objects[i]);
        }
        free(objects);
    }
    shoal_release(message);
    return err;
}

shoal_err shoal_queue_get(shoal_queue *queue, int64_t timeout, shoal_value **out_value)
{
    taken t;
    size_t unused;
    double number;
    shoal_err err = get((shoal_block *)queue, WANT_ANY, 0, timeout, &t, &unused);
    if (err != SHOAL_OK) {
        return err;
    }
    shoal_value *v;
    switch (t.kind) {
    case SH_ENTRY_MESSAGE:
        return value_of_message(t.block, out_value);
    case SH_ENTRY_INT:
        v = shoal_value_int((int64_t)t.word);
        break;
    case SH_ENTRY_FLOAT:
        memcpy(&number, &t.word, 8);
        v = shoal_value_float(number);
        break;
    case SH_ENTRY_BLOCK:
        v = shoal_value_object(t.block);
        shoal_release(t.block);
        break;
    default:
        v = shoal_value_bytes(&t.word, t.kind - SH_ENTRY_BYTES_0);
        break;
    }
    if (v == NULL) {
        return shoal_last_error();
    }
    *out_value = v;
    return SHOAL_OK;
}

shoal_err shoal_queue_get_bytes(shoal_queue *queue, void *buffer, size_t capacity, int64_t timeout, size_t *out_size)
{
    taken t;
    shoal_err err = get((shoal_block *)queue, WANT_BYTES, capacity, timeout, &t, out_size);
    if (err != SHOAL_OK) {
        return err;
    }
    if (t.block == NULL) {
        *out_size = t.kind - SH_ENTRY_BYTES_0;
        if (*out_size > 0) {
            memcpy(buffer, &t.word, *out_size);
        }
        return SHOAL_OK;
    }
    size_t size;
    const void *bytes = sh_message_bytes(t.block, &size);
    if (bytes == NULL || size > capacity) {
        err = sh_fail(SHOAL_ECORRUPT, "message %llu changed while it was taken", (unsigned long long)t.block->id);
    } else {
        memcpy(buffer, bytes, size);
        *out_size = size;
    }
    shoal_release(t.block);
    return err;
}

shoal_err shoal_queue_get_block(shoal_queue *queue, int64_t timeout, shoal_block **out_block)
{
    taken t;
    size_t unused;
    shoal_err err = get((shoal_block *)queue, WANT_BLOCK, 0, timeout, &t, &unused);
    if (err == SHOAL_OK) {
        *out_block = t.block;
    }
    return err;
}

/* ---- the rest: counting, closing, joining ---- */

/* Opens all rings there are, then adds up. */
static uint64_t count_all(shoal_block *q, uint64_t (*count)(const sh_ring *))
{
    uint64_t sum = 0;
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return 0;
    }
    if (prepare(q, "queue") == SHOAL_OK) {
        queue_view *v = view_of(q);
        for (uint32_t n = 0; n < sh_load_relaxed(&v->count); n++) {
            sum += count(&v->rings[n]);
            if (n + 1 == sh_load_relaxed(&v->count) && sh_load_acquire(&v->rings[n].shm->next) != 0) {
                (void)(open_ring(q, n + 1) == SHOAL_OK);
            }
        }
    }
    sh_leave();
    return sum;
}

uint64_t sh_queue_puts(shoal_queue *queue)
{
    return count_all((shoal_block *)queue, sh_ring_puts);
}

uint64_t sh_queue_takes(shoal_queue *queue)
{
    return count_all((shoal_block *)queue, sh_ring_takes);
}

uint64_t shoal_queue_size(shoal_queue *queue)
{
    uint64_t takes = sh_queue_takes(queue), puts = sh_queue_puts(queue); /* in this order: never negative */
    return puts - takes;
}

void shoal_queue_close(shoal_queue *queue)
{
    sh_queue_shm *shm = shm_of((shoal_block *)queue);
    sh_or_seq_cst(&shm->flags, SH_QUEUE_CLOSED);
    sh_gate_wake(&shm->not_empty, INT_MAX);
    sh_gate_wake(&shm->not_full, INT_MAX);
    sh_gate_wake(&shm->all_done, INT_MAX);
}

shoal_err shoal_queue_task_done(shoal_queue *queue)
{
    sh_queue_shm *shm = shm_of((shoal_block *)queue);
    uint64_t done = sh_load_acquire(&shm->done);
    uint64_t puts;
    do {
        puts = sh_queue_puts(queue);
        if (done >= puts) {
            return sh_fail(SHOAL_ESTATE, "task_done was called more often than messages were put: %llu",
                           (unsigned long long)puts);
        }
    } while (!sh_cas_seq_cst(&shm->done, &done, done + 1));
    if (done + 1 == puts) {
        sh_gate_wake(&shm->all_done, INT_MAX);
    }
    return SHOAL_OK;
}

static bool all_done(shoal_block *q)
{
    return sh_load_seq_cst(&shm_of(q)->done) >= sh_queue_puts((shoal_queue *)q);
}

shoal_err shoal_queue_join(shoal_queue *queue, int64_t timeout)
{
    shoal_block *q = (shoal_block *)queue;
    sh_wait wait;
    sh_wait_init(&wait, timeout, SH_SLICE_LONG);
    while (!all_done(q)) {
        if (timeout == SHOAL_NOW || !wait_for(q, &wait, all_done, &shm_of(q)->all_done)) {
            return sh_fail(SHOAL_ETIMEDOUT, "%llu of %llu messages are done", (unsigned long long)sh_load_relaxed(&shm_of(q)->done),
                           (unsigned long long)sh_queue_puts(queue));
        }
    }
    return SHOAL_OK;
}

bool sh_queue_ready(shoal_queue *queue)
{
    shoal_block *q = (shoal_block *)queue;
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return true; /* a get would return at once, with the error */
    }
    bool ready = prepare(q, "wait") != SHOAL_OK || is_ready(q);
    sh_leave();
    return ready;
}

sh_gate *sh_queue_gate(shoal_queue *queue)
{
    return &shm_of((shoal_block *)queue)->not_empty;
}

/* Inside: the id of the oldest message, if it is a block. */
static bool oldest_block(shoal_block *q, uint64_t *out_id)
{
    while (prepare(q, "peek") == SHOAL_OK) {
        uint32_t n = sh_load_relaxed(&view_of(q)->get);
        sh_peek peek;
        sh_ring_result r = sh_ring_peek(&view_of(q)->rings[n], &peek);
        if (r == SH_RING_NEXT && next_ring(q, &view_of(q)->get, n) == SHOAL_OK) {
            continue;
        }
        *out_id = sh_ref_id(peek.word);
        return r == SH_RING_DONE && peek.kind == SH_ENTRY_BLOCK;
    }
    return false;
}

bool sh_queue_peek_block(shoal_queue *queue, sh_found *out_found)
{
    uint64_t id;
    bool found = sh_enter() != NULL;
    if (found) {
        found = oldest_block((shoal_block *)queue, &id) && sh_heap_find(id, out_found);
        sh_leave();
    }
    return found;
}

shoal_err sh_queue_open_oldest(shoal_queue *queue, shoal_block **out_block)
{
    uint64_t id;
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = oldest_block((shoal_block *)queue, &id) ? sh_block_open(c, id, out_block)
                                                            : sh_fail(SHOAL_ENOENT, "the queue holds no block");
    sh_leave();
    return err;
}
