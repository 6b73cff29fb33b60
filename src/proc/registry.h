/* What a process knows of its children, private to it: the lifeline they hang on, the handles, and those that nobody
 * will join.
 *
 * The lifeline is a pipe that nothing is ever written to. The parent alone has the end to write; each child opens
 * the other end for itself and asks the kernel for SIGKILL when something happens there. The only thing that can
 * happen is that the parent's end is closed, by its death. (PR_SET_PDEATHSIG would fire already when the thread that
 * started the child ends.)
 */
#ifndef SH_PROC_REGISTRY_H
#define SH_PROC_REGISTRY_H

#include "proc/process.h"

/* The end that children hang on to; it stays ours. Made at the first need, closed when nobody needs it: one drop for
 * each hold. Errors: SHOAL_EOS. */
shoal_err sh_lifeline_hold(int *out_fd);
void sh_lifeline_drop(void);

/* In a child: dies when the process at the other end does. fd stays the caller's. Ends the process at once when the
 * parent is gone already. */
shoal_err sh_lifeline_arm(int fd);

/* In a program that was started as a child: takes over the fd that was armed for it before it began; -1 for none. */
void sh_lifeline_adopt(int fd);

/* A description of its own of the lifeline's end to read, for a child to arm (sh_lifeline_arm_here); the caller's. -1
 * with errno. */
int sh_lifeline_reopen(int fd);

/* In a child, between vfork and exec too: the process behind the other end gone, or its end to come, is SIGKILL for this
 * process. fd: of sh_lifeline_reopen. False with errno. */
bool sh_lifeline_arm_here(int fd);

/* In a forked child: the end that its parent's children hang on to, or -1; the caller's from now on. */
int sh_lifeline_inherited(void);

/* In a fork server: what sh_lifeline_inherited will give to its children. Takes fd over. */
void sh_lifeline_pass_on(int fd);

void sh_registry_add(shoal_process *process);
void sh_registry_remove(shoal_process *process);

/* Remembers a child of this process that nobody will join; reap takes those that have ended out of the process
 * table. */
void sh_orphans_add(int32_t pid);
void sh_orphans_reap(void);

#endif
