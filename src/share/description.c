#include "share/description.h"

#include "autograd/node.h"
#include "base/error.h"
#include "base/fork.h"
#include "device/cuda_share.h"
#include "share/recycled.h"

#include <shoal/share.h>

#include <pthread.h>
#include <stddef.h>
#include <string.h>

/* ---- describing ---- */

/* Several threads may put one tensor at the same time. A thread that finds an outdated description makes a new one
 * under this lock; a thread that finds a current one takes no lock. Nobody may change the tensor meanwhile, so a
 * current description stays current. */
static pthread_mutex_t describing = PTHREAD_MUTEX_INITIALIZER;

/* The same for tensors of a card. To share one may take seconds, if another process is stopped in the middle of that;
 * and a child of fork cannot. */
static pthread_mutex_t describing_card = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void)
{
    sh_tensor_let_go = sh_recycled_keep;
    static const sh_fork_part part = {.lock = &describing}, card = {.lock = &describing_card, .only_anew = true};
    sh_fork_register(SH_FORK_DESCRIPTIONS, &part);
    sh_fork_register(SH_FORK_CARD_DESCRIPTIONS, &card);
}

/* Returns what a description says apart from the shape, as one word. The grad counts by the id of its description:
 * another view of the same storage has another. While t's description exists it keeps the grad's, so no other block can
 * have that id. */
static uint64_t state_of(const shoal_tensor *t)
{
    return (t->grad ? sh_load_acquire(&sh_described_of(t->grad)->block_id) : 0) << 1 | t->requires_grad;
}

/* Returns the description if it is current, otherwise NULL. Reads the pointer again at the end: describe_anew removes
 * the description before it changes the state, so if the pointer is still the same, the state belonged to it.
 * Checks the grad first: its new description is seen together with its new id. */
static shoal_block *true_description(const shoal_tensor *t)
{
    const sh_described *d = sh_described_of(t);
    uint64_t block = sh_load_acquire(&d->block);
    bool so = block != 0 && (!t->grad || true_description(t->grad)) && sh_load_acquire(&d->state) == state_of(t) &&
              sh_load_acquire(&d->storage_id) == t->storage->id && sh_load_acquire(&d->block) == block;
    return so ? (shoal_block *)(uintptr_t)block : NULL;
}

/* Stores the description and takes the caller's reference. true_description relies on this order. */
static void set_description(shoal_tensor *t, shoal_block *description, uint64_t stamp)
{
    sh_described *d = sh_described_of(t);
    sh_store_relaxed(&d->stamp, stamp);
    sh_store_release(&d->state, state_of(t));
    sh_store_release(&d->storage_id, t->storage->id);
    sh_store_release(&d->block_id, description->id + 1);
    sh_store_release(&d->block, (uintptr_t)description);
}

/* Returns the block with the storage's bytes, which the caller owns. */
static shoal_err storage_block(const sh_storage *s, shoal_block **out_block)
{
    if (s->owner_block->kind == SH_KIND_DATA || s->owner_block->kind == SH_KIND_PIECE) {
        *out_block = sh_block_retain(s->owner_block);
        return SHOAL_OK;
    }
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    shoal_err err = sh_block_open(c, s->id >> 1, out_block);
    sh_leave();
    return err;
}

/* The sequence of our slot increases with every operation on the heap, whichever process owns the slot, and making a
 * description takes several. */
static shoal_err new_stamp(uint64_t *out_stamp)
{
    const sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    *out_stamp = sh_load_relaxed(&c->slot->intent.seq) << SH_SLOT_BITS | c->index;
    sh_leave();
    return SHOAL_OK;
}

static shoal_err describe_anew(shoal_tensor *t, shoal_block *grad)
{
    sh_description d = {
        .dtype = t->dtype,
        .ndim = (uint8_t)t->ndim,
        .requires_grad = t->requires_grad,
        .has_grad = grad != NULL,
        .offset = t->offset,
    };
    size_t dims = (size_t)t->ndim;
    memcpy(d.shape_and_strides, t->shape, dims * sizeof t->shape[0]);
    memcpy(d.shape_and_strides + dims, t->strides, dims * sizeof t->strides[0]);

    shoal_block *objects[2] = {NULL, grad}, *fresh;
    shoal_err err = new_stamp(&d.stamp);
    if (err == SHOAL_OK) {
        err = storage_block(t->storage, &objects[0]);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    err = sh_record_create(SH_KIND_TENSOR, objects, grad ? 2 : 1, &d,
                           offsetof(sh_description, shape_and_strides) + 2 * dims * sizeof t->shape[0], &fresh);
    sh_block_release(objects[0]);
    SH_TRY(err);
    shoal_block *old = (shoal_block *)(uintptr_t)sh_swap_acq_rel(&sh_described_of(t)->block, 0);
    set_description(t, fresh, d.stamp);
    sh_block_release(old);
    return SHOAL_OK;
}

static shoal_err check_can_be_shared(const shoal_tensor *t)
{
    if (t->node) {
        return sh_fail(SHOAL_ESTATE,
                       "the result of %s needs a gradient and is not a leaf, so it cannot be shared: detach it first "
                       "(shoal_detach)",
                       t->node->op->name);
    }
    return SHOAL_OK;
}

/* Makes the tensor's description current. Under the lock. */
static shoal_err describe(shoal_tensor *t)
{
    SH_TRY(shoal_tensor_share(t));
    if (t->grad) {
        SH_TRY(describe(t->grad));
    }
    if (!true_description(t)) {
        SH_TRY(describe_anew(t, t->grad ? true_description(t->grad) : NULL));
    }
    return SHOAL_OK;
}

/* Says in the ledger what a receiver must wait for: all work so far. Does nothing for the CPU. */
static shoal_err mark_work(const shoal_tensor *t)
{
    SH_TRY(t->storage->work ? sh_cuda_mark(t->storage->work) : SHOAL_OK);
    return t->grad ? mark_work(t->grad) : SHOAL_OK;
}

shoal_err sh_share_describe_tensor(shoal_tensor *t, shoal_block **out_description)
{
    shoal_block *d = true_description(t);
    /* A lost one: sharing the tensor again says why it cannot be sent. */
    if (!__builtin_expect(d && !sh_block_is_lost(d) && !t->grad_is_zero, 1)) {
        pthread_mutex_t *lock = t->storage->device->host_readable ? &describing : &describing_card;
        sh_fork_lock(lock);
        shoal_err err = describe(t);
        sh_fork_unlock(lock);
        if (err != SHOAL_OK) {
            return err;
        }
        d = true_description(t);
    }
    *out_description = d;
    return mark_work(t);
}

shoal_err shoal_tensor_share(shoal_tensor *t)
{
    SH_NEED_TENSOR(t);
    SH_TRY(check_can_be_shared(t));
    SH_TRY(sh_storage_share(t->storage));
    if (t->grad) {
        sh_tensor_grad_settle(t);
        SH_TRY(shoal_tensor_share(t->grad));
    }
    return SHOAL_OK;
}

/* ---- reading a description, which may be hostile ---- */

static shoal_err corrupt(const shoal_block *description)
{
    return sh_fail(SHOAL_ECORRUPT, "block %llu does not describe a tensor", (unsigned long long)description->id);
}

/* Reads dtype, shape and strides from the copy of a description into the tensor, checks them, and returns how far they
 * reach into the storage, in bytes. Copies each number once out of memory that others can write, and uses only the
 * copy. */
static bool read_shape(const sh_record *r, const sh_description *d, shoal_tensor *t, uint64_t *out_reach)
{
    size_t head = offsetof(sh_description, shape_and_strides), dims = d->ndim;
    if (d->dtype >= SHOAL_DTYPES || dims > SHOAL_MAX_DIMS || r->size != head + 2 * dims * sizeof(int64_t) ||
        r->count != 1u + (d->has_grad != 0) || d->offset < 0) {
        return false;
    }
    t->dtype = d->dtype;
    t->ndim = (int8_t)dims;
    t->offset = d->offset;
    memcpy(t->shape, r->bytes + head, dims * sizeof(int64_t));
    memcpy(t->strides, r->bytes + head + dims * sizeof(int64_t), dims * sizeof(int64_t));

    int64_t count = 1, last = t->offset, span;
    bool dense = true, wrong = false;
    for (size_t i = dims; i-- > 0;) {
        int64_t size = t->shape[i], stride = t->strides[i];
        wrong |= size < 0 || stride < 0;
        dense &= size == 1 || stride == count;
        /* With strides of 0 a small storage can have a shape whose product overflows. */
        wrong |= __builtin_mul_overflow(size - (size > 0), stride, &span) ||
                 __builtin_add_overflow(last, span, &last) || __builtin_mul_overflow(count, size, &count);
    }
    t->count = count;
    t->contiguous = dense || count == 0;
    uint64_t element = shoal_dtype_size(d->dtype);
    wrong |= (uint64_t)last >= INT64_MAX / element;
    *out_reach = count == 0 ? 0 : ((uint64_t)last + 1) * element;
    return !wrong;
}

/* Returns the storage behind a description, retained: the one this process has, or a new one. After a failure,
 * *out_told says whether the error is set; otherwise the description is nonsense. */
static sh_storage *find_storage(shoal_block *owner_block, const sh_record *r, bool *out_told)
{
    sh_ref ref = sh_load_acquire(&r->references[0]);
    uint64_t id = sh_ref_id(ref);
    sh_found f;
    if (sh_ref_weight(ref) == 0) {
        return NULL;
    }
    sh_storage *known = sh_storage_known(id);
    if (known) {
        return known;
    }
    if (!sh_heap_find(id, &f) || (f.kind != SH_KIND_DATA && f.kind != SH_KIND_PIECE)) {
        return NULL;
    }
    sh_storage *fresh = sh_storage_of_block(id, &f, owner_block);
    *out_told = !fresh;
    return fresh;
}

/* Makes a tensor with only its shape and storage. */
static shoal_tensor *make_bare(const shoal_block *description, shoal_block *owner_block, const sh_record *r,
                               const sh_description *d)
{
    shoal_tensor *t = sh_cpu_cache_alloc(sizeof *t);
    if (!t) {
        return NULL;
    }
    *t = (shoal_tensor){0};
    uint64_t reach;
    bool told = false;
    sh_storage *storage = read_shape(r, d, t, &reach) ? find_storage(owner_block, r, &told) : NULL;
    if (!storage || reach > storage->size) {
        if (!told) {
            (void)corrupt(description);
        }
        told = true;
    } else if (storage->work) {
        told = sh_cuda_await(sh_load_acquire(storage->work)) != SHOAL_OK; /* pairs with the mark of the sender */
    }
    if (told) {
        sh_storage_release(storage);
        sh_cpu_cache_free(t, sizeof *t);
        return NULL;
    }
    t->storage = storage;
    t->recorded = storage->recorded;
    sh_store_relaxed(&t->refs, 1);
    return t;
}

static shoal_tensor *make(const shoal_block *description, shoal_block *owner_block, bool is_grad);

/* Makes the grad from its description. A handle for that description is only needed to send it on. If the heap has no
 * room for one, the grad is made without: the description that refers to it keeps it, because the message that brought
 * it is already taken. */
static shoal_tensor *grad_of(shoal_block *description, const sh_record *r)
{
    shoal_block *own;
    sh_found f;
    shoal_err err = sh_record_open(r, 1, &own);
    if (err == SHOAL_OK) {
        shoal_tensor *grad = make(own, own, true);
        sh_block_release(own);
        return grad;
    }
    uint64_t id = sh_ref_id(sh_load_acquire(&r->references[1]));
    if (err == SHOAL_ECORRUPT || !sh_heap_find(id, &f)) {
        return NULL;
    }
    shoal_block seen = {.id = id, .kind = f.kind, .data = f.data, .size = f.size};
    return make(&seen, description, true);
}

static shoal_err make_grad(shoal_tensor *t, shoal_block *description, const sh_record *r)
{
    t->grad = grad_of(description, r);
    if (!t->grad) {
        return shoal_last_error();
    }
    bool fits = t->grad->dtype == t->dtype && t->grad->ndim == t->ndim &&
                memcmp(t->grad->shape, t->shape, sizeof t->shape[0] * (size_t)t->ndim) == 0;
    return fits ? SHOAL_OK : corrupt(description);
}

/* Makes a tensor. Does not read a grad's own grad, so a description that names itself goes one step and no further.
 * owner_block is a handle that keeps the storage; it is the description's own if there is one. */
static shoal_tensor *make(const shoal_block *description, shoal_block *owner_block, bool is_grad)
{
    sh_record r;
    sh_description d;
    size_t head = offsetof(sh_description, shape_and_strides);
    if (description->kind != SH_KIND_TENSOR || !sh_record_read(description, &r) || r.size < head) {
        (void)corrupt(description);
        return NULL;
    }
    memcpy(&d, r.bytes, head);
    shoal_tensor *t = make_bare(description, owner_block, &r, &d);
    if (!t) {
        return NULL;
    }
    t->requires_grad = d.requires_grad && shoal_dtype_is_float(t->dtype);
    if (d.has_grad && !is_grad && make_grad(t, owner_block, &r) != SHOAL_OK) {
        shoal_tensor_release(t);
        return NULL;
    }
    /* Only if the tensor has all that the description has: sending it on, or waking it, must not add or lose a grad. */
    bool whole = !d.has_grad || (t->grad != NULL && sh_load_relaxed(&sh_described_of(t->grad)->block_id) != 0);
    if (description == owner_block && whole) {
        set_description(t, sh_block_retain(owner_block), d.stamp);
    }
    return t;
}

/* Returns whether this is the description that the tensor had. It has the same stamp, so, unless somebody forged it, it
 * says the same. In any case only the values that were read and checked then are used. */
static bool is_description_of(const shoal_block *b, const shoal_tensor *t, uint64_t storage_id)
{
    const sh_message_shm *shm = (const sh_message_shm *)b->data;
    if (b->kind != SH_KIND_TENSOR || b->size < sizeof *shm + sizeof(sh_a64) + offsetof(sh_description, offset) ||
        (uint32_t)sh_load_relaxed(&shm->count) != 1) {
        return false;
    }
    sh_ref ref = sh_load_acquire(&shm->references[0]);
    uint64_t stamp = sh_load_relaxed(
        (const sh_a64 *)(const void *)((const char *)(shm->references + 1) + offsetof(sh_description, stamp)));
    return sh_ref_id(ref) << 1 == storage_id && sh_ref_weight(ref) != 0 &&
           stamp == sh_load_relaxed(&sh_described_of(t)->stamp) && stamp != 0;
}

shoal_tensor *sh_share_tensor_of(shoal_block *description)
{
    sh_recycled *r = sh_recycled_find(description->id);
    bool same = r && (r->tenure == description->tenure || is_description_of(description, r->tensor, r->storage_id));
    shoal_tensor *t = same ? sh_recycled_take(r, description) : NULL;
    if (!t) {
        t = make(description, description, false);
        if (t) {
            sh_block_release(description); /* the tensor has its own */
        }
    }
    return t;
}

shoal_tensor *sh_share_tensor_at(const sh_record *record, uint64_t i)
{
    shoal_block *description;
    if (sh_record_open(record, i, &description) != SHOAL_OK) {
        return NULL;
    }
    shoal_tensor *t = sh_share_tensor_of(description);
    if (!t) {
        sh_block_release(description);
    }
    return t;
}
