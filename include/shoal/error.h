/* Errors: the error codes, and a text that explains the last failure.
 *
 * A call that can fail returns shoal_err, or NULL. SHOAL_OK is 0. Each thread remembers its last failure and a text
 * with the sizes and names that explain it, until its next failure. Success does not clear it.
 *
 * SHOAL_EFORK occurs only in a child of fork. Such a child is in the world of its parent and can use what it
 * inherited, with three exceptions. A pool, a future, an iterator and the workers of a loader belong to the process
 * that made them. An end of a pipe stays with the parent after a plain fork(); shoal_process_start passes it on. And
 * if there was no room in the world for the child, every call that needs the world fails until shoal_world_leave;
 * after that the child can make a world.
 */
#ifndef SHOAL_ERROR_H
#define SHOAL_ERROR_H

#include <shoal/compat.h>

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
    SHOAL_EINVAL,     /* an argument is invalid */
    SHOAL_ENOMEM,     /* the heap, the process or the GPU is out of memory: the text has the sizes asked and left */
    SHOAL_ETIMEDOUT,  /* the timeout passed */
    SHOAL_ECLOSED,    /* the queue, or the other end of the pipe, is closed */
    SHOAL_EOWNERDEAD, /* a process died while it held the lock, and the caller wanted a consistent one; it does not
                       * hold it */
    SHOAL_EBROKEN,    /* the barrier is broken: aborted, reset, timed out, or a party died */
    SHOAL_EPERM,      /* permission denied: another user's world, a GPU, or a lock that the caller does not hold */
    SHOAL_ENOENT,     /* no such world, target, key or file; no GPU */
    SHOAL_ETYPE,      /* the value or message has another type */
    SHOAL_ELAYOUT,    /* a build with another memory layout made the world; a driver or libshoal_cuda does not fit */
    SHOAL_ECORRUPT,   /* bytes from outside do not decode, or the world is damaged */
    SHOAL_ELIMIT,     /* a documented limit is reached (processes, holders, nesting, GPU memory) */
    SHOAL_EFORK,      /* this process was forked, and the object belongs to its parent, as explained above */
    SHOAL_ESTATE,     /* the call does not fit the state: joined twice, task_done called too often */
    SHOAL_ECHILD, /* a process failed, or a callback returned a code that it must not return: the text explains it */
    SHOAL_ENAN,   /* a loss or a parameter is NaN or infinite: training has diverged */
    SHOAL_EOS,    /* a system call, or a call of a GPU's driver, failed: the text has the call and its error */
    SHOAL_EINTR,  /* a signal ended the wait; only if the thread asked for that */
    SHOAL_ECUDA,  /* the GPU has failed for this process, which must end: the text has the first failure */
    SHOAL_ELOST,  /* a tensor on a GPU is lost: its process lost the GPU or died before it had computed the tensor */
    SHOAL_END,    /* not a failure: an iteration has no more items; does not change the last error */
} shoal_err;

/* Returns the name of an error code, such as "SHOAL_ENOMEM". Never returns NULL. Thread-safe. */
const char *shoal_err_name(shoal_err err);

/* Returns the code of this thread's last failure; SHOAL_OK if there was none. */
shoal_err shoal_last_error(void);

/* Returns the text of this thread's last failure; "" if there was none. The library owns the text, which is valid
 * until the thread's next failure. */
const char *shoal_last_error_text(void);

/* Sets the last error of this thread, with a text in printf format, and returns err: return shoal_fail(SHOAL_EINVAL,
 * "no file %s", path). The arguments may include shoal_last_error_text(). It is for functions that the program gives
 * to the library: targets, tasks, and the callbacks of data sets, modules and environments.
 *
 * If a callback returns an error code without calling shoal_fail, or returns NULL (SHOAL_EINVAL), the library sets a
 * text that names the callback. SHOAL_END, SHOAL_ETIMEDOUT and SHOAL_EINTR have a meaning for the call that runs the
 * callback or the task: if a callback of a data set, a module or an environment, or a task of a pool, returns one of
 * them, the call fails with SHOAL_ECHILD and a text that names the code. Thread-safe. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
shoal_err
shoal_fail(shoal_err err, const char *format, ...);

#ifdef __cplusplus
}
#endif
#endif
