/* A supervisor starts the members of a crew, one process a rank, waits for their ends and for messages at the same time, asks its owner
 * what an end means, replaces members, and ends them all. Pools, loaders and training jobs are its owners.
 *
 * Who owns what: the supervisor owns the process handles. Everything else, queues and tasks too, is the owner's. Arguments of a start are
 * made by the owner and consumed by the start.
 *
 * Threads: the calls of one supervisor exclude each other by a lock of the owner's, if it has threads; wait gives that lock back while it
 * sleeps. Another thread may tend meanwhile: a start wakes the sleeper, which then sleeps on the new member too, and so does close.
 *
 * Invariants, for each rank
 *   - At most one process runs as the member. Beside it at most one is retiring: it does no more work and is only seen out.
 *   - `ended` is called once for each member that ends before sh_supervisor_end, after everything that it held was recovered, and
 *     before its replacement starts. So what it held can be handed on.
 *   - The handle of a member that has ended stays until its replacement is started: its status can be read.
 *
 * death: of the owner's process: the kernel kills the members (registry.h); nothing here is in shared memory.
 * stopped: an owner that is stopped replaces nobody until it goes on. A member that is stopped runs, and SIGKILL ends it all the same.
 * fork: the supervisor belongs to the process that made it. In a fork of that, tend fails with SHOAL_EFORK, wait returns at once, and
 * destroy frees memory only. */
#ifndef SH_PROC_SUPERVISOR_H
#define SH_PROC_SUPERVISOR_H

#include "ipc/queue.h"
#include "proc/process.h"
#include "shm/waits.h"

typedef struct sh_supervisor sh_supervisor;

/* What the owner says of a member that has ended. */
typedef enum sh_verdict {
    SH_VERDICT_REPLACE,
    SH_VERDICT_DONE, /* its rank stays empty */
    SH_VERDICT_FAIL, /* tend fails with the last error */
} sh_verdict;

typedef struct sh_supervisor_rules {
    shoal_target target;
    shoal_start start;
    const char *name;        /* of the processes; stays the owner's */
    bool numbered;           /* the rank stands behind it: "name-0" */
    sh_waits_kind waits_for; /* how a wait is shown (waits.h) */
    void *owner;             /* for the calls below */

    /* What a member is started with: args, for all of them, or what arguments makes for each start. NULL: the last error. */
    const shoal_value *args;
    shoal_value *(*arguments)(void *owner, int rank);

    sh_verdict (*ended)(void *owner, int rank, const shoal_process *process);

    /* May be NULL. Has the member come so far that its death is not a failed start? */
    bool (*is_ready)(void *owner, int rank);
    int failed_starts; /* with is_ready: so many in a row are borne */

    bool patient; /* tend tries again later when the system cannot start a replacement; else it fails */
} sh_supervisor_rules;

/* No member runs yet. Errors: SHOAL_ENOMEM. */
shoal_err sh_supervisor_create(const sh_supervisor_rules *rules, int count, sh_supervisor **out_supervisor);

/* Starts all members. When one cannot be started, those before it run. */
shoal_err sh_supervisor_start(sh_supervisor *supervisor);

/* Sleeps until the queue is ready (NULL: no queue), a member ends, or the deadline passes; it may return earlier. lock: NULL, or the
 * owner's, which is held by the caller. Whether a signal ended it is in sh_interrupt_mine. */
void sh_supervisor_wait(sh_supervisor *supervisor, shoal_queue *queue, pthread_mutex_t *lock, int64_t deadline);

/* Sees out the members that have ended, and starts others for them. Does not block. Errors: what `ended` says; SHOAL_ECHILD after too many
 * failed starts; those of starting. */
shoal_err sh_supervisor_tend(sh_supervisor *supervisor);

/* The member of that rank will end by itself, and counts as gone: another is started by the next tend. */
void sh_supervisor_retire(sh_supervisor *supervisor, int rank);

/* A member has done what it is for: failed starts are counted anew. */
void sh_supervisor_succeeded(sh_supervisor *supervisor);

/* From now on nobody is replaced. */
void sh_supervisor_close(sh_supervisor *supervisor);

/* Waits until no process is left, retiring ones included. After close. False when the deadline passed or a signal ended the wait. */
bool sh_supervisor_join(sh_supervisor *supervisor, int64_t deadline);

/* Ends all: waits for those that the owner has asked to end, sends SIGTERM to the rest, then SIGKILL. Takes at most ask + grace, and a few
 * seconds where processes hang in the kernel. grace 0: no SIGTERM. `ended` is not called any more. */
void sh_supervisor_end(sh_supervisor *supervisor, int64_t ask, int64_t grace);

/* After end, or before any start. NULL is allowed. */
void sh_supervisor_destroy(sh_supervisor *supervisor);

/* The process of that rank, borrowed until the next call; NULL when none was started. Does it run, as far as is known? How many do? */
shoal_process *sh_supervisor_process(const sh_supervisor *supervisor, int rank);
bool sh_supervisor_runs(const sh_supervisor *supervisor, int rank);
int sh_supervisor_running(const sh_supervisor *supervisor);

/* Members that ended without returning, failures of tend excluded. From any thread. */
uint64_t sh_supervisor_deaths(const sh_supervisor *supervisor);

/* False in a fork of the process that made it. */
bool sh_supervisor_is_ours(const sh_supervisor *supervisor);

#endif
