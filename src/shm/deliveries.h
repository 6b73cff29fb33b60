/* The table of messages that are out: taken from an acknowledged queue, but owned by the queue until their receiver
 * says that it is done (ipc/delivery.c). Recovery walks it, so its layout is here.
 *
 *   phase     reference   owner          who may swap the state            to
 *   EMPTY     0           0              a receiver                        CLAIMED, its own
 *   CLAIMED   0, or set   a receiver     its owner                         OUT, RETURNED or EMPTY
 *   OUT       set         a receiver     its owner                         FINISHING, RETURNED; extend: OUT, new serial
 *                                        a receiver, once its lease ended  CLAIMED, its own
 *   RETURNED  set         0              a receiver                        CLAIMED, its own
 *   FINISHING set, or 0   a receiver     its owner                         EMPTY
 *   any with an owner                    the owner's recovery, or its end  RETURNED, or EMPTY if there is no message
 *
 * Only an entry's owner writes its other words, in CLAIMED and FINISHING; `until` also in OUT. The serial grows with
 * each change of owner, so a receiver that was too slow cannot take an entry's next message for its own.
 *
 * A message moves from the ring into the entry, and from there into a queue for rejects, by the swap of a ring entry
 * (SH_INTENT_ENTRY) whose cell is `reference`; it is released by SH_INTENT_RELEASE with that cell. So it is in exactly
 * one place, whichever process dies. */
#ifndef SH_SHM_DELIVERIES_H
#define SH_SHM_DELIVERIES_H

#include "shm/kind.h"

typedef enum sh_delivery_phase {
    SH_DELIVERY_EMPTY,
    SH_DELIVERY_CLAIMED,
    SH_DELIVERY_OUT,
    SH_DELIVERY_RETURNED,
    SH_DELIVERY_FINISHING,
} sh_delivery_phase;

/* State: serial 31 | phase 3 | owner 30. */
#define SH_DELIVERY_SERIAL (UINT64_C(1) << (SH_OWNER_BITS + 3))

static inline sh_delivery_phase sh_delivery_phase_of(uint64_t state)
{
    return (sh_delivery_phase)((state >> SH_OWNER_BITS) & 7);
}

static inline sh_owner sh_delivery_owner_of(uint64_t state)
{
    return (sh_owner)(state & SH_OWNER_MASK);
}

/* Keeps the serial. */
static inline uint64_t sh_delivery_state(uint64_t before, sh_delivery_phase phase, sh_owner owner)
{
    return (before & ~(SH_DELIVERY_SERIAL - 1)) | (uint64_t)phase << SH_OWNER_BITS | owner;
}

/* Gives the messages that the process had taken from the queue back to it. The process died and its open operation is
 * finished, or it ends. Works on behalf of c, and may be repeated. */
void sh_deliveries_give_back(sh_ctx *c, const sh_found *queue, sh_owner gone);

/* The same for all queues to which the cells of the slot refer. */
void sh_deliveries_give_back_all(sh_ctx *c, sh_owner gone);

/* Called after an entry became RETURNED: wakes the receivers. */
void sh_deliveries_tell(sh_queue_shm *queue);

#endif
