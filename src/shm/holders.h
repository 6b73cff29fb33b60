/* What lies in the heap and who holds it, for tools. Walks all of it while others change it: what is seen is true of
 * about one moment, and every word may be nonsense by the time it is used. */
#ifndef SH_SHM_HOLDERS_H
#define SH_SHM_HOLDERS_H

#include "shm/heap.h"

/* Calls visit for every block that exists, by ascending id. Called inside. */
void sh_blocks_visit(void (*visit)(uint64_t id, const sh_found *found, void *context), void *context);

/* Calls visit for every reference to a block that a process holds, process by process: the number of its slot, and the
 * block's id. Called inside. */
void sh_holders_visit(void (*visit)(uint32_t slot, uint64_t id, void *context), void *context);

#endif
