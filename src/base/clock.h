/* Monotonic time. Timeouts become absolute deadlines, so that a wait that wakes up early does not start over. */
#ifndef SH_BASE_CLOCK_H
#define SH_BASE_CLOCK_H

#include <shoal/time.h>

#include <stdbool.h>
#include <stdint.h>

#define SH_NO_DEADLINE INT64_MAX

/* Returns the time of CLOCK_MONOTONIC in nanoseconds. All processes of the machine see the same clock. */
int64_t sh_now(void);

/* Returns the deadline for a timeout of the public interface. A negative timeout gives a deadline that has passed.
 * SHOAL_FOREVER, and a timeout that overflows, give SH_NO_DEADLINE. */
int64_t sh_deadline(int64_t timeout);

static inline bool sh_passed(int64_t deadline)
{
    return deadline != SH_NO_DEADLINE && sh_now() >= deadline;
}

#endif
