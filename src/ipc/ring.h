/* The ring inside a queue: many producers and many consumers, without locks. Wherever a process dies, the others go on.
 *
 * An entry is two words that change together, by compare-and-swap (CAS): its state and one word of message (bytes, a
 * number, or a reference). A put is one CAS EMPTY -> FULL. A take is one CAS FULL -> EMPTY of the next lap. There is no
 * state in between, so no process ever waits for another process to finish a step.
 *
 *   state at position p (lap L = p / size)     who may change it    to
 *   EMPTY, lap L                               a put at p           FULL, lap L,     tag of the put
 *   FULL,  lap L                               a take at p          EMPTY, lap L+1,  tag of the take (*)
 *   FULL,  lap L                               a put at p + size    FULL | CLOSING: the ring is full and ends here
 *   FULL | CLOSING, lap L                      a take at p          CLOSED, lap L+1
 *   EMPTY, lap L                               a get, queue closed  CLOSED, lap L: no put comes after it (*)
 *   CLOSED, lap L                              nobody               puts and takes at p go on in the next ring
 *   (*) the other word keeps the tag of the put; CLOSED keeps the other word of EMPTY
 *
 *   the other word    message (FULL), or: sequence of the take, from bit 24 on 28 | tag of the put 36
 *
 * The ring has two sides: tail, where the next put goes, and head, where the next take goes. Puts happen in the order
 * of positions, and so do takes. Each side has two words in one cache line. Neither word is ever beyond the side's true
 * position P:
 *
 *   hint    advanced with plain stores after each put or take. A process that is stopped between its load and its store
 *           writes an old hint when it continues, however old.
 *   base    raised with compare-and-swap, so it never goes back. Nobody puts or takes at position p before it has seen
 *           p - slack <= base (sh_ring_is_near, which raises it). slack is 2^16 laps, so this CAS costs next to
 *           nothing.
 *
 * So base <= P <= base + slack + 1 at every moment, whichever processes are stopped, and wherever. A state holds 23
 * bits of its lap. They identify one lap only if the position we compare with is less than 2^22 laps away, and it is:
 * we read the state first and base afterwards, and use the state only if our position is not below base. Then P was at
 * most slack + 1 beyond our position when we read the state. A position below base is out of date: it comes from a hint
 * that went back, or from a register of a process that was stopped. We then start again at base. The CAS itself needs
 * no such care: an entry's two words can only repeat together with its lap, the tags and the message.
 *
 * Both tags stay in an entry until the put of the next lap, which confirms them (shm/intent.h). A process need not
 * check its own tags. The tag of the take is stored with 52 bits of its sequence, so confirming it needs no clock.
 * Neighbouring positions are in different cache lines.
 *
 * If the queue has no bound, a full ring is followed by one of twice the size. Earlier rings stay, drained, until the
 * queue dies: their sizes add up to less than that of the last one.
 */
#ifndef SH_IPC_RING_H
#define SH_IPC_RING_H

#include "shm/intent.h"
#include "shm/kind.h"

/* This process's view of a ring. Its size is read from shared memory and checked once, in sh_ring_open. */
typedef struct sh_ring {
    sh_ring_shm *shm;
    sh_a128 *entries;
    uint64_t slack;     /* how far base may lag, in positions: 2^16 laps */
    uint64_t line_mask; /* lines of entries - 1 */
    uint32_t order;
    uint32_t stride; /* lines from one position to the next; odd */
} sh_ring;

typedef enum sh_ring_result {
    SH_RING_DONE,
    SH_RING_FULL,
    SH_RING_EMPTY,
    SH_RING_NEXT,   /* this ring has ended: go on in the next one */
    SH_RING_AGAIN,  /* another process was faster: look again */
    SH_RING_BROKEN, /* its memory holds a state that no ring can have */
} sh_ring_result;

/* Returns the bytes that a ring of 2^order entries takes. */
uint64_t sh_ring_bytes(uint32_t order);

/* Opens the ring with that block id. Returns false if the block is not a ring. */
bool sh_ring_open(uint64_t id, sh_ring *out_ring);

/* Puts one word, and stores value in cell when that succeeds (cell 0: no cell). The ring holds at most `bound`
 * messages; 0 means as many as it has entries. */
sh_ring_result sh_ring_put(sh_ctx *c, const sh_ring *ring, sh_entry_kind kind, uint64_t word, uint64_t cell,
                           uint64_t value, uint64_t bound, uint64_t queue_id);

/* Looks at the oldest message or, if the ring is EMPTY, at the entry that the next message will use. */
typedef struct sh_peek {
    sh_a128 *entry;
    uint64_t position, state, word;
    sh_entry_kind kind;
} sh_peek;
sh_ring_result sh_ring_peek(const sh_ring *ring, sh_peek *out_peek);

/* Returns whether the message that peek saw is still there. If it is, it was there all the time. */
bool sh_ring_is_oldest(const sh_ring *ring, const sh_peek *peek);

/* Takes the message that peek saw. Returns DONE or AGAIN. */
static inline sh_ring_result sh_ring_take(sh_ctx *c, const sh_ring *ring, const sh_peek *peek, uint64_t cell,
                                          uint64_t value, uint64_t queue_id);

/* Ends the ring at the position of its oldest message, if the ring is still full. Returns DONE or AGAIN. */
sh_ring_result sh_ring_close(const sh_ring *ring);

/* Ends an empty ring at its current position, so that a put that checked the queue before it was closed comes too late.
 * Returns DONE or AGAIN. No ring follows. */
sh_ring_result sh_ring_seal(const sh_ring *ring);

/* Return how many messages were put and taken so far. The counts are exact if nobody uses the ring meanwhile. */
uint64_t sh_ring_puts(const sh_ring *ring);
uint64_t sh_ring_takes(const sh_ring *ring);

#include "ipc/ring_steps.h"

#endif
