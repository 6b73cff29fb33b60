/* Walking over several views of one shape at once: dimensions that lie behind one another in all of them are joined, and a function
 * is called for each innermost row. */
#ifndef SH_KERNELS_CPU_ITER_H
#define SH_KERNELS_CPU_ITER_H

#include "kernels/view.h"

#define SH_ITER_VIEWS 4

typedef struct sh_iter {
    int32_t ndim, count;
    int64_t shape[SH_MAX_DIMS];
    int64_t strides[SH_ITER_VIEWS][SH_MAX_DIMS]; /* in bytes */
    char *data[SH_ITER_VIEWS];
} sh_iter;

/* A row of n: the address and the step in bytes of each view. */
typedef void (*sh_iter_row)(char *const data[], const int64_t steps[], int64_t n, const void *context);

/* SHOAL_EINVAL when the shapes differ. The order of the dimensions becomes that of views[0]'s memory. */
shoal_err sh_iter_init(sh_iter *it, int32_t count, const sh_view *const views[]);
void sh_iter_run(const sh_iter *it, sh_iter_row row, const void *context);

#endif
