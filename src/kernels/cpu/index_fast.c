/* Indexing copies whole rows and is bound by memory; only the sums over rows gain from vectors. */
#include "base/error.h"
#include "kernels/cpu/index_check.h"
#include "kernels/isa.h"

#include <string.h>

#define ADD_ROWS(name, T, U)                                                                                           \
    static void name(const sh_index_shape *s, T *table, const T *in, const int64_t *index)                             \
    {                                                                                                                  \
        for (int64_t o = 0; o < s->outer; o++) {                                                                       \
            for (int64_t i = 0; i < s->count; i++) {                                                                   \
                T *restrict to = table + (o * s->rows + index[i]) * s->inner;                                          \
                const T *restrict from = in + (o * s->count + i) * s->inner;                                           \
                for (int64_t j = 0; j < s->inner; j++) {                                                               \
                    to[j] = (T)((U)to[j] + (U)from[j]);                                                                \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
ADD_ROWS(add_f32, float, float)
ADD_ROWS(add_f64, double, double)
ADD_ROWS(add_i64, int64_t, uint64_t)
ADD_ROWS(add_i32, int32_t, uint32_t)

static shoal_err add(sh_exec *exec, const sh_index_shape *s, void *table, const void *in, const int64_t *index)
{
    (void)exec;
    shoal_err err = sh_index_check(index, s->count, s->rows);
    if (err) {
        return err;
    }
    switch (s->dtype) {
    case SHOAL_F32: add_f32(s, table, in, index); break;
    case SHOAL_F64: add_f64(s, table, in, index); break;
    case SHOAL_I64: add_i64(s, table, in, index); break;
    case SHOAL_I32: add_i32(s, table, in, index); break;
    default: return sh_fail(SHOAL_EINVAL, "adding by index does not support %s", shoal_dtype_name(s->dtype));
    }
    return SHOAL_OK;
}

static shoal_err select_rows(sh_exec *exec, const sh_index_shape *s, void *out, const void *table, const int64_t *index)
{
    return sh_index_kernels_reference.select(exec, s, out, table, index);
}

static shoal_err gather(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index)
{
    return sh_index_kernels_reference.gather(exec, dim, out, a, index);
}

static shoal_err scatter(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index)
{
    return sh_index_kernels_reference.scatter(exec, dim, out, a, index);
}

static shoal_err scatter_add(sh_exec *exec, int32_t dim, const sh_view *out, const sh_view *a, const sh_view *index)
{
    return sh_index_kernels_reference.scatter_add(exec, dim, out, a, index);
}

static shoal_err one_hot(sh_exec *exec, shoal_dtype dtype, void *out, const int64_t *index, int64_t count,
                         int64_t classes)
{
    (void)exec;
    size_t size = shoal_dtype_size(dtype), row = (size_t)classes * size;
    float f32 = 1;
    double f64 = 1;
    int64_t i64 = 1;
    int32_t i32 = 1;
    uint8_t u8 = 1;
    const void *const ones[SHOAL_DTYPES] = {[SHOAL_F32] = &f32, [SHOAL_F64] = &f64, [SHOAL_I64] = &i64,
                                            [SHOAL_I32] = &i32, [SHOAL_U8] = &u8,   [SHOAL_B8] = &u8};
    if ((unsigned)dtype >= SHOAL_DTYPES || !ones[dtype]) {
        return sh_fail(SHOAL_EINVAL, "one_hot does not support %s", shoal_dtype_name(dtype));
    }
    shoal_err err = sh_index_check(index, count, classes);
    if (err || count == 0) {
        return err;
    }
    memset(out, 0, (size_t)count * row);
    for (int64_t i = 0; i < count; i++) {
        memcpy((char *)out + (size_t)i * row + (size_t)index[i] * size, ones[dtype], size);
    }
    return SHOAL_OK;
}

const sh_index_kernels SH_ISA_NAME(sh_index_kernels) = {
    .select = select_rows,
    .add = add,
    .gather = gather,
    .scatter = scatter,
    .scatter_add = scatter_add,
    .one_hot = one_hot,
};
