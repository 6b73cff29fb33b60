/* Time limits: nanoseconds as int64_t, from now. Every call that can block takes one. */
#ifndef SHOAL_TIME_H
#define SHOAL_TIME_H

#include <stdint.h>

#define SHOAL_FOREVER INT64_C(-1)
#define SHOAL_NOW INT64_C(0)
#define SHOAL_MS(n) ((int64_t)(n)*INT64_C(1000000))
#define SHOAL_SECONDS(n) ((int64_t)((n)*1e9))

#endif
