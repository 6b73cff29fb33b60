/* Matrix products as defined. */
#include "base/error.h"
#include "kernels/matmul.h"

#define MATMUL(name, T, SUM, FINISH)                                                                                   \
    static void name(const sh_matmul_args *g, int64_t z)                                                               \
    {                                                                                                                  \
        const T *a = (const T *)g->a + z * g->a_batch, *b = (const T *)g->b + z * g->b_batch, *bias = g->bias;         \
        T *c = (T *)g->c + z * g->c_batch;                                                                             \
        for (int64_t i = 0; i < g->m; i++) {                                                                           \
            for (int64_t j = 0; j < g->n; j++) {                                                                       \
                SUM sum = 0;                                                                                           \
                for (int64_t k = 0; k < g->k; k++) {                                                                   \
                    sum += (SUM)a[i * g->a_row + k * g->a_col] * (SUM)b[k * g->b_row + j * g->b_col];                  \
                }                                                                                                      \
                FINISH                                                                                                 \
            }                                                                                                          \
        }                                                                                                              \
    }
#define FINISH_FLOAT                                                                                                   \
    sum *= g->alpha;                                                                                                   \
    sum += bias ? bias[j] : 0;                                                                                         \
    sum += g->accumulate ? c[i * g->c_row + j] : 0;                                                                    \
    c[i * g->c_row + j] = sum < 0 && g->relu ? 0 : sum;
#define FINISH_INT(T)                                                                                                  \
    (void)bias;                                                                                                        \
    sum += g->accumulate ? (uint64_t)c[i * g->c_row + j] : 0;                                                          \
    c[i * g->c_row + j] = (T)sum;

MATMUL(matmul_f32, float, double, FINISH_FLOAT)
MATMUL(matmul_f64, double, double, FINISH_FLOAT)
MATMUL(matmul_i64, int64_t, uint64_t, FINISH_INT(int64_t))
MATMUL(matmul_i32, int32_t, uint64_t, FINISH_INT(int32_t))

static shoal_err matmul(sh_exec *exec, const sh_matmul_args *args)
{
    (void)exec;
    void (*one)(const sh_matmul_args *, int64_t) = NULL;
    switch (args->dtype) {
    case SHOAL_F32: one = matmul_f32; break;
    case SHOAL_F64: one = matmul_f64; break;
    case SHOAL_I64: one = matmul_i64; break;
    case SHOAL_I32: one = matmul_i32; break;
    default: return sh_fail(SHOAL_EINVAL, "matmul does not support %s", shoal_dtype_name(args->dtype));
    }
    if (!shoal_dtype_is_float(args->dtype) && (args->bias || args->relu || args->alpha != 1)) {
        return sh_fail(SHOAL_EINVAL, "matmul of %s supports neither bias nor relu nor alpha",
                       shoal_dtype_name(args->dtype));
    }
    for (int64_t z = 0; z < args->batch; z++) {
        one(args, z);
    }
    return SHOAL_OK;
}

const sh_matmul_kernels sh_matmul_kernels_reference = {.matmul = matmul};
