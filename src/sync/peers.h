/* Who waits, and how a waiter learns that another process died. The world, a higher layer, fills this in.
 *
 * An owner names one life of one process in the world; 0 is nobody. It fits into SH_OWNER_BITS, which leaves room for
 * two flags in a futex word. It repeats after 2^18 lives of one slot. So only recovery, before which the slot has no
 * further life, may act on an owner that was found dead some time ago. Others compare the whole life, which never
 * repeats: its low 32 bits are the owner.
 */
#ifndef SH_SYNC_PEERS_H
#define SH_SYNC_PEERS_H

#include <stdbool.h>
#include <stdint.h>

typedef uint32_t sh_owner;
#define SH_OWNER_BITS 30
#define SH_OWNER_MASK ((1u << SH_OWNER_BITS) - 1)

#define SH_SWEEP_AGE INT64_C(20000000) /* ns: for those who look often */

typedef struct sh_peers {
    sh_owner (*self)(void);          /* returns the calling process */
    bool (*is_dead)(sh_owner owner); /* exact: a stopped process is alive; costs a system call */
    /* Finds dead processes and recovers them, unless that was done less than age ns ago. Returns how many times longer
     * than usual a waiter may sleep (SH_SLICE_LONG) because many others look, too: at least 1. */
    uint32_t (*sweep)(int64_t age);
    void (*repaired)(void); /* called when the lock of a dead process was released, for statistics; may be NULL */
    /* Called before the calling thread sleeps and after it wakes up, so that other processes can see what it waits for.
     * name: the name of that, as its creator wrote it there; holder: who holds it, 0 if unknown. May be NULL; otherwise
     * wakes gets the value that sleeps returned. */
    uint32_t (*sleeps)(uint64_t name, sh_owner holder);
    void (*wakes)(uint32_t entry);
} sh_peers;

/* The world sets this once, before any wait. Until then the process is alone: self returns 1 and nobody is dead. */
extern const sh_peers *sh_peers_now;

/* The calling process as a whole life. Private memory, not a call: a lock is taken in little more time than it takes to
 * ask. */
extern uint64_t sh_life_now;

/* Sets both, for a process that has just taken its place in the world. NULL: it is alone again. */
void sh_peers_set(const sh_peers *peers, uint64_t life);

#endif
