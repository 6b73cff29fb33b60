/* A tensor as other processes see it: a record of SH_KIND_TENSOR that refers to the block of the storage, and to the grad's
 * description when there is a grad. What travels is a reference to the description; the receiver makes its own tensor from it. */
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
    uint64_t
        stamp; /* of this description alone, as long as there is the world: who has read it need not read it again */
    int64_t offset;
    int64_t shape_and_strides[2 * SHOAL_MAX_DIMS];
} sh_description;

/* The description of a tensor, shared first; borrowed from the tensor, which keeps it as long as it is true. Errors: as
 * shoal_tensor_share. */
shoal_err sh_share_describe_tensor(shoal_tensor *t, shoal_block **out_description);

/* A tensor for this process; the caller's. NULL: SHOAL_ECORRUPT, SHOAL_ENOMEM. */
shoal_tensor *sh_share_tensor_of(shoal_block *description);

/* The same from a tensor that was here before (tensor/recycled.h), when the description says what it said then. The tensor takes
 * over the caller's reference to the description. NULL, and nothing happened: there is none. */
shoal_tensor *sh_share_tensor_again(shoal_block *description);

#endif
