#include "base/log.h"

#include "base/fork.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void (*the_hook)(const char *line, void *context);
static void *the_context;

__attribute__((constructor)) static void register_lock(void)
{
    static const sh_fork_part part = {.lock = &lock};
    sh_fork_register(SH_FORK_LOG, &part);
}

void shoal_set_log(void (*hook)(const char *line, void *context), void *context)
{
    sh_fork_lock(&lock);
    the_hook = hook;
    the_context = context;
    sh_fork_unlock(&lock);
}

/* Writes the line with one call, so that lines of several processes do not mix. */
static void write_line(const char *line)
{
    char text[560];
    int n = snprintf(text, sizeof text, "shoal: %s\n", line);
    if (n > 0) {
        ssize_t ignored = write(STDERR_FILENO, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
        (void)ignored;
    }
}

void sh_log(const char *format, ...)
{
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    sh_fork_lock(&lock);
    void (*hook)(const char *, void *) = the_hook;
    void *context = the_context;
    sh_fork_unlock(&lock);
    if (hook != NULL) {
        hook(line, context);
    } else {
        write_line(line);
    }
}
