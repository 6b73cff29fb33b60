/* The scratch memory of the CPU kernels. */
#include "kernels/view.h"

#include "base/error.h"

#include <stdlib.h>

#define GRAIN ((size_t)1 << 16)

void *sh_exec_scratch(sh_exec *exec, size_t size)
{
    if (size <= exec->scratch_size) {
        return exec->scratch;
    }
    size_t room = (size + GRAIN - 1) / GRAIN * GRAIN;
    void *fresh = room >= size ? aligned_alloc(64, room) : NULL;
    if (!fresh) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for %zu bytes of scratch", size);
        return NULL;
    }
    free(exec->scratch);
    exec->scratch = fresh;
    exec->scratch_size = room;
    return fresh;
}
