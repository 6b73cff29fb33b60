#include "shm/card_lock.h"

#include "base/error.h"
#include "base/fork.h"

#include <stdio.h>

static pthread_mutex_t mutexes[] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};

_Static_assert(sizeof mutexes / sizeof mutexes[0] == SH_CARD_LOCKS, "every lock has its initialiser");

#ifndef NDEBUG
static _Thread_local unsigned held __attribute__((tls_model("initial-exec"))); /* a bit for each lock */

/* what: what this thread is about to do; only locks before `rank` may be held. */
static void check(sh_cardlock_rank rank, const char *what)
{
    static const char *const names[] = {"open", "driver", "state"};
    if (held >> rank != 0) {
        char text[96];
        snprintf(text, sizeof text, "lock order of the GPU: %s under \"%s\"", what, names[31 - __builtin_clz(held)]);
        sh_panic(__FILE__, __LINE__, text);
    }
}

void sh_cardlock_check_call(void)
{
    check(SH_CARD_LOCK_STATE, "the driver is called");
}

static void hold(sh_cardlock_rank rank)
{
    static const char *const taken[] = {"\"open\" is taken", "\"driver\" is taken", "\"state\" is taken"};
    check(rank, taken[rank]);
    held |= 1u << rank;
}

static void drop(sh_cardlock_rank rank)
{
    held &= ~(1u << rank);
}
#else
static void hold(sh_cardlock_rank rank)
{
    (void)rank;
}

static void drop(sh_cardlock_rank rank)
{
    (void)rank;
}
#endif

pthread_mutex_t *sh_cardlock_mutex(sh_cardlock_rank rank)
{
    return &mutexes[rank];
}

void sh_cardlock_lock(sh_cardlock_rank rank)
{
    hold(rank);
    if (rank == SH_CARD_LOCK_OPEN) {
        sh_fork_lock(&mutexes[rank]);
    } else {
        pthread_mutex_lock(&mutexes[rank]);
    }
}

void sh_cardlock_unlock(sh_cardlock_rank rank)
{
    drop(rank);
    if (rank == SH_CARD_LOCK_OPEN) {
        sh_fork_unlock(&mutexes[rank]);
    } else {
        pthread_mutex_unlock(&mutexes[rank]);
    }
}
