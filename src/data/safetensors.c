/* Reads and writes safetensors: eight bytes with the length of a JSON object; the object, which has the dtype, the
 * shape and the offsets of each tensor; the bytes, little-endian, without overlap and without holes.
 *
 *     {"__metadata__": {"epoch": "3"}, "fc.weight": {"dtype": "F32", "shape": [10, 50], "data_offsets": [0, 2000]}, …}
 *
 * Jansson reads and writes the JSON. */
#include "data/source.h"

#include "base/error.h"
#include "data/tensors.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MOST UINT64_C(100000000) /* the format's limit */
#define LENGTH 8
#define METADATA "__metadata__"

/* In the order of the reference writer: wide ones first, so that all are aligned. */
static const struct {
    const char *name;
    shoal_dtype dtype;
} types[] = {
    {"I64", SHOAL_I64},   {"F64", SHOAL_F64}, {"F32", SHOAL_F32}, {"I32", SHOAL_I32},
    {"BF16", SHOAL_BF16}, {"F16", SHOAL_F16}, {"U8", SHOAL_U8},   {"BOOL", SHOAL_B8},
};
#define TYPES (sizeof types / sizeof *types)

static const char *const foreign_types[] = {"I8",  "I16",     "U16",     "U32",     "U64",
                                            "C64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4"};

static size_t rank_of(shoal_dtype dtype)
{
    size_t i = 0;
    while (types[i].dtype != dtype) {
        i++;
    }
    return i;
}

/* ---- reading ---- */

typedef struct entry {
    const char *name; /* borrowed from the header */
    shoal_dtype dtype;
    int ndim;
    int64_t shape[SHOAL_MAX_DIMS];
    uint64_t begin, end;
} entry;

typedef struct reader {
    sh_source *source;
    char *text; /* the header, as in the file */
    size_t length;
    json_t *header;
    entry *entries;
    size_t count;
    shoal_tensors *set;
} reader;

/* Returns the position of the key in the file, or of the header if the key is written with escapes. */
static uint64_t byte_of(const reader *r, const char *key)
{
    size_t length = strlen(key);
    const char *end = r->text + r->length;
    for (const char *p = r->text; (p = memchr(p, '"', (size_t)(end - p))) != NULL; p++) {
        if ((size_t)(end - p) > length + 1 && p[length + 1] == '"' && memcmp(p + 1, key, length) == 0) {
            return LENGTH + (uint64_t)(p - r->text);
        }
    }
    return LENGTH;
}

#define entry_fail(r, err, name, ...) sh_source_fail((r)->source, err, byte_of(r, name), __VA_ARGS__)

static shoal_err read_dtype(const reader *r, const char *name, const json_t *dtype, shoal_dtype *out_dtype)
{
    const char *text = json_string_value(dtype);
    if (text == NULL) {
        return entry_fail(r, SHOAL_ECORRUPT, name, "tensor '%.100s' has no dtype", name);
    }
    for (size_t i = 0; i < TYPES; i++) {
        if (strcmp(text, types[i].name) == 0) {
            *out_dtype = types[i].dtype;
            return SHOAL_OK;
        }
    }
    for (size_t i = 0; i < sizeof foreign_types / sizeof *foreign_types; i++) {
        if (strcmp(text, foreign_types[i]) == 0) {
            return entry_fail(r, SHOAL_ETYPE, name, "tensor '%.100s': the dtype %s is not supported", name, text);
        }
    }
    return entry_fail(r, SHOAL_ECORRUPT, name, "tensor '%.100s': '%.30s' is not a dtype", name, text);
}

static shoal_err read_shape(const reader *r, entry *e, const json_t *shape)
{
    if (!json_is_array(shape) || json_array_size(shape) > SHOAL_MAX_DIMS) {
        return entry_fail(r, SHOAL_ECORRUPT, e->name, "tensor '%.100s' has no shape of at most %d sizes", e->name,
                          SHOAL_MAX_DIMS);
    }
    e->ndim = (int)json_array_size(shape);
    for (int d = 0; d < e->ndim; d++) {
        const json_t *size = json_array_get(shape, (size_t)d);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return entry_fail(r, SHOAL_ECORRUPT, e->name, "tensor '%.100s': size %d of its shape is not a whole number",
                              e->name, d);
        }
        e->shape[d] = json_integer_value(size);
    }
    return SHOAL_OK;
}

static shoal_err read_offsets(const reader *r, entry *e, const json_t *offsets)
{
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    uint64_t bytes, room = r->source->size - LENGTH - r->length;
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin)) {
        return entry_fail(r, SHOAL_ECORRUPT, e->name, "tensor '%.100s' has no data_offsets [begin, end]", e->name);
    }
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    if (e->end > room) {
        return entry_fail(r, SHOAL_ECORRUPT, e->name,
                          "tensor '%.100s' ends at byte %" PRIu64 " of the data, which has %" PRIu64 " bytes", e->name,
                          e->end, room);
    }
    if (!sh_bytes_of(e->dtype, e->ndim, e->shape, &bytes) || bytes != e->end - e->begin) {
        return entry_fail(r, SHOAL_ECORRUPT, e->name,
                          "tensor '%.100s': its shape does not match the %" PRIu64 " bytes of its data_offsets",
                          e->name, e->end - e->begin);
    }
    return SHOAL_OK;
}

static shoal_err read_entry(const reader *r, const char *name, const json_t *value, entry *e)
{
    *e = (entry){.name = name};
    if (!json_is_object(value) || json_object_size(value) != 3) {
        return entry_fail(r, SHOAL_ECORRUPT, name, "tensor '%.100s' is not described by dtype, shape and data_offsets",
                          name);
    }
    SH_TRY(read_dtype(r, name, json_object_get(value, "dtype"), &e->dtype));
    SH_TRY(read_shape(r, e, json_object_get(value, "shape")));
    return read_offsets(r, e, json_object_get(value, "data_offsets"));
}

static shoal_err read_metadata(const reader *r, json_t *value)
{
    const char *name;
    json_t *text;
    if (!json_is_object(value)) {
        return entry_fail(r, SHOAL_ECORRUPT, METADATA, METADATA " is not an object");
    }
    json_object_foreach(value, name, text)
    {
        if (!json_is_string(text)) {
            return entry_fail(r, SHOAL_ECORRUPT, name, METADATA ": '%.100s' is not a string", name);
        }
        SH_TRY(shoal_tensors_set_text(r->set, name, json_string_value(text)));
    }
    return SHOAL_OK;
}

/* Reads the length and the text of the header, and parses it. */
static shoal_err read_header(reader *r)
{
    uint8_t b[LENGTH];
    json_error_t wrong;
    SH_TRY(sh_source_read(r->source, b, sizeof b));
    uint64_t length = 0;
    for (int i = LENGTH; i-- > 0;) {
        length = length << 8 | b[i];
    }
    if (length > HEADER_MOST) { /* it is rather the beginning of another kind of file */
        return sh_source_fail(r->source, SHOAL_ECORRUPT, 0,
                              "not a safetensors file: its header would have more than %" PRIu64 " bytes", HEADER_MOST);
    }
    if (length > sh_source_left(r->source)) {
        return sh_source_fail(r->source, SHOAL_ECORRUPT, 0,
                              "a header of %" PRIu64 " bytes, but %" PRIu64 " bytes follow", length,
                              sh_source_left(r->source));
    }
    r->length = (size_t)length;
    r->text = malloc(r->length + 1);
    if (r->text == NULL) {
        return sh_fail(SHOAL_ENOMEM, "%s: no memory for its header of %zu bytes", r->source->name, r->length);
    }
    SH_TRY(sh_source_read(r->source, r->text, r->length));
    if (r->length == 0 || r->text[0] != '{') {
        return sh_source_fail(r->source, SHOAL_ECORRUPT, LENGTH, "the header does not begin with '{'");
    }
    if ((r->header = json_loadb(r->text, r->length, JSON_REJECT_DUPLICATES, &wrong)) == NULL) {
        return json_error_code(&wrong) == json_error_out_of_memory
                   ? sh_fail(SHOAL_ENOMEM, "%s: no memory for its header", r->source->name)
                   : sh_source_fail(r->source, SHOAL_ECORRUPT,
                                    LENGTH + (uint64_t)(wrong.position > 0 ? wrong.position : 0),
                                    "the header is not valid JSON: %s", wrong.text);
    }
    return SHOAL_OK;
}

static int compare_places(const void *left, const void *right)
{
    const entry *a = left, *b = right;
    if (a->begin != b->begin) {
        return a->begin < b->begin ? -1 : 1;
    }
    return a->end != b->end ? (a->end < b->end ? -1 : 1) : strcmp(a->name, b->name);
}

/* Sorts the tensors by position. Checks that each begins where the last one ended, and that the last ends with the
 * file. */
static shoal_err check_places(reader *r)
{
    uint64_t at = 0, data = LENGTH + r->length;
    qsort(r->entries, r->count, sizeof *r->entries, compare_places);
    for (size_t i = 0; i < r->count; i++) {
        const entry *e = &r->entries[i];
        if (e->begin != at) {
            return sh_source_fail(r->source, SHOAL_ECORRUPT, data + e->begin, "tensor '%.100s' %s byte %" PRIu64,
                                  e->name, e->begin < at ? "overlaps another, which ends at" : "leaves a hole from",
                                  data + at);
        }
        at = e->end;
    }
    if (data + at != r->source->size) {
        return sh_source_fail(r->source, SHOAL_ECORRUPT, data + at, "bytes follow after the last tensor");
    }
    return SHOAL_OK;
}

static shoal_err read_entries(reader *r)
{
    const char *name;
    json_t *value;
    r->entries = calloc(json_object_size(r->header) + 1, sizeof *r->entries);
    if (r->entries == NULL) {
        return sh_fail(SHOAL_ENOMEM, "%s: no memory for its header", r->source->name);
    }
    json_object_foreach(r->header, name, value)
    {
        shoal_err err =
            strcmp(name, METADATA) == 0 ? read_metadata(r, value) : read_entry(r, name, value, &r->entries[r->count++]);
        if (err != SHOAL_OK) {
            return err;
        }
    }
    return check_places(r);
}

static shoal_err read_tensors(reader *r)
{
    for (size_t i = 0; i < r->count; i++) {
        const entry *e = &r->entries[i];
        uint64_t first = r->source->at;
        shoal_tensor *t = shoal_empty(e->dtype, e->ndim, e->shape);
        shoal_err err = t != NULL ? sh_source_read(r->source, shoal_tensor_data(t), (size_t)(e->end - e->begin))
                                  : shoal_last_error();
        if (err == SHOAL_OK && e->dtype == SHOAL_B8) {
            err = sh_source_check_bools(r->source, shoal_tensor_data(t), shoal_tensor_count(t), first);
        }
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        sh_swap_bytes(shoal_tensor_data(t), shoal_tensor_count(t), shoal_dtype_size(e->dtype));
#endif
        if (err == SHOAL_OK) {
            err = shoal_tensors_add(r->set, e->name, t);
        }
        shoal_tensor_release(t);
        if (err != SHOAL_OK) {
            return err;
        }
    }
    return SHOAL_OK;
}

shoal_tensors *sh_safetensors_read(sh_source *s)
{
    reader r = {.source = s, .set = shoal_tensors_create()};
    shoal_err err = r.set != NULL ? read_header(&r) : shoal_last_error();
    if (err == SHOAL_OK) {
        err = read_entries(&r);
    }
    if (err == SHOAL_OK) {
        err = read_tensors(&r);
    }
    if (err != SHOAL_OK) {
        shoal_tensors_destroy(r.set);
        r.set = NULL;
    }
    free(r.entries);
    json_decref(r.header);
    free(r.text);
    return r.set;
}

shoal_tensors *shoal_safetensors_read(const char *path)
{
    SH_GIVEN_OR_NULL(path);
    sh_source s;
    shoal_tensors *set = sh_source_open(&s, path) == SHOAL_OK ? sh_safetensors_read(&s) : NULL;
    sh_source_close(&s);
    return set;
}

/* ---- writing ---- */

static int compare_for_writing(const void *left, const void *right)
{
    const sh_named *a = *(sh_named *const *)left, *b = *(sh_named *const *)right;
    size_t rank_a = rank_of(shoal_tensor_dtype(a->tensor)), rank_b = rank_of(shoal_tensor_dtype(b->tensor));
    return rank_a != rank_b ? (rank_a < rank_b ? -1 : 1) : strcmp(a->name, b->name);
}

/* Returns {"dtype": …, "shape": […], "data_offsets": [begin, end]} and advances *at to the end. */
static json_t *describe(const shoal_tensor *t, uint64_t *at)
{
    json_t *shape = json_array();
    uint64_t begin = *at;
    for (int d = 0; d < shoal_tensor_ndim(t); d++) {
        (void)!json_array_append_new(shape, json_integer(shoal_tensor_size(t, d)));
    }
    *at += (uint64_t)shoal_tensor_count(t) * shoal_dtype_size(shoal_tensor_dtype(t));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", types[rank_of(shoal_tensor_dtype(t))].name, "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)*at);
}

/* Returns why the JSON library did not accept a text of the set: it is not UTF-8, or there is no memory. */
static shoal_err text_error(const char *path, const char *what, const char *name, const char *text)
{
    json_t *any = json_string_nocheck(text), *good = any != NULL ? json_string(text) : NULL;
    shoal_err err = any != NULL && good == NULL ? sh_fail(SHOAL_EINVAL, "%s: %s '%s' is not UTF-8", path, what, name)
                                                : sh_fail(SHOAL_ENOMEM, "%s: no memory for its header", path);
    json_decref(any);
    json_decref(good);
    return err;
}

static shoal_err add_text(json_t *texts, const char *path, const sh_named *n)
{
    json_t *text = json_string(n->text);
    if (text == NULL) {
        return text_error(path, "the text", n->name, n->text);
    }
    return json_object_set_new(texts, n->name, text) == 0 ? SHOAL_OK
                                                          : text_error(path, "the name of the text", n->name, n->name);
}

static shoal_err add_tensor(json_t *header, const char *path, const sh_named *n, uint64_t *at)
{
    if (strcmp(n->name, METADATA) == 0) {
        return sh_fail(SHOAL_EINVAL,
                       "%s: a tensor cannot be called '" METADATA "': the format reserves that name for texts", path);
    }
    return json_object_set_new(header, n->name, describe(n->tensor, at)) == 0
               ? SHOAL_OK
               : text_error(path, "the name of the tensor", n->name, n->name);
}

/* Makes the header as JSON. Returns NULL and sets SHOAL_EINVAL if a name is not UTF-8 or is reserved by the format, or
 * SHOAL_ENOMEM. */
static json_t *make_header(const char *path, const shoal_tensors *set, sh_named **sorted)
{
    json_t *header = json_object(), *texts = json_object();
    uint64_t at = 0;
    shoal_err err =
        header != NULL && texts != NULL ? SHOAL_OK : sh_fail(SHOAL_ENOMEM, "%s: no memory for its header", path);
    for (size_t i = 0; err == SHOAL_OK && i < set->texts.count; i++) {
        err = add_text(texts, path, set->texts.items[i]);
    }
    if (err == SHOAL_OK && set->texts.count > 0 && json_object_set(header, METADATA, texts) != 0) {
        err = sh_fail(SHOAL_ENOMEM, "%s: no memory for its header", path);
    }
    for (size_t i = 0; err == SHOAL_OK && i < set->tensors.count; i++) {
        err = add_tensor(header, path, sorted[i], &at);
    }
    json_decref(texts);
    if (err != SHOAL_OK) {
        json_decref(header);
        return NULL;
    }
    return header;
}

/* Writes the length, and the header padded with blanks to eight bytes. */
static shoal_err write_header(sh_atomic_file *file, const json_t *header)
{
    uint8_t b[LENGTH];
    char *text = json_dumps(header, JSON_COMPACT);
    if (text == NULL) {
        return sh_fail(SHOAL_ENOMEM, "%s: no memory for its header", file->path);
    }
    size_t length = strlen(text), whole = (length + LENGTH - 1) / LENGTH * LENGTH;
    for (int i = 0; i < LENGTH; i++) {
        b[i] = (uint8_t)((uint64_t)whole >> 8 * i);
    }
    shoal_err err = whole <= HEADER_MOST ? sh_atomic_file_write(file, b, sizeof b)
                                         : sh_fail(SHOAL_ELIMIT, "%s: a header of %zu bytes: the limit is %" PRIu64,
                                                   file->path, whole, HEADER_MOST);
    if (err == SHOAL_OK) {
        err = sh_atomic_file_write(file, text, length);
    }
    if (err == SHOAL_OK) {
        err = sh_atomic_file_write(file, "        ", whole - length);
    }
    free(text);
    return err;
}

static shoal_err write_file(const char *path, const json_t *header, sh_named **sorted, size_t count)
{
    sh_atomic_file file;
    SH_TRY(sh_atomic_file_begin(&file, path));
    shoal_err err = write_header(&file, header);
    for (size_t i = 0; err == SHOAL_OK && i < count; i++) {
        err = sh_write_elements(&file, sorted[i]->tensor);
    }
    if (err != SHOAL_OK) {
        sh_atomic_file_abort(&file);
        return err;
    }
    return sh_atomic_file_commit(&file);
}

shoal_err shoal_safetensors_write(const char *path, const shoal_tensors *set)
{
    SH_NEED(path);
    SH_NEED(set);
    if (path == NULL || set == NULL) {
        return sh_fail(SHOAL_EINVAL, "shoal_safetensors_write: the %s is NULL",
                       path == NULL ? "path" : "set of tensors");
    }
    sh_named **sorted = calloc(set->tensors.count + 1, sizeof(sh_named *));
    if (sorted == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory to sort %zu tensors", set->tensors.count);
    }
    if (set->tensors.count > 0) {
        memcpy(sorted, set->tensors.items, set->tensors.count * sizeof(sh_named *));
    }
    qsort(sorted, set->tensors.count, sizeof *sorted, compare_for_writing);
    json_t *header = make_header(path, set, sorted);
    shoal_err err = header != NULL ? write_file(path, header, sorted, set->tensors.count) : shoal_last_error();
    json_decref(header);
    free(sorted);
    return err;
}
