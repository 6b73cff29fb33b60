/* Processes inside the library: the handle, and what the start methods give to each other. */
#ifndef SH_PROC_PROCESS_H
#define SH_PROC_PROCESS_H

#include "proc/start_record.h"
#include "shm/block.h"

#include <shoal/process.h>

#include <pthread.h>
#include <signal.h>
#include <sys/types.h>

/* Another program to start: as execvp takes it. */
typedef struct sh_program {
    const char *path;
    char *const *argv;
} sh_program;

/* What a start method is given. The slot is reserved and holds the record. */
typedef struct sh_launch {
    shoal_target target;       /* NULL for a program, and for a fork that goes on in the caller */
    const sh_program *program; /* sh_program_start only */
    uint32_t slot;
    int lifeline; /* for the child to hang on (registry.h); -1: it may outlive us */
} sh_launch;

/* What it gives back. The pid stays ours (or the fork server's) until it is reaped. */
typedef struct sh_born {
    int32_t pid;
    int pidfd;    /* or, where there are none, the end of a pipe (sentinel.h) */
    bool by_pipe; /* it is that */
} sh_born;

/* How a process ended, as its parent is told by the system. */
typedef struct sh_fate {
    int32_t code; /* exit status, or the signal */
    bool by_signal;
} sh_fate;

sh_fate sh_fate_of(const siginfo_t *info);

/* The start methods: spawn.c, fork.c, forkserver.c. When one fails, no child is left. The child cannot take its slot
 * before the caller has said whom it is for (sh_slot_expect). */
shoal_err sh_spawn_start(const sh_launch *launch, sh_born *out_born);
shoal_err sh_start_by_fork(const sh_launch *launch, sh_born *out_born);
shoal_err sh_forkserver_start(const sh_launch *launch, sh_born *out_born);
shoal_err sh_program_start(const sh_launch *launch, sh_born *out_born);

/* fork that returns in the child too: SHOAL_OK with pid 0, in the world and with its record open. */
shoal_err sh_start_resume_fork(const sh_launch *launch, sh_born *out_born);

typedef shoal_err (*sh_start_method)(const sh_launch *launch, sh_born *out_born);

/* Opens the sentinel of a child that this process has just made, after sh_sentinel_prepare: the pid is not given away
 * before it is reaped, so it is the right one. When that fails the child is ended. Errors: SHOAL_EOS. */
shoal_err sh_born_watch(pid_t pid, sh_born *out_born);

/* A handle.
 * Synchronisation: up to `lock` written once, before anybody else has the handle. The rest: under the lock, until
 * ended; then read only. */
struct shoal_process {
    shoal_process *next; /* all handles of this process: registry.c */
    shoal_process **link;
    shoal_block *record;
    int32_t pid;
    int pidfd;           /* the sentinel; -1 in a process that was forked from its owner */
    bool by_pipe;        /* it is no pidfd: sentinel.h */
    uint64_t start_time; /* of the process, for one by_pipe and by_server */
    int rank;
    uint32_t slot;
    uint64_t generation;
    bool by_server; /* a child of the fork server */
    bool outlive;
    bool hangs; /* on the lifeline, which we hold for it */
    char name[SHOAL_NAME_MAX + 1];
    bool named; /* by the caller: it stands in texts, and is the name of the process */
    pthread_mutex_t lock;
    sh_a32 ended;
    shoal_status status;
    shoal_value *result;
};

/* shoal_process_start with arguments that stay the caller's. */
shoal_err sh_process_begin(shoal_target target, const shoal_value *args, const shoal_process_options *options,
                           shoal_process **out_process);

/* The same by any method. launch: what it is given but slot and lifeline. name: when the options give none. In a child
 * that goes on from here *out_process is NULL. */
shoal_err sh_process_make(sh_start_method method, const sh_launch *launch, const sh_target *target,
                          const shoal_value *args, const shoal_process_options *options, const char *name,
                          shoal_process **out_process);

/* Has it ended? Does not block. */
bool sh_process_has_ended(const shoal_process *process);

/* When its target returned (sh_now time), 0 when it never did. */
int64_t sh_process_ended_at(const shoal_process *process);

/* No shoal_init, no spawn. Records that it was called. */
void sh_spawn_allow(void);

/* Runs this program again with SHOAL_CHILD in the environment. socket: the fork server's end, or -1. */
shoal_err sh_spawn_program(uint32_t slot, int lifeline, int socket, sh_born *out_born);

/* From now on fork is refused, for the reason given ("CUDA is in use"): a string that stays. */
void sh_start_forbid_fork(const char *why);

/* Takes its child that has ended out of the process table. SHOAL_ECHILD when the server is gone or does not know, SHOAL_ETIMEDOUT
 * when it does not answer: it is stopped. */
shoal_err sh_forkserver_reap(int32_t pid, int64_t deadline, sh_fate *out_fate);

/* Nobody will ask for this child's status. */
void sh_forkserver_drop(int32_t pid);

/* Ends the fork server of this process and waits for it; the next use starts another. */
void sh_forkserver_stop(void);

/* At the end of the process: tells it to end, and sees it out. Waits for no lock: in a signal handler this thread may have it. */
void sh_forkserver_leave(void);

#endif
