/* The work of other processes that this process's stream was told to wait for since the last host wait, which must notice if
 * some of it was lost. Under SH_CARD_LOCK_STATE, not SH_CARD_LOCK_ORDER: that one is held during calls of the driver, which may
 * wait until such work is done or lost. */
#ifndef SH_DEVICE_CUDA_WAITS_H
#define SH_DEVICE_CUDA_WAITS_H

#include "shm/timeline.h"

/* Returns false if there is no memory. */
bool sh_cuda_waits_add(sh_work work);

/* Checks whether this work, or later work of the same process, is among the waits, or among these. */
bool sh_cuda_waits_have(sh_work work);
bool sh_cuda_is_among(const sh_work *works, size_t count, sh_work work);

/* Returns how many waits are not over. Lost ones count, but the stream is let go. tells: the caller reports the lost ones, so
 * they are forgotten. *out_lost becomes true if one is lost. */
size_t sh_cuda_waits_look(bool tells, bool *out_lost);

void sh_cuda_waits_forget(void);

#endif
