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

/* A NULL that was given where the result of a failed call may stand: that failure, which says why it is NULL, or, when nothing has
 * failed in this thread, SHOAL_EINVAL "call: what is NULL". */
shoal_err sh_null_error(const char *call, const char *what);

/* Functions of the program that the library calls may fail without telling why. Each of their calls stands between these:
 *
 *     uint64_t mark = sh_callback_mark();
 *     err = sh_callback_err(mark, type->open(packed, &state), type->name, "open");
 *
 * so that a bare code becomes the last error, and NULL never comes with none. sh_callback_err returns err; unless that is SHOAL_OK, or
 * the function has told an error of that code itself, "owner: function returned SHOAL_E…" is told. sh_callback_null is for one that
 * returned NULL: the error that it told, or else SHOAL_EINVAL. */
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
