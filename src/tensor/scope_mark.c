#include "tensor/scope_mark.h"

#include "sync/atomic.h"

#include <shoal/tensor.h>

#include <stdbool.h>

#define DEEPEST 8 /* nested loops; deeper ones replace each other. Few, because static TLS is scarce */

static _Thread_local struct {
    uint64_t serials[DEEPEST];
    size_t depth;
} stack __attribute__((tls_model("initial-exec")));

static sh_a64 last_serial;

static bool is_mark(const sh_scope_mark *mark)
{
    return mark->serial != 0 && mark->depth < stack.depth && stack.serials[mark->depth] == mark->serial;
}

void sh_scope_mark_set(sh_scope_mark *mark)
{
    size_t depth = stack.depth < DEEPEST ? stack.depth : DEEPEST - 1;
    *mark = (sh_scope_mark){.serial = sh_add_relaxed(&last_serial, 1) + 1, .depth = depth, .scope = shoal_scope_mark()};
    stack.serials[depth] = mark->serial;
    stack.depth = depth + 1;
}

void sh_scope_mark_release(sh_scope_mark *mark)
{
    if (is_mark(mark)) {
        stack.depth = mark->depth;
        shoal_scope_release(mark->scope);
    }
    mark->serial = 0;
}

void sh_scope_mark_drop(sh_scope_mark *mark)
{
    if (is_mark(mark)) {
        stack.serials[mark->depth] = 0;
        while (stack.depth > 0 && stack.serials[stack.depth - 1] == 0) {
            stack.depth--;
        }
    }
    mark->serial = 0;
}
