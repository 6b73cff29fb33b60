/* What this process makes of the objects in a value stays with the value. */
#ifndef SH_SHARE_VALUE_H
#define SH_SHARE_VALUE_H

#include "ipc/value.h"

/* For a public call of that name: what the value's object is in this process, made at the first reading and the value's. NULL:
 * SHOAL_ETYPE when the value is not an object of that kind; SHOAL_ESTATE when its world was left; what make fails with. */
void *sh_share_value_read(const shoal_value *value, shoal_kind kind, const char *call, void *(*make)(shoal_block *),
                          void (*drop)(void *));

#endif
