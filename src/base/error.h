/* How the library reports failure: one call records an error text and returns the code. */
#ifndef SH_BASE_ERROR_H
#define SH_BASE_ERROR_H

#include <shoal/error.h>

#include <stdint.h>

/* Records err and the text for shoal_last_error in this thread. Returns err. */
#define sh_fail shoal_fail

/* Runs a step, and returns its error from the calling function if it fails. For a function that has nothing to undo
 * then: CONTRIBUTING.md (Style) says how a function leaves on error. */
#define SH_TRY(step)                                                                                                   \
    do {                                                                                                               \
        shoal_err step_err = (step);                                                                                   \
        if (__builtin_expect(step_err != SHOAL_OK, 0)) {                                                               \
            return step_err;                                                                                           \
        }                                                                                                              \
    } while (0)

/* The same for a failed system call; the text is "what: strerror(errno)". Returns SHOAL_ENOMEM for ENOMEM, SHOAL_EPERM
 * for EPERM and EACCES, otherwise SHOAL_EOS. */
shoal_err sh_fail_os(const char *what);

/* Reports that a call that returns shoal_err got NULL for a required argument: SHOAL_EINVAL, "call: what is NULL". An
 * earlier call that failed may have returned that NULL, so the text ends with this thread's earlier error, if there is
 * one: "…, after SHOAL_ENOENT: no key". */
shoal_err sh_null_error(const char *call, const char *what);

/* The same for a call that returns NULL. The earlier error stays the last error, because it says why the argument is
 * NULL. Records SHOAL_EINVAL only if nothing has failed in this thread. Always returns NULL, which fits any pointer
 * type. */
void *sh_null_in(const char *call, const char *what);

/* The same for an argument that no call of the library returns (a path, a text, a shape, options). An earlier error is
 * not the reason, so this always records SHOAL_EINVAL. Returns NULL. */
void *sh_not_given(const char *call, const char *what);

/* The three as first lines of a public function. They name the function and the argument as the source does. */
#define SH_NEED(argument)                                                                                              \
    do {                                                                                                               \
        if (__builtin_expect(!(argument), 0)) {                                                                        \
            return sh_null_error(__func__, #argument);                                                                 \
        }                                                                                                              \
    } while (0)

#define SH_NEED_OR_NULL(argument)                                                                                      \
    do {                                                                                                               \
        if (__builtin_expect(!(argument), 0)) {                                                                        \
            return sh_null_in(__func__, #argument);                                                                    \
        }                                                                                                              \
    } while (0)

#define SH_GIVEN_OR_NULL(argument)                                                                                     \
    do {                                                                                                               \
        if (__builtin_expect(!(argument), 0)) {                                                                        \
            return sh_not_given(__func__, #argument);                                                                  \
        }                                                                                                              \
    } while (0)

/* Clean-up never changes the last error. Each destroy, release, close and leave that calls something that can fail does
 * so between these two calls; they nest. In between, a failure sets a code (shoal_last_error) but no text, and
 * sh_cleanup_end discards it. */
void sh_cleanup_begin(void);
void sh_cleanup_end(void);

/* Keeps a failure over further work that may fail too, such as a callback of the program. Unlike between
 * sh_cleanup_begin and sh_cleanup_end, that work sees the texts of its own failures.
 *
 *     sh_error saved;
 *     sh_error_save(&saved, err);
 *     ... the further work ...
 *     return sh_error_restore(&saved);
 *
 * save keeps err, and this thread's error text unless err is SHOAL_OK. restore makes that the last error again and
 * returns err; for SHOAL_OK it changes nothing. */
#define SH_ERROR_TEXT 512 /* with the 0; longer texts are cut */

typedef struct sh_error {
    shoal_err code;
    char text[SH_ERROR_TEXT];
} sh_error;

void sh_error_save(sh_error *error, shoal_err err);
shoal_err sh_error_restore(const sh_error *error);

/* A callback of the program may fail without setting an error text. The library therefore wraps each callback:
 *
 *     uint64_t mark = sh_callback_mark();
 *     err = sh_callback_err(mark, type->open(packed, &state), type->name, "open");
 *
 * This way a bare code becomes the last error, and NULL is never returned without an error. sh_callback_err returns err
 * if it is SHOAL_OK, or if the callback has set an error with that code. Otherwise it records "owner: function returned
 * SHOAL_E…" (without "owner: " if owner is NULL) and returns err. Codes that the calling function uses itself
 * (SHOAL_END, SHOAL_ETIMEDOUT, SHOAL_EINTR) and unknown codes become SHOAL_ECHILD with that text. sh_callback_null is
 * for a callback that returned NULL: it returns the error that the callback set, otherwise SHOAL_EINVAL. */
uint64_t sh_callback_mark(void);
shoal_err sh_callback_err(uint64_t mark, shoal_err err, const char *owner, const char *function);
shoal_err sh_callback_null(uint64_t mark, const char *owner, const char *function);

/* Reports a broken invariant: writes one line to stderr and aborts the process. Never for bad input or for lack of
 * memory. */
_Noreturn void sh_panic(const char *file, int line, const char *what);

#define SH_INVARIANT(condition)                                                                                        \
    do {                                                                                                               \
        if (__builtin_expect(!(condition), 0)) {                                                                       \
            sh_panic(__FILE__, __LINE__, #condition);                                                                  \
        }                                                                                                              \
    } while (0)

#endif
