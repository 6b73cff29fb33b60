/* A tensor as text, in PyTorch's style: nested brackets, aligned columns, long dims shortened.
 *
 * Makes two passes over the elements that are shown: the first finds their width and style, the second writes them. */
#include "tensor/tensor.h"

#include "base/error.h"
#include "base/writer.h"

#include "kernels/cpu/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHOWN_WHOLE = 1000, /* elements; above that, only the edges of each dim */
    EDGE = 3,
    LINE = 80,
};

typedef enum number_style {
    STYLE_INTEGER, /* 12, True */
    STYLE_WHOLE,   /* 12. */
    STYLE_FIXED,   /* 12.5000 */
    STYLE_POWER,   /* 1.2500e+01 */
} number_style;

typedef struct printer {
    const shoal_tensor *t;
    const char *data; /* the first element, in host memory */
    int64_t strides[SHOAL_MAX_DIMS];
    void *copy; /* what data points into, if it had to be copied */
    bool shortened;
    number_style style;
    int width;

    /* Over the finite elements so far that are not 0. */
    bool fraction;
    double least, greatest;

    sh_writer writer;
} printer;

static void put(printer *p, const char *text)
{
    sh_writer_put(&p->writer, text);
}

static void put_spaces(printer *p, int count)
{
    for (; count > 0; count--) {
        put(p, " ");
    }
}

static double read_float(const printer *p, const char *at)
{
    uint16_t half;
    switch ((shoal_dtype)p->t->dtype) {
    case SHOAL_F32: return *(const float *)(const void *)at;
    case SHOAL_F64: return *(const double *)(const void *)at;
    case SHOAL_BF16: memcpy(&half, at, sizeof half); return sh_bf16_to_float(half);
    case SHOAL_F16: memcpy(&half, at, sizeof half); return sh_f16_to_float(half);
    default: return 0;
    }
}

static long long read_integer(const printer *p, const char *at)
{
    switch ((shoal_dtype)p->t->dtype) {
    case SHOAL_I64: return *(const int64_t *)(const void *)at;
    case SHOAL_I32: return *(const int32_t *)(const void *)at;
    default: return *(const uint8_t *)at;
    }
}

typedef struct word {
    char text[40];
} word;

static const char *number(const printer *p, const char *at, word *w)
{
    if (p->style == STYLE_INTEGER) {
        if (p->t->dtype == SHOAL_B8) {
            return *at ? "True" : "False";
        }
        (void)snprintf(w->text, sizeof w->text, "%lld", read_integer(p, at));
        return w->text;
    }
    double x = read_float(p, at);
    if (!isfinite(x)) {
        return isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
    }
    static const char *const formats[] = {
        [STYLE_WHOLE] = "%.0f.",
        [STYLE_FIXED] = "%.4f",
        [STYLE_POWER] = "%.4e",
    };
    (void)snprintf(w->text, sizeof w->text, formats[p->style], x);
    return w->text;
}

/* ---- the walk ---- */

typedef void (*visit)(printer *p, const char *at);

static bool is_cut(const printer *p, int dim)
{
    return p->shortened && p->t->shape[dim] > 2 * EDGE;
}

static const char *element(const printer *p, const char *at, int dim, int64_t i)
{
    return at + i * p->strides[dim] * (int64_t)shoal_dtype_size(p->t->dtype);
}

/* Visits all elements that are shown, in order. */
static void walk(printer *p, const char *at, int dim, visit one)
{
    if (dim == p->t->ndim) {
        one(p, at);
        return;
    }
    int64_t size = p->t->shape[dim];
    for (int64_t i = 0; i < size; i++) {
        if (is_cut(p, dim) && i == EDGE) {
            i = size - EDGE;
        }
        walk(p, element(p, at, dim, i), dim + 1, one);
    }
}

static void look(printer *p, const char *at)
{
    double x = read_float(p, at);
    double size = fabs(x);
    if (isfinite(x) && x != 0) {
        p->fraction |= x != nearbyint(x);
        p->least = p->least == 0 || size < p->least ? size : p->least;
        p->greatest = size > p->greatest ? size : p->greatest;
    }
}

static void measure(printer *p, const char *at)
{
    word w;
    int width = (int)strlen(number(p, at, &w));
    p->width = width > p->width ? width : p->width;
}

/* Chooses the style as PyTorch does. */
static void choose_style(printer *p)
{
    p->style = STYLE_INTEGER;
    if (shoal_dtype_is_float(p->t->dtype)) {
        walk(p, p->data, 0, look);
        bool wide = p->greatest > 1e8 || (p->least > 0 && p->greatest / p->least > 1000);
        bool power = wide || (p->fraction && p->least < 1e-4);
        p->style = power ? STYLE_POWER : p->fraction ? STYLE_FIXED : STYLE_WHOLE;
    }
    walk(p, p->data, 0, measure);
}

/* ---- writing ---- */

static void put_number(printer *p, const char *at)
{
    word w;
    const char *text = number(p, at, &w);
    put_spaces(p, p->width - (int)strlen(text));
    put(p, text);
}

/* Writes what separates two parts of a dim: numbers continue in the line while there is room; deeper parts start new
 * lines. */
static void put_gap(printer *p, int dim, int64_t place)
{
    int inner = p->t->ndim - 1 - dim;
    put(p, ",");
    int64_t room = (LINE - dim - 1) / (p->width + 2);
    if (inner == 0 && place % (room > 0 ? room : 1) != 0) {
        put(p, " ");
        return;
    }
    for (int i = 0; i < (inner > 0 ? inner : 1); i++) {
        put(p, "\n");
    }
    put_spaces(p, dim + 1);
}

static void put_part(printer *p, const char *at, int dim)
{
    if (dim == p->t->ndim) {
        put_number(p, at);
        return;
    }
    put(p, "[");
    int64_t size = p->t->shape[dim], place = 0;
    for (int64_t i = 0; i < size; i++, place++) {
        if (place > 0) {
            put_gap(p, dim, place);
        }
        if (is_cut(p, dim) && i == EDGE) {
            put(p, "…");
            i = size - EDGE - 1;
        } else {
            put_part(p, element(p, at, dim, i), dim + 1);
        }
    }
    put(p, "]");
}

/* Finds or copies the elements. Returns false if there is no memory for a copy, or this process has left their
 * world. */
static bool begin(printer *p)
{
    const shoal_tensor *t = p->t;
    memcpy(p->strides, t->strides, sizeof p->strides);
    p->data = shoal_tensor_data(t);
    if (t->storage->device->host_readable) {
        return true;
    }
    size_t size = (size_t)t->count * shoal_dtype_size(t->dtype);
    p->copy = malloc(size > 0 ? size : 1);
    int64_t next = 1;
    for (int d = t->ndim; d-- > 0;) {
        p->strides[d] = next;
        next *= t->shape[d];
    }
    p->data = p->copy;
    sh_cleanup_begin(); /* this call cannot fail, and must not change the last error */
    bool is_read = p->copy && shoal_tensor_read(t, p->copy, size) == SHOAL_OK;
    sh_cleanup_end();
    return is_read;
}

size_t shoal_tensor_format(const shoal_tensor *t, char *buffer, size_t capacity)
{
    if (capacity > 0 && !buffer) {
        return 0;
    }
    bool released = t && !sh_tensor_exists(t, __func__);
    t = released ? NULL : t;
    printer p = {.t = t, .writer = {.buffer = buffer, .capacity = capacity}, .shortened = t && t->count > SHOWN_WHOLE};
    if (!t) {
        put(&p, released ? "released" : "NULL");
    } else if (!begin(&p)) {
        put(&p, "?");
    } else if (t->count == 0) {
        put(&p, "[]");
    } else {
        choose_style(&p);
        put_part(&p, p.data, 0);
    }
    if (t && (t->dtype != SHOAL_F32 || t->count == 0)) {
        sh_text text;
        put(&p, ", ");
        put(&p, sh_tensor_text(&text, t));
    }
    if (t && t->storage->device->kind != SHOAL_CPU) {
        put(&p, ", ");
        put(&p, t->storage->device->name);
    }
    free(p.copy);
    return sh_writer_end(&p.writer);
}
