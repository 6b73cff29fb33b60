/* What the system knows of processes: life marks that die with their process, start times, pidfds. */
#ifndef SH_OS_PID_H
#define SH_OS_PID_H

#include <stdbool.h>
#include <stdint.h>

/* A life mark is a record lock on one byte of the world's file. The kernel drops it when the process has ended,
 * after its last thread has stopped running; a fork does not inherit it. It also falls when the process closes any
 * fd of that file, so its absence alone does not prove death: sh_pid_gone does. */
bool sh_life_mark(int fd, uint64_t byte);
void sh_life_unmark(int fd, uint64_t byte);
bool sh_life_marked(int fd, uint64_t byte); /* by another process than the caller */

/* When the process started, in clock ticks since boot; 0 when there is none. Tells apart two processes with one pid. */
uint64_t sh_pid_start_time(int32_t pid);

/* The number of the pid namespace in which this process sees pids; 0: not known, or not found yet. A process finds it before it needs it.
 * A child of fork is in its parent's, unless it does not see its parent, which has then unshared, or entered another for its
 * children: so there it costs one short system call. */
uint32_t sh_pid_space(void);
void sh_pid_find_space(void);
void sh_pid_find_space_of_child(void);

/* True when no thread of the process that started then will run again: no such pid, another start time, or a zombie all of whose
 * threads are. A start time of 0 is any. */
bool sh_pid_gone(int32_t pid, uint64_t start_time);

/* False when it is certain that the process does not have the memory file with that inode mapped. */
bool sh_pid_maps(int32_t pid, uint64_t inode);

/* Kills the process that started then if it is stopped; with running_too also if it is not. */
void sh_pid_kill_stopped(int32_t pid, uint64_t start_time, bool running_too);

/* Runs the function in a process of its own that shares all memory with the caller and waits for it to end: one that anybody may
 * kill without harm to the caller, if the function leaves no private lock taken and no private memory half written. So it
 * allocates nothing, prints nothing, and ends by returning 0. It has the caller's thread-local variables, a pid, a start
 * time and record locks of its own, and no signal handler runs in it. One that is stopped is killed. One caller at a time. */
typedef enum sh_helper_result {
    SH_HELPER_DONE,
    SH_HELPER_KILLED,
    SH_HELPER_FAILED,  /* it ended in another way: a crash */
    SH_HELPER_REFUSED, /* the system makes none: nothing was run */
} sh_helper_result;

sh_helper_result sh_helper_run(int (*function)(void *), void *argument);

/* An fd that polls readable at the end of a process; close-on-exec; -1 when there is no such process. */
int sh_pidfd_open(int32_t pid);

/* True when it is certain that the calling thread is the only one of this process. A signal handler may ask. */
bool sh_thread_is_only(void);

/* Cores that this process may run on. */
int sh_cores(void);

#endif
