/* Copies a model, with separate parameters. */
#ifndef SH_TRAIN_CLONE_H
#define SH_TRAIN_CLONE_H

#include <shoal/nn.h>

/* Returns a model with the same module types, settings and values in separate shared memory. The caller owns it. A
 * parameter with two names is one parameter here too. Returns NULL on failure. Errors: SHOAL_ENOMEM, SHOAL_ENOENT if
 * the program has not registered a module type. */
shoal_module *sh_clone_module(shoal_module *module);

#endif
