/* The table of messages that are out: taken from an acknowledged queue, but owned by the queue until their receiver
 * says that it is done (ipc/delivery.c). Recovery walks it, so its layout is here.
 *
 * STATES of an entry
 *
 *   phase     reference   owner          who may swap the state            to
 *   EMPTY     0           0              a receiver                        CLAIMED, its own
 *   CLAIMED   0, or set   a receiver     its owner                         OUT, RETURNED, REFUSED or EMPTY
 *   OUT       set         a receiver     its owner                         FINISHING, RETURNED, CLAIMED
 *                                        a receiver, once its lease ended  CLAIMED, its own
 *   RETURNED  set         0              a receiver                        CLAIMED, its own
 *   REFUSED   set         0              a receiver, from retry_at on      CLAIMED, its own
 *   FINISHING set, or 0   a receiver     its owner                         EMPTY
 *   any with an owner                    the owner's recovery, or its end  RETURNED, or EMPTY if there is no message
 *
 * Only an entry's owner writes its other words, in CLAIMED and FINISHING. The serial grows with each claim, so a
 * receiver that was too slow cannot take an entry's next message for its own.
 *
 * RETURNED waits for any receiver. REFUSED has reached the limit of deliveries and goes to the queue for rejects, which
 * had no room for it: receivers try again from time to time, and deliver other messages meanwhile.
 *
 * A message moves from the ring into the entry, and from there into a queue for rejects, by the swap of a ring entry
 * (SH_INTENT_ENTRY) whose cell is `reference`; it is released by SH_INTENT_RELEASE with that cell. So it is in exactly
 * one place, whichever process dies.
 *
 * READERS. A receiver draws its own weight of the message while it is CLAIMED, and reads it in OUT. Its lease may end
 * under it: then the message goes to another receiver, or into the queue for rejects and to whoever gets it there,
 * while the first one still reads. So all of them only read: each draws its own weight of every object that the message
 * refers to, and the references stay in the message until its last holder releases it. A plain get moves the references
 * out of a message instead, but only if it holds the whole weight of the message, so that there is no other reader
 * (sh_block_is_sole_holder).
 *
 * COUNT. `deliveries` is incremented in CLAIMED, before OUT, so a receiver that dies while it reads counts. If it fails
 * to read the message (no memory, too many holders), it takes the entry back from OUT to CLAIMED and undoes that:
 * nobody has seen the message. Only if its lease has ended by then, and another receiver has the message, it counts.
 *
 * BOUNDS. An entry is due at the time from which a receiver may claim it:
 *
 *   EMPTY                      never
 *   FINISHING                  far away: after every time, but before never
 *   CLAIMED                    the same; or until, if that is later than now: the lease that it is about to get
 *   OUT                        until; far away without a lease
 *   RETURNED                   0, which is now
 *   REFUSED                    the queue's retry_at
 *
 * Above the entries is a tree of bounds: a word for every 64 entries, a word for every 64 of these, and so on up to one
 * word per table, and the queue's `due` for all tables. A bound is not later than anything below it is due:
 *
 *     bound  <=  min(due of the entries below)          unless a process is between (1) and (2)
 *
 * So one load tells whether there is anything to claim, when the next lease ends, and whether anything is out at all.
 * A get looks only below bounds that have passed. Bounds may be too early, so new tables begin with zeros; a process
 * that looks and finds nothing raises them.
 *
 *   lower, after each change of an entry       (1) store the state; full barrier
 *   to an earlier time                         (2) each bound above, from below: if it is later, store the time;
 *                                                  if it is a tag, store 0
 *   raise, during a walk                       (3) swap the bound for a tag: a number that no process ever used before,
 *                                                  which counts as 0
 *                                              (4) read everything below
 *                                              (5) swap the tag for the minimum; if the tag is gone, do nothing
 *
 * All accesses to bounds and the loads of (4) are sequentially consistent. If (2) finds the bound as it was before (3),
 * then (4) sees the state of (1). If (2) comes later, it finds the tag and removes it, so that (5) fails; or it finds
 * the minimum and lowers it.
 * death: or a stop, between (3) and (5): the bound counts as 0, and the next process that looks replaces the tag.
 * death: between (1) and (2): recovery lowers the bounds of all entries of every queue that the dead process held. A
 * stop between (1) and (2) can hide one message, the one that the stopped process had returned: a receiver that finds
 * none ignores the bounds once a second, and finds it. For a lease, (2) is done before (1), too, so that a receiver
 * that is
 * stopped between them does not keep its message. */
#ifndef SH_SHM_DELIVERIES_H
#define SH_SHM_DELIVERIES_H

#include "shm/kind.h"

typedef enum sh_delivery_phase {
    SH_DELIVERY_EMPTY,
    SH_DELIVERY_CLAIMED,
    SH_DELIVERY_OUT,
    SH_DELIVERY_RETURNED,
    SH_DELIVERY_REFUSED,
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

#define SH_DUE_FAR (INT64_MAX / 2)
#define SH_DUE_NEVER INT64_MAX

/* A table as a process knows it. */
typedef struct sh_delivery_table {
    sh_deliveries_shm *shm;
    uint64_t count; /* entries */
} sh_delivery_table;

/* Returns the size of a table with that many entries, and its bounds. */
uint64_t sh_delivery_table_bytes(uint64_t count);

/* Returns false if the block is not a table. */
bool sh_delivery_table_open(const sh_found *f, sh_delivery_table *out_table);

/* Returns the time before which nothing in the queue is due; SH_DUE_NEVER: all entries are empty. */
int64_t sh_deliveries_due(sh_queue_shm *queue);

/* Called after entry n has changed, and a full barrier: lowers the bounds above it. */
void sh_deliveries_lower(sh_queue_shm *queue, const sh_delivery_table *table, uint64_t n, int64_t due);

/* A walk over the entries that are due. */
typedef struct sh_delivery_walk {
    sh_queue_shm *queue;
    int64_t limit;    /* visit the entries that are due by then */
    bool all;         /* ignore the bounds */
    uint64_t visited; /* by each */

    /* Visits an entry. state: as the walk saw it; number: of the entry, counted over all tables. Returns whether to
     * stop the walk. */
    bool (*each)(struct sh_delivery_walk *walk, const sh_delivery_table *table, uint64_t n, uint64_t number,
                 uint64_t state);
    void *context;
} sh_delivery_walk;

typedef enum sh_walk_result {
    SH_WALK_DONE,    /* all due entries were visited */
    SH_WALK_STOPPED, /* by each */
    SH_WALK_UNKNOWN, /* there are more tables than the caller knows */
} sh_walk_result;

/* Walks over the tables and raises their bounds. */
sh_walk_result sh_deliveries_walk(sh_delivery_walk *walk, const sh_delivery_table *tables, uint32_t count);

/* Gives the messages that the process had taken from the queue back to it. The process died and its open operation is
 * finished, or it ends. Works on behalf of c, and may be repeated. */
void sh_deliveries_give_back(sh_ctx *c, const sh_found *queue, sh_owner gone);

/* The same for all queues to which the cells of the slot refer. */
void sh_deliveries_give_back_all(sh_ctx *c, sh_owner gone);

#endif
