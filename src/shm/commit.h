/* Memory for the heap: committed within its limit, and given back to the system. */
#ifndef SH_SHM_COMMIT_H
#define SH_SHM_COMMIT_H

#include "shm/world.h"

/* Commits memory for a range, within the heap's limit; takes it from free blocks if it must. asked: what the user
 * requested, for the error text. No intent may be open. Errors: SHOAL_ENOMEM with the sizes, SHOAL_EOS if the program
 * has closed the file. */
shoal_err sh_commit(sh_ctx *c, uint64_t offset, uint64_t size, uint64_t asked);

/* Gives the memory behind whole pages of free blocks back. */
void sh_decommit(void *at, uint64_t size);

/* Checks whether a free block may keep its memory: yes while the heap is small for this machine. */
bool sh_commit_keeps(uint64_t bytes);

/* Gives memory of free blocks back, until want bytes are available below the limit; UINT64_MAX for all. No intent may
 * be open. */
void sh_trim(sh_ctx *c, uint64_t want);

/* For recovery: frees the blocks that an open trim of the slot holds. */
void sh_trim_undo(sh_ctx *c, uint32_t span);

/* Called when a process has committed memory for a range of this span that the span's own blocks do not know of: gives
 * back what is behind free blocks. What is behind the others is given back with their own memory. */
void sh_trim_unknown(sh_ctx *c, uint32_t span);

#endif
