/* Processes: start a function of this program, or of a library it has loaded, in a process of its own.
 *
 * Arguments and results are values. Three ways to start: spawn (the default: a fresh image of this program, safe
 * with threads and with CUDA), fork, and forkserver (a small clean server forks). The program must call shoal_init
 * first in main. A forked child inherits every handle of its parent, the ends of pipes included. Children end when
 * their parent dies, unless they were asked to outlive it. Another program as a child, and waits that a signal ends: binding.h.
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

/* What a process runs. args is borrowed. Returning anything but SHOAL_OK makes the process fail with that error and
 * the text of shoal_last_error_text. A target that leaves the world cannot tell how it ended: it is seen as SHOAL_EXITED. */
typedef shoal_err (*shoal_target)(int rank, const shoal_value *args);

/* The ways to start a process. */
typedef enum shoal_start {
    SHOAL_START_DEFAULT, /* SHOAL_START in the environment, else spawn */
    SHOAL_START_SPAWN,
    SHOAL_START_FORK,
    SHOAL_START_FORKSERVER,
} shoal_start;

/* Options of shoal_process_start and shoal_spawn_with. Zero is the default of each. */
typedef struct shoal_process_options {
    shoal_start start;
    const char *name; /* for `shoal ps` and error texts; NULL: the target's name */
    int rank;         /* what the target is given */
    bool outlive;     /* stay when the parent dies */
    int64_t grace;    /* shoal_spawn: time between SIGTERM and SIGKILL for the rest, 0 means 3 seconds */
    int64_t timeout;  /* shoal_spawn: for all ranks together, in ns; 0: no limit */
} shoal_process_options;

/* How a process ended. */
typedef enum shoal_end {
    SHOAL_RUNNING,
    SHOAL_RETURNED, /* the target returned SHOAL_OK */
    SHOAL_FAILED,   /* the target returned an error: err and text */
    SHOAL_EXITED,   /* it called exit: code */
    SHOAL_KILLED,   /* a signal ended it: code is the signal */
} shoal_end;

#define SHOAL_STATUS_TEXT 680

typedef struct shoal_status {
    shoal_end end;
    int code;
    shoal_err err;
    char text
        [SHOAL_STATUS_TEXT]; /* "rank 0 ended by SIGABRT", "rank 0 exited with 123", "rank 2 failed: SHOAL_EINVAL: …" */
} shoal_status;

/* Starts a process. args (NULL: null) is consumed, whether or not it succeeds. options may be NULL. Does not wait
 * for the child to be up, so several children start side by side. Errors: SHOAL_EINVAL (a target that cannot be
 * named), SHOAL_ELIMIT, SHOAL_ENOMEM, SHOAL_EOS, SHOAL_EFORK, SHOAL_ESTATE (shoal_init was not called, or fork is
 * forbidden). */
SHOAL_MUST_USE shoal_err shoal_process_start(shoal_target target, shoal_value *args,
                                             const shoal_process_options *options, shoal_process **out_process);

/* Waits for the end of a process, at most timeout. out_status may be NULL. SHOAL_OK however it ended; SHOAL_ETIMEDOUT. May be
 * called again. */
SHOAL_MUST_USE shoal_err shoal_process_join(shoal_process *process, int64_t timeout, shoal_status *out_status);

/* Send SIGTERM, SIGKILL, or any signal to a process. SHOAL_ESTATE when it has ended. */
SHOAL_MUST_USE shoal_err shoal_process_terminate(shoal_process *process);
SHOAL_MUST_USE shoal_err shoal_process_kill(shoal_process *process);
SHOAL_MUST_USE shoal_err shoal_process_signal(shoal_process *process, int signal);

/* The process ID. */
int32_t shoal_process_pid(const shoal_process *process);

/* An fd that polls readable when the process has ended. It belongs to the handle. */
int shoal_process_sentinel(const shoal_process *process);

/* What the target gave to shoal_return; NULL when nothing or when it has not ended. Borrowed from the handle. */
const shoal_value *shoal_process_result(const shoal_process *process);

/* Frees the handle of a process. A process that still runs is ended first: SIGTERM, 3 seconds, SIGKILL; unless it may outlive us.
 * NULL is allowed. */
void shoal_process_destroy(shoal_process *process);

/* Hands the result of a target to the parent. Called inside the target; consumed; the last one counts. */
SHOAL_MUST_USE shoal_err shoal_return(shoal_value *result);

/* The rank that this process was started with. Outside of a target: -1. */
int shoal_rank(void);

/* Runs ranks 0 to n - 1 of target and waits for all. args is consumed. When one fails the others are ended (SIGTERM,
 * then SIGKILL after the grace time), and SHOAL_ECHILD is returned with the first failure in the text. When the `timeout` of the
 * options passes they are ended likewise: SHOAL_ETIMEDOUT. results (may
 * be NULL) gets n values that the caller destroys, NULL where a rank gave none; on failure all are NULL. options may
 * be NULL; its rank is ignored. */
SHOAL_MUST_USE shoal_err shoal_spawn(shoal_target target, int n, shoal_value *args);
SHOAL_MUST_USE shoal_err shoal_spawn_with(shoal_target target, int n, shoal_value *args,
                                          const shoal_process_options *options, shoal_value **results);

/* Waits for the first of several things: set exactly one pointer in each. ready is written for all: true when a get,
 * a recv, a join or a wait would not block. SHOAL_ETIMEDOUT when none is. An event that was set and cleared again while nobody looked
 * is not ready. Conditions cannot be waited for like this: they have no state to look at, only those who wait in
 * shoal_condition_wait. */
typedef struct shoal_waitable {
    shoal_queue *queue;
    shoal_pipe *pipe;
    shoal_process *process;
    shoal_event *event;
    shoal_semaphore *semaphore;
    bool ready;
} shoal_waitable;

SHOAL_MUST_USE shoal_err shoal_wait(shoal_waitable *things, size_t count, int64_t timeout);

#ifdef __cplusplus
}
#endif
#endif
