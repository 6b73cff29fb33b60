/* Storages: the bytes behind tensors. They are private, in the shared heap, on a card, or foreign (the program's own,
 * or another library's).
 *
 * A storage object belongs to one process, and every view of it points to the same one, so moving it into the heap
 * moves all views at once. Bytes in the heap have one storage object per process, however often they arrive. */
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
    uint64_t id;      /* unique in the process; for bytes in the heap twice the block's id, the same in every process */
    uint32_t version; /* counts changes in place by this process, for autograd */
    uint32_t recorded; /* counts those that autograd recorded: the bytes then depend on more than they did before */

    /* For bytes in the heap: their block, or a block that refers to it and so keeps it; otherwise NULL. The storage
     * owns one reference. */
    shoal_block *owner_block;
    const sh_meta_shm *meta; /* of the block, if owner_block is another block that refers to it */

    /* For shared bytes of a card: the word that says what must be done before others use them (shm/granule.h). Their
     * block is a piece. owns: this process allocated them. */
    sh_a64 *work;
    bool owns;

    /* For foreign bytes: called with context when the last view is released. */
    void (*release)(void *context);
    void *context;
    bool foreign;
    const sh_device *pinned_for; /* the bytes are host memory that this device copies without waiting; else NULL */

    sh_a64 pins; /* how many hold the bare address (dlpack.c): while any do, the bytes do not move */

    struct sh_storage *next;   /* in the table of storages in the heap */
    struct sh_storage **owner; /* of a storage at rest */
} sh_storage;

/* Creates a private storage of size bytes. Returns NULL and sets SHOAL_ENOMEM if there is no memory. */
sh_storage *sh_storage_create(const sh_device *device, size_t size);

/* Creates a storage in the heap. Returns NULL and sets SHOAL_ENOMEM, with the sizes, SHOAL_ELIMIT or SHOAL_EFORK if it
 * fails. */
sh_storage *sh_storage_create_shared(size_t size);

/* Creates a private storage in host memory that the device copies from and to without waiting. Returns NULL and sets
 * SHOAL_ENOMEM if there is no memory, or the device's error. */
sh_storage *sh_storage_create_pinned(const sh_device *device, size_t size);

/* Creates a storage over foreign bytes of a device. Does not call release if it fails. */
sh_storage *sh_storage_create_foreign(const sh_device *device, void *data, size_t size, void (*release)(void *),
                                      void *context);

/* Returns the storage of a block that arrived, of SH_KIND_DATA or SH_KIND_PIECE: the one this process has, or a new one
 * that keeps `owner_block` (retained). The caller has checked that the block is in the heap. Returns NULL and sets
 * SHOAL_ENOMEM if there is no memory; for a piece also SHOAL_ECORRUPT, and the errors of sh_cuda_open. */
sh_storage *sh_storage_of_block(uint64_t id, const sh_found *found, shoal_block *owner_block);

/* The same, if this process has one; otherwise returns NULL and sets no error. */
sh_storage *sh_storage_known(uint64_t id);

/* Moves private bytes into the heap; those of a card stay where they are, and get a piece. Does nothing if they are
 * shared already. Errors: those of sh_cuda_share; SHOAL_ENOMEM, with
 * the sizes; SHOAL_EINVAL for foreign bytes; SHOAL_ESTATE while they are pinned. */
shoal_err sh_storage_share(sh_storage *s);

/* Moves the bytes to a device, where they are private, for all views of the storage. Other processes keep what they
 * have. Does nothing if they are there already. Errors: SHOAL_ENOMEM; SHOAL_ESTATE while they are pinned; those of the
 * devices. */
shoal_err sh_storage_move(sh_storage *s, const sh_device *device);

/* Copies bytes between two devices, through the host if it can read neither. Returns when they have arrived. */
shoal_err sh_copy_across(const sh_device *to_device, void *to, const sh_device *from_device, const void *from,
                         size_t size);

/* For recycled tensors (share/recycled.h): storages with a meta, in a process with one thread. A storage at rest has no
 * reference and no owner_block. It stays in the table, where no search finds it, until it wakes or another storage
 * takes its id; then *owner, the pointer to it, becomes NULL. rest gives up a reference if it is the last, and
 * otherwise returns false; it does not release the owner_block. wake gives the storage one reference again, over the
 * owner_block (retained); it returns false if the block no longer has the storage's size. */
bool sh_storage_rest(sh_storage *s, sh_storage **owner);
bool sh_storage_wake(sh_storage *s, shoal_block *owner_block);
void sh_storage_end_rest(sh_storage *s);

static inline bool sh_storage_is_shared(const sh_storage *s)
{
    return s->owner_block != NULL;
}

static inline sh_storage *sh_storage_retain(sh_storage *s)
{
    sh_count_up(&s->refs);
    return s;
}

void sh_storage_release(sh_storage *s);

#endif
