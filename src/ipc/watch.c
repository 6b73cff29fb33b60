/* Queues for event loops: an eventfd that polls readable while the queue is ready.
 *
 * One thread of the process, the watcher, waits at the gates of all watched queues that are not ready. It exists from
 * the first shoal_queue_fd until the process leaves its world or exits. To producers it is one more waiter: they wake
 * it if it is parked, and pay nothing while the fd is readable or if nobody asked for an fd.
 *
 *   watcher, under the lock, for each queue whose fd is clear          a get of this process, afterwards, under the
 *                                                                      lock
 *   ---------------------------------------------------------          ------------------------------------------------
 *   prepare the gate                                                   fd readable, queue not ready? then
 *   queue ready? then make the fd readable, pass the wake-up on            clear the fd
 *   else wait at the gate                                                  poke the watcher: it waits at the gate again
 *
 * No readiness is lost. If a put comes before the watcher's look, the watcher sees it; if it comes after, it finds the
 * gate's flag set (park.h). If a put comes between the getter's look and the clearing, the look that the poke asks for
 * sees it. An fd may be readable for no reason, if another process took the message. The next get of this process finds
 * the queue empty and clears it.
 *
 * The wake-up that the watcher got may have been meant for a process that takes. So the watcher wakes one more waiter.
 * death: of the whole process, between the two: recovery wakes all gates of what the dead process held.
 * A stopped process costs a waiter elsewhere what any stopped waiter costs: it looks again after its slice.
 *
 * sh_watch_forget takes the lock inside. So a thread that holds the lock must not call sh_enter.
 */
#include "ipc/watch.h"

#include "base/clock.h"
#include "base/fork.h"
#include "base/grow.h"
#include "ipc/delivery.h"
#include "ipc/queue.h"
#include "os/fd.h"
#include "os/futex.h"

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_WITHOUT SHOAL_MS(2) /* used when it cannot wait at all gates at once */
#define LOCK_SLICE SHOAL_MS(1)    /* between attempts to take the lock */
#define END_LIMIT SHOAL_MS(500)   /* how long the exit of the process waits for the watcher */

typedef struct watch {
    shoal_block *queue; /* borrowed: releasing the queue removes the watch */
    sh_queue_view *view;
    int fd;
    bool readable;
} watch;

/* The lock protects all of these but the atomic words. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static watch *watches;
static size_t watch_count, watch_room;
static pthread_t watcher;
static bool running;
static bool hooked;                             /* before_end is called */
static void (*before_end_of_others)(bool ends); /* what sh_world_before_end was */

static sh_a32 poked;    /* increased to make the watcher look again; it also parks here */
static sh_a32 stopping; /* 1: the watcher must end */
static sh_a32 tid;      /* of the watcher */

static void poke(void)
{
    sh_add_acq_rel(&poked, 1);
    sh_futex_wake(&poked, INT_MAX);
}

/* Finds the watch of a view by the index in the view. In a forked child that index may be invalid or another view's. */
static watch *find(const sh_queue_view *view)
{
    uint32_t place = sh_load_relaxed(&view->watch);
    return place != 0 && place <= watch_count && watches[place - 1].view == view ? &watches[place - 1] : NULL;
}

static void set_readable(watch *w, bool readable)
{
    uint64_t value = 1;
    ssize_t done = readable ? write(w->fd, &value, sizeof value) : read(w->fd, &value, sizeof value);
    (void)done; /* fails only if the program closed the fd */
    w->readable = readable;
}

/* ---- the watcher ---- */

/* Takes the lock, but never waits for it forever: the process may exit in a signal handler that interrupted the lock's
 * holder. Returns false if the watcher must end. */
static bool lock_unless_stopped(void)
{
    for (int tries = 0; pthread_mutex_trylock(&lock) != 0; tries++) {
        if (sh_load_acquire(&stopping) != 0) {
            return false;
        }
        if (tries < 16) {
            sched_yield();
        } else {
            sh_futex_wait(&stopping, 0, sh_now() + LOCK_SLICE);
        }
    }
    return true;
}

/* Under the lock: fills in where to wait, and moves `until` forward if something must be checked earlier. */
static size_t look(sh_futex_pair *pairs, size_t most, int64_t *until)
{
    size_t n = 0;
    int64_t now = sh_now();
    for (size_t i = 0; i < watch_count; i++) {
        watch *w = &watches[i];
        if (w->readable) {
            continue; /* the get that clears it pokes the watcher */
        }
        sh_gate *gate = &sh_queue_shm_of(w->queue)->not_empty;
        uint32_t prepared = sh_gate_prepare(gate);
        if (sh_queue_is_ready(w->queue)) {
            set_readable(w, true);
            sh_gate_wake(gate, 1);
            continue;
        }
        if (n < most) {
            pairs[n++] = (sh_futex_pair){.word = &gate->word, .value = prepared};
        } else if (*until > now + SLICE_WITHOUT) {
            *until = now + SLICE_WITHOUT;
        }
        if (sh_queue_is_acknowledged(w->queue)) { /* a lease may expire earlier */
            *until = sh_deliveries_wait_until(w->queue, *until);
        }
    }
    return n;
}

static void *watch_all(void *unused)
{
    (void)unused;
    sh_store_release(&tid, (uint32_t)syscall(SYS_gettid));
    bool many = sh_futex_can_wait_many();
    int64_t slice = SH_SLICE_SHORT, sweep_at = sh_now() + slice;
    while (sh_load_acquire(&stopping) == 0) {
        sh_futex_pair pairs[SH_FUTEX_MANY] = {{.word = &poked, .value = sh_load_acquire(&poked)}};
        int64_t until = sweep_at;
        if (!lock_unless_stopped()) {
            break;
        }
        size_t n = 1 + look(pairs + 1, many ? SH_FUTEX_MANY - 1 : 0, &until);
        pthread_mutex_unlock(&lock);
        if (n == 1) {
            sh_futex_wait(pairs[0].word, pairs[0].value, until);
        } else {
            sh_futex_wait_many(pairs, n, until);
        }
        if (sh_now() >= sweep_at) { /* the last holder of a pipe's other end may be dead */
            (void)sh_peers_now->sweep(slice / 2);
            slice = slice * 2 < SH_SLICE_LONG ? slice * 2 : SH_SLICE_LONG;
            sweep_at = sh_now() + slice;
        }
    }
    return NULL;
}

/* ---- its life ---- */

/* Waits until the kernel has removed the thread: the exit of the process checks that it is the only one (end.c). */
static void await_gone(uint32_t thread)
{
    for (int i = 0; i < 1000 && syscall(SYS_tgkill, getpid(), thread, 0) == 0; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
}

static void stop(bool ends)
{
    if (!running) {
        return;
    }
    sh_store_release(&stopping, 1);
    sh_futex_wake(&stopping, INT_MAX);
    poke();
    if (ends) { /* uses neither the lock nor malloc: a signal handler may have interrupted their owner */
        int64_t limit = sh_now() + END_LIMIT;
        struct timespec t = {.tv_sec = limit / 1000000000, .tv_nsec = limit % 1000000000};
        if (pthread_clockjoin_np(watcher, NULL, CLOCK_MONOTONIC, &t) == 0) {
            await_gone(sh_load_acquire(&tid));
            running = false;
        }
        return;
    }
    pthread_join(watcher, NULL);
    await_gone(sh_load_acquire(&tid));
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < watch_count; i++) {
        close(watches[i].fd);
        sh_store_relaxed(&watches[i].view->watch, 0);
    }
    watch_count = 0;
    running = false;
    pthread_mutex_unlock(&lock);
}

static void before_end(bool ends)
{
    stop(ends);
    if (before_end_of_others != NULL) {
        before_end_of_others(ends);
    }
}

/* The child has no watcher. The eventfds are shared with the parent, so writing or reading them would affect the
 * parent. The handles may be gone already; those that remain are not found in the list. */
static void fork_child(void)
{
    for (size_t i = 0; i < watch_count; i++) {
        close(watches[i].fd);
    }
    watch_count = 0;
    running = false;
}

__attribute__((constructor)) static void install(void)
{
    static const sh_fork_part part = {.lock = &lock, .child = fork_child};
    sh_fork_register(SH_FORK_WATCHES, &part);
}

static shoal_err start(void)
{
    sigset_t all, before;
    sigfillset(&all);
    sh_store_release(&stopping, 0);
    if (!hooked) {
        before_end_of_others = sh_world_before_end;
        sh_world_before_end = before_end;
        hooked = true;
    }
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the program's handlers run in its own threads */
    int failed = pthread_create(&watcher, NULL, watch_all, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        return sh_fail(SHOAL_EOS, "cannot start the thread that watches queues: %s", strerror(failed));
    }
    (void)pthread_setname_np(watcher, "shoal-watch");
    running = true;
    return SHOAL_OK;
}

/* ---- watches ---- */

/* Under the lock. */
static shoal_err add(shoal_block *q, int *out_fd)
{
    if (!sh_grow(&watches, watch_count, &watch_room, sizeof *watches)) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the fd of a queue");
    }
    int fd = sh_fd_keep(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (fd < 0) {
        return sh_fail_os("eventfd for a queue");
    }
    shoal_err err = running ? SHOAL_OK : start();
    if (err != SHOAL_OK) {
        close(fd);
        return err;
    }
    sh_queue_view *view = sh_queue_view_of(q);
    watches[watch_count] = (watch){.queue = q, .view = view, .fd = fd};
    if (sh_queue_is_ready(q)) { /* so that a poll without a timeout, right now, sees it */
        set_readable(&watches[watch_count], true);
    }
    watch_count++;
    sh_store_relaxed(&view->watch, (uint32_t)watch_count);
    poke();
    *out_fd = fd;
    return SHOAL_OK;
}

shoal_err sh_watch_fd(shoal_block *q, int *out_fd)
{
    shoal_err err = SHOAL_OK;
    pthread_mutex_lock(&lock);
    const watch *known = find(sh_queue_view_of(q));
    if (known != NULL) {
        *out_fd = known->fd;
    } else {
        err = add(q, out_fd);
    }
    pthread_mutex_unlock(&lock);
    return err;
}

void sh_watch_forget(sh_queue_view *view)
{
    pthread_mutex_lock(&lock);
    watch *w = find(view);
    if (w != NULL) {
        close(w->fd);
        *w = watches[--watch_count];
        sh_store_relaxed(&w->view->watch, (uint32_t)(w - watches) + 1);
        poke(); /* the watcher waits at a gate that may soon belong to another queue */
    }
    sh_store_relaxed(&view->watch, 0);
    pthread_mutex_unlock(&lock);
}

void sh_watch_got_slow(sh_queue_view *view)
{
    pthread_mutex_lock(&lock);
    watch *w = find(view);
    if (w == NULL) {
        sh_store_relaxed(&view->watch, 0); /* this is a forked child */
    } else if (w->readable && !sh_queue_is_ready(w->queue)) {
        set_readable(w, false);
        poke();
    }
    pthread_mutex_unlock(&lock);
}
