/* Messages in the heap: creating, writing and reading them. */
#include "ipc/message.h"

#include "ipc/message_write.h"
#include "shm/handle.h"

#include <stdlib.h>
#include <string.h>

static sh_message_shm *message_of(const shoal_block *message)
{
    return (sh_message_shm *)message->data;
}

/* Returns where the bytes of a message begin, after checking its head against its block: a message may come from
 * anybody. */
static const char *bytes_of(const shoal_block *message, uint64_t *out_count, uint64_t *out_size)
{
    if (message->kind != SH_KIND_MESSAGE || message->size < sizeof(sh_message_shm)) {
        return NULL;
    }
    uint64_t count = (uint32_t)sh_load_relaxed(&message_of(message)->count),
             size = sh_load_relaxed(&message_of(message)->size);
    uint64_t room = message->size - sizeof(sh_message_shm);
    if (count > room / 8 || size > room - count * 8) {
        return NULL;
    }
    *out_count = count;
    *out_size = size;
    return message->data + sizeof(sh_message_shm) + count * 8;
}

shoal_err sh_message_new(sh_ctx *c, uint64_t count, uint64_t size, bool raw, shoal_block **out_message)
{
    uint64_t total;
    shoal_block *b;
    if (count > UINT32_MAX || __builtin_add_overflow(sizeof(sh_message_shm) + count * 8, size, &total)) {
        return sh_fail(SHOAL_EINVAL, "a message of %llu objects and %llu bytes is too large", (unsigned long long)count,
                       (unsigned long long)size);
    }
    SH_TRY(sh_block_new(c, sh_class_of(total <= SH_SIZE_MAX ? total : 0), total, &b));
    memset(b->data, 0, sizeof(sh_message_shm) + count * 8);
    sh_store_relaxed(&message_of(b)->count, count | (raw ? SH_MESSAGE_RAW : 0));
    sh_store_relaxed(&message_of(b)->size, size);
    sh_heap_set_kind(b->id, SH_KIND_MESSAGE); /* its references are zeros at this point */
    b->kind = SH_KIND_MESSAGE;
    *out_message = b;
    return SHOAL_OK;
}

char *sh_message_room(const shoal_block *message, uint64_t count)
{
    return message->data + sizeof(sh_message_shm) + count * 8;
}

shoal_err sh_message_refer(sh_ctx *c, const shoal_block *message, shoal_block *const *objects, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        SH_TRY(sh_block_give(c, objects[i], sh_offset_of(&message_of(message)->references[i])));
    }
    return SHOAL_OK;
}

void sh_message_bring(const shoal_block *message, shoal_block *const *objects, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += objects[i]->kind == SH_KIND_DATA && sh_block_can_move(objects[i]) ? objects[i]->size : 0;
    }
    sh_store_relaxed(&message_of(message)->count, sh_load_relaxed(&message_of(message)->count) | (bytes / 4096) << 33);
}

shoal_err sh_message_make(sh_ctx *c, const sh_encoding *encoding, shoal_block **out_message)
{
    shoal_block *b;
    SH_TRY(sh_message_new(c, encoding->object_count, encoding->size, false, &b));
    memcpy(sh_message_room(b, encoding->object_count), encoding->bytes, encoding->size);
    shoal_err err = sh_message_refer(c, b, encoding->objects, encoding->object_count);
    if (err != SHOAL_OK) {
        sh_block_unref(c, b);
        return err;
    }
    *out_message = b;
    return SHOAL_OK;
}

/* Opens a handle for the object that a reference word of the message names. The word is loaded once: whoever may write
 * the message may change it at any time. */
static shoal_err open_object(sh_ctx *c, const shoal_block *message, size_t n, bool move, shoal_block **out_object)
{
    uint64_t word = sh_offset_of(&message_of(message)->references[n]), value;
    sh_ref ref = sh_load_acquire((sh_a64 *)sh_at(word));
    shoal_block *b = NULL;
    if (sh_ref_weight(ref) == 0) {
        return sh_fail(SHOAL_ECORRUPT, "message %llu lacks an object", (unsigned long long)message->id);
    }
    SH_TRY(move ? sh_block_expect(c, ref, &b, &value) : sh_block_open(c, sh_ref_id(ref), &b));
    if (move) {
        sh_heap_move(c, word, b->cell, value);
        sh_block_arrived(b);
    }
    *out_object = b; /* the caller puts it back if the next step fails */
    return sh_block_own_given(c, b);
}

void sh_message_objects_drop(sh_ctx *c, shoal_block **objects, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        sh_block_unref(c, objects[i]);
    }
    free(objects);
}

shoal_err sh_message_objects(sh_ctx *c, const shoal_block *message, bool move, shoal_block ***out_objects,
                             size_t *out_count)
{
    uint64_t count, size;
    if (bytes_of(message, &count, &size) == NULL) {
        return sh_fail(SHOAL_ECORRUPT, "message %llu does not fit into its block", (unsigned long long)message->id);
    }
    shoal_block **objects = count > 0 ? calloc(count, sizeof(shoal_block *)) : NULL;
    if (objects == NULL && count > 0) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %llu objects", (unsigned long long)count);
    }
    shoal_err err = SHOAL_OK;
    size_t n = 0;
    while (n < count && err == SHOAL_OK) {
        err = open_object(c, message, n, move, &objects[n]);
        n += objects[n] != NULL;
    }
    if (err != SHOAL_OK) {
        /* Puts back what was moved, so that the message can be read again. */
        shoal_err back = move ? sh_message_refer(c, message, objects, n) : SHOAL_OK;
        sh_message_objects_drop(c, objects, n);
        return back == SHOAL_OK ? err : back;
    }
    *out_objects = objects;
    *out_count = count;
    return SHOAL_OK;
}

static shoal_err decode(const shoal_block *message, shoal_block **objects, size_t count, shoal_value **out_value)
{
    uint64_t now, size;
    const char *bytes = bytes_of(message, &now, &size);
    if (bytes == NULL || now != count) {
        return sh_fail(SHOAL_ECORRUPT, "message %llu does not fit into its block", (unsigned long long)message->id);
    }
    if ((sh_load_relaxed(&message_of(message)->count) & SH_MESSAGE_RAW) != 0) {
        *out_value = shoal_value_bytes(bytes, size);
        return *out_value != NULL ? SHOAL_OK : shoal_last_error();
    }
    return sh_value_decode(bytes, size, objects, count, out_value);
}

shoal_err sh_message_read(sh_ctx *c, const shoal_block *message, bool keep, shoal_value **out_value)
{
    shoal_block **objects;
    size_t count;
    SH_TRY(sh_message_objects(c, message, !keep, &objects, &count));
    shoal_err err = decode(message, objects, count, out_value);
    sh_message_objects_drop(c, objects, count);
    return err;
}

shoal_err sh_message_value(const shoal_block *message, bool move, shoal_value **out_value)
{
    shoal_block **objects = NULL;
    size_t count = 0;
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    move = move && sh_block_is_sole_holder(message);
    shoal_err err = sh_message_objects(c, message, move, &objects, &count);
    sh_leave();
    SH_TRY(err);
    err = decode(message, objects, count, out_value);
    if (err == SHOAL_ENOMEM && move && count > 0 && (c = sh_enter_held()) != NULL) {
        err = sh_message_refer(c, message, objects, count) == SHOAL_OK ? SHOAL_ENOMEM : shoal_last_error();
        sh_leave();
    }
    for (size_t i = 0; i < count; i++) {
        sh_block_release(objects[i]);
    }
    free(objects);
    return err;
}

shoal_err sh_message_read_at(sh_ctx *c, uint64_t reference, bool keep, shoal_value **out_value)
{
    sh_ref ref = sh_load_acquire((sh_a64 *)sh_at(reference));
    sh_found f;
    if (ref == 0) {
        *out_value = shoal_value_null();
        return *out_value != NULL ? SHOAL_OK : shoal_last_error();
    }
    if (!sh_heap_find(sh_ref_id(ref), &f) || f.kind != SH_KIND_MESSAGE) {
        return sh_fail(SHOAL_ECORRUPT, "block %llu is not a message", (unsigned long long)sh_ref_id(ref));
    }
    /* Not a handle: only the message, as the reference word names it. */
    shoal_block message = {.id = sh_ref_id(ref), .size = f.size, .data = f.data, .kind = f.kind};
    return sh_message_read(c, &message, keep, out_value);
}

void sh_message_store(sh_ctx *c, shoal_block *message, uint64_t reference)
{
    if (sh_load_relaxed((sh_a64 *)sh_at(reference)) != 0) {
        sh_heap_release(c, reference);
    }
    sh_heap_split(c, message->cell, reference, sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(message->cell))));
    sh_block_unref(c, message);
}

shoal_err sh_message_read_packed(const shoal_block *message, shoal_value **out_value)
{
    uint64_t count, size;
    const char *bytes = bytes_of(message, &count, &size);
    *out_value = NULL;
    if (bytes != NULL && sh_load_relaxed(&message_of(message)->count) != 0) { /* shared objects, or raw bytes */
        return SHOAL_OK;
    }
    if (bytes == NULL || size == 0) {
        return sh_fail(SHOAL_ECORRUPT, "message %llu does not fit into its block", (unsigned long long)message->id);
    }
    *out_value = shoal_value_packed(bytes, size);
    return *out_value != NULL ? SHOAL_OK : shoal_last_error();
}

const void *sh_message_bytes(const shoal_block *message, size_t *out_size)
{
    uint64_t count, size;
    const char *bytes = bytes_of(message, &count, &size);
    if (bytes == NULL || (sh_load_relaxed(&message_of(message)->count) & SH_MESSAGE_RAW) == 0) {
        return NULL;
    }
    *out_size = size;
    return bytes;
}
