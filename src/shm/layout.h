/* The memory of a world, byte by byte. Two builds that disagree about anything here refuse each other
 * (sh_layout_word).
 *
 *   0            header (one page)
 *   SH_TOPS_AT   top level of the class maps
 *   SH_SLOTS_AT  slot table: one sh_slot_shm a process
 *   SH_SPANS_AT  span table: one sh_span_shm a span
 *   SH_MAPS_AT   class maps: for each size class, which spans have free blocks
 *   SH_HEAP_AT   spans: free map, block metas, blocks
 *
 * The file is as long as the reservation from the start, and sparse. Memory is committed before it is touched.
 *
 * THE LEDGER. A reference is one 64-bit word, {weight, block}, in a place that recovery can find: a cell of a slot,
 * a word of a live block (message, cell chunk, queue), or an entry of a ring. The block's own word holds the sum:
 *
 *     for every block:   word.weight  ==  sum of the weights of all references to it            (1)
 *     word.weight == 0   <=>  free, or dying in the hands of one slot (its destroy stack)       (2)
 *
 * Sending a block splits off a part of the sender's weight, receiving one adds the weight up, and neither touches
 * the block's word. Only the last release and the first acquisition do. The word is the truth; free maps and caches
 * are hints that may name a block too much, never one too few:
 *
 *     for every free block:  its bit is set, or a cache of a living slot holds it,
 *                            or the open operation of some slot names it                        (3)
 *
 * TAGS. Every compare-and-swap that recovery must know the outcome of writes the tag {slot, sequence} of the
 * operation into the word that it changes. Whoever replaces a tag first confirms that operation in its slot if it
 * may still be open there (intent.h). So for the open operation of a dead slot: it took effect exactly if its tag is in
 * the word, or the slot says confirmed.
 */
#ifndef SH_SHM_LAYOUT_H
#define SH_SHM_LAYOUT_H

#include "sync/atomic.h"
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

/* Tag: sequence 0 means none. */
static inline uint64_t sh_tag(uint32_t slot, uint64_t seq)
{
    return ((uint64_t)slot << SH_SEQ_BITS) | (seq & SH_SEQ_MASK);
}

/* Block ids: span number and block number in it. */
#define SH_SPAN_BITS 22
#define SH_SPANS (1u << SH_SPAN_BITS)
#define SH_INDEX_BITS 12
#define SH_ID_BITS (SH_SPAN_BITS + SH_INDEX_BITS)
#define SH_ID_MASK ((UINT64_C(1) << SH_ID_BITS) - 1)

/* Reference word: weight above, block id below; 0 is no reference. */
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

/* Block word: weight 27 | free 1 | tag 36. weight 0 without free: dying. */
#define SH_WORD_FREE (UINT64_C(1) << SH_TAG_BITS)
#define SH_WORD_WEIGHT_SHIFT (SH_TAG_BITS + 1)
#define SH_WEIGHT_MAX ((UINT64_C(1) << 27) - 1)
#define SH_WEIGHT_TRIM SH_WEIGHT_MAX       /* not a sum: a free block that trim holds for a moment */
#define SH_WEIGHT_NEW (UINT64_C(1) << 13)  /* what the first holder of a block gets */
#define SH_WEIGHT_MORE (UINT64_C(1) << 12) /* what a holder that has too little to split draws from the block's word */
#define SH_WEIGHT_HOLD (UINT64_C(1) << 13) /* a cell that has more gives all but MORE back when it receives again */

/* Why 27 bits are enough, however often a block is sent. Weight comes into the world with NEW, once, and with MORE, when
 * the cell that draws has less than 2. It goes with releases, and when a holder that keeps its handle and receives the
 * block again and again gives back what it has gathered (sh_heap_give_back): a cell above HOLD is cut to MORE before it
 * receives more, and before it goes away as a whole (shoal_queue_give_block). So no message weighs more than HOLD, no
 * cell more than 2 * HOLD, and with H holders
 *
 *     word.weight  <=  H * 2 * HOLD  +  sum of the weights of all messages under way            (4)
 *
 * 4,094 holders have at most half of the 2^27. The rest is for messages: one that is put weighs 16 while the sender has more
 * than MORE + 1, so 256 times, and 1 from then on. */
static inline uint64_t sh_word_make(uint64_t weight, uint64_t tag)
{
    return weight << SH_WORD_WEIGHT_SHIFT | tag;
}

static inline uint64_t sh_word_weight(uint64_t word)
{
    return word >> SH_WORD_WEIGHT_SHIFT;
}

/* What a block is: which words of it are references (kind.h). */
typedef enum sh_kind {
    SH_KIND_DATA,  /* bytes only */
    SH_KIND_CELLS, /* more cells of a slot */
    /* Cells of what a slot was born with, by fork. Who only inherited an object takes no part in what it is for, so its death tells
     * nobody there; to take part, it moves the reference to another cell (sh_block_own). They are not used for anything else later. */
    SH_KIND_INHERITED,
    SH_KIND_MESSAGE, /* a value on its way: references, then bytes */
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
    SH_KIND_TENSOR, /* these three are laid out like a message: references, then bytes; see share/ */
    SH_KIND_SPARSE,
    SH_KIND_MODULE,
    SH_KIND_COUNT,
} sh_kind;

/* Block meta. Synchronisation: word: any process, by tagged compare-and-swap. info: written by the one holder of a
 * new block, and by the one who frees it; published by the word. */
typedef struct sh_meta_shm {
    sh_a64 word;
    sh_a64 info; /* kind 8 | size as asked 56 */
} sh_meta_shm;

#define SH_INFO_SIZE_MASK ((UINT64_C(1) << 56) - 1)

/* Is there memory? UNSURE is said before it comes and before it goes: it may be there, but nobody counts on it. */
typedef enum sh_commit_state {
    SH_COMMIT_NONE,
    SH_COMMIT_ALL,
    SH_COMMIT_UNSURE,
} sh_commit_state;

/* Span: blocks of one size class, side by side. Never taken back; its memory can be. Synchronisation: base, then
 * klass (release), by the process that took the frontier, or by its recovery; once. committed: an sh_commit_state of the
 * whole span (classes without memory of their own per block); set by who commits while it holds a block of the span,
 * cleared by trim while it holds all of them. */
typedef struct sh_span_shm {
    sh_a64 base;  /* offset in the world */
    sh_a32 klass; /* size class + 1; 0: not made yet */
    sh_a32 committed;
} sh_span_shm;

/* The operation that a slot has open. One at a time. Written by the process of the slot, or by its recoverer when it
 * is dead. Order: the fields, then seq, then code (release). code NONE: nothing is open. Others read seq and target
 * only (sh_intent_confirm). */
typedef enum sh_intent_code {
    SH_INTENT_NONE,
    SH_INTENT_ALLOC,   /* target: block word; cell := value when applied; else the block is listed as free again */
    SH_INTENT_RELEASE, /* target: block word; cell := 0 when applied; a weight of 0 makes us its undertaker */
    SH_INTENT_FREE,    /* target: block word; the slot's destroy stack := value; dying becomes free */
    SH_INTENT_WEIGHT,  /* target: block word; cell := value when applied */
    SH_INTENT_MOVE,    /* untagged, all ours: *target := word, cell := value; redone */
    SH_INTENT_LINK,    /* target: a reference word that is set once: 0 -> word; applied if it is word; then cell := 0 */
    /* target: ring entry; word: its new state (less the flag CLOSING), extra: queue id; cell := value when applied */
    SH_INTENT_ENTRY,
    /* target: map word; word: bits that are being claimed, extra: span; free blocks among them are listed again */
    SH_INTENT_BITS,
    SH_INTENT_TRIM, /* extra: span; blocks of it that carry SH_WEIGHT_TRIM and our slot in the tag become free again */
    SH_INTENT_SPAN, /* target: frontier; word: span | class << 32, extra: base; the span is made when applied */
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

/* Free blocks kept by a slot: SH_CACHE_SMALL entries for the small classes, SH_CACHE_LARGE for the others. */
#define SH_CLASSES 133
#define SH_CLASSES_SMALL 37 /* class sizes up to 64 KiB */
#define SH_CACHE_SMALL 16
#define SH_CACHE_LARGE 4
#define SH_CACHE_ENTRIES (SH_CLASSES_SMALL * SH_CACHE_SMALL + (SH_CLASSES - SH_CLASSES_SMALL) * SH_CACHE_LARGE)

/* Slot: a process's place in the world.
 *
 * Synchronisation
 *   state       any process, by compare-and-swap: FREE -> RESERVED or ALIVE, RESERVED -> ALIVE or DEAD,
 *               ALIVE -> DEAD or FREE, DEAD -> FREE
 *   pid, start, space   who makes it RESERVED or ALIVE, before that; for a forked child also the child. pid last, a release
 *   name        who makes it RESERVED or ALIVE
 *   op, destroying, cells, chunks   the process of the slot; its maker while RESERVED; its recoverer when DEAD
 *   confirmed   any process, upward by compare-and-swap
 *   recoverer   any process, by compare-and-swap: the process that recovers it
 *   waits       the threads of the slot's process before they sleep and after (waits.h); recovery wakes what stands there
 *   held        the process of the slot; a statistic
 *   cache       the process of the slot stores ids and zeros; others turn an id into 0 by compare-and-swap
 */
typedef enum sh_phase {
    SH_PHASE_FREE,
    SH_PHASE_RESERVED, /* made for a child that has not come up yet; may hold references already */
    SH_PHASE_ALIVE,
    SH_PHASE_DEAD, /* being recovered */
} sh_phase;

#define SH_SLOT_CELLS 60
#define SH_SLOT_WAITS 8
#define SH_RECOVERER_PID_MASK ((UINT64_C(1) << 22) - 1)
#define SH_SPACE_HELD (UINT64_C(1) << 32) /* the process also has the mark of os/hold.h */

typedef struct sh_slot_shm {
    sh_intent_shm intent;
    sh_a64 state; /* phase 8 | maker 12 | generation above (slot.h) */
    sh_a32 pid;
    sh_a32 leaving; /* 1: ends in good order; whoever recovers it tells nobody of a death */
    sh_a64 start;
    sh_a64 confirmed;
    sh_a64 destroying; /* id + 1 of the dying block on top; 0: none */
    sh_a64 recoverer;  /* 0: nobody; else namespace 10 | pid 22 | may be killed 1 | start time 31 (recovery.c) */
    sh_a64 space;      /* pid namespace in which pid is to be read, 0: not known; SH_SPACE_HELD */
    sh_a64 chunks;     /* reference to the newest chunk of cells */
    sh_a64 held;       /* blocks that it holds, for `shoal ps` only: racy */
    sh_a64 cells[SH_SLOT_CELLS];
    char name[SHOAL_NAME_MAX + 1];
    sh_a64 cache[SH_CACHE_ENTRIES];
    sh_a64 waits[SH_SLOT_WAITS] __attribute__((aligned(SH_CACHE_LINE))); /* what its threads wait for; 0: nothing */
} __attribute__((aligned(SH_PAGE))) sh_slot_shm;

/* Header. Synchronisation: up to `name` written once by the maker before anybody else can see it. frontier: any
 * process, tagged. The rest: any process, relaxed counters and hints. */
typedef struct sh_world_shm {
    sh_a64 magic;
    sh_a64 layout;
    sh_a64 reserved;
    sh_a64 heap_limit;
    sh_a32 uid;
    sh_a32 home; /* pid namespace of the maker, 0: not known */
    char name[SHOAL_NAME_MAX + 1];
    sh_a128 frontier __attribute__((aligned(SH_CACHE_LINE))); /* lo: units of SH_UNIT given out; hi: spans made | tag */
    sh_a32 slots_used __attribute__((aligned(SH_CACHE_LINE))); /* no slot from here on was ever used */
    sh_a32 unused2;
    sh_a64 swept_at;  /* when somebody last looked for the dead */
    sh_a64 recovered; /* processes recovered */
    sh_a64 repaired;  /* locks repaired */
} sh_world_shm;

/* Class maps: three levels of bits over span numbers. A bit of level 0 says that a span has free blocks, one of
 * level n + 1 that a word of level n is not 0. The top level of all classes stands together and has memory from the
 * start. */
#define SH_MAP_0 (SH_SPANS / 64)
#define SH_MAP_1 (SH_MAP_0 / 64)
#define SH_MAP_2 (SH_MAP_1 / 64)
#define SH_MAP_BYTES (((SH_MAP_0 + SH_MAP_1) * 8u + SH_PAGE - 1) / SH_PAGE * SH_PAGE)

#define SH_TOPS_AT ((uint64_t)SH_PAGE)
#define SH_SLOTS_AT (SH_TOPS_AT + (SH_CLASSES * SH_MAP_2 * 8u + SH_PAGE - 1) / SH_PAGE * SH_PAGE)
#define SH_SPANS_AT (SH_SLOTS_AT + (uint64_t)SH_SLOTS * sizeof(sh_slot_shm))
#define SH_MAPS_AT (SH_SPANS_AT + (uint64_t)SH_SPANS * sizeof(sh_span_shm))
#define SH_HEAP_AT ((SH_MAPS_AT + (uint64_t)SH_CLASSES * SH_MAP_BYTES + SH_UNIT - 1) / SH_UNIT * SH_UNIT)

#define SH_RESERVE_MAX (UINT64_C(1) << 44)
#define SH_RESERVE_MIN (UINT64_C(1) << 29)

/* A number that differs between builds whose shared structs differ. */
#define SH_LAYOUT_VERSION 8u
static inline uint64_t sh_layout_word(void)
{
    return (uint64_t)SH_LAYOUT_VERSION << 48 ^ (uint64_t)sizeof(sh_slot_shm) << 24 ^
           (uint64_t)sizeof(sh_world_shm) << 12 ^ (uint64_t)sizeof(sh_span_shm) ^ (uint64_t)SH_HEAP_AT << 16 ^
           (uint64_t)SH_KIND_COUNT << 56;
}

_Static_assert(sizeof(sh_world_shm) <= SH_PAGE, "the header is one page");
_Static_assert(sizeof(sh_intent_shm) == SH_CACHE_LINE, "an operation is one cache line");

#endif
