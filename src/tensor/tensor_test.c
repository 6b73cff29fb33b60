/* Tensors: creating, properties, reading, copies between dtypes, comparing, the scope, and the cache of private
 * memory. */
#include "base/random.h"
#include "tensor/tensor.h"
#include "tests/harness/numbers.h"
#include "tests/harness/runner.h"

#include <shoal/ops.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

START_TEST(makers)
{
    shoal_dtype dtype = (shoal_dtype)_i;
    shoal_tensor *ones = shoal_ones(dtype, SHOAL_SHAPE(2, 3)), *zeros = shoal_zeros_like(ones);
    shoal_tensor *one = shoal_scalar(dtype, 1), *eye = shoal_eye(dtype, 3),
                 *none = shoal_empty(dtype, SHOAL_SHAPE(3, 0));
    ck_assert_int_eq(shoal_tensor_dtype(ones), dtype);
    ck_assert_int_eq(shoal_tensor_count(ones), 6);
    ck_assert_uint_eq(shoal_tensor_storage_size(ones), 6 * shoal_dtype_size(dtype));
    for (int64_t i = 0; i < 3; i++) {
        ck_assert(item_at(ones, SHOAL_SHAPE(1, i)) == 1);
        ck_assert(item_at(zeros, SHOAL_SHAPE(1, i)) == 0);
        ck_assert(item_at(eye, SHOAL_SHAPE(2, i)) == (i == 2));
    }
    ck_assert(item_of(one) == 1 && shoal_tensor_ndim(one) == 0 && shoal_tensor_count(one) == 1);
    ck_assert(shoal_tensor_count(none) == 0 && shoal_tensor_is_contiguous(none));
    ck_assert(!shoal_tensor_is_shared(ones) && shoal_tensor_device(ones) == SHOAL_CPU);
    ck_assert(shoal_tensor_storage_id(ones) != shoal_tensor_storage_id(zeros));
    if (dtype != SHOAL_B8) {
        shoal_tensor *range = shoal_arange(dtype, 1, 8, 2);
        ck_assert_int_eq(shoal_tensor_count(range), 4);
        ck_assert(item_at(range, SHOAL_SHAPE(3)) == 7);
        shoal_tensor_release(range);
    }
    shoal_tensor *all[] = {ones, zeros, one, eye, none};
    for (int i = 0; i < 5; i++) {
        shoal_tensor_release(all[i]);
    }
}
END_TEST

START_TEST(many_dims)
{
    const int64_t shape[] = {1, 2, 1, 2, 1, 2, 1, 2};
    shoal_tensor *t = shoal_ones(SHOAL_I32, 8, shape);
    ck_assert_int_eq(shoal_tensor_count(t), 16);
    ck_assert_int_eq(shoal_tensor_size(t, -1), 2);
    ck_assert_int_eq(shoal_tensor_stride(t, 1), 8);
    ck_assert_int_eq(memcmp(shoal_tensor_shape(t), shape, sizeof shape), 0);
    ck_assert(item_of(shoal_sum(t, SHOAL_ALL_DIMS, false)) == 16);
    ck_assert_int_eq(shoal_tensor_size(t, 8), 0);
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    shoal_tensor_release(t);
    shoal_scope_release(0);
}
END_TEST

START_TEST(refused)
{
    const int64_t nine[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
#define REFUSED(call, words)                                                                                           \
    do {                                                                                                               \
        (void)shoal_fail(SHOAL_OK, "%s", "");                                                                          \
        ck_assert_ptr_null(call);                                                                                      \
        ck_assert_msg(shoal_last_error() == SHOAL_EINVAL && strstr(shoal_last_error_text(), words), "%s: %s", #call,   \
                      shoal_last_error_text());                                                                        \
    } while (0)
    REFUSED(shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2, -1)), "-1");
    REFUSED(shoal_zeros(SHOAL_F32, 9, nine), "9");
    REFUSED(shoal_zeros(SHOAL_F32, -1, nine), "-1");
    REFUSED(shoal_empty(SHOAL_F64, SHOAL_SHAPE((int64_t)1 << 40, (int64_t)1 << 40)), "address space");
    REFUSED(shoal_empty(SHOAL_F64, SHOAL_SHAPE(INT64_MAX / 8 + 1)), "address space");
    REFUSED(shoal_empty(SHOAL_U8, SHOAL_SHAPE(0, (int64_t)1 << 40, (int64_t)1 << 40)), "address space");
    REFUSED(shoal_zeros((shoal_dtype)8, SHOAL_SHAPE(1)), "8 is not a dtype");
    REFUSED(shoal_from_data(SHOAL_F32, NULL, SHOAL_SHAPE(1)), "NULL");
    REFUSED(shoal_arange(SHOAL_F32, 0, 1, 0), "arange");
    REFUSED(shoal_arange(SHOAL_F32, 0, NAN, 1), "arange");
    ck_assert_ptr_null(shoal_empty(SHOAL_U8, SHOAL_SHAPE((int64_t)1 << 55)));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ENOMEM);
    shoal_tensor *t = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2, 3));
    double x = 7;
    ck_assert_err(shoal_item(t, &x), SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "shoal_item: f32 [2, 3] does not have exactly one element");
    ck_assert_err(shoal_tensor_at(t, SHOAL_SHAPE(2, 0), &x), SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "shoal_tensor_at: [2, 0] is not an index of f32 [2, 3]");
    float out[6];
    ck_assert_err(shoal_tensor_read(t, out, 5), SHOAL_EINVAL);
    ck_assert_err(shoal_item(NULL, &x), SHOAL_EINVAL);
    ck_assert(strstr(shoal_last_error_text(), "shoal_item: t is NULL") == shoal_last_error_text());
    ck_assert(x == 7);
    shoal_tensor_release(t);
    shoal_tensor_release(NULL);
    ck_assert_ptr_null(shoal_tensor_retain(NULL));
    ck_assert(shoal_tensor_ndim(NULL) == 0 && shoal_tensor_count(NULL) == 0 && !shoal_tensor_data(NULL));
}
END_TEST

/* ---- memory of the program ---- */

static int released;

static void release(void *context)
{
    released += *(int *)context;
}

START_TEST(foreign)
{
    float data[] = {1, 2, 3, 4};
    int weight = 5;
    shoal_tensor *t = shoal_from_memory(SHOAL_F32, data, SHOAL_SHAPE(2, 2), release, &weight);
    shoal_tensor *column = shoal_tensor_retain(shoal_select(t, 1, 1));
    shoal_tensor_release(t);
    shoal_scope_release(0);
    ck_assert_int_eq(released, 0);
    ck_assert_ptr_nonnull(shoal_fill_(column, 9));
    ck_assert(data[0] == 1 && data[1] == 9 && data[3] == 9);
    ck_assert_err(sh_storage_share(column->storage), SHOAL_EINVAL);
    shoal_tensor_release(column);
    ck_assert_int_eq(released, 5);
    ck_assert_ptr_null(shoal_from_memory(SHOAL_F32, data, SHOAL_SHAPE(-2), release, &weight));
    ck_assert_int_eq(released, 5);
}
END_TEST

START_TEST(shared)
{
    shoal_tensor *t = shoal_empty_shared(SHOAL_F64, SHOAL_SHAPE(3)), *p = shoal_ones(SHOAL_F64, SHOAL_SHAPE(2, 2));
    ck_assert(shoal_tensor_is_shared(t) && !shoal_tensor_is_shared(p));
    shoal_tensor *view = shoal_select(p, 0, 1);
    ck_assert_ok(sh_storage_share(p->storage));
    ck_assert(shoal_tensor_is_shared(p) && shoal_tensor_is_shared(view));
    ck_assert_ptr_nonnull(shoal_fill_(view, 4));
    ck_assert(item_at(p, SHOAL_SHAPE(1, 0)) == 4 && item_at(p, SHOAL_SHAPE(0, 0)) == 1);
    shoal_tensor_release(t);
    shoal_tensor_release(p);
    shoal_scope_release(0);
}
END_TEST

/* ---- copies between dtypes ---- */

static double converted(double value, shoal_dtype from, shoal_dtype to)
{
    shoal_tensor *a = shoal_full(from, value, SHOAL_SHAPE(3, 2)), *b = shoal_zeros(to, SHOAL_SHAPE(2, 3));
    ck_assert_ptr_nonnull(shoal_copy_(b, shoal_transpose(a, 0, 1)));
    double first = item_at(b, SHOAL_SHAPE(0, 0));
    ck_assert(first == item_at(b, SHOAL_SHAPE(1, 2)) || isnan(first));
    shoal_tensor_release(a);
    shoal_tensor_release(b);
    shoal_scope_release(0);
    return first;
}

START_TEST(conversions)
{
    for (int from = 0; from < SHOAL_DTYPES; from++) {
        for (int to = 0; to < SHOAL_DTYPES; to++) {
            bool is_bool = from == SHOAL_B8 || to == SHOAL_B8;
            ck_assert(converted(3, (shoal_dtype)from, (shoal_dtype)to) == (is_bool ? 1 : 3));
            ck_assert(converted(0, (shoal_dtype)from, (shoal_dtype)to) == 0);
        }
    }
    ck_assert(converted(-2.75, SHOAL_F64, SHOAL_I32) == -2);
    ck_assert(converted(-2.75, SHOAL_F64, SHOAL_F16) == -2.75);
    ck_assert(converted(1.00390625, SHOAL_F32, SHOAL_BF16) == 1); /* half way: rounds to even */
    ck_assert(converted(1.01171875, SHOAL_F32, SHOAL_BF16) == 1.015625);
    ck_assert(converted(65519, SHOAL_F32, SHOAL_F16) == 65504);
    ck_assert(isinf(converted(65520, SHOAL_F32, SHOAL_F16)));
    ck_assert(converted(0x1p-24, SHOAL_F32, SHOAL_F16) == 0x1p-24);
    ck_assert(isnan(converted(NAN, SHOAL_F64, SHOAL_BF16)) && isnan(converted(NAN, SHOAL_F32, SHOAL_F16)));
    ck_assert(converted(NAN, SHOAL_F64, SHOAL_B8) == 1 && converted(0.5, SHOAL_F64, SHOAL_B8) == 1);
    ck_assert(converted(300, SHOAL_I64, SHOAL_U8) == 44);
    ck_assert(converted(-1, SHOAL_I64, SHOAL_F32) == -1);
}
END_TEST

START_TEST(comparisons)
{
    const float x[] = {1, 2, NAN, INFINITY}, y[] = {1, 2.00001F, NAN, INFINITY}, nil[] = {0.0F, -0.0F};
    shoal_tensor *a = shoal_from_data(SHOAL_F32, x, SHOAL_SHAPE(2, 2)),
                 *b = shoal_from_data(SHOAL_F32, y, SHOAL_SHAPE(2, 2));
    shoal_tensor *flat = shoal_flatten(a, 0), *zeros = shoal_scoped(shoal_from_data(SHOAL_F32, nil, SHOAL_SHAPE(2)));
    ck_assert(shoal_tensor_equal(a, a) && shoal_tensor_equal(shoal_transpose(shoal_transpose(a, 0, 1), 0, 1), a));
    ck_assert(!shoal_tensor_equal(a, b) && !shoal_tensor_equal(a, flat) && !shoal_tensor_equal(a, NULL));
    ck_assert(!shoal_tensor_equal(shoal_select(zeros, 0, 0), shoal_select(zeros, 0, 1)));
    ck_assert(shoal_tensor_close(a, b, 1e-4, 0) && !shoal_tensor_close(a, b, 1e-7, 0));
    ck_assert(shoal_tensor_close(a, b, 0, 1e-4) && !shoal_tensor_close(a, flat, 1, 1));
    ck_assert(shoal_tensor_close(a, shoal_to_dtype(a, SHOAL_F64), 0, 0));
    shoal_tensor_release(a);
    shoal_tensor_release(b);
    shoal_scope_release(0);
}
END_TEST

/* ---- the scope ---- */

START_TEST(scope)
{
    size_t start = shoal_scope_mark();
    shoal_tensor *a = shoal_ones(SHOAL_F32, SHOAL_SHAPE(2));
    shoal_tensor *kept = shoal_tensor_retain(shoal_add(a, a));
    ck_assert_uint_eq(shoal_scope_mark(), start + 1);
    size_t inner = shoal_scope_mark();
    for (int i = 0; i < 1000; i++) {
        (void)shoal_add(a, shoal_scoped(shoal_ones(SHOAL_F32, SHOAL_SHAPE(2))));
    }
    ck_assert_uint_eq(shoal_scope_mark(), inner + 2000);
    shoal_tensor *last = shoal_add(a, a);
    sh_scope_release_but(inner, last);
    ck_assert_uint_eq(shoal_scope_mark(), inner + 1);
    ck_assert(item_at(last, SHOAL_SHAPE(0)) == 2);
    shoal_scope_release(start);
    ck_assert_uint_eq(shoal_scope_mark(), start);
    ck_assert(item_at(kept, SHOAL_SHAPE(1)) == 2);
    ck_assert_ptr_null(shoal_scoped(NULL));
    shoal_tensor_release(kept);
    shoal_tensor_release(a);
}
END_TEST

/* ---- memory ---- */

START_TEST(cache)
{
    uint64_t seed = 4;
    void *pieces[200];
    size_t sizes[200];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 200; i++) {
            sizes[i] = (size_t)sh_splitmix_below(&seed, i % 10 == 0 ? 1u << 20 : 5000);
            pieces[i] = sh_cpu_cache_alloc(sizes[i]);
            ck_assert(pieces[i] && (uintptr_t)pieces[i] % 64 == 0);
            memset(pieces[i], i, sizes[i]);
        }
        for (int i = 0; i < 200; i++) {
            for (size_t at = 0; at < sizes[i]; at += 97) {
                ck_assert_int_eq(((unsigned char *)pieces[i])[at], i);
            }
            sh_cpu_cache_free(pieces[i], sizes[i]);
        }
    }
#ifndef __SANITIZE_ADDRESS__
    void *first = sh_cpu_cache_alloc(1000);
    sh_cpu_cache_free(first, 1000);
    ck_assert_ptr_eq(sh_cpu_cache_alloc(1024), first); /* the same class */
    sh_cpu_cache_free(first, 1024);
#endif
    sh_cpu_cache_trim();
    ck_assert_ptr_null(sh_cpu_cache_alloc(SIZE_MAX));
    ck_assert_ptr_null(sh_cpu_cache_alloc((size_t)1 << 62));
    sh_cpu_cache_free(NULL, 12);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("tensor/tensor");
    TCase *tc = tcase_create("tensor");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_loop_test(tc, makers, 0, SHOAL_DTYPES);
    tcase_add_test(tc, many_dims);
    tcase_add_test(tc, refused);
    tcase_add_test(tc, foreign);
    tcase_add_test(tc, shared);
    tcase_add_test(tc, conversions);
    tcase_add_test(tc, comparisons);
    tcase_add_test(tc, scope);
    tcase_add_test(tc, cache);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
