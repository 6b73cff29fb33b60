/* Shared by the tests of checkpoints: small sets, models, jobs of all methods, and comparisons. */
#ifndef SH_TRAIN_RESUME_TEST_H
#define SH_TRAIN_RESUME_TEST_H

#include "data/file_test.h"
#include "tests/harness/runner.h"

#define CLASSES 10
#define PIXELS 784
#define TRAIN (SH_SLOW ? 450 : 900)
#define TEST (SH_SLOW ? 100 : 200)
#define WORKERS 3
#define EPOCHS 3

static uint64_t chance; /* the seed of the test, printed if it fails */

static inline uint64_t draw(uint64_t below)
{
    chance = chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (chance >> 33) % below;
}

/* Ten patterns, blurred. */
static inline shoal_dataset *new_set(int64_t count, int seed)
{
    shoal_tensor *x = shoal_empty(SHOAL_F32, SHOAL_SHAPE(count, 1, 28, 28));
    shoal_tensor *y = shoal_empty(SHOAL_I64, SHOAL_SHAPE(count));
    float *pixels = shoal_tensor_data(x);
    int64_t *labels = shoal_tensor_data(y);
    chance = (uint64_t)seed;
    for (int64_t i = 0; i < count; i++) {
        labels[i] = (int64_t)draw(CLASSES);
        for (int64_t j = 0; j < PIXELS; j++) {
            pixels[i * PIXELS + j] = (float)draw(1000) / 500 + (float)(j * 7 / 100 % CLASSES == labels[i]);
        }
    }
    shoal_dataset *set = shoal_tensor_dataset(x, y);
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    ck_assert_msg(set != NULL, "%s", shoal_last_error_text());
    return set;
}

static shoal_dataset *train_set, *test_set;

static inline void begin(void)
{
    folder_begin();
    train_set = new_set(TRAIN, 1);
    test_set = new_set(TEST, 2);
}

static inline void end(void)
{
    shoal_dataset_release(train_set);
    shoal_dataset_release(test_set);
    folder_end();
}

static inline shoal_module *new_model(const char *name, uint64_t seed)
{
    shoal_manual_seed(seed);
    shoal_module *model = shoal_model_create(name);
    ck_assert_msg(model != NULL, "%s", shoal_last_error_text());
    return model;
}

static inline shoal_train_options options_of(shoal_train_method method, shoal_module *model)
{
    return (shoal_train_options){.method = method,
                                 .train_set = train_set,
                                 .test_set = test_set,
                                 .module = model,
                                 .workers = method == SHOAL_METHOD_SERIAL ? 1 : WORKERS,
                                 .epochs = EPOCHS,
                                 .batch = 8,
                                 .local = {.steps = method == SHOAL_METHOD_LOCAL ? 7 : 0},
                                 .lr = 0.05,
                                 .seed = 5};
}

static inline void assert_same_bits(const shoal_module *a, const shoal_module *b, bool same)
{
    bool equal = true;
    for (shoal_named it = {0}; shoal_module_next(a, &it) == SHOAL_OK;) {
        equal = equal && shoal_tensor_equal(it.tensor, shoal_module_get(b, it.name));
    }
    ck_assert_msg(equal == same, "the weights are %s", same ? "others" : "the same");
}

typedef struct bytes {
    uint8_t *data;
    size_t size;
} bytes;

static inline bytes read_bytes(const char *path)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    bytes b = {malloc((size_t)st.st_size + 1), 0};
    b.size = bytes_of(path, b.data, (size_t)st.st_size + 1);
    return b;
}

/* Compares the tensors of two checkpoints, except for the past epochs, which have times. */
static inline void assert_same_tensors(const char *a, const char *b)
{
    shoal_tensors *one = shoal_safetensors_read(a), *other = shoal_safetensors_read(b);
    ck_assert(one != NULL && other != NULL && shoal_tensors_count(one) == shoal_tensors_count(other));
    for (size_t i = 0; i < shoal_tensors_count(one); i++) {
        const char *name = shoal_tensors_name(one, i);
        shoal_tensor *there = shoal_tensors_find(other, name);
        ck_assert_msg(there != NULL &&
                          (strcmp(name, "shoal/past") == 0 || shoal_tensor_equal(shoal_tensors_at(one, i), there)),
                      "%s of %s and %s differs", name, a, b);
    }
    shoal_tensors_destroy(one);
    shoal_tensors_destroy(other);
}

/* Compares tensors and texts: the header has the texts. */
static inline void assert_same_files(const char *a, const char *b)
{
    uint64_t header;
    bytes one = read_bytes(a), other = read_bytes(b);
    memcpy(&header, one.data, sizeof header);
    ck_assert_msg(one.size == other.size && memcmp(one.data, other.data, header + sizeof header) == 0,
                  "%s and %s differ", a, b);
    free(one.data);
    free(other.data);
    assert_same_tensors(a, b);
}

#endif
