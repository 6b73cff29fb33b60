/* The steps that every message takes through a queue, as inline functions. queue_core.c and queue_fast.h both use them;
 * ring_steps.h has those inside the ring. "Inside" here includes the only thread of a process (queue_fast.h). */
#ifndef SH_IPC_QUEUE_STEPS_H
#define SH_IPC_QUEUE_STEPS_H

#include "ipc/queue_core.h"
#include "shm/handle.h"

/* Inside: a part of this process's weight goes into the queue, and this process keeps the rest. Draws more weight from
 * the block if there is too little to share. Errors: those of sh_heap_share. */
static inline shoal_err sh_transfer_part(sh_ctx *c, const shoal_block *block, sh_transfer *out)
{
    uint64_t weight;
    SH_TRY(sh_heap_share(c, block->cell, &weight));
    sh_ref ref = sh_load_relaxed((sh_a64 *)sh_at(block->cell)); /* only this process writes it, inside */
    *out = (sh_transfer){.word = sh_ref_make(block->id, weight),
                         .cell = block->cell,
                         .value = sh_ref_make(block->id, sh_ref_weight(ref) - weight)};
    return SHOAL_OK;
}

/* Inside: all of this process's weight goes into the queue, and its cell is empty afterwards. So nothing else in this
 * process may use the block. The caller ensures that no more than SH_WEIGHT_HOLD goes: it lightens the cell before, or
 * does not put the result. */
static inline sh_transfer sh_transfer_all(const shoal_block *block)
{
    return (sh_transfer){.word = sh_load_relaxed((sh_a64 *)sh_at(block->cell)), .cell = block->cell};
}

/* After a put: wakes one process that waits for a message. The CAS in the ring was the full barrier that sh_gate_wake
 * needs; pairs with sh_gate_prepare in sh_queue_wait. */
static inline void sh_queue_wake_getter(const shoal_block *queue)
{
    SH_DEATH("queue.put.before_wake"); /* death: recovery wakes all gates of what the dead process held */
    sh_gate_wake(&sh_queue_shm_of(queue)->not_empty, 1);
}

/* The bound in bytes of a pipe or a SimpleQueue
 *
 * A put waits while put_bytes - taken_bytes >= most_bytes. So what waits is at most the bound and one message, and a
 * message of any size goes through. A message costs its entry in the ring, its block, and the blocks that came with it
 * because nobody else holds them; a block or tensor that its sender keeps is only a handle. To keep both counts off the
 * way of small messages, each process adds what it put and took in steps of SH_QUEUE_STEP.
 *
 * death: what a process did not add dies with it; so both counts drift, and a forked child adds its parent's again. So
 * a process that has found the queue full for a while, whether it waited or came again, counts what is in the rings and
 * corrects taken_bytes (queue_core.c): a drift delays a put, but never blocks it for good. A drift in the other
 * direction is corrected once it exceeds the bound. */
#define SH_QUEUE_STEP UINT64_C(16384)
#define SH_QUEUE_ENTRY_COST 16u

/* Returns what a message costs. block is that of a MESSAGE; in a foreign process's hands it may change meanwhile, which
 * only makes the counts wrong. */
uint64_t sh_queue_cost_of_message(const char *data, uint64_t size);

static inline uint64_t sh_queue_cost(sh_entry_kind kind, const shoal_block *block)
{
    return kind == SH_ENTRY_MESSAGE && block != NULL ? sh_queue_cost_of_message(block->data, block->size)
                                                     : SH_QUEUE_ENTRY_COST;
}

/* Inside: adds what this process took, and wakes those that wait for room once a quarter of the bound is free, or in
 * any case if all. */
void sh_queue_add_taken(const shoal_block *queue, bool all);

/* Inside, after a take: wakes one process that waits for room, which only happens if the queue has a bound. The CAS in
 * the ring was the full barrier, as above. */
static inline void sh_queue_wake_putter(const shoal_block *queue, sh_entry_kind kind, const shoal_block *block)
{
    sh_queue_shm *shm = sh_queue_shm_of(queue);
    if (sh_load_relaxed(&shm->bound) != 0) {
        SH_DEATH("queue.get.before_wake"); /* death: the same */
        sh_gate_wake(&shm->not_full, 1);
    }
    if (sh_load_relaxed(&shm->most_bytes) != 0) {
        sh_queue_view *v = sh_queue_view_of(queue);
        v->taken_bytes += sh_queue_cost(kind, block);
        if (v->taken_bytes >= SH_QUEUE_STEP) {
            sh_queue_add_taken(queue, false);
        }
    }
}

/* Inside: takes the message that peek saw. block is what sh_block_expect returned for its reference, with value, and
 * NULL for a message without one. Afterwards the caller has one more reference to the block. Returns false if another
 * process was faster; the block is then no longer expected.
 * death: ring_steps.h. The rest is private to this process. */
static inline bool sh_queue_take(sh_ctx *c, const shoal_block *queue, const sh_ring *ring, const sh_peek *peek,
                                 shoal_block *block, uint64_t value)
{
    bool taken = sh_ring_take(c, ring, peek, block != NULL ? block->cell : 0, value, queue->id) == SH_RING_DONE;
    if (block != NULL && taken) {
        sh_block_arrived(block);
    } else if (block != NULL) {
        sh_block_unexpect(block);
    }
    return taken;
}

#endif
