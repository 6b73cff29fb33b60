/* Pipes: two queues and two ends. An end is a block that refers to both queues. When the end dies, whichever process
 * held it, both queues are closed. So the other side reads all that was sent and then learns that nothing more will
 * come. */
#include "ipc/queue.h"

#include "base/error.h"

#include "ipc/queue_core.h"
#include "ipc/value.h"
#include "shm/waits.h"

static sh_pipe_shm *shm_of(const shoal_block *end)
{
    return (sh_pipe_shm *)end->data;
}

/* Inside: opens handles for the queues of an end that was received. */
static shoal_err prepare(sh_ctx *c, shoal_block *end, const char *call)
{
    SH_TRY(sh_block_require(end, SH_KIND_PIPE, call));
    const sh_ref references[2] = {sh_load_acquire(&shm_of(end)->reads), sh_load_acquire(&shm_of(end)->writes)};
    for (int i = 0; i < 2; i++) {
        if (references[i] != 0 && end->parts[i] == NULL) {
            SH_TRY(sh_block_open(c, sh_ref_id(references[i]), &end->parts[i]));
        }
    }
    return SHOAL_OK;
}

static __attribute__((noinline)) shoal_err open_queue_of(shoal_block *end, int part, const char *call,
                                                         shoal_queue **out_queue)
{
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = prepare(c, end, call);
    sh_leave();
    SH_TRY(err);
    if (end->parts[part] == NULL) {
        return sh_fail(SHOAL_EINVAL,
                       part == 0 ? "this end of the pipe only sends" : "this end of the pipe only receives");
    }
    *out_queue = (shoal_queue *)end->parts[part];
    return SHOAL_OK;
}

/* Without a call if the only thread of a process has used the end before. A handle that is lost or was left behind has
 * no kind. */
static inline shoal_err queue_of(shoal_pipe *pipe, int part, const char *call, shoal_queue **out_queue)
{
    shoal_block *end = (shoal_block *)pipe;
    if (__builtin_expect(end != NULL && end->magic == SH_HANDLE_MAGIC && end->kind == SH_KIND_PIPE &&
                             __libc_single_threaded && sh_attachment_now() == SH_ATTACHED && end->parts[part] != NULL,
                         1)) {
        *out_queue = (shoal_queue *)end->parts[part];
        return SHOAL_OK;
    }
    return open_queue_of(end, part, call, out_queue);
}

/* Creates one end, with references to the queue it reads and the queue it writes; NULL for none. */
static shoal_err make_end(shoal_queue *reads, shoal_queue *writes, shoal_block **out_end)
{
    shoal_block *end;
    SH_TRY(sh_object_create(sh_class_of(sizeof(sh_pipe_shm)), sizeof(sh_pipe_shm), SH_KIND_PIPE, &end));
    sh_ctx *c = sh_enter_held();
    shoal_err err = c == NULL ? shoal_last_error() : SHOAL_OK;
    if (err == SHOAL_OK && reads != NULL) {
        err = sh_block_give(c, (shoal_block *)reads, sh_offset_of(&shm_of(end)->reads));
    }
    if (err == SHOAL_OK && writes != NULL) {
        err = sh_block_give(c, (shoal_block *)writes, sh_offset_of(&shm_of(end)->writes));
    }
    if (c != NULL) {
        sh_leave();
    }
    if (err != SHOAL_OK) {
        sh_block_release(end);
        return err;
    }
    *out_end = end;
    return SHOAL_OK;
}

shoal_err shoal_pipe_create(bool duplex, shoal_pipe **out_a, shoal_pipe **out_b)
{
    if (out_a == NULL || out_b == NULL) {
        return sh_null_error("shoal_pipe_create", out_a == NULL ? "out_a" : "out_b");
    }
    shoal_queue *to_a = NULL, *to_b = NULL;
    shoal_block *a = NULL, *b = NULL;
    const shoal_queue_options direction = {.bytes = SHOAL_PIPE_BYTES};
    shoal_err err = shoal_queue_create_with(&direction, &to_a);
    if (err == SHOAL_OK && duplex) {
        err = shoal_queue_create_with(&direction, &to_b);
    }
    shoal_queue *const directions[] = {to_a, to_b};
    for (int i = 0; i < 2 && err == SHOAL_OK; i++) {
        if (directions[i] != NULL) {
            sh_store_relaxed(&sh_queue_shm_of((shoal_block *)directions[i])->of_pipe, 1);
        }
    }
    if (err == SHOAL_OK) {
        err = make_end(to_a, to_b, &a);
    }
    if (err == SHOAL_OK) {
        err = make_end(to_b, to_a, &b);
    }
    shoal_queue_release(to_a);
    shoal_queue_release(to_b);
    if (err != SHOAL_OK) {
        sh_block_release(a);
        return err;
    }
    *out_a = (shoal_pipe *)a;
    *out_b = (shoal_pipe *)b;
    return SHOAL_OK;
}

shoal_queue *sh_pipe_read_queue(shoal_pipe *end)
{
    shoal_queue *queue = NULL;
    return queue_of(end, 0, "shoal_wait", &queue) == SHOAL_OK ? queue : NULL;
}

shoal_err sh_pipe_write_queue(shoal_pipe *end, shoal_queue **out_queue)
{
    return queue_of(end, 1, "shoal_pipe_give_message", out_queue);
}

shoal_err shoal_pipe_send(shoal_pipe *end, shoal_value *value, int64_t timeout)
{
    SH_NEED(value);
    shoal_queue *queue = NULL;
    shoal_err err = queue_of(end, 1, "shoal_pipe_send", &queue);
    if (err != SHOAL_OK) {
        sh_value_consume(value);
        return err;
    }
    return shoal_queue_put(queue, value, timeout);
}

shoal_err shoal_pipe_recv(shoal_pipe *end, int64_t timeout, shoal_value **out_value)
{
    SH_NEED(out_value);
    shoal_queue *queue = NULL;
    SH_TRY(queue_of(end, 0, "shoal_pipe_recv", &queue));
    return shoal_queue_get(queue, timeout, out_value);
}

shoal_err shoal_pipe_recv_packed(shoal_pipe *end, int64_t timeout, shoal_value **out_value)
{
    SH_NEED(out_value);
    shoal_queue *queue = NULL;
    SH_TRY(queue_of(end, 0, "shoal_pipe_recv_packed", &queue));
    return shoal_queue_get_packed(queue, timeout, out_value);
}

shoal_err shoal_pipe_send_bytes(shoal_pipe *end, const void *bytes, size_t size, int64_t timeout)
{
    if (size > 0 && !bytes) {
        return sh_null_error(__func__, "bytes");
    }
    shoal_queue *queue = NULL;
    SH_TRY(queue_of(end, 1, "shoal_pipe_send_bytes", &queue));
    return shoal_queue_put_bytes(queue, bytes, size, timeout);
}

shoal_err shoal_pipe_recv_bytes(shoal_pipe *end, void *buffer, size_t capacity, int64_t timeout, size_t *out_size)
{
    if (capacity > 0 && !buffer) {
        return sh_null_error(__func__, "buffer");
    }
    SH_NEED(out_size);
    shoal_queue *queue = NULL;
    SH_TRY(queue_of(end, 0, "shoal_pipe_recv_bytes", &queue));
    return shoal_queue_get_bytes(queue, buffer, capacity, timeout, out_size);
}

shoal_err shoal_pipe_fd(shoal_pipe *end, int *out_fd)
{
    shoal_queue *queue = NULL;
    if (out_fd == NULL) {
        return sh_null_error("shoal_pipe_fd", "out_fd");
    }
    SH_TRY(queue_of(end, 0, "shoal_pipe_fd", &queue));
    return sh_queue_watch(queue, "shoal_pipe_fd", out_fd);
}

shoal_err shoal_pipe_poll(shoal_pipe *end, int64_t timeout)
{
    shoal_queue *queue = NULL;
    sh_wait wait;
    SH_TRY(queue_of(end, 0, "shoal_pipe_poll", &queue));
    bool parked = false;
    sh_wait_init(&wait, timeout, SH_SLICE_LONG, sh_queue_gate(queue));
    wait.name = sh_waits_name(SH_WAITS_RECEIVE, ((shoal_block *)queue)->id);
    while (!sh_queue_ready(queue)) {
        if (timeout > SHOAL_NOW && sh_wait_spin(&wait)) {
            continue;
        }
        uint32_t prepared = sh_gate_prepare(sh_queue_gate(queue));
        if (!sh_queue_ready(queue) && !sh_wait_park(&wait, sh_queue_gate(queue), prepared)) {
            return sh_queue_ready(queue) ? SHOAL_OK : sh_fail_waiting(timeout, "nothing came through the pipe");
        }
        parked = true;
    }
    if (parked) {
        sh_gate_wake(sh_queue_gate(queue), 1); /* that wake-up may have been meant for a process that takes */
    }
    return SHOAL_OK;
}
