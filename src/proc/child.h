/* What runs in a child. None of these returns. */
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

/* In a process that serves forks: until the socket is closed. */
_Noreturn void sh_forkserver_serve(int socket);

#endif
