/* What the threads of a process wait for, stored in its slot: for `shoal ps`, which sees nothing else of a world, and
 * for recovery, which wakes the objects at which a dead process waited.
 *
 * A word names one wait:
 *
 *   bits 0-39    number: the id of the object, a pid, or a count, depending on the kind
 *   bits 40-51   slot + 1 of the process that has the lock; 0: unknown
 *   bits 52-57   kind; 0: no wait, and then the word is 0
 *
 * A slot has SH_SLOT_WAITS of them. A thread that is about to sleep takes the first free one and clears it when it is
 * awake. So the first word in use is shown for the process, and the others are counted. A thread that finds none free
 * sleeps without being shown. Between two sleeps, while a thread checks what it waits for, it is shown as not waiting.
 *
 * Synchronisation: 0 -> word: a thread of the slot's process, by compare-and-swap; word -> 0: the thread that took it,
 * or the process that frees the slot.
 * death: the word stays. Recovery wakes the object, because the dead process may have consumed the only wake-up, and
 * clears it.
 * stopped: the word stays and is true. */
#ifndef SH_SHM_WAITS_H
#define SH_SHM_WAITS_H

#include "shm/layout.h"
#include "sync/peers.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum sh_waits_kind {
    SH_WAITS_NONE,
    SH_WAITS_GET, /* up to BATCH, the number is the id of an object */
    SH_WAITS_PUT,
    SH_WAITS_DONE,    /* shoal_queue_join */
    SH_WAITS_RECEIVE, /* from a pipe; the number is the id of its queue. A pipe is never full */
    SH_WAITS_LOCK,
    SH_WAITS_RLOCK,
    SH_WAITS_SEMAPHORE,
    SH_WAITS_CONDITION,
    SH_WAITS_CONDITION_LOCK, /* the number is the id of the condition */
    SH_WAITS_EVENT,
    SH_WAITS_BARRIER,
    SH_WAITS_POOL,    /* for the answers of a pool's workers */
    SH_WAITS_TASK,    /* a pool's worker, for its next task */
    SH_WAITS_BATCH,   /* for a batch from a loader's workers */
    SH_WAITS_PROCESS, /* for the end of a process; the number is its pid */
    SH_WAITS_PROCESSES,
    SH_WAITS_ANY,     /* shoal_wait; the number is a count */
    SH_WAITS_SERVER,  /* for the answer of the fork server; its pid */
    SH_WAITS_REQUEST, /* the fork server itself; the pid of its parent */
    SH_WAITS_KINDS,
} sh_waits_kind;

#define SH_WAITS_NUMBER_BITS 40
#define SH_WAITS_HOLDER_BITS SH_SLOT_BITS
#define SH_WAITS_KIND_SHIFT (SH_WAITS_NUMBER_BITS + SH_WAITS_HOLDER_BITS)

static inline uint64_t sh_waits_name(sh_waits_kind kind, uint64_t number)
{
    return (uint64_t)kind << SH_WAITS_KIND_SHIFT | (number & ((UINT64_C(1) << SH_WAITS_NUMBER_BITS) - 1));
}

static inline uint64_t sh_waits_number(uint64_t name)
{
    return name & ((UINT64_C(1) << SH_WAITS_NUMBER_BITS) - 1);
}

static inline uint32_t sh_waits_holder(uint64_t name)
{
    return (uint32_t)(name >> SH_WAITS_NUMBER_BITS) & ((1u << SH_WAITS_HOLDER_BITS) - 1);
}

/* The kind is not checked: it may be an unknown one. */
static inline uint32_t sh_waits_kind_of(uint64_t name)
{
    return (uint32_t)(name >> SH_WAITS_KIND_SHIFT);
}

static inline bool sh_waits_is_at_object(uint64_t name)
{
    return sh_waits_kind_of(name) >= SH_WAITS_GET && sh_waits_kind_of(name) <= SH_WAITS_BATCH;
}

/* Called before the calling thread sleeps and after it is awake. holder: who has what it waits for, or 0. begin returns
 * what end gets: 0 if the wait is not shown, as outside of a world. Neither takes a lock, and a signal handler that
 * does the same may interrupt both. */
uint32_t sh_waits_begin(uint64_t name, sh_owner holder);
void sh_waits_end(uint32_t entry);

/* Shows the waits of the calling thread at objects as this kind from now on, because they serve something larger: a
 * pool that uses a queue. SH_WAITS_NONE: shows their own kinds. Returns the previous kind, to restore it. */
sh_waits_kind sh_waits_serve(sh_waits_kind kind);

/* Called by the process that frees the slot. */
static inline void sh_waits_clear(sh_slot_shm *slot)
{
    for (uint32_t i = 0; i < SH_SLOT_WAITS; i++) {
        sh_store_relaxed(&slot->waits[i], 0);
    }
}

/* Writes the wait as a text for the list; empty if the word is not a wait. slots: the table of the same world. */
void sh_waits_describe(uint64_t name, const sh_slot_shm *slots, char *buffer, size_t capacity);

#endif
