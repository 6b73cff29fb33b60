/* The public calls on handles, and the checks that every kind of object makes of its handle. */
#include "base/log.h"

#include "base/error.h"
#include "shm/handle.h"

#include <stdio.h>
#include <string.h>

shoal_err sh_object_create(uint32_t klass, uint64_t size, sh_kind kind, shoal_block **out_block)
{
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_block *b = NULL;
    shoal_err err = sh_block_new(c, klass, size, &b);
    if (err == SHOAL_OK) {
        sh_block_become(b, kind);
        *out_block = b;
    }
    sh_leave();
    return err;
}

/* Returns the name of an argument of that kind for error texts. */
static const char *argument_name(sh_kind kind, char *buffer, size_t capacity)
{
    const char *name = kind == SH_KIND_PIPE ? "end of the pipe" : sh_kind_look_up(kind)->name;
    (void)snprintf(buffer, capacity, "the %s", name != NULL ? name : "object");
    return buffer;
}

shoal_err sh_block_require(const shoal_block *block, sh_kind kind, const char *what)
{
    if (block == NULL) {
        char name[24];
        return sh_null_error(what, argument_name(kind, name, sizeof name));
    }
    if (sh_attachment_now() == SH_FORKED) {
        return sh_world_not_ours(what);
    }
    if (sh_attachment_now() == SH_ENDED || sh_attachment_now() == SH_LEAVING) {
        return sh_world_ending(what);
    }
    if (block->magic != SH_HANDLE_MAGIC) {
        return sh_fail(SHOAL_EINVAL, "%s: not a handle", what);
    }
    if (block->left_behind == SH_LEFT_CARD) {
        return sh_fail(SHOAL_EFORK, "%s: " SH_LEFT_CARD_TEXT, what);
    }
    if (block->left_behind) {
        return sh_fail(SHOAL_EFORK,
                       "%s: a plain fork leaves ends of pipes to the parent; start the child with shoal_process_start "
                       "or send it the end",
                       what);
    }
    if (sh_block_is_lost(block)) {
        return sh_fail(SHOAL_ESTATE, "%s: this process has left the world of the object", what);
    }
    if (block->kind != kind) {
        return sh_fail(SHOAL_ETYPE, "%s: the object is of another kind", what);
    }
    return SHOAL_OK;
}

bool sh_block_is_usable(const shoal_block *block)
{
    return (sh_attachment_now() == SH_ATTACHED || sh_attachment_now() == SH_DETACHED) &&
           block->magic == SH_HANDLE_MAGIC && !block->left_behind && !sh_block_is_lost(block);
}

shoal_kind sh_block_kind(const shoal_block *block)
{
    return sh_kind_look_up(block->kind)->shared;
}

static shoal_err create(size_t size, bool zeroed, shoal_block **out_block)
{
    if (out_block == NULL) {
        return sh_null_error("shoal_block_create", "out_block");
    }
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_block *b = NULL;
    shoal_err err = sh_block_new(c, sh_class_of(size <= SH_SIZE_MAX ? size : 0), size, &b);
    sh_leave();
    SH_TRY(err);
    if (zeroed) {
        memset(b->data, 0, size);
    }
    *out_block = b;
    return SHOAL_OK;
}

shoal_err shoal_block_create(size_t size, shoal_block **out_block)
{
    return create(size, false, out_block);
}

shoal_err shoal_block_create_zeroed(size_t size, shoal_block **out_block)
{
    SH_NEED(out_block);
    return create(size, true, out_block);
}

void *shoal_block_data(const shoal_block *block)
{
    return block != NULL ? block->data : NULL;
}

size_t shoal_block_size(const shoal_block *block)
{
    return block != NULL && !sh_block_is_lost(block) ? block->size : 0;
}

uint64_t shoal_block_id(const shoal_block *block)
{
    return block != NULL && !sh_block_is_lost(block) ? block->id : 0;
}

/* ---- blocks by address and by number ---- */

static shoal_block *find_held(const char *address)
{
    if (address < sh_the_world.base || (uint64_t)(address - sh_the_world.base) >= sh_the_world.size) {
        return NULL;
    }
    for (size_t i = 0; i < sh_handles.bucket_count; i++) {
        for (shoal_block *b = sh_handles.buckets[i]; b != NULL; b = b->next) {
            if (b->kind == SH_KIND_DATA && b->idle_at == 0 && address >= b->data &&
                (uint64_t)(address - b->data) < b->size) {
                return b;
            }
        }
    }
    return NULL;
}

shoal_err shoal_block_find(const void *address, shoal_block **out_block)
{
    SH_NEED(address);
    SH_NEED(out_block);
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_block *b = sh_block_retain(find_held(address));
    sh_leave();
    if (b == NULL) {
        return sh_fail(SHOAL_ENOENT, "shoal_block_find: this process holds no block at %p", address);
    }
    *out_block = b;
    return SHOAL_OK;
}

shoal_err shoal_block_open(uint64_t id, shoal_block **out_block)
{
    SH_NEED(out_block);
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_block *b = NULL;
    bool exists = sh_block_kind_of(id) == SHOAL_KIND_BLOCK;
    shoal_err err = exists ? sh_block_open(c, id, &b) : SHOAL_ENOENT;
    sh_leave();
    if (err == SHOAL_ENOENT || err == SHOAL_ECORRUPT) { /* freed before, or between the two */
        return sh_fail(SHOAL_ENOENT, "shoal_block_open: there is no block %llu", (unsigned long long)id);
    }
    SH_TRY(err);
    *out_block = b;
    return SHOAL_OK;
}

/* Drops a reference of this process unless it is the last. A single thread needs no locked instruction. */
static inline bool drop_ref(shoal_block *block)
{
    uint64_t refs = sh_load_relaxed(&block->refs);
    if (__libc_single_threaded && refs > 1) {
        sh_store_relaxed(&block->refs, refs - 1);
        return true;
    }
    while (refs > 1) {
        if (sh_cas_acq_rel(&block->refs, &refs, refs - 1)) {
            return true;
        }
    }
    return false;
}

shoal_block *sh_block_retain(shoal_block *block)
{
    if (block != NULL) {
        sh_count_up(&block->refs);
    }
    return block;
}

void sh_block_release(shoal_block *block)
{
    if (block == NULL || drop_ref(block)) {
        return;
    }
    if (sh_block_is_lost(block)) {
        sh_block_unref_lost(block);
        return;
    }
    if (__builtin_expect(sh_attachment_now() != SH_ATTACHED, 0)) {
        return; /* this process is ending, or holds nothing here: clean-up never fails */
    }
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return;
    }
    /* Inside, nobody receives the block; another thread may have retained it, if it held it, too. */
    sh_block_unref(c, block);
    sh_leave();
}

/* ---- references by type ---- */

/* Reads only the first four bytes, of what may be anything: no object of the library is smaller. */
static inline bool is_handle(const shoal_block *block, sh_kind kind)
{
    return block->magic == SH_HANDLE_MAGIC && (block->kind == kind || sh_block_is_lost(block));
}

static __attribute__((noinline)) void refuse(const char *call, const shoal_block *block)
{
    sh_log("%s: %p is not a handle of this type; nothing was changed%s", call, (const void *)block,
           block->magic == SH_HANDLE_MAGIC ? " (it is a handle of another kind)" : "");
}

static inline void *retain_as(void *object, sh_kind kind, const char *call)
{
    shoal_block *block = object;
    if (block != NULL && !is_handle(block, kind)) {
        refuse(call, block);
        (void)sh_fail(SHOAL_EINVAL, "%s: not a handle of this type", call);
        return NULL;
    }
    return sh_block_retain(block);
}

static inline void release_as(void *object, sh_kind kind, const char *call)
{
    shoal_block *block = object;
    if (block != NULL && !is_handle(block, kind)) {
        refuse(call, block);
        return;
    }
    sh_block_release(block);
}

#define REFERENCES(type, shared, kind)                                                                                 \
    shoal_##type *shoal_##type##_retain(shoal_##type *type)                                                            \
    {                                                                                                                  \
        return retain_as(type, SH_KIND_##kind, __func__);                                                              \
    }                                                                                                                  \
    void shoal_##type##_release(shoal_##type *type)                                                                    \
    {                                                                                                                  \
        release_as(type, SH_KIND_##kind, __func__);                                                                    \
    }

SH_HANDLE_KINDS(REFERENCES)
