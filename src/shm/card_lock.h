/* The locks of a process that protect its use of the card, in one table. The enum is the order: a thread takes a lock
 * only if all that it holds come before it. Debug builds (without NDEBUG) check this per thread, and end the process with
 * the names of both locks if it is wrong. docs/cuda.md says what each lock protects.
 *
 * A child of fork takes none of them, except SH_CARD_LOCK_OPEN, which fork makes anew (base/fork.h). */
#ifndef SH_SHM_CARD_LOCK_H
#define SH_SHM_CARD_LOCK_H

#include <pthread.h>
#include <stdbool.h>

typedef enum sh_cardlock_rank {
    SH_CARD_LOCK_OPEN,     /* opening the card; held during driver calls */
    SH_CARD_LOCK_TRIM,     /* one thread gives granules back; held during driver calls */
    SH_CARD_LOCK_EXPORT,   /* one thread puts a granule into the store; held during driver calls */
    SH_CARD_LOCK_MEMORY,   /* the allocator; held during driver calls */
    SH_CARD_LOCK_IMPORTS,  /* granules of other processes; held during driver calls */
    SH_CARD_LOCK_ORDER,    /* marks and waits enter the stream in order; held during driver calls */
    SH_CARD_LOCK_EVENT,    /* the event that orders two streams; held during driver calls */
    SH_CARD_LOCK_WATCH,    /* start and end of the thread that notices deaths */
    SH_CARD_LOCK_STATE,    /* small lists and flags; never held during a driver call */
    SH_CARD_LOCK_TIMELINE, /* the owner of a timeline (shm/timeline.c) */
    SH_CARD_LOCKS,
} sh_cardlock_rank;

void sh_cardlock_lock(sh_cardlock_rank rank);
bool sh_cardlock_trylock(sh_cardlock_rank rank);
void sh_cardlock_unlock(sh_cardlock_rank rank);

/* Returns the mutex, to register it with fork. */
pthread_mutex_t *sh_cardlock_mutex(sh_cardlock_rank rank);

#endif
