/* Queues: the public calls to create, put, get, count, close and join. */
#include "ipc/queue.h"

#include "base/error.h"

#include "ipc/delivery.h"
#include "ipc/message_write.h"
#include "ipc/queue_core.h"
#include "ipc/queue_fast.h"
#include "ipc/value.h"
#include "ipc/value_codec.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define BOUND_MAX (UINT64_C(1) << 30)
#define BYTES_MAX (UINT64_C(1) << 60)
#define ORDER_UNBOUNDED 6u /* the first ring: 64 messages, 1 KiB */

/* Inside: adds what an acknowledged queue needs in addition to a ring. */
static shoal_err acknowledge(sh_ctx *c, shoal_block *q, const shoal_queue_options *options)
{
    sh_queue_shm *shm = sh_queue_shm_of(q);
    sh_store_relaxed(&shm->lease, (uint64_t)options->lease);
    sh_store_relaxed(&shm->most, options->deliveries);
    sh_or_seq_cst(&shm->flags, SH_QUEUE_ACKNOWLEDGED);
    SH_TRY(sh_deliveries_create(c, q));
    if (options->rejects != NULL) {
        SH_TRY(sh_block_require((shoal_block *)options->rejects, SH_KIND_QUEUE, "rejects"));
        SH_TRY(sh_block_give(c, (shoal_block *)options->rejects, sh_offset_of(&shm->rejects)));
    }
    return SHOAL_OK;
}

static shoal_err check_options(const shoal_queue_options *o)
{
    if (o->bound > BOUND_MAX) {
        return sh_fail(SHOAL_EINVAL, "a queue for %llu messages: the limit is %llu", (unsigned long long)o->bound,
                       (unsigned long long)BOUND_MAX);
    }
    if (o->bytes > BYTES_MAX || (o->bytes != 0 && o->acknowledge)) {
        return sh_fail(SHOAL_EINVAL, o->acknowledge ? "an acknowledged queue has no bound in bytes"
                                                    : "the bound of a queue is more than 2^60 bytes");
    }
    if (o->lease < 0 || (!o->acknowledge && (o->lease != 0 || o->deliveries != 0 || o->rejects != NULL))) {
        return sh_fail(SHOAL_EINVAL, o->lease < 0 ? "the lease of a queue is negative"
                                                  : "lease, deliveries and rejects are for acknowledged queues");
    }
    return SHOAL_OK;
}

shoal_err shoal_queue_create_with(const shoal_queue_options *options, shoal_queue **out_queue)
{
    SH_NEED(out_queue);
    const shoal_queue_options o = options != NULL ? *options : (shoal_queue_options){.bound = 0};
    SH_TRY(check_options(&o));
    uint32_t order = o.bound == 0 ? ORDER_UNBOUNDED : SH_RING_ORDER_MIN;
    while (o.bound > UINT64_C(1) << order) {
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
        sh_store_relaxed(&sh_queue_shm_of(q)->bound, o.bound);
        sh_store_relaxed(&sh_queue_shm_of(q)->most_bytes, o.bytes);
        err = sh_block_new(c, sh_class_of(sh_ring_bytes(order)), sh_ring_bytes(order), &ring);
    }
    if (err == SHOAL_OK) {
        sh_block_become(ring, SH_KIND_RING);
        sh_store_release(&((sh_ring_shm *)ring->data)->order, order);
        sh_heap_split(c, ring->cell, sh_offset_of(&sh_queue_shm_of(q)->rings),
                      sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(ring->cell))));
        sh_block_unref(c, ring);
        err = o.acknowledge ? acknowledge(c, q, &o) : SHOAL_OK;
    }
    if (err == SHOAL_OK) {
        err = sh_queue_prepare(q, "queue");
    }
    if (err != SHOAL_OK && q != NULL) {
        sh_block_unref(c, q);
    }
    sh_leave();
    SH_TRY(err);
    *out_queue = (shoal_queue *)q;
    return SHOAL_OK;
}

shoal_err shoal_queue_create(uint64_t bound, shoal_queue **out_queue)
{
    SH_NEED(out_queue);
    return shoal_queue_create_with(&(shoal_queue_options){.bound = bound}, out_queue);
}

/* Puts bytes as a separate message block. */
static shoal_err put_raw(shoal_block *q, const void *bytes, size_t size, int64_t timeout)
{
    shoal_block *message;
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_message_new(c, 0, size, true, &message);
    sh_leave();
    if (err != SHOAL_OK) {
        return err;
    }
    if (size > 0) {
        memcpy(sh_message_room(message, 0), bytes, size);
    }
    err = sh_queue_put_word(q, &(sh_put){.kind = SH_ENTRY_MESSAGE, .given = message}, timeout);
    if (err != SHOAL_OK) {
        sh_block_release(message);
    }
    return err;
}

/* Puts a value as a separate message block. */
static shoal_err put_message(shoal_block *q, const shoal_value *value, int64_t timeout)
{
    sh_encoding e;
    SH_TRY(sh_encoding_init(&e, value));
    shoal_block *message = NULL;
    sh_ctx *c = sh_enter_held();
    shoal_err err = c == NULL ? shoal_last_error() : sh_message_new(c, e.object_count, e.size, false, &message);
    if (err == SHOAL_OK && e.object_count > 0) {
        sh_message_bring(message, e.objects, e.object_count);
        err = sh_message_refer(c, message, e.objects, e.object_count);
    }
    if (c != NULL) {
        sh_leave();
    }
    if (err == SHOAL_OK) {
        memcpy(sh_message_room(message, e.object_count), e.bytes, e.size);
        err = sh_queue_put_word(q, &(sh_put){.kind = SH_ENTRY_MESSAGE, .given = message}, timeout);
    }
    if (err != SHOAL_OK) {
        sh_block_release(message);
    }
    sh_encoding_fini(&e);
    return err;
}

/* Puts a word without a reference, after the fast path failed. An acknowledged queue holds references only. */
static __attribute__((noinline)) shoal_err put_plain_slow(shoal_block *q, sh_entry_kind kind, uint64_t word,
                                                          int64_t timeout)
{
    if (!sh_queue_is_acknowledged(q)) {
        return sh_queue_put_word(q, &(sh_put){.kind = kind, .word = word}, timeout);
    }
    if (kind <= SH_ENTRY_BYTES_8) {
        return put_raw(q, &word, kind - SH_ENTRY_BYTES_0, timeout);
    }
    shoal_value v = {.type = kind == SH_ENTRY_INT ? SHOAL_TYPE_INT : SHOAL_TYPE_FLOAT};
    memcpy(&v.as, &word, 8);
    return put_message(q, &v, timeout);
}

static shoal_err put_plain(shoal_block *q, sh_entry_kind kind, uint64_t word, int64_t timeout)
{
    return sh_queue_put_word_fast(q, kind, word) ? SHOAL_OK : put_plain_slow(q, kind, word, timeout);
}

shoal_err shoal_queue_put_bytes(shoal_queue *queue, const void *bytes, size_t size, int64_t timeout)
{
    SH_NEED(queue);
    if (bytes == NULL && size > 0) {
        return sh_null_error("shoal_queue_put_bytes", "bytes");
    }
    if (size <= 8) {
        uint64_t word = 0;
        if (size == 8) {
            memcpy(&word, bytes, 8); /* a constant size: one instruction */
        } else if (size > 0) {
            memcpy(&word, bytes, size);
        }
        return put_plain((shoal_block *)queue, (sh_entry_kind)(SH_ENTRY_BYTES_0 + size), word, timeout);
    }
    return put_raw((shoal_block *)queue, bytes, size, timeout);
}

shoal_err shoal_queue_put_block(shoal_queue *queue, shoal_block *block, int64_t timeout)
{
    SH_NEED(queue);
    if (block == NULL || sh_block_is_lost(block)) {
        return sh_block_require(block, SH_KIND_DATA, "shoal_queue_put_block");
    }
    if (sh_queue_put_block_fast((shoal_block *)queue, block)) {
        return SHOAL_OK;
    }
    return sh_queue_put_word((shoal_block *)queue, &(sh_put){.kind = SH_ENTRY_BLOCK, .shared = block}, timeout);
}

shoal_err shoal_queue_give_block(shoal_queue *queue, shoal_block *block, int64_t timeout)
{
    SH_NEED(queue);
    if (block == NULL || sh_block_is_lost(block)) {
        return sh_block_require(block, SH_KIND_DATA, "shoal_queue_give_block");
    }
    if (sh_block_can_move(block) && sh_queue_give_block_fast((shoal_block *)queue, block)) {
        sh_block_release(block); /* fast path: this thread is the only one */
        return SHOAL_OK;
    }
    return sh_queue_put_word((shoal_block *)queue, &(sh_put){.kind = SH_ENTRY_BLOCK, .given = block}, timeout);
}

static shoal_err put_object(shoal_block *q, const shoal_value *value, int64_t timeout)
{
    shoal_block *object = value->as.object;
    if (sh_block_is_lost(object)) { /* this process has left the object's world since */
        return sh_block_require(object, SH_KIND_COUNT, "shoal_queue_put");
    }
    SH_TRY(sh_value_before_put(value));
    return sh_queue_put_block_fast(q, object)
               ? SHOAL_OK
               : sh_queue_put_word(q, &(sh_put){.kind = SH_ENTRY_BLOCK, .shared = object}, timeout);
}

shoal_err shoal_queue_put(shoal_queue *queue, shoal_value *value, int64_t timeout)
{
    shoal_block *q = (shoal_block *)queue;
    shoal_err err;
    if (value == NULL) {
        return sh_null_error("shoal_queue_put", "the value");
    }
    if (value->owner == SH_OWNER_CONTAINER) {
        return sh_value_check_free(value);
    }
    if (value->type == SHOAL_TYPE_INT) {
        err = put_plain(q, SH_ENTRY_INT, (uint64_t)value->as.integer, timeout);
    } else if (value->type == SHOAL_TYPE_FLOAT) {
        uint64_t word;
        memcpy(&word, &value->as.number, 8);
        err = put_plain(q, SH_ENTRY_FLOAT, word, timeout);
    } else if (value->type == SHOAL_TYPE_OBJECT) {
        err = put_object(q, value, timeout);
    } else {
        err = put_message(q, value, timeout);
    }
    sh_value_consume(value);
    return err;
}

/* Makes this process a party of a barrier that it had only inherited. Changes nothing if there is no memory. */
static void own_given(shoal_block *block)
{
    sh_ctx *c = block->inherited ? sh_enter_held() : NULL;
    if (c != NULL) {
        (void)(sh_block_own_given(c, block) == SHOAL_OK);
        sh_leave();
    }
}

/* Makes a value of a word without a reference. */
static inline shoal_value *value_of_word(sh_entry_kind kind, uint64_t word)
{
    double number;
    switch (kind) {
    case SH_ENTRY_INT: return shoal_value_int((int64_t)word);
    case SH_ENTRY_FLOAT: memcpy(&number, &word, 8); return shoal_value_float(number);
    default: return shoal_value_bytes(&word, kind - SH_ENTRY_BYTES_0);
    }
}

/* Makes a value of a message that was taken; packed: a packed one, if it can be. Takes the reference if it succeeds. */
static shoal_err value_of(const sh_taken *t, bool packed, shoal_value **out_value)
{
    shoal_value *v = NULL;
    switch (t->kind) {
    case SH_ENTRY_MESSAGE:
        SH_TRY(packed ? sh_message_read_packed(t->block, &v) : SHOAL_OK);
        SH_TRY(v == NULL ? sh_message_value(t->block, true, &v) : SHOAL_OK);
        sh_block_release(t->block);
        break;
    case SH_ENTRY_BLOCK:
        own_given(t->block);
        v = sh_value_take_object(t->block);
        break;
    default:
        if (t->kind > SH_ENTRY_MESSAGE) {
            return sh_fail(SHOAL_ECORRUPT, "the message has the unknown kind %d", (int)t->kind);
        }
        v = value_of_word(t->kind, t->word);
        break;
    }
    if (v == NULL) {
        return shoal_last_error();
    }
    *out_value = v;
    return SHOAL_OK;
}

static inline __attribute__((always_inline)) shoal_err get_value(shoal_queue *queue, int64_t timeout, bool packed,
                                                                 shoal_value **out_value)
{
    sh_taken t;
    size_t unused;
    if (!sh_queue_get_fast((shoal_block *)queue, timeout, &t)) {
        SH_TRY(sh_queue_get_word((shoal_block *)queue, SH_WANT_ANY, 0, timeout, &t, &unused));
    }
    shoal_err err;
    if (t.kind <= SH_ENTRY_FLOAT) {
        shoal_value *v = value_of_word(t.kind, t.word); /* here, without a call in between: most messages are short */
        if (__builtin_expect(v != NULL, 1)) {
            *out_value = v;
            return SHOAL_OK;
        }
        err = shoal_last_error();
    } else {
        err = value_of(&t, packed, out_value);
    }
    if (__builtin_expect(err == SHOAL_ENOMEM, 0)) {
        sh_queue_keep_taken((shoal_block *)queue, &t);
    } else if (__builtin_expect(err != SHOAL_OK && t.block != NULL, 0)) {
        sh_block_release(t.block);
    }
    return err;
}

shoal_err shoal_queue_get(shoal_queue *queue, int64_t timeout, shoal_value **out_value)
{
    if (out_value == NULL) {
        return sh_null_error("shoal_queue_get", "out_value");
    }
    return get_value(queue, timeout, false, out_value);
}

shoal_err shoal_queue_get_packed(shoal_queue *queue, int64_t timeout, shoal_value **out_value)
{
    SH_NEED(queue);
    SH_NEED(out_value);
    return get_value(queue, timeout, true, out_value);
}

static void copy_word(void *buffer, uint64_t word, sh_entry_kind kind, size_t *out_size)
{
    *out_size = kind - SH_ENTRY_BYTES_0;
    if (kind == SH_ENTRY_BYTES_8) {
        memcpy(buffer, &word, 8); /* a constant size: one instruction */
    } else if (*out_size > 0) {
        memcpy(buffer, &word, *out_size);
    }
}

/* Gets bytes that the fast path could not: a separate message block, or one that this thread has to wait for. */
static __attribute__((noinline)) shoal_err get_bytes_slow(shoal_block *q, void *buffer, size_t capacity,
                                                          int64_t timeout, size_t *out_size)
{
    sh_taken t;
    SH_TRY(sh_queue_get_word(q, SH_WANT_BYTES, capacity, timeout, &t, out_size));
    if (t.block == NULL) {
        copy_word(buffer, t.word, t.kind, out_size);
        return SHOAL_OK;
    }
    size_t size;
    const void *bytes = sh_message_bytes(t.block, &size);
    shoal_err err = SHOAL_OK;
    if (bytes == NULL || size > capacity) {
        err = sh_fail(SHOAL_ECORRUPT, "message %llu changed while it was received", (unsigned long long)t.block->id);
    } else {
        memcpy(buffer, bytes, size);
        *out_size = size;
    }
    sh_block_release(t.block);
    return err;
}

shoal_err shoal_queue_get_bytes(shoal_queue *queue, void *buffer, size_t capacity, int64_t timeout, size_t *out_size)
{
    SH_NEED(queue);
    if (capacity > 0 && !buffer) {
        return sh_null_error(__func__, "buffer");
    }
    if (out_size == NULL) {
        return sh_null_error("shoal_queue_get_bytes", "out_size");
    }
    sh_entry_kind kind, most = (sh_entry_kind)(SH_ENTRY_BYTES_0 + (capacity < 8 ? capacity : 8));
    uint64_t word;
    if (!sh_queue_get_word_fast((shoal_block *)queue, most, timeout, &kind, &word)) {
        return get_bytes_slow((shoal_block *)queue, buffer, capacity, timeout, out_size);
    }
    copy_word(buffer, word, kind, out_size);
    return SHOAL_OK;
}

shoal_err shoal_queue_get_block(shoal_queue *queue, int64_t timeout, shoal_block **out_block)
{
    SH_NEED(queue);
    if (out_block == NULL) {
        return sh_null_error("shoal_queue_get_block", "out_block");
    }
    sh_taken t;
    size_t unused;
    if (sh_queue_get_block_fast((shoal_block *)queue, SH_KIND_DATA, timeout, out_block)) {
        return SHOAL_OK;
    }
    SH_TRY(sh_queue_get_word((shoal_block *)queue, SHOAL_KIND_BLOCK, 0, timeout, &t, &unused));
    *out_block = t.block;
    return SHOAL_OK;
}

/* ---- the rest: counting, closing, joining ---- */

/* Opens all rings of the queue and adds up their counts. */
static uint64_t count_all(shoal_block *q, uint64_t (*count)(const sh_ring *))
{
    uint64_t sum = 0;
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return 0;
    }
    if (sh_queue_prepare(q, "queue") == SHOAL_OK) {
        sh_queue_view *v = sh_queue_view_of(q);
        if (sh_queue_is_acknowledged(q)) {
            (void)(sh_deliveries_open(q) == SHOAL_OK); /* for sh_deliveries_out */
        }
        for (uint32_t n = 0; n < sh_load_relaxed(&v->count); n++) {
            sum += count(&v->rings[n]);
            if (n + 1 == sh_load_relaxed(&v->count) && sh_load_acquire(&v->rings[n].shm->next) != 0) {
                (void)(sh_queue_open_ring(q, n + 1) == SHOAL_OK);
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

uint64_t shoal_queue_bound(const shoal_queue *queue)
{
    const shoal_block *q = (const shoal_block *)queue;
    return queue != NULL && sh_block_is_usable(q) ? sh_load_relaxed(&sh_queue_shm_of(q)->bound) : 0;
}

/* Counts the messages of the queue, but of those that are out only the first `most`. */
static uint64_t count_messages(shoal_queue *queue, uint64_t most)
{
    if (queue == NULL || !sh_block_is_usable((const shoal_block *)queue)) {
        return 0;
    }
    uint64_t takes = sh_queue_takes(queue), puts = sh_queue_puts(queue); /* in this order, so never negative */
    const shoal_block *q = (const shoal_block *)queue;
    uint64_t size = puts - takes;
    if (sh_queue_is_prepared(q)) {
        size += sh_load_acquire(&sh_queue_view_of(q)->pending_count);
        size += sh_queue_is_acknowledged(q) ? sh_deliveries_out(q, most) : 0; /* after the ring, so none is missed */
    }
    return size;
}

uint64_t shoal_queue_size(shoal_queue *queue)
{
    return count_messages(queue, UINT64_MAX);
}

void shoal_queue_close(shoal_queue *queue)
{
    sh_cleanup_begin();
    bool ours = queue != NULL && sh_block_require((shoal_block *)queue, SH_KIND_QUEUE, "shoal_queue_close") == SHOAL_OK;
    sh_cleanup_end();
    if (!ours) {
        return;
    }
    sh_queue_shm *shm = sh_queue_shm_of((shoal_block *)queue);
    sh_or_seq_cst(&shm->flags, SH_QUEUE_CLOSED);
    sh_gate_wake(&shm->not_empty, INT_MAX);
    sh_gate_wake(&shm->not_full, INT_MAX);
    sh_gate_wake(&shm->all_done, INT_MAX);
}

shoal_err shoal_queue_task_done(shoal_queue *queue)
{
    SH_TRY(sh_block_require((shoal_block *)queue, SH_KIND_QUEUE, "shoal_queue_task_done"));
    if (sh_queue_is_acknowledged((shoal_block *)queue)) {
        return sh_fail(SHOAL_EINVAL, "task_done: this is an acknowledged queue: use shoal_delivery_done");
    }
    sh_queue_shm *shm = sh_queue_shm_of((shoal_block *)queue);
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

/* In an acknowledged queue a message is done if it is neither in the ring nor out. So no death can leave a count
 * wrong. */
static bool all_done(shoal_block *q)
{
    if (sh_queue_is_acknowledged(q)) {
        return count_messages((shoal_queue *)q, 1) == 0;
    }
    return sh_load_seq_cst(&sh_queue_shm_of(q)->done) >= sh_queue_puts((shoal_queue *)q);
}

shoal_err shoal_queue_join(shoal_queue *queue, int64_t timeout)
{
    shoal_block *q = (shoal_block *)queue;
    sh_wait wait;
    SH_TRY(sh_block_require(q, SH_KIND_QUEUE, "shoal_queue_join"));
    sh_wait_init(&wait, timeout, SH_SLICE_LONG, &sh_queue_shm_of(q)->all_done);
    while (!all_done(q)) {
        if (timeout <= SHOAL_NOW || !sh_queue_wait(q, &wait, all_done, &sh_queue_shm_of(q)->all_done)) {
            uint64_t puts = sh_queue_puts(queue), left = shoal_queue_size(queue);
            uint64_t done = sh_queue_is_acknowledged(q) ? puts - (left < puts ? left : puts)
                                                        : sh_load_relaxed(&sh_queue_shm_of(q)->done);
            return sh_fail_waiting(timeout, "%llu of %llu messages are done", (unsigned long long)done,
                                   (unsigned long long)puts);
        }
    }
    return SHOAL_OK;
}

shoal_err shoal_queue_fd(shoal_queue *queue, int *out_fd)
{
    return out_fd == NULL ? sh_null_error("shoal_queue_fd", "out_fd") : sh_queue_watch(queue, "shoal_queue_fd", out_fd);
}

bool sh_queue_ready(shoal_queue *queue)
{
    shoal_block *q = (shoal_block *)queue;
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return true; /* a get would return at once, with an error */
    }
    bool ready = sh_queue_prepare(q, "wait") != SHOAL_OK ||
                 (sh_queue_is_acknowledged(q) && sh_deliveries_open(q) != SHOAL_OK) || sh_queue_is_ready(q);
    sh_leave();
    return ready;
}

sh_gate *sh_queue_gate(shoal_queue *queue)
{
    return &sh_queue_shm_of((shoal_block *)queue)->not_empty;
}

int64_t sh_queue_wait_until(shoal_queue *queue, int64_t deadline)
{
    const shoal_block *q = (const shoal_block *)queue;
    return sh_queue_is_acknowledged(q) ? sh_deliveries_wait_until(q, deadline) : deadline;
}

/* Inside: returns the id of the oldest message, if it is a block. */
static bool oldest_block(shoal_block *q, uint64_t *out_id)
{
    const sh_ring *ring;
    sh_peek peek;
    if (sh_queue_prepare(q, "peek") != SHOAL_OK || sh_queue_peek(q, &ring, &peek) != SH_RING_DONE) {
        return false;
    }
    *out_id = sh_ref_id(peek.word);
    return peek.kind == SH_ENTRY_BLOCK;
}

bool sh_queue_peek_block(shoal_queue *queue, sh_found *out_found)
{
    uint64_t id;
    bool found = sh_enter_held() != NULL;
    if (found) {
        found = oldest_block((shoal_block *)queue, &id) && sh_heap_find(id, out_found);
        sh_leave();
    }
    return found;
}

shoal_err sh_queue_open_oldest(shoal_queue *queue, shoal_block **out_block)
{
    uint64_t id;
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = oldest_block((shoal_block *)queue, &id) ? sh_block_open(c, id, out_block)
                                                            : sh_fail(SHOAL_ENOENT, "the queue holds no block");
    sh_leave();
    return err;
}
