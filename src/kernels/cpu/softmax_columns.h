/* The function that softmax_fast.c calls and softmax_columns_fast.c defines. */
#ifndef SH_KERNELS_CPU_SOFTMAX_COLUMNS_H
#define SH_KERNELS_CPU_SOFTMAX_COLUMNS_H

#include "kernels/isa.h"
#include "kernels/softmax.h"

/* out = softmax along n of x [outer, n, inner]. If dy is not NULL, out = its gradient, and x is the result of forward.
 * f32 and f64, n > 0. out may be x or dy. */
void SH_ISA_NAME(sh_softmax_by_columns)(sh_softmax_op op, const sh_softmax_shape *s, void *out, const void *x,
                                        const void *dy);

#endif
