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

/* Shares the tensor and returns its description, borrowed from the tensor, which keeps it as long as it is up to date.
 * Errors: as shoal_tensor_share. */
shoal_err sh_share_describe_tensor(shoal_tensor *t, shoal_block **out_description);

/* Makes a tensor for this process, which the caller owns. Returns NULL and sets SHOAL_ECORRUPT or SHOAL_ENOMEM if it
 * fails. */
shoal_tensor *sh_share_tensor_of(shoal_block *description);

/* The same, but reuses a tensor that was here before (tensor/recycled.h) if the description says what it said then. The
 * tensor takes the caller's reference to the description. Returns NULL and does nothing if there is no such tensor. */
shoal_tensor *sh_share_tensor_again(shoal_block *description);

#endif
