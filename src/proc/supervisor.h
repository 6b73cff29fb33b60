/* A supervisor starts the members of a crew, one process for each rank. It waits for their ends and for messages at the
 * same time, asks its owner what an end means, replaces members, and ends them all. Its owners are pools, loaders,
 * training jobs and calls of shoal_spawn.
 *
 * Who owns what: the supervisor owns the process handles. The owner owns everything else, including queues and tasks.
 * The owner makes the arguments of a start, and the start consumes them.
 *
 * Threads: if the owner has threads, its lock serialises the calls of one supervisor; wait releases that lock while it
 * sleeps. Another thread may tend meanwhile. A start wakes the sleeper, which then sleeps on the new member too; close
 * wakes it as well.
 *
 * Invariants, for each rank
 *   - At most one process runs as the member. Beside it at most one is retiring: it does no more work, and only its end
 *     is awaited. It has time for its exit handlers, and is ended after that. A member that retires meanwhile keeps its
 *     place until then.
 *   - `ended` is called once for each member that ends before sh_supervisor_end, after everything that it held was
 *     recovered, and before its replacement starts. So another member can get what it held.
 *   - The handle of a member that has ended stays until its replacement starts, so its status can be read.
 *
 * death: of the owner's process: the kernel kills the members (registry.h); nothing here is in shared memory.
 * stopped: a stopped owner replaces no member until it continues. A stopped member counts as running, and SIGKILL ends
 * it all the same. fork: the supervisor belongs to the process that made it. In a fork of that process, tend fails with
 * SHOAL_EFORK, wait returns at once, and destroy frees memory only. */
#ifndef SH_PROC_SUPERVISOR_H
#define SH_PROC_SUPERVISOR_H

#include "ipc/queue.h"
#include "proc/process.h"
#include "shm/waits.h"

typedef struct sh_supervisor sh_supervisor;

/* The owner's decision about a member that has ended. */
typedef enum sh_verdict {
    SH_VERDICT_REPLACE,
    SH_VERDICT_DONE, /* its rank stays empty */
    SH_VERDICT_FAIL, /* tend fails with the last error */
} sh_verdict;

typedef struct sh_supervisor_rules {
    shoal_target target;
    shoal_process_options options; /* of all members, with another rank each; the owner keeps what it points to */
    bool numbered;                 /* the rank is appended to the name: "name-0" */
    sh_waits_kind waits_for;       /* how a wait is shown (waits.h) */
    void *owner;                   /* for the calls below */

    /* The arguments of a member: args for all members, or what `arguments` makes for each start. If `arguments` returns
     * NULL, the start fails with the last error. */
    const shoal_value *args;
    shoal_value *(*arguments)(void *owner, int rank);

    sh_verdict (*ended)(void *owner, int rank, const shoal_process *process);

    /* Checks whether the member got far enough that its death is not a failed start. May be NULL. */
    bool (*is_ready)(void *owner, int rank);
    int failed_starts; /* with is_ready: how many in a row are allowed */

    int64_t retire_limit; /* how long the exit handlers of a process that retires may take, in ns; 0: ten seconds */

    bool patient; /* if the system cannot start a replacement, tend tries again later instead of failing */
} sh_supervisor_rules;

/* Makes a supervisor. No member runs yet. Errors: SHOAL_ENOMEM. */
shoal_err sh_supervisor_create(const sh_supervisor_rules *rules, int count, sh_supervisor **out_supervisor);

/* Starts all members, or one. If one cannot be started, those before it keep running. */
shoal_err sh_supervisor_start(sh_supervisor *supervisor);
shoal_err sh_supervisor_start_member(sh_supervisor *supervisor, int rank);

/* Sleeps until the queue is ready (NULL: no queue), a member ends, or the deadline passes; it may return earlier. lock:
 * NULL, or the owner's lock, which the caller holds. sh_interrupt_mine says whether a signal ended the wait. */
void sh_supervisor_wait(sh_supervisor *supervisor, shoal_queue *queue, pthread_mutex_t *lock, int64_t deadline);

/* Joins the members that have ended, and starts their replacements. Does not block. Errors: that of `ended`;
 * SHOAL_ECHILD after too many failed starts; those of starting a process. */
shoal_err sh_supervisor_tend(sh_supervisor *supervisor);

/* Marks the member of that rank as retiring: it will end by itself, and a tend starts another, the next one unless an
 * earlier member of that rank is still retiring. */
void sh_supervisor_retire(sh_supervisor *supervisor, int rank);

/* Resets the count of failed starts: a member has done its work. */
void sh_supervisor_succeeded(sh_supervisor *supervisor);

/* Stops replacing members. */
void sh_supervisor_close(sh_supervisor *supervisor);

/* Waits until no process is left, retiring ones included. Call it after close. Returns false if the deadline passed or
 * a signal ended the wait. */
bool sh_supervisor_join(sh_supervisor *supervisor, int64_t deadline);

/* Ends all members: waits for those that the owner has asked to end, sends SIGTERM to the rest, then SIGKILL. Takes at
 * most ask + grace, plus a few seconds if processes hang in the kernel. If grace is 0, it sends no SIGTERM. Does not
 * call `ended`. */
void sh_supervisor_end(sh_supervisor *supervisor, int64_t ask, int64_t grace);

/* Frees the supervisor. Call it after end, or before any start. NULL is allowed. */
void sh_supervisor_destroy(sh_supervisor *supervisor);

/* The process of that rank, borrowed until the next call, or NULL if none was started; whether it runs, as far as the
 * supervisor has seen; and how many run. */
shoal_process *sh_supervisor_process(const sh_supervisor *supervisor, int rank);
bool sh_supervisor_runs(const sh_supervisor *supervisor, int rank);
int sh_supervisor_running(const sh_supervisor *supervisor);

/* Returns how many members ended without returning, not counting those that made tend fail. Call it from any thread. */
uint64_t sh_supervisor_deaths(const sh_supervisor *supervisor);

/* Returns false in a fork of the process that made the supervisor. */
bool sh_supervisor_is_ours(const sh_supervisor *supervisor);

#endif
