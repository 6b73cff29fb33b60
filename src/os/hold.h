/* A second life mark, for a process that others cannot find by its pid: one in another pid namespace.
 *
 * It is a lock of a file description of this process's own, on one byte of the world's file. A mapping of that description keeps the lock
 * when the program closes the fd, which drops an ordinary life mark; a fork does not inherit the mapping (MADV_DONTFORK), and exec and
 * death end it. So its absence alone proves that the process is gone. One a process. Needs /proc, to open the file again.
 */
#ifndef SH_OS_HOLD_H
#define SH_OS_HOLD_H

#include <stdbool.h>
#include <stdint.h>

/* Locks the byte. False when it cannot be had. Not while the process has a hold already. sh_life_marked looks at it like at any mark. */
bool sh_hold_take(int fd, uint64_t byte);

/* Gives it back, when the process has one. Closes an fd of the file, so it drops the life marks of this process. */
void sh_hold_drop(void);

/* In a child of fork: closes what it inherited of its parent's. */
void sh_hold_inherited(void);

#endif
