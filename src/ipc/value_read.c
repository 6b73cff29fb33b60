/* Reading a value: by type, by member, and as text for people. */
#include "base/error.h"
#include "base/writer.h"
#include "ipc/value.h"
#include "shm/kind.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *sh_type_name(uint8_t type)
{
    static const char *const names[] = {
        [SHOAL_TYPE_NULL] = "null",   [SHOAL_TYPE_BOOL] = "bool",       [SHOAL_TYPE_INT] = "int",
        [SHOAL_TYPE_UINT] = "uint",   [SHOAL_TYPE_FLOAT] = "float",     [SHOAL_TYPE_STRING] = "string",
        [SHOAL_TYPE_BYTES] = "bytes", [SHOAL_TYPE_FOREIGN] = "foreign", [SHOAL_TYPE_LIST] = "list",
        [SHOAL_TYPE_MAP] = "map",     [SHOAL_TYPE_OBJECT] = "object",
    };
    return type < sizeof names / sizeof names[0] ? names[type] : "unknown";
}

/* Returns what the value is, in a word; for an object its kind. */
static const char *name_of(const shoal_value *value)
{
    return value->type == SHOAL_TYPE_OBJECT ? sh_kind_shared_name((shoal_kind)value->kind) : sh_type_name(value->type);
}

void *sh_value_wrong(const shoal_value *value, const char *wanted, const char *call)
{
    if (value == NULL) {
        return sh_null_in(call, "the value");
    }
    (void)sh_fail(SHOAL_ETYPE, "expected %s, but the value is %s", wanted, name_of(value));
    return NULL;
}

static bool is(const shoal_value *value, shoal_type type, const char *call)
{
    return (value != NULL && value->type == type) || sh_value_wrong(value, sh_type_name(type), call) != NULL;
}

shoal_type shoal_value_type(const shoal_value *value)
{
    return value != NULL ? (shoal_type)value->type : SHOAL_TYPE_NULL;
}

/* Fails for a number that does not fit the wanted type. The text has the number and that type. */
static shoal_err refuse_number(const shoal_value *value, const char *wanted, const char *call)
{
    if (value == NULL) {
        return sh_null_error(call, "the value");
    }
    switch ((shoal_type)value->type) {
    case SHOAL_TYPE_INT:
        return sh_fail(SHOAL_ETYPE, "expected %s, but the value is int %" PRId64, wanted, value->as.integer);
    case SHOAL_TYPE_UINT:
        return sh_fail(SHOAL_ETYPE, "expected %s, but the value is uint %" PRIu64, wanted, value->as.natural);
    case SHOAL_TYPE_FLOAT:
        return sh_fail(SHOAL_ETYPE, "expected %s, but the value is float %.17g", wanted, value->as.number);
    default: return sh_fail(SHOAL_ETYPE, "expected %s, but the value is %s", wanted, name_of(value));
    }
}

shoal_err shoal_value_as_bool(const shoal_value *value, bool *out_bool)
{
    SH_NEED(out_bool);
    if (value == NULL || value->type != SHOAL_TYPE_BOOL) {
        return refuse_number(value, "bool", "shoal_value_as_bool");
    }
    *out_bool = value->as.boolean;
    return SHOAL_OK;
}

shoal_err shoal_value_as_int(const shoal_value *value, int64_t *out_int)
{
    SH_NEED(out_int);
    if (value != NULL && value->type == SHOAL_TYPE_INT) {
        *out_int = value->as.integer;
        return SHOAL_OK;
    }
    double d = value != NULL && value->type == SHOAL_TYPE_FLOAT ? value->as.number : NAN;
    if (d >= -0x1p63 && d < 0x1p63 && (double)(int64_t)d == d) {
        *out_int = (int64_t)d;
        return SHOAL_OK;
    }
    return refuse_number(value, "int", "shoal_value_as_int");
}

shoal_err shoal_value_as_uint(const shoal_value *value, uint64_t *out_uint)
{
    SH_NEED(out_uint);
    if (value != NULL &&
        (value->type == SHOAL_TYPE_UINT || (value->type == SHOAL_TYPE_INT && value->as.integer >= 0))) {
        *out_uint = value->as.natural;
        return SHOAL_OK;
    }
    double d = value != NULL && value->type == SHOAL_TYPE_FLOAT ? value->as.number : NAN;
    if (d >= 0 && d < 0x1p64 && (double)(uint64_t)d == d) {
        *out_uint = (uint64_t)d;
        return SHOAL_OK;
    }
    return refuse_number(value, "uint", "shoal_value_as_uint");
}

shoal_err shoal_value_as_float(const shoal_value *value, double *out_float)
{
    SH_NEED(out_float);
    if (value == NULL) {
        return refuse_number(value, "float", "shoal_value_as_float");
    }
    double d = value->type == SHOAL_TYPE_INT    ? (double)value->as.integer
               : value->type == SHOAL_TYPE_UINT ? (double)value->as.natural
                                                : value->as.number;
    bool same = value->type == SHOAL_TYPE_FLOAT ||
                (value->type == SHOAL_TYPE_INT && d < 0x1p63 && (int64_t)d == value->as.integer) ||
                (value->type == SHOAL_TYPE_UINT && d < 0x1p64 && (uint64_t)d == value->as.natural);
    if (!same) {
        return refuse_number(value, "float", "shoal_value_as_float");
    }
    *out_float = d;
    return SHOAL_OK;
}

const char *shoal_value_as_string(const shoal_value *value)
{
    return is(value, SHOAL_TYPE_STRING, "shoal_value_as_string") ? value->text : NULL;
}

const void *shoal_value_as_bytes(const shoal_value *value, size_t *out_size)
{
    bool good = is(value, SHOAL_TYPE_BYTES, "shoal_value_as_bytes");
    if (out_size != NULL) {
        *out_size = good ? value->size : 0;
    }
    return good ? value->text : NULL;
}

const void *shoal_value_as_foreign(const shoal_value *value, uint32_t *out_tag, size_t *out_size)
{
    bool good = is(value, SHOAL_TYPE_FOREIGN, "shoal_value_as_foreign");
    if (out_tag != NULL) {
        *out_tag = good ? (uint32_t)value->as.natural : 0;
    }
    if (out_size != NULL) {
        *out_size = good ? value->size : 0;
    }
    return good ? value->text : NULL;
}

shoal_kind shoal_value_object_kind(const shoal_value *value)
{
    return value != NULL && value->type == SHOAL_TYPE_OBJECT ? (shoal_kind)value->kind : SHOAL_KIND_NONE;
}

void *sh_value_read_object(const shoal_value *value, shoal_kind kind, const char *call)
{
    if (value == NULL || value->type != SHOAL_TYPE_OBJECT || value->kind != kind) {
        return sh_value_wrong(value, sh_kind_shared_name(kind), call);
    }
    const sh_value_calls *calls = &sh_value_kinds[kind];
    shoal_block *object = value->as.object;
    if (calls->open == NULL) {
        return object;
    }
    void *made = sh_block_is_lost(object) ? NULL : sh_value_attached(value);
    if (made != NULL) {
        return made;
    }
    return sh_block_require(object, object->kind, call) == SHOAL_OK ? sh_value_attach(value, calls->open(object))
                                                                    : NULL;
}

#define OBJECT_READER(type, shared, kind)                                                                              \
    shoal_##type *shoal_value_as_##type(const shoal_value *value)                                                      \
    {                                                                                                                  \
        return sh_value_read_object(value, SHOAL_KIND_##shared, __func__);                                             \
    }
SH_VALUE_OBJECTS(OBJECT_READER)

static bool is_container(const shoal_value *value)
{
    return value != NULL && (value->type == SHOAL_TYPE_MAP || value->type == SHOAL_TYPE_LIST);
}

static bool has_member(const shoal_value *container, size_t i)
{
    if (i >= container->size) {
        (void)sh_fail(SHOAL_EINVAL, "there is no member %zu in a %s of %zu members", i, sh_type_name(container->type),
                      container->size);
        return false;
    }
    return true;
}

size_t shoal_value_count(const shoal_value *value)
{
    return is_container(value) ? value->size : 0;
}

const shoal_value *shoal_value_at(const shoal_value *value, size_t i)
{
    if (!is_container(value)) {
        return sh_value_wrong(value, "list or map", "shoal_value_at");
    }
    if (!has_member(value, i)) {
        return NULL;
    }
    return value->type == SHOAL_TYPE_LIST ? value->as.items[i] : value->as.map->pairs[i].value;
}

const char *shoal_value_key_at(const shoal_value *map, size_t i)
{
    return is(map, SHOAL_TYPE_MAP, "shoal_value_key_at") && has_member(map, i) ? map->as.map->pairs[i].key->text : NULL;
}

const shoal_value *shoal_value_find(const shoal_value *map, const char *key)
{
    SH_GIVEN_OR_NULL(key);
    if (!is(map, SHOAL_TYPE_MAP, "shoal_value_find")) {
        return NULL;
    }
    const sh_value_pair *pair = key != NULL ? sh_map_find(map, key, strlen(key)) : NULL;
    if (pair == NULL) {
        (void)sh_fail(SHOAL_ENOENT, "no key \"%s\" in a map of %zu members", key != NULL ? key : "", map->size);
        return NULL;
    }
    return pair->value;
}

/* Text for people */

static void write_quoted(sh_writer *w, const shoal_value *string)
{
    static const char escapes[128] = {['"'] = '"', ['\\'] = '\\', ['\n'] = 'n', ['\r'] = 'r', ['\t'] = 't'};
    sh_writer_put(w, "\"");
    size_t start = 0;
    for (size_t i = 0; i < string->size; i++) {
        uint8_t c = (uint8_t)string->text[i];
        bool escaped = c < sizeof escapes && escapes[c] != 0;
        if (!escaped && c >= 0x20 && c != 0x7f) {
            continue;
        }
        char text[8];
        (void)snprintf(text, sizeof text, escaped ? "\\%c" : "\\u%04x", escaped ? escapes[c] : c);
        sh_writer_put_bytes(w, string->text + start, i - start);
        sh_writer_put(w, text);
        start = i + 1;
    }
    sh_writer_put_bytes(w, string->text + start, string->size - start);
    sh_writer_put(w, "\"");
}

/* Writes the shortest digits that read back as the same number, always in a form that cannot be taken for an int. */
static void write_float(sh_writer *w, double d)
{
    if (!isfinite(d)) {
        sh_writer_put(w, isnan(d) ? "nan" : d > 0 ? "inf" : "-inf");
        return;
    }
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, d);
        if (strtod(text, NULL) == d) {
            break;
        }
    }
    char *comma = strchr(text, ','); /* the program's locale may use a comma */
    if (comma != NULL) {
        *comma = '.';
    }
    sh_writer_put(w, text);
    if (strpbrk(text, ".e") == NULL) {
        sh_writer_put(w, ".0");
    }
}

static void write_value(sh_writer *w, const shoal_value *value)
{
    char text[64];
    switch ((shoal_type)value->type) {
    case SHOAL_TYPE_NULL: sh_writer_put(w, "null"); break;
    case SHOAL_TYPE_BOOL: sh_writer_put(w, value->as.boolean ? "true" : "false"); break;
    case SHOAL_TYPE_FLOAT: write_float(w, value->as.number); break;
    case SHOAL_TYPE_STRING: write_quoted(w, value); break;
    case SHOAL_TYPE_INT:
        (void)snprintf(text, sizeof text, "%" PRId64, value->as.integer);
        sh_writer_put(w, text);
        break;
    case SHOAL_TYPE_UINT:
        (void)snprintf(text, sizeof text, "%" PRIu64, value->as.natural);
        sh_writer_put(w, text);
        break;
    case SHOAL_TYPE_BYTES:
        (void)snprintf(text, sizeof text, "<%zu byte%s>", value->size, value->size == 1 ? "" : "s");
        sh_writer_put(w, text);
        break;
    case SHOAL_TYPE_FOREIGN:
        (void)snprintf(text, sizeof text, "<foreign %" PRIu64 ", %zu byte%s>", value->as.natural, value->size,
                       value->size == 1 ? "" : "s");
        sh_writer_put(w, text);
        break;
    case SHOAL_TYPE_OBJECT:
        (void)snprintf(text, sizeof text, "<%s %" PRIu64 ">", sh_kind_shared_name((shoal_kind)value->kind),
                       shoal_block_id(value->as.object));
        sh_writer_put(w, text);
        break;
    case SHOAL_TYPE_LIST:
    case SHOAL_TYPE_MAP:
        sh_writer_put(w, value->type == SHOAL_TYPE_LIST ? "[" : "{");
        for (size_t i = 0; i < value->size; i++) {
            sh_writer_put(w, i == 0 ? "" : ", ");
            if (value->type == SHOAL_TYPE_MAP) {
                write_quoted(w, value->as.map->pairs[i].key);
                sh_writer_put(w, ": ");
            }
            write_value(w, shoal_value_at(value, i));
        }
        sh_writer_put(w, value->type == SHOAL_TYPE_LIST ? "]" : "}");
        break;
    }
}

size_t shoal_value_format(const shoal_value *value, char *buffer, size_t capacity)
{
    if (capacity > 0 && !buffer) {
        return 0;
    }
    sh_writer w = {.buffer = buffer, .capacity = capacity};
    if (value != NULL) {
        write_value(&w, value);
    }
    return sh_writer_end(&w);
}
