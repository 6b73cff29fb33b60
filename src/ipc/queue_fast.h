/* The fast path of a message: the process has one thread, the queue is known and open, and the ring has room or a
 * message at the position that its hint names. A call here does everything or nothing: if it returns false nothing was
 * done, and the caller uses queue_core.h, which handles every case. Both use queue_steps.h and ring_steps.h. */
#ifndef SH_IPC_QUEUE_FAST_H
#define SH_IPC_QUEUE_FAST_H

#include "ipc/queue_steps.h"

/* Returns whether this process may act as if inside, without the lock: it has only this thread. */
static inline bool sh_queue_is_fast(const shoal_block *queue)
{
    return __builtin_expect(__libc_single_threaded && sh_attachment_now() == SH_ATTACHED, 1) &&
           sh_queue_is_prepared(queue);
}

static inline __attribute__((always_inline)) bool sh_queue_put_fast(shoal_block *queue, sh_entry_kind kind,
                                                                    sh_transfer t)
{
    sh_queue_view *v = sh_queue_view_of(queue);
    const sh_ring *ring = &v->rings[sh_load_relaxed(&v->put)];
    sh_queue_shm *shm = sh_queue_shm_of(queue);
    if (v->put_bytes >= SH_QUEUE_STEP || v->full_since != 0) { /* the queue may be full */
        return false;
    }
    if (sh_load_acquire(&shm->flags) != 0 || /* closed, or acknowledged: those take no plain words */
        sh_ring_put_at(&sh_the_world.self, ring, sh_load_acquire(&ring->shm->tail.hint), kind, t.word, t.cell, t.value,
                       sh_load_relaxed(&shm->bound), queue->id) != SH_RING_DONE) {
        return false;
    }
    if (sh_load_relaxed(&shm->most_bytes) != 0) {
        v->put_bytes += SH_QUEUE_ENTRY_COST;
    }
    sh_queue_wake_getter(queue);
    return true;
}

/* Reading an entry while it is written takes its cache line away from the writer, who needs it back before it can
 * continue. So a process that looks too early delays the message. An answer takes at least two transfers of a cache
 * line and the peer's work. So a process whose last get had to wait, and found no other message behind it, pauses
 * before it looks again. */
#define SH_QUEUE_PAUSES 3

static inline void sh_queue_pause(void)
{
    for (int i = 0; i < SH_QUEUE_PAUSES; i++) {
        sh_pause();
    }
}

/* Looks at the oldest message, if it is there or arrives at once. */
static inline bool sh_queue_peek_fast(const shoal_block *queue, int64_t timeout, const sh_ring **out_ring,
                                      sh_peek *out_peek)
{
    sh_queue_view *v = sh_queue_view_of(queue);
    const sh_ring *ring = &v->rings[sh_load_relaxed(&v->get)];
    uint32_t get_mode = v->get_mode;
    if (get_mode != 0) {
        if (get_mode & (SH_GET_PENDING | SH_GET_SLOW)) {
            return false;
        }
        if (timeout > SHOAL_NOW) {
            sh_queue_pause();
        }
    }
    uint64_t head = sh_load_acquire(&ring->shm->head.hint);
    sh_ring_result r = sh_ring_peek_at(ring, head, out_peek);
    if (r == SH_RING_EMPTY && timeout > SHOAL_NOW && sh_spin_ns() != 0) {
        sh_spin *spin = sh_spin_at(&sh_queue_shm_of(queue)->not_empty);
        if (sh_spin_pays(spin)) {
            v->get_mode = SH_GET_EARLY;
            r = sh_ring_watch(ring, out_peek);
            if (r == SH_RING_DONE) {
                sh_spin_won(spin);
            }
        }
    } else if (get_mode != 0) {
        v->get_mode = sh_ring_is_full_at(ring, head + 1) ? 0 : SH_GET_EARLY;
    }
    *out_ring = ring;
    return r == SH_RING_DONE;
}

/* Takes the message that peek saw, with its block if it has one. */
static inline bool sh_queue_take_fast(const shoal_block *queue, const sh_ring *ring, const sh_peek *peek,
                                      shoal_block *block, uint64_t value)
{
    if (!sh_queue_take(&sh_the_world.self, queue, ring, peek, block, value)) {
        return false;
    }
    sh_queue_wake_putter(queue, peek->kind, block);
    return true;
}

/* Puts a word without a reference. */
static inline bool sh_queue_put_word_fast(shoal_block *queue, sh_entry_kind kind, uint64_t word)
{
    return sh_queue_is_fast(queue) && sh_queue_put_fast(queue, kind, (sh_transfer){.word = word});
}

/* Gets a word without a reference, of a kind up to `most`. */
static inline bool sh_queue_get_word_fast(const shoal_block *queue, sh_entry_kind most, int64_t timeout,
                                          sh_entry_kind *out_kind, uint64_t *out_word)
{
    const sh_ring *ring;
    sh_peek peek;
    if (!sh_queue_is_fast(queue) || !sh_queue_peek_fast(queue, timeout, &ring, &peek) || peek.kind > most ||
        !sh_queue_take_fast(queue, ring, &peek, NULL, 0)) {
        return false;
    }
    *out_kind = peek.kind;
    *out_word = peek.word;
    return true;
}

/* Puts a block: a part of this process's weight goes into the queue. */
static inline bool sh_queue_put_block_fast(shoal_block *queue, const shoal_block *block)
{
    sh_transfer t;
    return sh_queue_is_fast(queue) && sh_transfer_part(&sh_the_world.self, block, &t) == SHOAL_OK &&
           sh_queue_put_fast(queue, SH_ENTRY_BLOCK, t);
}

/* Puts a block that this process no longer needs: all its weight goes into the queue, and its cell is empty
 * afterwards. */
static inline bool sh_queue_give_block_fast(shoal_block *queue, const shoal_block *block)
{
    sh_transfer t = sh_transfer_all(block);
    return sh_queue_is_fast(queue) && sh_ref_weight(t.word) <= SH_WEIGHT_HOLD &&
           sh_queue_put_fast(queue, SH_ENTRY_BLOCK, t);
}

/* Takes the block that peek saw, if it is of that kind; SH_KIND_COUNT: of any. */
static inline bool sh_queue_take_block_fast(const shoal_block *queue, const sh_ring *ring, const sh_peek *peek,
                                            sh_kind kind, shoal_block **out_block)
{
    shoal_block *b;
    uint64_t value;
    if (sh_block_expect(&sh_the_world.self, peek->word, &b, &value) != SHOAL_OK) {
        return false;
    }
    if (kind != SH_KIND_COUNT && b->kind != kind) {
        sh_block_unexpect(b);
        return false;
    }
    *out_block = b;
    return sh_queue_take_fast(queue, ring, peek, b, value);
}

/* Gets a block of that kind. */
static inline bool sh_queue_get_block_fast(const shoal_block *queue, sh_kind kind, int64_t timeout,
                                           shoal_block **out_block)
{
    const sh_ring *ring;
    sh_peek peek;
    return sh_queue_is_fast(queue) && sh_queue_peek_fast(queue, timeout, &ring, &peek) && peek.kind == SH_ENTRY_BLOCK &&
           sh_queue_take_block_fast(queue, ring, &peek, kind, out_block);
}

/* Gets a message of any kind. */
static inline bool sh_queue_get_fast(const shoal_block *queue, int64_t timeout, sh_taken *out)
{
    const sh_ring *ring;
    sh_peek peek;
    if (!sh_queue_is_fast(queue) || !sh_queue_peek_fast(queue, timeout, &ring, &peek)) {
        return false;
    }
    *out = (sh_taken){.kind = peek.kind, .word = peek.word};
    return peek.kind == SH_ENTRY_BLOCK || peek.kind == SH_ENTRY_MESSAGE
               ? sh_queue_take_block_fast(queue, ring, &peek, SH_KIND_COUNT, &out->block)
               : sh_queue_take_fast(queue, ring, &peek, NULL, 0);
}

#endif
