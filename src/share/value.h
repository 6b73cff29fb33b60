/* What this process makes of the objects in a value stays with the value. */
#ifndef SH_SHARE_VALUE_H
#define SH_SHARE_VALUE_H

#include "ipc/value.h"

/* Keeps what was made of the value's object, which is taken over; drop lets go of it. Returns what stays: another thread may have
 * been first. NULL gives NULL. */
void *sh_value_keep(const shoal_value *value, void *made, void (*drop)(sh_made_of *));

/* False, and SHOAL_ETYPE, when the value is no object of that kind. */
bool sh_value_is_kind(const shoal_value *value, shoal_kind kind, const char *what);

#endif
