/* Messages that the caller writes and reads in place: handles for raw messages, before they are sent and after they are
 * received. */
#include "ipc/message.h"

#include "base/error.h"
#include "ipc/message_write.h"
#include "ipc/queue.h"
#include "ipc/queue_core.h"

#include <shoal/message.h>

#include <string.h>

static shoal_block *block_of(const shoal_message *message)
{
    return (shoal_block *)(uintptr_t)message;
}

static shoal_err check(const shoal_message *message, const char *call)
{
    return message == NULL ? sh_fail(SHOAL_EINVAL, "%s: message is NULL", call)
                           : sh_block_require(block_of(message), SH_KIND_MESSAGE, call);
}

shoal_err shoal_message_create(size_t size, shoal_message **out_message)
{
    SH_NEED(out_message);
    shoal_block *b;
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_message_new(c, 0, size, true, &b);
    sh_leave();
    SH_TRY(err);
    *out_message = (shoal_message *)b;
    return SHOAL_OK;
}

void *shoal_message_data(shoal_message *message)
{
    size_t size;
    return message != NULL && !sh_block_is_lost(block_of(message))
               ? (void *)(uintptr_t)sh_message_bytes(block_of(message), &size)
               : NULL;
}

size_t shoal_message_size(const shoal_message *message)
{
    size_t size = 0;
    return message != NULL && !sh_block_is_lost(block_of(message)) && sh_message_bytes(block_of(message), &size) != NULL
               ? size
               : 0;
}

void shoal_message_destroy(shoal_message *message)
{
    sh_block_release(block_of(message));
}

shoal_err shoal_queue_give_message(shoal_queue *queue, shoal_message *message, int64_t timeout)
{
    SH_NEED(queue);
    SH_NEED(message);
    SH_TRY(check(message, "shoal_queue_give_message"));
    return sh_queue_put_word((shoal_block *)queue, &(sh_put){.kind = SH_ENTRY_MESSAGE, .given = block_of(message)},
                             timeout);
}

shoal_err shoal_queue_get_message(shoal_queue *queue, int64_t timeout, shoal_message **out_message)
{
    SH_NEED(queue);
    SH_NEED(out_message);
    sh_taken t;
    size_t size;
    SH_TRY(sh_queue_get_word((shoal_block *)queue, SH_WANT_BYTES, SIZE_MAX, timeout, &t, &size));
    if (t.kind == SH_ENTRY_MESSAGE) {
        *out_message = (shoal_message *)t.block;
        return SHOAL_OK;
    }
    shoal_message *fresh; /* up to 8 bytes travelled inside the ring */
    shoal_err err = shoal_message_create((size_t)(t.kind - SH_ENTRY_BYTES_0), &fresh);
    if (err != SHOAL_OK) {
        sh_queue_keep_taken((shoal_block *)queue, &t);
        return err;
    }
    memcpy(shoal_message_data(fresh), &t.word, shoal_message_size(fresh));
    *out_message = fresh;
    return SHOAL_OK;
}

shoal_err shoal_pipe_give_message(shoal_pipe *end, shoal_message *message, int64_t timeout)
{
    SH_NEED(message);
    shoal_queue *queue;
    SH_TRY(sh_pipe_write_queue(end, &queue));
    return shoal_queue_give_message(queue, message, timeout);
}

shoal_err shoal_pipe_recv_message(shoal_pipe *end, int64_t timeout, shoal_message **out_message)
{
    SH_NEED(end);
    SH_NEED(out_message);
    shoal_queue *queue = sh_pipe_read_queue(end);
    return queue != NULL ? shoal_queue_get_message(queue, timeout, out_message) : shoal_last_error();
}
