/* What the system knows of processes: life marks that die with their process, start times, pidfds. */
#ifndef SH_OS_PROCESS_H
#define SH_OS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* A life mark is a record lock on one byte of the world's file. The kernel drops it when the process has ended,
 * after its last thread has stopped running; a fork does not inherit it. It also falls when the process closes any
 * fd of that file, so its absence alone does not prove death: sh_process_gone does. */
bool sh_life_mark(int fd, uint64_t byte);
void sh_life_unmark(int fd, uint64_t byte);
bool sh_life_marked(int fd, uint64_t byte); /* by another process than the caller */

/* When the process started, in clock ticks since boot; 0 when there is none. Tells apart two processes with one pid. */
uint64_t sh_process_start_time(int32_t pid);

/* True when the process that started then has ended: no such pid, another start time, or a zombie. */
bool sh_process_gone(int32_t pid, uint64_t start_time);

/* False when it is certain that the process does not have the file behind fd mapped. */
bool sh_process_maps(int32_t pid, int fd);

/* An fd that polls readable at the end of a process; close-on-exec; -1 when there is no such process. */
int sh_pidfd_open(int32_t pid);

/* True when it is certain that the calling thread is the only one of this process. A signal handler may ask. */
bool sh_process_is_single(void);

/* Cores that this process may run on. */
int sh_cores(void);

#endif
