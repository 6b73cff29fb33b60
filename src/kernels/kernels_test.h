/* Shared by the kernel tests: seeded numbers, views with gaps between their elements, and the comparison of each fast
 * version with the reference. */
#ifndef SH_KERNELS_KERNELS_TEST_H
#define SH_KERNELS_KERNELS_TEST_H

#include "base/random.h"
#include "kernels/kernels.h"
#include "tests/harness/cuda_mirror.h"
#include "tests/harness/far_device.h"
#include "tests/harness/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the kernels of that name, or NULL if there are none. With SHOAL_TEST_CARD the GPU's take the place of avx2,
 * and there is no avx512. */
static inline const sh_kernels *find_kernels(const char *name)
{
    const sh_kernels *card = sh_mirror_kernels();
    return card && strcmp(name, "avx2") == 0     ? card
           : card && strcmp(name, "avx512") == 0 ? NULL
                                                 : sh_kernels_find(name);
}

/* Returns whether these run on a GPU, which reports no element's error to the host: a contract says what it does
 * instead. */
static inline bool is_card(const sh_kernels *k)
{
    return k == sh_mirror_kernels() && sh_mirror_device() != sh_far_device();
}

/* n repetitions; a tenth on a GPU, where each call copies its arrays both ways. */
static inline int repeats(int n)
{
    return sh_repeats(sh_mirror_kernels() ? n / 10 : n);
}

/* For loops over all cases: on a GPU they take every nth. A short run has left out enough already. */
static inline int every_on_card(int n)
{
    return sh_mirror_kernels() && !sh_is_short() ? n : 1;
}

/* Returns the fast versions that this CPU can run; prints which it cannot. */
static inline int fast_kernels(const sh_kernels *out[2])
{
    static const char *const names[] = {"avx2", "avx512"};
    int count = 0;
    for (int i = 0; i < 2; i++) {
        out[count] = find_kernels(names[i]);
        if (out[count]) {
            count++;
        } else if (!sh_mirror_kernels()) {
            printf("not compared: this CPU has no %s\n", names[i]);
        }
    }
    return count;
}

#define FOR_FAST(k)                                                                                                    \
    const sh_kernels *fast_[2];                                                                                        \
    for (int count_ = fast_kernels(fast_), at_ = 0; at_ < count_; at_++)                                               \
        for (const sh_kernels *k = fast_[at_]; k; k = NULL)

static inline const sh_kernels *reference(void)
{
    return sh_kernels_find("reference");
}

/* Returns version 0 to 2: the reference, or a fast one; NULL if this CPU cannot run it. */
static inline const sh_kernels *version_of_kernels(int i)
{
    static const char *const names[] = {"reference", "avx2", "avx512"};
    return find_kernels(names[i]);
}

#define FOR_ALL(k)                                                                                                     \
    for (int at_ = 0; at_ < 3; at_++)                                                                                  \
        for (const sh_kernels *k = version_of_kernels(at_); k; k = NULL)

static inline sh_view matrix(void *data, int64_t rows, int64_t columns, shoal_dtype dtype)
{
    return (sh_view){.data = data, .shape = {rows, columns}, .strides = {columns, 1}, .ndim = 2, .dtype = dtype};
}

static inline int64_t below(uint64_t *seed, int64_t bound)
{
    return (int64_t)sh_splitmix_below(seed, (uint64_t)bound);
}

/* Returns a number in (-1, 1). */
static inline double unit(uint64_t *seed)
{
    return (double)(int64_t)(sh_splitmix_next(seed) >> 11) * 0x1p-52 - 1;
}

/* Returns an ordinary value, or sometimes one that is easily mishandled. */
static inline double any_float(uint64_t *seed, double scale)
{
    static const double odd[] = {0.0, -0.0, 1.0, -1.0, INFINITY, -INFINITY, NAN, 1e-30, -1e30, 88.5, -104.5, 0.5};
    return below(seed, 12) == 0 ? odd[below(seed, 12)] : unit(seed) * scale;
}

static inline void put_any(shoal_dtype dtype, void *data, int64_t i, uint64_t *seed, double scale)
{
    uint64_t bits = sh_splitmix_next(seed);
    switch (dtype) {
    case SHOAL_F32: ((float *)data)[i] = (float)any_float(seed, scale); break;
    case SHOAL_F64: ((double *)data)[i] = any_float(seed, scale); break;
    case SHOAL_BF16:
    case SHOAL_F16: ((uint16_t *)data)[i] = (uint16_t)bits; break;
    case SHOAL_I64: ((int64_t *)data)[i] = below(seed, 4) ? (int64_t)(bits % 21) - 10 : (int64_t)bits; break;
    case SHOAL_I32: ((int32_t *)data)[i] = below(seed, 4) ? (int32_t)(bits % 21) - 10 : (int32_t)bits; break;
    case SHOAL_U8: ((uint8_t *)data)[i] = (uint8_t)bits; break;
    case SHOAL_B8: ((uint8_t *)data)[i] = bits & 1; break;
    }
}

/* A view that owns its memory. */
typedef struct block {
    sh_view view;
    int64_t elements;
} block;

/* Makes a view with random strides: any order of the dimensions, gaps and, if repeat is set, repeated dimensions
 * (stride 0). Sets all elements of the memory, so that a test detects a kernel that writes into a gap. */
static inline block block_make(shoal_dtype dtype, int32_t ndim, const int64_t shape[], bool repeat, uint64_t *seed,
                               double scale)
{
    block b = {.view = {.ndim = ndim, .dtype = dtype}, .elements = 1};
    int32_t order[SH_MAX_DIMS] = {0};
    bool straight = below(seed, 2) == 0;
    for (int32_t d = 0; d < ndim; d++) {
        int32_t other = straight ? d : (int32_t)below(seed, d + 1);
        order[d] = order[other];
        order[other] = d;
    }
    int64_t gap = below(seed, 3) == 0 ? 2 : 1;
    b.elements = gap;
    for (int32_t i = ndim; i-- > 0;) {
        int32_t d = order[i];
        bool repeats = repeat && below(seed, 4) == 0;
        b.view.shape[d] = shape[d];
        b.view.strides[d] = repeats ? 0 : b.elements;
        if (!repeats && shape[d] > 0) {
            b.elements = b.elements * shape[d] + (below(seed, 4) == 0 ? 3 : 0);
        }
    }
    b.view.data = malloc((size_t)b.elements * shoal_dtype_size(dtype));
    ck_assert_ptr_nonnull(b.view.data);
    for (int64_t i = 0; i < b.elements; i++) {
        put_any(dtype, b.view.data, i, seed, scale);
    }
    return b;
}

static inline block block_copy(const block *from)
{
    block b = *from;
    size_t bytes = (size_t)b.elements * shoal_dtype_size(b.view.dtype);
    b.view.data = malloc(bytes);
    ck_assert_ptr_nonnull(b.view.data);
    memcpy(b.view.data, from->view.data, bytes);
    return b;
}

static inline void block_free(block *b)
{
    free(b->view.data);
}

/* Returns how far x is from wanted. The distance is 0 if they are equal, both NaN, or the same infinity. Otherwise it
 * is relative to wanted, or absolute below least. */
static inline double distance(double x, double wanted, double least)
{
    if (x == wanted || (isnan(x) && isnan(wanted))) {
        return 0;
    }
    if (isnan(x) || isnan(wanted) || isinf(x) || isinf(wanted)) {
        return INFINITY;
    }
    return fabs(x - wanted) / fmax(fabs(wanted), least);
}

/* Compares all memory of two arrays of n elements: floats within tolerance (relative to the element, or to least if
 * that is more), all others bit by bit. Checks itself and calls libcheck only on failure, because each libcheck check
 * writes to a pipe. */
static inline void assert_close(shoal_dtype dtype, const void *got, const void *wanted, int64_t n, double tolerance,
                                double least, const char *what, uint64_t seed)
{
    size_t size = shoal_dtype_size(dtype);
    for (int64_t i = 0; i < n; i++) {
        if (dtype == SHOAL_F32 || dtype == SHOAL_F64) {
            double x = dtype == SHOAL_F32 ? (double)((const float *)got)[i] : ((const double *)got)[i];
            double y = dtype == SHOAL_F32 ? (double)((const float *)wanted)[i] : ((const double *)wanted)[i];
            if (!(distance(x, y, least) <= tolerance)) {
                ck_abort_msg("%s: %.9g at %lld, wanted %.9g; seed %llu", what, x, (long long)i, y,
                             (unsigned long long)seed);
            }
        } else if (memcmp((const char *)got + (size_t)i * size, (const char *)wanted + (size_t)i * size, size) != 0) {
            ck_abort_msg("%s: bits differ at %lld; seed %llu", what, (long long)i, (unsigned long long)seed);
        }
    }
}

/* Returns a shape from a scalar to four dimensions; some are empty, some have long rows. */
static inline int32_t any_shape(uint64_t *seed, int64_t shape[SH_MAX_DIMS])
{
    int32_t ndim = (int32_t)below(seed, 5);
    for (int32_t d = 0; d < ndim; d++) {
        shape[d] = below(seed, 30) == 0 ? 0 : below(seed, 6) == 0 ? 1 : 1 + below(seed, d == ndim - 1 ? 70 : 6);
    }
    return ndim;
}

/* Returns n floats of dtype in (-scale, scale), without special values. */
static inline void *numbers(shoal_dtype dtype, int64_t n, uint64_t *seed, double scale)
{
    void *data = malloc((size_t)(n > 0 ? n : 1) * shoal_dtype_size(dtype));
    ck_assert_ptr_nonnull(data);
    for (int64_t i = 0; i < n; i++) {
        if (dtype == SHOAL_F32) {
            ((float *)data)[i] = (float)(unit(seed) * scale);
        } else {
            ((double *)data)[i] = unit(seed) * scale;
        }
    }
    return data;
}

static inline void *copied(shoal_dtype dtype, const void *from, int64_t n)
{
    size_t bytes = (size_t)n * shoal_dtype_size(dtype);
    void *data = malloc(bytes > 0 ? bytes : 1);
    ck_assert_ptr_nonnull(data);
    memcpy(data, from, bytes);
    return data;
}

static inline double tolerance_of(shoal_dtype dtype)
{
    return dtype == SHOAL_F32 ? 3e-6 : 1e-13;
}

#define KERNELS_SUITE(name, ...)                                                                                       \
    static Suite *suite(void)                                                                                          \
    {                                                                                                                  \
        const TTest *const tests[] = {__VA_ARGS__};                                                                    \
        Suite *s = suite_create(name);                                                                                 \
        TCase *tc = tcase_create(name);                                                                                \
        tcase_set_timeout(tc, SH_TEST_SECONDS);                                                                        \
        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {                                                    \
            tcase_add_test(tc, tests[i]);                                                                              \
        }                                                                                                              \
        suite_add_tcase(s, tc);                                                                                        \
        return s;                                                                                                      \
    }                                                                                                                  \
    SH_TEST_MAIN(suite)

#endif
