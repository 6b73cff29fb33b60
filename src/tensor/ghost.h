/* Tensors that were sent on or released, for the case that they come again: a tensor that goes to and fro between processes
 * then costs no new tensor and no new storage each time. A ghost holds nothing, no reference to a block: it is memory of this
 * process whose contents were true once. Whoever wakes one has made sure that they are true again. Only while the process has
 * one thread. */
#ifndef SH_TENSOR_GHOST_H
#define SH_TENSOR_GHOST_H

#include "tensor/tensor.h"

typedef struct sh_ghost {
    uint64_t id; /* of the description's block */
    uint64_t
        stay; /* of the description's handle (shm/block.h): while it is the same the description was held all along */
    shoal_tensor *tensor; /* NULL: no ghost */
    sh_storage *storage;  /* its storage when that went too, at rest; NULL: others in this process had or have it */
    uint64_t storage_id;
    size_t size; /* of the storage: the shape was checked against it */
    uint64_t worlds;
} sh_ghost;

/* Makes a ghost of a tensor whose last reference has gone. False when it cannot be one. */
bool sh_ghost_keep(shoal_tensor *t);

/* The ghost with a description of this id, or NULL. Its tensor may be read, to compare it with the description that came. */
sh_ghost *sh_ghost_find(uint64_t id);

/* The tensor again, whose description the caller found to say the same; it takes over the caller's reference to that. NULL, and
 * nothing taken: its storage is another now. */
shoal_tensor *sh_ghost_wake(sh_ghost *ghost, shoal_block *description);

#endif
