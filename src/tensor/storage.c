/* Storages: creating them, moving them into the heap, and the table of those in the heap. */
#include "tensor/storage.h"

#include "base/error.h"
#include "base/fork.h"
#include "device/cuda_share.h"
#include "shm/world.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* Storages in the heap by block id. The lock protects the table, and giving up the last reference of a storage in it.
 * So a block that arrives while its storage is being freed finds either the living storage or none. */
static struct {
    pthread_mutex_t lock;
    sh_storage **buckets;
    size_t bucket_count; /* a power of two */
    size_t count;
} shared = {.lock = PTHREAD_MUTEX_INITIALIZER};

__attribute__((constructor)) static void register_lock(void)
{
    static const sh_fork_part part = {.lock = &shared.lock};
    sh_fork_register(SH_FORK_STORAGES, &part);
}

static void leave_world(void);

__attribute__((constructor)) static void register_leave(void)
{
    sh_world_after_leave = leave_world;
}

static sh_a64 next_private_id;

/* One thread needs no lock: only this thread can start a second one, and it is in here now. */
static void lock_table(void)
{
    if (!__libc_single_threaded) {
        sh_fork_lock(&shared.lock);
    }
}

static void unlock_table(void)
{
    if (!__libc_single_threaded) {
        sh_fork_unlock(&shared.lock);
    }
}

static sh_storage **bucket_of(uint64_t id)
{
    return &shared.buckets[(id * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (shared.bucket_count - 1)];
}

/* Under the lock: makes room for one more. */
static bool table_grow(void)
{
    if (shared.count < shared.bucket_count) {
        return true;
    }
    size_t old_count = shared.bucket_count;
    sh_storage **old = shared.buckets;
    sh_storage **fresh = calloc(old_count > 0 ? old_count * 2 : 64, sizeof *fresh);
    if (!fresh) {
        return false;
    }
    shared.buckets = fresh;
    shared.bucket_count = old_count > 0 ? old_count * 2 : 64;
    for (size_t i = 0; i < old_count; i++) {
        for (sh_storage *s = old[i], *next; s; s = next) {
            next = s->next;
            sh_storage **b = bucket_of(s->id);
            s->next = *b;
            *b = s;
        }
    }
    free(old);
    return true;
}

static void table_insert(sh_storage *s)
{
    sh_storage **b = bucket_of(s->id);
    s->next = *b;
    *b = s;
    shared.count++;
}

static void table_remove(sh_storage *s)
{
    sh_storage **p = bucket_of(s->id);
    while (*p != s) {
        p = &(*p)->next;
    }
    *p = s->next;
    shared.count--;
}

static sh_storage *new_storage(const sh_device *device, size_t size)
{
    sh_storage *s = sh_cpu_cache_alloc(sizeof *s);
    if (!s) {
        return NULL;
    }
    /* Ids of private storages are odd, those of blocks are even, so they cannot be confused. */
    *s = (sh_storage){.device = device, .size = size, .id = sh_add_relaxed(&next_private_id, 2) | 1};
    sh_store_relaxed(&s->refs, 1);
    return s;
}

sh_storage *sh_storage_create(const sh_device *device, size_t size)
{
    sh_storage *s = new_storage(device, size);
    if (s) {
        s->data = device->alloc(size);
        if (!s->data) {
            sh_cpu_cache_free(s, sizeof *s);
            s = NULL;
        }
    }
    return s;
}

sh_storage *sh_storage_create_pinned(const sh_device *device, size_t size)
{
    sh_storage *s = new_storage(&sh_device_cpu, size);
    if (s) {
        s->data = device->alloc_pinned(size);
        s->pinned_for = device;
        if (!s->data) {
            sh_cpu_cache_free(s, sizeof *s);
            s = NULL;
        }
    }
    return s;
}

sh_storage *sh_storage_create_foreign(const sh_device *device, void *data, size_t size, void (*release)(void *),
                                      void *context)
{
    sh_storage *s = new_storage(device, size);
    if (s) {
        s->data = data;
        s->foreign = true;
        s->release = release;
        s->context = context;
    }
    return s;
}

/* Frees a storage at rest. Under the lock. */
static void end_rest(sh_storage *s)
{
    *s->owner = NULL;
    table_remove(s);
    sh_cpu_cache_free(s, sizeof *s);
}

/* Finds the storage of a block. Under the lock. Frees a storage at rest that it finds: the caller is about to create a
 * new one. */
static sh_storage *find_block(uint64_t id)
{
    if (shared.bucket_count == 0) {
        return NULL;
    }
    sh_storage *s = *bucket_of(id << 1);
    /* If this process has left a storage's world, another block may have its id now. */
    while (s && (s->id != id << 1 || (s->owner_block && sh_block_is_lost(s->owner_block)))) {
        s = s->next;
    }
    if (s && sh_load_relaxed(&s->refs) == 0) {
        end_rest(s);
        s = NULL;
    }
    return s;
}

/* Under the lock: makes the storage that of the block. Takes the reference to the owner_block. */
static shoal_err become_block(sh_storage *s, uint64_t id, void *data, shoal_block *owner_block)
{
    (void)find_block(id); /* frees a storage at rest of an earlier block with this id */
    if (!table_grow()) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the table of shared tensors");
    }
    s->id = id << 1;
    s->data = data;
    s->owner_block = owner_block;
    table_insert(s);
    return SHOAL_OK;
}

static shoal_err become_block_locked(sh_storage *s, void *data, shoal_block *block)
{
    lock_table();
    shoal_err err = become_block(s, shoal_block_id(block), data, block);
    unlock_table();
    return err;
}

sh_storage *sh_storage_create_shared(size_t size)
{
    shoal_block *block;
    if (shoal_block_create(size, &block) != SHOAL_OK) {
        return NULL;
    }
    sh_storage *s = new_storage(&sh_device_cpu, size);
    if (!s || become_block_locked(s, shoal_block_data(block), block) != SHOAL_OK) {
        sh_cpu_cache_free(s, sizeof *s);
        sh_block_release(block);
        return NULL;
    }
    return s;
}

sh_storage *sh_storage_known(uint64_t id)
{
    lock_table();
    sh_storage *s = find_block(id);
    if (s) {
        (void)sh_storage_retain(s);
    }
    unlock_table();
    return s;
}

/* Where the bytes of a block are, for this process. */
typedef struct place {
    const sh_device *device;
    void *data;
    size_t size;
    sh_a64 *work;
} place;

static shoal_err find_place(const sh_found *found, place *out)
{
    if (found->kind != SH_KIND_PIECE) {
        *out = (place){.device = &sh_device_cpu, .data = found->data, .size = found->size};
        return SHOAL_OK;
    }
    sh_piece piece;
    if (sh_enter_held() == NULL) {
        return shoal_last_error();
    }
    bool good = sh_piece_look(found, &piece);
    sh_leave();
    if (!good) {
        return sh_fail(SHOAL_ECORRUPT, "a tensor refers to GPU memory that does not exist");
    }
    *out = (place){.device = &sh_device_cuda, .size = piece.size, .work = piece.work};
    return sh_cuda_open(&piece, &out->data);
}

sh_storage *sh_storage_of_block(uint64_t id, const sh_found *found, shoal_block *owner_block)
{
    place at;
    if (find_place(found, &at) != SHOAL_OK) {
        return NULL;
    }
    lock_table();
    sh_storage *s = find_block(id);
    if (s) {
        (void)sh_storage_retain(s);
    } else {
        s = new_storage(at.device, at.size);
        if (s && become_block(s, id, at.data, owner_block) == SHOAL_OK) {
            (void)sh_block_retain(owner_block);
            s->meta = found->meta;
            s->work = at.work;
        } else {
            sh_cpu_cache_free(s, sizeof *s);
            s = NULL;
        }
    }
    unlock_table();
    return s;
}

bool sh_storage_rest(sh_storage *s, sh_storage **owner)
{
    if (sh_load_relaxed(&s->refs) != 1) {
        return false;
    }
    sh_store_relaxed(&s->refs, 0);
    s->owner_block = NULL;
    s->owner = owner;
    *owner = s;
    return true;
}

bool sh_storage_wake(sh_storage *s, shoal_block *owner_block)
{
    if (sh_load_relaxed(&s->meta->info) != ((uint64_t)SH_KIND_DATA << 56 | s->size)) {
        return false;
    }
    sh_store_relaxed(&s->refs, 1);
    s->owner_block = sh_block_retain(owner_block);
    *s->owner = NULL;
    return true;
}

void sh_storage_end_rest(sh_storage *s)
{
    lock_table();
    end_rest(s);
    unlock_table();
}

/* Detaches all storages in the heap when this process leaves its world. Tensors over them remain until they are
 * released. */
static void leave_world(void)
{
    lock_table();
    for (size_t i = 0; i < shared.bucket_count; i++) {
        for (sh_storage *s = shared.buckets[i]; s; s = s->next) {
            if (s->owner_block && sh_block_is_lost(s->owner_block)) {
                s->device = &sh_device_left;
                s->work = NULL;
            }
        }
    }
    unlock_table();
}

/* Lets go of the bytes. The storage is in no table any more. The bytes of a card that this process received are
 * released when its stream is done with them; those that it allocated are its allocator's business. */
static void drop_bytes(sh_storage *s)
{
    if (s->owner_block && s->work && !s->owns) {
        sh_cuda_close(s->owner_block);
    } else if (s->owner_block) {
        sh_block_release(s->owner_block);
        if (s->owns) { /* also if this process has left the world that it was shared in: s->device frees nothing then */
            sh_cuda_free(s->data, s->size);
        }
    } else if (s->pinned_for) {
        s->pinned_for->free_pinned(s->data, s->size);
    } else if (!s->foreign) {
        s->device->free(s->data, s->size);
    } else if (s->release) {
        s->release(s->context);
    }
}

/* The bytes stay where they are: all memory of a card can be shared. */
static shoal_err share_on_card(sh_storage *s)
{
    shoal_block *block;
    sh_piece piece;
    SH_TRY(sh_cuda_share(s->data, s->size, &block));
    shoal_err err = sh_piece_read(block, &piece);
    if (err == SHOAL_OK) { /* before the table has it: another thread may find it there */
        s->work = piece.work;
        s->owns = true;
        s->size = piece.size; /* at least 1: the same for all processes */
        err = become_block_locked(s, s->data, block);
    }
    if (err != SHOAL_OK) {
        s->work = NULL;
        s->owns = false;
        sh_block_release(block);
    }
    return err;
}

shoal_err sh_storage_share(sh_storage *s)
{
    if (s->device == &sh_device_left) {
        return s->device->wait();
    }
    if (sh_storage_is_shared(s)) {
        return s->work ? sh_cuda_check() : SHOAL_OK; /* a child of fork no longer holds the block */
    }
    if (s->foreign) {
        return sh_fail(SHOAL_EINVAL,
                       "memory of the program cannot be shared with other processes: clone the tensor first");
    }
    if (!s->device->host_readable) {
        return share_on_card(s);
    }
    if (sh_load_relaxed(&s->pins) > 0) {
        return sh_fail(SHOAL_ESTATE, "memory that another library holds (DLPack) cannot be moved into the shared heap: "
                                     "clone the tensor first");
    }
    shoal_block *block;
    SH_TRY(shoal_block_create(s->size, &block));
    sh_storage old = *s; /* what drop_bytes needs */
    if (s->size > 0) {
        memcpy(shoal_block_data(block), old.data, s->size);
    }
    shoal_err err = become_block_locked(s, shoal_block_data(block), block);
    if (err != SHOAL_OK) {
        sh_block_release(block);
        return err;
    }
    drop_bytes(&old);
    s->pinned_for = NULL;
    return SHOAL_OK;
}

shoal_err sh_copy_across(const sh_device *to_device, void *to, const sh_device *from_device, const void *from,
                         size_t size)
{
    if (from_device->host_readable) {
        return to_device->write(to, from, size);
    }
    if (to_device->host_readable) {
        return from_device->read(to, from, size);
    }
    void *host = malloc(size > 0 ? size : 1);
    shoal_err err = host ? from_device->read(host, from, size) : sh_fail(SHOAL_ENOMEM, "no memory for %zu bytes", size);
    if (err == SHOAL_OK) {
        err = to_device->write(to, host, size);
    }
    free(host);
    return err;
}

shoal_err sh_storage_move(sh_storage *s, const sh_device *device)
{
    if (s->device == device) {
        return SHOAL_OK;
    }
    if (sh_load_relaxed(&s->pins) > 0) {
        return sh_fail(SHOAL_ESTATE, "memory that another library holds (DLPack) cannot be moved to another device: "
                                     "clone the tensor first");
    }
    void *data = device->alloc(s->size);
    shoal_err err = data ? sh_copy_across(device, data, s->device, s->data, s->size) : shoal_last_error();
    if (err != SHOAL_OK) {
        device->free(data, s->size);
        return err;
    }
    if (s->owner_block) {
        lock_table();
        table_remove(s);
        unlock_table();
    }
    drop_bytes(s);
    s->owner_block = NULL;
    s->meta = NULL;
    s->work = NULL;
    s->owns = false;
    s->foreign = false;
    s->release = NULL;
    s->pinned_for = NULL;
    s->device = device;
    s->data = data;
    s->id = sh_add_relaxed(&next_private_id, 2) | 1;
    s->version++;
    return SHOAL_OK;
}

/* Gives up one reference. Returns true if it was the last; then the storage is in no table any more. Only the last
 * reference of a storage in the table needs the lock: while there are others nobody can see it go. */
static bool give_up(sh_storage *s)
{
    if (!s->owner_block) {
        return sh_count_down(&s->refs);
    }
    uint64_t refs = sh_load_relaxed(&s->refs);
    while (refs > 1 && !__libc_single_threaded) {
        if (sh_cas_acq_rel(&s->refs, &refs, refs - 1)) {
            return false;
        }
    }
    lock_table();
    bool last = sh_count_down(&s->refs);
    if (last) {
        table_remove(s);
    }
    unlock_table();
    return last;
}

void sh_storage_release(sh_storage *s)
{
    if (!s || !give_up(s)) {
        return;
    }
    drop_bytes(s);
    sh_cpu_cache_free(s, sizeof *s);
}
