#include "ipc/value_codec.h"

#include "base/error.h"
#include "ipc/value.h"
#include "shm/block.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

#define MSGPACK_EMBED_STACK_SIZE SHOAL_VALUE_DEPTH
#include <msgpack.h>
#include <msgpack/unpack_define.h>

/* Encoding */

/* One object in the tree of those that the value has named so far. */
typedef struct seen {
    const shoal_block *object;
    uint32_t index;
} seen;

static int compare_seen(const void *a, const void *b)
{
    uintptr_t left = (uintptr_t)((const seen *)a)->object;
    uintptr_t right = (uintptr_t)((const seen *)b)->object;
    return (left > right) - (left < right);
}

/* The packer's write callback. Fails only if there is no memory. */
static int append_bytes(void *encoding, const char *bytes, size_t size)
{
    sh_encoding *e = encoding;
    if (size > e->capacity - e->size) {
        if (size > SIZE_MAX / 4 - e->size) {
            return -1;
        }
        size_t wanted = e->size + size;
        size_t capacity = wanted > e->capacity * 2 ? wanted : e->capacity * 2;
        uint8_t *room = realloc(e->bytes == e->small_bytes ? NULL : e->bytes, capacity);
        if (room == NULL) {
            return -1;
        }
        if (e->bytes == e->small_bytes) {
            memcpy(room, e->small_bytes, e->size);
        }
        e->bytes = room;
        e->capacity = capacity;
    }
    if (size > 0) {
        memcpy(e->bytes + e->size, bytes, size);
    }
    e->size += size;
    return 0;
}

static shoal_err remember(sh_encoding *e, size_t index)
{
    seen *entry = malloc(sizeof *entry);
    if (entry != NULL) {
        *entry = (seen){.object = e->objects[index], .index = (uint32_t)index};
        if (tsearch(entry, &e->object_index, compare_seen) != NULL) {
            return SHOAL_OK;
        }
    }
    free(entry);
    return sh_fail(SHOAL_ENOMEM, "no memory for a message of %zu shared objects", index + 1);
}

/* Finds an object that is already in the array: a few with a linear search, more in the tree. */
static bool find_object(const sh_encoding *e, const shoal_block *object, uint32_t *out_index)
{
    if (e->object_count > SH_ENCODING_OBJECTS) {
        seen probe = {.object = object};
        seen *const *node = tfind(&probe, &e->object_index, compare_seen);
        *out_index = node != NULL ? (*node)->index : 0;
        return node != NULL;
    }
    for (size_t i = 0; i < e->object_count; i++) {
        if (e->objects[i] == object) {
            *out_index = (uint32_t)i;
            return true;
        }
    }
    return false;
}

static shoal_err add_object(sh_encoding *e, const shoal_value *value, uint32_t *out_index)
{
    shoal_block *object = value->as.object;
    if (sh_block_is_lost(object)) {
        return sh_block_require(object, object->kind, "a value with an object");
    }
    if (find_object(e, object, out_index)) {
        return SHOAL_OK;
    }
    SH_TRY(sh_value_before_put(value));
    if (e->object_count == e->object_capacity) {
        if (e->object_count > UINT32_MAX / 2) {
            return sh_fail(SHOAL_ELIMIT, "a message can hold at most %zu shared objects", e->object_count);
        }
        size_t capacity = e->object_capacity * 2;
        bool small = e->objects == e->small_objects;
        shoal_block **room = realloc(small ? NULL : e->objects, capacity * sizeof(shoal_block *));
        if (room == NULL) {
            return sh_fail(SHOAL_ENOMEM, "no memory for a message of %zu shared objects", e->object_count);
        }
        if (small) {
            memcpy(room, e->small_objects, sizeof e->small_objects);
        }
        e->objects = room;
        e->object_capacity = capacity;
    }
    size_t index = e->object_count++;
    e->objects[index] = object;
    *out_index = (uint32_t)index;
    size_t first = index == SH_ENCODING_OBJECTS ? 0 : index;
    for (size_t i = first; index >= SH_ENCODING_OBJECTS && i <= index; i++) {
        SH_TRY(remember(e, i));
    }
    return SHOAL_OK;
}

static shoal_err pack_object(msgpack_packer *packer, sh_encoding *e, const shoal_value *value, int *out_failed)
{
    uint32_t index = 0;
    SH_TRY(add_object(e, value, &index));
    uint8_t body[SH_EXT_OBJECT_SIZE] = {value->kind, (uint8_t)index, (uint8_t)(index >> 8), (uint8_t)(index >> 16),
                                        (uint8_t)(index >> 24)};
    *out_failed = msgpack_pack_ext_with_body(packer, body, sizeof body, SH_EXT_OBJECT);
    return SHOAL_OK;
}

static shoal_err pack_foreign(msgpack_packer *packer, const shoal_value *value, int *out_failed)
{
    uint64_t tag = value->as.natural;
    const uint8_t head[SH_EXT_FOREIGN_HEAD] = {(uint8_t)tag, (uint8_t)(tag >> 8), (uint8_t)(tag >> 16),
                                               (uint8_t)(tag >> 24)};
    if (value->size > UINT32_MAX - 16) { /* the decoder counts the bytes with type and tag in 32 bits */
        return sh_fail(SHOAL_ELIMIT, "a foreign value of %zu bytes is too large for a message", value->size);
    }
    *out_failed = msgpack_pack_ext(packer, value->size + sizeof head, SH_EXT_FOREIGN) != 0 ||
                  msgpack_pack_ext_body(packer, head, sizeof head) != 0 ||
                  msgpack_pack_ext_body(packer, value->text, value->size) != 0;
    return SHOAL_OK;
}

/* Recurses no deeper than SHOAL_VALUE_DEPTH: no value is nested deeper. */
static shoal_err pack_value(msgpack_packer *packer, sh_encoding *e, const shoal_value *value)
{
    shoal_err err = SHOAL_OK;
    int failed = 0;
    if (value->type != SHOAL_TYPE_OBJECT && value->size > UINT32_MAX) {
        return sh_fail(SHOAL_ELIMIT, "a %s of %zu bytes is too large for a message: the limit is 4 GiB",
                       sh_type_name(value->type), value->size);
    }
    switch ((shoal_type)value->type) {
    case SHOAL_TYPE_NULL: failed = msgpack_pack_nil(packer); break;
    case SHOAL_TYPE_BOOL: failed = value->as.boolean ? msgpack_pack_true(packer) : msgpack_pack_false(packer); break;
    case SHOAL_TYPE_INT: failed = msgpack_pack_int64(packer, value->as.integer); break;
    case SHOAL_TYPE_UINT: failed = msgpack_pack_uint64(packer, value->as.natural); break;
    case SHOAL_TYPE_FLOAT: failed = msgpack_pack_double(packer, value->as.number); break;
    case SHOAL_TYPE_STRING: failed = msgpack_pack_str_with_body(packer, value->text, value->size); break;
    case SHOAL_TYPE_BYTES: failed = msgpack_pack_bin_with_body(packer, value->text, value->size); break;
    case SHOAL_TYPE_FOREIGN:
        if (value->kind == SH_PACKED) {
            failed = append_bytes(e, value->text, value->size);
        } else {
            err = pack_foreign(packer, value, &failed);
        }
        break;
    case SHOAL_TYPE_OBJECT: err = pack_object(packer, e, value, &failed); break;
    case SHOAL_TYPE_LIST:
        failed = msgpack_pack_array(packer, value->size);
        for (size_t i = 0; i < value->size && failed == 0 && err == SHOAL_OK; i++) {
            err = pack_value(packer, e, value->as.items[i]);
        }
        break;
    case SHOAL_TYPE_MAP:
        failed = msgpack_pack_map(packer, value->size);
        for (size_t i = 0; i < value->size && failed == 0 && err == SHOAL_OK; i++) {
            const sh_value_pair *pair = &value->as.map->pairs[i];
            err = pack_value(packer, e, pair->key);
            if (err == SHOAL_OK) {
                err = pack_value(packer, e, pair->value);
            }
        }
        break;
    }
    SH_TRY(err);
    if (failed != 0) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a message of more than %zu bytes", e->size);
    }
    return SHOAL_OK;
}

shoal_err sh_encoding_init(sh_encoding *e, const shoal_value *value)
{
    if (value == NULL) {
        return sh_null_error("a message", "the value");
    }
    e->bytes = e->small_bytes;
    e->size = 0;
    e->capacity = sizeof e->small_bytes;
    e->objects = e->small_objects;
    e->object_count = 0;
    e->object_capacity = SH_ENCODING_OBJECTS;
    e->object_index = NULL;
    if (value->type == SHOAL_TYPE_FOREIGN && value->kind == SH_PACKED) {
        e->bytes = (uint8_t *)(uintptr_t)value->text;
        e->size = value->size;
        e->capacity = 0; /* borrowed */
        return SHOAL_OK;
    }
    msgpack_packer packer;
    msgpack_packer_init(&packer, e, append_bytes);
    shoal_err err = pack_value(&packer, e, value);
    if (err != SHOAL_OK) {
        sh_encoding_fini(e);
    }
    return err;
}

void sh_encoding_fini(sh_encoding *e)
{
    if (e->bytes != e->small_bytes && e->capacity > 0) {
        free(e->bytes);
    }
    if (e->objects != e->small_objects) {
        free(e->objects);
    }
    tdestroy(e->object_index, free);
    e->bytes = NULL;
    e->objects = NULL;
    e->object_index = NULL;
}

/* Decoding
 *
 * msgpack_unpack_next is not safe for hostile bytes: it allocates for as many members as a header claims, and its
 * depth limit is 32. But msgpack-c also installs its parser as a template that takes callbacks. Here it builds our
 * values directly, and each callback checks before it allocates. The template reads a header byte more than once, so
 * it must never run over shared memory. */

typedef struct decoder {
    shoal_block *const *objects;
    size_t object_count;
    size_t members; /* that containers may still claim: each takes a byte, so there are no more than there are bytes */
    shoal_err err;  /* of a callback; reason says why */
    const char *reason;
    size_t where; /* the byte that is wrong, if it is not where the parser stopped */
    bool where_known;
    bool key_gone; /* a failed on_map_item has destroyed the key that the parser still holds */
} decoder;

static int refuse(decoder *d, const char *reason)
{
    d->err = SHOAL_ECORRUPT;
    d->reason = reason;
    return MSGPACK_UNPACK_PARSE_ERROR;
}

/* Passes on what a constructor returned: NULL if there was no memory, with the error set. */
static int deliver(decoder *d, shoal_value *value, shoal_value **out_value)
{
    if (value == NULL) {
        d->err = shoal_last_error();
        return MSGPACK_UNPACK_PARSE_ERROR;
    }
    *out_value = value;
    return 0;
}

static shoal_value *on_root(decoder *d)
{
    (void)d;
    return NULL;
}

static int on_nil(decoder *d, shoal_value **out_value)
{
    return deliver(d, shoal_value_null(), out_value);
}

static int on_true(decoder *d, shoal_value **out_value)
{
    return deliver(d, shoal_value_bool(true), out_value);
}

static int on_false(decoder *d, shoal_value **out_value)
{
    return deliver(d, shoal_value_bool(false), out_value);
}

static int on_int64(decoder *d, int64_t i, shoal_value **out_value)
{
    return deliver(d, shoal_value_int(i), out_value);
}

static int on_uint64(decoder *d, uint64_t i, shoal_value **out_value)
{
    return deliver(d, shoal_value_uint(i), out_value);
}

#define on_uint8 on_int64
#define on_uint16 on_int64
#define on_uint32 on_int64
#define on_int8 on_int64
#define on_int16 on_int64
#define on_int32 on_int64

static int on_double(decoder *d, double number, shoal_value **out_value)
{
    return deliver(d, shoal_value_float(number), out_value);
}

#define on_float on_double

static int on_str(decoder *d, const char *base, const char *text, unsigned size, shoal_value **out_value)
{
    size_t valid = size > 0 ? sh_value_text_valid(text, size) : 0; /* the template sets text only if size > 0 */
    if (valid < size) {
        d->where = (size_t)(text - base) + valid;
        d->where_known = true;
        return refuse(d, text[valid] == 0 ? "a NUL in a string" : "a string that is not UTF-8");
    }
    return deliver(d, sh_value_text(SHOAL_TYPE_STRING, text, size), out_value);
}

static int on_bin(decoder *d, const char *base, const char *bytes, unsigned size, shoal_value **out_value)
{
    (void)base;
    return deliver(d, sh_value_text(SHOAL_TYPE_BYTES, bytes, size), out_value);
}

/* The type comes before the body and is counted in size, which is 0 for a claimed 4 GiB: the template lets it
 * overflow. */
static int on_ext(decoder *d, const char *base, const char *body, unsigned size, shoal_value **out_value)
{
    (void)base;
    if (size >= 1 + SH_EXT_FOREIGN_HEAD && body[0] == SH_EXT_FOREIGN) {
        const uint8_t *h = (const uint8_t *)body + 1;
        uint32_t tag = (uint32_t)h[0] | (uint32_t)h[1] << 8 | (uint32_t)h[2] << 16 | (uint32_t)h[3] << 24;
        return deliver(d, shoal_value_foreign(tag, body + 1 + SH_EXT_FOREIGN_HEAD, size - 1 - SH_EXT_FOREIGN_HEAD),
                       out_value);
    }
    if (size != 1 + SH_EXT_OBJECT_SIZE || body[0] != SH_EXT_OBJECT) {
        return refuse(d, "an unknown extension");
    }
    const uint8_t *b = (const uint8_t *)body + 1;
    uint32_t index = (uint32_t)b[1] | (uint32_t)b[2] << 8 | (uint32_t)b[3] << 16 | (uint32_t)b[4] << 24;
    if (index >= d->object_count || d->objects[index] == NULL) {
        return refuse(d, "an index without a shared object");
    }
    if (b[0] == SHOAL_KIND_NONE || b[0] != sh_block_kind(d->objects[index])) {
        return refuse(d, "a shared object of another kind");
    }
    return deliver(d, sh_value_object(d->objects[index]), out_value);
}

static int start_container(decoder *d, shoal_value *container, uint32_t count, size_t members, shoal_value **out_value)
{
    if (container == NULL || sh_value_reserve(container, count) != SHOAL_OK) {
        shoal_value_destroy(container);
        return deliver(d, NULL, out_value);
    }
    d->members -= members;
    return deliver(d, container, out_value);
}

static int on_array(decoder *d, uint32_t count, shoal_value **out_value)
{
    if (count > d->members) {
        return refuse(d, "a list with more members than bytes are left");
    }
    return start_container(d, shoal_value_list(), count, count, out_value);
}

static int on_map(decoder *d, uint32_t count, shoal_value **out_value)
{
    if (count > d->members / 2) {
        return refuse(d, "a map with more members than bytes are left");
    }
    return start_container(d, shoal_value_map(), count, (size_t)count * 2, out_value);
}

static int on_array_item(decoder *d, shoal_value **list, shoal_value *member)
{
    d->err = sh_list_append(*list, member);
    return d->err == SHOAL_OK ? 0 : MSGPACK_UNPACK_PARSE_ERROR;
}

static int on_map_item(decoder *d, shoal_value **map, shoal_value *key, shoal_value *member)
{
    if (key->type != SHOAL_TYPE_STRING) {
        shoal_value_destroy(member);
        return refuse(d, "a key that is not a string");
    }
    d->err = sh_map_put(*map, key, member);
    d->key_gone = d->err != SHOAL_OK;
    return d->key_gone ? MSGPACK_UNPACK_PARSE_ERROR : 0;
}

#define msgpack_unpack_struct(name) struct parser##name
#define msgpack_unpack_func(ret, name) static ret parser##name
#define msgpack_unpack_callback(name) on##name
#define msgpack_unpack_object shoal_value *
#define msgpack_unpack_user decoder
#include <msgpack/unpack_template.h>

/* Destroys what a failed parse has begun: the open containers, and a key that has no value yet. */
static void abandon(struct parser_context *parser)
{
    for (unsigned i = 0; i < parser->top; i++) {
        bool gone = parser->user.key_gone && i == parser->top - 1;
        if (parser->stack[i].ct == MSGPACK_CT_MAP_VALUE && !gone) {
            shoal_value_destroy(parser->stack[i].map_key);
        }
        shoal_value_destroy(parser->stack[i].obj);
    }
}

static shoal_err decode_private(const char *bytes, size_t size, shoal_block *const *objects, size_t object_count,
                                shoal_value **out_value)
{
    struct parser_context parser;
    parser_init(&parser);
    parser.user = (decoder){.objects = objects, .object_count = object_count, .members = size - 1};
    size_t stop = 0;
    int result = parser_execute(&parser, bytes, size, &stop);
    if (result > 0 && stop == size) {
        *out_value = parser_data(&parser);
        return SHOAL_OK;
    }
    if (result > 0) {
        shoal_value_destroy(parser_data(&parser));
    } else {
        abandon(&parser);
    }
    const decoder *d = &parser.user;
    if (d->err != SHOAL_OK && d->err != SHOAL_ECORRUPT) {
        return d->err;
    }
    const char *reason = d->reason;
    if (reason == NULL) {
        reason = result > 0                             ? "extra bytes after the value"
                 : result == 0                          ? "truncated"
                 : result == MSGPACK_UNPACK_NOMEM_ERROR ? "a value nested too deep" /* the template's stack is full */
                                                        : "a byte that no value starts with";
    }
    return sh_fail(SHOAL_ECORRUPT, "message of %zu bytes: %s, at byte %zu", size, reason,
                   d->where_known ? d->where : stop);
}

shoal_err sh_value_decode(const void *bytes, size_t size, shoal_block *const *objects, size_t object_count,
                          shoal_value **out_value)
{
    if (size == 0) {
        return sh_fail(SHOAL_ECORRUPT, "message of 0 bytes: truncated, at byte 0");
    }
    char small[1024];
    char *copy = size <= sizeof small ? small : malloc(size);
    if (copy == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a message of %zu bytes", size);
    }
    memcpy(copy, bytes, size);
    shoal_err err = decode_private(copy, size, objects, object_count, out_value);
    if (copy != small) {
        free(copy);
    }
    return err;
}
