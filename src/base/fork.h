/* What a fork does to the private locks of the library.
 *
 * A child has one thread, the one that forked. A lock that another thread had at that moment would stay locked for ever in the child,
 * and what it protects might be half changed. So every lock that is not part of a handle is registered here, once, by a constructor;
 * fork waits until it is free and takes it, in the order of the ranks, and makes it anew in the child.
 *
 * A signal handler may fork in the middle of a call whose thread has some of the locks, or is about to take one. Such a fork does not
 * wait: it would wait for itself, or for a thread that waits for what this one has. It takes the locks that are free. What the others
 * protect may be half changed, so only parts whose lock was taken prepare (sh_fork_has), and without the world's the child has no heap.
 * Calls take their lock by sh_fork_lock, which counts it first. In the middle of another fork of the same thread it takes none.
 *
 * All signals wait from before the locks are taken until they are given back, and in the child until all parts have seen to it. A handler
 * in between would find locks taken by its own thread, and in the child what is still the parent's; and exit waits for ever for the lock
 * that the C library has across a fork. What remains, in a fork that the program makes, is the C library's own: the moments in which
 * it has that lock before and after its handlers.
 *
 * The ranks are the order in which threads take these locks, outermost first. A lock of a handle (a process, a pool) needs none of this:
 * the handle belongs to the process that made it, and its calls are refused in a fork (sh_fork_is_ours).
 */
#ifndef SH_BASE_FORK_H
#define SH_BASE_FORK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef enum sh_fork_rank {
    SH_FORK_SERVER,       /* proc/forkserver.c */
    SH_FORK_BIRTH,        /* proc/sentinel.c */
    SH_FORK_DESCRIPTIONS, /* share/description.c */
    SH_FORK_STORAGES,     /* tensor/storage.c */
    SH_FORK_MODULES,      /* nn/module_types.c */
    SH_FORK_ENVS,         /* env/env.c */
    SH_FORK_WORLD,        /* shm/world.c */
    SH_FORK_WATCHES,      /* ipc/watch.c */
    SH_FORK_CHILDREN,     /* proc/registry.c */
    SH_FORK_LOG,          /* base/log.c */
    SH_FORK_RANKS,
} sh_fork_rank;

typedef struct sh_fork_part {
    pthread_mutex_t *lock; /* NULL: none */
    bool only_anew; /* fork does not wait for the lock: it is held for long, and the child forgets what it protects */
    void (*prepare)(
        void); /* before the fork, with all locks of lower ranks and this one; may be NULL, like the others */
    void (*parent)(void); /* after it, in the parent, with the same locks, whether or not there is a child */
    void (*child)(void);  /* after it, in the child; all locks are new and free */
} sh_fork_part;

/* How many of the locks this thread has, or is about to take or has just given back. Counted before the lock is taken and after it was given
 * back, so that a signal handler never finds too few. */
extern _Thread_local int sh_fork_locks __attribute__((tls_model("initial-exec")));

/* The calls of another library keep the order: it might look at sh_fork_locks. */
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

/* In the handlers of a part: was its lock taken for the fork that is under way? prepare and parent are not called when it was not. */
bool sh_fork_has(sh_fork_rank rank);

/* From a constructor. The part must stay. */
void sh_fork_register(sh_fork_rank rank, const sh_fork_part *part);

/* What was registered; NULL: nothing. For tests, which hold a lock while they fork. */
const sh_fork_part *sh_fork_part_of(sh_fork_rank rank);

/* Takes all locks for a fork that this thread is about to make, so that nothing changes between what it does now and the fork; signals
 * wait. The child calls let_go too, for the signals. */
void sh_fork_hold(void);
void sh_fork_let_go(void);

/* Which process of a line of forks this is: another number in each child than in its parent. */
uint64_t sh_fork_generation(void);

/* For what belongs to the process that made it: was it made, at that generation, by this very process? */
static inline bool sh_fork_is_ours(uint64_t generation)
{
    return generation == sh_fork_generation();
}

#endif
