/* Acknowledged queues inside the library. delivery.c says how they work, delivery_table.c has the tables. */
#ifndef SH_IPC_DELIVERY_H
#define SH_IPC_DELIVERY_H

#include "ipc/queue_core.h"

/* Inside: creates the first table of a new queue. */
shoal_err sh_deliveries_create(sh_ctx *c, shoal_block *queue);

/* Inside: opens all tables of the queue. */
shoal_err sh_deliveries_open(const shoal_block *queue);

/* Returns the number of messages that are out or came back, but counts no further than `most`. A message that is being
 * received counts too. Look at the ring and open the tables first, so that none is missed. Anywhere. */
uint64_t sh_deliveries_out(const shoal_block *queue, uint64_t most);

/* The following see all tables, known to this process or not. Where they cannot tell, they return what makes the caller
 * try a get, which opens the tables. Anywhere. */

/* Returns whether a message may have come back, or its lease have expired. */
bool sh_deliveries_ready(const shoal_block *queue);

/* Returns whether it may be that no message is out. */
bool sh_deliveries_may_be_over(const shoal_block *queue);

/* Returns until when to wait at most, up to the deadline: a lease that expires wakes nobody. */
int64_t sh_deliveries_wait_until(const shoal_block *queue, int64_t deadline);

/* A message that this process is getting or has got. */
typedef struct sh_delivery {
    const sh_delivery_table *table;
    uint64_t place; /* of the entry, in its table */
    sh_delivery_shm *entry;
    uint64_t number; /* of the entry, counted over all tables */
    uint64_t state;  /* as this process wrote it last */
    uint32_t deliveries;
} sh_delivery;

/* For delivery.c; all inside, but where it says otherwise. */

/* Records that the queue's tables are damaged. Anywhere. */
shoal_err sh_deliveries_damaged(const shoal_block *queue);

/* Finds the entry of that number in all known tables. Anywhere. */
bool sh_delivery_find(const shoal_block *queue, uint64_t number, sh_delivery *out);

/* Claims an empty entry. Errors: SHOAL_ENOMEM, SHOAL_ELIMIT. */
shoal_err sh_delivery_claim_empty(sh_ctx *c, const shoal_block *queue, sh_delivery *out);

/* Claims a message that came back or whose lease has expired. all: whatever the bounds say. */
shoal_err sh_delivery_claim_due(const shoal_block *queue, bool all, sh_delivery *out, bool *out_claimed);

/* Returns the state of an entry after this process has claimed it. */
uint64_t sh_delivery_claimed(uint64_t before);

/* Changes this process's entry to the phase. While an entry is CLAIMED or FINISHING only its owner changes its
 * state. */
void sh_delivery_leave(sh_delivery *d, sh_delivery_phase phase);

/* Empties an entry of this process that has no message. Those who looked meanwhile counted it as a message. */
void sh_delivery_empty(const shoal_block *queue, sh_delivery *d);

/* Drops the message of a CLAIMED or FINISHING entry of this process. */
void sh_delivery_drop(sh_ctx *c, const shoal_block *queue, sh_delivery *d);

/* After an entry became RETURNED: lets the next receiver find it. */
void sh_delivery_tell(const shoal_block *queue, const sh_delivery *d);

/* Returns a CLAIMED message that nobody has seen. */
void sh_delivery_put_back(const shoal_block *queue, sh_delivery *d);

#endif
