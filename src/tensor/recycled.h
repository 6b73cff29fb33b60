/* Released tensors, kept in case they arrive again. A tensor that goes back and forth between two processes then needs no new tensor
 * and no new storage each time. A recycled tensor holds nothing, not even a reference to a block: it is memory of this process whose
 * contents were true once. Whoever takes one has checked that they are true again. Used only while the process has one thread. */
#ifndef SH_TENSOR_RECYCLED_H
#define SH_TENSOR_RECYCLED_H

#include "tensor/tensor.h"

typedef struct sh_recycled {
    uint64_t id; /* of the description's block */
    uint64_t
        tenure; /* of the description's handle (shm/block.h): while it is the same the description was held all along */
    shoal_tensor *tensor; /* NULL: this place is empty */
    sh_storage *storage;  /* its storage when that went too, at rest; NULL: others in this process had or have it */
    uint64_t storage_id;
    size_t size; /* of the storage: the shape was checked against it */
    uint64_t world_serial;
} sh_recycled;

/* Keeps a tensor whose last reference is gone. False when it cannot be kept; then the caller frees it. */
bool sh_recycled_keep(shoal_tensor *t);

/* The recycled tensor with a description of this id, or NULL. Its tensor may be read, to compare it with the description that came. */
sh_recycled *sh_recycled_find(uint64_t id);

/* The tensor again, whose description the caller found to say the same; it takes over the caller's reference to that. NULL, and
 * nothing taken: its storage is another now. */
shoal_tensor *sh_recycled_take(sh_recycled *recycled, shoal_block *description);

#endif
