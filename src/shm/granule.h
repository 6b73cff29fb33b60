/* Card memory in the heap's ledger: granules and pieces.
 *
 * A granule is a large allocation of a card that one process made and all may map: a block that says which card and how
 * large, and whose fd is in the store (card_store.h). A piece is a part of a granule, lent to others: a block that
 * refers to its granule. A description of a tensor refers to a piece as to a data block. So who holds what, and who is
 * dead, is the heap's business, as with any block: the references of the dead return, the last holder of a piece
 * releases the granule, and the last holder of a granule frees it.
 *
 *   tensor description --> piece (offset, size, last work) --> granule (card, size)      its fd: in the store
 *
 * A process that has mapped a granule without holding it unmaps it when sh_granules_died has changed and
 * sh_granule_look no longer finds it with its serial. */
#ifndef SH_SHM_GRANULE_H
#define SH_SHM_GRANULE_H

#include "shm/block.h"
#include "shm/timeline.h"

#define SH_UUID_BYTES 16

typedef struct sh_granule_info {
    uint8_t uuid[SH_UUID_BYTES]; /* of the card */
    uint64_t size;               /* bytes */
    uint64_t serial;             /* of all granules of this world; never 0. Set by create */
} sh_granule_info;

/* Makes a granule and puts its fd into the store; the caller keeps its own fd, and gets one reference. Not called
 * inside.
 * Errors: as sh_cardstore_add, and SHOAL_ENOMEM. */
shoal_err sh_granule_create(const sh_granule_info *info, int fd, shoal_block **out_granule);

/* Finds a living granule. Returns false if the id names no such block, or its bytes are nonsense. Called inside. */
bool sh_granule_look(uint64_t id, sh_granule_info *out_info);

/* Returns a close-on-exec fd of the granule's memory. Not called inside. Errors: as sh_cardstore_fd. */
shoal_err sh_granule_fd(uint64_t id, int *out_fd);

/* Returns a number that changes when granules have died. Costs one load. */
uint64_t sh_granules_died(void);

/* Makes a piece: bytes [offset, offset + size) of the granule. The caller gets one reference; the piece holds one to
 * the granule. Not called inside. Errors: SHOAL_EINVAL if it is not inside the granule or empty, SHOAL_ENOMEM,
 * SHOAL_ELIMIT. */
shoal_err sh_piece_create(shoal_block *granule, uint64_t offset, uint64_t size, shoal_block **out_piece);

/* What a piece says. work: the last work that changes its bytes (timeline.h), 0 for none; in the heap, valid while the
 * piece is held. A put stores it (sh_store_release) before it sends the piece. A process whose stream still reads or
 * writes the bytes keeps its reference until that work is done: once it has released the piece, the maker may give the
 * bytes to another tensor. */
typedef struct sh_piece {
    uint64_t granule; /* block id; it lives at least as long as the piece */
    uint64_t serial;  /* of the granule */
    uint64_t offset, size;
    sh_a64 *work;
} sh_piece;

/* Reads a piece that this process holds. Returns false if it is not a piece, or not one inside a living granule: a
 * message of another process may say anything. The caller reports SHOAL_ECORRUPT. Called inside. */
bool sh_piece_look(const sh_found *found, sh_piece *out_piece);

/* The same for a handle. Not called inside. Errors: SHOAL_ECORRUPT, SHOAL_ETYPE if the block is not a piece. */
shoal_err sh_piece_read(const shoal_block *piece, sh_piece *out_piece);

/* ---- requests ----
 *
 * A process that finds the GPU's memory full asks all processes of the world, itself too, to give back what they do not
 * use, and waits until they have. Each process that uses a GPU has a service thread that answers, whatever else the
 * process is blocked in (device/cuda_service.c).
 *
 *   the requester                                  a service thread
 *   -------------                                  ----------------
 *   wanted + 1: the number of the request          reads its bell, then wanted and probes
 *   rings the bell of each service thread          sleeps at its bell, if nothing is new
 *   waits at the gate `answered`                   gives back; stores the number in its slot, wakes the gate `answered`
 *
 * One answer counts for all requests up to its number. A probe is the same without an answer: a process has waited for
 * another one's work for long, and that one may not have noticed that its GPU has failed.
 * death: if the requester dies, nobody needs the answer; a service thread that was not rung yet sees the request when
 * it next wakes up. If the one that answers dies, the wait ends when its slot is recovered, by the sweep at the end of
 * a slice (park.h).
 * stopped: the requester waits for an answer until its timeout. */

/* Asks. Returns the number of the request, or 0 if this process is in no world. */
uint64_t sh_granules_ask(void);
void sh_granules_probe(void);

/* Waits until every process that answers has answered the request. Returns false after the timeout. Not called
 * inside. */
bool sh_granules_await_answers(uint64_t number, int64_t timeout);

/* What this process's service thread was asked for so far. */
typedef struct sh_asked {
    uint64_t request; /* the number of the last request */
    uint32_t probe;   /* the number of the last probe */
    uint32_t bell;    /* read before both: to sleep until it rings again */
} sh_asked;

/* For the service thread. begin: from now on this process answers; it need not answer what was asked before. sleep:
 * until the bell rings, or for that long. answer: says that this process has given back what it had. end: it answers no
 * longer. */
sh_asked sh_granules_answers_begin(void);
sh_asked sh_granules_asked(void);
void sh_granules_sleep(uint32_t bell, int64_t timeout);
void sh_granules_answer(uint64_t number);
void sh_granules_answers_end(void);

/* Wakes this process's own service thread. May be called in a signal handler. */
void sh_granules_ring(void);

/* ---- for tools ---- */

/* Returns whether the world has a granule, or has had one. Called inside. */
bool sh_granules_existed(void);

/* Stores in this process's slot how much card memory it has made (held) and how much of that is in use, in bytes, for
 * `shoal ps`. */
void sh_granules_tell(uint64_t held, uint64_t used);

#endif
