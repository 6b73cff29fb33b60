/* A cord ties a process to the child that it is about to fork, without a pid: a pipe whose far end only the child has.
 *
 * The maker makes it before the fork, and lets go of the far end after it. From then on the cord is cut when nobody has the far end any
 * more: the fork failed, or the child has ended, or it has let go of it. A child that is stopped keeps it. A process that a bare clone
 * makes in between has it too, until it ends or becomes another program: then the cord is seen to be cut later, never too early.
 */
#ifndef SH_OS_CORD_H
#define SH_OS_CORD_H

#include "os/memory.h"

#include <stdbool.h>

typedef struct sh_cord {
    int near, far;     /* fds, close-on-exec; -1: none */
    sh_memory_id file; /* what is behind both: the program may have closed them, and opened others in their place */
} sh_cord;

/* Without fds to be had: a cord of which nothing is known. */
void sh_cord_make(sh_cord *cord);

/* The maker after the fork; the child when it needs nobody to wait for it any more. */
void sh_cord_let_go(sh_cord *cord);

/* The maker when it has seen enough; the child for each cord of its parent. */
void sh_cord_close(sh_cord *cord);

typedef enum sh_cord_state { SH_CORD_UNKNOWN, SH_CORD_WHOLE, SH_CORD_CUT } sh_cord_state;
sh_cord_state sh_cord_look(const sh_cord *cord);

#endif
