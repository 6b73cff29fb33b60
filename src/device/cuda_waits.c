#include "device/cuda_waits.h"
#include "shm/card_lock.h"

#include <stdlib.h>

static struct {
    sh_work *works;
    size_t count, room;
} waits;

/* Under the lock: forgets those that are over. Returns how many are left. */
static size_t prune(void)
{
    size_t kept = 0;
    for (size_t i = 0; i < waits.count; i++) {
        if (sh_work_look(waits.works[i]) != SH_WORK_DONE) {
            waits.works[kept++] = waits.works[i];
        }
    }
    return waits.count = kept;
}

/* Under the lock: makes room for one more. */
static bool reserve(void)
{
    if (waits.count == waits.room && prune() == waits.room) {
        size_t room = waits.room > 0 ? waits.room * 2 : 16;
        sh_work *fresh = realloc(waits.works, room * sizeof *fresh);
        if (!fresh) {
            return false;
        }
        waits.works = fresh;
        waits.room = room;
    }
    return true;
}

bool sh_cuda_waits_add(sh_work work)
{
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    bool reserved = reserve();
    if (reserved) {
        waits.works[waits.count++] = work;
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    return reserved;
}

bool sh_cuda_is_among(const sh_work *works, size_t count, sh_work work)
{
    for (size_t i = count; i-- > 0;) {
        if (sh_work_timeline(works[i]) == sh_work_timeline(work) && works[i] >= work) {
            return true;
        }
    }
    return false;
}

bool sh_cuda_waits_have(sh_work work)
{
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    bool has = sh_cuda_is_among(waits.works, waits.count, work);
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    return has;
}

size_t sh_cuda_waits_look(bool tells, bool *out_lost)
{
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    size_t kept = 0, left = prune();
    for (size_t i = 0; i < left; i++) {
        bool lost = sh_work_look(waits.works[i]) == SH_WORK_LOST;
        if (lost) {
            *out_lost = true;
            sh_timeline_free_waiters(sh_work_timeline(waits.works[i]));
        }
        if (!lost || !tells) {
            waits.works[kept++] = waits.works[i];
        }
    }
    waits.count = kept;
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
    return kept;
}

void sh_cuda_waits_forget(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    waits.count = 0;
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
}
