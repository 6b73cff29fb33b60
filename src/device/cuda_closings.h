/* Blocks that this process gives back when the card has done the work before them. They are in order: first those with a
 * mark, then those without one. All calls are made under the lock of the order (cuda_order.c). */
#ifndef SH_DEVICE_CUDA_CLOSINGS_H
#define SH_DEVICE_CUDA_CLOSINGS_H

#include "shm/block.h"

/* Adds a block, which has no mark yet. Returns false if there is no memory. */
bool sh_cuda_closings_add(shoal_block *owner_block);

/* A mark was made: all that have none get this one. */
void sh_cuda_closings_mark(uint64_t number);

/* Releases the first ones, as long as the work before their marks is over. NULL: releases all. */
void sh_cuda_closings_release(bool (*is_over)(uint64_t number));

bool sh_cuda_closings_exist(void);

/* Returns how many have no mark. */
unsigned sh_cuda_closings_unmarked(void);

#endif
