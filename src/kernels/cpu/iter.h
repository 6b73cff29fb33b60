/* Iterates over several views of one shape at once. It merges dimensions that are adjacent in memory in all views, and
 * calls a function for each innermost row. */
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

/* Called for a row of n elements: data holds each view's address, steps its stride in bytes. */
typedef void (*sh_iter_row)(char *const data[], const int64_t steps[], int64_t n, const void *context);

/* Sorts the dimensions by the memory order of views[0]. Errors: SHOAL_EINVAL if the shapes differ. */
shoal_err sh_iter_init(sh_iter *it, int32_t count, const sh_view *const views[]);
void sh_iter_run(const sh_iter *it, sh_iter_row row, const void *context);

#endif
