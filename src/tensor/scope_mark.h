/* Marks in the thread's scope: where it was when a loader returned its last batch.
 *
 * The marks of a thread are a stack. Releasing a mark removes those above it, whose loops are inside its loop: what
 * they would release is gone already, and releasing them later would release what was computed since. A mark of another
 * thread, and one that was removed, no longer has any effect. */
#ifndef SH_TENSOR_SCOPE_MARK_H
#define SH_TENSOR_SCOPE_MARK_H

#include <stddef.h>
#include <stdint.h>

typedef struct sh_scope_mark {
    uint64_t serial; /* 0: none */
    size_t depth;    /* in the stack */
    size_t scope;
} sh_scope_mark;

/* Pushes a mark for the current position of the scope. */
void sh_scope_mark_set(sh_scope_mark *mark);

/* Releases what was computed since the mark, if it is still valid. Afterwards it is not. */
void sh_scope_mark_release(sh_scope_mark *mark);

/* Removes the mark without releasing anything. */
void sh_scope_mark_drop(sh_scope_mark *mark);

#endif
