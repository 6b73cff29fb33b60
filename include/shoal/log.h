/* Log lines: the few things that the library has to say and that are no errors of a call. */
#ifndef SHOAL_LOG_H
#define SHOAL_LOG_H

#ifdef __cplusplus
extern "C" {
#endif

/* Sets where log lines go. hook gets one line, without its end, and context. NULL: back to the default,
 * which writes it to standard error as "shoal: line". Any thread; the hook may be called from any thread. */
void shoal_set_log(void (*hook)(const char *line, void *context), void *context);

#ifdef __cplusplus
}
#endif
#endif
