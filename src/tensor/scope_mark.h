/* Where the thread's scope stood when a loader gave its last batch.
 *
 * Marks of one thread are a stack. Releasing one takes off those above it, whose loops lie within its own: what they would
 * release is gone already, and releasing again later would take what was computed since. A mark of another thread, and one that was
 * taken off, is no mark any more. */
#ifndef SH_TENSOR_SCOPE_MARK_H
#define SH_TENSOR_SCOPE_MARK_H

#include <stddef.h>
#include <stdint.h>

typedef struct sh_scope_mark {
    uint64_t serial; /* 0: none */
    size_t depth;    /* in the stack */
    size_t scope;
} sh_scope_mark;

/* Puts a mark on the stack, where the scope stands now. */
void sh_scope_mark_set(sh_scope_mark *mark);

/* Releases what was computed since, if it is still a mark; it is none afterwards. */
void sh_scope_mark_release(sh_scope_mark *mark);

/* Takes the mark off without releasing anything. */
void sh_scope_mark_drop(sh_scope_mark *mark);

#endif
