/* Lists the shared tensors of cards, for `shoal ps --tensors`. */
#include "base/error.h"
#include "base/grow.h"
#include "device/cuda.h"
#include "share/description.h"
#include "share/record.h"
#include "shm/granule.h"
#include "shm/holders.h"
#include "shm/slot.h"

#include <shoal/share.h>

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct seen_tensor {
    uint64_t id;
    uint64_t size;
    uint8_t uuid[SH_UUID_BYTES];
    uint8_t dtype, ndim;
    int64_t shape[SHOAL_MAX_DIMS];
    uint32_t last; /* the last slot that holds it, + 1 */
} seen_tensor;

typedef struct seen_holder {
    uint32_t tensor; /* its place in the list */
    uint32_t slot;
    int32_t pid;
    char name[SHOAL_NAME_MAX + 1];
} seen_holder;

typedef struct card_listing {
    seen_tensor *tensors; /* by ascending id */
    seen_holder *holders;
    size_t tensor_count, tensor_room, holder_count, holder_room;
    bool no_memory;
} card_listing;

/* Makes room for one more. */
static bool grow(card_listing *l, void *list, size_t count, size_t *room, size_t size)
{
    bool grown = sh_grow(list, count, room, size);
    l->no_memory = l->no_memory || !grown;
    return grown;
}

/* Reads a description, which may be hostile or just be changing. Returns false unless it is a tensor of a card. */
static bool read_tensor(uint64_t id, const sh_found *f, seen_tensor *out)
{
    shoal_block block = {.id = id, .kind = f->kind, .data = f->data, .size = f->size};
    size_t head = offsetof(sh_description, shape_and_strides);
    sh_record r;
    sh_description d;
    sh_found storage;
    sh_piece piece;
    sh_granule_info granule;
    if (f->kind != SH_KIND_TENSOR || !sh_record_read(&block, &r) || r.size < head || r.count == 0) {
        return false;
    }
    memcpy(&d, r.bytes, head);
    if (d.dtype >= SHOAL_DTYPES || d.ndim > SHOAL_MAX_DIMS || r.size != head + 2u * d.ndim * sizeof(int64_t) ||
        !sh_heap_find(sh_ref_id(sh_load_acquire(&r.references[0])), &storage) || !sh_piece_look(&storage, &piece) ||
        !sh_granule_look(piece.granule, &granule)) {
        return false;
    }
    *out = (seen_tensor){.id = id, .size = piece.size, .dtype = d.dtype, .ndim = d.ndim};
    memcpy(out->uuid, granule.uuid, sizeof out->uuid);
    memcpy(out->shape, r.bytes + head, d.ndim * sizeof(int64_t));
    return true;
}

static void add_tensor(uint64_t id, const sh_found *found, void *context)
{
    card_listing *l = context;
    seen_tensor t;
    if (read_tensor(id, found, &t) && grow(l, &l->tensors, l->tensor_count, &l->tensor_room, sizeof *l->tensors)) {
        l->tensors[l->tensor_count++] = t;
    }
}

static int compare_ids(const void *id, const void *tensor)
{
    uint64_t a = *(const uint64_t *)id, b = ((const seen_tensor *)tensor)->id;
    return a < b ? -1 : a > b;
}

static void add_holder(uint32_t slot, uint64_t id, void *context)
{
    card_listing *l = context;
    seen_tensor *t = l->tensor_count > 0 ? bsearch(&id, l->tensors, l->tensor_count, sizeof *t, compare_ids) : NULL;
    if (!t || t->last == slot + 1 || !grow(l, &l->holders, l->holder_count, &l->holder_room, sizeof *l->holders)) {
        return;
    }
    t->last = slot + 1;
    const sh_slot_shm *s = sh_slot_at(slot);
    seen_holder *h = &l->holders[l->holder_count++];
    *h = (seen_holder){.tensor = (uint32_t)(t - l->tensors), .slot = slot, .pid = (int32_t)sh_load_acquire(&s->pid)};
    snprintf(h->name, sizeof h->name, "%.*s", SHOAL_NAME_MAX, s->name);
}

/* Calls each for a tensor, with one of its holders, or with none. */
static bool tell(const seen_tensor *t, const seen_holder *h, bool (*each)(const shoal_cuda_tensor *, void *),
                 void *context)
{
    char card[48];
    shoal_cuda_tensor row = {.id = t->id,
                             .pid = h ? h->pid : 0,
                             .slot = h ? h->slot : 0,
                             .name = h ? h->name : "",
                             .uuid = sh_cuda_uuid_text(t->uuid, card),
                             .dtype = t->dtype,
                             .ndim = t->ndim,
                             .shape = t->shape,
                             .size = t->size};
    return each(&row, context);
}

static void tell_all(const card_listing *l, bool (*each)(const shoal_cuda_tensor *, void *), void *context)
{
    bool going = true;
    for (size_t i = 0; going && i < l->holder_count; i++) {
        going = tell(&l->tensors[l->holders[i].tensor], &l->holders[i], each, context);
    }
    for (size_t i = 0; going && i < l->tensor_count; i++) {
        going = l->tensors[i].last != 0 || tell(&l->tensors[i], NULL, each, context);
    }
}

/* Inside, or while the world is looked at. */
static void see_world(void *listing)
{
    if (sh_granules_existed()) { /* a heap is large to walk, and most worlds have nothing on a card */
        sh_blocks_visit(add_tensor, listing);
        sh_holders_visit(add_holder, listing);
    }
}

/* Outside: calls `each` for what was seen. */
static shoal_err finish(card_listing *l, shoal_err err, bool (*each)(const shoal_cuda_tensor *, void *), void *context)
{
    if (err == SHOAL_OK && l->no_memory) {
        err = sh_fail(SHOAL_ENOMEM, "no memory to list the GPU tensors");
    }
    if (err == SHOAL_OK) {
        tell_all(l, each, context);
    }
    free(l->tensors);
    free(l->holders);
    return err;
}

shoal_err shoal_cuda_tensors_list(bool (*each)(const shoal_cuda_tensor *tensor, void *context), void *context)
{
    SH_NEED(each);
    card_listing l = {0};
    if (sh_enter() == NULL) {
        return shoal_last_error();
    }
    see_world(&l);
    sh_leave();
    return finish(&l, SHOAL_OK, each, context);
}

shoal_err shoal_cuda_tensors_list_of(const char *world, bool (*each)(const shoal_cuda_tensor *tensor, void *context),
                                     void *context)
{
    SH_NEED(world);
    SH_NEED(each);
    card_listing l = {0};
    int fd;
    shoal_err err = sh_world_find(world, &fd);
    if (err == SHOAL_OK) {
        err = sh_world_inspect(fd, see_world, &l);
    }
    return finish(&l, err, each, context);
}
