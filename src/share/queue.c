/* Putting tensors into queues and getting them, without a value around them. */
#include "base/error.h"
#include "ipc/queue_fast.h"
#include "share/description.h"

#include <shoal/share.h>

shoal_err shoal_queue_put_tensor(shoal_queue *queue, shoal_tensor *t, int64_t timeout)
{
    SH_NEED(queue);
    SH_NEED_TENSOR(t);
    shoal_block *description = NULL;
    SH_TRY(sh_share_describe_tensor(t, &description));
    return shoal_queue_put_block(queue, description, timeout);
}

/* Returns whether only the caller, through t, can reach the description in this process: all that holds it goes with
 * t. Not for a card: its stream may still use the tensor, so the reference goes when it is done (sh_cuda_close). */
static bool is_only_way(const shoal_tensor *t, const shoal_block *d)
{
    uint64_t own = 1 + (t->storage->owner_block == d);
    return !t->grad && !t->storage->work && sh_load_relaxed(&t->refs) == 1 && sh_load_relaxed(&t->storage->refs) == 1 &&
           sh_load_relaxed(&d->refs) == own;
}

shoal_err shoal_queue_give_tensor(shoal_queue *queue, shoal_tensor *t, int64_t timeout)
{
    SH_NEED(queue);
    SH_NEED_TENSOR(t);
    shoal_block *description = NULL;
    SH_TRY(sh_share_describe_tensor(t, &description));
    if (!(is_only_way(t, description) && sh_queue_give_block_fast((shoal_block *)queue, description))) {
        SH_TRY(shoal_queue_put_block(queue, description, timeout));
    }
    shoal_tensor_release(t);
    return SHOAL_OK;
}

/* Checks for an error that is not the message's fault: this process may get it later, or another process now. */
static bool is_for_others(shoal_err err)
{
    return err != SHOAL_ECORRUPT && err != SHOAL_ELOST;
}

/* Keeps a message that this process took and cannot use. Without memory, or in a capture, it stays the next one here;
 * if there is no card here that could use it, it goes back to the end of the queue, for another process. Returns the
 * error that is set. */
static shoal_err give_back(shoal_queue *queue, shoal_block *description)
{
    shoal_err err = shoal_last_error();
    sh_taken taken = {.kind = SH_ENTRY_BLOCK, .word = sh_ref_make(description->id, 1), .block = description};
    sh_cleanup_begin();
    bool here = err == SHOAL_ENOMEM || err == SHOAL_ESTATE;
    if (!here && shoal_queue_put_block(queue, description, SHOAL_NOW) == SHOAL_OK) {
        sh_block_release(description);
    } else {
        sh_queue_keep_taken((shoal_block *)queue, &taken);
    }
    sh_cleanup_end();
    return err;
}

shoal_err shoal_queue_get_tensor(shoal_queue *queue, int64_t timeout, shoal_tensor **out_tensor)
{
    SH_NEED(queue);
    SH_NEED(out_tensor);
    shoal_block *description;
    if (!sh_queue_get_block_fast((shoal_block *)queue, SH_KIND_TENSOR, timeout, &description)) {
        sh_taken taken;
        size_t unused;
        SH_TRY(sh_queue_get_word((shoal_block *)queue, SHOAL_KIND_TENSOR, 0, timeout, &taken, &unused));
        description = taken.block;
    }
    shoal_tensor *t = sh_share_tensor_of(description);
    if (t) {
        *out_tensor = t;
        return SHOAL_OK;
    }
    if (is_for_others(shoal_last_error())) {
        return give_back(queue, description);
    }
    sh_block_release(description);
    return shoal_last_error();
}
