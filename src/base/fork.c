#include "base/fork.h"

#include <signal.h>
#include <string.h>

static const sh_fork_part *parts[SH_FORK_RANKS]; /* written by constructors, while there is only one thread */
static uint64_t generation;

_Thread_local int sh_fork_locks __attribute__((tls_model("initial-exec")));

/* The state of this thread. */
static _Thread_local bool holds;     /* it took the locks with sh_fork_hold, before the fork */
static _Thread_local bool busy;      /* it is taking the locks, releasing them, or forking */
static _Thread_local uint16_t inner; /* forks that signal handlers make meanwhile */
static _Thread_local uint32_t taken; /* the locks that it holds; bit: rank */
/* The signals that were blocked before; bit: number - 1. A sigset_t has room for 1,024. */
static _Thread_local uint64_t blocked;

static void block_signals(void)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    memcpy(&blocked, &before, sizeof blocked);
}

static void unblock_signals(void)
{
    sigset_t before;
    sigemptyset(&before);
    memcpy(&before, &blocked, sizeof blocked);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static bool is_waited_for(int rank)
{
    return parts[rank] != NULL && parts[rank]->lock != NULL && !parts[rank]->only_anew;
}

static void lock_all(void)
{
    bool in_call = sh_fork_locks > 0; /* a fork in a signal handler: it does not wait */
    taken = 0;
    for (int i = 0; i < SH_FORK_RANKS; i++) {
        bool had = !is_waited_for(i) || pthread_mutex_trylock(parts[i]->lock) == 0;
        if (!had && !in_call) {
            pthread_mutex_lock(parts[i]->lock);
            had = true;
        }
        taken |= (uint32_t)had << i;
    }
}

static void unlock_all(void)
{
    for (int i = SH_FORK_RANKS; i-- > 0;) {
        if (is_waited_for(i) && sh_fork_has((sh_fork_rank)i)) {
            pthread_mutex_unlock(parts[i]->lock);
        }
    }
    taken = 0;
}

bool sh_fork_has(sh_fork_rank rank)
{
    return (taken >> rank & 1) != 0;
}

void sh_fork_hold(void)
{
    block_signals();
    busy = true;
    lock_all();
    holds = true;
    busy = false;
}

void sh_fork_let_go(void)
{
    busy = true;
    holds = false;
    unlock_all();
    busy = false;
    unblock_signals();
}

static void prepare(void)
{
    if (busy) {
        inner++;
        return;
    }
    if (!holds) {
        block_signals();
    }
    busy = true;
    if (!holds) {
        lock_all();
    }
    for (int i = 0; i < SH_FORK_RANKS; i++) {
        if (parts[i] != NULL && parts[i]->prepare != NULL && sh_fork_has((sh_fork_rank)i)) {
            parts[i]->prepare();
        }
    }
}

static void parent(void)
{
    if (inner > 0) {
        inner--;
        return;
    }
    for (int i = SH_FORK_RANKS; i-- > 0;) {
        if (parts[i] != NULL && parts[i]->parent != NULL && sh_fork_has((sh_fork_rank)i)) {
            parts[i]->parent();
        }
    }
    if (!holds) {
        unlock_all();
    }
    busy = false;
    if (!holds) {
        unblock_signals();
    }
}

static void child(void)
{
    generation++;
    taken = inner > 0 ? 0 : taken;
    for (int i = 0; i < SH_FORK_RANKS; i++) {
        if (parts[i] != NULL && parts[i]->lock != NULL) {
            if (is_waited_for(i) && sh_fork_has((sh_fork_rank)i)) {
                /* This thread holds it. ThreadSanitizer would take the new mutex for locked, too. */
                pthread_mutex_unlock(parts[i]->lock);
            }
            pthread_mutex_init(parts[i]->lock, NULL);
        }
    }
    for (int i = 0; i < SH_FORK_RANKS; i++) {
        if (parts[i] != NULL && parts[i]->child != NULL) {
            parts[i]->child();
        }
    }
    bool waits = holds || inner > 0; /* sh_fork_let_go, or the outer fork, unblocks the signals */
    holds = busy = false;
    inner = 0;
    taken = 0;
    sh_fork_locks = 0;
    if (!waits) {
        unblock_signals();
    }
}

void sh_fork_register(sh_fork_rank rank, const sh_fork_part *part)
{
    static bool installed;
    parts[rank] = part;
    if (!installed) {
        installed = true;
        pthread_atfork(prepare, parent, child);
    }
}

const sh_fork_part *sh_fork_part_of(sh_fork_rank rank)
{
    return parts[rank];
}

uint64_t sh_fork_generation(void)
{
    return generation;
}
