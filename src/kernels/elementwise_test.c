/* Tests of the elementwise kernels: each op of each dtype, fast against reference on random views; and known values. */
#include "kernels/kernels_test.h"

#include "kernels/cpu/half.h"

static const shoal_dtype all[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16,
                                  SHOAL_I64, SHOAL_I32, SHOAL_U8,   SHOAL_B8};

/* Tolerance: 6 ulp of f32. If sums is set, terms of up to 30 may cancel, and a fused sum is rounded once less. */
static void compare_blocks(const block *got, const block *wanted, bool sums, const char *what, uint64_t seed)
{
    bool is_f32 = wanted->view.dtype == SHOAL_F32;
    assert_close(wanted->view.dtype, got->view.data, wanted->view.data, wanted->elements, is_f32 ? 8e-7 : 1e-14,
                 sums     ? 30
                 : is_f32 ? 1e-37
                          : 1e-300,
                 what, seed);
}

/* One call of the fast and of the reference kernel on the same views. The arguments are in a struct, so that one loop
 * serves every op. */
typedef struct call {
    enum { UNARY, SCALAR, BINARY, GRAD, WHERE, AXPY, FILL, COPY } kind;
    int op;
    sh_scalar x, y;
} call;

static shoal_err run(const sh_kernels *k, const call *c, const sh_view *out, const sh_view *a, const sh_view *b,
                     const sh_view *cond)
{
    sh_exec exec = {0};
    const sh_elementwise_kernels *e = k->elementwise;
    switch (c->kind) {
    case UNARY: return e->unary(&exec, (sh_unary_op)c->op, out, a);
    case SCALAR: return e->scalar(&exec, (sh_scalar_op)c->op, out, a, c->x, c->y);
    case BINARY: return e->binary(&exec, (sh_binary_op)c->op, out, a, b);
    case GRAD: return e->grad(&exec, (sh_grad_op)c->op, out, a, b, c->x.f, c->y.f);
    case WHERE: return e->where(&exec, out, cond, a, b);
    case AXPY: return e->axpy(&exec, out, a, c->x);
    case FILL: return e->fill(&exec, out, c->x);
    case COPY: return e->copy(&exec, out, a);
    }
    return SHOAL_EINVAL;
}

/* Replaces zeros in integer divisors. */
static void make_divisors(block *b)
{
    uint8_t *bytes = b->view.data;
    size_t size = shoal_dtype_size(b->view.dtype);
    for (int64_t i = 0; i < b->elements; i++) {
        static const uint8_t zero[8];
        if (memcmp(bytes + (size_t)i * size, zero, size) == 0) {
            bytes[(size_t)i * size] = 3;
        }
    }
}

/* Compares one op. Returns false if it does not exist for the dtypes. */
static bool compare(const call *c, shoal_dtype from, shoal_dtype to, uint64_t seed)
{
    uint64_t first = seed;
    int64_t shape[SH_MAX_DIMS];
    int32_t ndim = any_shape(&seed, shape);
    double scale = below(&seed, 2) ? 3 : 30;
    block a = block_make(from, ndim, shape, true, &seed, scale), b = block_make(from, ndim, shape, true, &seed, scale);
    if (c->kind == BINARY && (c->op == SH_BINARY_DIV || c->op == SH_BINARY_FLOOR_DIV) && !shoal_dtype_is_float(from)) {
        make_divisors(&b);
    }
    block cond = block_make(SHOAL_B8, ndim, shape, true, &seed, 1),
          out = block_make(to, ndim, shape, false, &seed, scale);
    block wanted = block_copy(&out);
    bool exists = run(reference(), c, &wanted.view, &a.view, &b.view, &cond.view) == SHOAL_OK;
    FOR_FAST(k)
    {
        block got = block_copy(&out);
        shoal_err err = run(k, c, &got.view, &a.view, &b.view, &cond.view);
        ck_assert_int_eq(err == SHOAL_OK, exists);
        char what[80];
        (void)snprintf(what, sizeof what, "%s kind %d op %d %s", k->name, (int)c->kind, c->op, shoal_dtype_name(from));
        compare_blocks(&got, &wanted, c->kind == GRAD || c->kind == AXPY, what, first);
        block_free(&got);
    }
    block_free(&a);
    block_free(&b);
    block_free(&cond);
    block_free(&out);
    block_free(&wanted);
    return exists;
}

/* Compares one op for all dtypes. Returns for how many it exists. */
static int compare_all(call c, bool to_bool, uint64_t seed)
{
    int exist = 0;
    for (size_t t = 0; t < 8; t++) {
        bool exists = false;
        for (int i = 0; i < repeats(120); i++) {
            c.x = sh_scalar_float(i % 2 ? 2 : -0.75);
            c.y = sh_scalar_float(i % 3 ? 2.5 : 3);
            exists = compare(&c, all[t], to_bool ? SHOAL_B8 : all[t], seed + (uint64_t)i);
        }
        exist += exists;
    }
    return exist;
}

START_TEST(unary_ops_agree)
{
    for (int op = 0; op < SH_UNARY_OPS; op++) {
        int wanted = op <= SH_UNARY_RELU ? 5 : op == SH_UNARY_NOT ? 4 : 2;
        ck_assert_int_eq(compare_all((call){.kind = UNARY, .op = op}, false, 1000), wanted);
    }
    ck_assert(!compare(&(call){.kind = UNARY, .op = SH_UNARY_OPS}, SHOAL_F32, SHOAL_F32, 1));
    ck_assert(!compare(&(call){.kind = UNARY, .op = SH_UNARY_NEG}, SHOAL_F32, SHOAL_F64, 1));
}
END_TEST

START_TEST(scalar_ops_agree)
{
    for (int op = 0; op < SH_SCALAR_OPS; op++) {
        int wanted = op == SH_SCALAR_POW || op == SH_SCALAR_LEAKY_RELU ? 2 : 5;
        ck_assert_int_eq(compare_all((call){.kind = SCALAR, .op = op}, false, 2000), wanted);
    }
}
END_TEST

START_TEST(binary_ops_agree)
{
    for (int op = 0; op < SH_BINARY_OPS; op++) {
        int wanted = sh_binary_is_comparison((sh_binary_op)op)    ? 6
                     : op == SH_BINARY_POW                        ? 2
                     : op == SH_BINARY_MAX || op == SH_BINARY_MIN ? 6
                     : op >= SH_BINARY_AND && op <= SH_BINARY_XOR ? 4
                                                                  : 5;
        ck_assert_int_eq(compare_all((call){.kind = BINARY, .op = op}, sh_binary_is_comparison((sh_binary_op)op), 3000),
                         wanted);
    }
}
END_TEST

START_TEST(gradients_agree)
{
    for (int op = 0; op < SH_GRAD_OPS; op++) {
        if (op != SH_GRAD_GELU) { /* see gelu_is_close */
            ck_assert_int_eq(compare_all((call){.kind = GRAD, .op = op}, false, 4000), 2);
        }
    }
}
END_TEST

START_TEST(where_axpy_and_fill_agree)
{
    ck_assert_int_eq(compare_all((call){.kind = WHERE}, false, 5000), 8);
    ck_assert_int_eq(compare_all((call){.kind = AXPY}, false, 6000), 5);
    ck_assert_int_eq(compare_all((call){.kind = FILL}, false, 7000), 8);
}
END_TEST

START_TEST(copies_agree_between_all_dtypes)
{
    call c = {.kind = COPY};
    for (size_t from = 0; from < 8; from++) {
        for (size_t to = 0; to < 8; to++) {
            for (uint64_t seed = 8000; seed < 8000 + (uint64_t)repeats(120); seed++) {
                ck_assert(compare(&c, all[from], all[to], seed));
            }
        }
    }
}
END_TEST

/* ---- known values, for every version ---- */

static sh_view flat(void *data, int64_t n, shoal_dtype dtype)
{
    return (sh_view){.data = data, .shape = {n}, .strides = {1}, .ndim = 1, .dtype = dtype};
}

static const sh_kernels *const *versions(int *count)
{
    static const sh_kernels *list[3];
    *count = 1 + fast_kernels(list + 1);
    list[0] = reference();
    return list;
}

START_TEST(functions_have_their_values)
{
    typedef struct row {
        sh_unary_op op;
        double (*f)(double);
        double from, to;
    } row;
    static const row rows[] = {{SH_UNARY_EXP, exp, -103, 89},  {SH_UNARY_LOG, log, 1e-40, 100},
                               {SH_UNARY_TANH, tanh, -10, 10}, {SH_UNARY_SQRT, sqrt, 0, 1e6},
                               {SH_UNARY_SIN, sin, -50, 50},   {SH_UNARY_COS, cos, -50, 50},
                               {SH_UNARY_ABS, fabs, -5, 5}};
    int count;
    const sh_kernels *const *list = versions(&count);
    static float x[10007], y[10007];
    for (int v = 0; v < count; v++) {
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
            for (int i = 0; i < 10007; i++) {
                x[i] = (float)(rows[r].from + (rows[r].to - rows[r].from) * i / 10006);
            }
            sh_view a = flat(x, 10007, SHOAL_F32), out = flat(y, 10007, SHOAL_F32);
            ck_assert_ok(list[v]->elementwise->unary(&(sh_exec){0}, rows[r].op, &out, &a));
            for (int i = 0; i < 10007; i++) {
                double wanted = (float)rows[r].f(x[i]);
                double ulp = fabs(wanted) < 0x1p-126 ? 0x1p-149 : fabs(wanted) * 0x1p-23;
                if ((double)y[i] == wanted || fabs(y[i] - wanted) <= 2 * ulp) {
                    continue;
                }
                ck_abort_msg("%s op %d: f(%.9g) = %.9g, not %.9g", list[v]->name, (int)rows[r].op, (double)x[i],
                             (double)y[i], wanted);
            }
        }
    }
}
END_TEST

START_TEST(gelu_is_close)
{
    int count;
    const sh_kernels *const *list = versions(&count);
    static float x[4001], y[4001], g[4001], d[4001];
    for (int v = 0; v < count; v++) {
        for (int i = 0; i < 4001; i++) {
            x[i] = (float)(i - 2000) / 150;
            g[i] = 2;
        }
        sh_view a = flat(x, 4001, SHOAL_F32), out = flat(y, 4001, SHOAL_F32), up = flat(g, 4001, SHOAL_F32);
        sh_view down = flat(d, 4001, SHOAL_F32);
        ck_assert_ok(list[v]->elementwise->unary(&(sh_exec){0}, SH_UNARY_GELU, &out, &a));
        ck_assert_ok(list[v]->elementwise->grad(&(sh_exec){0}, SH_GRAD_GELU, &down, &up, &a, 0, 0));
        for (int i = 0; i < 4001; i++) {
            double phi = 0.5 * erfc(-(double)x[i] / sqrt(2)),
                   density = exp(-0.5 * (double)x[i] * x[i]) * 0.3989422804014327;
            ck_assert_double_le(distance(y[i], x[i] * phi, 1e-37), 1e-6);
            ck_assert_double_le(fabs(d[i] - 2 * (phi + x[i] * density)), 1e-6);
        }
    }
}
END_TEST

START_TEST(nan_and_infinity_go_through)
{
    int count;
    const sh_kernels *const *list = versions(&count);
    for (int v = 0; v < count; v++) {
        float x[64], y[64], ones[64];
        for (int i = 0; i < 64; i++) {
            x[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
            ones[i] = 1;
        }
        sh_view a = flat(x, 64, SHOAL_F32), out = flat(y, 64, SHOAL_F32), b = flat(ones, 64, SHOAL_F32);
        ck_assert_ok(list[v]->elementwise->unary(&(sh_exec){0}, SH_UNARY_EXP, &out, &a));
        ck_assert(isnan(y[0]) && y[1] == INFINITY && y[2] == 0);
        ck_assert_ok(list[v]->elementwise->unary(&(sh_exec){0}, SH_UNARY_LOG, &out, &a));
        ck_assert(isnan(y[0]) && y[1] == INFINITY && isnan(y[2]));
        ck_assert_ok(list[v]->elementwise->unary(&(sh_exec){0}, SH_UNARY_SIGMOID, &out, &a));
        ck_assert(isnan(y[0]) && y[1] == 1 && y[2] == 0);
        ck_assert_ok(list[v]->elementwise->unary(&(sh_exec){0}, SH_UNARY_TANH, &out, &a));
        ck_assert(isnan(y[0]) && y[1] == 1 && y[2] == -1);
        ck_assert_ok(list[v]->elementwise->unary(&(sh_exec){0}, SH_UNARY_RELU, &out, &a));
        ck_assert(isnan(y[0]) && y[1] == INFINITY && y[2] == 0);
        ck_assert_ok(list[v]->elementwise->binary(&(sh_exec){0}, SH_BINARY_MAX, &out, &a, &b));
        ck_assert(isnan(y[0]) && y[1] == INFINITY && y[2] == 1);
        ck_assert_ok(list[v]->elementwise->binary(&(sh_exec){0}, SH_BINARY_MIN, &out, &b, &a));
        ck_assert(isnan(y[0]) && y[1] == 1 && y[2] == -INFINITY);
        ck_assert_ok(list[v]->elementwise->scalar(&(sh_exec){0}, SH_SCALAR_CLAMP, &out, &a, sh_scalar_float(-2),
                                                  sh_scalar_float(3)));
        ck_assert(isnan(y[0]) && y[1] == 3 && y[2] == -2);
        ck_assert_ok(list[v]->elementwise->unary(&(sh_exec){0}, SH_UNARY_SIGN, &out, &a));
        ck_assert(y[0] == 0 && y[1] == 1 && y[2] == -1);
        ck_assert_ok(list[v]->elementwise->grad(&(sh_exec){0}, SH_GRAD_RELU, &out, &b, &a, 0, 0));
        ck_assert(y[0] == 1 && y[1] == 1 && y[2] == 0);
    }
}
END_TEST

/* Whole vectors and a rest, of odd functions and of those that return such a zero as it is. */
START_TEST(zeros_keep_their_sign)
{
    static const sh_unary_op ops[] = {SH_UNARY_TANH, SH_UNARY_SIN, SH_UNARY_SQRT, SH_UNARY_RELU};
    static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64};
    int count;
    const sh_kernels *const *list = versions(&count);
    for (int v = 0; v < count; v++) {
        for (size_t op = 0; op < sizeof ops / sizeof *ops; op++) {
            for (int d = 0; d < 2; d++) {
                double x[67], y[67];
                for (int i = 0; i < 67; i++) {
                    if (d == 0) {
                        ((float *)x)[i] = i % 2 ? -0.0f : 0.0f;
                    } else {
                        x[i] = i % 2 ? -0.0 : 0.0;
                    }
                }
                sh_view a = flat(x, 67, dtypes[d]), out = flat(y, 67, dtypes[d]);
                ck_assert_ok(list[v]->elementwise->unary(&(sh_exec){0}, ops[op], &out, &a));
                if (memcmp(x, y, 67 * shoal_dtype_size(dtypes[d])) != 0) {
                    ck_abort_msg("%s %s op %d", list[v]->name, shoal_dtype_name(dtypes[d]), (int)ops[op]);
                }
            }
        }
    }
}
END_TEST

START_TEST(integer_division_rounds_as_said)
{
    int count;
    const sh_kernels *const *list = versions(&count);
    int64_t a[] = {7, -7, 7, -7, 5, INT64_MIN}, b[] = {2, 2, -2, -2, 1, -1}, c[6];
    const int64_t cut[] = {3, -3, -3, 3, 5, INT64_MIN}, floors[] = {3, -4, -4, 3, 5, INT64_MIN};
    for (int v = 0; v < count; v++) {
        sh_view x = flat(a, 6, SHOAL_I64), y = flat(b, 6, SHOAL_I64), out = flat(c, 6, SHOAL_I64);
        ck_assert_ok(list[v]->elementwise->binary(&(sh_exec){0}, SH_BINARY_DIV, &out, &x, &y));
        ck_assert_mem_eq(c, cut, sizeof c);
        ck_assert_ok(list[v]->elementwise->binary(&(sh_exec){0}, SH_BINARY_FLOOR_DIV, &out, &x, &y));
        ck_assert_mem_eq(c, floors, sizeof c);
        if (is_card(list[v])) {
            continue; /* it does not look for zeros */
        }
        b[5] = 0;
        ck_assert_err(list[v]->elementwise->binary(&(sh_exec){0}, SH_BINARY_DIV, &out, &x, &y), SHOAL_EINVAL);
        ck_assert_err(list[v]->elementwise->binary(&(sh_exec){0}, SH_BINARY_FLOOR_DIV, &out, &x, &y), SHOAL_EINVAL);
        ck_assert_mem_eq(c, floors, sizeof c);
        b[5] = -1;
    }
}
END_TEST

/* Every f16 and bf16 survives the conversion to f32 and back. A number between two of them rounds to the nearer, or to
 * the even one. */
START_TEST(halves_round_to_even)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = sh_f16_to_float((uint16_t)h), b = sh_bf16_to_float((uint16_t)h);
        ck_assert(isnan(f) ? isnan(sh_f16_to_float(sh_float_to_f16(f))) : sh_float_to_f16(f) == h);
        ck_assert(isnan(b) ? isnan(sh_bf16_to_float(sh_float_to_bf16(b))) : sh_float_to_bf16(b) == h);
    }
    for (uint32_t h = 0; h < 0x7bff; h++) {
        float low = sh_f16_to_float((uint16_t)h), high = sh_f16_to_float((uint16_t)(h + 1)), middle = (low + high) / 2;
        ck_assert_uint_eq(sh_float_to_f16(middle), h % 2 ? h + 1 : h);
        ck_assert_uint_eq(sh_float_to_f16(nextafterf(middle, 0)), h);
        ck_assert_uint_eq(sh_float_to_f16(nextafterf(middle, 1e9f)), h + 1);
    }
    ck_assert_uint_eq(sh_float_to_f16(65519.9f), 0x7bff);
    ck_assert_uint_eq(sh_float_to_f16(65520), 0x7c00);
    ck_assert_uint_eq(sh_float_to_f16(-INFINITY), 0xfc00);
    ck_assert_uint_eq(sh_float_to_bf16(1.00390625f), 0x3f80); /* 1 + 2^-8: a tie */
    ck_assert_uint_eq(sh_float_to_bf16(1.01171875f), 0x3f82); /* 1 + 3 · 2^-8: a tie */
}
END_TEST

START_TEST(a_view_may_be_its_own_output)
{
    int count;
    const sh_kernels *const *list = versions(&count);
    for (int v = 0; v < count; v++) {
        float x[100];
        for (int i = 0; i < 100; i++) {
            x[i] = (float)i;
        }
        sh_view a = {.data = x, .shape = {10, 10}, .strides = {1, 10}, .ndim = 2, .dtype = SHOAL_F32};
        ck_assert_ok(list[v]->elementwise->binary(&(sh_exec){0}, SH_BINARY_ADD, &a, &a, &a));
        ck_assert_ok(
            list[v]->elementwise->scalar(&(sh_exec){0}, SH_SCALAR_ADD, &a, &a, sh_scalar_int(1), sh_scalar_int(0)));
        for (int i = 0; i < 100; i++) {
            ck_assert(x[i] == (float)(2 * i + 1));
        }
        sh_view other = a;
        other.shape[1] = 9;
        ck_assert_err(list[v]->elementwise->unary(&(sh_exec){0}, SH_UNARY_NEG, &a, &other), SHOAL_EINVAL);
    }
}
END_TEST

KERNELS_SUITE("elementwise", unary_ops_agree, scalar_ops_agree, binary_ops_agree, gradients_agree,
              where_axpy_and_fill_agree, copies_agree_between_all_dtypes, functions_have_their_values, gelu_is_close,
              nan_and_infinity_go_through, zeros_keep_their_sign, integer_division_rounds_as_said, halves_round_to_even,
              a_view_may_be_its_own_output)
