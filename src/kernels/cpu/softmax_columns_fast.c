/* Softmax along a dimension other than the last, with vectors over many columns at a time. It is a separate file
 * because it made the loops along rows 4 % slower when it was next to them. */
#include "kernels/cpu/softmax_columns.h"

#include "kernels/cpu/loop.h"
#include "kernels/cpu/math_fast.h"

#define COLUMNS 128

#define TEMPLATE "kernels/cpu/softmax_columns_template.h"
#include "kernels/cpu/f32_f64.h"

void SH_ISA_NAME(sh_softmax_by_columns)(sh_softmax_op op, const sh_softmax_shape *s, void *out, const void *x,
                                        const void *dy)
{
    for (int64_t o = 0; o < s->outer; o++) {
        for (int64_t j = 0; j < s->inner; j += COLUMNS) {
            int64_t at = o * s->n * s->inner + j, w = s->inner - j < COLUMNS ? s->inner - j : COLUMNS;
            if (s->dtype == SHOAL_F32) {
                float *to = (float *)out + at;
                const float *from = (const float *)x + at;
                if (dy) {
                    f32_backward_columns(op, w, s->n, s->inner, to, (const float *)dy + at, from);
                } else {
                    f32_forward_columns(op, w, s->n, s->inner, to, from);
                }
            } else {
                double *to = (double *)out + at;
                const double *from = (const double *)x + at;
                if (dy) {
                    f64_backward_columns(op, w, s->n, s->inner, to, (const double *)dy + at, from);
                } else {
                    f64_forward_columns(op, w, s->n, s->inner, to, from);
                }
            }
        }
    }
}
