/* The memory of a world, byte by byte. Two builds that disagree about anything here refuse each other (sh_layout_word).
 *
 *   0            header (one page)
 *   SH_TOPS_AT   top level of the class maps
 *   SH_SLOTS_AT  slot table: one sh_slot_shm per process
 *   SH_SPANS_AT  span table: one sh_span_shm per span
 *   SH_MAPS_AT   class maps: for each size class, which spans have free blocks
 *   SH_TIMELINES_AT  timelines of the streams of cards; without memory until a process uses a card
 *   SH_HEAP_AT   spans: free map, block metas, blocks
 *
 * The file has the length of the reservation from the start, and is sparse. Memory is committed before it is touched.
 *
 * THE LEDGER. A reference is one 64-bit word, {weight, block}, where recovery can find it: in a cell of a slot, in a
 * word of a live block (message, cell chunk, queue), or in an entry of a ring. The block's own word holds the sum:
 *
 *     for every block:   word.weight  ==  sum of the weights of all references to it            (1)
 *     word.weight == 0   <=>  free, or dying: one slot destroys it (its destroy stack)          (2)
 *
 * Sending a block splits off a part of the sender's weight, receiving it adds that to the receiver's weight; neither
 * touches the block's word. Only the first acquisition and the last release do. The word is the truth. Free maps and
 * caches are hints, which may name too many blocks but never too few:
 *
 *     for every free block:  its bit is set, or a cache of a living slot holds it,
 *                            or the open operation of some slot names it                        (3)
 *
 * TAGS. A compare-and-swap whose outcome recovery must know writes the tag {slot, sequence} of the operation into the
 * word that it changes. A process that replaces a tag first confirms that operation in its slot if it may still be open
 * there (intent.h). So the open operation of a dead slot took effect exactly if its tag is in the word, or the slot
 * says confirmed.
 */
#ifndef SH_SHM_LAYOUT_H
#define SH_SHM_LAYOUT_H

#include "sync/atomic.h"
#include "sync/lock.h"
#include "sync/park.h"

#include <shoal/world.h>

#include <stdint.h>

#define SH_MAGIC UINT64_C(0x3130306c616f6873) /* "shoal001" */
#define SH_PAGE 4096u
#define SH_UNIT 65536u /* spans begin at multiples of this */

#define SH_SLOT_BITS 12
#define SH_SLOTS 4094u /* slot number + 1 fits into SH_SLOT_BITS bits */
#define SH_SEQ_BITS 24
#define SH_SEQ_MASK ((UINT64_C(1) << SH_SEQ_BITS) - 1)
#define SH_TAG_BITS (SH_SLOT_BITS + SH_SEQ_BITS)
#define SH_TAG_MASK ((UINT64_C(1) << SH_TAG_BITS) - 1)

/* A tag names an operation. A sequence of 0 means none. */
static inline uint64_t sh_tag(uint32_t slot, uint64_t seq)
{
    return ((uint64_t)slot << SH_SEQ_BITS) | (seq & SH_SEQ_MASK);
}

/* Block ids: the span number and the number of the block in the span. */
#define SH_SPAN_BITS 22
#define SH_SPANS (1u << SH_SPAN_BITS)
#define SH_INDEX_BITS 12
#define SH_ID_BITS (SH_SPAN_BITS + SH_INDEX_BITS)
#define SH_ID_MASK ((UINT64_C(1) << SH_ID_BITS) - 1)

/* Reference word: weight in the high bits, block id in the low bits; 0 is no reference. */
typedef uint64_t sh_ref;

static inline sh_ref sh_ref_make(uint64_t id, uint64_t weight)
{
    return weight << SH_ID_BITS | id;
}

static inline uint64_t sh_ref_id(sh_ref ref)
{
    return ref & SH_ID_MASK;
}

static inline uint64_t sh_ref_weight(sh_ref ref)
{
    return ref >> SH_ID_BITS;
}

/* Block word: weight 27 | free 1 | tag 36. A weight of 0 without free: dying. */
#define SH_WORD_FREE (UINT64_C(1) << SH_TAG_BITS)
#define SH_WORD_WEIGHT_SHIFT (SH_TAG_BITS + 1)
#define SH_WEIGHT_MAX ((UINT64_C(1) << 27) - 1)
#define SH_WEIGHT_TRIM SH_WEIGHT_MAX       /* not a sum: a free block that trim holds for a moment */
#define SH_WEIGHT_NEW (UINT64_C(1) << 13)  /* what the first holder of a block gets */
#define SH_WEIGHT_MORE (UINT64_C(1) << 12) /* what a holder with too little to split draws from the block's word */
#define SH_WEIGHT_HOLD (UINT64_C(1) << 13) /* a cell with more gives back all but MORE when it receives again */

/* Why 27 bits are enough, however often a block is sent. Weight is created with NEW, once, and with MORE, when the cell
 * that draws has less than 2. It is removed by releases, and when a holder that keeps its handle and receives the block
 * again and again gives back what it has accumulated (sh_heap_give_back): a cell above HOLD is cut to MORE before it
 * receives more, and before its whole weight is sent (shoal_queue_give_block). So no message weighs more than HOLD, no
 * cell more than 2 * HOLD, and with H holders
 *
 *     word.weight  <=  H * 2 * HOLD  +  sum of the weights of all messages in flight            (4)
 *
 * 4,094 holders have at most half of the 2^27. The rest is for messages: a message weighs 16 while its sender has more
 * than MORE + 1, so 256 times, and 1 from then on. */
static inline uint64_t sh_word_make(uint64_t weight, uint64_t tag)
{
    return weight << SH_WORD_WEIGHT_SHIFT | tag;
}

static inline uint64_t sh_word_weight(uint64_t word)
{
    return word >> SH_WORD_WEIGHT_SHIFT;
}

/* What a block is. The kind says which words of it are references (kind.h). */
typedef enum sh_kind {
    SH_KIND_DATA,  /* bytes only */
    SH_KIND_CELLS, /* more cells of a slot */
    /* Cells for the references that a slot got by fork. A process that only inherited an object is not a participant in
     * it, so nobody is told of its death there; to participate, it moves the reference to another cell (sh_block_own).
     * These cells are never reused. */
    SH_KIND_INHERITED,
    SH_KIND_MESSAGE, /* a value in flight: references, then bytes */
    SH_KIND_QUEUE,
    SH_KIND_RING,
    SH_KIND_DELIVERIES, /* of an acknowledged queue: the messages that are out */
    SH_KIND_PIPE,
    SH_KIND_CONDITION,
    SH_KIND_WAITER, /* of a condition */
    SH_KIND_TASK,   /* a process's start record, a pool's task: two references, then bytes */
    SH_KIND_LOCK,
    SH_KIND_RLOCK,
    SH_KIND_SEMAPHORE,
    SH_KIND_EVENT,
    SH_KIND_BARRIER,
    SH_KIND_TENSOR, /* these three have the layout of a message: references, then bytes; see share/ */
    SH_KIND_SPARSE,
    SH_KIND_MODULE,
    SH_KIND_GRANULE, /* card memory, whose fd is in the store: see granule.h */
    SH_KIND_PIECE,   /* a part of a granule */
    SH_KIND_COUNT,
} sh_kind;

/* Block meta. Synchronisation: word: any process, by tagged compare-and-swap. info: written by the only holder of a new
 * block, and by the process that frees it; published by the word. */
typedef struct sh_meta_shm {
    sh_a64 word;
    sh_a64 info; /* kind 8 | requested size 56 */
} sh_meta_shm;

#define SH_INFO_SIZE_MASK ((UINT64_C(1) << 56) - 1)

/* Whether memory is committed. UNSURE is stored before memory is committed and before it is given back: it may be
 * there, but nobody may rely on it. */
typedef enum sh_commit_state {
    SH_COMMIT_NONE,
    SH_COMMIT_ALL,
    SH_COMMIT_UNSURE,
} sh_commit_state;

/* Span: adjacent blocks of one size class. A span is never removed, but its memory can be given back. Synchronisation:
 * base, then klass (release), by the process that took the frontier, or by its recovery; once. committed: an
 * sh_commit_state of the whole span (for classes whose blocks have no memory of their own); set by a process that
 * commits while it holds a block of the span, cleared by trim while it holds all of them. */
typedef struct sh_span_shm {
    sh_a64 base;  /* offset in the world */
    sh_a32 klass; /* size class + 1; 0: not made yet */
    sh_a32 committed;
} sh_span_shm;

/* The intent of a slot: its open operation. One at a time. Written by the process of the slot, or by its recoverer when
 * it is dead. Order: the fields, then seq, then code (release). code NONE: nothing is open. Other processes read only
 * seq and target (sh_intent_confirm). */
typedef enum sh_intent_code {
    SH_INTENT_NONE,
    SH_INTENT_ALLOC,   /* target: block word; cell := value when applied; otherwise the block is listed as free again */
    SH_INTENT_RELEASE, /* target: block word; cell := 0 when applied; at weight 0 this slot destroys the block */
    SH_INTENT_FREE,    /* target: block word; the slot's destroy stack := value; dying becomes free */
    SH_INTENT_WEIGHT,  /* target: block word; cell := value when applied */
    SH_INTENT_MOVE,    /* untagged, all words belong to this slot: *target := word, cell := value; redone */
    SH_INTENT_LINK,    /* target: a reference word that is set once: 0 -> word; applied if it is word; then cell := 0 */
    /* target: ring entry; word: its new state (without CLOSING), extra: queue id; cell := value when applied */
    SH_INTENT_ENTRY,
    /* target: map word; word: the bits being claimed, extra: span; free blocks among them are listed again */
    SH_INTENT_BITS,
    SH_INTENT_TRIM, /* extra: span; its blocks with SH_WEIGHT_TRIM and this slot in the tag become free again */
    SH_INTENT_SPAN, /* target: frontier; word: span | class << 32, extra: base; the span is finished when applied */
} sh_intent_code;

typedef struct sh_intent_shm {
    sh_a64 seq;
    sh_a64 code;
    sh_a64 target;
    sh_a64 word;
    sh_a64 cell;
    sh_a64 value;
    sh_a64 extra;
    sh_a64 unused;
} __attribute__((aligned(SH_CACHE_LINE))) sh_intent_shm;

/* Free blocks that a slot keeps: SH_CACHE_SMALL entries for each small class, SH_CACHE_LARGE for each of the others. */
#define SH_CLASSES 133
#define SH_CLASSES_SMALL 37 /* class sizes up to 64 KiB */
#define SH_CACHE_SMALL 16
#define SH_CACHE_LARGE 4
#define SH_CACHE_ENTRIES (SH_CLASSES_SMALL * SH_CACHE_SMALL + (SH_CLASSES - SH_CLASSES_SMALL) * SH_CACHE_LARGE)

/* Slot: the place of a process in the world.
 *
 * Synchronisation
 *   state       any process, by compare-and-swap: FREE -> RESERVED or ALIVE, RESERVED -> ALIVE or DEAD,
 *               ALIVE -> DEAD or FREE, DEAD -> FREE
 *   pid, start, space   the process that makes it RESERVED or ALIVE, after that, or the child that it is for; pid is 0
 *               until then, and is stored last, a release
 *   name, made_by   the process that makes it RESERVED, before it starts the child; name also if it makes it ALIVE
 *   reserves    the process of the slot, before it makes another slot RESERVED; its recoverer
 *   intent, destroying, cells, chunks   the process of the slot; its maker while RESERVED; its recoverer when DEAD
 *   confirmed   any process, upward by compare-and-swap
 *   recoverer   any process, by compare-and-swap: the process that recovers it
 *   waits       the threads of the slot's process before they sleep and after (waits.h); recovery wakes the objects
 *               named there
 *   awaits      the process of the slot; `work` is 0 while it changes `first`
 *   held, card_held, card_used   the process of the slot; statistics
 *   card_answered   the process of the slot, a release: what it had to give was given before
 *   card_bell   any process, upward, before it wakes the service thread of the slot's process (granule.h)
 *   store       the process of the slot, relaxed; a process that joins by name checks what it finds under the number
 *   cache       the process of the slot stores ids and zeros; others replace an id by 0 with compare-and-swap
 */
typedef enum sh_phase {
    SH_PHASE_FREE,
    SH_PHASE_RESERVED, /* for a child that is not there yet; may already hold references */
    SH_PHASE_ALIVE,
    SH_PHASE_DEAD, /* being recovered */
} sh_phase;

#define SH_SLOT_CELLS 60
#define SH_SLOT_WAITS 8
#define SH_SLOT_AWAITS 16
#define SH_RECOVERER_PID_MASK ((UINT64_C(1) << 22) - 1)
#define SH_SPACE_HELD (UINT64_C(1) << 32) /* the process also has the second mark (os/life_lock.h) */

/* A wait of a process's stream for a work of another process (timeline.h). */
typedef struct sh_await_shm {
    sh_a64 work;  /* 0: none */
    sh_a64 first; /* the first work of this process that comes after it */
} sh_await_shm;

typedef struct sh_slot_shm {
    sh_intent_shm intent;
    sh_a64 state; /* phase 8 | maker 12 | generation above (slot.h) */
    sh_a32 pid;
    sh_a32 leaving; /* 1: it ends normally; its recoverer reports no death */
    sh_a64 start;
    sh_a64 made_by;  /* RESERVED: the generation of the maker's slot */
    sh_a64 reserves; /* 1: it may have made other slots RESERVED; 0: its end need not look for them */
    sh_a64 confirmed;
    sh_a64 destroying; /* id + 1 of the dying block on top of the stack; 0: none */
    sh_a64 recoverer;  /* 0: nobody; otherwise namespace 10 | pid 22 | may be killed 1 | start time 31 (recovery.c) */
    sh_a64 space;      /* the pid namespace of pid, 0: unknown; SH_SPACE_HELD */
    sh_a64 chunks;     /* reference to the newest cell chunk */
    sh_a64 held;       /* the number of blocks it holds, for `shoal ps` only: racy */
    sh_a64 cells[SH_SLOT_CELLS];
    sh_a64 card_held; /* bytes of card memory that it has made, for `shoal ps` only: racy */
    sh_a64 card_used; /* bytes of these in use: the same */
    sh_a64
        card_answered; /* 1 + the last request for card memory that it has answered; 0: it answers none (granule.h) */
    sh_a32 card_bell;  /* a futex: its service thread sleeps there */
    sh_a32 store[2];   /* fd + 1 of its ends of the store (card_store.h); 0: it has none */
    char name[SHOAL_NAME_MAX + 1];
    sh_a64 cache[SH_CACHE_ENTRIES];
    sh_a64 waits[SH_SLOT_WAITS] __attribute__((aligned(SH_CACHE_LINE))); /* what its threads wait for; 0: nothing */
    sh_await_shm awaits[SH_SLOT_AWAITS];                                 /* what its card's stream waits for */
} __attribute__((aligned(SH_PAGE))) sh_slot_shm;

/* The store of card memory's fds: card_store.h.
 *
 * Synchronisation
 *   lock            lock.h; around every replacement of the set, and swept
 *   device, inode   the two sockets; written once, by the creator, before other processes can see them. inode 0: none
 *   serials         any process, upward: the serial of the newest granule
 *   died            any process, upward, when a granule's block has weight 0 and before it is free
 *   swept           under the lock: what died was when the last finished sweep began
 *   wanted          any process, upward, when the card had no memory for it: the number of the last request (granule.h)
 *   probes          any process, upward, when it has waited for another one's card for long (granule.h)
 *   answered        a gate: those who asked wait there for card_answered of the slots
 */
typedef struct sh_store_shm {
    sh_lock_shm lock;
    sh_a64 device;
    sh_a64 inode[2];
    sh_a64 serials;
    sh_a64 died __attribute__((aligned(SH_CACHE_LINE))); /* importers of card memory read it often */
    sh_a64 swept;
    sh_a64 wanted;
    sh_a32 probes;
    sh_gate answered;
} sh_store_shm;

/* A timeline: timeline.h. One cache line.
 *
 *   owner      lost_from   state
 *   0          0           free; done == issued, and the next owner goes on counting from there
 *   a process  0           in use, or its owner is dead and not recovered yet
 *   a process  n           its owner has ended, or lost its card; n and all later numbers are lost; never used again
 *
 * If poisoned_from is not 0, that number and all later ones are lost, too, whatever the owner does: they come after
 * work of another process that was lost. The owner's card does them, so nobody raises done. Such a timeline is not used
 * again either.
 *
 * Synchronisation
 *   done        the owner's card; raised to issued by the recovery of the owner, by the owner that has lost its card,
 *               and by any process that frees waiters, after lost_from is set
 *   issued      the owner, before its card can write the number
 *   lost_from   the owner's recovery, or the owner, once, a release before it raises done
 *   poisoned_from   any process, downward by compare-and-swap, before the lost work's done is raised; and the owner
 *   owner       any process, 0 -> itself, by compare-and-swap; the owner, or its recovery, -> 0
 */
typedef struct sh_timeline_shm {
    sh_a64 done;
    sh_a64 issued;
    sh_a64 lost_from;
    sh_a64 poisoned_from;
    sh_a32 owner;
    sh_a32 unused;
} __attribute__((aligned(SH_CACHE_LINE))) sh_timeline_shm;

#define SH_TIMELINES (1u << 16) /* a place in a timeline has 16 bits for it; number 0 is never used */

/* Header. Synchronisation: the fields up to `name` are written once, by the creator, before any other process can see
 * it. frontier: any process, tagged. timelines_used: any process, upward by compare-and-swap. store: see there. The
 * rest: any process, relaxed counters and hints. */
typedef struct sh_world_shm {
    sh_a64 magic;
    sh_a64 layout;
    sh_a64 reserved;
    sh_a64 heap_limit;
    sh_a32 home; /* pid namespace of the creator, 0: unknown */
    char name[SHOAL_NAME_MAX + 1];
    sh_a128 frontier __attribute__((aligned(SH_CACHE_LINE)));  /* lo: units of SH_UNIT in use; hi: spans made | tag */
    sh_a32 slots_used __attribute__((aligned(SH_CACHE_LINE))); /* no slot from this number on was ever used */
    sh_a32 timelines_used; /* no timeline from this number on was ever used; 0: they have no memory yet */
    sh_a64 swept_at;       /* time of the last step of the last sweep */
    sh_a64 recovered;      /* number of processes recovered */
    sh_a64 repaired;       /* number of locks repaired */
    sh_a32 sweep_turn;     /* the slots that the next sweep asks about in any case (slot.c) */
    sh_a32 slots_taken;    /* how many slots were not free in the last sweep; advice: processes come and go */
    sh_store_shm store __attribute__((aligned(SH_CACHE_LINE)));
} sh_world_shm;

/* Class maps: three levels of bits over span numbers. A bit of level 0 says that a span has free blocks, a bit of level
 * n + 1 that a word of level n is not 0. The top levels of all classes are together and have memory from the start. */
#define SH_MAP_0 (SH_SPANS / 64)
#define SH_MAP_1 (SH_MAP_0 / 64)
#define SH_MAP_2 (SH_MAP_1 / 64)
#define SH_MAP_BYTES (((SH_MAP_0 + SH_MAP_1) * 8u + SH_PAGE - 1) / SH_PAGE * SH_PAGE)

#define SH_TOPS_AT ((uint64_t)SH_PAGE)
#define SH_SLOTS_AT (SH_TOPS_AT + (SH_CLASSES * SH_MAP_2 * 8u + SH_PAGE - 1) / SH_PAGE * SH_PAGE)
#define SH_SPANS_AT (SH_SLOTS_AT + (uint64_t)SH_SLOTS * sizeof(sh_slot_shm))
#define SH_MAPS_AT (SH_SPANS_AT + (uint64_t)SH_SPANS * sizeof(sh_span_shm))
#define SH_TIMELINES_AT (SH_MAPS_AT + (uint64_t)SH_CLASSES * SH_MAP_BYTES)
#define SH_TIMELINES_BYTES ((uint64_t)SH_TIMELINES * sizeof(sh_timeline_shm))
#define SH_HEAP_AT ((SH_TIMELINES_AT + SH_TIMELINES_BYTES + SH_UNIT - 1) / SH_UNIT * SH_UNIT)

#define SH_RESERVE_MAX (UINT64_C(1) << 44)
#define SH_RESERVE_MIN (UINT64_C(1) << 29)

/* Returns a number that differs between builds whose shared structs differ. */
#define SH_LAYOUT_VERSION 15u
static inline uint64_t sh_layout_word(void)
{
    return (uint64_t)SH_LAYOUT_VERSION << 48 ^ (uint64_t)sizeof(sh_slot_shm) << 24 ^
           (uint64_t)sizeof(sh_world_shm) << 12 ^ (uint64_t)sizeof(sh_span_shm) ^ (uint64_t)SH_HEAP_AT << 16 ^
           (uint64_t)SH_KIND_COUNT << 56;
}

_Static_assert(sizeof(sh_world_shm) <= SH_PAGE, "the header is one page");
_Static_assert(sizeof(sh_intent_shm) == SH_CACHE_LINE, "an operation is one cache line");
_Static_assert(sizeof(sh_timeline_shm) == SH_CACHE_LINE && SH_TIMELINES_AT % SH_PAGE == 0,
               "a timeline is one cache line, and all of them are whole pages");

#endif
