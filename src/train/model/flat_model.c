#include "train/model/flat_model.h"

#include "base/error.h"
#include "nn/module.h"
#include "tensor/tensor.h"

static shoal_tensor *entry_at(const shoal_module *module, size_t i)
{
    bool is_buffer;
    const sh_module_tensor *entry = sh_module_entry(module, i, &is_buffer);
    return entry != NULL ? entry->tensor : NULL;
}

static bool came_before(const shoal_module *module, const shoal_tensor *t, size_t end)
{
    size_t i = 0;
    while (i < end && entry_at(module, i) != t) {
        i++;
    }
    return i < end;
}

/* Returns the next tensor of a row, NULL after the last; *at begins with 0. */
static shoal_tensor *next(const shoal_module *module, size_t *at)
{
    for (shoal_tensor *t; (t = entry_at(module, *at)) != NULL;) {
        size_t i = (*at)++;
        if (sh_dtype_is_wide_float(t->dtype) && !came_before(module, t, i)) {
            return t;
        }
    }
    return NULL;
}

shoal_err sh_flat_length(const shoal_module *module, int64_t *out_length)
{
    int64_t length = 0;
    size_t at = 0;
    for (size_t i = 0; entry_at(module, i) != NULL; i++) {
        const shoal_tensor *t = entry_at(module, i);
        if (t->dtype == SHOAL_F16 || t->dtype == SHOAL_BF16) {
            return sh_fail(SHOAL_ETYPE, "cannot average %s tensors; they must be f32 or f64",
                           shoal_dtype_name(t->dtype));
        }
        if (!sh_tensor_device_of(t)->host_readable || !t->contiguous) {
            return sh_fail(SHOAL_ETYPE, "cannot average tensors %s",
                           t->contiguous ? "on a GPU" : "that are not contiguous");
        }
    }
    for (const shoal_tensor *t; (t = next(module, &at)) != NULL;) {
        length += t->count;
    }
    *out_length = length;
    return SHOAL_OK;
}

static void add_f32(double *out, const double *in, const float *x, int64_t n, double weight)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = (in != NULL ? in[i] : 0) + weight * (double)x[i];
    }
}

static void add_f64(double *out, const double *in, const double *x, int64_t n, double weight)
{
    for (int64_t i = 0; i < n; i++) {
        out[i] = (in != NULL ? in[i] : 0) + weight * x[i];
    }
}

void sh_flat_add(double *out, const double *in, const shoal_module *module, double weight)
{
    size_t at = 0;
    for (const shoal_tensor *t; (t = next(module, &at)) != NULL;) {
        if (t->dtype == SHOAL_F32) {
            add_f32(out, in, sh_tensor_ptr(t), t->count, weight);
        } else {
            add_f64(out, in, sh_tensor_ptr(t), t->count, weight);
        }
        out += t->count;
        in = in != NULL ? in + t->count : NULL;
    }
}

/* Returns the new value of x. */
static double moved(double x, double mean, double *velocity, double momentum)
{
    if (velocity == NULL) {
        return mean;
    }
    *velocity = momentum * *velocity + (x - mean);
    return x - *velocity;
}

/* x = sums / weight. A whole piece has a number that the compiler knows, so it divides with vectors. */
static void mean_f32(float *restrict x, const double *restrict sums, int64_t count, double weight)
{
    enum { PIECE = 1024 };
    int64_t i = 0;
    for (; i + PIECE <= count; i += PIECE) {
        for (int k = 0; k < PIECE; k++) {
            x[i + k] = (float)(sums[i + k] / weight);
        }
    }
    for (; i < count; i++) {
        x[i] = (float)(sums[i] / weight);
    }
}

void sh_flat_apply(shoal_module *module, const double *sums, double weight, double *velocity, double momentum)
{
    size_t at = 0;
    for (shoal_tensor *t; (t = next(module, &at)) != NULL;) {
        void *data = sh_tensor_ptr(t);
        sh_tensor_touch(t);
        bool plain = t->dtype == SHOAL_F32 && velocity == NULL;
        if (plain) {
            mean_f32(data, sums, t->count, weight);
        }
        for (int64_t i = 0; i < t->count && !plain; i++) {
            double *v = velocity != NULL ? velocity + i : NULL;
            if (t->dtype == SHOAL_F32) {
                float *x = (float *)data + i;
                *x = (float)moved((double)*x, sums[i] / weight, v, momentum);
            } else {
                double *x = (double *)data + i;
                *x = moved(*x, sums[i] / weight, v, momentum);
            }
        }
        sums += t->count;
        velocity = velocity != NULL ? velocity + t->count : NULL;
    }
}
