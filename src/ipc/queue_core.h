/* The core of a queue: its rings as one sequence of positions, and waiting. queue.c has the public calls.
 *
 * "Inside" means between sh_enter (or sh_enter_held) and sh_leave; "anywhere" means inside or not. */
#ifndef SH_IPC_QUEUE_CORE_H
#define SH_IPC_QUEUE_CORE_H

#include "ipc/ring.h"
#include "shm/block.h"
#include "shm/deliveries.h"

#define SH_RINGS_MAX (SH_RING_ORDER_MAX + 1)

/* A message that was taken from the ring. */
typedef struct sh_taken {
    sh_entry_kind kind;
    uint64_t word;
    shoal_block *block; /* for BLOCK and MESSAGE; the caller owns one reference */
} sh_taken;

#define SH_PENDING_MAX 16

#define SH_TABLES_MAX 24

typedef enum sh_queue_get_mode {
    SH_GET_EARLY = 1,   /* the last fast get came before its message: see sh_queue_peek_fast */
    SH_GET_PENDING = 2, /* there are pending messages: no fast get */
    SH_GET_SLOW = 4,    /* an acknowledged queue: never a fast get */
} sh_queue_get_mode;

/* What this process knows about the rings, in block->extra. rings[i] is written once, inside, before count includes it,
 * so it can be read anywhere. get_mode is read and written inside, or by the only thread of the process. */
typedef struct sh_queue_view {
    sh_a32 count;
    sh_a32 put, get;             /* the rings where this process puts and gets: these only increase */
    uint32_t get_mode;           /* sh_queue_get_mode */
    sh_ring rings[SH_RINGS_MAX]; /* next to the words above: every message needs both */

    /* Messages that this process took and had no memory to decode, oldest first: its next get starts with them. Written
     * inside; the count is read anywhere. They belong to the process that took them, not to a forked child of it. */
    sh_a32 pending_count;
    sh_owner pending_owner;
    sh_taken pending[SH_PENDING_MAX];

    /* Bytes that this process put and took, and that are not yet in put_bytes and taken_bytes of the queue. Used like
     * get_mode. */
    uint64_t put_bytes, taken_bytes;
    int64_t full_since; /* every look since then found too many bytes in the queue; 0: the last one found room */

    sh_a32 watch; /* index among the watched queues + 1; 0: nobody asked for an fd (watch.c) */

    /* For an acknowledged queue: its tables, in the same way as the rings. Used inside: the number of the entry that
     * this process claimed last, the state of a random generator, and when to ignore the bounds (deliveries.h). */
    sh_a32 table_count;
    sh_delivery_table tables[SH_TABLES_MAX];
    uint64_t last_entry;
    uint64_t random;
    int64_t all_at;
} sh_queue_view;

static inline sh_queue_shm *sh_queue_shm_of(const shoal_block *queue)
{
    return (sh_queue_shm *)queue->data;
}

static inline bool sh_queue_is_closed(const shoal_block *queue)
{
    return (sh_load_acquire(&sh_queue_shm_of(queue)->flags) & SH_QUEUE_CLOSED) != 0;
}

/* Returns whether the handle, of any kind or NULL, is an acknowledged queue. Returns false also if this process has no
 * heap or is exiting; the next step then fails. */
static inline bool sh_queue_is_acknowledged(const shoal_block *queue)
{
    return queue != NULL && sh_attachment_now() == SH_ATTACHED && queue->kind == SH_KIND_QUEUE &&
           queue->size >= sizeof(sh_queue_shm) &&
           (sh_load_acquire(&sh_queue_shm_of(queue)->flags) & SH_QUEUE_ACKNOWLEDGED) != 0;
}

static inline sh_queue_view *sh_queue_view_of(const shoal_block *queue)
{
    return queue->extra;
}

/* Inside: checks that the handle is a queue and creates the view at its first use in this process. `what` is for error
 * texts. */
shoal_err sh_queue_prepare_slow(shoal_block *queue, const char *what);

static inline bool sh_queue_is_prepared(const shoal_block *queue)
{
    return __builtin_expect(queue != NULL && queue->extra != NULL && queue->kind == SH_KIND_QUEUE, 1);
}

static inline shoal_err sh_queue_prepare(shoal_block *queue, const char *what)
{
    return sh_queue_is_prepared(queue) ? SHOAL_OK : sh_queue_prepare_slow(queue, what);
}

/* Inside: opens ring number n, which is known already or is the one after the last known. */
shoal_err sh_queue_open_ring(shoal_block *queue, uint32_t n);

/* Inside: looks at the oldest message. Returns EMPTY, DONE, or BROKEN with the error set. */
sh_ring_result sh_queue_peek(shoal_block *queue, const sh_ring **out_ring, sh_peek *out_peek);

/* What goes into the ring: one word, and the block that its reference comes from. */
typedef struct sh_put {
    sh_entry_kind kind;
    uint64_t word;
    shoal_block *given;  /* the caller's reference goes into the queue, and the caller loses it: a message, a block */
    shoal_block *shared; /* a part of its weight goes into the queue, and the caller keeps the block */
} sh_put;

shoal_err sh_queue_put_word(shoal_block *queue, const sh_put *put, int64_t timeout);

/* What a get accepts: anything, raw bytes, or an object of one shoal_kind. */
typedef int sh_want;
enum { SH_WANT_ANY = -1, SH_WANT_BYTES = -2 };

/* Gets one message. capacity is the size of the caller's buffer, for SH_WANT_BYTES. If the message does not fit,
 * out_size gets its size. */
shoal_err sh_queue_get_word(shoal_block *queue, sh_want wanted, size_t capacity, int64_t timeout, sh_taken *out,
                            size_t *out_size);

/* Keeps a message from sh_queue_get_word that could not be decoded because there was no memory. It stays with this
 * process, whose next get of any kind, by any thread, tries it first. Takes the reference in it. Anywhere but
 * inside. */
void sh_queue_keep_taken(shoal_block *queue, const sh_taken *taken);

/* What a put changes if it succeeds: the word goes into the ring, and the cell that its reference comes from gets the
 * value. */
typedef struct sh_transfer {
    uint64_t word;
    uint64_t cell; /* 0: the word has no reference */
    uint64_t value;
} sh_transfer;

/* Inside: tries once to put a word. Sets out_full only if the queue has a bound. Errors: SHOAL_ECLOSED, SHOAL_ENOMEM,
 * SHOAL_ECORRUPT. */
shoal_err sh_queue_put_once(sh_ctx *c, shoal_block *queue, sh_entry_kind kind, const sh_transfer *transfer,
                            bool *out_full);

/* Inside: stores a reference to this process's new block in a word that is set once. If another process was faster,
 * releases the block. Uses up the handle. */
void sh_queue_link(sh_ctx *c, sh_a64 *next, shoal_block *block);

/* Spins, then parks, until the predicate may have become true. Returns false if the time ran out. */
bool sh_queue_wait(shoal_block *queue, sh_wait *wait, bool (*predicate)(shoal_block *), sh_gate *gate);

/* Returns whether a get would not block. The queue must be prepared. Anywhere. */
bool sh_queue_is_ready(shoal_block *queue);

#endif
