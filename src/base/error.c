#include "base/error.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A thread allocates its text at its first failure and frees it at its end: a library loaded with dlopen gets little
 * static TLS, and other parts of this one need it. */
static _Thread_local shoal_err last_code;
static _Thread_local char *last_text; /* NULL: nothing failed yet, or no memory */
static _Thread_local uint64_t told;   /* the number of errors recorded */
static pthread_key_t end_key;
static pthread_once_t end_once = PTHREAD_ONCE_INIT;

/* Clean-up: the number of open begins, and the last failure since the outermost of them. */
static _Thread_local uint32_t cleanups;
static _Thread_local shoal_err cleanup_code;

static _Thread_local bool is_wordless; /* there was no memory for the text of last_code */

#define NULL_AFTER " is NULL, after "

static const char *const names[] = {
    [SHOAL_OK] = "SHOAL_OK",           [SHOAL_EINVAL] = "SHOAL_EINVAL",
    [SHOAL_ENOMEM] = "SHOAL_ENOMEM",   [SHOAL_ETIMEDOUT] = "SHOAL_ETIMEDOUT",
    [SHOAL_ECLOSED] = "SHOAL_ECLOSED", [SHOAL_EOWNERDEAD] = "SHOAL_EOWNERDEAD",
    [SHOAL_EBROKEN] = "SHOAL_EBROKEN", [SHOAL_EPERM] = "SHOAL_EPERM",
    [SHOAL_ENOENT] = "SHOAL_ENOENT",   [SHOAL_ETYPE] = "SHOAL_ETYPE",
    [SHOAL_ELAYOUT] = "SHOAL_ELAYOUT", [SHOAL_ECORRUPT] = "SHOAL_ECORRUPT",
    [SHOAL_ELIMIT] = "SHOAL_ELIMIT",   [SHOAL_EFORK] = "SHOAL_EFORK",
    [SHOAL_ESTATE] = "SHOAL_ESTATE",   [SHOAL_ECHILD] = "SHOAL_ECHILD",
    [SHOAL_ENAN] = "SHOAL_ENAN",       [SHOAL_EOS] = "SHOAL_EOS",
    [SHOAL_EINTR] = "SHOAL_EINTR",     [SHOAL_ECUDA] = "SHOAL_ECUDA",
    [SHOAL_ELOST] = "SHOAL_ELOST",     [SHOAL_END] = "SHOAL_END",
};

const char *shoal_err_name(shoal_err err)
{
    if ((size_t)err >= sizeof names / sizeof names[0]) {
        return "SHOAL_E?";
    }
    return names[err];
}

shoal_err shoal_last_error(void)
{
    return cleanups > 0 ? cleanup_code : last_code;
}

const char *shoal_last_error_text(void)
{
    return cleanups > 0        ? shoal_err_name(cleanup_code)
           : last_text != NULL ? last_text
           : is_wordless       ? "no memory for the text of this error"
                               : "";
}

static void thread_ended(void *text)
{
    last_text = NULL;
    last_code = SHOAL_OK;
    free(text);
}

static void make_key(void)
{
    (void)pthread_key_create(&end_key, thread_ended);
}

static void set_text(shoal_err err, const char *text)
{
    if (last_text == NULL && (text[0] != 0 || err != SHOAL_OK)) {
        (void)pthread_once(&end_once, make_key);
        char *fresh = malloc(SH_ERROR_TEXT);
        if (fresh == NULL || pthread_setspecific(end_key, fresh) != 0) {
            free(fresh);
            is_wordless = true;
            return;
        }
        last_text = fresh;
    }
    is_wordless = false;
    if (last_text != NULL) {
        memcpy(last_text, text, strlen(text) + 1);
    }
}

void sh_cleanup_begin(void)
{
    if (cleanups++ == 0) {
        cleanup_code = SHOAL_OK;
    }
}

void sh_cleanup_end(void)
{
    SH_INVARIANT(cleanups > 0);
    cleanups--;
}

shoal_err shoal_fail(shoal_err err, const char *format, ...)
{
    if (cleanups > 0) {
        cleanup_code = err;
        return err;
    }
    char text[SH_ERROR_TEXT]; /* the arguments may point into last_text */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    set_text(err, text);
    last_code = err;
    told++;
    return err;
}

shoal_err sh_fail_os(const char *what)
{
    int number = errno;
    shoal_err err = number == ENOMEM ? SHOAL_ENOMEM : number == EPERM || number == EACCES ? SHOAL_EPERM : SHOAL_EOS;
    char words[128];
    return sh_fail(err, "%s: %s", what, strerror_r(number, words, sizeof words));
}

shoal_err sh_null_error(const char *call, const char *what)
{
    if (last_code == SHOAL_OK) {
        return sh_fail(SHOAL_EINVAL, "%s: %s is NULL", call, what);
    }
    const char *before = shoal_last_error_text();
    const char *cause = strstr(before, NULL_AFTER); /* in a chain of NULLs, the first one has the reason */
    if (last_code == SHOAL_EINVAL && cause != NULL) {
        return sh_fail(SHOAL_EINVAL, "%s: %s%s", call, what, cause);
    }
    return sh_fail(SHOAL_EINVAL, "%s: %s" NULL_AFTER "%s: %s", call, what, shoal_err_name(last_code), before);
}

void *sh_null_in(const char *call, const char *what)
{
    if (last_code == SHOAL_OK) {
        (void)sh_null_error(call, what);
    }
    return NULL;
}

void *sh_not_given(const char *call, const char *what)
{
    (void)sh_fail(SHOAL_EINVAL, "%s: %s is NULL", call, what);
    return NULL;
}

void sh_error_save(sh_error *error, shoal_err err)
{
    error->code = err;
    error->text[0] = 0;
    if (err != SHOAL_OK) {
        (void)snprintf(error->text, sizeof error->text, "%s", shoal_last_error_text());
    }
}

shoal_err sh_error_restore(const sh_error *error)
{
    return error->code == SHOAL_OK ? SHOAL_OK : sh_fail(error->code, "%s", error->text);
}

uint64_t sh_callback_mark(void)
{
    return told;
}

/* Codes that the calling function uses itself, and unknown codes. */
static bool is_the_callers(shoal_err err)
{
    return err == SHOAL_END || err == SHOAL_ETIMEDOUT || err == SHOAL_EINTR || (unsigned)err > SHOAL_END;
}

shoal_err sh_callback_err(uint64_t mark, shoal_err err, const char *owner, const char *function)
{
    bool has_text = told != mark && last_code == err;
    if (err == SHOAL_OK || (has_text && !is_the_callers(err))) {
        return err;
    }
    const char *text = has_text ? shoal_last_error_text() : "";
    return sh_fail(is_the_callers(err) ? SHOAL_ECHILD : err, "%s%s%s returned %s%s%s", owner != NULL ? owner : "",
                   owner != NULL ? ": " : "", function, shoal_err_name(err), text[0] != 0 ? ": " : "", text);
}

shoal_err sh_callback_null(uint64_t mark, const char *owner, const char *function)
{
    return told != mark && last_code != SHOAL_OK
               ? last_code
               : sh_fail(SHOAL_EINVAL, "%s: %s returned NULL without setting an error", owner, function);
}

_Noreturn void sh_panic(const char *file, int line, const char *what)
{
    char text[256];
    int n = snprintf(text, sizeof text, "shoal: broken invariant at %s:%d: %s\n", file, line, what);
    if (n > 0) {
        ssize_t ignored = write(STDERR_FILENO, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
        (void)ignored;
    }
    abort();
}
