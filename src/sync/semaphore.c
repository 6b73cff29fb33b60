#include "sync/semaphore.h"

#include "base/death.h"
#include "base/error.h"

static uint32_t limit_of(const sh_semaphore_shm *semaphore)
{
    return semaphore->bound != 0 ? semaphore->bound : SH_SEMAPHORE_MAX;
}

shoal_err sh_semaphore_format(sh_semaphore_shm *semaphore, uint32_t value, uint32_t bound)
{
    if (bound > SH_SEMAPHORE_MAX || value > (bound != 0 ? bound : SH_SEMAPHORE_MAX)) {
        return sh_fail(SHOAL_EINVAL,
                       "a semaphore of value %u and bound %u: the value must not exceed the bound, nor the bound %u",
                       value, bound, SH_SEMAPHORE_MAX);
    }
    *semaphore = (sh_semaphore_shm){.value = {value}, .bound = bound};
    return SHOAL_OK;
}

/* Takes one if the value is not 0. The load and the exchange are seq_cst: after sh_gate_prepare they come after the
 * flag, and pair with post, which changes the value before it reads the flag. The exchange also acquires what the
 * posters released. */
static bool take(sh_semaphore_shm *semaphore)
{
    uint32_t value = sh_load_seq_cst(&semaphore->value);
    while (value != 0) {
        if (sh_cas_seq_cst(&semaphore->value, &value, value - 1)) {
            /* death: the value stays one lower; the others continue with the rest. */
            SH_DEATH("sync.semaphore.taken");
            return true;
        }
    }
    return false;
}

shoal_err sh_semaphore_wait(sh_semaphore_shm *semaphore, int64_t timeout)
{
    if (take(semaphore)) {
        return SHOAL_OK;
    }
    sh_wait wait;
    sh_wait_init(&wait, timeout, SH_SLICE_LONG, &semaphore->gate); /* it waits for no particular peer */
    wait.name = semaphore->name;
    bool in_time = timeout > SHOAL_NOW;
    while (in_time && sh_wait_spin(&wait)) {
        if (take(semaphore)) {
            return SHOAL_OK;
        }
    }
    while (in_time) {
        uint32_t prepared = sh_gate_prepare(&semaphore->gate);
        if (take(semaphore)) {
            return SHOAL_OK;
        }
        /* death: a waiter that is woken and dies before it takes leaves the value to the others, who see it when their
         * slice ends. */
        SH_DEATH("sync.semaphore.waiting");
        in_time = sh_wait_park(&wait, &semaphore->gate, prepared);
    }
    return take(semaphore) ? SHOAL_OK : sh_fail_waiting(timeout, "the semaphore stayed at 0");
}

shoal_err sh_semaphore_post(sh_semaphore_shm *semaphore, uint32_t count)
{
    uint32_t limit = limit_of(semaphore);
    uint32_t value = sh_load_relaxed(&semaphore->value);
    do {
        if (count > limit - value) {
            return sh_fail(SHOAL_ESTATE, "cannot post %u to a semaphore of value %u: its limit is %u", count, value,
                           limit);
        }
    } while (!sh_cas_seq_cst(&semaphore->value, &value, value + count)); /* pairs with take */
    /* death: the value is higher, but the parked waiters are not woken: they see it when their slice ends. */
    SH_DEATH("sync.semaphore.before_wake");
    if (count != 0) {
        sh_gate_wake(&semaphore->gate, (int)count); /* no more than count: the others would find nothing */
    }
    return SHOAL_OK;
}

uint32_t sh_semaphore_value(sh_semaphore_shm *semaphore)
{
    return sh_load_acquire(&semaphore->value); /* pairs with post */
}

bool sh_semaphore_valid(sh_semaphore_shm *semaphore)
{
    return semaphore->bound <= SH_SEMAPHORE_MAX && sh_load_acquire(&semaphore->value) <= limit_of(semaphore);
}
