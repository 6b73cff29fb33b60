/* What a process keeps about its children, in private memory: the lifeline they hang on, their handles, and the
 * children that nobody will join.
 *
 * The lifeline is a pipe that nobody ever writes to. Only the parent has the write end. Each child opens the read end
 * for itself and asks the kernel for its death signal on any event there; SIGKILL, unless the options say otherwise.
 * The first event is that the parent's end is closed by its death. Then each end of a sibling is one more. If the
 * system's queue of signals is full, the kernel sends SIGIO instead. (PR_SET_PDEATHSIG would already fire when the
 * thread that started the child ends.)
 */
#ifndef SH_PROC_REGISTRY_H
#define SH_PROC_REGISTRY_H

#include "proc/process.h"

/* Returns the read end that children hang on; the registry owns it. The first hold makes the pipe and the last drop
 * closes it: call drop once for each hold. Errors: SHOAL_EOS. */
shoal_err sh_lifeline_hold(int *out_fd);
void sh_lifeline_drop(void);

/* Called in a child: this process gets the signal when the process at the other end dies, or at once if it is dead
 * already. The caller keeps fd. */
shoal_err sh_lifeline_arm(int fd, int signal);

/* Called in a program that was started as a child: takes ownership of the fd that was armed for it before it began; -1
 * for none. */
void sh_lifeline_adopt(int fd);

/* Opens a separate file description of the lifeline's read end, for a child to arm with sh_lifeline_arm_here. The
 * caller owns it. Returns -1 and sets errno on failure. */
int sh_lifeline_reopen(int fd);

/* The same, also between vfork and exec. fd: from sh_lifeline_reopen. Returns false and sets errno on failure. */
bool sh_lifeline_arm_here(int fd, int signal);

/* Called in a forked child: returns the read end that its parent's children hang on, or -1. The caller owns it from now
 * on. */
int sh_lifeline_inherited(void);

/* Called in a fork server: sets what sh_lifeline_inherited returns in its children, and disarms fd for this process.
 * Takes ownership of fd. */
void sh_lifeline_pass_on(int fd);

void sh_registry_add(shoal_process *process);
void sh_registry_remove(shoal_process *process);

/* add remembers a child of this process that nobody will join. reap reaps those of them that have ended. */
void sh_orphans_add(int32_t pid);
void sh_orphans_reap(void);

#endif
