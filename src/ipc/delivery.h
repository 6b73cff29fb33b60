/* Acknowledged queues inside the library. delivery.c says how they work. */
#ifndef SH_IPC_DELIVERY_H
#define SH_IPC_DELIVERY_H

#include "ipc/queue_core.h"

/* A message that this process is getting or has got. */
typedef struct sh_delivery {
    sh_delivery_shm *entry;
    uint64_t number; /* of the entry, counted over all tables */
    uint64_t state;  /* as this process wrote it last */
    uint32_t deliveries;
} sh_delivery;

/* Inside: creates the first table of a new queue. */
shoal_err sh_deliveries_create(sh_ctx *c, shoal_block *queue);

/* Inside: opens all tables of the queue. */
shoal_err sh_deliveries_open(const shoal_block *queue);

/* Returns the number of messages that are out or came back. A message that is being received counts too. Look at the
 * ring first, so that none is missed. Anywhere. */
uint64_t sh_deliveries_out(const shoal_block *queue);

/* Returns how long a wait until the deadline may last before leases must be checked; SHOAL_FOREVER: they need not be.
 * Anywhere. */
int64_t sh_deliveries_until_lease(const shoal_block *queue, int64_t deadline);

/* Returns whether a message may have come back, or its lease have expired. Anywhere. */
bool sh_deliveries_ready(const shoal_block *queue);

#endif
