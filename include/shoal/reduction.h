/* How a loss combines the losses of a batch. */
#ifndef SHOAL_REDUCTION_H
#define SHOAL_REDUCTION_H

#include <shoal/compat.h>

/* How a loss combines the losses of the elements or samples: their mean, their sum, or not at all. */
typedef enum shoal_reduction {
    SHOAL_REDUCTION_MEAN,
    SHOAL_REDUCTION_SUM,
    SHOAL_REDUCTION_NONE,
} shoal_reduction;

#endif
