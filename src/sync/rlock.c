#include "sync/rlock.h"

#include "base/death.h"
#include "base/error.h"

#include <pthread.h>
#include <unistd.h>

static _Thread_local uint32_t thread_id; /* 0: not known yet */
static bool may_cache;

/* After a fork, the child has a copy of the forking thread's thread_id, but another tid. */
static void forget_thread(void)
{
    thread_id = 0;
}

__attribute__((constructor)) static void forget_at_fork(void)
{
    may_cache = pthread_atfork(NULL, NULL, forget_thread) == 0;
}

static uint64_t this_thread(void)
{
    uint32_t tid = thread_id;
    if (tid == 0) {
        tid = (uint32_t)gettid();
        thread_id = may_cache ? tid : 0;
    }
    return (sh_life_now & SH_OWNER_MASK) << 32 | tid;
}

void sh_rlock_format(sh_rlock_shm *rlock)
{
    *rlock = (sh_rlock_shm){0};
    sh_lock_format(&rlock->lock);
}

/* Writes down who holds the lock. The caller has just taken it. */
static void begin(sh_rlock_shm *rlock, uint64_t me, uint32_t depth)
{
    /* death: the dead process holds the lock, which is repaired as such; the next holder writes both words. */
    SH_DEATH("sync.rlock.taken");
    sh_store_relaxed(&rlock->depth, depth);
    sh_store_relaxed(&rlock->holder, me);
}

/* Releases the lock of a caller that holds it. Clears holder first: nobody finds the name of a thread that is about to
 * lose the lock. */
static shoal_err give(sh_rlock_shm *rlock)
{
    sh_store_relaxed(&rlock->holder, 0);
    /* death: as in begin(). */
    SH_DEATH("sync.rlock.cleared");
    return sh_lock_unlock(&rlock->lock);
}

/* For a thread that holds the lock. */
static shoal_err lock_again(sh_rlock_shm *rlock)
{
    uint32_t depth = sh_load_relaxed(&rlock->depth);
    if (depth == UINT32_MAX) {
        return sh_fail(SHOAL_ESTATE, "the recursive lock is held %u times, which is the limit", depth);
    }
    sh_store_relaxed(&rlock->depth, depth + 1);
    return SHOAL_OK;
}

shoal_err sh_rlock_lock(sh_rlock_shm *rlock, int64_t timeout)
{
    uint64_t me = this_thread();
    if (sh_load_relaxed(&rlock->holder) == me) {
        return lock_again(rlock);
    }
    SH_TRY(sh_lock_lock(&rlock->lock, timeout));
    begin(rlock, me, 1);
    return SHOAL_OK;
}

shoal_err sh_rlock_lock_consistent(sh_rlock_shm *rlock, int64_t timeout)
{
    uint64_t me = this_thread();
    if (sh_load_relaxed(&rlock->holder) == me) {
        return lock_again(rlock);
    }
    SH_TRY(sh_lock_lock_consistent(&rlock->lock, timeout));
    begin(rlock, me, 1);
    return SHOAL_OK;
}

bool sh_rlock_owner_died(sh_rlock_shm *rlock)
{
    return sh_lock_owner_died(&rlock->lock);
}

shoal_err sh_rlock_mark_consistent(sh_rlock_shm *rlock)
{
    return sh_rlock_held(rlock) ? sh_lock_mark_consistent(&rlock->lock)
                                : sh_fail(SHOAL_EPERM, "this thread does not hold the recursive lock");
}

shoal_err sh_rlock_unlock(sh_rlock_shm *rlock)
{
    if (__builtin_expect(!sh_rlock_held(rlock), 0)) {
        return sh_fail(SHOAL_EPERM, "this thread does not hold the recursive lock");
    }
    uint32_t depth = sh_load_relaxed(&rlock->depth) - 1;
    if (depth == 0) {
        return give(rlock);
    }
    sh_store_relaxed(&rlock->depth, depth);
    return SHOAL_OK;
}

bool sh_rlock_held(sh_rlock_shm *rlock)
{
    return sh_load_relaxed(&rlock->holder) == this_thread();
}

uint32_t sh_rlock_depth(sh_rlock_shm *rlock)
{
    return sh_rlock_held(rlock) ? sh_load_relaxed(&rlock->depth) : 0;
}

uint32_t sh_rlock_unlock_all(sh_rlock_shm *rlock)
{
    if (!sh_rlock_held(rlock)) {
        return 0;
    }
    uint32_t depth = sh_load_relaxed(&rlock->depth);
    shoal_err err = give(rlock);
    SH_INVARIANT(err == SHOAL_OK); /* the holder of the rlock holds its lock */
    return depth;
}

shoal_err sh_rlock_lock_depth(sh_rlock_shm *rlock, uint32_t depth, int64_t timeout)
{
    if (depth == 0) {
        return sh_fail(SHOAL_EINVAL, "the depth of a recursive lock must be at least 1");
    }
    if (sh_rlock_held(rlock)) {
        return sh_fail(SHOAL_ESTATE, "this thread already holds the recursive lock");
    }
    SH_TRY(sh_lock_lock(&rlock->lock, timeout));
    begin(rlock, this_thread(), depth);
    return SHOAL_OK;
}

bool sh_rlock_repair(sh_rlock_shm *rlock, sh_owner dead)
{
    return sh_lock_repair(&rlock->lock, dead);
}

sh_owner sh_rlock_owner(sh_rlock_shm *rlock)
{
    return sh_lock_owner(&rlock->lock);
}

bool sh_rlock_valid(sh_rlock_shm *rlock)
{
    return sh_lock_valid(&rlock->lock) &&
           (!sh_rlock_held(rlock) ||
            (sh_lock_owner(&rlock->lock) == sh_peers_now->self() && sh_load_relaxed(&rlock->depth) != 0));
}
