/* Memory behind the heap: within its limit, and back to the system. */
#ifndef SH_SHM_COMMIT_H
#define SH_SHM_COMMIT_H

#include "shm/world.h"

/* Puts memory behind a range, within the heap's limit; takes it from free blocks when it must. asked is what the
 * user wanted, for the words. No note may be open. Errors: SHOAL_ENOMEM with the sizes, SHOAL_EOS when the
 * program has closed the file. */
shoal_err sh_commit(sh_ctx *c, uint64_t offset, uint64_t size, uint64_t asked);

/* May a free block keep its memory? Yes while the heap is small for this machine. */
bool sh_commit_keeps(uint64_t bytes);

/* Gives memory of free blocks back, until want bytes are available below the limit; UINT64_MAX for all. No note may
 * be open. */
void sh_trim(sh_ctx *c, uint64_t want);

/* In recovery: gives back what an open trim of the slot holds. */
void sh_trim_undo(sh_ctx *c, uint32_t span);

/* Somebody put memory behind a range of this span that its own blocks know nothing of: gives back what is behind free ones. What is
 * behind others goes with theirs. */
void sh_trim_unknown(sh_ctx *c, uint32_t span);

#endif
