/* Data sets: MNIST, rows of tensors, subsets and their transforms, splits, and sending data sets to other processes. */
#include "data/dataset.h"
#include "proc/process_test.h"
#include "tests/harness/numbers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes a data set of n samples: x is [number, 2 number], y number % classes. */
static shoal_dataset *counting(int64_t n, int64_t classes)
{
    shoal_tensor *x = shoal_empty(SHOAL_F32, SHOAL_SHAPE(n, 2)), *y = shoal_empty(SHOAL_I64, SHOAL_SHAPE(n));
    for (int64_t i = 0; i < n; i++) {
        ((float *)shoal_tensor_data(x))[2 * i] = (float)i;
        ((float *)shoal_tensor_data(x))[2 * i + 1] = 2 * (float)i;
        ((int64_t *)shoal_tensor_data(y))[i] = i % classes;
    }
    shoal_dataset *set = shoal_tensor_dataset(x, y);
    ck_assert_msg(set != NULL, "%s", shoal_last_error_text());
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    return set;
}

/* Returns the number of sample i of a counting data set or of a subset of one; -1 if fetch fails. */
static int64_t number_at(shoal_dataset *set, int64_t i)
{
    shoal_tensor *x = sh_dataset_new_x(set, 1, shoal_empty), *y = sh_dataset_new_y(set, 1, shoal_empty);
    shoal_err err = shoal_dataset_fetch(set, &i, 1, x, y);
    int64_t number = err == SHOAL_OK ? (int64_t)((const float *)shoal_tensor_data(x))[0] : -1;
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    return number;
}

START_TEST(rows)
{
    shoal_dataset *set = counting(10, 3);
    shoal_tensor *x = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(3, 2)), *y = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(3));
    ck_assert_int_eq(shoal_dataset_length(set), 10);
    ck_assert_ok(shoal_dataset_fetch(set, (int64_t[]){7, 0, 9}, 3, x, y));
    ck_assert_mem_eq(shoal_tensor_data(x), ((float[]){7, 14, 0, 0, 9, 18}), 24);
    ck_assert_mem_eq(shoal_tensor_data(y), ((int64_t[]){1, 0, 0}), 24);
    ck_assert_err(shoal_dataset_fetch(set, (int64_t[]){7, 0, 10}, 3, x, y), SHOAL_EINVAL);
    ck_assert_err(shoal_dataset_fetch(set, (int64_t[]){7, 0, -1}, 3, x, y), SHOAL_EINVAL);
    ck_assert_err(shoal_dataset_fetch(set, (int64_t[]){7, 0}, 2, x, y), SHOAL_EINVAL);
    ck_assert_err(shoal_dataset_fetch(set, (int64_t[]){7, 0, 1}, 3, y, y), SHOAL_EINVAL);
    ck_assert_err(shoal_dataset_fetch(NULL, NULL, 0, x, y), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_tensor_dataset(x, NULL));
    shoal_tensor *shorter = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(2));
    ck_assert_ptr_null(shoal_tensor_dataset(x, shorter));
    shoal_tensor_release(shorter);
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    shoal_dataset_release(set);
}
END_TEST

/* A tensor that is not contiguous is copied: here the rows of its transpose. */
START_TEST(rows_of_a_view)
{
    shoal_tensor *x = shoal_arange(SHOAL_F32, 0, 6, 1), *y = shoal_zeros(SHOAL_U8, SHOAL_SHAPE(3));
    shoal_dataset *set = shoal_tensor_dataset(shoal_transpose(shoal_view(x, SHOAL_SHAPE(2, 3)), 0, 1), y);
    ck_assert_int_eq(number_at(set, 2), 2);
    ck_assert_int_eq(set->type.x_shape[0], 2);
    shoal_dataset_release(set);
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    shoal_scope_release(0);
}
END_TEST

static shoal_err add_number(shoal_tensor *x, void *context)
{
    float *data = shoal_tensor_data(x);
    for (int64_t i = 0; i < shoal_tensor_count(x); i++) {
        data[i] += context != NULL ? *(float *)context : 100;
    }
    return SHOAL_OK;
}

static shoal_err refuse(shoal_tensor *x, void *context)
{
    (void)x;
    (void)context;
    return shoal_fail(SHOAL_ESTATE, "not today");
}

START_TEST(subsets)
{
    float thousand = 1000;
    shoal_dataset *set = counting(10, 3);
    shoal_dataset *odd = shoal_subset(set, (int64_t[]){9, 7, 5, 3, 1}, 5);
    shoal_dataset *two = shoal_subset(odd, (int64_t[]){4, 0}, 2);
    shoal_dataset *changed = shoal_subset_with(two, (int64_t[]){1}, 1, add_number, &thousand);
    shoal_dataset *twice = shoal_subset_with(changed, (int64_t[]){0, 0}, 2, add_number, NULL);
    ck_assert_int_eq(shoal_dataset_length(odd), 5);
    ck_assert_int_eq(number_at(odd, 1), 7);
    ck_assert_int_eq(number_at(two, 0), 1);
    ck_assert_int_eq(number_at(two, 1), 9);
    ck_assert_int_eq(number_at(changed, 0), 1009);
    ck_assert_int_eq(number_at(twice, 1), 1109);
    ck_assert_ptr_null(shoal_subset(odd, (int64_t[]){5}, 1));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);

    shoal_dataset *never = shoal_subset_with(set, (int64_t[]){1}, 1, refuse, NULL);
    shoal_tensor *x = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(1, 2)), *y = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(1));
    ck_assert_err(shoal_dataset_fetch(never, (int64_t[]){0}, 1, x, y), SHOAL_ESTATE);
    shoal_tensor_release(x);
    shoal_tensor_release(y);

    shoal_tensor *labels = shoal_dataset_labels(twice);
    ck_assert_int_eq((int)item_at(labels, SHOAL_SHAPE(1)), 9 % 3);
    shoal_tensor_release(labels);
    shoal_dataset_release(set); /* the others keep it */
    ck_assert_int_eq(number_at(two, 1), 9);
    shoal_dataset_release(never);
    shoal_dataset_release(twice);
    shoal_dataset_release(changed);
    shoal_dataset_release(two);
    shoal_dataset_release(odd);
}
END_TEST

START_TEST(shards)
{
    shoal_dataset *set = counting(10, 3), *out[4];
    ck_assert_ok(shoal_split_shard(set, 4, out));
    for (int i = 0; i < 4; i++) { /* 0 1 | 2 3 | 4 5 | 6 7 8 9 */
        ck_assert_int_eq(shoal_dataset_length(out[i]), i == 3 ? 4 : 2);
        ck_assert_int_eq(number_at(out[i], 0), 2 * i);
        ck_assert_int_eq(number_at(out[i], 1), 2 * i + 1);
        shoal_dataset_release(out[i]);
    }
    shoal_dataset *untouched[1] = {set};
    ck_assert_err(shoal_split_shard(set, 11, untouched), SHOAL_EINVAL);
    ck_assert_err(shoal_split_shard(set, 0, untouched), SHOAL_EINVAL);
    ck_assert_err(shoal_split_iid(set, -1, 1, untouched), SHOAL_EINVAL);
    ck_assert_err(shoal_split_label(set, 4, 3, 1, untouched), SHOAL_EINVAL);
    ck_assert_err(shoal_split_label(set, INT64_MAX, 2, 1, untouched), SHOAL_EINVAL);
    ck_assert_ptr_eq(untouched[0], set);
    shoal_dataset_release(set);
}
END_TEST

START_TEST(iid)
{
    enum { N = 103, PARTS = 10 };
    bool seen[N] = {false}, moved = false;
    shoal_dataset *set = counting(N, 3), *out[PARTS], *same[PARTS], *other[PARTS];
    ck_assert_ok(shoal_split_iid(set, PARTS, 5, out));
    ck_assert_ok(shoal_split_iid(set, PARTS, 5, same));
    ck_assert_ok(shoal_split_iid(set, PARTS, 6, other));
    int64_t differ = 0;
    for (int p = 0; p < PARTS; p++) {
        ck_assert_int_eq(shoal_dataset_length(out[p]), p < 3 ? 11 : 10);
        for (int64_t i = 0; i < shoal_dataset_length(out[p]); i++) {
            int64_t number = number_at(out[p], i);
            ck_assert(!seen[number]);
            seen[number] = true;
            moved = moved || (i > 0 && number != number_at(out[p], i - 1) + 1);
            ck_assert_int_eq(number_at(same[p], i), number);
            differ += number_at(other[p], i) != number;
        }
        shoal_dataset_release(out[p]);
        shoal_dataset_release(same[p]);
        shoal_dataset_release(other[p]);
    }
    ck_assert(moved);
    ck_assert_int_gt(differ, N / 2);
    shoal_dataset_release(set);
}
END_TEST

/* The split of the FedAvg paper: 60,000 samples in 200 shards of 300, two shards per client. */
START_TEST(labels_of_mnist)
{
    enum { CLIENTS = 100 };
    shoal_dataset *set = shoal_mnist(SHOAL_PART_TRAIN), *out[CLIENTS];
    ck_assert_msg(set != NULL, "%s", shoal_last_error_text());
    ck_assert_ok(shoal_split_label(set, CLIENTS, 2, 42, out));
    int64_t total = 0, pure = 0, histogram[10] = {0};
    for (int c = 0; c < CLIENTS; c++) {
        int kinds = 0;
        int64_t own[10] = {0};
        shoal_tensor *labels = shoal_dataset_labels(out[c]);
        const int64_t *l = shoal_tensor_data(labels);
        ck_assert_int_eq(shoal_dataset_length(out[c]), 600);
        for (int i = 0; i < 600; i++) {
            own[l[i]]++;
            histogram[l[i]]++;
            ck_assert(i % 300 == 0 || l[i] >= l[i - 1]); /* within a shard they are sorted */
        }
        for (int k = 0; k < 10; k++) {
            kinds += own[k] > 0;
            total += own[k];
        }
        ck_assert_int_le(kinds, 4); /* a shard crosses at most one boundary between labels */
        pure += kinds <= 2;
        shoal_tensor_release(labels);
        shoal_dataset_release(out[c]);
    }
    ck_assert_int_eq(total, 60000);
    ck_assert_int_eq(histogram[0], 5923);
    ck_assert_int_eq(histogram[9], 5949);
    ck_assert_int_ge(pure, 82); /* 9 boundaries mix 9 shards, and so 9 clients; 18 would be too many */
    shoal_dataset_release(set);
}
END_TEST

static void check_images(shoal_dataset *set, int64_t length, double mean, double deviation, const int64_t first[5])
{
    ck_assert_msg(set != NULL, "%s", shoal_last_error_text());
    ck_assert_int_eq(shoal_dataset_length(set), length);
    enum { COUNT = 1000 };
    int64_t *numbers = calloc(COUNT, sizeof *numbers);
    for (int i = 0; i < COUNT; i++) {
        numbers[i] = i;
    }
    shoal_tensor *x = shoal_empty(SHOAL_F32, SHOAL_SHAPE(COUNT, 1, 28, 28)),
                 *y = shoal_empty(SHOAL_I64, SHOAL_SHAPE(COUNT));
    ck_assert_ok(shoal_dataset_fetch(set, numbers, COUNT, x, y));
    ck_assert_mem_eq(shoal_tensor_data(y), first, 5 * sizeof *first);
    const float *data = shoal_tensor_data(x);
    double sum = 0, squares = 0, lowest = 1e9, highest = -1e9;
    int64_t n = shoal_tensor_count(x);
    for (int64_t i = 0; i < n; i++) {
        sum += data[i];
        squares += (double)data[i] * data[i];
        lowest = fmin(lowest, data[i]);
        highest = fmax(highest, data[i]);
    }
    ck_assert_double_eq_tol(lowest, -mean / deviation, 1e-6);
    ck_assert_double_eq_tol(highest, (1 - mean) / deviation, 1e-6);
    ck_assert_double_eq_tol(sum / (double)n, 0, 0.05);
    ck_assert_double_eq_tol(squares / (double)n, 1, 0.1);
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    free(numbers);
    shoal_dataset_release(set);
}

START_TEST(mnist)
{
    check_images(shoal_mnist(SHOAL_PART_TRAIN), 60000, 0.1307, 0.3081, (int64_t[]){5, 0, 4, 1, 9});
    check_images(shoal_mnist(SHOAL_PART_TEST), 10000, 0.1307, 0.3081, (int64_t[]){7, 2, 1, 0, 4});
    ck_assert_ptr_null(shoal_mnist_at("/nowhere", SHOAL_PART_TRAIN));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ENOENT);
    ck_assert_ptr_null(shoal_mnist((shoal_part)2));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
}
END_TEST

/* Every instruction set gives the same bits as the plain formula. */
START_TEST(same_bits)
{
    const float scale = (float)(1.0 / (255.0 * (double)0.3081f)), shift = (float)(-(double)0.1307f / (double)0.3081f);
    shoal_dataset *set = shoal_mnist(SHOAL_PART_TEST);
    shoal_tensor *pixels = shoal_idx_read("data/mnist/t10k-images-idx3-ubyte.gz");
    shoal_tensor *x = sh_dataset_new_x(set, 20, shoal_empty), *y = sh_dataset_new_y(set, 20, shoal_empty);
    int64_t numbers[20];
    for (int i = 0; i < 20; i++) {
        numbers[i] = i * 499;
    }
    ck_assert_ok(shoal_dataset_fetch(set, numbers, 20, x, y));
    const uint8_t *p = shoal_tensor_data(pixels);
    const float *data = shoal_tensor_data(x);
    for (int64_t i = 0; i < 20 * 784; i++) {
        float product = (float)p[numbers[i / 784] * 784 + i % 784] * scale;
        ck_assert_msg(data[i] == product + shift, "element %lld", (long long)i);
    }
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    shoal_tensor_release(pixels);
    shoal_dataset_release(set);
}
END_TEST

START_TEST(fashion_mnist)
{
    char folder[4096];
    if (shoal_data_where("fashion-mnist", folder, sizeof folder) != SHOAL_OK) {
        printf("skipped: %s; %s\n", shoal_last_error_text(), shoal_data_origin("fashion-mnist"));
        return;
    }
    check_images(shoal_fashion_mnist(SHOAL_PART_TRAIN), 60000, 0.2860, 0.3530, (int64_t[]){9, 0, 0, 3, 0});
    check_images(shoal_fashion_mnist(SHOAL_PART_TEST), 10000, 0.2860, 0.3530, (int64_t[]){9, 2, 1, 1, 6});
    ck_assert_ok(shoal_data_verify("fashion-mnist", NULL));
}
END_TEST

START_TEST(catalog)
{
    char folder[4096], tiny[4];
    ck_assert_str_eq(shoal_data_name(0), "mnist");
    ck_assert_str_eq(shoal_data_name(1), "fashion-mnist");
    ck_assert_ptr_null(shoal_data_name(2));
    ck_assert_ok(shoal_data_where("mnist", folder, sizeof folder));
    ck_assert_str_eq(folder, "data/mnist");
    ck_assert_err(shoal_data_where("mnist", tiny, sizeof tiny), SHOAL_EINVAL);
    ck_assert_err(shoal_data_where("imagenet", folder, sizeof folder), SHOAL_ENOENT);
    ck_assert_ok(shoal_data_verify("mnist", NULL));
    ck_assert_err(shoal_data_verify("mnist", "/nowhere"), SHOAL_ENOENT);
    ck_assert_err(shoal_data_verify("fashion-mnist", "data/mnist"), SHOAL_ECORRUPT);
    ck_assert_msg(strstr(shoal_last_error_text(), "CRC32") != NULL, "%s", shoal_last_error_text());

    setenv("SHOAL_DATA", "data", 1);
    ck_assert_ok(shoal_data_where("mnist", folder, sizeof folder));
    setenv("SHOAL_DATA", "./data/mnist", 1);
    ck_assert_ok(shoal_data_where("mnist", folder, sizeof folder));
    ck_assert_str_eq(folder, "./data/mnist");
    unsetenv("SHOAL_DATA");
}
END_TEST

/* ---- sending to other processes ---- */

static shoal_err look(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_dataset *set = shoal_dataset_retain(shoal_arg_dataset(args, "set"));
    if (set == NULL) {
        return shoal_last_error();
    }
    shoal_tensor *labels = shoal_dataset_labels(set);
    shoal_err err = shoal_return(shoal_list(number_at(set, 1), shoal_dataset_length(set), shoal_dataset_name(set),
                                            (int64_t)item_at(labels, SHOAL_SHAPE(1))));
    shoal_tensor_release(labels);
    shoal_dataset_release(set);
    return err;
}

START_TEST(travels)
{
    shoal_dataset *set = counting(10, 3);
    shoal_dataset *sub = shoal_subset_with(set, (int64_t[]){9, 7}, 2, add_number, NULL);
    shoal_dataset *subsub = shoal_subset(sub, (int64_t[]){1, 0, 1}, 3);
    shoal_value *packed = shoal_map("set", shoal_value_dataset(subsub)), *results[1];
    ck_assert_msg(packed != NULL, "%s", shoal_last_error_text());
    shoal_process_options o = {.start = (shoal_start)_i};
    ck_assert_ok(shoal_spawn_with(look, 1, packed, &o, results));
    ck_assert_int_eq(sh_int_of(shoal_value_at(results[0], 0)), 109);
    ck_assert_int_eq(sh_int_of(shoal_value_at(results[0], 1)), 3);
    ck_assert_str_eq(shoal_value_as_string(shoal_value_at(results[0], 2)), "tensors");
    ck_assert_int_eq(sh_int_of(shoal_value_at(results[0], 3)), 9 % 3);
    shoal_value_destroy(results[0]);
    shoal_dataset_release(subsub);
    shoal_dataset_release(sub);
    shoal_dataset_release(set);
}
END_TEST

START_TEST(stays)
{
    float one = 1;
    shoal_dataset *set = counting(10, 3);
    shoal_dataset *own = shoal_dataset_create(
        &(shoal_dataset_type){.name = "own", .length = 1, .fetch = set->type.fetch, .y_dtype = SHOAL_I64}, NULL);
    shoal_dataset *with = shoal_subset_with(set, (int64_t[]){1}, 1, add_number, &one);
    ck_assert_ptr_null(shoal_value_dataset(own));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_value_dataset(with));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    shoal_value *v = shoal_map("form", 1);
    ck_assert_ptr_null(shoal_dataset_retain(shoal_value_as_dataset(v)));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ETYPE);
    shoal_value_destroy(v);
    ck_assert_ptr_null(shoal_dataset_create(&(shoal_dataset_type){.length = -1, .fetch = set->type.fetch}, NULL));
    shoal_dataset_release(with);
    shoal_dataset_release(own);
    shoal_dataset_release(set);
}
END_TEST

/* ---- functions of the program that fail without setting an error ---- */

static shoal_err bare_fetch(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y)
{
    (void)state;
    (void)count;
    (void)x;
    (void)y;
    return numbers[0] == 0   ? SHOAL_ELIMIT
           : numbers[0] == 1 ? shoal_fail(SHOAL_ELIMIT, "in words")
           : numbers[0] == 2 ? SHOAL_END
                             : SHOAL_OK;
}

static shoal_value *bare_pack(void *state)
{
    return state != NULL ? NULL : shoal_value_null();
}

static shoal_err bare_open(const shoal_value *packed, void **out_state)
{
    (void)packed;
    (void)out_state;
    return SHOAL_EPERM;
}

static shoal_err bare_transform(shoal_tensor *x, void *context)
{
    (void)x;
    (void)context;
    return SHOAL_ECLOSED;
}

static void told(shoal_err err, const char *text)
{
    ck_assert_int_eq(shoal_last_error(), err);
    ck_assert_str_eq(shoal_last_error_text(), text);
}

/* If a data set's function fails, its code becomes the last error, with a text, whether or not it set one; a text that
 * it set stays. An older error, even with the same code, is never taken for it. */
START_TEST(bare_codes)
{
    static const shoal_dataset_type type = {
        .name = "bare", .length = 9, .y_dtype = SHOAL_I64, .fetch = bare_fetch, .pack = bare_pack, .open = bare_open};
    static int any;
    shoal_dataset *set = shoal_dataset_create(&type, NULL), *full = shoal_dataset_create(&type, &any);
    shoal_dataset *sub = shoal_subset_with(set, (int64_t[]){5}, 1, bare_transform, NULL);
    shoal_tensor *x = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(1)), *y = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(1));
    shoal_value *packed = shoal_value_dataset(set);
    ck_assert_ptr_null(shoal_dataset_retain(shoal_value_as_dataset(packed)));
    told(SHOAL_EPERM, "bare: open returned SHOAL_EPERM");
    (void)shoal_fail(SHOAL_ELIMIT, "an older one");
    ck_assert_err(shoal_dataset_fetch(set, (int64_t[]){0}, 1, x, y), SHOAL_ELIMIT);
    told(SHOAL_ELIMIT, "bare: fetch returned SHOAL_ELIMIT");
    ck_assert_err(shoal_dataset_fetch(set, (int64_t[]){1}, 1, x, y), SHOAL_ELIMIT);
    told(SHOAL_ELIMIT, "in words");
    ck_assert_err(shoal_dataset_fetch(set, (int64_t[]){2}, 1, x, y), SHOAL_ECHILD); /* END belongs to the loader */
    told(SHOAL_ECHILD, "bare: fetch returned SHOAL_END");
    ck_assert_err(shoal_dataset_fetch(sub, (int64_t[]){0}, 1, x, y), SHOAL_ECLOSED);
    told(SHOAL_ECLOSED, "bare: the transform of a subset returned SHOAL_ECLOSED");
    ck_assert_ptr_null(shoal_value_dataset(full));
    told(SHOAL_EINVAL, "bare: pack returned NULL without setting an error");
    shoal_value_destroy(packed);
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    shoal_dataset_release(sub);
    shoal_dataset_release(full);
    shoal_dataset_release(set);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dataset");
    TCase *tc = methods_case("dataset");
    tcase_add_test(tc, rows);
    tcase_add_test(tc, rows_of_a_view);
    tcase_add_test(tc, subsets);
    tcase_add_test(tc, shards);
    tcase_add_test(tc, iid);
    tcase_add_test(tc, labels_of_mnist);
    tcase_add_test(tc, mnist);
    tcase_add_test(tc, same_bits);
    tcase_add_test(tc, fashion_mnist);
    tcase_add_test(tc, catalog);
    add_for_methods(tc, travels);
    tcase_add_test(tc, stays);
    tcase_add_test(tc, bare_codes);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
