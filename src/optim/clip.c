/* Clips the gradients of a module by their common norm. */
#include "optim/optim.h"

#include "base/error.h"

#include <shoal/autograd.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Each sum of squares occupies 8 bytes and has the dtype of its gradient. */
#define PLACE sizeof(double)

/* Starts the sum of g's squares, written to place i of sums. */
static shoal_err sum_into(const shoal_tensor *sums, size_t i, const shoal_tensor *g)
{
    const sh_device *device = sums->storage->device;
    if (g->storage->device != device) {
        return sh_device_mixed("shoal_clip_grad_norm", device, g->storage->device);
    }
    sh_exec *exec = device->exec();
    sh_view in = sh_tensor_view(g);
    sh_view out = {.data = (char *)sh_tensor_ptr(sums) + i * PLACE, .ndim = in.ndim, .dtype = in.dtype};
    for (int d = 0; d < in.ndim; d++) {
        out.shape[d] = 1;
    }
    return exec ? device->kernels()->reduce->reduce(exec, SH_REDUCE_SUMSQ, &out, &in) : shoal_last_error();
}

static double read_place(const double *places, size_t i, shoal_dtype dtype)
{
    float f;
    memcpy(&f, &places[i], sizeof f);
    return dtype == SHOAL_F64 ? places[i] : (double)f;
}

/* Returns the next gradient that is not zero; NULL after the last. */
static shoal_tensor *next_grad(const shoal_module *module, size_t *at)
{
    for (shoal_tensor *p; (p = sh_module_next_parameter(module, at)) != NULL;) {
        if (p->grad && !p->grad_is_zero) {
            return p->grad;
        }
    }
    return NULL;
}

/* Computes the sum of squares of all gradients together. */
static shoal_err sum_of_squares(const shoal_module *module, shoal_tensor *sums, double *places, double *out_total)
{
    shoal_err err = SHOAL_OK;
    size_t at = 0, i = 0;
    for (const shoal_tensor *g; err == SHOAL_OK && (g = next_grad(module, &at)) != NULL; i++) {
        err = sum_into(sums, i, g);
    }
    err = err == SHOAL_OK ? shoal_tensor_read(sums, places, (size_t)sums->count * PLACE) : err;
    if (err != SHOAL_OK) {
        return err;
    }
    double total = 0;
    at = i = 0;
    for (const shoal_tensor *g; (g = next_grad(module, &at)) != NULL; i++) {
        total += read_place(places, i, g->dtype);
    }
    *out_total = total;
    return SHOAL_OK;
}

static shoal_err norm_of_grads(const shoal_module *module, const shoal_tensor *first, double *out_norm)
{
    const int64_t shape[] = {(int64_t)module->total};
    size_t mark = shoal_scope_mark();
    sh_shape s;
    shoal_tensor *sums = sh_shape_init(&s, SHOAL_F64, 1, shape) == SHOAL_OK
                             ? sh_scope_add(sh_tensor_new(first->storage->device, &s))
                             : NULL;
    double *places = malloc(module->total * PLACE);
    if (!places) {
        (void)sh_fail(SHOAL_ENOMEM, "shoal_clip_grad_norm: no memory for %zu sums", module->total);
    }
    double total = 0;
    shoal_err err = sums && places ? sum_of_squares(module, sums, places, &total) : shoal_last_error();
    free(places);
    shoal_scope_release(mark);
    *out_norm = sqrt(total);
    return err;
}

static shoal_err scale_grads(const shoal_module *module, double factor)
{
    shoal_err err = SHOAL_OK;
    size_t at = 0;
    shoal_no_grad_begin();
    for (shoal_tensor *g; err == SHOAL_OK && (g = next_grad(module, &at)) != NULL;) {
        err = shoal_mul_scalar_(g, factor) ? SHOAL_OK : shoal_last_error();
    }
    shoal_no_grad_end();
    return err;
}

shoal_err shoal_clip_grad_norm(shoal_module *module, double max_norm, double *out_norm)
{
    if (!module) {
        return sh_null_error("shoal_clip_grad_norm", "module");
    }
    if (!(max_norm > 0)) {
        return sh_fail(SHOAL_EINVAL, "shoal_clip_grad_norm: max_norm is %g, it must be above 0", max_norm);
    }
    size_t at = 0;
    double norm = 0;
    const shoal_tensor *first = next_grad(module, &at);
    shoal_err err = first ? norm_of_grads(module, first, &norm) : SHOAL_OK;
    double factor = max_norm / (norm + 1e-6); /* as in PyTorch */
    if (err == SHOAL_OK && factor < 1) {
        err = scale_grads(module, factor);
    }
    if (err == SHOAL_OK && out_norm) {
        *out_norm = norm;
    }
    return err;
}
