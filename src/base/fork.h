/* The private locks of the library across a fork.
 *
 * A child has one thread, the one that forked. A lock that another thread held at that moment would stay locked forever
 * in the child, and the data under it might be half changed. So a constructor registers every lock that is not part of
 * a handle here, once. fork waits for each lock and takes it, in the order of the ranks, and initialises it again in
 * the child.
 *
 * A signal handler may fork in the middle of a call whose thread holds some of the locks, or is about to take one. Such
 * a fork does not wait: it would wait for itself, or for a thread that waits for a lock that this thread holds. It
 * takes the locks that are free. The data under the other locks may be half changed, so only parts whose lock was taken
 * prepare (sh_fork_has); without the world's lock, the child has no heap. Calls take their lock with sh_fork_lock,
 * which counts it first. A fork in the middle of another fork of the same thread takes no locks.
 *
 * All signals are blocked from before the locks are taken until they are released, and in the child until all parts
 * have handled the fork. A handler that ran in between would find locks that its own thread holds, and in the child
 * state that is still the parent's; and exit would wait forever for the lock that the C library holds across a fork. In
 * a fork that the program makes, one gap remains that only the C library could close: it holds that lock for a moment
 * before and after its fork handlers run.
 *
 * The ranks are the order in which threads take these locks, outermost first. A lock of a handle (a process, a pool)
 * needs none of this: the handle belongs to the process that made it, and its calls fail in a child (sh_fork_is_ours).
 */
#ifndef SH_BASE_FORK_H
#define SH_BASE_FORK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum sh_fork_rank {
    SH_FORK_SERVER,            /* proc/forkserver.c */
    SH_FORK_BIRTH,             /* proc/sentinel.c */
    SH_FORK_DESCRIPTIONS,      /* share/description.c */
    SH_FORK_CARD_DESCRIPTIONS, /* share/description.c */
    SH_FORK_STORAGES,          /* tensor/storage.c */
    SH_FORK_MODULES,           /* nn/module_types.c */
    SH_FORK_ENVS,              /* env/env.c */
    SH_FORK_WORLD,             /* shm/world.c */
    SH_FORK_WATCHES,           /* ipc/watch.c */
    SH_FORK_RECEIPTS,          /* ipc/receipt.c */
    SH_FORK_CHILDREN,          /* proc/registry.c */
    SH_FORK_CARD,              /* device/cuda.c */
    SH_FORK_LOG,               /* base/log.c */
    SH_FORK_RANKS,
} sh_fork_rank;

typedef struct sh_fork_part {
    pthread_mutex_t *lock; /* may be NULL */
    bool only_anew; /* fork does not wait for the lock: it is held for long, and the child drops what it protects */
    void (*prepare)(void); /* before the fork, with all locks held; any handler may be NULL */
    void (*parent)(void);  /* after it, in the parent, with the same locks held, whether or not there is a child */
    void (*child)(void);   /* after it, in the child; all locks are new and free */
} sh_fork_part;

/* The number of these locks that this thread holds, is about to take or has just released. It is incremented before the
 * lock is taken and decremented after the release, so a signal handler never sees too low a number. */
extern _Thread_local int sh_fork_locks __attribute__((tls_model("initial-exec")));

/* The compiler cannot reorder the count and the call: for all it knows, pthread_mutex_lock reads sh_fork_locks. */
static inline void sh_fork_lock(pthread_mutex_t *lock)
{
    sh_fork_locks++;
    pthread_mutex_lock(lock);
}

static inline void sh_fork_unlock(pthread_mutex_t *lock)
{
    pthread_mutex_unlock(lock);
    sh_fork_locks--;
}

/* For the handlers of a part: checks whether the part's lock was taken for the current fork. If not, prepare and parent
 * are not called. */
bool sh_fork_has(sh_fork_rank rank);

/* Registers a part. Called from a constructor. The part must stay valid. */
void sh_fork_register(sh_fork_rank rank, const sh_fork_part *part);

/* Returns what was registered, or NULL. For tests that hold a lock while they fork. */
const sh_fork_part *sh_fork_part_of(sh_fork_rank rank);

/* Takes all locks for a fork that this thread is about to make, so that nothing changes between now and the fork.
 * Signals are blocked until sh_fork_let_go, which the child calls too, to unblock them. */
void sh_fork_hold(void);
void sh_fork_let_go(void);

/* Returns a number that differs between a child and its parent, along any line of forks. */
uint64_t sh_fork_generation(void);

/* Checks whether this very process made an object at that generation. For objects that belong to their maker. */
static inline bool sh_fork_is_ours(uint64_t generation)
{
    return generation == sh_fork_generation();
}

#endif
