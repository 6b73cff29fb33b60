/* Objects in a value, as this process uses them: they stay attached to the value. */
#ifndef SH_SHARE_VALUE_H
#define SH_SHARE_VALUE_H

#include "ipc/value.h"

/* Returns what the value's object is in this process, for the public call of that name. The first call makes it; the
 * value owns it. Returns NULL and sets SHOAL_ETYPE if the value is not an object of that kind, SHOAL_ESTATE if this
 * process has left its world, or the error of make. */
void *sh_share_value_read(const shoal_value *value, shoal_kind kind, const char *call, void *(*make)(shoal_block *),
                          void (*drop)(void *));

#endif
