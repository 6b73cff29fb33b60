/* Monotonic time, and time limits as absolute deadlines, so that a wait that is woken early does not start over. */
#ifndef SH_BASE_CLOCK_H
#define SH_BASE_CLOCK_H

#include <shoal/time.h>

#include <stdbool.h>
#include <stdint.h>

#define SH_NO_DEADLINE INT64_MAX

/* Nanoseconds of CLOCK_MONOTONIC: the same in every process of the machine. */
int64_t sh_now(void);

/* The deadline for a time limit of the public interface. A negative limit has passed already; SHOAL_FOREVER, and whatever lies beyond the
 * end of time, gives SH_NO_DEADLINE. */
int64_t sh_deadline(int64_t timeout);

static inline bool sh_passed(int64_t deadline)
{
    return deadline != SH_NO_DEADLINE && sh_now() >= deadline;
}

#endif
