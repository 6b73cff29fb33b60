/* The code that runs in a child process. */
#ifndef SH_PROC_CHILD_H
#define SH_PROC_CHILD_H

#include <shoal/process.h>

#include <stdbool.h>
#include <stdint.h>

/* The environment variable that tells a spawned process its role: "world fd:slot:lifeline fd:socket fd:sentinel
 * fd:death signal". An fd of -1 means none. */
#define SH_CHILD_VARIABLE "SHOAL_CHILD"

/* Runs the target in a process that fork made for this slot, then ends the process. target: NULL if only the record
 * names it. death_signal: the process hangs on the lifeline that it inherited, and gets this
 * signal from it; 0: it does not hang on it. */
_Noreturn void sh_child_forked(uint32_t slot, shoal_target target, int death_signal);

/* The same, but returns, so that the caller continues as the child. Ends the process if it cannot take its slot. */
void sh_child_resume(uint32_t slot, int death_signal);

/* Runs in a fork server: serves requests until the socket is closed. */
_Noreturn void sh_forkserver_serve(int socket);

/* The environment variable of another program that was started as a child: "world fd:slot:lifeline fd:sentinel fd". */
#define SH_PROGRAM_VARIABLE "SHOAL_PROGRAM"

#endif
