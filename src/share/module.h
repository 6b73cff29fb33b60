/* A module as other processes see it: a record of SH_KIND_MODULE that refers to the description of every parameter and buffer, and
 * whose bytes say which kinds with which settings to build. */
#ifndef SH_SHARE_MODULE_H
#define SH_SHARE_MODULE_H

#include "share/description.h"

#include <shoal/share.h>

/* A record of the module, which is shared first; the caller's. Errors: as shoal_module_share. */
shoal_err sh_share_describe_module(shoal_module *module, shoal_block **out_record);

/* A module of the same kinds over the same parameters; the caller's. NULL: SHOAL_ECORRUPT, SHOAL_ENOMEM, SHOAL_ENOENT for a kind that
 * this program has not registered. */
shoal_module *sh_share_module_of(shoal_block *record);

#endif
