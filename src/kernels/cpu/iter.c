#include "kernels/cpu/iter.h"

#include "base/error.h"

static void swap_dims(sh_iter *it, int32_t a, int32_t b)
{
    int64_t t = it->shape[a];
    it->shape[a] = it->shape[b];
    it->shape[b] = t;
    for (int32_t v = 0; v < it->count; v++) {
        t = it->strides[v][a];
        it->strides[v][a] = it->strides[v][b];
        it->strides[v][b] = t;
    }
}

/* Checks whether dimension a should stay outside b, which follows it.
 * The first view in which their strides differ decides. */
static bool in_order(const sh_iter *it, int32_t a, int32_t b)
{
    for (int32_t v = 0; v < it->count; v++) {
        if (it->strides[v][a] != it->strides[v][b]) {
            return it->strides[v][a] > it->strides[v][b];
        }
    }
    return true;
}

static bool joinable(const sh_iter *it, int32_t outer, int32_t inner)
{
    for (int32_t v = 0; v < it->count; v++) {
        if (it->strides[v][outer] != it->strides[v][inner] * it->shape[inner]) {
            return false;
        }
    }
    return true;
}

static void join(sh_iter *it)
{
    for (int32_t i = 1; i < it->ndim; i++) {
        for (int32_t j = i; j > 0 && !in_order(it, j - 1, j); j--) {
            swap_dims(it, j - 1, j);
        }
    }
    int32_t last = 0;
    for (int32_t d = 1; d < it->ndim; d++) {
        if (joinable(it, last, d)) {
            it->shape[d] *= it->shape[last];
            swap_dims(it, last, d);
        } else {
            swap_dims(it, ++last, d);
        }
    }
    it->ndim = it->ndim > 0 ? last + 1 : 0;
}

shoal_err sh_iter_init(sh_iter *it, int32_t count, const sh_view *const views[])
{
    it->ndim = 0;
    it->count = count;
    for (int32_t v = 0; v < count; v++) {
        it->data[v] = views[v]->data;
        if (views[v]->ndim != views[0]->ndim) {
            return sh_fail(SHOAL_EINVAL, "the views have %d and %d dimensions", (int)views[0]->ndim,
                           (int)views[v]->ndim);
        }
    }
    for (int32_t d = 0; d < views[0]->ndim; d++) {
        for (int32_t v = 0; v < count; v++) {
            if (views[v]->shape[d] != views[0]->shape[d]) {
                return sh_fail(SHOAL_EINVAL, "the views have %lld and %lld elements in dimension %d",
                               (long long)views[0]->shape[d], (long long)views[v]->shape[d], (int)d);
            }
            it->strides[v][it->ndim] = views[v]->strides[d] * (int64_t)shoal_dtype_size(views[v]->dtype);
        }
        it->shape[it->ndim] = views[0]->shape[d];
        it->ndim += views[0]->shape[d] != 1;
    }
    join(it);
    return SHOAL_OK;
}

void sh_iter_run(const sh_iter *it, sh_iter_row row, const void *context)
{
    int64_t at[SH_MAX_DIMS] = {0};
    int64_t steps[SH_ITER_VIEWS] = {0};
    char *data[SH_ITER_VIEWS];
    int32_t inner = it->ndim - 1;
    int64_t n = it->ndim > 0 ? it->shape[inner] : 1;

    for (int32_t d = 0; d < it->ndim; d++) {
        if (it->shape[d] == 0) {
            return;
        }
    }
    for (int32_t v = 0; v < it->count; v++) {
        data[v] = it->data[v];
        steps[v] = it->ndim > 0 ? it->strides[v][inner] : 0;
    }
    for (;;) {
        row(data, steps, n, context);
        int32_t d = inner - 1;
        for (; d >= 0 && ++at[d] == it->shape[d]; d--) {
            at[d] = 0;
            for (int32_t v = 0; v < it->count; v++) {
                data[v] -= it->strides[v][d] * (it->shape[d] - 1);
            }
        }
        if (d < 0) {
            return;
        }
        for (int32_t v = 0; v < it->count; v++) {
            data[v] += it->strides[v][d];
        }
    }
}
