/* A second life mark, for a process that others cannot find by its pid because it is in another pid namespace.
 *
 * It is an open file description lock, on one byte of the world's file; the description belongs to this process alone.
 * A mapping of that description keeps the lock when the program closes the fd, which would drop an ordinary life mark.
 * A fork does not inherit the mapping (MADV_DONTFORK); exec and death end it. So the absence of the lock alone proves
 * that the process is gone. A process has at most one. Needs /proc, to open the file again.
 */
#ifndef SH_OS_LIFE_LOCK_H
#define SH_OS_LIFE_LOCK_H

#include <stdbool.h>
#include <stdint.h>

/* Locks the byte. Returns false if that fails. The process must not have a life lock yet. sh_life_marked sees it like
 * any mark. */
bool sh_life_lock_take(int fd, uint64_t byte);

/* Releases the life lock, if there is one. This closes an fd of the file, so it drops the life marks of this
 * process. */
void sh_life_lock_drop(void);

/* Called in a child of fork: closes the description that it inherited from its parent. */
void sh_life_lock_after_fork(void);

#endif
