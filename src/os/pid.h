/* What the system knows about processes: life marks that end with their process, start times, pidfds. */
#ifndef SH_OS_PID_H
#define SH_OS_PID_H

#include <stdbool.h>
#include <stdint.h>

/* A life mark is a record lock on one byte of the world's file. The kernel drops it when the process has ended, after
 * its last thread has stopped running; a fork does not inherit it. The kernel also drops it when the process closes any
 * fd of that file, so its absence alone does not prove death: sh_pid_gone does. */
bool sh_life_mark(int fd, uint64_t byte);
void sh_life_unmark(int fd, uint64_t byte);
bool sh_life_marked(int fd, uint64_t byte);  /* by another process than the caller */
extern _Thread_local uint64_t sh_life_asked; /* how often this thread has asked that, for tests */

/* Returns when the process started, in clock ticks since boot, or 0 if there is no such process. Tells two processes
 * with the same pid apart. */
uint64_t sh_pid_start_time(int32_t pid);

/* Returns the number of the pid namespace in which this process sees pids, or 0 if it is not known or not found yet. A
 * process finds it before it needs it. A child of fork is in its parent's namespace, unless it does not see its parent:
 * then the parent has unshared, or entered another namespace for its children. So finding it in a child costs one short
 * system call. */
uint32_t sh_pid_space(void);
void sh_pid_find_space(void);
void sh_pid_find_space_of_child(void);

/* Checks whether no thread of the process that started then will run again: the pid does not exist, has another start
 * time, or is a zombie with no living threads. A start time of 0 matches any. */
bool sh_pid_gone(int32_t pid, uint64_t start_time);

/* Checks whether a process with that pid runs, in about 2 us: it is no zombie. It may be another one than the caller
 * thinks of, if the pid was reused. False also if the system does not say. */
bool sh_pid_runs(int32_t pid);

/* Reads how a process ended that nobody has reaped yet, without reaping it: the wait status, as waitpid gives it.
 * It is 0 if this process may not look (another user's). Returns false if the process is not a zombie, or /proc does
 * not show it. */
bool sh_pid_zombie_status(int32_t pid, int *out_wait_status);

/* Returns false only if it is certain that the process runs on and does not map the memory file with that inode. True
 * while it ends, until sh_pid_gone: it has no memory any more, but the kernel is still closing its files. That may take
 * a tenth of a second, in which a card goes on with the work that the process gave it. */
bool sh_pid_maps(int32_t pid, uint64_t inode);

/* Kills the process that started then if it is stopped; with running_too, also if it is running. */
void sh_pid_kill_stopped(int32_t pid, uint64_t start_time, bool running_too);

/* Runs the function in a separate process that shares all memory with the caller, and waits until it ends. Anybody may
 * kill that process without harm to the caller, provided the function leaves no private lock taken and no private
 * memory half written. So the function allocates nothing, prints nothing, and ends by returning 0. It has the caller's
 * thread-local variables, its own pid, start time and record locks, and no signal handler runs in it. If the process is
 * stopped, the caller kills it. One caller at a time. */
typedef enum sh_helper_result {
    SH_HELPER_DONE,
    SH_HELPER_KILLED,
    SH_HELPER_FAILED,  /* it ended in another way, such as a crash */
    SH_HELPER_REFUSED, /* the system cannot make such a process; nothing ran */
} sh_helper_result;

sh_helper_result sh_helper_run(int (*function)(void *), void *argument);

/* Returns an fd that polls readable when the process ends; close-on-exec. Returns -1 if there is no such process. */
int sh_pidfd_open(int32_t pid);

/* Returns true only if it is certain that the calling thread is the only one of this process. Safe in signal
 * handlers. */
bool sh_thread_is_only(void);

/* Returns the number of cores that this process may run on. */
int sh_cores(void);

#endif
