/* The channels: convert an id into a message of each kind, and back. */
#include "base/random.h"
#include "tests/harness/kill.h"

#include <string.h>

#define LIMIT 24 /* messages in a channel that has no bound */
#define BYTES_MAX 6000
#define WAIT_SHORT (SHOAL_MS(1) / 4)

static _Thread_local bool was_sent; /* by the current put, which may fail in a later step */

/* Counts the channel's own put as soon as it returns, before anything else can go wrong. */
static shoal_err sent(kill_count *count, shoal_err err)
{
    if (err == SHOAL_OK) {
        was_sent = true;
        sh_add_relaxed(&count->put, 1);
    }
    return err;
}

/* ---- a put and a get for each channel ---- */

static shoal_err put_words(shoal_queue *q, kill_count *count, uint64_t id, uint64_t *random)
{
    (void)random;
    return sent(count, shoal_queue_put_bytes(q, &id, sizeof id, SHOAL_NOW));
}

static shoal_err put_bytes(shoal_queue *q, kill_count *count, uint64_t id, uint64_t *random)
{
    char bytes[BYTES_MAX];
    size_t size = 9 + sh_splitmix_below(random, BYTES_MAX - 8);
    memset(bytes, (int)(id & 0x7f), size);
    memcpy(bytes, &id, sizeof id);
    return sent(count, shoal_queue_put_bytes(q, bytes, size, SHOAL_NOW));
}

static size_t some_size(uint64_t *random)
{
    static const size_t sizes[] = {64, 300, 4096, 20000, 65536, 300000, (1 << 20) + 1};
    uint64_t n = sh_splitmix_below(random, 64);
    return sizes[n < 56 ? n % 4 : n < 60 ? 4 : n < 63 ? 5 : 6];
}

/* Makes a block with the id at both ends. */
static shoal_err make_block(uint64_t id, uint64_t *random, shoal_block **out_block)
{
    size_t size = some_size(random);
    shoal_err err = shoal_block_create(size, out_block);
    if (err == SHOAL_OK) {
        char *data = shoal_block_data(*out_block);
        memcpy(data, &id, sizeof id);
        memcpy(data + size - sizeof id, &id, sizeof id);
    }
    return err;
}

static uint64_t id_of_block(const shoal_block *b)
{
    uint64_t first = 0, last = 1;
    if (b != NULL && shoal_block_size(b) >= sizeof first) {
        memcpy(&first, shoal_block_data(b), sizeof first);
        memcpy(&last, (char *)shoal_block_data(b) + shoal_block_size(b) - sizeof last, sizeof last);
    }
    return first == last ? first : 0;
}

static shoal_err put_blocks(shoal_queue *q, kill_count *count, uint64_t id, uint64_t *random)
{
    shoal_block *b;
    shoal_err err = make_block(id, random, &b);
    if (err == SHOAL_OK && sh_splitmix_below(random, 2) == 0) {
        err = sent(count, shoal_queue_give_block(q, b, SHOAL_NOW));
        if (err == SHOAL_OK) {
            return err;
        }
        shoal_release(b);
    } else if (err == SHOAL_OK) {
        err = sent(count, shoal_queue_put_block(q, b, SHOAL_NOW));
        shoal_release(b);
    }
    return err;
}

/* Puts a map with two blocks, one of them twice, a lock, and text. */
static shoal_err put_values(shoal_queue *q, kill_count *count, uint64_t id, uint64_t *random)
{
    shoal_block *a = NULL, *b = NULL;
    shoal_lock *lock = NULL;
    shoal_err err = make_block(id, random, &a);
    if (err == SHOAL_OK) {
        err = make_block(id, random, &b);
    }
    if (err == SHOAL_OK) {
        err = shoal_lock_create(&lock);
    }
    if (err == SHOAL_OK) {
        shoal_value *v = shoal_map("id", id, "list", shoal_list(a, b, a), "lock", lock, "text", "words");
        err = sent(count, shoal_queue_put(q, v, SHOAL_NOW));
    }
    shoal_release(a);
    shoal_release(b);
    shoal_release(lock);
    return err;
}

static shoal_err put_integer(shoal_queue *q, kill_count *count, uint64_t id, uint64_t *random)
{
    (void)random;
    return sent(count, shoal_queue_put(q, shoal_value_int((int64_t)id), WAIT_SHORT));
}

/* Puts a queue with the id in it. Both sides then continue to fill it, so it grows while they do. */
static shoal_err put_queue(shoal_queue *q, kill_count *count, uint64_t id)
{
    shoal_queue *inner;
    shoal_err err = shoal_queue_create(0, &inner);
    if (err != SHOAL_OK) {
        return err;
    }
    err = shoal_queue_put(inner, shoal_value_int((int64_t)id), SHOAL_NOW);
    if (err == SHOAL_OK) {
        err = sent(count, shoal_queue_put(q, shoal_value_of(inner), SHOAL_NOW));
    }
    for (int i = 0; err == SHOAL_OK && i < 100; i++) {
        err = shoal_queue_put_bytes(inner, "0123456789", i % 30 == 0 ? 10 : 5, SHOAL_NOW);
    }
    shoal_release(inner);
    return err;
}

static shoal_err put_pipe(shoal_queue *q, kill_count *count, uint64_t id)
{
    shoal_pipe *near_end, *far_end;
    shoal_value *reply;
    shoal_err err = shoal_pipe_create(true, &near_end, &far_end);
    if (err != SHOAL_OK) {
        return err;
    }
    err = shoal_pipe_send(near_end, shoal_value_int((int64_t)id), SHOAL_NOW);
    if (err == SHOAL_OK) {
        err = sent(count, shoal_queue_put(q, shoal_value_of(far_end), SHOAL_NOW));
    }
    shoal_release(far_end);
    if (err == SHOAL_OK && shoal_pipe_recv(near_end, WAIT_SHORT, &reply) == SHOAL_OK) {
        shoal_value_destroy(reply);
    }
    shoal_release(near_end);
    return err;
}

static shoal_err put_objects(shoal_queue *q, kill_count *count, uint64_t id, uint64_t *random)
{
    return sh_splitmix_below(random, 2) == 0 ? put_queue(q, count, id) : put_pipe(q, count, id);
}

/* Returns the id in a received value, or 0 if the value is inconsistent. */
static uint64_t id_of_map(const shoal_value *v)
{
    uint64_t id = (uint64_t)sh_int_of(shoal_value_find(v, "id"));
    const shoal_value *list = shoal_value_find(v, "list");
    bool whole = shoal_value_count(list) == 3 && shoal_arg_lock(v, "lock") != NULL;
    for (size_t i = 0; whole && i < 3; i++) {
        whole = id_of_block(shoal_value_as_block(shoal_value_at(list, i))) == id;
    }
    return whole && shoal_value_as_block(shoal_value_at(list, 0)) == shoal_value_as_block(shoal_value_at(list, 2)) ? id
                                                                                                                   : 0;
}

static uint64_t id_of_queue(shoal_queue *inner)
{
    shoal_value *v = NULL;
    uint64_t id = 0;
    if (shoal_queue_get(inner, SHOAL_NOW, &v) == SHOAL_OK) {
        id = (uint64_t)sh_int_of(v);
        shoal_value_destroy(v);
    }
    for (int i = 0; i < 40 && shoal_queue_put_bytes(inner, "abc", 3, SHOAL_NOW) == SHOAL_OK; i++) {
    }
    char bytes[16];
    size_t size;
    for (int i = 0; i < 100 && shoal_queue_get_bytes(inner, bytes, sizeof bytes, SHOAL_NOW, &size) == SHOAL_OK; i++) {
        if (size != 3 && size != 5 && size != 10) {
            return 0;
        }
    }
    return id;
}

static uint64_t id_of_pipe(shoal_pipe *end)
{
    shoal_value *v = NULL;
    uint64_t id = 0;
    if (shoal_pipe_recv(end, SHOAL_NOW, &v) == SHOAL_OK) {
        id = (uint64_t)sh_int_of(v);
        shoal_value_destroy(v);
        (void)!shoal_pipe_send(end, shoal_value_int(1), SHOAL_NOW); /* its sender may be gone */
    }
    return id;
}

static uint64_t id_of_value(kill_channel channel, const shoal_value *v)
{
    switch (channel) {
    case KILL_VALUES:
    case KILL_REJECTS: return id_of_map(v);
    case KILL_OBJECTS:
        return shoal_value_object_kind(v) == SHOAL_KIND_QUEUE ? id_of_queue(shoal_value_as_queue(v))
                                                              : id_of_pipe(shoal_value_as_pipe(v));
    default: return (uint64_t)sh_int_of(v);
    }
}

/* ---- put and get ---- */

static shoal_err (*const puts_of[KILL_CHANNELS])(shoal_queue *, kill_count *, uint64_t, uint64_t *) = {
    [KILL_WORDS] = put_words,       [KILL_BYTES] = put_bytes,         [KILL_BLOCKS] = put_blocks,
    [KILL_VALUES] = put_values,     [KILL_BOUNDED] = put_integer,     [KILL_OBJECTS] = put_objects,
    [KILL_TASKS] = put_integer,     [KILL_TENSORS] = kill_put_tensor, [KILL_DELIVERIES] = put_integer,
    [KILL_PIECES] = kill_put_piece, [KILL_LEASES] = put_values,
};

/* Assigns the next id whose word in `seen` is free. The message that has the word may be far behind the others: in the
 * hands of a process that is stopped, waits for a core or was killed. */
static uint64_t assign_id(kill_count *count)
{
    for (uint32_t tries = 0; tries < KILL_IDS; tries++) {
        uint64_t id = sh_add_relaxed(&count->ids, 1) + 1;
        uint64_t last = sh_load_acquire(&count->seen[id % KILL_IDS]);
        if ((last == 0 || last % 2 == 1) && sh_cas_acq_rel(&count->seen[id % KILL_IDS], &last, 2 * id)) {
            return id;
        }
    }
    return 0;
}

bool kill_put(kill_stage *stage, kill_channel channel, uint64_t *random)
{
    kill_count *count = &stage->board->channels[channel];
    shoal_queue *q = stage->queues[channel];
    if (channel == KILL_REJECTS || (channel != KILL_BOUNDED && shoal_queue_size(q) >= LIMIT)) {
        return false;
    }
    uint64_t id = assign_id(count);
    if (id == 0) {
        kill_fail(stage, "put to channel %d: %u messages are on their way", (int)channel, KILL_IDS);
        return false;
    }
    was_sent = false;
    shoal_err err = puts_of[channel](q, count, id, random);
    if (err != SHOAL_OK && !was_sent) { /* nobody gets it */
        sh_store_release(&count->seen[id % KILL_IDS], 2 * id + 1);
    }
    if (err != SHOAL_OK && err != SHOAL_ETIMEDOUT && !kill_is_tight(stage, err)) {
        kill_fail(stage, "put to channel %d: %s: %s", (int)channel, shoal_err_name(err), shoal_last_error_text());
    }
    return err == SHOAL_OK;
}

/* Gets a message and marks it as done. Every third message is first returned once, so any process may get it again. */
static shoal_err get_delivery(shoal_queue *q, kill_count *count, uint64_t *out_id)
{
    for (;;) {
        shoal_value *v = NULL;
        shoal_delivery d;
        shoal_err err = shoal_queue_get_delivery(q, WAIT_SHORT, &v, &d);
        if (err != SHOAL_OK) {
            return err;
        }
        *out_id = (uint64_t)sh_int_of(v);
        shoal_value_destroy(v);
        bool back = d.deliveries == 1 && *out_id % 3 == 0;
        err = back ? shoal_delivery_return(&d) : shoal_delivery_done(&d);
        if (err != SHOAL_OK || !back) {
            sh_add_relaxed(&count->got, err == SHOAL_OK);
            return err;
        }
    }
}

/* Gets a message that others take over after 1 ms. Every third one is always returned, so it is rejected. */
static shoal_err get_lease(shoal_queue *q, kill_count *count, uint64_t *out_id)
{
    for (;;) {
        shoal_value *v = NULL;
        shoal_delivery d;
        shoal_err err = shoal_queue_get_delivery(q, WAIT_SHORT, &v, &d);
        if (err != SHOAL_OK) {
            return err;
        }
        *out_id = id_of_map(v);
        shoal_value_destroy(v);
        if (*out_id == 0) {
            return SHOAL_OK;
        }
        bool back = *out_id % 3 == 0;
        err = back ? shoal_delivery_return(&d) : shoal_delivery_done(&d);
        if (err == SHOAL_OK && !back) {
            sh_add_relaxed(&count->got, 1);
            return SHOAL_OK;
        }
        if (err != SHOAL_OK && err != SHOAL_ESTATE) { /* ESTATE: another receiver has it now */
            return err;
        }
    }
}

/* Gets a message. *out_id is 0 if it is not intact. Counts it in `got` as soon as the library's call returns. */
static shoal_err get_any(kill_stage *stage, kill_channel channel, uint64_t *out_id)
{
    kill_count *count = &stage->board->channels[channel];
    shoal_queue *q = stage->queues[channel];
    char bytes[BYTES_MAX + 64];
    size_t size = 0;
    shoal_err err;
    *out_id = 0;
    if (channel == KILL_DELIVERIES) {
        return get_delivery(q, count, out_id);
    }
    if (channel == KILL_LEASES) {
        return get_lease(q, count, out_id);
    }
    if (channel == KILL_WORDS || channel == KILL_BYTES) {
        err = shoal_queue_get_bytes(q, bytes, sizeof bytes, SHOAL_NOW, &size);
        if (err == SHOAL_OK) {
            sh_add_relaxed(&count->got, 1);
            memcpy(out_id, bytes, sizeof *out_id);
            if (size < 8 || (size > 8 && bytes[size - 1] != (char)(*out_id & 0x7f))) {
                *out_id = 0;
            }
        }
        return err;
    }
    if (channel == KILL_BLOCKS) {
        shoal_block *b;
        err = shoal_queue_get_block(q, SHOAL_NOW, &b);
        if (err == SHOAL_OK) {
            sh_add_relaxed(&count->got, 1);
            *out_id = id_of_block(b);
            shoal_release(b);
        }
        return err;
    }
    if (channel == KILL_TENSORS) {
        return kill_get_tensor(q, count, out_id);
    }
    if (channel == KILL_PIECES) {
        return kill_get_piece(q, count, out_id);
    }
    shoal_value *v;
    err = shoal_queue_get(q, channel == KILL_BOUNDED ? WAIT_SHORT : SHOAL_NOW, &v);
    if (err == SHOAL_OK) {
        sh_add_relaxed(&count->got, 1);
        *out_id = id_of_value(channel, v);
        shoal_value_destroy(v);
    }
    return err;
}

bool kill_get(kill_stage *stage, kill_channel channel)
{
    /* Who puts a message assigns its id, and rejects were put into LEASES. */
    kill_count *count = &stage->board->channels[channel == KILL_REJECTS ? KILL_LEASES : channel];
    uint64_t id;
    shoal_err err = get_any(stage, channel, &id);
    if (err == SHOAL_ETIMEDOUT || kill_is_tight(stage, err)) {
        return false;
    }
    if (err != SHOAL_OK || id == 0 || id > sh_load_relaxed(&count->ids)) {
        kill_fail(stage, "get from channel %d: %s: message %llu: %s", (int)channel, shoal_err_name(err),
                  (unsigned long long)id, shoal_last_error_text());
        return false;
    }
    uint64_t before = sh_swap_acq_rel(&count->seen[id % KILL_IDS], 2 * id + 1);
    if (before != 2 * id) {
        kill_fail(stage, "channel %d: message %llu was got twice", (int)channel, (unsigned long long)id);
    }
    if (channel == KILL_TASKS) {
        err = shoal_queue_task_done(stage->queues[channel]);
        if (err == SHOAL_OK) {
            sh_add_relaxed(&count->done, 1);
        } else {
            kill_fail(stage, "task_done: %s", shoal_last_error_text());
        }
    }
    return true;
}
