/* The store: where the world keeps the fds of its card memory, so that the memory outlives the process that made it.
 *
 * Card memory is freed when nobody has an fd of it or a mapping. A process that is killed closes its fds, so the world
 * keeps them in the kernel: in a pair of SOCK_SEQPACKET sockets that every process of the world has. What is sent into
 * one end lies in the other until it is received, whoever lives; a process copies the fds out with MSG_PEEK. When the
 * last process of the world ends, the kernel frees the sockets, the fds in them, and the card memory. Nothing here
 * calls the card: an fd is an fd, and the tests use memory files.
 *
 * Two fds a process, made with the world: a process cannot get them later from another one (the system often forbids
 * pidfd_getfd), and a socket cannot be connected to itself and tell how many messages it holds. Children inherit them
 * (fork), or are passed them (spawn, programs, fork server). A process that joins by name copies them from another one
 * at once: later, those that have them may have ended, and then they are gone for good. If the system forbids it, it is
 * told so when it first needs them (SHOAL_EPERM).
 *
 * THE SET. The sockets hold one message: a table of granules and one fd for each, in the same order. It is replaced as
 * a whole, under a lock of the world:
 *
 *   1. peek      the fds are also open in this process
 *   2. send      the new set, behind the old one
 *   3. receive   the old set, and drop it
 *
 *     the first message holds the fd of every living granule whose creation has returned                 (5)
 *     there is one message, except between 2 and 3, where there are two                                  (6)
 *
 * So a reader needs no lock: it peeks the first message. A writer that finds two (their bytes add up) drops the first:
 * its predecessor died between 2 and 3.
 *
 * SWEEP. When a granule's block dies, its fd must leave the set. The process that destroyed it counts it (died) and
 * tries the lock, and never waits: if another process has the lock, that one looks at the count again when it has
 * unlocked. If neither can (a recovery helper, a process without the sockets or without fds), the next process that
 * sweeps, waits or adds a granule does it. An entry names its granule by block id and serial number; a serial is never
 * used twice, so a later block with the same id is not taken for it. */
#ifndef SH_SHM_CARD_STORE_H
#define SH_SHM_CARD_STORE_H

#include "shm/world.h"

/* As many fds as the system puts into one message. */
#define SH_STORE_MAX 253

extern int64_t sh_cardstore_limit; /* how long to wait for the lock; 10 s, except in tests */

/* Adds the fd of a granule, whose block this process holds; the caller keeps its own fd. Waits for the lock, for at
 * most that long. Not called inside. Errors: SHOAL_ELIMIT if the set is full, or the system allows this user, or this
 * process, no more fds; SHOAL_EPERM, SHOAL_EOS if this process does not have the sockets; SHOAL_ETIMEDOUT if the
 * process that has the lock is stopped; SHOAL_EINVAL if this is not a granule. */
shoal_err sh_cardstore_add(uint64_t granule, int fd);

/* Returns a close-on-exec copy of the fd of a living granule; the caller closes it. Does not block. Opens as many fds
 * as the world has granules for a moment. Not called inside. Errors as above, and SHOAL_ENOENT if the granule is not
 * there. */
shoal_err sh_cardstore_fd(uint64_t granule, int *out_fd);

/* Drops the fds of granules that no longer exist. Called before "out of card memory"; otherwise it happens by itself.
 * Does not wait. Not called inside. */
void sh_cardstore_sweep(void);

/* The same, inside; costs two loads if there is nothing to do. Does nothing in a recovery helper, which may be killed
 * at any time while its maker, whose lock it would be, lives. Does not change the last error. */
void sh_cardstore_tidy(void);

/* For recovery: releases the store's lock if `dead` holds it. */
void sh_cardstore_repair(sh_owner dead);

/* ---- the sockets of this process (card_store_sockets.c) ---- */

/* -1: this process has none, or not yet. The program may have closed them: have_ends checks. Under the lock of
 * sh_enter. */
enum { SH_STORE_INTO, SH_STORE_FROM }; /* a set is sent into one, and received from the other */
extern int sh_cardstore_fds[2];

/* Checks whether this process has the sockets. need_ends tries once more to copy them if it never had any; called
 * inside.
 * Errors: SHOAL_EPERM, SHOAL_EOS, SHOAL_ELIMIT. */
bool sh_cardstore_have_ends(void);
shoal_err sh_cardstore_need_ends(void);

/* Makes the sockets of a new world, whose header is not visible to other processes yet. If that fails, the world has
 * none, and card memory cannot be shared in it. */
void sh_cardstore_make(sh_world_shm *header);

/* Copies the sockets from another process, if it can, for this process, which has just joined by name. Not called
 * inside. */
void sh_cardstore_join(void);

/* Takes the sockets that this process was passed under these numbers, once it is in the world. Numbers that are not the
 * world's sockets are ignored. */
void sh_cardstore_adopt(const int ends[2]);

/* Returns the sockets, for a child; -1 for those that this process does not have. */
void sh_cardstore_ends(int out_ends[2]);

/* Writes into this process's slot which sockets it has, for processes that join by name. */
void sh_cardstore_tell(sh_slot_shm *slot);

/* Closes the sockets of this process, if it still has them. */
void sh_cardstore_close(void);

/* ---- for the audit ---- */

/* The table of the set that counts. Returns the number of entries, or -1 if this process cannot see it. */
typedef struct sh_store_entry {
    uint64_t granule; /* block id */
    uint64_t serial;
} sh_store_entry;

int sh_cardstore_table(sh_store_entry out_entries[SH_STORE_MAX]);

#endif
