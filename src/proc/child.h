/* What runs in a child. */
#ifndef SH_PROC_CHILD_H
#define SH_PROC_CHILD_H

#include <shoal/process.h>

#include <stdbool.h>
#include <stdint.h>

/* The one variable by which a started program knows what it is: "world fd:slot:lifeline fd:socket fd:sentinel
 * fd"; -1 for none. */
#define SH_CHILD_VARIABLE "SHOAL_CHILD"

/* In a process that fork made for this slot. target: NULL when only the record knows it. hangs: on the lifeline
 * that it inherited. */
_Noreturn void sh_child_forked(uint32_t slot, shoal_target target, bool hangs);

/* The same, and the caller goes on as the child; or the process ends when it cannot take its place. */
void sh_child_resume(uint32_t slot, bool hangs);

/* In a process that serves forks: until the socket is closed. */
_Noreturn void sh_forkserver_serve(int socket);

/* The variable for another program that was started as a child: "world fd:slot:lifeline fd:sentinel fd". */
#define SH_PROGRAM_VARIABLE "SHOAL_PROGRAM"

#endif
