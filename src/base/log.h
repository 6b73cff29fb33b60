/* The log hook: the library prints nothing by itself. */
#ifndef SH_BASE_LOG_H
#define SH_BASE_LOG_H

#include <shoal/log.h>

/* Hands one line, without its end, to the hook. */
__attribute__((format(printf, 1, 2))) void sh_log(const char *format, ...);

#endif
