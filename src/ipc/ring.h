/* The ring inside a queue: many producers, many consumers, no locks, and no step at which the death of one stops the
 * others.
 *
 * An entry is two words that are swapped together: its state and one word of message (bytes, a number, or a
 * reference). A put is one swap EMPTY -> FULL, a take is one swap FULL -> EMPTY of the next lap. There is no state
 * in between, so nobody ever waits for somebody else's half-done step.
 *
 *   state at position p (lap L = p / size)     who may swap it      to
 *   EMPTY, lap L                               a put at p           FULL, lap L,     tag of the put
 *   FULL,  lap L                               a take at p          EMPTY, lap L+1,  tag of the take (*)
 *   FULL,  lap L                               a put at p + size    FULL | CLOSING: the ring is full and shall end here
 *   FULL | CLOSING, lap L                      a take at p          CLOSED, lap L+1
 *   EMPTY, lap L                               a get, queue closed  CLOSED, lap L: no put comes after it (*)
 *   CLOSED, lap L                              nobody               puts and takes at p go on in the next ring
 *   (*) the other word keeps the tag of the put; CLOSED keeps the other word of EMPTY
 *
 *   the other word    message (FULL), or: sequence of the take, from bit 24 on 28 | tag of the put 36
 *
 * The sides: where the next put (tail) and the next take (head) are. Takes happen in the order of positions, and so do puts.
 * Each side has two words in one cache line, and neither is ever beyond the side's true position P:
 *
 *   hint    moved on with plain stores after each put or take. A process that is stopped between its load and its store
 *           writes an old hint, however old, when it goes on.
 *   base    raised with compare-and-swap, so it never goes back. Nobody puts or takes at position p before it has seen
 *           p - slack <= base (sh_ring_is_near, which raises it); slack is 2^16 laps, so this swap costs nothing.
 *
 * So base <= P <= base + slack + 1 at every moment, whoever is stopped wherever. A state has 23 bits of its lap. They name one
 * lap only if the position that we compare with is less than 2^22 laps off, and it is: we read the state first and base
 * afterwards, and use the state only if our position is not below base. Then P was at most slack + 1 beyond our position when
 * we read the state. A position below base is of long ago: a hint that went back, or a register of one who was stopped. We
 * begin again at base. The swaps need no such care: an entry's two words come back only together with its lap, the tags and the
 * message.
 *
 * Both tags stay in an entry until the put of the next lap, which confirms them
 * (shm/intent.h): its own of the last lap needs no look, and that of the take is there with 52 bits of its sequence, so that
 * needs no clock. Neighbouring positions lie in different cache lines.
 *
 * A ring that is full is followed by one of twice the size, if the queue has no bound. Earlier rings stay, drained,
 * until the queue dies: their sizes add up to less than the last one's.
 */
#ifndef SH_IPC_RING_H
#define SH_IPC_RING_H

#include "shm/intent.h"
#include "shm/kind.h"

/* A ring as this process sees it; its size is believed once, when it is opened. */
typedef struct sh_ring {
    sh_ring_shm *shm;
    sh_a128 *entries;
    uint64_t slack;     /* positions that base may lag behind: 2^16 laps */
    uint64_t line_mask; /* lines of entries - 1 */
    uint32_t order;
    uint32_t stride; /* lines from one position to the next; odd */
} sh_ring;

typedef enum sh_ring_result {
    SH_RING_DONE,
    SH_RING_FULL,
    SH_RING_EMPTY,
    SH_RING_NEXT,   /* this ring has ended */
    SH_RING_AGAIN,  /* somebody else was quicker: look again */
    SH_RING_BROKEN, /* its memory holds what no ring does */
} sh_ring_result;

/* Bytes of a ring of that order. */
uint64_t sh_ring_bytes(uint32_t order);

/* Opens the ring with that block id. False when it is none. */
bool sh_ring_open(uint64_t id, sh_ring *out_ring);

/* Puts one word. cell := value when done (0: no cell). bound: no more messages than that; 0: the size of the ring. */
sh_ring_result sh_ring_put(sh_ctx *c, const sh_ring *ring, sh_entry_kind kind, uint64_t word, uint64_t cell,
                           uint64_t value, uint64_t bound, uint64_t queue_id);

/* Looks at the oldest message, or, when the ring is EMPTY, at the entry that the next one will stand in. */
typedef struct sh_peek {
    sh_a128 *entry;
    uint64_t position, state, word;
    sh_entry_kind kind;
} sh_peek;
sh_ring_result sh_ring_peek(const sh_ring *ring, sh_peek *out_peek);

/* Is the message that was looked at still there? Then it was there all the time. */
bool sh_ring_is_oldest(const sh_ring *ring, const sh_peek *peek);

/* Takes the message that was looked at: DONE or AGAIN. */
static inline sh_ring_result sh_ring_take(sh_ctx *c, const sh_ring *ring, const sh_peek *peek, uint64_t cell,
                                          uint64_t value, uint64_t queue_id);

/* Ends the ring at the position of its oldest message, if it is still full: DONE or AGAIN. */
sh_ring_result sh_ring_close(const sh_ring *ring);

/* Ends an empty ring where it stands, so that a put that looked at the queue before it was closed comes too late: DONE
 * or AGAIN. No ring follows. */
sh_ring_result sh_ring_seal(const sh_ring *ring);

/* How many messages were put into it and taken from it so far; exact when nobody works on it. */
uint64_t sh_ring_puts(const sh_ring *ring);
uint64_t sh_ring_takes(const sh_ring *ring);

#include "ipc/ring_steps.h"

#endif
