/* The start record: everything that passes between a child and the process that started it. It is a block of
 * SH_KIND_TASK. The parent's handle holds it, and the child's slot holds it in cell 0 from before the child exists.
 *
 * Synchronisation
 *   argument             the parent, before the child exists; then the child, which consumes it
 *   result               the child while it lives; then the parent, once the slot is buried
 *   rank, flags, target  the parent, before the child exists
 *   phase                the child: MADE -> RUNNING -> ENDED, each a release; a futex word for shoal_wait
 *   err, ended_at, text  the child, before phase ENDED
 *   end                  the child holds it before phase RUNNING, if it does not outlive its parent; then the kernel.
 *                        The word stays in the record while the child lives: the parent's handle ends the child before
 *                        it releases the record. After the parent's death the child's slot keeps it, until the child
 *                        leaves the world and drops the word
 *
 * death: a child that dies leaves a phase below ENDED, and its wait status gives the rest. A parent that dies leaves
 * the record to the child.
 */
#ifndef SH_PROC_START_RECORD_H
#define SH_PROC_START_RECORD_H

#include "base/death.h"
#include "proc/target.h"
#include "shm/block.h"
#include "shm/kind.h"
#include "sync/end_word.h"

typedef enum sh_start_phase {
    SH_START_MADE,
    SH_START_RUNNING, /* the child is in the world and knows what to do */
    SH_START_ENDED,   /* the target has returned, or could not be found */
} sh_start_phase;

typedef enum sh_start_flag {
    SH_START_OUTLIVE = 1,
    SH_START_NAMED = 2, /* the slot's name was given by the caller */
} sh_start_flag;

#define SH_START_TEXT 512

typedef struct sh_start_shm {
    sh_a64 destroy[2];
    sh_a64 argument;
    sh_a64 result;
    sh_a32 phase;
    sh_a32 err;
    sh_a64 ended_at; /* sh_now time */
    sh_end_word_shm end;
    int32_t rank;
    uint32_t flags;
    char text[SH_START_TEXT];
    sh_target target; /* the block ends with its path */
} sh_start_shm;

_Static_assert(offsetof(sh_start_shm, phase) == offsetof(sh_task_shm, words), "a record is a task");

static inline sh_start_shm *sh_start_of(const shoal_block *block)
{
    return (sh_start_shm *)block->data;
}

#endif
