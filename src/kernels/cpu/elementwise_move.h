/* fill, where and copy, written once. elementwise_template.h includes it and explains how. */
#include "base/error.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/iter.h"
#include "kernels/cpu/loop.h"
#include "kernels/elementwise.h"

typedef struct numbers {
    double f[2];
    int64_t i[2];
} numbers;

static shoal_err no_such(const char *what, int op, shoal_dtype dtype)
{
    return sh_fail(SHOAL_EINVAL, "%s op %d is not defined for %s", what, op, shoal_dtype_name(dtype));
}

static shoal_err walk(sh_iter_row row, int32_t count, const sh_view *const views[], const void *context)
{
    sh_iter it;
    shoal_err err = sh_iter_init(&it, count, views);
    if (!err) {
        sh_iter_run(&it, row, context);
    }
    return err;
}

/* ---- fill and where move bits ---- */

#define MOVE_SIZED(T, bits)                                                                                            \
    static void fill_##bits(char *const p[], const int64_t s[], int64_t n, const void *context)                        \
    {                                                                                                                  \
        T x;                                                                                                           \
        memcpy(&x, context, sizeof x);                                                                                 \
        if (s[0] == sizeof(T)) {                                                                                       \
            T *out = (T *)p[0];                                                                                        \
            for (int64_t i = 0; i < n; i++) {                                                                          \
                out[i] = x;                                                                                            \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            *(T *)(p[0] + i * s[0]) = x;                                                                               \
        }                                                                                                              \
    }                                                                                                                  \
    static void where_##bits(char *const p[], const int64_t s[], int64_t n, const void *context)                       \
    {                                                                                                                  \
        (void)context;                                                                                                 \
        if (s[0] == sizeof(T) && s[1] == 1 && s[2] == sizeof(T) && s[3] == sizeof(T)) {                                \
            T *out = (T *)p[0];                                                                                        \
            const uint8_t *c = (const uint8_t *)p[1];                                                                  \
            const T *a = (const T *)p[2], *b = (const T *)p[3];                                                        \
            SH_INDEPENDENT for (int64_t i = 0; i < n; i++)                                                             \
            {                                                                                                          \
                T x = a[i], y = b[i];                                                                                  \
                out[i] = c[i] ? x : y;                                                                                 \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            *(T *)(p[0] + i * s[0]) =                                                                                  \
                *(const uint8_t *)(p[1] + i * s[1]) ? *(const T *)(p[2] + i * s[2]) : *(const T *)(p[3] + i * s[3]);   \
        }                                                                                                              \
    }
MOVE_SIZED(uint8_t, 8)
MOVE_SIZED(uint16_t, 16)
MOVE_SIZED(uint32_t, 32)
MOVE_SIZED(uint64_t, 64)

static sh_iter_row by_size(size_t size, sh_iter_row r1, sh_iter_row r2, sh_iter_row r4, sh_iter_row r8)
{
    return size == 1 ? r1 : size == 2 ? r2 : size == 4 ? r4 : size == 8 ? r8 : NULL;
}

static shoal_err fill(sh_exec *exec, const sh_view *out, sh_scalar x)
{
    (void)exec;
    float f = (float)x.f;
    uint16_t bf16 = sh_float_to_bf16(f), f16 = sh_float_to_f16(f);
    int32_t i32 = (int32_t)(uint32_t)(uint64_t)x.i;
    uint8_t u8 = (uint8_t)x.i, b8 = x.f != 0;
    const void *const bits[SHOAL_DTYPES] = {
        [SHOAL_F32] = &f,   [SHOAL_F64] = &x.f, [SHOAL_BF16] = &bf16, [SHOAL_F16] = &f16,
        [SHOAL_I64] = &x.i, [SHOAL_I32] = &i32, [SHOAL_U8] = &u8,     [SHOAL_B8] = &b8,
    };
    sh_iter_row row = by_size(shoal_dtype_size(out->dtype), fill_8, fill_16, fill_32, fill_64);
    if (!row) {
        return no_such("fill", 0, out->dtype);
    }
    return walk(row, 1, (const sh_view *[]){out}, bits[out->dtype]);
}

static shoal_err where(sh_exec *exec, const sh_view *out, const sh_view *cond, const sh_view *a, const sh_view *b)
{
    (void)exec;
    bool fits = cond->dtype == SHOAL_B8 && a->dtype == b->dtype && out->dtype == a->dtype;
    sh_iter_row row = fits ? by_size(shoal_dtype_size(a->dtype), where_8, where_16, where_32, where_64) : NULL;
    if (!row) {
        return no_such("where", 0, a->dtype);
    }
    return walk(row, 4, (const sh_view *[]){out, cond, a, b}, NULL);
}

/* ---- copy: between any two dtypes ---- */

static inline int64_t to_i64(double x)
{
    return x != x ? 0 : x >= 9223372036854775808.0 ? INT64_MAX : x < -9223372036854775808.0 ? INT64_MIN : (int64_t)x;
}

static inline int32_t to_i32(double x)
{
    return x != x ? 0 : x >= 2147483647.0 ? INT32_MAX : x <= -2147483648.0 ? INT32_MIN : (int32_t)x;
}

/* READ: the number that an element holds. */
#define READ_f32(v) (v)
#define READ_f64(v) (v)
#define READ_bf16(v) sh_bf16_to_float(v)
#define READ_f16(v) sh_f16_to_float(v)
#define READ_i64(v) (v)
#define READ_i32(v) (v)
#define READ_u8(v) (v)
#define READ_b8(v) ((v) != 0)
/* FROM_FLOAT, FROM_INT: the element that holds a float or an integer. */
#define FROM_FLOAT_f32(v) ((float)(v))
#define FROM_FLOAT_f64(v) ((double)(v))
#define FROM_FLOAT_bf16(v) sh_float_to_bf16((float)(v))
#define FROM_FLOAT_f16(v) sh_float_to_f16((float)(v))
#define FROM_FLOAT_i64(v) to_i64(v)
#define FROM_FLOAT_i32(v) to_i32(v)
#define FROM_FLOAT_u8(v) ((uint8_t)to_i64(v))
#define FROM_FLOAT_b8(v) ((v) != 0)
#define FROM_INT_f32(v) ((float)(v))
#define FROM_INT_f64(v) ((double)(v))
#define FROM_INT_bf16(v) sh_float_to_bf16((float)(v))
#define FROM_INT_f16(v) sh_float_to_f16((float)(v))
#define FROM_INT_i64(v) ((int64_t)(v))
#define FROM_INT_i32(v) ((int32_t)(v))
#define FROM_INT_u8(v) ((uint8_t)(v))
#define FROM_INT_b8(v) ((v) != 0)

typedef float held_f32;
typedef double held_f64;
typedef uint16_t held_bf16;
typedef uint16_t held_f16;
typedef int64_t held_i64;
typedef int32_t held_i32;
typedef uint8_t held_u8;
typedef uint8_t held_b8;

#define COPY_ROW(from, to, KIND) LOOP1(from##_to_##to, held_##to, held_##from, i, FROM_##KIND##_##to(READ_##from(a)))
#define COPY_ROWS(from, KIND)                                                                                          \
    COPY_ROW(from, f32, KIND)                                                                                          \
    COPY_ROW(from, f64, KIND)                                                                                          \
    COPY_ROW(from, bf16, KIND)                                                                                         \
    COPY_ROW(from, f16, KIND)                                                                                          \
    COPY_ROW(from, i64, KIND)                                                                                          \
    COPY_ROW(from, i32, KIND)                                                                                          \
    COPY_ROW(from, u8, KIND)                                                                                           \
    COPY_ROW(from, b8, KIND)
COPY_ROWS(f32, FLOAT)
COPY_ROWS(f64, FLOAT)
COPY_ROWS(bf16, FLOAT)
COPY_ROWS(f16, FLOAT)
COPY_ROWS(i64, INT)
COPY_ROWS(i32, INT)
COPY_ROWS(u8, INT)
COPY_ROWS(b8, INT)
LOOP1(same_16, uint16_t, uint16_t, i, a)

#define COPY_TABLE(from)                                                                                               \
    {                                                                                                                  \
        [SHOAL_F32] = from##_to_f32, [SHOAL_F64] = from##_to_f64, [SHOAL_BF16] = from##_to_bf16,                       \
        [SHOAL_F16] = from##_to_f16, [SHOAL_I64] = from##_to_i64, [SHOAL_I32] = from##_to_i32,                         \
        [SHOAL_U8] = from##_to_u8, [SHOAL_B8] = from##_to_b8                                                           \
    }
static const sh_iter_row copy_rows[SHOAL_DTYPES][SHOAL_DTYPES] = {
    [SHOAL_F32] = COPY_TABLE(f32), [SHOAL_F64] = COPY_TABLE(f64), [SHOAL_BF16] = COPY_TABLE(bf16),
    [SHOAL_F16] = COPY_TABLE(f16), [SHOAL_I64] = COPY_TABLE(i64), [SHOAL_I32] = COPY_TABLE(i32),
    [SHOAL_U8] = COPY_TABLE(u8),   [SHOAL_B8] = COPY_TABLE(b8),
};

static shoal_err copy(sh_exec *exec, const sh_view *out, const sh_view *a)
{
    (void)exec;
    if ((unsigned)a->dtype >= SHOAL_DTYPES || (unsigned)out->dtype >= SHOAL_DTYPES) {
        return no_such("copy", 0, a->dtype);
    }
    sh_iter_row row = copy_rows[a->dtype][out->dtype];
    if (a->dtype == out->dtype && (a->dtype == SHOAL_BF16 || a->dtype == SHOAL_F16)) {
        row = same_16; /* keeps every bit of a NaN */
    }
    return walk(row, 2, (const sh_view *[]){out, a}, &(numbers){{0}, {0}});
}
