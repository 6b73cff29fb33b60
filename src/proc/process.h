/* Processes inside the library: the handle, and the interface of the start methods. */
#ifndef SH_PROC_PROCESS_H
#define SH_PROC_PROCESS_H

#include "proc/start_record.h"
#include "shm/block.h"

#include <shoal/binding.h>

#include <pthread.h>
#include <signal.h>
#include <sys/types.h>

/* Another program to start: as execvp takes it, and what it inherits. */
typedef struct sh_program {
    const char *path;
    char *const *argv;
    const int *fds;
    size_t fd_count;
} sh_program;

/* The input of a start method. The slot is reserved and holds the record. */
typedef struct sh_launch {
    shoal_target target;       /* NULL for a program, and for a fork that returns in the child */
    const sh_program *program; /* of a child, or of a fork server */
    uint32_t slot;
    int lifeline;     /* for the child to hang on (registry.h); -1: it may outlive this process */
    int death_signal; /* what the lifeline sends; 0 without a lifeline */
} sh_launch;

/* The output of a start method. Nobody reuses the pid until this process (or the fork server) reaps it. */
typedef struct sh_born {
    int32_t pid;
    int pidfd;       /* or the end of a pipe, where there are no pidfds (sentinel.h) */
    bool by_pipe;    /* pidfd is the end of a pipe */
    uint64_t server; /* the number of the fork server that made it; 0: none */
} sh_born;

/* How a process ended, as the system reports it to its parent. */
typedef struct sh_fate {
    int32_t code; /* exit status, or the signal */
    bool by_signal;
} sh_fate;

sh_fate sh_fate_of(const siginfo_t *info);

/* The start methods: spawn.c, fork.c, forkserver.c. If one fails, it leaves no child. The child cannot take its slot
 * before the caller has named its pid (sh_slot_expect). */
shoal_err sh_spawn_start(const sh_launch *launch, sh_born *out_born);
shoal_err sh_start_by_fork(const sh_launch *launch, sh_born *out_born);
shoal_err sh_forkserver_start(const sh_launch *launch, sh_born *out_born);
shoal_err sh_program_start(const sh_launch *launch, sh_born *out_born);

/* A fork that returns in the child too: SHOAL_OK with pid 0, in the world and with its record open. */
shoal_err sh_start_resume_fork(const sh_launch *launch, sh_born *out_born);

typedef shoal_err (*sh_start_method)(const sh_launch *launch, sh_born *out_born);

/* Opens the sentinel of a child that this process has just made, after sh_sentinel_prepare. The system does not reuse
 * the pid before it is reaped, so it is the right one. Ends the child on failure. Errors: SHOAL_EOS. */
shoal_err sh_born_watch(pid_t pid, sh_born *out_born);

/* A process handle.
 * Synchronisation: the fields above `lock` are written once, before any other thread has the handle. The others are
 * written under the lock until `ended` is set; then they are read-only. */
struct shoal_process {
    shoal_process *next; /* all handles of this process: registry.c */
    shoal_process **link;
    shoal_block *record;
    int32_t pid;
    int pidfd;           /* the sentinel; -1 in a process that was forked from its owner */
    bool by_pipe;        /* pidfd is the end of a pipe (sentinel.h) */
    uint64_t start_time; /* of the process, if it has a pipe and a server */
    int rank;
    uint32_t slot;
    uint64_t generation;
    uint64_t server; /* the number of the fork server that is its parent; 0: this process is */
    bool outlive;
    int death_signal; /* 0 with outlive */
    bool hangs;       /* on the lifeline, which this handle holds */
    char name[SHOAL_NAME_MAX + 1];
    bool named; /* by the caller: texts show it, and the process has it as its name */
    pthread_mutex_t lock;
    sh_a32 ended;
    sh_a32 reaped; /* status is final, and another process may have the pid; perhaps the result is still to be read */
    shoal_status status;
    shoal_value *result;
};

/* The calls that take shoal_process_options, by the options that not all of them have. */
typedef enum sh_options_of {
    SH_OPTIONS_OF_START,   /* none of these: shoal_process_start, shoal_fork */
    SH_OPTIONS_OF_SPAWN,   /* grace, timeout */
    SH_OPTIONS_OF_PROGRAM, /* fds */
} sh_options_of;

/* Checks that `call` has all options that are set. They may be NULL. */
shoal_err sh_process_check_options(const char *call, const shoal_process_options *options, sh_options_of of);

/* shoal_process_start, except that the caller keeps the arguments. */
shoal_err sh_process_begin(shoal_target target, const shoal_value *args, const shoal_process_options *options,
                           shoal_process **out_process);

/* The same with any start method. launch: its input without slot and lifeline. name: used if the options give none.
 * Sets *out_process to NULL in a child that returns from here. */
shoal_err sh_process_make(sh_start_method method, const sh_launch *launch, const sh_target *target,
                          const shoal_value *args, const shoal_process_options *options, const char *name,
                          shoal_process **out_process);

/* Checks whether the process has ended. Does not block. */
bool sh_process_has_ended(const shoal_process *process);

/* Joins a process whose result nobody needs. Does not block. Returns false if it runs, or only a stopped fork server
 * knows how it ended. */
bool sh_process_is_over(shoal_process *process, shoal_status *out_status);

/* Returns the time at which its target returned (sh_now time), 0 if it did not. */
int64_t sh_process_ended_at(const shoal_process *process);

/* Records that shoal_init was called. Spawn fails without it. */
void sh_spawn_allow(void);

/* Runs this program again with SHOAL_CHILD in the environment. Uses slot, lifeline and death_signal of the launch.
 * socket: the fork server's end, or -1. */
shoal_err sh_spawn_program(const sh_launch *launch, int socket, sh_born *out_born);

/* The same with the program of the launch, and SHOAL_PROGRAM. */
shoal_err sh_program_run(const sh_launch *launch, int socket, sh_born *out_born);

/* Reaps a child of that fork server that has ended. Errors: SHOAL_ECHILD if the server is dead or does not know the
 * child, SHOAL_ETIMEDOUT if it does not answer because it is stopped. */
shoal_err sh_forkserver_reap(uint64_t server, int32_t pid, int64_t deadline, sh_fate *out_fate);

/* Lets the fork server reap this child by itself: nobody will ask for its status. */
void sh_forkserver_drop(uint64_t server, int32_t pid);

/* Called at the end of the process: tells the fork servers to end, and waits for them. Does not wait for the lock: if
 * this runs in a signal handler, this thread may hold it. */
void sh_forkserver_leave(void);

#endif
