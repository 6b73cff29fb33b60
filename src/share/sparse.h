/* Sparse tensors inside the library. */
#ifndef SH_SHARE_SPARSE_H
#define SH_SHARE_SPARSE_H

#include "share/description.h"

#include <shoal/share.h>

struct shoal_sparse {
    shoal_layout layout;
    bool coalesced;
    int ndim;
    int64_t shape[SHOAL_MAX_DIMS];
    shoal_tensor *indices; /* CSR: the columns */
    shoal_tensor *starts;  /* CSR only */
    shoal_tensor *values;
};

/* Describe a sparse tensor in a record, and make one from a record. The caller owns the result. */
shoal_err sh_sparse_describe(shoal_sparse *s, shoal_block **out_record);
shoal_sparse *sh_sparse_of_record(shoal_block *record);

#endif
