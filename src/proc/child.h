/* The code that runs in a child process. */
#ifndef SH_PROC_CHILD_H
#define SH_PROC_CHILD_H

#include "proc/fork_request.h"

#include <shoal/binding.h>

#include <stdbool.h>
#include <stdint.h>

/* How a child learns its role. The environment names the role and the fds of the world, and whoever executed the
 * program chose both. Usually that is one who could do anything to this process anyway. But a program that gains
 * privileges when it is executed (setuid, setgid, file capabilities; the kernel says so by AT_SECURE) must not map
 * memory and call functions that its unprivileged starter chose, and nothing that it inherits proves who chose them. So
 * it takes no role. It must not run main in place of the child, either: main would start children again, and so on. It
 * ends with SH_EXIT_PRIVILEGED, and its parent knows why. */
typedef enum sh_exit_lost {
    SH_EXIT_PRIVILEGED = 126, /* it gained privileges when it was executed */
    SH_EXIT_LOST = 127,       /* it did not reach its record for another reason */
} sh_exit_lost;

#define SH_PRIVILEGED_TEXT                                                                                             \
    "a program that gains privileges when it is executed (setuid, setgid, file capabilities) cannot trust a role "     \
    "that "                                                                                                            \
    "its starter gives it; start the child with fork"

/* Fails with SHOAL_EPERM if this program, executed again, would not accept its role, as far as that can be told
 * here. */
shoal_err sh_role_check(void);

/* The environment variable that tells a spawned process its role: "world fd:slot:lifeline fd:socket fd:sentinel
 * fd:death signal:store fd:store fd" (shm/card_store.h). An fd of -1 means none. */
#define SH_CHILD_VARIABLE "SHOAL_CHILD"

/* Runs the target in a process that fork made for this slot, then ends the process. target: NULL if only the record
 * names it. death_signal: the process hangs on the lifeline that it inherited, and gets this
 * signal from it; 0: it does not hang on it. */
_Noreturn void sh_child_forked(uint32_t slot, shoal_target target, int death_signal);

/* The same, but returns, so that the caller continues as the child. Ends the process if it cannot take its slot. */
void sh_child_resume(uint32_t slot, int death_signal);

/* Runs in a fork server: serves requests, and calls `before` and `after_parent` around each fork. Returns true in each
 * child, which has not taken its slot yet, with the request that it was made for; false in the server, once its
 * requester has closed the socket or died. */
bool sh_forkserver_serve(int socket, const shoal_fork_options *hooks, sh_request *out_request);

/* The environment variable of another program that was started as a child or as a fork server: "world fd:slot:lifeline
 * fd:socket fd:sentinel fd:store fd:store fd". A child has no socket. */
#define SH_PROGRAM_VARIABLE "SHOAL_PROGRAM"

#define SH_VARIABLE_ROOM 160 /* for either variable with its value */

static inline void sh_hook_call(void (*hook)(void *context), void *context)
{
    if (hook != NULL) {
        hook(context);
    }
}

#endif
