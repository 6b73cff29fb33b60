/* The bytes behind tensors: private, in the shared heap, on a card, or foreign (the program's own, or another library's).
 *
 * A storage object belongs to one process; every view of it points to the same one, so moving it into the heap moves all
 * views at once. Bytes in the heap have one storage object in a process, however often they arrive (B2). */
#ifndef SH_TENSOR_STORAGE_H
#define SH_TENSOR_STORAGE_H

#include "device/device.h"
#include "shm/block.h"
#include "sync/atomic.h"

typedef struct sh_storage {
    sh_a64 refs;
    const sh_device *device;
    void *data;
    size_t size;
    uint64_t id;      /* unique in the process; of bytes in the heap: the block's, which is the same in every process */
    uint32_t version; /* counts changes in place by this process, for autograd */
    uint32_t recorded; /* counts those that were recorded: what the bytes hold depends on more than it did before */

    /* Bytes in the heap: the block they are, or a block that refers to it and so keeps it; else NULL. One reference is
     * ours. */
    shoal_block *keeper;
    const sh_meta_shm *meta; /* of the block, when the keeper is another that refers to it */

    /* Foreign bytes: called with context when the last view goes. */
    void (*release)(void *context);
    void *context;
    bool foreign;

    sh_a64 pins; /* holders of the bare address (dlpack.c): while there are any, the bytes do not move */

    struct sh_storage *next;   /* in the table of storages in the heap */
    struct sh_storage **owner; /* of one at rest */
} sh_storage;

/* A private storage of size bytes. NULL: SHOAL_ENOMEM. */
sh_storage *sh_storage_create(const sh_device *device, size_t size);

/* A storage in the heap, new. NULL: SHOAL_ENOMEM with the sizes, SHOAL_ELIMIT, SHOAL_EFORK. */
sh_storage *sh_storage_create_shared(size_t size);

/* Over foreign bytes of the CPU. After a failure release is not called. */
sh_storage *sh_storage_create_foreign(void *data, size_t size, void (*release)(void *), void *context);

/* The storage of a block in the heap that arrived: the one this process has, or a new one that keeps `keeper` (retained).
 * The bytes are checked to lie in the heap by whoever found them. NULL: SHOAL_ENOMEM. */
sh_storage *sh_storage_of_block(uint64_t id, const sh_found *found, shoal_block *keeper);

/* The same, when this process has one; otherwise NULL, and no error. */
sh_storage *sh_storage_known(uint64_t id);

/* Moves private bytes into the heap. Nothing happens when they are there or on a card. Errors: SHOAL_ENOMEM with the sizes,
 * SHOAL_EINVAL for foreign bytes, SHOAL_ESTATE while they are pinned. */
shoal_err sh_storage_share(sh_storage *s);

/* For recycled tensors (recycled.h), of storages with a meta, in a process with one thread. A storage at rest has no reference and no keeper;
 * it stays in the table, where nobody finds it, until it wakes or another takes its id: then *owner, the pointer to it, becomes
 * NULL. rest: gives up a reference if it is the last; false when it is not. The keeper is not released. wake: one reference
 * again, over the keeper (retained); false when the block is not of its size any more. */
bool sh_storage_rest(sh_storage *s, sh_storage **owner);
bool sh_storage_wake(sh_storage *s, shoal_block *keeper);
void sh_storage_end_rest(sh_storage *s);

static inline bool sh_storage_is_shared(const sh_storage *s)
{
    return s->keeper != NULL || !s->device->host_readable;
}

static inline sh_storage *sh_storage_retain(sh_storage *s)
{
    sh_count_up(&s->refs);
    return s;
}

void sh_storage_release(sh_storage *s);

#endif
