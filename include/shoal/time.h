/* Time limits: nanoseconds as int64_t, from now. A call that waits takes one and returns SHOAL_ETIMEDOUT when it has passed.
 *
 * SHOAL_NOW does not wait. A negative limit has passed already and is the same as SHOAL_NOW: so a program may give what is left of
 * its own time, however little that is. Only SHOAL_FOREVER, the largest number, waits without end. SHOAL_MS and SHOAL_SECONDS take
 * fractions: SHOAL_MS(0.5). What they make must fit (292 years).
 */
#ifndef SHOAL_TIME_H
#define SHOAL_TIME_H

#include <stdint.h>

/* Time limits. */
#define SHOAL_FOREVER INT64_MAX
#define SHOAL_NOW INT64_C(0)
#define SHOAL_MS(n) ((int64_t)((n)*1e6))
#define SHOAL_SECONDS(n) ((int64_t)((n)*1e9))

#endif
