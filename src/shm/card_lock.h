/* The locks of a process that protect its use of the GPU, in one table. The enum is the order: a thread takes a lock
 * only if all that it holds come before it. Debug builds (without NDEBUG) check this per thread, and that no call of
 * the driver is made under the lock of the state. They end the process with the names of both locks if it is wrong.
 * docs/cuda.md says what each lock protects.
 *
 * The world's lock (sh_enter) comes after these: it may be taken under any of them, and none of them is taken inside. A
 * child of fork takes none of them, except SH_CARD_LOCK_OPEN, which fork makes anew (base/fork.h). */
#ifndef SH_SHM_CARD_LOCK_H
#define SH_SHM_CARD_LOCK_H

#include <pthread.h>

typedef enum sh_cardlock_rank {
    SH_CARD_LOCK_OPEN,   /* opening the GPU; held during driver calls */
    SH_CARD_LOCK_DRIVER, /* the order of this process's calls of the driver; held during them */
    SH_CARD_LOCK_STATE,  /* all that this process knows about its GPU memory; never held during a driver call */
    SH_CARD_LOCKS,
} sh_cardlock_rank;

void sh_cardlock_lock(sh_cardlock_rank rank);
void sh_cardlock_unlock(sh_cardlock_rank rank);

/* Checks, in debug builds, that this thread may call the driver now. */
#ifdef NDEBUG
static inline void sh_cardlock_check_call(void)
{
}
#else
void sh_cardlock_check_call(void);
#endif

/* Returns the mutex, to register it with fork. */
pthread_mutex_t *sh_cardlock_mutex(sh_cardlock_rank rank);

#endif
