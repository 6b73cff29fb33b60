/* Sums of models on the GPU, for federated methods: the common parameters stay on the GPU for a round, and each
 * client's model is added there, in f64 and in the order and rounding of flat_model.h. */
#include "train/engines/cuda/gpu.h"

#include <shoal/autograd.h>
#include <shoal/ops.h>

/* The common parameters change only when the worker has answered the round: a test between two rounds may have loaded
 * them already. */
shoal_err sh_gpu_begin_round(sh_engine *e, const shoal_module *common)
{
    sh_gpu *g = (sh_gpu *)e;
    int64_t length = g->offsets[g->count];
    if (g->common == NULL) {
        g->common = sh_gpu_make(g, SHOAL_F32, SHOAL_SHAPE(length));
        g->sums = g->common ? sh_gpu_make(g, SHOAL_F64, SHOAL_SHAPE(length)) : NULL;
    }
    if (g->sums == NULL) {
        return shoal_last_error();
    }
    if (!g->has_common) {
        SH_TRY(sh_gpu_load(e, common));
    }
    g->has_common = false; /* in the next round they are others */
    SH_TRY(sh_tensor_copy_data(g->common, g->params));
    return sh_tensor_fill(g->sums, 0);
}

shoal_err sh_gpu_begin_client(sh_engine *e)
{
    sh_gpu *g = (sh_gpu *)e;
    SH_TRY(sh_tensor_copy_data(g->params, g->common));
    return sh_gpu_load_state(e, NULL);
}

shoal_err sh_gpu_end_client(sh_engine *e, double weight)
{
    return sh_gpu_add_to_sums((sh_gpu *)e, ((sh_gpu *)e)->params, weight);
}

shoal_err sh_gpu_add_to_sums(sh_gpu *g, shoal_tensor *params, double weight)
{
    size_t mark = shoal_scope_mark();
    shoal_no_grad_begin();
    shoal_tensor *x = shoal_mul_scalar(shoal_to_dtype(params, SHOAL_F64), weight);
    shoal_err err = shoal_add_(g->sums, x) ? SHOAL_OK : shoal_last_error();
    shoal_no_grad_end();
    shoal_scope_release(mark);
    return err;
}

shoal_err sh_gpu_store_sum(sh_engine *e, const double *before, double *out)
{
    sh_gpu *g = (sh_gpu *)e;
    size_t at = 0;
    int64_t length = 0;
    const shoal_tensor *t;
    for (size_t i = 0; (t = sh_module_next_parameter(e->module, &at)) != NULL; i++) {
        const double *sums = (const double *)sh_tensor_ptr(g->sums) + g->offsets[i];
        SH_TRY(g->device->read(out + length, sums, (size_t)t->count * sizeof *out));
        length += t->count;
    }
    for (int64_t i = 0; before != NULL && i < length; i++) {
        out[i] += before[i];
    }
    return sh_tensor_fill(g->sums, 0);
}
