#include "shm/card_lock.h"

#include "base/error.h"
#include "base/fork.h"

#include <stdio.h>

static pthread_mutex_t mutexes[SH_CARD_LOCKS] = {
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};

_Static_assert(SH_CARD_LOCKS == 10, "every lock has its initialiser");

#ifndef NDEBUG
static const char *const names[SH_CARD_LOCKS] = {
    [SH_CARD_LOCK_OPEN] = "open",         [SH_CARD_LOCK_TRIM] = "trim",       [SH_CARD_LOCK_EXPORT] = "export",
    [SH_CARD_LOCK_MEMORY] = "memory",     [SH_CARD_LOCK_IMPORTS] = "imports", [SH_CARD_LOCK_ORDER] = "order",
    [SH_CARD_LOCK_EVENT] = "event",       [SH_CARD_LOCK_WATCH] = "watch",     [SH_CARD_LOCK_STATE] = "state",
    [SH_CARD_LOCK_TIMELINE] = "timeline",
};

static _Thread_local unsigned held __attribute__((tls_model("initial-exec"))); /* a bit for each lock */

static void check(sh_cardlock_rank rank)
{
    if (held >> rank != 0) {
        unsigned last = 31u - (unsigned)__builtin_clz(held);
        char text[96];
        snprintf(text, sizeof text, "lock order of the GPU: \"%s\" is taken under \"%s\"", names[rank], names[last]);
        sh_panic(__FILE__, __LINE__, text);
    }
}

static void hold(sh_cardlock_rank rank)
{
    held |= 1u << rank;
}

static void drop(sh_cardlock_rank rank)
{
    held &= ~(1u << rank);
}
#else
static void check(sh_cardlock_rank rank)
{
    (void)rank;
}

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
    check(rank);
    if (rank == SH_CARD_LOCK_OPEN) {
        sh_fork_lock(&mutexes[rank]);
    } else {
        pthread_mutex_lock(&mutexes[rank]);
    }
    hold(rank);
}

/* Does not wait, so no order can be wrong. */
bool sh_cardlock_trylock(sh_cardlock_rank rank)
{
    bool locked = pthread_mutex_trylock(&mutexes[rank]) == 0;
    if (locked) {
        hold(rank);
    }
    return locked;
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
