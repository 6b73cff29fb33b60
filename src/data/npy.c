/* Reads and writes NPY, the format of NumPy: magic, version, the length of a header, the header, the elements.
 *
 * The header is a Python dict literal with three keys in any order:
 *
 *     {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
 *
 * The scanner accepts only this: strings without escapes, True and False, a tuple of whole numbers. It rejects a list
 * as descr (records). There is no library for this outside of Python. */
#include "data/source.h"

#include "base/error.h"
#include "data/tensors.h"
#include "os/file.h"
#include "tensor/tensor.h"

#include <shoal/file.h>
#include <shoal/ops.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MOST ((size_t)1 << 20) /* NumPy writes about 118 bytes, and accepts at most 10,000 */
#define ALIGN 64

static const char magic[] = "\x93NUMPY";
#define MAGIC (sizeof magic - 1)

typedef struct header {
    shoal_dtype dtype;
    bool swap, fortran;
    int ndim;
    int64_t shape[SHOAL_MAX_DIMS];
} header;

typedef struct scanner {
    const sh_source *source;
    const char *text, *next, *end;
    uint64_t first; /* position of the text in the file */
} scanner;

#define scan_fail(s, ...)                                                                                              \
    sh_source_fail((s)->source, SHOAL_ECORRUPT, (s)->first + (uint64_t)((s)->next - (s)->text), __VA_ARGS__)

static void skip_blanks(scanner *s)
{
    while (s->next < s->end && (*s->next == ' ' || *s->next == '\n' || *s->next == '\t' || *s->next == '\r')) {
        s->next++;
    }
}

static bool accept_char(scanner *s, char c)
{
    skip_blanks(s);
    if (s->next < s->end && *s->next == c) {
        s->next++;
        return true;
    }
    return false;
}

static shoal_err expect(scanner *s, char c)
{
    return accept_char(s, c) ? SHOAL_OK : scan_fail(s, "expected '%c' in the header", c);
}

/* Reads a string in single or double quotes into buffer. A longer one is cut, and then matches nothing. */
static shoal_err scan_string(scanner *s, char *buffer, size_t capacity)
{
    skip_blanks(s);
    char quote = s->next < s->end ? *s->next : 0;
    if (quote != '\'' && quote != '"') {
        return scan_fail(s, "expected a string in the header");
    }
    const char *begin = ++s->next;
    while (s->next < s->end && *s->next != quote && *s->next != '\\' && *s->next != '\n') {
        s->next++;
    }
    if (s->next == s->end || *s->next != quote) {
        return scan_fail(s, "the string in the header does not end");
    }
    snprintf(buffer, capacity, "%.*s", (int)(s->next - begin), begin);
    s->next++;
    return SHOAL_OK;
}

static shoal_err scan_bool(scanner *s, bool *out)
{
    skip_blanks(s);
    size_t left = (size_t)(s->end - s->next);
    *out = left >= 4 && memcmp(s->next, "True", 4) == 0;
    if (!*out && (left < 5 || memcmp(s->next, "False", 5) != 0)) {
        return scan_fail(s, "expected True or False in the header");
    }
    s->next += *out ? 4 : 5;
    return SHOAL_OK;
}

/* Reads a whole number. Python 2 wrote an L after it. */
static shoal_err scan_size(scanner *s, int64_t *out)
{
    int64_t n = 0;
    skip_blanks(s);
    if (s->next == s->end || !isdigit((unsigned char)*s->next)) {
        return scan_fail(s, "expected a size in the header");
    }
    for (; s->next < s->end && isdigit((unsigned char)*s->next); s->next++) {
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_add_overflow(n, *s->next - '0', &n)) {
            return scan_fail(s, "a size of the shape is too large");
        }
    }
    if (s->next < s->end && *s->next == 'L') {
        s->next++;
    }
    *out = n;
    return SHOAL_OK;
}

static shoal_err scan_shape(scanner *s, header *h)
{
    bool more = true; /* a comma came before */
    h->ndim = 0;
    SH_TRY(expect(s, '('));
    while (!accept_char(s, ')')) {
        if (!more) {
            return scan_fail(s, "expected ',' or ')' in the header");
        }
        if (h->ndim == SHOAL_MAX_DIMS) {
            return scan_fail(s, "more than %d dims", SHOAL_MAX_DIMS);
        }
        SH_TRY(scan_size(s, &h->shape[h->ndim++]));
        more = accept_char(s, ',');
    }
    return h->ndim == 1 && !more ? scan_fail(s, "(n) is not a tuple, (n,) is") : SHOAL_OK;
}

static const struct {
    char text[3];
    shoal_dtype dtype;
} types[] = {
    {"f4", SHOAL_F32}, {"f8", SHOAL_F64}, {"f2", SHOAL_F16}, {"i8", SHOAL_I64},
    {"i4", SHOAL_I32}, {"u1", SHOAL_U8},  {"b1", SHOAL_B8},
};
#define TYPES (sizeof types / sizeof *types)

/* The byte order: little, big, native, or irrelevant. */
static const char orders[] = "<>=|";

static shoal_err scan_descr(scanner *s, header *h)
{
    char text[16];
    skip_blanks(s);
    uint64_t at = s->first + (uint64_t)(s->next - s->text);
    if (s->next < s->end && *s->next == '[') {
        return sh_source_fail(s->source, SHOAL_ETYPE, at, "records are not supported");
    }
    SH_TRY(scan_string(s, text, sizeof text));
    for (size_t i = 0; i < TYPES && text[0] != 0 && strchr(orders, text[0]) != NULL; i++) {
        if (strcmp(text + 1, types[i].text) == 0) {
            const bool big_machine = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;
            h->dtype = types[i].dtype;
            h->swap = text[0] == (big_machine ? '<' : '>');
            return SHOAL_OK;
        }
    }
    return sh_source_fail(s->source, SHOAL_ETYPE, at, "elements of type '%s' are not supported", text);
}

enum { DESCR = 1, FORTRAN = 2, SHAPE = 4, ALL = 7 };

static shoal_err scan_member(scanner *s, header *h, unsigned *seen)
{
    static const char *const keys[] = {"descr", "fortran_order", "shape"};
    char key[32];
    const char *at = s->next;
    unsigned bit = 0;
    shoal_err err = scan_string(s, key, sizeof key);
    for (unsigned i = 0; err == SHOAL_OK && i < 3; i++) {
        bit |= strcmp(key, keys[i]) == 0 ? 1u << i : 0;
    }
    if (err == SHOAL_OK && (bit == 0 || (*seen & bit) != 0)) {
        s->next = at;
        return scan_fail(s, "the key '%s' %s", key, bit == 0 ? "is unknown" : "is there twice");
    }
    if (err == SHOAL_OK) {
        *seen |= bit;
        err = expect(s, ':');
    }
    if (err != SHOAL_OK) {
        return err;
    }
    return bit == DESCR ? scan_descr(s, h) : bit == FORTRAN ? scan_bool(s, &h->fortran) : scan_shape(s, h);
}

static shoal_err scan_header(scanner *s, header *h)
{
    unsigned seen = 0;
    bool more = true;
    shoal_err err = expect(s, '{');
    while (err == SHOAL_OK && !accept_char(s, '}')) {
        err = more ? scan_member(s, h, &seen) : scan_fail(s, "expected ',' or '}' in the header");
        more = err == SHOAL_OK && accept_char(s, ',');
    }
    if (err != SHOAL_OK) {
        return err;
    }
    skip_blanks(s);
    if (s->next != s->end) {
        return scan_fail(s, "text follows after the header's '}'");
    }
    return seen == ALL ? SHOAL_OK : scan_fail(s, "descr, fortran_order or shape is missing");
}

/* Reads the length of the header: two bytes in version 1, four in versions 2 and 3. */
static shoal_err read_length(sh_source *s, size_t *out_length)
{
    uint8_t head[MAGIC + 2], length[4] = {0};
    SH_TRY(sh_source_read(s, head, sizeof head));
    if (memcmp(head, magic, MAGIC) != 0) {
        return sh_source_fail(s, SHOAL_ECORRUPT, 0, "not an NPY file: it does not begin with NPY's magic bytes");
    }
    if (head[MAGIC] < 1 || head[MAGIC] > 3 || head[MAGIC + 1] != 0) {
        return sh_source_fail(s, SHOAL_ECORRUPT, MAGIC, "version %d.%d is unknown: 1.0, 2.0 and 3.0 are supported",
                              head[MAGIC], head[MAGIC + 1]);
    }
    SH_TRY(sh_source_read(s, length, head[MAGIC] == 1 ? 2 : 4));
    size_t bytes = (size_t)length[0] | (size_t)length[1] << 8 | (size_t)length[2] << 16 | (size_t)length[3] << 24;
    if (bytes > HEADER_MOST || bytes > sh_source_left(s)) {
        return sh_source_fail(s, SHOAL_ECORRUPT, MAGIC + 2,
                              "a header of %zu bytes, but %llu bytes follow and the limit is %zu", bytes,
                              (unsigned long long)sh_source_left(s), HEADER_MOST);
    }
    *out_length = bytes;
    return SHOAL_OK;
}

static shoal_err read_header(sh_source *s, header *h)
{
    size_t length = 0;
    SH_TRY(read_length(s, &length));
    uint64_t first = s->at;
    char *text = malloc(length + 1);
    if (text == NULL) {
        return sh_fail(SHOAL_ENOMEM, "%s: no memory for its header", s->name);
    }
    shoal_err err = sh_source_read(s, text, length);
    if (err == SHOAL_OK) {
        scanner scan = {.source = s, .text = text, .next = text, .end = text + length, .first = first};
        err = scan_header(&scan, h);
    }
    free(text);
    return err;
}

/* Makes a tensor for a file in column order. That is row order of the reversed shape, so the tensor gets strides to
 * match and no element moves. */
static shoal_tensor *make_fortran(const header *h, sh_maker make)
{
    int64_t turned[SHOAL_MAX_DIMS];
    sh_shape s = {.ndim = h->ndim, .dtype = h->dtype};
    for (int d = 0; d < h->ndim; d++) {
        turned[h->ndim - 1 - d] = h->shape[d];
    }
    shoal_tensor *whole = make(h->dtype, h->ndim, turned);
    for (int d = 0; whole != NULL && d < h->ndim; d++) {
        s.shape[d] = h->shape[d];
        s.strides[d] = whole->strides[h->ndim - 1 - d];
    }
    shoal_tensor *t = whole != NULL ? sh_tensor_over(whole->storage, &s) : NULL;
    shoal_tensor_release(whole);
    return t;
}

shoal_tensor *sh_npy_read(sh_source *s, sh_maker make)
{
    header h = {.ndim = 0};
    uint64_t bytes;
    if (read_header(s, &h) != SHOAL_OK) {
        return NULL;
    }
    uint64_t first = s->at;
    if (!sh_bytes_of(h.dtype, h.ndim, h.shape, &bytes) || bytes != sh_source_left(s)) {
        (void)sh_source_fail(s, SHOAL_ECORRUPT, first, "the shape does not match the %llu bytes that follow",
                             (unsigned long long)sh_source_left(s));
        return NULL;
    }
    shoal_tensor *t = h.fortran ? make_fortran(&h, make) : make(h.dtype, h.ndim, h.shape);
    shoal_err err = t != NULL ? sh_source_read(s, shoal_tensor_data(t), (size_t)bytes) : shoal_last_error();
    if (err == SHOAL_OK && h.swap) {
        sh_swap_bytes(shoal_tensor_data(t), shoal_tensor_count(t), shoal_dtype_size(h.dtype));
    }
    if (err == SHOAL_OK && h.dtype == SHOAL_B8) {
        err = sh_source_check_bools(s, shoal_tensor_data(t), shoal_tensor_count(t), first);
    }
    if (err != SHOAL_OK) {
        shoal_tensor_release(t);
        t = NULL;
    }
    return t;
}

shoal_tensor *shoal_npy_read(const char *path)
{
    SH_GIVEN_OR_NULL(path);
    sh_source s;
    shoal_tensor *t = sh_source_open(&s, path) == SHOAL_OK ? sh_npy_read(&s, shoal_empty) : NULL;
    sh_source_close(&s);
    return t;
}

/* ---- writing ---- */

static const char *descr_of(shoal_dtype dtype)
{
    for (size_t i = 0; i < TYPES; i++) {
        if (types[i].dtype == dtype) {
            return types[i].text;
        }
    }
    return NULL;
}

/* Writes magic, version 1.0, length and header, padded so that the elements are aligned. Returns its length; 0 if there
 * is no room. */
static size_t make_head(char *head, size_t capacity, const shoal_tensor *t)
{
    char shape[SHOAL_MAX_DIMS * 22 + 1] = "";
    size_t used = 0;
    for (int d = 0; d < shoal_tensor_ndim(t); d++) {
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%lld%s", (long long)shoal_tensor_size(t, d),
                                 d + 1 < shoal_tensor_ndim(t) ? ", "
                                 : d == 0                     ? ","
                                                              : "");
    }
    const char *order = shoal_dtype_size(shoal_tensor_dtype(t)) == 1 ? "|"
                        : __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__  ? "<"
                                                                     : ">";
    size_t prefix = MAGIC + 4;
    int text = snprintf(head + prefix, capacity - prefix, "{'descr': '%s%s', 'fortran_order': False, 'shape': (%s), }",
                        order, descr_of(shoal_tensor_dtype(t)), shape);
    size_t whole = (prefix + (size_t)text + 1 + ALIGN - 1) / ALIGN * ALIGN;
    if (text < 0 || whole > capacity) {
        return 0;
    }
    memcpy(head, magic, MAGIC);
    head[MAGIC] = 1;
    head[MAGIC + 1] = 0;
    head[MAGIC + 2] = (char)((whole - prefix) & 0xff);
    head[MAGIC + 3] = (char)((whole - prefix) >> 8);
    memset(head + prefix + text, ' ', whole - prefix - (size_t)text - 1);
    head[whole - 1] = '\n';
    return whole;
}

shoal_err shoal_npy_write(const char *path, shoal_tensor *t)
{
    SH_NEED(path);
    SH_NEED_TENSOR(t);
    char head[512];
    sh_atomic_file file;
    if (t == NULL) {
        return sh_fail(SHOAL_EINVAL, "shoal_npy_write: the tensor for %s is NULL", path != NULL ? path : "a file");
    }
    if (descr_of(shoal_tensor_dtype(t)) == NULL) {
        return sh_fail(SHOAL_ETYPE, "%s: NPY cannot hold elements of type %s", path != NULL ? path : "?",
                       shoal_dtype_name(shoal_tensor_dtype(t)));
    }
    SH_TRY(sh_atomic_file_begin(&file, path));
    size_t length = make_head(head, sizeof head, t);
    SH_INVARIANT(length > 0);
    shoal_err err = sh_atomic_file_write(&file, head, length);
    if (err == SHOAL_OK) {
        err = sh_write_elements(&file, t);
    }
    if (err != SHOAL_OK) {
        sh_atomic_file_abort(&file);
        return err;
    }
    return sh_atomic_file_commit(&file);
}
