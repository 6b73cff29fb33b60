/* Checks the arguments of nll before anything is written. */
#ifndef SH_KERNELS_CPU_SOFTMAX_CHECK_H
#define SH_KERNELS_CPU_SOFTMAX_CHECK_H

#include "kernels/cpu/element.h"
#include "kernels/softmax.h"

static inline shoal_err sh_nll_check(const sh_nll_args *args)
{
    const sh_softmax_shape *s = &args->shape;
    shoal_err err = sh_element_check_float("nll", s->dtype);
    for (int64_t i = 0; !err && i < s->outer * s->inner; i++) {
        int64_t t = args->target[i];
        if (t != args->ignore_index && (t < 0 || t >= s->n)) {
            err = sh_fail(SHOAL_EINVAL, "target %lld at %lld is out of range: there are %lld classes", (long long)t,
                          (long long)i, (long long)s->n);
        }
    }
    return err;
}

#endif
