/* How the library reports failure: one call that records words for people and returns the code. */
#ifndef SH_BASE_ERROR_H
#define SH_BASE_ERROR_H

#include <shoal/error.h>

/* Records err and the text for shoal_last_error, for this thread; returns err. */
#define sh_fail shoal_fail

/* The same for a failed system call: "what: strerror(errno)". Returns SHOAL_ENOMEM for ENOMEM, SHOAL_EPERM for EPERM
 * and EACCES, otherwise SHOAL_EOS. */
shoal_err sh_fail_os(const char *what);

/* A broken invariant: writes one line to stderr and ends the process. Never for bad input, never for a full machine. */
_Noreturn void sh_panic(const char *file, int line, const char *what);

#define SH_INVARIANT(condition)                                                                                        \
    do {                                                                                                               \
        if (__builtin_expect(!(condition), 0)) {                                                                       \
            sh_panic(__FILE__, __LINE__, #condition);                                                                  \
        }                                                                                                              \
    } while (0)

#endif
