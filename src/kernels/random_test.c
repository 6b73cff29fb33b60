/* Tests of random numbers: Philox's published test vectors, the same bits from every version and for every way to
 * divide a fill, and plausible distributions. */
#include "kernels/kernels_test.h"

/* From Random123, tests/kat_vectors: philox4x32 10. */
START_TEST(philox_gives_the_published_words)
{
    static const uint32_t vectors[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
         0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
         0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        sh_philox(vectors[i], vectors[i] + 4, out);
        ck_assert_mem_eq(out, vectors[i] + 6, sizeof out);
    }
}
END_TEST

#define MOST 5003

/* The kernel that fills n elements of dtype. */
typedef enum fill { UNIFORM, NORMAL, BERNOULLI, INTEGERS, FILLS } fill;

static shoal_err run(const sh_kernels *k, fill what, sh_random_key key, shoal_dtype dtype, void *out, int64_t n)
{
    sh_exec exec = {0};
    switch (what) {
    case UNIFORM: return k->random->uniform(&exec, key, dtype, out, n, -2, 3);
    case NORMAL: return k->random->normal(&exec, key, dtype, out, n, 1, 2);
    case BERNOULLI: return k->random->bernoulli(&exec, key, dtype, out, n, 0.3, 7);
    case INTEGERS: return k->random->integers(&exec, key, out, n, -5, 12);
    case FILLS: break;
    }
    return SHOAL_EINVAL;
}

START_TEST(every_version_gives_the_same_bits)
{
    static const shoal_dtype dtypes[FILLS][4] = {[UNIFORM] = {SHOAL_F32, SHOAL_F64, SHOAL_F32, SHOAL_F64},
                                                 [NORMAL] = {SHOAL_F32, SHOAL_F64, SHOAL_F32, SHOAL_F64},
                                                 [BERNOULLI] = {SHOAL_F32, SHOAL_F64, SHOAL_U8, SHOAL_B8},
                                                 [INTEGERS] = {SHOAL_I64, SHOAL_I64, SHOAL_I64, SHOAL_I64}};
    static char wanted[8 * MOST], got[8 * MOST];
    uint64_t seed = 3;
    for (int round = 0; round < sh_repeats(60); round++) {
        for (int what = 0; what < FILLS; what++) {
            shoal_dtype dtype = dtypes[what][round % 4];
            sh_random_key key = {sh_splitmix_next(&seed), sh_splitmix_next(&seed), sh_splitmix_next(&seed)};
            if (round % 3 == 0) {
                key.offset = UINT64_C(0xfffffff0); /* the counter's carry */
            }
            int64_t n = round % 5 == 0 ? MOST : below(&seed, 200);
            memset(wanted, 1, sizeof wanted);
            ck_assert_ok(run(reference(), (fill)what, key, dtype, wanted, n));
            FOR_FAST(k)
            {
                memset(got, 1, sizeof got);
                ck_assert_ok(run(k, (fill)what, key, dtype, got, n));
                if (is_card(k) && what == NORMAL) {
                    assert_close(dtype, got, wanted, n, 2 * tolerance_of(dtype), 1, "normal", key.seed);
                    continue;
                }
                ck_assert_msg(memcmp(got, wanted, sizeof got) == 0, "%s fill %d of %s, round %d", k->name, what,
                              shoal_dtype_name(dtype), round);
            }
        }
    }
    ck_assert_err(run(sh_kernels_cpu(), UNIFORM, (sh_random_key){0}, SHOAL_I32, got, 1), SHOAL_EINVAL);
    ck_assert_err(
        sh_kernels_cpu()->random->integers(&(sh_exec){0}, (sh_random_key){0}, (int64_t *)(void *)got, 1, 3, 3),
        SHOAL_EINVAL);
}
END_TEST

START_TEST(pieces_give_the_same_as_the_whole)
{
    float whole[1000], pieces[1000];
    double whole64[1000], pieces64[1000];
    const sh_kernels *k = sh_kernels_cpu();
    sh_random_key key = {.seed = 5, .stream = 6, .offset = 7}, at = key;
    ck_assert_ok(run(k, NORMAL, key, SHOAL_F32, whole, 1000));
    ck_assert_ok(run(k, NORMAL, key, SHOAL_F64, whole64, 1000));
    for (int64_t i = 0, n = 4; i < 1000; i += n, n = n * 2 < 1000 - i ? n * 2 : 1000 - i) {
        ck_assert_ok(run(k, NORMAL, at, SHOAL_F32, pieces + i, n));
        at.offset += sh_random_blocks(SHOAL_F32, n);
    }
    ck_assert_uint_eq(at.offset, 7 + 250);
    at = key;
    ck_assert_ok(run(k, NORMAL, at, SHOAL_F64, pieces64, 600));
    at.offset += sh_random_blocks(SHOAL_F64, 600);
    ck_assert_ok(run(k, NORMAL, at, SHOAL_F64, pieces64 + 600, 400));
    ck_assert_mem_eq(whole, pieces, sizeof whole);
    ck_assert_mem_eq(whole64, pieces64, sizeof whole64);
}
END_TEST

/* Mean, variance, fourth moment and tail of a million numbers. The bounds are 6 standard errors or more. */
START_TEST(distributions_match_their_definition)
{
    const int64_t n = 1000000;
    float *x = malloc((size_t)n * sizeof *x);
    double *y = malloc((size_t)n * sizeof *y);
    int64_t *z = malloc((size_t)n * sizeof *z);
    const sh_kernels *k = sh_kernels_cpu();
    sh_random_key key = {.seed = 11};
    ck_assert_ok(k->random->normal(&(sh_exec){0}, key, SHOAL_F32, x, n, 0, 1));
    ck_assert_ok(k->random->normal(&(sh_exec){0}, key, SHOAL_F64, y, n, 0, 1));
    double m1 = 0, m2 = 0, m4 = 0, d2 = 0, tail = 0;
    for (int64_t i = 0; i < n; i++) {
        double v = x[i];
        m1 += v, m2 += v * v, m4 += v * v * v * v, d2 += y[i] * y[i], tail += fabs(v) > 3;
    }
    ck_assert_double_le(fabs(m1 / (double)n), 0.006);
    ck_assert_double_le(fabs(m2 / (double)n - 1), 0.009);
    ck_assert_double_le(fabs(m4 / (double)n - 3), 0.06);
    ck_assert_double_le(fabs(d2 / (double)n - 1), 0.009);
    ck_assert_double_le(fabs(tail - 2700), 320);
    ck_assert_ok(k->random->uniform(&(sh_exec){0}, key, SHOAL_F32, x, n, 0, 1));
    ck_assert_ok(k->random->integers(&(sh_exec){0}, key, z, n, 0, 10));
    int64_t tenths[10] = {0}, digits[10] = {0};
    for (int64_t i = 0; i < n; i++) {
        if (!(x[i] >= 0 && x[i] < 1 && z[i] >= 0 && z[i] < 10)) {
            ck_abort_msg("%g or %lld is out of range", (double)x[i], (long long)z[i]);
        }
        tenths[(int)(x[i] * 10)]++;
        digits[z[i]]++;
    }
    for (int i = 0; i < 10; i++) {
        ck_assert_int_le(llabs(tenths[i] - n / 10), 1800);
        ck_assert_int_le(llabs(digits[i] - n / 10), 1800);
    }
    free(x);
    free(y);
    free(z);
}
END_TEST

START_TEST(dropout_keeps_its_mask)
{
    for (int i = 0; i < 40; i++) {
        uint64_t seed = (uint64_t)i;
        shoal_dtype dtype = i % 2 ? SHOAL_F32 : SHOAL_F64;
        int64_t n = i % 7 == 0 ? 3001 : below(&seed, 100);
        double p = i % 5 == 0 ? 1 : i % 5 == 1 ? 0 : 0.4;
        void *x = numbers(dtype, n, &seed, 1), *y = numbers(dtype, n, &seed, 1);
        uint8_t *mask = malloc((size_t)n + 1), *other = malloc((size_t)n + 1);
        sh_random_key key = {.seed = 9, .offset = seed};
        ck_assert_ok(reference()->random->dropout(&(sh_exec){0}, key, dtype, y, mask, x, n, p));
        for (int64_t j = 0; j < n; j++) {
            double in = dtype == SHOAL_F32 ? ((float *)x)[j] : ((double *)x)[j];
            double out = dtype == SHOAL_F32 ? ((float *)y)[j] : ((double *)y)[j];
            ck_assert_double_le(fabs(out - (mask[j] ? in / (1 - p) : 0)), 1e-6);
            ck_assert(p < 1 || !mask[j]);
            ck_assert(p > 0 || mask[j]);
        }
        FOR_FAST(k)
        {
            void *got = copied(dtype, x, n);
            ck_assert_ok(k->random->dropout(&(sh_exec){0}, key, dtype, got, other, got, n, p));
            ck_assert(memcmp(other, mask, (size_t)n) == 0);
            ck_assert(memcmp(got, y, (size_t)n * shoal_dtype_size(dtype)) == 0);
            memcpy(got, x, (size_t)n * shoal_dtype_size(dtype));
            ck_assert_ok(k->random->dropout_backward(&(sh_exec){0}, dtype, got, got, mask, n, p));
            ck_assert(memcmp(got, y, (size_t)n * shoal_dtype_size(dtype)) == 0);
            free(got);
        }
        free(x);
        free(y);
        free(mask);
        free(other);
    }
}
END_TEST

START_TEST(permutations_hold_everything_once)
{
    int64_t order[1000], again[1000];
    bool seen[1000] = {false};
    int fixed = 0;
    sh_random_permutation((sh_random_key){.seed = 1}, order, 1000);
    sh_random_permutation((sh_random_key){.seed = 1}, again, 1000);
    ck_assert_mem_eq(order, again, sizeof order);
    for (int i = 0; i < 1000; i++) {
        ck_assert(order[i] >= 0 && order[i] < 1000 && !seen[order[i]]);
        seen[order[i]] = true;
        fixed += order[i] == i;
    }
    ck_assert_int_le(fixed, 8);
    sh_random_permutation((sh_random_key){.seed = 2}, again, 1000);
    ck_assert(memcmp(order, again, sizeof order) != 0);
    sh_random_permutation((sh_random_key){.seed = 2}, again, 0);
}
END_TEST

KERNELS_SUITE("random", philox_gives_the_published_words, every_version_gives_the_same_bits,
              pieces_give_the_same_as_the_whole, distributions_match_their_definition, dropout_keeps_its_mask,
              permutations_hold_everything_once)
