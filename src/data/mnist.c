/* MNIST and Fashion-MNIST: one byte per pixel in the shared heap; fetch makes them normalised floats. */
#include "data/catalog.h"
#include "data/dataset.h"

#include "base/error.h"
#include "kernels/kernels.h"
#include "tensor/tensor.h"

#include <shoal/share.h>

#include <stdlib.h>
#include <string.h>

#define SIDE 28
#define PIXELS (SIDE * SIDE)
#define CLASSES 10
#define AHEAD 4 /* samples to prefetch: shuffled samples are spread over the whole memory */

typedef struct images {
    shoal_tensor *pixels, *labels; /* u8 [n, 28, 28] and u8 [n], shared */
    float scale, shift;            /* pixel p becomes p * scale + shift = (p / 255 - mean) / deviation */
} images;

static void ask_for(const uint8_t *pixels)
{
    for (int at = 0; at < PIXELS + 63; at += 64) {
        __builtin_prefetch(pixels + at);
    }
}

/* Each variant rounds the product and the sum separately (-ffp-contract=off), so the bits are the same. */
#define NORMALISE                                                                                                      \
    for (int i = 0; i < PIXELS; i++) {                                                                                 \
        out[i] = (float)pixels[i] * scale + shift;                                                                     \
    }

typedef void (*normaliser)(float *restrict out, const uint8_t *restrict pixels, float scale, float shift);

static void normalise_plain(float *restrict out, const uint8_t *restrict pixels, float scale, float shift)
{
    NORMALISE
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void normalise_avx2(float *restrict out, const uint8_t *restrict pixels,
                                                           float scale, float shift)
{
    NORMALISE
}

__attribute__((target("avx512f,avx512bw,avx512vl,prefer-vector-width=512"))) static void normalise_avx512(
    float *restrict out, const uint8_t *restrict pixels, float scale, float shift)
{
    NORMALISE
}
#endif

static normaliser choose_normaliser(void)
{
#if defined(__x86_64__)
    const char *chosen = sh_kernels_cpu()->name; /* what this CPU supports and SHOAL_CPU allows */
    if (strcmp(chosen, "avx512") == 0) {
        return normalise_avx512;
    }
    if (strcmp(chosen, "avx2") == 0) {
        return normalise_avx2;
    }
#endif
    return normalise_plain;
}

static shoal_err images_fetch(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y)
{
    const images *m = state;
    if (sh_tensor_check(m->pixels) != SHOAL_OK || sh_tensor_check(m->labels) != SHOAL_OK) {
        return shoal_last_error();
    }
    const uint8_t *pixels = shoal_tensor_data(m->pixels), *labels = shoal_tensor_data(m->labels);
    normaliser normalise = choose_normaliser();
    float *out = shoal_tensor_data(x);
    int64_t *label = shoal_tensor_data(y);
    for (int64_t i = 0; i < AHEAD && i < count; i++) {
        ask_for(pixels + numbers[i] * PIXELS);
    }
    for (int64_t i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            ask_for(pixels + numbers[i + AHEAD] * PIXELS);
        }
        normalise(out + i * PIXELS, pixels + numbers[i] * PIXELS, m->scale, m->shift);
        label[i] = labels[numbers[i]];
    }
    return SHOAL_OK;
}

static shoal_err images_labels(void *state, int64_t *out)
{
    const images *m = state;
    const uint8_t *labels = shoal_tensor_data(m->labels);
    if (sh_tensor_check(m->labels) != SHOAL_OK) {
        return shoal_last_error();
    }
    for (int64_t i = 0; i < shoal_tensor_count(m->labels); i++) {
        out[i] = labels[i];
    }
    return SHOAL_OK;
}

static void images_destroy(void *state)
{
    images *m = state;
    if (m != NULL) {
        shoal_tensor_release(m->pixels);
        shoal_tensor_release(m->labels);
        free(m);
    }
}

static shoal_value *images_pack(void *state)
{
    const images *m = state;
    return shoal_map("pixels", shoal_value_tensor(m->pixels), "labels", shoal_value_tensor(m->labels), "scale",
                     m->scale, "shift", m->shift);
}

static shoal_err images_open(const shoal_value *packed, void **out_state)
{
    images *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a data set");
    }
    m->pixels = shoal_tensor_retain(shoal_arg_tensor(packed, "pixels"));
    m->labels = shoal_tensor_retain(shoal_arg_tensor(packed, "labels"));
    double scale, shift;
    if (m->pixels == NULL || m->labels == NULL || shoal_arg_float(packed, "scale", &scale) != SHOAL_OK ||
        shoal_arg_float(packed, "shift", &shift) != SHOAL_OK) {
        images_destroy(m);
        return sh_fail(SHOAL_ETYPE, "the value is not a packed data set of images");
    }
    m->scale = (float)scale;
    m->shift = (float)shift;
    *out_state = m;
    return SHOAL_OK;
}

bool sh_dataset_bytes(const shoal_dataset *set, sh_byte_images *out_images)
{
    if (set->type.fetch != images_fetch) {
        return false;
    }
    const images *m = set->state;
    *out_images = (sh_byte_images){.pixels = m->pixels, .labels = m->labels, .scale = m->scale, .shift = m->shift};
    return true;
}

/* ---- loading ---- */

static shoal_tensor *load(const char *folder, const char *name)
{
    char path[PATH_MAX];
    sh_source s;
    if (sh_catalog_open(&s, folder, name, path) != SHOAL_OK) {
        return NULL;
    }
    shoal_tensor *t = sh_idx_read(&s, shoal_empty_shared);
    sh_source_close(&s);
    return t;
}

static shoal_err check(const images *m, const char *folder)
{
    const shoal_tensor *p = m->pixels, *l = m->labels;
    if (shoal_tensor_dtype(p) != SHOAL_U8 || shoal_tensor_ndim(p) != 3 || shoal_tensor_size(p, 1) != SIDE ||
        shoal_tensor_size(p, 2) != SIDE || shoal_tensor_dtype(l) != SHOAL_U8 || shoal_tensor_ndim(l) != 1 ||
        shoal_tensor_size(l, 0) != shoal_tensor_size(p, 0)) {
        return sh_fail(SHOAL_ECORRUPT, "%s: the files are not u8 [n, %d, %d] and u8 [n]", folder, SIDE, SIDE);
    }
    const uint8_t *labels = shoal_tensor_data(l);
    for (int64_t i = 0; i < shoal_tensor_count(l); i++) {
        if (labels[i] >= CLASSES) {
            return sh_fail(SHOAL_ECORRUPT, "%s: sample %lld has the label %d: labels are 0 to %d", folder, (long long)i,
                           labels[i], CLASSES - 1);
        }
    }
    return SHOAL_OK;
}

static images *load_images(const sh_catalog_entry *e, const char *folder, shoal_part part)
{
    int first = part == SHOAL_PART_TRAIN ? 0 : 2;
    images *m = calloc(1, sizeof *m);
    if (m == NULL) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for a data set");
        return NULL;
    }
    m->scale = (float)(1.0 / (255.0 * (double)e->deviation));
    m->shift = (float)(-(double)e->mean / (double)e->deviation);
    m->labels = load(folder, e->files[first + 1].name);
    m->pixels = m->labels != NULL ? load(folder, e->files[first].name) : NULL;
    if (m->pixels == NULL || check(m, folder) != SHOAL_OK) {
        images_destroy(m);
        return NULL;
    }
    return m;
}

static shoal_dataset *open_images(const sh_catalog_entry *e, const char *directory, shoal_part part)
{
    char folder[PATH_MAX];
    if (part != SHOAL_PART_TRAIN && part != SHOAL_PART_TEST) {
        (void)sh_fail(SHOAL_EINVAL, "%d is not a part of a data set", (int)part);
        return NULL;
    }
    if (directory == NULL && sh_catalog_where(e, folder) != SHOAL_OK) {
        return NULL;
    }
    images *m = load_images(e, directory != NULL ? directory : folder, part);
    if (m == NULL) {
        return NULL;
    }
    shoal_dataset *set = shoal_dataset_create(&(shoal_dataset_type){.name = e->name,
                                                                    .length = shoal_tensor_size(m->pixels, 0),
                                                                    .x_dtype = SHOAL_F32,
                                                                    .y_dtype = SHOAL_I64,
                                                                    .x_ndim = 3,
                                                                    .x_shape = {1, SIDE, SIDE},
                                                                    .fetch = images_fetch,
                                                                    .destroy = images_destroy,
                                                                    .pack = images_pack,
                                                                    .open = images_open},
                                              m);
    if (set != NULL) {
        set->labels = images_labels;
    } else {
        images_destroy(m);
    }
    return set;
}

shoal_dataset *shoal_mnist(shoal_part part)
{
    return open_images(&sh_catalog[SH_MNIST], NULL, part);
}

shoal_dataset *shoal_mnist_at(const char *directory, shoal_part part)
{
    return open_images(&sh_catalog[SH_MNIST], directory, part);
}

shoal_dataset *shoal_fashion_mnist(shoal_part part)
{
    return open_images(&sh_catalog[SH_FASHION_MNIST], NULL, part);
}

shoal_dataset *shoal_fashion_mnist_at(const char *directory, shoal_part part)
{
    return open_images(&sh_catalog[SH_FASHION_MNIST], directory, part);
}
