#include "train/model/reduce.h"

#include "base/error.h"
#include "nn/module.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

static const sh_module_tensor *entry_at(const shoal_module *module, size_t i)
{
    bool is_buffer;
    return sh_module_entry(module, i, &is_buffer);
}

/* Collects the tensors of entry i, one from each module; data gets the memory of each. */
static shoal_err collect(shoal_module *to, shoal_module *const *from, int count, size_t i, const void **data)
{
    const shoal_tensor *t = entry_at(to, i)->tensor;
    for (int j = 0; j < count; j++) {
        const sh_module_tensor *entry = entry_at(from[j], i);
        const shoal_tensor *f = entry != NULL ? entry->tensor : NULL;
        if (f == NULL || f->dtype != t->dtype || f->count != t->count || !f->contiguous || !t->contiguous ||
            f->storage->device != t->storage->device) {
            return sh_fail(SHOAL_EINVAL, "model %d of %d differs from the others at tensor %zu", j, count, i);
        }
        data[j] = sh_tensor_ptr(f);
    }
    return SHOAL_OK;
}

static shoal_err sum_tensor(shoal_tensor *t, const void *const *data, const double *weights, int count)
{
    const sh_device *device = sh_tensor_device_of(t);
    sh_exec *exec = device->exec();
    if (exec == NULL) {
        return shoal_last_error();
    }
    void *out = sh_tensor_ptr(t);
    sh_tensor_touch(t);
    if (sh_dtype_is_wide_float(t->dtype)) {
        return device->kernels()->optim->average(exec, t->dtype, t->count, out, data, weights, count);
    }
    size_t size = (size_t)t->count * shoal_dtype_size(t->dtype);
    if (!device->host_readable) {
        return sh_fail(SHOAL_ETYPE, "cannot average %s tensors on a GPU", shoal_dtype_name(t->dtype));
    }
    memmove(out, data[0], size);
    return SHOAL_OK;
}

static shoal_err sum_here(shoal_module *to, shoal_module *const *from, const double *weights, int count)
{
    const void **data = malloc((size_t)count * sizeof *data);
    if (data == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory to add up %d models", count);
    }
    shoal_err err = SHOAL_OK;
    for (size_t i = 0; err == SHOAL_OK && entry_at(to, i) != NULL; i++) {
        err = collect(to, from, count, i, data);
        if (err == SHOAL_OK) {
            err = sum_tensor(entry_at(to, i)->tensor, data, weights, count);
        }
    }
    free(data);
    return err;
}

#define PIECE 1024

/* A whole piece has a number that the compiler knows, so it adds with vectors. */
static void add_piece(double *restrict to, const double *restrict from, int64_t count)
{
    if (count == PIECE) {
        for (int k = 0; k < PIECE; k++) {
            to[k] += from[k];
        }
        return;
    }
    for (int64_t k = 0; k < count; k++) {
        to[k] += from[k];
    }
}

/* Adds piece by piece, so that the sums stay in the L1 cache while the rows are read. */
static shoal_err add_here(double *to, const double *const *from, int count, int64_t length)
{
    for (int64_t begin = 0; begin < length; begin += PIECE) {
        int64_t end = begin + PIECE < length ? begin + PIECE : length;
        if (to != from[0]) {
            memcpy(to + begin, from[0] + begin, (size_t)(end - begin) * sizeof *to);
        }
        for (int i = 1; i < count; i++) {
            add_piece(to + begin, from[i] + begin, end - begin);
        }
    }
    return SHOAL_OK;
}

const sh_reducer sh_reducer_here = {.name = "here", .sum = sum_here, .add = add_here};

shoal_err sh_reducer_mean(const sh_reducer *reducer, shoal_module *to, shoal_module *const *from, int count)
{
    double *weights = count > 0 ? malloc((size_t)count * sizeof *weights) : NULL;
    if (weights == NULL) {
        return count > 0 ? sh_fail(SHOAL_ENOMEM, "no memory for the mean of %d models", count)
                         : sh_fail(SHOAL_EINVAL, "cannot average %d models", count);
    }
    for (int i = 0; i < count; i++) {
        weights[i] = 1.0 / count;
    }
    shoal_err err = reducer->sum(to, from, weights, count);
    free(weights);
    return err;
}
