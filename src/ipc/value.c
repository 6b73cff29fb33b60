#include "ipc/value.h"

#include "base/error.h"
#include "shm/block.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

/* Up to this many keys are compared one by one, which is faster than keeping the tree. Above that the tree bounds the
 * cost of a search, even if a hostile sender chose the keys, as it could for a hash table. */
#define LINEAR_KEYS 16

sh_value_calls sh_value_kinds[SHOAL_KIND_MODULE + 1];

/* Text */

/* Returns the length of the UTF-8 sequence at text, where `left` bytes are left, or 0 if it is not valid (RFC 3629: no
 * overlong forms, no surrogates). */
static size_t utf8_length(const char *text, size_t left)
{
    const uint8_t *p = (const uint8_t *)text;
    uint8_t lowest = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    uint8_t highest = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
    size_t length = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    if (length > left || (length > 1 && (p[1] < lowest || p[1] > highest))) {
        return 0;
    }
    for (size_t i = 2; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return length;
}

size_t sh_value_text_valid(const char *text, size_t size)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    const uint64_t tops = ones << 7;
    size_t i = 0;
    while (i < size) {
        uint64_t word = 0;
        if (size - i >= sizeof word) {
            memcpy(&word, text + i, sizeof word);
            if (((word | (word - ones)) & tops) == 0) { /* eight bytes, each from 1 to 127 */
                i += sizeof word;
                continue;
            }
        }
        if (text[i] > 0 && (uint8_t)text[i] < 0x80) {
            i++;
            continue;
        }
        size_t length = text[i] == 0 ? 0 : utf8_length(text + i, size - i);
        if (length == 0) {
            return i;
        }
        i += length;
    }
    return size;
}

/* Constructors */

static shoal_value *node_create(shoal_type type, size_t tail)
{
    shoal_value *value = tail <= SIZE_MAX / 2 ? malloc(sizeof *value + tail) : NULL;
    if (value == NULL) {
        (void)sh_fail(SHOAL_ENOMEM, "no memory for a %s of %zu bytes", sh_type_name(type), tail);
        return NULL;
    }
    *value = (shoal_value){.type = (uint8_t)type, .depth = type == SHOAL_TYPE_LIST || type == SHOAL_TYPE_MAP};
    return value;
}

shoal_value *sh_value_text(shoal_type type, const void *bytes, size_t size)
{
    shoal_value *value = node_create(type, size + 1 > size ? size + 1 : size);
    if (value != NULL) {
        value->size = size;
        if (size > 0) {
            memcpy(value->text, bytes, size);
        }
        value->text[size] = 0;
    }
    return value;
}

shoal_value *shoal_value_null(void)
{
    return node_create(SHOAL_TYPE_NULL, 0);
}

shoal_value *shoal_value_bool(bool b)
{
    shoal_value *value = node_create(SHOAL_TYPE_BOOL, 0);
    if (value != NULL) {
        value->as.boolean = b;
    }
    return value;
}

shoal_value *shoal_value_int(int64_t i)
{
    shoal_value *value = node_create(SHOAL_TYPE_INT, 0);
    if (value != NULL) {
        value->as.integer = i;
    }
    return value;
}

shoal_value *shoal_value_uint(uint64_t u)
{
    if (u <= INT64_MAX) {
        return shoal_value_int((int64_t)u);
    }
    shoal_value *value = node_create(SHOAL_TYPE_UINT, 0);
    if (value != NULL) {
        value->as.natural = u;
    }
    return value;
}

shoal_value *shoal_value_float(double d)
{
    shoal_value *value = node_create(SHOAL_TYPE_FLOAT, 0);
    if (value != NULL) {
        value->as.number = d;
    }
    return value;
}

shoal_value *shoal_value_string(const char *text)
{
    SH_GIVEN_OR_NULL(text);
    if (text == NULL) {
        (void)sh_fail(SHOAL_EINVAL, "the text of a string value is NULL");
        return NULL;
    }
    size_t size = strlen(text);
    size_t valid = sh_value_text_valid(text, size);
    if (valid < size) {
        (void)sh_fail(SHOAL_EINVAL, "a string of %zu bytes is not UTF-8 at byte %zu", size, valid);
        return NULL;
    }
    return sh_value_text(SHOAL_TYPE_STRING, text, size);
}

shoal_value *shoal_value_bytes(const void *bytes, size_t size)
{
    if (size > 0 && !bytes) {
        return sh_not_given(__func__, "bytes");
    }
    if (bytes == NULL && size > 0) {
        (void)sh_fail(SHOAL_EINVAL, "a value of %zu bytes, but the pointer to them is NULL", size);
        return NULL;
    }
    return sh_value_text(SHOAL_TYPE_BYTES, bytes, size);
}

shoal_value *shoal_value_foreign(uint32_t tag, const void *bytes, size_t size)
{
    if (size > 0 && !bytes) {
        return sh_not_given(__func__, "bytes");
    }
    if (bytes == NULL && size > 0) {
        (void)sh_fail(SHOAL_EINVAL, "a foreign value of %zu bytes, but the pointer to them is NULL", size);
        return NULL;
    }
    shoal_value *value = sh_value_text(SHOAL_TYPE_FOREIGN, bytes, size);
    if (value != NULL) {
        value->as.natural = tag;
    }
    return value;
}

shoal_value *shoal_value_packed(const void *bytes, size_t size)
{
    if (bytes == NULL || size == 0) {
        return sh_not_given(__func__, "bytes");
    }
    shoal_value *value = sh_value_text(SHOAL_TYPE_FOREIGN, bytes, size);
    if (value != NULL) {
        value->kind = SH_PACKED;
    }
    return value;
}

const void *shoal_value_as_packed(const shoal_value *value, size_t *out_size)
{
    if (value == NULL || value->type != SHOAL_TYPE_FOREIGN || value->kind != SH_PACKED || out_size == NULL) {
        return NULL;
    }
    *out_size = value->size;
    return value->text;
}

shoal_value *sh_value_take_object(shoal_block *block)
{
    if (sh_block_require(block, block->kind, "an object value") != SHOAL_OK) { /* after a fork, or in another world */
        return NULL;
    }
    shoal_kind kind = sh_block_kind(block);
    if (kind == SHOAL_KIND_NONE) {
        (void)sh_fail(SHOAL_EINVAL, "an object of this kind cannot be sent");
        return NULL;
    }
    shoal_value *value = node_create(SHOAL_TYPE_OBJECT, 0);
    if (value != NULL) {
        value->kind = (uint8_t)kind;
        value->as.object = block;
    }
    return value;
}

shoal_value *sh_value_object(shoal_block *block)
{
    shoal_value *value = sh_value_take_object(block);
    if (value != NULL) {
        sh_block_retain(block);
    }
    return value;
}

static shoal_value *value_of_handle(void *handle, shoal_kind shared, sh_kind kind, const char *call)
{
    const sh_value_calls *calls = &sh_value_kinds[shared];
    shoal_block *object = handle;
    if (calls->describe == NULL) {
        return sh_block_require(object, kind, call) == SHOAL_OK ? sh_value_object(object) : NULL;
    }
    if (calls->describe(handle, call, &object) != SHOAL_OK) {
        return NULL;
    }
    shoal_value *value = sh_value_take_object(object);
    if (value == NULL) {
        sh_block_release(object);
    }
    return value;
}

/* The handle comes from the caller: NULL means that an earlier call failed. */
#define OBJECT_VALUE(type, shared, kind)                                                                               \
    shoal_value *shoal_value_##type(shoal_##type *type)                                                                \
    {                                                                                                                  \
        SH_NEED_OR_NULL(type);                                                                                         \
        return value_of_handle(type, SHOAL_KIND_##shared, SH_KIND_##kind, __func__);                                   \
    }
SH_VALUE_OBJECTS(OBJECT_VALUE)

static sh_a64 *attachment_of(shoal_value *value)
{
    return value->type == SHOAL_TYPE_MAP ? &value->as.map->attached : &value->attached;
}

void *sh_value_attach(const shoal_value *value, void *made)
{
    /* Pairs with the acquire of its readers: what it points to is complete. */
    uint64_t first = 0;
    if (made == NULL || sh_cas_acq_rel(attachment_of((shoal_value *)(uintptr_t)value), &first, (uintptr_t)made)) {
        return made;
    }
    sh_value_kinds[value->kind].drop(made);
    return (void *)(uintptr_t)first;
}

void *sh_value_attached(const shoal_value *value)
{
    return (void *)(uintptr_t)sh_load_acquire(attachment_of((shoal_value *)(uintptr_t)value));
}

shoal_value *shoal_value_list(void)
{
    return node_create(SHOAL_TYPE_LIST, 0);
}

shoal_value *shoal_value_map(void)
{
    return node_create(SHOAL_TYPE_MAP, 0);
}

/* Containers */

shoal_err sh_value_reserve(shoal_value *container, uint32_t count)
{
    if (count <= container->capacity) {
        return SHOAL_OK;
    }
    bool list = container->type == SHOAL_TYPE_LIST;
    size_t bytes = list ? count * sizeof(shoal_value *) : sizeof(sh_map) + count * sizeof(sh_value_pair);
    void *room = realloc(list ? (void *)container->as.items : (void *)container->as.map, bytes);
    if (room == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a %s of %u members", sh_type_name(container->type), count);
    }
    if (list) {
        container->as.items = room;
    } else {
        bool first = container->as.map == NULL;
        container->as.map = room;
        if (first) {
            container->as.map->index = NULL;
            sh_store_relaxed(&container->as.map->attached, 0);
        }
    }
    container->capacity = count;
    return SHOAL_OK;
}

static shoal_err make_room(shoal_value *container)
{
    if (container->size < container->capacity) {
        return SHOAL_OK;
    }
    if (container->capacity == UINT32_MAX) {
        return sh_fail(SHOAL_ELIMIT, "a %s of more than %u members", sh_type_name(container->type), UINT32_MAX);
    }
    uint32_t twice = container->capacity <= UINT32_MAX / 2 ? container->capacity * 2 : UINT32_MAX;
    return sh_value_reserve(container, twice < 4 ? 4 : twice);
}

shoal_err sh_value_check_free(const shoal_value *value)
{
    return value == NULL || value->owner != SH_OWNER_CONTAINER
               ? SHOAL_OK
               : sh_fail(SHOAL_EINVAL, "the %s is a member of a container, which owns it: pass a copy of it",
                         sh_type_name(value->type));
}

static void destroy(shoal_value *value);

static shoal_err deepen(shoal_value *container, const shoal_value *member)
{
    if (member->depth >= SHOAL_VALUE_DEPTH) {
        return sh_fail(SHOAL_EINVAL, "a value nested deeper than %d", SHOAL_VALUE_DEPTH);
    }
    if (container->depth <= member->depth) {
        container->depth = (uint8_t)(member->depth + 1);
    }
    return SHOAL_OK;
}

shoal_err sh_list_append(shoal_value *list, shoal_value *member)
{
    shoal_err err = deepen(list, member);
    if (err == SHOAL_OK) {
        err = make_room(list);
    }
    if (err != SHOAL_OK) {
        shoal_value_destroy(member);
        return err;
    }
    member->owner = SH_OWNER_CONTAINER;
    list->as.items[list->size++] = member;
    return SHOAL_OK;
}

static int compare_texts(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Keys hold no NUL, so the tree can hold their texts. The position is in the node, before the text. */
sh_value_pair *sh_map_find(const shoal_value *map, const char *key, size_t key_size)
{
    if (map->size > LINEAR_KEYS) {
        char *const *node = tfind(key, &map->as.map->index, compare_texts);
        if (node == NULL) {
            return NULL;
        }
        const shoal_value *found = (const shoal_value *)(const void *)(*node - offsetof(shoal_value, text));
        return &map->as.map->pairs[found->as.position];
    }
    for (size_t i = 0; i < map->size; i++) {
        const shoal_value *other = map->as.map->pairs[i].key;
        if (other->size == key_size && memcmp(other->text, key, key_size) == 0) {
            return &map->as.map->pairs[i];
        }
    }
    return NULL;
}

/* Adds a key that the map does not have. Takes nothing if it fails. */
static shoal_err map_append(shoal_value *map, shoal_value *key, shoal_value *member)
{
    SH_TRY(make_room(map));
    size_t count = map->size + 1;
    map->as.map->pairs[map->size] = (sh_value_pair){.key = key, .value = member};
    key->as.position = map->size;
    size_t first = count == LINEAR_KEYS + 1 ? 0 : map->size;
    for (size_t i = first; count > LINEAR_KEYS && i < count; i++) {
        if (tsearch(map->as.map->pairs[i].key->text, &map->as.map->index, compare_texts) == NULL) {
            return sh_fail(SHOAL_ENOMEM, "no memory for the index of a map of %zu members", count);
        }
    }
    key->owner = SH_OWNER_CONTAINER;
    member->owner = SH_OWNER_CONTAINER;
    map->size = count;
    return SHOAL_OK;
}

shoal_err sh_map_put(shoal_value *map, shoal_value *key, shoal_value *member)
{
    sh_value_pair *pair = NULL;
    shoal_err err = deepen(map, member);
    if (err == SHOAL_OK) {
        pair = sh_map_find(map, key->text, key->size);
        err = pair == NULL ? map_append(map, key, member) : SHOAL_OK;
    }
    if (err != SHOAL_OK) {
        shoal_value_destroy(member);
        shoal_value_destroy(key);
        return err;
    }
    if (pair != NULL) {
        destroy(pair->value);
        shoal_value_destroy(key);
        pair->value = member;
        member->owner = SH_OWNER_CONTAINER;
    }
    return SHOAL_OK;
}

static bool is_member(const shoal_value *value)
{
    return value->owner == SH_OWNER_CONTAINER;
}

/* Checks that member may go into container. If not, consumes both. A NULL comes from a failed call, so that call's
 * error stays the last one. */
static bool may_join(shoal_value *container, shoal_type type, const char *key, shoal_value *member)
{
    bool good = false;
    if (container == NULL || member == NULL) {
        (void)sh_null_in(type == SHOAL_TYPE_LIST ? "shoal_list_add" : "shoal_map_set", container != NULL ? "member"
                                                                                       : type == SHOAL_TYPE_LIST
                                                                                           ? "list"
                                                                                           : "map");
    } else if (key == NULL) {
        (void)sh_not_given("shoal_map_set", "key");
    } else if (container->type != type) {
        (void)sh_fail(SHOAL_ETYPE, "expected %s, but the value is %s", sh_type_name(type),
                      sh_type_name(container->type));
    } else if (is_member(container) || is_member(member) || container == member) {
        (void)sh_fail(SHOAL_EINVAL, "the %s is already a member of a container",
                      sh_type_name(is_member(container) ? container->type : member->type));
    } else {
        good = true;
    }
    if (!good) {
        bool end_container =
            container != NULL && !is_member(container); /* checked first: the member may own the container */
        if (member != container) {
            sh_value_consume(member);
        }
        if (end_container) {
            sh_value_consume(container);
        }
    }
    return good;
}

/* Returns what goes into a container: the value itself, or a copy of it if it is kept. */
static shoal_value *as_member(shoal_value *value)
{
    return value->owner == SH_OWNER_PROGRAM ? shoal_value_copy(value) : value;
}

shoal_value *shoal_list_add(shoal_value *list, shoal_value *member)
{
    if (!may_join(list, SHOAL_TYPE_LIST, "", member)) {
        return NULL;
    }
    shoal_value *own = as_member(member);
    if (own == NULL || sh_list_append(list, own) != SHOAL_OK) {
        sh_value_consume(list);
        return NULL;
    }
    return list;
}

shoal_value *shoal_map_set(shoal_value *map, const char *key, shoal_value *member)
{
    if (!may_join(map, SHOAL_TYPE_MAP, key, member)) {
        return NULL;
    }
    shoal_value *name = shoal_value_string(key);
    shoal_value *own = as_member(member);
    if (name == NULL || own == NULL) {
        sh_value_consume(own);
        sh_value_consume(name);
        sh_value_consume(map);
        return NULL;
    }
    if (sh_map_put(map, name, own) != SHOAL_OK) {
        sh_value_consume(map);
        return NULL;
    }
    return map;
}

static void keep_text(void *text)
{
    (void)text; /* the tree borrows the texts of the keys */
}

static void drop_attachment(shoal_value *value)
{
    void *made = sh_value_attached(value);
    if (made != NULL) {
        sh_cleanup_begin();
        sh_value_kinds[value->kind].drop(made);
        sh_cleanup_end();
    }
}

/* Recurses no deeper than SHOAL_VALUE_DEPTH, as do copy, equal and format. */
static void destroy(shoal_value *value)
{
    if (value->type == SHOAL_TYPE_LIST) {
        for (size_t i = 0; i < value->size; i++) {
            destroy(value->as.items[i]);
        }
        free(value->as.items);
    } else if (value->type == SHOAL_TYPE_MAP && value->as.map != NULL) {
        drop_attachment(value);
        tdestroy(value->as.map->index, keep_text);
        for (size_t i = 0; i < value->size; i++) {
            free(value->as.map->pairs[i].key);
            destroy(value->as.map->pairs[i].value);
        }
        free(value->as.map);
    } else if (value->type == SHOAL_TYPE_OBJECT) {
        drop_attachment(value);
        sh_block_release(value->as.object);
    }
    free(value);
}

void shoal_value_destroy(shoal_value *value)
{
    if (value != NULL && value->owner != SH_OWNER_CONTAINER) {
        destroy(value);
    }
}

void sh_value_consume(shoal_value *value)
{
    if (value != NULL && value->owner == SH_OWNER_CALLER) {
        destroy(value);
    }
}

shoal_value *shoal_value_keep(shoal_value *value)
{
    SH_NEED_OR_NULL(value);
    if (value == NULL || sh_value_check_free(value) != SHOAL_OK) {
        return NULL;
    }
    value->owner = SH_OWNER_PROGRAM;
    return value;
}

static bool copy_members(const shoal_value *from, shoal_value *to)
{
    if (sh_value_reserve(to, (uint32_t)from->size) != SHOAL_OK) {
        return false;
    }
    for (size_t i = 0; i < from->size; i++) {
        shoal_value *member = shoal_value_copy(shoal_value_at(from, i));
        if (member == NULL) {
            return false;
        }
        if (from->type == SHOAL_TYPE_LIST) {
            if (sh_list_append(to, member) != SHOAL_OK) {
                return false;
            }
            continue;
        }
        const shoal_value *key = from->as.map->pairs[i].key;
        shoal_value *name = sh_value_text(SHOAL_TYPE_STRING, key->text, key->size);
        if (name == NULL || deepen(to, member) != SHOAL_OK || map_append(to, name, member) != SHOAL_OK) {
            shoal_value_destroy(name);
            shoal_value_destroy(member);
            return false;
        }
    }
    return true;
}

shoal_value *shoal_value_copy(const shoal_value *value)
{
    SH_NEED_OR_NULL(value);
    if (value->type == SHOAL_TYPE_STRING || value->type == SHOAL_TYPE_BYTES) {
        return sh_value_text(value->type, value->text, value->size);
    }
    if (value->type == SHOAL_TYPE_FOREIGN && value->kind == SH_PACKED) {
        return shoal_value_packed(value->text, value->size);
    }
    if (value->type == SHOAL_TYPE_FOREIGN) {
        return shoal_value_foreign((uint32_t)value->as.natural, value->text, value->size);
    }
    if (value->type == SHOAL_TYPE_OBJECT) {
        return sh_value_object(value->as.object);
    }
    shoal_value *copy = node_create(value->type, 0);
    if (copy != NULL && value->depth == 0) {
        copy->as = value->as;
    } else if (copy != NULL && !copy_members(value, copy)) {
        shoal_value_destroy(copy);
        copy = NULL;
    }
    return copy;
}

static bool equal_maps(const shoal_value *a, const shoal_value *b)
{
    for (size_t i = 0; i < a->size; i++) {
        const sh_value_pair *mine = &a->as.map->pairs[i];
        const sh_value_pair *other = &b->as.map->pairs[i];
        if (strcmp(mine->key->text, other->key->text) != 0) { /* usually the order is the same too */
            other = sh_map_find(b, mine->key->text, mine->key->size);
        }
        if (other == NULL || !shoal_value_equal(mine->value, other->value)) {
            return false;
        }
    }
    return true;
}

bool shoal_value_equal(const shoal_value *a, const shoal_value *b)
{
    if (a == b) {
        return true;
    }
    if (a == NULL || b == NULL || a->type != b->type || (a->type != SHOAL_TYPE_OBJECT && a->size != b->size)) {
        return false; /* an object has no size: that field holds its attachment */
    }
    switch ((shoal_type)a->type) {
    case SHOAL_TYPE_NULL: return true;
    case SHOAL_TYPE_BOOL: return a->as.boolean == b->as.boolean;
    case SHOAL_TYPE_INT:
    case SHOAL_TYPE_UINT:
    case SHOAL_TYPE_FLOAT: return a->as.integer == b->as.integer; /* for a float: its bits */
    case SHOAL_TYPE_STRING:
    case SHOAL_TYPE_BYTES: return memcmp(a->text, b->text, a->size) == 0;
    case SHOAL_TYPE_FOREIGN: return a->as.natural == b->as.natural && memcmp(a->text, b->text, a->size) == 0;
    case SHOAL_TYPE_OBJECT: return shoal_block_id(a->as.object) == shoal_block_id(b->as.object);
    case SHOAL_TYPE_MAP: return equal_maps(a, b);
    case SHOAL_TYPE_LIST: break;
    }
    for (size_t i = 0; i < a->size; i++) {
        if (!shoal_value_equal(a->as.items[i], b->as.items[i])) {
            return false;
        }
    }
    return true;
}
