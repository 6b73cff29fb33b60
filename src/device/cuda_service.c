/* The service thread of a process that uses a GPU in a world ("shoal-cuda"), and the short ones that it starts
 * ("shoal-answer"). They run no code of the program and no signal handlers.
 *
 * The service thread itself never calls the driver and takes no lock: a call of the driver may wait for the stream, the
 * stream for a process that has died, and then this thread must notice. When Shoal waits for its stream, it looks for
 * deaths itself. But other calls of the driver know nothing of processes: a copy to memory that is not pinned, a launch
 * when a thousand are enqueued, and what another library calls whose stream was ordered behind Shoal's.
 *
 *   while the stream waits for others   looks every 2 ms, releases the streams that wait for the dead, sweeps, and
 *                                       probes
 *   otherwise                           sleeps at its bell (shm/granule.h)
 *   a request for memory, or a probe    starts a short thread, which calls the driver: it does what shoal_cuda_trim
 *                                       does, and asks whether the GPU has failed when others wait for its work. One at
 *                                       a time
 *
 *   begins   with the first granule or import in a world, or when a process with an open GPU enters one
 *   ends     before the process leaves the world, since it sleeps in the world's memory; and at the end of the process,
 *            which waits for it a while: the driver must not be called while it shuts down
 *
 * A process that is stopped, or waits for the GPU's own work for longer than the requester waits, does not answer in
 * time: the requester gets SHOAL_ENOMEM. Without memory for threads, this process gives back only when it runs out
 * itself, and its requesters are answered at once. */
#include "device/cuda_share.h"

#include "base/clock.h"
#include "base/error.h"
#include "shm/card_store.h"
#include "sync/peers.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_EVERY SHOAL_MS(2)
#define SWEEP_EVERY 5   /* looks */
#define PROBE_EVERY 100 /* looks: 0.2 s */
#define IDLE 50         /* looks without a wait before it sleeps, so that it is not woken all the time */
#define END_LIMIT SHOAL_MS(500)
#define POLL_NS 50000

enum { RUNS, WILL_BE_QUIET, WILL_END }; /* what it was told */

static struct {
    sh_a32 exists;   /* 1: it was started, and nobody joins it; the thread that changes it joins it */
    sh_a32 starting; /* 1: a thread is about to start it */
    sh_a32 told;
    sh_a32 is_quiet; /* stored by itself: it gives nothing back any more */
    sh_a32 watches;  /* stored by itself: it looks again soon, so nobody need wake it. 0: it sleeps, or is about to */
    sh_a32 tid;      /* stored by itself; 0 until then */
    sh_asked last;   /* what it has dealt with; its own once it was started */
    pthread_t thread;
} service;

/* The short thread. Used by the service thread only, but for `ended` and `tid`. */
static struct {
    bool exists;
    sh_a32 ended;
    sh_a32 tid;
    uint64_t request;
    pthread_t thread;
} answerer;

/* ---- threads ---- */

static bool start(pthread_t *thread, const char *name, void *(*run)(void *))
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(thread, NULL, run, NULL) == 0;
    if (started) {
        (void)pthread_setname_np(*thread, name);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

static bool is_gone(const sh_a32 *tid)
{
    uint32_t id = sh_load_acquire(tid);
    return id != 0 && syscall(SYS_tgkill, getpid(), id, 0) != 0 && errno == ESRCH;
}

/* No thread gives anything back, and none is about to begin. `starting` comes first: a caller that stored `told` and
 * then sees 0 also sees what the last start has left, and no other will come. */
static bool is_quiet(const sh_a32 *unused)
{
    (void)unused;
    return sh_load_acquire(&service.starting) == 0 &&
           (sh_load_acquire(&service.is_quiet) != 0 || sh_load_acquire(&service.exists) == 0);
}

/* Polls: there is nothing to sleep on that a thread could touch as late as that. */
static bool await(bool (*is_over)(const sh_a32 *), const sh_a32 *tid, bool ends)
{
    int64_t deadline = sh_deadline(ends ? END_LIMIT : SHOAL_FOREVER);
    while (!is_over(tid) && !sh_passed(deadline)) {
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return is_over(tid);
}

/* ---- the short thread ---- */

static void give_back(uint64_t request)
{
    if (sh_cuda_check() == SHOAL_OK) {
        sh_cuda_order_give_back();
        (void)sh_cuda_memory_trim();
        sh_cardstore_sweep();
    }
    sh_cuda_order_abandon();
    sh_granules_answer(request);
}

static void *run_answer(void *unused)
{
    (void)unused;
    sh_store_release(&answerer.tid, (uint32_t)syscall(SYS_gettid));
    (void)sh_cuda_relax(); /* for the whole life of the thread */
    sh_cuda_order_ask();
    if (answerer.request != 0) {
        give_back(answerer.request);
    }
    sh_store_release(&answerer.ended, 1);
    sh_granules_ring();
    return NULL;
}

/* Returns whether there is none, or no longer. */
static bool end_answer(void)
{
    if (answerer.exists && sh_load_acquire(&answerer.ended) != 0) {
        (void)pthread_join(answerer.thread, NULL);
        (void)await(is_gone, &answerer.tid, true); /* the end of the process checks that its thread is the only one */
        answerer.exists = false;
    }
    return !answerer.exists;
}

/* request: 0 for a probe. */
static void begin_answer(uint64_t request)
{
    answerer.request = request;
    sh_store_relaxed(&answerer.ended, 0);
    sh_store_relaxed(&answerer.tid, 0);
    answerer.exists = start(&answerer.thread, "shoal-answer", run_answer);
    if (!answerer.exists && request != 0) {
        sh_granules_answer(request);
    }
}

/* ---- the service thread ---- */

/* Looks whether the stream waits for the dead. Returns whether it waits for anybody, or did a short while ago. */
static bool look(unsigned *looks, unsigned *idle)
{
    bool waits = sh_cuda_order_look() > 0;
    *idle = waits ? 0 : *idle + 1;
    if (*idle >= IDLE) {
        sh_store_relaxed(&service.watches, 0);
        sh_fence_seq_cst(); /* the store, then the look: pairs with the fence in sh_cuda_service_watch */
        waits = sh_cuda_order_look() > 0;
        *idle = waits ? 0 : IDLE;
    }
    if (*idle < IDLE) {
        sh_store_relaxed(&service.watches, 1);
    }
    if (waits && ++*looks % SWEEP_EVERY == 0) {
        (void)sh_peers_now->sweep(SH_SWEEP_AGE);
    }
    if (waits && *looks % PROBE_EVERY == 0) {
        sh_granules_probe();
    }
    return *idle < IDLE;
}

/* Does what was asked for since the last time. */
static void answer(const sh_asked *now)
{
    bool requested = now->request != service.last.request;
    if (requested || (now->probe != service.last.probe && sh_cuda_order_is_awaited())) {
        begin_answer(requested ? now->request : 0);
    }
    service.last = *now;
}

static void *serve(void *unused)
{
    (void)unused;
    unsigned looks = 0, idle = IDLE;
    sh_store_release(&service.tid, (uint32_t)syscall(SYS_gettid));
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    sh_cuda_memory_tell(); /* it may be from before this world */
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    while (sh_load_acquire(&service.told) != WILL_END) {
        sh_asked now = sh_granules_asked();
        bool watches = look(&looks, &idle);
        if (end_answer() && sh_load_acquire(&service.told) == RUNS) {
            answer(&now);
        } else if (!answerer.exists) {
            sh_store_release(&service.is_quiet, 1);
        }
        if (sh_load_acquire(&service.told) != WILL_END) {
            sh_granules_sleep(now.bell, watches ? LOOK_EVERY : SHOAL_FOREVER);
        }
    }
    sh_granules_answers_end();
    return NULL;
}

/* Without a lock: it is called inside when this process has just entered a world. Another thread may need memory while
 * this process leaves the world, and must not start a service that sleeps there: `told` stays until the next world. */
void sh_cuda_service_begin(void)
{
    uint32_t no = 0;
    if (!sh_cuda_is_ours() || !sh_attached() || sh_load_acquire(&service.exists) != 0 ||
        !sh_cas_acq_rel(&service.starting, &no, 1u)) {
        return;
    }
    sh_fence_seq_cst(); /* pairs with that in tell: either this thread sees it, or that one waits for the start */
    if (sh_load_acquire(&service.exists) == 0 && sh_load_acquire(&service.told) == RUNS) {
        sh_store_relaxed(&service.is_quiet, 0);
        sh_store_relaxed(&service.watches, 0);
        sh_store_relaxed(&service.tid, 0);
        service.last = sh_granules_answers_begin(); /* here: a requester waits for this process from now on */
        if (start(&service.thread, "shoal-cuda", serve)) {
            sh_store_release(&service.exists, 1); /* pairs with the swap in sh_cuda_service_end: thread is filled in */
        } else {
            sh_granules_answers_end();
        }
    }
    sh_store_release(&service.starting, 0);
}

void sh_cuda_service_watch(void)
{
    sh_fence_seq_cst(); /* the wait is in the slot: pairs with that in serve */
    if (sh_load_relaxed(&service.watches) == 0 && sh_cuda_order_look() > 0) {
        sh_cuda_service_begin();
        sh_granules_ring();
    }
}

static void tell(uint32_t what)
{
    sh_store_release(&service.told, what);
    sh_fence_seq_cst(); /* pairs with that in sh_cuda_service_begin */
    if (sh_attached()) {
        sh_granules_ring();
    }
}

void sh_cuda_service_quiet(bool ends)
{
    tell(WILL_BE_QUIET);
    (void)await(is_quiet, NULL, ends);
}

/* A signal handler may end the process in the middle of a join. A timed join would do for `ends`, but ThreadSanitizer
 * does not know the one with the clock that nobody sets. */
void sh_cuda_service_end(bool ends)
{
    uint32_t yes = 1;
    tell(WILL_END);
    if (sh_cas_acq_rel(&service.exists, &yes, 0u) && (!ends || await(is_gone, &service.tid, true))) {
        (void)pthread_join(service.thread, NULL);
        (void)await(is_gone, &service.tid, true);
    }
}

static void after_attach(void)
{
    if (sh_cuda_is_ours()) {
        sh_store_release(&service.told, RUNS);
        sh_cuda_service_begin();
    }
}

__attribute__((constructor)) static void install(void)
{
    sh_world_after_attach = after_attach;
}
