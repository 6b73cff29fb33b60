/* An optimiser's state in shared memory: a map of its names to tensors. */
#ifndef SH_TRAIN_STATE_H
#define SH_TRAIN_STATE_H

#include <shoal/optim.h>
#include <shoal/value.h>

/* Zeroed tensors, one for each that the optimiser, which is prepared, has; the caller's. NULL: SHOAL_ENOMEM. */
shoal_value *sh_state_zeros(shoal_optimizer *optimizer);

/* From now on the optimiser's state is in these tensors. */
shoal_err sh_state_adopt(shoal_optimizer *optimizer, const shoal_value *state);

#endif
