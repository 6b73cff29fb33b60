/* The thread's random generator, and the fills that use it. */
#include "tensor/tensor.h"

#include "base/error.h"

static _Thread_local sh_generator mine __attribute__((tls_model("initial-exec")));

void shoal_manual_seed(uint64_t seed)
{
    mine = (sh_generator){.seed = seed};
}

sh_generator sh_generator_get(void)
{
    return mine;
}

void sh_generator_set(sh_generator generator)
{
    mine = generator;
}

sh_random_key sh_generator_take(uint64_t blocks)
{
    sh_random_key key = {.seed = mine.seed, .offset = mine.offset};
    mine.offset += blocks;
    return key;
}

typedef enum fill_kind {
    FILL_UNIFORM,
    FILL_NORMAL,
    FILL_BERNOULLI,
    FILL_INTEGERS,
} fill_kind;

static shoal_err draw(const shoal_tensor *t, fill_kind kind, double a, double b)
{
    const sh_device *device = t->storage->device;
    sh_exec *exec = device->exec();
    if (!exec) {
        return shoal_last_error();
    }
    const sh_random_kernels *random = device->kernels()->random;
    shoal_dtype counted = kind == FILL_BERNOULLI ? SHOAL_F32 : (shoal_dtype)t->dtype;
    sh_random_key key = sh_generator_take(sh_random_blocks(counted, t->count));
    switch (kind) {
    case FILL_UNIFORM: return random->uniform(exec, key, t->dtype, sh_tensor_ptr(t), t->count, a, b);
    case FILL_NORMAL: return random->normal(exec, key, t->dtype, sh_tensor_ptr(t), t->count, a, b);
    case FILL_BERNOULLI: return random->bernoulli(exec, key, t->dtype, sh_tensor_ptr(t), t->count, a, b);
    case FILL_INTEGERS: return random->integers(exec, key, sh_tensor_ptr(t), t->count, (int64_t)a, (int64_t)b);
    }
    return SHOAL_EINVAL;
}

/* Kernels fill contiguous memory of the dtypes that they know; anything else goes through a tensor of such a dtype. */
static shoal_tensor *fill(shoal_tensor *t, fill_kind kind, shoal_dtype through, double a, double b)
{
    if (!t) {
        return NULL;
    }
    shoal_err err;
    if (t->contiguous && t->dtype == through) {
        err = draw(t, kind, a, b);
    } else {
        sh_shape s;
        shoal_tensor *drawn =
            sh_shape_init(&s, through, t->ndim, t->shape) == SHOAL_OK ? sh_tensor_new(t->storage->device, &s) : NULL;
        err = drawn ? draw(drawn, kind, a, b) : shoal_last_error();
        if (err == SHOAL_OK) {
            err = sh_tensor_copy_data(t, drawn);
        }
        shoal_tensor_release(drawn);
    }
    sh_tensor_touch(t);
    return err == SHOAL_OK ? t : NULL;
}

static bool is_float_tensor(const shoal_tensor *t, const char *op)
{
    if (t && !shoal_dtype_is_float(t->dtype)) {
        sh_text text;
        (void)sh_fail(SHOAL_ETYPE, "%s: %s is not a float tensor", op, sh_tensor_text(&text, t));
        return false;
    }
    return true;
}

shoal_tensor *shoal_uniform_(shoal_tensor *t, double low, double high)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (!is_float_tensor(t, "shoal_uniform_")) {
        return NULL;
    }
    return fill(t, FILL_UNIFORM, t && t->dtype == SHOAL_F64 ? SHOAL_F64 : SHOAL_F32, low, high);
}

shoal_tensor *shoal_normal_(shoal_tensor *t, double mean, double deviation)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (!is_float_tensor(t, "shoal_normal_")) {
        return NULL;
    }
    return fill(t, FILL_NORMAL, t && t->dtype == SHOAL_F64 ? SHOAL_F64 : SHOAL_F32, mean, deviation);
}

shoal_tensor *shoal_bernoulli_(shoal_tensor *t, double p)
{
    SH_NEED_TENSOR_OR_NULL(t);
    if (!(p >= 0 && p <= 1)) {
        (void)sh_fail(SHOAL_EINVAL, "shoal_bernoulli_: %g is not a probability", p);
        return NULL;
    }
    return fill(t, FILL_BERNOULLI, SHOAL_F32, p, 1);
}

shoal_tensor *shoal_randint_(shoal_tensor *t, int64_t low, int64_t high)
{
    SH_NEED_TENSOR_OR_NULL(t);
    const double exact = 9007199254740992.0;
    if (high <= low || (double)low < -exact || (double)high > exact) {
        (void)sh_fail(SHOAL_EINVAL, "shoal_randint_: the range from %lld to below %lld is empty or too large",
                      (long long)low, (long long)high);
        return NULL;
    }
    return fill(t, FILL_INTEGERS, SHOAL_I64, (double)low, (double)high);
}

shoal_tensor *shoal_randperm(int64_t n)
{
    shoal_tensor *t = shoal_empty(SHOAL_I64, SHOAL_SHAPE(n));
    if (t) {
        sh_random_permutation(sh_generator_take(sh_random_blocks(SHOAL_I64, n)), sh_tensor_ptr(t), n);
    }
    return t;
}
