/* Acknowledged queues inside the library; delivery.c says how they work. */
#ifndef SH_IPC_DELIVERY_H
#define SH_IPC_DELIVERY_H

#include "ipc/queue_core.h"

/* A message that this process is about to get, or has. */
typedef struct sh_delivery {
    sh_delivery_shm *entry;
    uint64_t number; /* of the entry, over all tables */
    uint64_t state;  /* as we wrote it last */
    uint32_t deliveries;
} sh_delivery;

/* Inside: the first table of a new queue. */
shoal_err sh_deliveries_create(sh_ctx *c, shoal_block *queue);

/* Inside: knows all tables that there are. */
shoal_err sh_deliveries_open(const shoal_block *queue);

/* Messages that are out or came back; one that is just being got counts too. Look at the ring first: then none is missed. Anywhere. */
uint64_t sh_deliveries_out(const shoal_block *queue);

/* How long a wait until the deadline may last before leases must be looked at; SHOAL_FOREVER: they need not. Anywhere. */
int64_t sh_deliveries_until_lease(const shoal_block *queue, int64_t deadline);

/* May a message have come back, or its lease have passed? Anywhere. */
bool sh_deliveries_ready(const shoal_block *queue);

#endif
