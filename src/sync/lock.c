#include "sync/lock.h"

#include "base/death.h"
#include "base/error.h"
#include "os/futex.h"

#define WAITERS (UINT64_C(1) << 31)
#define DIED (UINT64_C(1) << 30)

_Static_assert(SH_OWNER_BITS == 30, "an owner and the two flags fill the low half");

static sh_owner owner_in(uint64_t word)
{
    return (sh_owner)(word & SH_OWNER_MASK);
}

static bool is_free(uint64_t word)
{
    return owner_in(word) == 0;
}

void sh_lock_format(sh_lock_shm *lock)
{
    *lock = (sh_lock_shm){0};
}

/* Takes the lock if it is free and has no flags but those in `accepted`; word is what the caller saw or guesses. The
 * acquire pairs with the release in unlock: what the last owner wrote under the lock is visible. After a repair it
 * pairs with the release there; the repairer knows that the owner is dead, so all that the owner ever wrote is in
 * memory. */
static bool take(sh_lock_shm *lock, uint64_t word, uint64_t waiters, uint64_t accepted)
{
    while ((word & ~accepted) == 0) {
        if (sh_cas_acq_rel(&lock->word, &word, sh_life_now | waiters | word)) {
            /* death: the dead process holds the lock. A waiter whose slice ends, or recovery, repairs it. */
            SH_DEATH("sync.lock.taken");
            return true;
        }
    }
    return false;
}

/* Changes the word from `word`, whose owner is dead, to free and DIED. Returns false if it was changed meanwhile. */
static bool release_dead(sh_lock_shm *lock, uint64_t *word)
{
    if (!sh_cas_acq_rel(&lock->word, word, DIED)) { /* the release pairs with the acquire in take */
        return false;
    }
    /* death: of the repairer. Free and marked DIED; the parked waiters look again when their slice ends. */
    SH_DEATH("sync.lock.repaired");
    if (sh_peers_now->repaired != NULL) {
        sh_peers_now->repaired();
    }
    sh_futex_wake(&lock->gate.word, 1);
    return true;
}

/* word: what the caller saw. However long it is stopped after the owner was found dead, the lock is repaired only if
 * that life still holds it. Only the flag of waiters may have been set since. */
static void repair_if_dead(sh_lock_shm *lock, uint64_t word)
{
    if (is_free(word) || !sh_peers_now->is_dead(owner_in(word))) {
        return;
    }
    uint64_t life = word & ~WAITERS;
    while ((word & ~WAITERS) == life && !release_dead(lock, &word)) {
    }
}

static bool is_refused(uint64_t word, uint64_t accepted)
{
    return is_free(word) && (word & ~accepted) != 0;
}

/* The caller has found the lock free, with a flag that it does not accept. */
static shoal_err refuse(sh_lock_shm *lock, bool was_parked)
{
    if (was_parked) {
        /* death: as in unlock, before the wake-up. */
        SH_DEATH("sync.lock.refused");
        sh_futex_wake(&lock->gate.word, 1); /* the wake-up that this waiter may have had */
    }
    return sh_fail(SHOAL_EOWNERDEAD, "a process died while it held the lock, and the lock is not marked consistent");
}

static shoal_err last_try(sh_lock_shm *lock, int64_t timeout, uint64_t accepted)
{
    repair_if_dead(lock, sh_load_acquire(&lock->word));
    if (take(lock, 0, 0, accepted)) {
        return SHOAL_OK;
    }
    return is_refused(sh_load_relaxed(&lock->word), accepted)
               ? refuse(lock, timeout > SHOAL_NOW)
               : sh_fail_waiting(timeout, "another process or thread holds the lock");
}

static __attribute__((noinline)) shoal_err lock_slow(sh_lock_shm *lock, int64_t timeout, uint64_t accepted)
{
    sh_wait wait;
    bool was_parked = false;
    if (timeout <= SHOAL_NOW) {
        return last_try(lock, timeout, accepted);
    }
    sh_wait_init(&wait, timeout, SH_SLICE_SHORT, &lock->gate);
    wait.name = lock->name;
    do {
        if (take(lock, sh_load_relaxed(&lock->word), 0, accepted)) {
            return SHOAL_OK;
        }
    } while (sh_wait_spin(&wait));
    for (;;) {
        uint64_t word = sh_load_relaxed(&lock->word);
        if (take(lock, word, WAITERS, accepted)) {
            return SHOAL_OK;
        }
        if (is_refused(word, accepted)) {
            return refuse(lock, was_parked);
        }
        /* The futex compares the low half when it parks, so it cannot sleep through an unlock between here and
         * there. */
        if (is_free(word) || (!(word & WAITERS) && !sh_cas_acq_rel(&lock->word, &word, word | WAITERS))) {
            continue;
        }
        /* death: the flag may be set with nobody parked; then the next unlock makes a wake-up that wakes nobody. */
        SH_DEATH("sync.lock.waiting");
        word |= WAITERS;
        wait.holder = owner_in(word);
        was_parked = true;
        if (!sh_wait_park(&wait, &lock->gate, (uint32_t)word)) {
            return last_try(lock, timeout, accepted);
        }
        if (sh_load_relaxed(&lock->word) == word) { /* nobody unlocked: the slice ended */
            repair_if_dead(lock, word);
        }
    }
}

shoal_err sh_lock_lock(sh_lock_shm *lock, int64_t timeout)
{
    return take(lock, 0, 0, DIED) ? SHOAL_OK : lock_slow(lock, timeout, DIED);
}

shoal_err sh_lock_lock_consistent(sh_lock_shm *lock, int64_t timeout)
{
    return take(lock, 0, 0, 0) ? SHOAL_OK : lock_slow(lock, timeout, 0);
}

bool sh_lock_owner_died(sh_lock_shm *lock)
{
    return (sh_load_acquire(&lock->word) & DIED) != 0;
}

shoal_err sh_lock_mark_consistent(sh_lock_shm *lock)
{
    uint64_t word = sh_load_relaxed(&lock->word);
    do {
        if ((word & ~(WAITERS | DIED)) != sh_life_now) {
            return sh_fail(SHOAL_EPERM, "this process does not hold the lock");
        }
    } while ((word & DIED) && !sh_cas_acq_rel(&lock->word, &word, word & ~DIED));
    /* death: the dead process holds the lock; the repair sets DIED again. */
    SH_DEATH("sync.lock.marked");
    return SHOAL_OK;
}

shoal_err sh_lock_unlock(sh_lock_shm *lock)
{
    uint64_t word = sh_life_now; /* a guess: this process holds the lock, nobody waits, and no owner died */
    do {
        if (is_free(word)) {
            return sh_fail(SHOAL_ESTATE, "the lock is not locked");
        }
    } while (!sh_cas_acq_rel(&lock->word, &word, word & DIED)); /* the release pairs with the acquire in take */
    /* death: free, but the parked waiters are not woken. A newcomer may take it; they look again when their slice
     * ends. */
    SH_DEATH("sync.lock.before_wake");
    if (word & WAITERS) {
        sh_futex_wake(&lock->gate.word, 1);
    }
    return SHOAL_OK;
}

bool sh_lock_repair(sh_lock_shm *lock, sh_owner dead)
{
    uint64_t word = sh_load_relaxed(&lock->word);
    do {
        if (dead == 0 || owner_in(word) != dead) {
            return false;
        }
    } while (!release_dead(lock, &word));
    return true;
}

sh_owner sh_lock_owner(sh_lock_shm *lock)
{
    return owner_in(sh_load_acquire(&lock->word));
}

bool sh_lock_valid(sh_lock_shm *lock)
{
    uint64_t word = sh_load_acquire(&lock->word);
    return !is_free(word) || (word & ~DIED) == 0;
}
