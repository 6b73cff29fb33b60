/* An optimiser's state in shared memory: a map from names to tensors. */
#ifndef SH_TRAIN_STATE_H
#define SH_TRAIN_STATE_H

#include <shoal/optim.h>
#include <shoal/value.h>

/* Prepares the optimiser, and returns zeroed tensors, one for each of its. The caller owns them. Returns NULL and sets
 * SHOAL_ENOMEM if there is no memory. NULL, an optimiser that could not be created, gives NULL with its error. */
shoal_value *sh_state_zeros(shoal_optimizer *optimizer);

/* Makes the optimiser keep its state in these tensors from now on. */
shoal_err sh_state_adopt(shoal_optimizer *optimizer, const shoal_value *state);

#endif
