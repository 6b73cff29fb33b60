/* Receipts: the deliveries that this process has got and not ended. A shoal_delivery is a plain struct that programs
 * may copy, so the reference to the queue is not in it but here: a delivery ends once, whichever copy ends it. */
#ifndef SH_IPC_RECEIPT_H
#define SH_IPC_RECEIPT_H

#include <shoal/queue.h>

typedef struct sh_receipt {
    shoal_queue *queue; /* one reference */
    uint64_t number;    /* of the entry, counted over all tables */
    uint64_t state;     /* of the entry, as this process wrote it last */
    const void *view;   /* of the queue */
} sh_receipt;

/* Names a receipt. A key is never used again. */
typedef struct sh_receipt_key {
    uint64_t place, serial;
} sh_receipt_key;

/* Adds a receipt, with the reference to the queue. Errors: SHOAL_ENOMEM. */
shoal_err sh_receipt_add(const sh_receipt *receipt, sh_receipt_key *out_key);

/* Copies the receipt. Returns false if there is none. Another thread may remove it at any time, unless this one is
 * inside. */
bool sh_receipt_find(sh_receipt_key key, sh_receipt *out_receipt);

/* Sets the state of a receipt. */
void sh_receipt_set(sh_receipt_key key, uint64_t state);

/* Removes a receipt. Returns false if there is none; otherwise the caller has its reference to the queue now. */
bool sh_receipt_drop(sh_receipt_key key);

/* Removes all receipts of a queue whose handle and view are being freed: the program released their references
 * itself. */
void sh_receipts_forget(const void *view);

#endif
