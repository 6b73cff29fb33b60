/* Descriptions: how a process describes a tensor to other processes. A description is a record of SH_KIND_TENSOR that
 * refers to the block of the storage, and to the grad's description if there is a grad. A message carries a reference
 * to the description; the receiver makes a tensor from it. */
#ifndef SH_SHARE_DESCRIPTION_H
#define SH_SHARE_DESCRIPTION_H

#include "share/record.h"
#include "tensor/tensor.h"

/* The bytes of the record; shape and strides have ndim numbers each. */
typedef struct sh_description {
    uint8_t dtype;
    uint8_t ndim;
    uint8_t requires_grad;
    uint8_t has_grad;
    uint32_t unused;
    uint64_t stamp; /* unique to this description while the world exists: a reader that knows it need not read again */
    int64_t offset;
    int64_t shape_and_strides[2 * SHOAL_MAX_DIMS];
} sh_description;

/* What is in shoal_tensor.shared: the block that describes the tensor to other processes, while it is up to date. */
typedef struct sh_described {
    sh_a64 block;      /* a shoal_block *, or 0 */
    sh_a64 block_id;   /* its id + 1; 0: never described */
    sh_a64 state;      /* what it says about the grad and requires_grad */
    sh_a64 storage_id; /* in it: the tensor has another storage after that moved to another device */
    sh_a64 stamp;      /* of the description; unique */
} sh_described;

_Static_assert(sizeof(sh_described) == sizeof((shoal_tensor *)0)->shared, "a tensor has room for it");

static inline sh_described *sh_described_of(const shoal_tensor *t)
{
    return (sh_described *)(uintptr_t)t->shared;
}

/* Shares the tensor and returns its description, borrowed from the tensor, which keeps it as long as it is up to date.
 * Errors: as shoal_tensor_share. */
shoal_err sh_share_describe_tensor(shoal_tensor *t, shoal_block **out_description);

/* Makes the tensor of a description for this process, which the caller owns. Reuses one that was here before
 * (recycled.h), if the description says what it said then. Takes the caller's reference to the description if it
 * succeeds. Returns NULL and sets SHOAL_ECORRUPT or SHOAL_ENOMEM, or for a card the errors of sh_cuda_await, if it
 * fails. */
shoal_tensor *sh_share_tensor_of(shoal_block *description);

/* Called before a tensor, a sparse tensor or a module is sent in a value: says in the ledger what the receivers of its
 * card tensors must wait for (card.c). Does nothing in a process that has no card. Errors: those of sh_cuda_mark. */
shoal_err sh_share_mark_work(const shoal_block *object);

/* Makes the tensor whose description is object i of a record. Errors: also those of sh_record_open. */
shoal_tensor *sh_share_tensor_at(const sh_record *record, uint64_t i);

#endif
