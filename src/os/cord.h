/* A cord ties a process to the child that it is about to fork, without a pid. It is a pipe whose far end only the child
 * has.
 *
 * The parent makes the cord before the fork and closes the far end after it. From then on the cord is cut when nobody
 * has the far end open any more: the fork failed, the child has ended, or the child has closed it. A stopped child
 * keeps it open. A process that a bare clone makes in between has it too, until it ends or executes another program:
 * then the cut is seen later, never too early.
 */
#ifndef SH_OS_CORD_H
#define SH_OS_CORD_H

#include "os/memory.h"

#include <stdbool.h>

typedef struct sh_cord {
    int near, far;     /* fds, close-on-exec, or -1 */
    sh_memory_id file; /* the pipe behind both: the program may close them and open other files in their place */
} sh_cord;

/* Makes a cord. If there are no fds left, sh_cord_look returns SH_CORD_UNKNOWN for it. */
void sh_cord_make(sh_cord *cord);

/* Closes the far end. The parent calls it after the fork, the child when nobody needs to wait for it any more. */
void sh_cord_let_go(sh_cord *cord);

/* Closes the near end. The parent calls it when it needs the cord no more, the child for each cord of its parent. */
void sh_cord_close(sh_cord *cord);

typedef enum sh_cord_state { SH_CORD_UNKNOWN, SH_CORD_WHOLE, SH_CORD_CUT } sh_cord_state;
sh_cord_state sh_cord_look(const sh_cord *cord);

#endif
