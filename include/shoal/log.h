/* The log: messages for people that are not errors of a call. The library writes only a few. */
#ifndef SHOAL_LOG_H
#define SHOAL_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the function that gets log messages. hook gets one line at a time, without the newline, and context. NULL
 * restores the default, which writes "shoal: line" to standard error. Does not block. Thread-safe. The hook may be
 * called from any thread. */
void shoal_set_log(void (*hook)(const char *line, void *context), void *context);

#ifdef __cplusplus
}
#endif
#endif
