/* Which words of a block are references, and what else happens when a block of a kind dies. The layouts of all kinds
 * that refer to other blocks are here, because recovery and audit must walk them.
 *
 * Every such block begins with two words for the destroy stack: the next dying block, and the progress
 * of releasing its references. */
#ifndef SH_SHM_KIND_H
#define SH_SHM_KIND_H

#include "shm/heap.h"
#include "sync/park.h"
#include "sync/peers.h"

#include <shoal/handle.h>

/* More cells of a slot. next refers to the older chunk. */
typedef struct sh_cells_shm {
    sh_a64 destroy[2];
    sh_a64 next;
    sh_a64 cells[];
} sh_cells_shm;

/* A message: count references, then the bytes. Its sender writes it before it is published; it is read-only
 * afterwards. */
typedef struct sh_message_shm {
    sh_a64 destroy[2];
    sh_a64 count; /* number of references | 2^32 * flags | 2^33 * (size of the blocks that came with it, in 4 KiB) */
    sh_a64 size;  /* of the bytes */
    sh_a64 references[];
} sh_message_shm;

/* Two references and bytes: proc/ says what they mean. */
typedef struct sh_task_shm {
    sh_a64 destroy[2];
    sh_a64 argument; /* reference to a message */
    sh_a64 result;   /* reference to a message */
    sh_a64 words[];  /* up to the size of the block: plain words, owned by the user of the record */
} sh_task_shm;

/* The position of one side of a ring, puts or takes: ring.h. Synchronisation: hint: any process, plain stores, may go
 * back. base: any process, upward by compare-and-swap. */
typedef struct sh_ring_side {
    sh_a64 hint;
    sh_a64 base;
} __attribute__((aligned(SH_CACHE_LINE))) sh_ring_side;

/* A ring of entries; see ipc/ring.h. An entry of a kind that refers to a block has the reference in its hi word. */
typedef struct sh_ring_shm {
    sh_a64 destroy[2];
    sh_a64 next;  /* reference to the ring that follows this one; set once */
    sh_a64 order; /* log2 of the number of entries */
    sh_a64 unused[4];
    sh_ring_side tail; /* puts */
    sh_ring_side head; /* takes */
    sh_a128 entries[] __attribute__((aligned(SH_CACHE_LINE)));
} sh_ring_shm;

#define SH_RING_ORDER_MIN 4
#define SH_RING_ORDER_MAX 31

/* State word of an entry: lap 23 | closing 1 | kind 4 | tag 36. */
typedef enum sh_entry_kind {
    SH_ENTRY_EMPTY,
    SH_ENTRY_CLOSED,  /* the ring ends here: continue in the next one */
    SH_ENTRY_BYTES_0, /* 0 to 8 bytes in the word: BYTES_0 + n */
    SH_ENTRY_BYTES_8 = SH_ENTRY_BYTES_0 + 8,
    SH_ENTRY_INT,
    SH_ENTRY_FLOAT,
    SH_ENTRY_BLOCK,   /* the word is a reference to the block that was sent */
    SH_ENTRY_MESSAGE, /* the word is a reference to a message */
} sh_entry_kind;

#define SH_ENTRY_KIND_SHIFT SH_TAG_BITS
#define SH_ENTRY_CLOSING_SHIFT (SH_TAG_BITS + 4)
#define SH_ENTRY_CLOSING (UINT64_C(1) << SH_ENTRY_CLOSING_SHIFT)
#define SH_ENTRY_LAP_SHIFT (SH_TAG_BITS + 5)
#define SH_ENTRY_LAP_MASK ((UINT64_C(1) << 23) - 1)

static inline sh_entry_kind sh_entry_kind_of(uint64_t state)
{
    return (sh_entry_kind)((state >> SH_ENTRY_KIND_SHIFT) & 15);
}

/* A queue. Synchronisation: written once, before other processes can see it: rings (the first ring), deliveries (the
 * first table) and rejects (a queue), both 0 unless it is acknowledged; of_pipe, bound, most_bytes, lease, most. flags:
 * or-ed. put_bytes, taken_bytes: upward, by whoever puts and takes; taken_bytes may also be corrected. done: task_done,
 * upward by compare-and-swap. due, retry_at: deliveries.h. dropped: a statistic. gates: park.h. */
typedef struct sh_queue_shm {
    sh_a64 destroy[2];
    sh_a64 rings;
    sh_a64 deliveries;
    sh_a64 rejects;
    sh_a64 bound;
    sh_a32 flags;
    sh_a32 of_pipe; /* 1: it is one direction of a pipe */
    sh_a64 done;
    sh_gate not_empty __attribute__((aligned(SH_CACHE_LINE)));
    sh_gate not_full;
    sh_gate all_done;
    sh_a32 unused2;
    sh_a64 due;      /* the bound of all tables of deliveries */
    sh_a64 retry_at; /* when to offer refused messages to rejects again, sh_now time */
    sh_a64 lease;    /* ns; 0: none */
    sh_a64 most;     /* the limit of deliveries of one message; 0: none */
    sh_a64 dropped;
    sh_a64 most_bytes, put_bytes, taken_bytes; /* ipc/queue_steps.h */
} sh_queue_shm;

#define SH_QUEUE_CLOSED 1u
#define SH_QUEUE_ACKNOWLEDGED 2u

/* A table of the messages of an acknowledged queue that are out; deliveries.h. */
typedef struct sh_delivery_shm {
    sh_a64 reference; /* to the message, while there is one */
    sh_a64 state;
    sh_a64 deliveries; /* the number for this message, including the current one */
    sh_a64 until;      /* while it is OUT: when its lease ends, sh_now time */
} sh_delivery_shm;

typedef struct sh_deliveries_shm {
    sh_a64 destroy[2];
    sh_a64 next;               /* reference to a table with more; set once */
    sh_a64 count;              /* of entries; written once, before other processes can see it */
    sh_delivery_shm entries[]; /* then the bounds */
} sh_deliveries_shm;

/* One end of a pipe: references to the queue that it reads and the queue that it writes (0: none). When the end dies,
 * both are closed. */
typedef struct sh_pipe_shm {
    sh_a64 destroy[2];
    sh_a64 reads;
    sh_a64 writes;
} sh_pipe_shm;

/* A condition: its lock (a block of SH_KIND_RLOCK, which recovery finds separately) and the queue of its waiters. */
typedef struct sh_condition_shm {
    sh_a64 destroy[2];
    sh_a64 lock;
    sh_a64 waiters;
    sh_a32 lost; /* notifications of waiters that died before they could act. Recovery adds, another waiter takes */
    sh_a32 unused;
} sh_condition_shm;

/* A waiter at a condition, with its own word to park on (ipc/condition.c). Synchronisation: state by compare-and-swap
 * from WAITING, and from NOTIFIED; owner and condition written once, before other processes can see it. */
typedef enum sh_waiter_state {
    SH_WAITER_WAITING,
    SH_WAITER_NOTIFIED,
    SH_WAITER_CANCELLED, /* its timeout expired first */
    SH_WAITER_DONE,      /* notified, and it holds the lock again */
    SH_WAITER_LOST,      /* notified, and it died before it held the lock */
} sh_waiter_state;

typedef struct sh_waiter_shm {
    sh_gate gate;
    sh_a32 state;
    sh_a32 owner;
    sh_a32 unused;
    sh_a64 condition; /* id */
} sh_waiter_shm;

/* Card memory (granule.h). Synchronisation: written once, by its maker, before other processes can see it; serial last,
 * a release. */
typedef struct sh_granule_shm {
    sh_a64 destroy[2];
    sh_a64 serial; /* 0: not complete */
    sh_a64 size;
    sh_a64 uuid[2]; /* of the card: 16 bytes */
} sh_granule_shm;

/* A part of a granule (granule.h). Synchronisation: work: any holder, a release; the rest is written once, by its
 * maker, before other processes can see it. */
typedef struct sh_piece_shm {
    sh_a64 destroy[2];
    sh_a64 granule; /* reference */
    sh_a64 offset;
    sh_a64 size;
    sh_a64 work; /* an sh_work (timeline.h) */
} sh_piece_shm;

/* What this layer must know of a kind. kind.c has one row per kind. */
typedef struct sh_kind_row {
    const char *name;  /* for error texts */
    shoal_kind shared; /* the public kind; SHOAL_KIND_NONE: users never see one */
    bool is_private;   /* part of another object: a message cannot refer to it */

    /* Finds the references that the block holds. NULL: it holds none. */
    sh_a64 *(*next_reference)(const sh_found *f, sh_a64 *progress);
    uint32_t reference_end; /* for a kind with fixed references: they are the words from 2 up to this one */

    /* Of the object's struct. The functions below are called only for a block that has room for it; each may be
     * NULL. */
    size_t size;
    void (*wake)(void *object);  /* wakes those at the object who may have lost a wake-up by a death */
    void (*dying)(void *object); /* called before a block of the kind is freed; may be called again */
    void (*holder_ended)(void *object, sh_owner dead, bool died); /* see sh_kind_holder_ended */
    void (*repair)(void *lock, sh_owner dead);                    /* releases a lock that the dead process held */
    sh_owner (*owner)(void *lock);                                /* who holds the lock; 0: nobody */
} sh_kind_row;

extern const sh_kind_row sh_kinds[SH_KIND_COUNT];

/* Returns the row of a kind. The kind was read from shared memory, so it may be nonsense: then returns an empty row. */
const sh_kind_row *sh_kind_look_up(sh_kind kind);

/* Returns the next word of the block that holds a reference, from *progress on, or NULL. Sets *progress to its place,
 * so the next call returns it again unless it is 0 by then. Skips a reference word of 0. Everything is checked against
 * the block's size: its bytes may be nonsense. */
sh_a64 *sh_kind_next_reference(const sh_found *f, sh_a64 *progress);

/* Called first when a block of the kind dies; may be called again. */
void sh_kind_dying(const sh_found *f);

/* Called when recovery finds this reference among those of a process that ended. died: it did not end normally, and it
 * was a participant in the object. Passes on a notification that the process can no longer act on, wakes as
 * sh_kind_wake and, if it died, breaks a barrier. */
void sh_kind_holder_ended(const sh_found *f, sh_owner dead, bool died);

/* Wakes those at the object who may have lost a wake-up by a death. */
void sh_kind_wake(const sh_found *f);

/* For locks. repair: releases the lock if the dead process holds it. owner: returns who holds it (0: nobody, or the
 * block is not a lock). */
void sh_kind_repair(const sh_found *f, sh_owner dead);
sh_owner sh_kind_owner(const sh_found *f);

/* Returns the name of a public kind, such as "queue". */
const char *sh_kind_shared_name(shoal_kind kind);

#endif
