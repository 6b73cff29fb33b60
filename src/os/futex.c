#include "os/futex.h"

#include "base/clock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct timespec to_timespec(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

bool sh_futex_wait(const void *word, uint32_t value, int64_t deadline)
{
    struct timespec t = to_timespec(deadline == SH_NO_DEADLINE ? 0 : deadline);
    /* WAIT_BITSET takes an absolute CLOCK_MONOTONIC time. */
    long r = syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, deadline == SH_NO_DEADLINE ? NULL : &t, NULL,
                     FUTEX_BITSET_MATCH_ANY);
    return !(r == -1 && errno == ETIMEDOUT);
}

int sh_futex_wake(const void *word, int count)
{
    long r = syscall(SYS_futex, word, FUTEX_WAKE, count, NULL, NULL, 0);
    return r < 0 ? 0 : (int)r;
}

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449
#endif

struct waiter { /* struct futex_waitv of Linux 5.16, which older headers lack */
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
};

#define WAITER_32_BITS 2u

bool sh_futex_wait_many(const sh_futex_pair *pairs, size_t count, int64_t deadline)
{
    struct waiter waiters[SH_FUTEX_MANY];
    for (size_t i = 0; i < count; i++) {
        waiters[i] = (struct waiter){
            .value = pairs[i].value, .address = (uint64_t)(uintptr_t)pairs[i].word, .flags = WAITER_32_BITS};
    }
    struct timespec t = to_timespec(deadline == SH_NO_DEADLINE ? 0 : deadline);
    long r = syscall(SYS_futex_waitv, waiters, count, 0, deadline == SH_NO_DEADLINE ? NULL : &t, CLOCK_MONOTONIC);
    return !(r == -1 && errno != EAGAIN && errno != EINTR);
}

bool sh_futex_can_wait_many(void)
{
    uint32_t word = 0;
    struct waiter w = {.value = 1, .address = (uint64_t)(uintptr_t)&word, .flags = WAITER_32_BITS};
    return !(syscall(SYS_futex_waitv, &w, 1, 0, NULL, CLOCK_MONOTONIC) == -1 &&
             errno != EAGAIN); /* ENOSYS, or the code of a seccomp filter */
}
