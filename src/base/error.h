/* How the library reports failure: one call that records words for people and returns the code. */
#ifndef SH_BASE_ERROR_H
#define SH_BASE_ERROR_H

#include <shoal/error.h>

#include <stdint.h>

/* Records err and the text for shoal_last_error, for this thread; returns err. */
#define sh_fail shoal_fail

/* The same for a failed system call: "what: strerror(errno)". Returns SHOAL_ENOMEM for ENOMEM, SHOAL_EPERM for EPERM
 * and EACCES, otherwise SHOAL_EOS. */
shoal_err sh_fail_os(const char *what);

/* A call that returns shoal_err was given NULL where it may not be: SHOAL_EINVAL "call: what is NULL". The NULL may be what a
 * failed call returned, so the text ends with this thread's earlier failure, if there is one: "…, after SHOAL_ENOENT: no key". */
shoal_err sh_null_error(const char *call, const char *what);

/* The same in a call that returns NULL: the earlier failure stays the last error, for it says why the argument is NULL. Only when
 * nothing has failed in this thread is it SHOAL_EINVAL. Always returns NULL, which fits any pointer. */
void *sh_null_in(const char *call, const char *what);

/* For an argument that no call of the library makes (a path, a text, a shape, options), in a call that returns NULL: an earlier failure
 * is not the reason, so this is SHOAL_EINVAL always. Returns NULL. */
void *sh_not_given(const char *call, const char *what);

/* The three as first lines of a public function: the call and the argument are named as they stand there. */
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

/* Clean-up never changes the last error. Each destroy, release, close and leave that calls what can fail stands between these
 * two; they nest. In between, failures have a code (shoal_last_error) but no text, and the end forgets them. */
void sh_cleanup_begin(void);
void sh_cleanup_end(void);

/* Functions of the program that the library calls may fail without telling why. Each of their calls stands between these:
 *
 *     uint64_t mark = sh_callback_mark();
 *     err = sh_callback_err(mark, type->open(packed, &state), type->name, "open");
 *
 * so that a bare code becomes the last error, and NULL never comes with none. sh_callback_err returns err; unless that is SHOAL_OK, or
 * the function has told an error of that code itself, "owner: function returned SHOAL_E…" is told (without an owner when that is NULL).
 * Codes that the call uses for itself (SHOAL_END, SHOAL_ETIMEDOUT, SHOAL_EINTR), or that are none, become SHOAL_ECHILD with that text.
 * sh_callback_null is for one that returned NULL: the error that it told, or else SHOAL_EINVAL. */
uint64_t sh_callback_mark(void);
shoal_err sh_callback_err(uint64_t mark, shoal_err err, const char *owner, const char *function);
shoal_err sh_callback_null(uint64_t mark, const char *owner, const char *function);

/* A broken invariant: writes one line to stderr and ends the process. Never for bad input, never for a full machine. */
_Noreturn void sh_panic(const char *file, int line, const char *what);

#define SH_INVARIANT(condition)                                                                                        \
    do {                                                                                                               \
        if (__builtin_expect(!(condition), 0)) {                                                                       \
            sh_panic(__FILE__, __LINE__, #condition);                                                                  \
        }                                                                                                              \
    } while (0)

#endif
