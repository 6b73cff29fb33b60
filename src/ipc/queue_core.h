/* The engine of a queue: its rings as one line of positions, and waiting. queue.c puts the public face on it. */
#ifndef SH_IPC_QUEUE_CORE_H
#define SH_IPC_QUEUE_CORE_H

#include "ipc/ring.h"
#include "shm/block.h"

#define SH_RINGS_MAX (SH_RING_ORDER_MAX + 1)

/* A message that was taken out of the ring. */
typedef struct sh_taken {
    sh_entry_kind kind;
    uint64_t word;
    shoal_block *block; /* for BLOCK and MESSAGE: one reference is the caller's */
} sh_taken;

#define SH_PENDING_MAX 16

#define SH_TABLES_MAX 24

typedef struct sh_table_view {
    sh_deliveries_shm *shm;
    uint64_t count; /* entries */
} sh_table_view;

typedef enum sh_mood {
    SH_MOOD_EARLY = 1,   /* the last quick get came before its message: see sh_queue_peek_fast */
    SH_MOOD_PENDING = 2, /* there are pending messages: no quick get */
    SH_MOOD_SLOW = 4,    /* an acknowledged queue: never */
} sh_mood;

/* What this process knows of the rings, in block->extra. rings[i] is written once, inside, before count says so; so
 * it can be read anywhere. mood: inside, or by the only thread there is. */
typedef struct sh_queue_view {
    sh_a32 count;
    sh_a32 put, get;             /* the rings where we put and get: forward only */
    uint32_t mood;               /* sh_mood */
    sh_ring rings[SH_RINGS_MAX]; /* beside the words above: every message needs both */

    /* Messages that this process took and had no memory to decode, oldest first: its next get begins with them. Written
     * inside; the count is read anywhere. They belong to the process that took them, not to a forked child of it. */
    sh_a32 pending_count;
    sh_owner pending_owner;
    sh_taken pending[SH_PENDING_MAX];

    sh_a32 watch; /* place among the watched queues + 1; 0: nobody asked for an fd (watch.c) */

    /* Of an acknowledged queue: the tables, like the rings; and the number of the entry that we used last. */
    sh_a32 table_count;
    sh_table_view tables[SH_TABLES_MAX];
    uint64_t last_entry;
} sh_queue_view;

static inline sh_queue_shm *sh_queue_shm_of(const shoal_block *queue)
{
    return (sh_queue_shm *)queue->data;
}

static inline bool sh_queue_is_closed(const shoal_block *queue)
{
    return (sh_load_acquire(&sh_queue_shm_of(queue)->flags) & SH_QUEUE_CLOSED) != 0;
}

/* A handle of any kind, or NULL; false also in a process that has no heap, or is ending: the next step refuses then. */
static inline bool sh_queue_is_acknowledged(const shoal_block *queue)
{
    return queue != NULL && sh_the_world.attachment == SH_ATTACHED && queue->kind == SH_KIND_QUEUE &&
           queue->size >= sizeof(sh_queue_shm) &&
           (sh_load_acquire(&sh_queue_shm_of(queue)->flags) & SH_QUEUE_ACKNOWLEDGED) != 0;
}

static inline sh_queue_view *sh_queue_view_of(const shoal_block *queue)
{
    return queue->extra;
}

/* Inside: checks that it is a queue and makes the view at its first use here. `what` is for the words. */
shoal_err sh_queue_prepare_slow(shoal_block *queue, const char *what);

static inline bool sh_queue_is_prepared(const shoal_block *queue)
{
    return __builtin_expect(queue != NULL && queue->extra != NULL && queue->kind == SH_KIND_QUEUE, 1);
}

static inline shoal_err sh_queue_prepare(shoal_block *queue, const char *what)
{
    return sh_queue_is_prepared(queue) ? SHOAL_OK : sh_queue_prepare_slow(queue, what);
}

/* Inside: opens ring number n, which is one that is known or the one after. */
shoal_err sh_queue_open_ring(shoal_block *queue, uint32_t n);

/* Inside: looks at the oldest message. EMPTY, DONE, or BROKEN with the error recorded. */
sh_ring_result sh_queue_peek(shoal_block *queue, const sh_ring **out_ring, sh_peek *out_peek);

/* What goes into the ring: one word, and where its reference comes from. */
typedef struct sh_put {
    sh_entry_kind kind;
    uint64_t word;
    shoal_block *given;  /* the caller's reference goes along, and is the caller's no more: a message, a block */
    shoal_block *shared; /* a part of its weight goes along, the caller keeps it: a block */
} sh_put;

shoal_err sh_queue_put_word(shoal_block *queue, const sh_put *put, int64_t timeout);

/* What a get accepts: anything, raw bytes, or an object, by its shoal_kind. */
typedef int sh_want;
enum { SH_WANT_ANY = -1, SH_WANT_BYTES = -2 };

/* capacity: of the caller's buffer, for SH_WANT_BYTES; when the message does not fit, its size is in out_size. */
shoal_err sh_queue_get_word(shoal_block *queue, sh_want wanted, size_t capacity, int64_t timeout, sh_taken *out,
                            size_t *out_size);

/* What sh_queue_get_word gave could not be decoded for want of memory: it stays this process's, and its next get of any
 * kind, by any thread, tries it first. The reference in it is used up. Anywhere but inside. */
void sh_queue_keep_taken(shoal_block *queue, const sh_taken *taken);

/* Inside: one attempt to put a word. cell := value when done. FULL only when the queue has a bound. Errors: SHOAL_ECLOSED, SHOAL_ENOMEM,
 * SHOAL_ECORRUPT. */
shoal_err sh_queue_put_once(sh_ctx *c, shoal_block *queue, sh_entry_kind kind, uint64_t word, uint64_t cell,
                            uint64_t value, bool *out_full);

/* Inside: a new block of ours is hung up in a reference word that is set once; when another was quicker, it goes. Uses the handle up. */
void sh_queue_link(sh_ctx *c, sh_a64 *next, shoal_block *block);

/* Spins, then parks, until the predicate may have become true. False when the time is over. */
bool sh_queue_wait(shoal_block *queue, sh_wait *wait, bool (*predicate)(shoal_block *), sh_gate *gate);

/* A get would not block. The queue is prepared. Anywhere. */
bool sh_queue_is_ready(shoal_block *queue);

#endif
