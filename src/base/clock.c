#include "base/clock.h"

#include <time.h>

int64_t sh_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int64_t sh_deadline(int64_t timeout)
{
    int64_t deadline;
    return __builtin_add_overflow(sh_now(), timeout > 0 ? timeout : 0, &deadline) ? SH_NO_DEADLINE : deadline;
}
