/* Processes: run a function of this program, or of a library that it has loaded, in another process.
 *
 * Arguments and results are values. There are three ways to start a process. spawn, the default, runs a fresh copy of
 * this program, which is safe with threads and with CUDA. fork copies this process. forkserver lets a small server
 * process fork. The program must call shoal_init first in main. A forked child inherits every handle of its parent,
 * the ends of pipes included, except those of GPU tensors (device.h). Children end when their parent dies or executes
 * another program, unless they were started with `outlive`. A `death_signal` with a handler gives them time to clean
 * up. binding.h has children that run another program, and interrupt.h waits that a signal ends.
 */
#ifndef SHOAL_PROCESS_H
#define SHOAL_PROCESS_H

#include <shoal/error.h>
#include <shoal/queue.h>
#include <shoal/time.h>
#include <shoal/value.h>

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shoal_process shoal_process;

/* A function that a process runs. rank is the number of the process (shoal_process_options, shoal_spawn). The process
 * owns args. If the target does not return SHOAL_OK, the process fails with that error and the text of
 * shoal_last_error_text. If a target leaves the world, it cannot report its result, and its process counts as
 * SHOAL_PROCESS_EXITED. */
typedef shoal_err (*shoal_target)(int rank, const shoal_value *args);

/* The ways to start a process (start methods). */
typedef enum shoal_start {
    SHOAL_START_DEFAULT, /* the environment variable SHOAL_START, else spawn */
    SHOAL_START_SPAWN,
    SHOAL_START_FORK,
    SHOAL_START_FORKSERVER,
} shoal_start;

/* Options of the calls that start processes: shoal_process_start, shoal_spawn_with, and in binding.h
 * shoal_process_start_program and shoal_fork. Zero is the default of each. A call fails with SHOAL_EINVAL if an option
 * is set that it does not have. */
typedef struct shoal_process_options {
    shoal_start start;
    const char *name; /* for `shoal ps` and error texts; NULL: the name of the target */
    int rank;         /* the target's rank; shoal_spawn_with ignores it */
    bool outlive;     /* keep running after the parent dies */
    int64_t grace;    /* shoal_spawn_with only: ns from SIGTERM to SIGKILL when ranks are ended; 0: 3 seconds */
    int64_t timeout;  /* shoal_spawn_with only: ns for all ranks together; 0: no limit */
    int death_signal; /* what the child gets when the parent dies, perhaps more than once; 0: SIGKILL */
    const int *fds;   /* shoal_process_start_program only: what the program inherits, under the same numbers */
    size_t fd_count;  /* of fds */
} shoal_process_options;

/* How a process ended. */
typedef enum shoal_end {
    SHOAL_PROCESS_RUNNING,
    SHOAL_PROCESS_RETURNED, /* the target returned SHOAL_OK */
    SHOAL_PROCESS_FAILED,   /* the target returned an error: see err and text */
    SHOAL_PROCESS_EXITED,   /* it called exit: code is the exit status */
    SHOAL_PROCESS_KILLED,   /* a signal ended it: code is the signal number */
} shoal_end;

/* How a process ended, in detail. text is for people: "rank 0 ended by SIGABRT", "rank 0 exited with 123", "rank 2
 * failed: SHOAL_EINVAL: ...". */
#define SHOAL_STATUS_TEXT 680

typedef struct shoal_status {
    shoal_end end;
    int code;
    shoal_err err;
    char text[SHOAL_STATUS_TEXT];
} shoal_status;

/* Starts a process that runs a target. Consumes args, on success and on failure; for a target without arguments, pass
 * shoal_value_null(). options may be NULL. The caller owns the handle: shoal_process_destroy. Does not wait for the
 * child to come up, so several children start at the same time. Thread-safe. Errors: SHOAL_EINVAL if the target has no
 * name that another process could find it by, or if args is NULL, because the call that made it failed; SHOAL_ELIMIT;
 * SHOAL_ENOMEM; SHOAL_EOS; SHOAL_EFORK; SHOAL_ESTATE if shoal_init was not called; SHOAL_EPERM for spawn and
 * forkserver in a program that has privileges of its file (setuid, setgid, capabilities) or whose real and effective
 * user or group differ: its children cannot trust their role, so only fork starts them. */
SHOAL_MUST_USE shoal_err shoal_process_start(shoal_target target, shoal_value *args,
                                             const shoal_process_options *options, shoal_process **out_process);

/* Waits until a process has ended, and reports how. Returns SHOAL_OK however it ended. out_status may be NULL. Blocks
 * at most for timeout. May be called again. Thread-safe. Errors: SHOAL_ETIMEDOUT; SHOAL_ESTATE if this process did
 * not start it; SHOAL_ENOMEM if it has ended and there is no memory for its result: the result is kept, so free some
 * and call again. */
SHOAL_MUST_USE shoal_err shoal_process_join(shoal_process *process, int64_t timeout, shoal_status *out_status);

/* Send a signal to a process: SIGTERM, SIGKILL, or any other. Do not wait for it to end. Thread-safe. Errors:
 * SHOAL_ESTATE if it has ended or this process did not start it; SHOAL_EINVAL if there is no such signal. */
SHOAL_MUST_USE shoal_err shoal_process_terminate(shoal_process *process);
SHOAL_MUST_USE shoal_err shoal_process_kill(shoal_process *process);
SHOAL_MUST_USE shoal_err shoal_process_signal(shoal_process *process, int signal);

/* Returns the process ID; 0 for NULL. Does not block. Thread-safe. */
int32_t shoal_process_pid(const shoal_process *process);

/* Returns a file descriptor that becomes readable when a process has ended. The handle owns it: do not close it.
 * Returns -1 for NULL. Does not block. Thread-safe. */
int shoal_process_sentinel(const shoal_process *process);

/* Returns the value that a process gave to shoal_return. The handle owns it. Returns NULL if there is none, or if the
 * process has not been joined. Does not block. Thread-safe. */
const shoal_value *shoal_process_result(const shoal_process *process);

/* Frees the handle of a process. A process that still runs is ended first: SIGTERM, and SIGKILL after 3 seconds,
 * unless it was started with `outlive`. Blocks until it has ended. NULL is allowed. Never changes the last error. */
void shoal_process_destroy(shoal_process *process);

/* Sets the result of this process, for its parent (shoal_process_result). A target calls it; if it does so more than
 * once, the last result counts. Consumes the value, on success and on failure. Does not block. Errors: SHOAL_ESTATE
 * if this process was not started as a target or has left its parent's world; those of shoal_queue_put for a value. */
SHOAL_MUST_USE shoal_err shoal_return(shoal_value *result);

/* Returns the rank that this process was started with; -1 outside of a target. Does not block. Thread-safe. */
int shoal_rank(void);

/* Run a target in n processes, ranks 0 to n - 1, and wait for all of them. Consume args, on success and on failure;
 * NULL is an error, as for shoal_process_start. options may be NULL; its rank is ignored. results may be NULL;
 * otherwise it gets n values that the caller must destroy, NULL for a rank without a result. After a failure all of
 * them are NULL.
 *
 * If a rank fails, the others are ended (SIGTERM, and SIGKILL after the grace time). They are ended likewise if the
 * timeout in options passes. Block until all ranks have ended. Thread-safe. Errors: SHOAL_ECHILD with the first
 * failure in the text; SHOAL_ETIMEDOUT; SHOAL_EINVAL if n, the timeout or the grace time is negative; those of
 * shoal_process_start. */
SHOAL_MUST_USE shoal_err shoal_spawn(shoal_target target, int n, shoal_value *args);
SHOAL_MUST_USE shoal_err shoal_spawn_with(shoal_target target, int n, shoal_value *args,
                                          const shoal_process_options *options, shoal_value **results);

/* Something that shoal_wait can wait for. Set exactly one of the pointers. */
typedef struct shoal_waitable {
    shoal_queue *queue;
    shoal_pipe *pipe;
    shoal_process *process;
    shoal_event *event;
    shoal_semaphore *semaphore;
    bool ready; /* set by shoal_wait: whether a get, recv, join or wait would not block */
} shoal_waitable;

/* Waits until at least one of several things is ready, and sets `ready` of each. A queue or pipe is ready if a get or
 * recv would not block, a process if it has ended, an event if it is set, a semaphore if its value is not 0. An event
 * that was set and cleared again meanwhile may be missed. Conditions cannot be waited for in this way, because they
 * have no state. Takes nothing. Blocks at most for timeout. Thread-safe. Errors: SHOAL_ETIMEDOUT if none is ready;
 * SHOAL_EINVAL if a thing has no pointer or several, or is an end of a pipe that only sends; SHOAL_ESTATE if this
 * process did not start a process. */
SHOAL_MUST_USE shoal_err shoal_wait(shoal_waitable *things, size_t count, int64_t timeout);

#ifdef __cplusplus
}
#endif
#endif
