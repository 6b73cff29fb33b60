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
    size_t at = 0, i = 0;
    for (const shoal_tensor *g; (g = next_grad(module, &at)) != NULL; i++) {
        SH_TRY(sum_into(sums, i, g));
    }
    SH_TRY(shoal_tensor_read(sums, places, (size_t)sums->count * PLACE));
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

/* ---- on a device with kernels for all gradients at once: nothing is read back, unless the norm is asked for ---- */

/* Describes the gradients. Returns how many there are; 0 unless all are contiguous, of one dtype and on one device. */
static int32_t parts_of(const shoal_module *module, const shoal_tensor *first, sh_optim_part *parts)
{
    size_t at = 0;
    int32_t count = 0;
    for (const shoal_tensor *g; (g = next_grad(module, &at)) != NULL; count++) {
        if (!g->contiguous || g->dtype != first->dtype || g->storage->device != first->storage->device) {
            return 0;
        }
        parts[count] = (sh_optim_part){.n = g->count, .param = sh_tensor_ptr(g)};
    }
    return count;
}

static shoal_err clip_parts(const shoal_tensor *first, const sh_optim_part *parts, int32_t count, double max_norm,
                            double *out_norm)
{
    const sh_device *device = first->storage->device;
    const sh_optim_kernels *kernels = device->kernels()->optim;
    size_t mark = shoal_scope_mark();
    sh_shape s;
    shoal_tensor *sum =
        sh_shape_init(&s, SHOAL_F64, 0, NULL) == SHOAL_OK ? sh_scope_add(sh_tensor_new(device, &s)) : NULL;
    sh_exec *exec = sum ? device->exec() : NULL;
    shoal_err err =
        exec ? kernels->sumsq_all(exec, first->dtype, parts, count, sh_tensor_ptr(sum)) : shoal_last_error();
    if (err == SHOAL_OK) {
        err = kernels->clip_all(exec, first->dtype, parts, count, sh_tensor_ptr(sum), max_norm);
    }
    double total = 0;
    if (err == SHOAL_OK && out_norm) {
        err = shoal_tensor_read(sum, &total, sizeof total);
        *out_norm = err == SHOAL_OK ? sqrt(total) : *out_norm;
    }
    shoal_scope_release(mark);
    return err;
}

static void touch_grads(const shoal_module *module)
{
    size_t at = 0;
    for (shoal_tensor *g; (g = next_grad(module, &at)) != NULL;) {
        sh_tensor_touch(g);
    }
}

/* Clips there, and sets *out_done. Leaves it false if the device or the gradients do not allow it. */
static shoal_err clip_there(const shoal_module *module, const shoal_tensor *first, double max_norm, double *out_norm,
                            bool *out_done)
{
    if (!first->storage->device->kernels()->optim->sumsq_all) {
        return SHOAL_OK;
    }
    sh_optim_part *parts = malloc(module->total * sizeof *parts);
    if (!parts) {
        return sh_fail(SHOAL_ENOMEM, "shoal_clip_grad_norm: no memory for %zu gradients", module->total);
    }
    int32_t count = parts_of(module, first, parts);
    shoal_err err = count > 0 ? clip_parts(first, parts, count, max_norm, out_norm) : SHOAL_OK;
    if (count > 0) {
        touch_grads(module);
    }
    free(parts);
    *out_done = count > 0;
    return err;
}

/* ---- gradient by gradient ---- */

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
    bool done = false;
    shoal_err err = first ? clip_there(module, first, max_norm, out_norm, &done) : SHOAL_OK;
    if (err != SHOAL_OK || done) {
        return err;
    }
    SH_TRY(first ? norm_of_grads(module, first, &norm) : SHOAL_OK);
    double factor = max_norm / (norm + 1e-6); /* as in PyTorch */
    if (factor < 1) {
        SH_TRY(scale_grads(module, factor));
    }
    if (out_norm) {
        *out_norm = norm;
    }
    return SHOAL_OK;
}
