/* A thread that notices deaths while a call of the driver waits.
 *
 * When Shoal waits for its stream, it looks now and then whether a process died whose work the stream waits for. But other
 * calls of the driver may wait for the stream too, and know nothing of processes: a copy to memory that is not pinned, a
 * launch when a thousand are enqueued, and whatever another library calls whose stream was ordered behind Shoal's. So while
 * the stream waits for other processes, a thread looks. It never calls the driver: a capture of a library forbids it. And it
 * needs no lock that is held during a call of the driver, which may be the one that waits. */
#include "device/cuda_share.h"

#include "device/cuda_thread.h"
#include "shm/card_lock.h"
#include "sync/peers.h"

#include <time.h>

#define PAUSE_NS 2000000
#define SWEEP_EVERY 5   /* looks */
#define NUDGE_EVERY 100 /* looks: 0.2 s */
#define IDLE 50         /* looks without a wait before it ends, so that it is not started again all the time */

static void look_on(uint64_t unused);

static sh_cuda_thread thread = {.name = "shoal-cuda", .run = look_on};
static bool running; /* under the lock: it will look again */

/* Returns false if the thread must end. */
static bool look(unsigned *idle)
{
    sh_cardlock_lock(SH_CARD_LOCK_WATCH);
    *idle = sh_cuda_order_look() > 0 ? 0 : *idle + 1;
    running = sh_load_acquire(&thread.stopping) == 0 && *idle < IDLE;
    bool goes_on = running;
    sh_cardlock_unlock(SH_CARD_LOCK_WATCH);
    return goes_on;
}

static void look_on(uint64_t unused)
{
    (void)unused;
    const struct timespec moment = {.tv_nsec = PAUSE_NS};
    unsigned idle = 0;
    for (unsigned looks = 1; look(&idle); looks++) {
        nanosleep(&moment, NULL);
        if (idle == 0 && looks % SWEEP_EVERY == 0) {
            (void)sh_peers_now->sweep(SH_SWEEP_AGE);
        }
        if (idle == 0 && looks % NUDGE_EVERY == 0) {
            sh_granules_nudge();
        }
    }
}

void sh_cuda_watch(void)
{
    if (sh_cuda_order_look() == 0) {
        return;
    }
    sh_cardlock_lock(SH_CARD_LOCK_WATCH);
    if (!running && sh_load_acquire(&thread.stopping) == 0) {
        sh_cuda_thread_join(&thread); /* the last one is about to return */
        running = sh_cuda_thread_start(&thread, 0);
    }
    sh_cardlock_unlock(SH_CARD_LOCK_WATCH);
}

void sh_cuda_watch_stop(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_WATCH);
    sh_store_release(&thread.stopping, 1);
    sh_cardlock_unlock(SH_CARD_LOCK_WATCH);
    sh_cuda_thread_join(&thread);
    sh_cardlock_lock(SH_CARD_LOCK_WATCH);
    running = false;
    sh_store_release(&thread.stopping, 0);
    sh_cardlock_unlock(SH_CARD_LOCK_WATCH);
}

/* Takes no lock. Nobody starts it again. */
void sh_cuda_watch_end(void)
{
    sh_store_release(&thread.stopping, 1);
    sh_cuda_thread_end(&thread);
}
