/* Runs every op on devices made by the test: the CPU under other names, with one set of kernels each, and a device
 * whose memory the host cannot read. An op that makes a tensor on another device, calls kernels of another device, or
 * reads elements on the host, fails here; and the fast kernels must agree with the reference. With SHOAL_TEST_CARD the
 * only other device is the card. */
#include "autograd/cases_test.h"
#include "tests/harness/cuda_mirror.h"
#include "tests/harness/far_device.h"

#include <stdio.h>

static const sh_kernels *kernels_reference(void)
{
    return sh_kernels_find("reference");
}

static const sh_kernels *kernels_avx2(void)
{
    return sh_kernels_find("avx2");
}

static const sh_kernels *kernels_avx512(void)
{
    return sh_kernels_find("avx512");
}

enum {
    PLAIN,
    AVX2,
    AVX512,
    FAR, /* or the card */
    DEVICES,
};

static sh_device made[DEVICES];
static const sh_device *devices[DEVICES];

/* Returns false if this CPU cannot run these kernels, or they are not asked for. */
static bool make_device(int which)
{
    static const sh_kernels *(*const kernels[])(void) = {
        [PLAIN] = kernels_reference,
        [AVX2] = kernels_avx2,
        [AVX512] = kernels_avx512,
    };
    static const char *const names[] = {[PLAIN] = "plain", [AVX2] = "avx2", [AVX512] = "avx512"};
    const sh_device *card = sh_mirror_device();
    if (which == FAR) {
        devices[FAR] = card ? card : sh_far_device();
        return true;
    }
    if (which != PLAIN && (card || !kernels[which]())) {
        printf("skipped: %s\n", names[which]);
        return false;
    }
    made[which] = sh_device_cpu;
    made[which].name = names[which];
    made[which].kernels = kernels[which];
    devices[which] = &made[which];
    return true;
}

/* The result and the gradients; the scope owns them. */
typedef struct outcome {
    case_inputs made;
    shoal_tensor *result;
} outcome;

static outcome run_on(int number, int which, shoal_dtype dtype, layout how, uint64_t seed)
{
    outcome o = {.made = case_make(&cases[number], devices[which], dtype, how, seed)};
    shoal_err err = shoal_backward(case_loss(number, &o.made, &o.result));
    ck_assert_msg(err == SHOAL_OK, "%s on %s: %s", cases[number].call, devices[which]->name, shoal_last_error_text());
    ck_assert_ptr_eq(sh_tensor_device_of(o.result), devices[which]);
    return o;
}

/* Returns the elements, f32 or f64, in order. The caller frees them. */
static double *numbers_of(const shoal_tensor *t)
{
    size_t count = (size_t)t->count, size = shoal_dtype_size(t->dtype);
    double *x = calloc(count + 1, sizeof *x);
    float *single = calloc(count + 1, sizeof *single);
    ck_assert_ok(shoal_tensor_read(t, t->dtype == SHOAL_F32 ? (void *)single : x, count * size));
    for (size_t i = 0; t->dtype == SHOAL_F32 && i < count; i++) {
        x[i] = single[i];
    }
    free(single);
    return x;
}

static void expect_close(int number, int which, const char *what, const shoal_tensor *got, const shoal_tensor *wanted)
{
    double *a = numbers_of(got), *b = numbers_of(wanted);
    double limit = got->dtype == SHOAL_F32 ? 2e-5 : 1e-12, greatest = 0;
    for (int64_t i = 0; i < got->count; i++) {
        greatest = fabs(b[i]) > greatest ? fabs(b[i]) : greatest;
    }
    for (int64_t i = 0; i < got->count; i++) {
        ck_assert_msg(fabs(a[i] - b[i]) <= limit * (1e-3 + fabs(b[i]) + greatest),
                      "%s, %s on %s at %lld: %.9g, not %.9g", cases[number].call, what, devices[which]->name,
                      (long long)i, a[i], b[i]);
    }
    free(a);
    free(b);
}

static void compare(int number, int which, shoal_dtype dtype, layout how)
{
    uint64_t seed = (uint64_t)(17 * number + 3 * (int)how + 1);
    outcome wanted = run_on(number, PLAIN, dtype, how, seed), got = run_on(number, which, dtype, how, seed);
    expect_close(number, which, "result", got.result, wanted.result);
    for (int i = 0; i < got.made.count; i++) {
        const shoal_tensor *leaf = got.made.leaf[i];
        if (leaf->requires_grad) {
            const shoal_tensor *grad = shoal_tensor_grad(leaf);
            ck_assert_ptr_nonnull(grad);
            ck_assert_ptr_eq(sh_tensor_device_of(grad), devices[which]);
            expect_close(number, which, "gradient", grad, shoal_tensor_grad(wanted.made.leaf[i]));
        }
    }
    case_release(&got.made);
    case_release(&wanted.made);
    shoal_scope_release(0);
}

START_TEST(kernels_agree)
{
    ck_assert(make_device(PLAIN));
    if (!make_device(_i)) {
        return;
    }
    for (int number = 0; number < CASES; number++) {
        for (layout how = LAYOUT_PLAIN; how < LAYOUTS; how++) {
            int turn = number + (int)how; /* in a short test each case has one layout and one dtype */
            if (turn % sh_every(LAYOUTS) == 0) {
                compare(number, _i, SHOAL_F32, how);
            }
            if (turn % sh_every(LAYOUTS) == sh_every(LAYOUTS) - 1 && number % sh_every(8) == 0) {
                compare(number, _i, SHOAL_F64, how);
            }
        }
    }
}
END_TEST

START_TEST(devices_do_not_mix)
{
    ck_assert(make_device(PLAIN));
    sh_shape s;
    ck_assert_ok(sh_shape_init(&s, SHOAL_F32, SHOAL_SHAPE(2)));
    shoal_tensor *here = shoal_ones(SHOAL_F32, SHOAL_SHAPE(2)), *there = sh_tensor_new(devices[PLAIN], &s);
    ck_assert_ptr_null(shoal_add(here, there));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    ck_assert_str_eq(shoal_last_error_text(), "add: the tensors are on different devices, cpu and plain");
    shoal_tensor_release(here);
    shoal_tensor_release(there);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("autograd/device");
    TCase *tc = tcase_create("device");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_loop_test(tc, kernels_agree, PLAIN, DEVICES);
    tcase_add_test(tc, devices_do_not_mix);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
