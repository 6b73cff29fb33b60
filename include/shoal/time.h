/* Timeouts: nanoseconds from now, as int64_t. A call that waits takes one and returns SHOAL_ETIMEDOUT when it has
 * passed.
 */
#ifndef SHOAL_TIME_H
#define SHOAL_TIME_H

#include <stdint.h>

/* Timeouts. SHOAL_NOW does not wait. SHOAL_FOREVER, the largest number, waits without limit. A negative timeout is
 * the same as SHOAL_NOW, so a program may pass what is left of its own time even if none is left. SHOAL_MS and
 * SHOAL_SECONDS convert milliseconds and seconds, and accept fractions: SHOAL_MS(0.5). Their result must fit into an
 * int64_t (292 years). */
#define SHOAL_FOREVER INT64_MAX
#define SHOAL_NOW INT64_C(0)
#define SHOAL_MS(n) ((int64_t)((n)*1e6))
#define SHOAL_SECONDS(n) ((int64_t)((n)*1e9))

#endif
