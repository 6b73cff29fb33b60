/* A second model like the first, with parameters of its own. */
#ifndef SH_TRAIN_CLONE_H
#define SH_TRAIN_CLONE_H

#include <shoal/nn.h>

/* The same kinds, settings and values, in shared memory of its own; the caller's. A parameter under two names is one here too. NULL:
 * SHOAL_ENOMEM, SHOAL_ENOENT for a kind that the program has not registered. */
shoal_module *sh_clone_module(shoal_module *module);

#endif
