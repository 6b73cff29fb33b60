/* A thread that answers the requests of other processes for card memory (shm/granule.h).
 *
 * A process that finds the card full asks the others to give back what they do not use. Any of them may be blocked for
 * long, in the library or elsewhere: in a queue, a join, a read, a computation. So each process that has opened a card and
 * is in a world has a thread that sleeps until one asks. It does what shoal_cuda_trim does, under the same locks as the
 * program's threads. It also notices for a blocked program that its card has failed, when others wait for the card's work.
 *
 *   begins   with the first granule or import in a world, or when a process with an open card enters one
 *   ends     before the process leaves the world, since it sleeps in the world's memory; and at the end of the process,
 *            which waits for it a while: the driver must not be called while it shuts down
 *
 * stopped, or waiting for the card's own work for longer than who asked waits: that one gets SHOAL_ENOMEM.
 * Without memory for a thread there is none: then this process gives back only when it runs out itself. */
#include "device/cuda_share.h"

#include "base/error.h"
#include "device/cuda_thread.h"
#include "shm/card_lock.h"
#include "shm/card_store.h"

static void answer_all(uint64_t last);

/* Stops when this process leaves its world, or ends. No other is started until this process is in another world. */
static sh_cuda_thread thread = {.name = "shoal-answer", .run = answer_all};

static void give_back(void)
{
    if (sh_cuda_check() == SHOAL_OK) {
        sh_cuda_order_give_back();
        (void)sh_cuda_memory_trim();
        sh_cardstore_sweep();
    }
    sh_cuda_order_abandon();
}

/* last: the last request before it began. */
static void answer_all(uint64_t last)
{
    sh_cuda_memory_lock();
    sh_cuda_memory_tell(); /* it may be from before this world */
    sh_cuda_memory_unlock();
    for (;;) {
        uint64_t wanted = sh_granules_await_request(last, &thread.stopping);
        if (sh_load_acquire(&thread.stopping) != 0) {
            break;
        }
        (void)sh_cuda_relax(); /* for the whole life of the thread */
        sh_cuda_order_ask();
        if (wanted != last) {
            last = wanted;
            give_back();
            sh_granules_answer(last);
        }
    }
    sh_granules_answers_end();
}

/* Under the lock. */
static void start(void)
{
    if (!sh_cuda_thread_start(&thread, sh_granules_answers_begin())) {
        sh_granules_answers_end();
    }
}

/* Another thread may need memory while this process leaves the world: it must not start one that sleeps there. */
void sh_cuda_answer_begin(void)
{
    if (!sh_cuda_is_ours() || !sh_attached()) {
        return;
    }
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    if (sh_load_relaxed(&thread.exists) == 0 && sh_load_relaxed(&thread.stopping) == 0) {
        start();
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
}

static void tell_to_stop(void)
{
    sh_store_release(&thread.stopping, 1);
    sh_granules_answers_stop();
}

void sh_cuda_answer_leave(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    tell_to_stop();
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    sh_cuda_thread_join(&thread);
}

/* Takes no lock: a signal handler may have interrupted its owner. */
void sh_cuda_answer_end(void)
{
    tell_to_stop();
    sh_cuda_thread_end(&thread);
}

static void after_attach(void)
{
    if (sh_cuda_is_ours()) {
        sh_cardlock_lock(SH_CARD_LOCK_STATE);
        sh_store_release(&thread.stopping, 0);
        sh_cardlock_unlock(SH_CARD_LOCK_STATE);
        sh_cuda_answer_begin();
    }
}

__attribute__((constructor)) static void install(void)
{
    sh_world_after_attach = after_attach;
}
