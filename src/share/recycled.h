/* Released tensors, kept in case they arrive again. A tensor that goes back and forth between two processes then needs
 * no new tensor and no new storage each time. A recycled tensor holds nothing, not even a reference to a block: it is
 * private memory whose contents were valid once. The caller that takes one has checked that they are valid again. Used
 * only while the process has one thread. */
#ifndef SH_SHARE_RECYCLED_H
#define SH_SHARE_RECYCLED_H

#include "share/description.h"

typedef struct sh_recycled {
    uint64_t id;     /* of the description's block */
    uint64_t tenure; /* of the description's handle (shm/block.h): unchanged if the description was held all the time */
    shoal_tensor *tensor; /* NULL: this place is empty */
    sh_storage *storage;  /* its storage, at rest, if that went too; NULL: others in this process had or have it */
    uint64_t storage_id;
    size_t size;   /* of the storage: the shape was checked against it */
    uint8_t dtype; /* of the tensor, which says SH_TENSOR_RELEASED until it is taken */
    uint64_t world_serial;
} sh_recycled;

/* Keeps a tensor with a description whose last reference is gone. Returns false if it cannot be kept: it then has
 * released the description, and the caller frees the tensor. */
bool sh_recycled_keep(shoal_tensor *t);

/* Returns the recycled tensor with a description of this id, or NULL. The caller may read its tensor, to compare it
 * with the description that arrived. */
sh_recycled *sh_recycled_find(uint64_t id);

/* Returns the tensor, after the caller found that its description says the same. Takes the caller's reference to the
 * description. Returns NULL and takes nothing if its storage is a different one now. */
shoal_tensor *sh_recycled_take(sh_recycled *recycled, shoal_block *description);

#endif
