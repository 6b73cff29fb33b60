/* Errors: one enum, and words for people.
 *
 * Every call that can fail returns shoal_err; SHOAL_OK is 0. The last failure of the calling thread, with the sizes
 * and names that explain it, can be asked for until the next failure in that thread. Success does not clear it.
 */
#ifndef SHOAL_ERROR_H
#define SHOAL_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SHOAL_MUST_USE __attribute__((warn_unused_result))
#else
#define SHOAL_MUST_USE
#endif

/* Error codes. */
typedef enum shoal_err {
    SHOAL_OK = 0,
    SHOAL_EINVAL,     /* an argument is out of its range */
    SHOAL_ENOMEM,     /* the heap, or the process, has no room: the text names the size asked and the size left */
    SHOAL_ETIMEDOUT,  /* the time limit passed */
    SHOAL_ECLOSED,    /* the queue or the other end of the pipe is closed */
    SHOAL_EOWNERDEAD, /* success with a warning: the lock is yours, but its last owner died holding it */
    SHOAL_EBROKEN,    /* the barrier is broken: aborted, reset, timed out, or a party died */
    SHOAL_EPERM,      /* not yours: another user's world, a lock that you do not hold */
    SHOAL_ENOENT,     /* no such world, target, key or file */
    SHOAL_ETYPE,      /* the value or message is of another type */
    SHOAL_ELAYOUT,    /* the world was made by a build with another memory layout */
    SHOAL_ECORRUPT,   /* bytes from outside do not decode, or the world is damaged */
    SHOAL_ELIMIT,     /* a documented limit is reached (processes, holders, nesting) */
    SHOAL_EFORK,      /* this process was forked, and what the call is for belongs to its parent */
    SHOAL_ESTATE,     /* the call does not fit the state: joined twice, task_done too often */
    SHOAL_ECHILD, /* a process ended with an error, an exit status or a signal, or a function of the program returned a code
                         that is not for it: the text tells which */
    SHOAL_EOS,   /* the system refused: the text names the call and its errno */
    SHOAL_EINTR, /* a signal ended the wait; only where the program asked for that */
    SHOAL_END,   /* not a failure: an iteration has nothing more to give; leaves the last error alone */
} shoal_err;

/* The name of an error code, such as "SHOAL_ENOMEM". Never NULL. */
const char *shoal_err_name(shoal_err err);

/* The last error of this thread, and its text. Both belong to the library; the text stays true until the thread's next
 * failure. */
shoal_err shoal_last_error(void);
const char *shoal_last_error_text(void);

/* Records an error of the program's own, for a target to return: shoal_fail(SHOAL_EINVAL, "no file %s", path).
 * Returns err. The functions of a data set, a module or an environment may do the same; when one of them returns a code that it has
 * not told, or NULL (SHOAL_EINVAL), the library tells it, with the name of the function. SHOAL_END, SHOAL_ETIMEDOUT and SHOAL_EINTR
 * belong to the call of the library that asked: from one of those functions, or from a task of a pool, they come as SHOAL_ECHILD with a
 * text that names the code. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
shoal_err
shoal_fail(shoal_err err, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
