/* Recycled tensors: a small table by the id of the description. */
#include "share/recycled.h"

#define RECYCLED 64 /* a power of two */
#if defined(__SANITIZE_ADDRESS__) && !defined(SHOAL_KEEP_HANDLES)
#define KEEPS_TENSORS 0 /* so that AddressSanitizer sees every use after the last release */
#else
#define KEEPS_TENSORS 1
#endif

static sh_recycled recycled[RECYCLED]; /* by id; used by the only thread of the process */

static sh_recycled *place_of(uint64_t id)
{
    return &recycled[(id * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (RECYCLED - 1)];
}

static void forget(sh_recycled *g)
{
    if (g->storage != NULL) {
        sh_storage_end_rest(g->storage);
    }
    sh_cpu_cache_free(g->tensor, sizeof *g->tensor);
    g->tensor = NULL;
}

/* Returns whether the tensor has nothing but what its description says. */
static bool equals_description(const shoal_tensor *t)
{
    const sh_described *d = sh_described_of(t);
    return t->node == NULL && t->grad == NULL && t->hooks == NULL && !t->grad_is_zero &&
           t->storage->owner_block != NULL &&
           t->storage->work == NULL && /* the stream may still use a card's bytes: sh_storage_release sees to that */
           sh_load_relaxed(&d->state) == t->requires_grad && sh_load_relaxed(&d->storage_id) == t->storage->id;
}

bool sh_recycled_keep(shoal_tensor *t)
{
    shoal_block *description = (shoal_block *)(uintptr_t)sh_load_relaxed(&sh_described_of(t)->block);
    if (!KEEPS_TENSORS || !__libc_single_threaded || sh_block_is_lost(description) || !equals_description(t)) {
        sh_block_release(description);
        return false;
    }
    sh_recycled *g = place_of(description->id);
    sh_storage *s = t->storage;
    if (g->tensor != NULL) {
        forget(g);
    }
    *g = (sh_recycled){.id = description->id,
                       .tenure = description->tenure,
                       .tensor = t,
                       .storage_id = s->id,
                       .size = s->size,
                       .dtype = t->dtype,
                       .world_serial = sh_blocks_world_serial};
    t->dtype = SH_TENSOR_RELEASED;
    if (s->owner_block == description && s->meta != NULL && sh_storage_rest(s, &g->storage)) {
        sh_block_release(description); /* the storage's reference */
    } else {
        sh_storage_release(s);
    }
    sh_block_release(description); /* the tensor's reference */
    return true;
}

sh_recycled *sh_recycled_find(uint64_t id)
{
    sh_recycled *g = place_of(id);
    /* Another world uses the same ids and stamps. */
    return g->tensor != NULL && g->id == id && g->world_serial == sh_blocks_world_serial && __libc_single_threaded
               ? g
               : NULL;
}

/* Returns the recycled tensor's storage if its block is the same, or else the storage that this process has for the
 * block. In one world the address of a block id never changes, but the block may have been freed and be another one
 * now, of another size. */
static sh_storage *storage_of(sh_recycled *g, shoal_block *description)
{
    sh_storage *s = g->storage;
    if (s != NULL && sh_storage_wake(s, description)) {
        return s;
    }
    s = sh_storage_known(g->storage_id >> 1); /* frees the storage at rest if it did not wake */
    if (s != NULL && s->size != g->size) {
        sh_storage_release(s);
        s = NULL;
    }
    return s;
}

shoal_tensor *sh_recycled_take(sh_recycled *g, shoal_block *description)
{
    shoal_tensor *t = g->tensor;
    sh_storage *s = storage_of(g, description);
    if (s == NULL) {
        return NULL;
    }
    g->tensor = NULL;
    t->dtype = g->dtype;
    t->storage = s;
    t->recorded = s->recorded;
    sh_store_relaxed(&t->refs, 1);
    sh_store_relaxed(&sh_described_of(t)->block, (uintptr_t)description); /* its id is the same */
    return t;
}
