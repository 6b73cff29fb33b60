/* Descriptions of modules for other processes. A record of SH_KIND_MODULE refers to the description of every parameter
 * and buffer; its bytes say which kinds to build, with which settings. */
#ifndef SH_SHARE_MODULE_H
#define SH_SHARE_MODULE_H

#include "share/description.h"

#include <shoal/share.h>

/* Shares the module and creates a record of it, which the caller owns. Errors: as shoal_module_share. */
shoal_err sh_share_describe_module(shoal_module *module, shoal_block **out_record);

/* Builds a module of the same kinds over the same parameters, which the caller owns. Returns NULL and sets
 * SHOAL_ECORRUPT, SHOAL_ENOMEM, or SHOAL_ENOENT if this program has not registered one of the kinds. */
shoal_module *sh_share_module_of(shoal_block *record);

#endif
