/* Log lines. They go to the hook of shoal_set_log; without one, to standard error. */
#ifndef SH_BASE_LOG_H
#define SH_BASE_LOG_H

#include <shoal/log.h>

/* Passes one line, without a newline, to the hook. */
__attribute__((format(printf, 1, 2))) void sh_log(const char *format, ...);

#endif
