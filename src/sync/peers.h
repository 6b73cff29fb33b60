/* Who waits, and how a waiter learns that another process died. The world, a higher layer, fills this in.
 *
 * An owner names one life of one process in the world; 0 is nobody. It repeats only after 2^18 lives of one slot, and
 * it fits into SH_OWNER_BITS, which leaves room for two flags in a futex word.
 */
#ifndef SH_SYNC_PEERS_H
#define SH_SYNC_PEERS_H

#include <stdbool.h>
#include <stdint.h>

typedef uint32_t sh_owner;
#define SH_OWNER_BITS 30
#define SH_OWNER_MASK ((1u << SH_OWNER_BITS) - 1)

typedef struct sh_peers {
    sh_owner (*self)(void);          /* returns the calling process */
    bool (*is_dead)(sh_owner owner); /* exact: a stopped process is alive; costs a system call */
    void (*sweep)(void);             /* finds dead processes and recovers them; cheap if another process just did */
    void (*repaired)(void); /* called when the lock of a dead process was released, for statistics; may be NULL */
    /* Called before the calling thread sleeps and after it wakes up, so that other processes can see what it waits for.
     * name: the name of that, as its creator wrote it there; holder: who holds it, 0 if unknown. May be NULL; otherwise
     * wakes gets the value that sleeps returned. */
    uint32_t (*sleeps)(uint64_t name, sh_owner holder);
    void (*wakes)(uint32_t entry);
} sh_peers;

/* The world sets this once, before any wait. Until then the process is alone: self returns 1 and nobody is dead. */
extern const sh_peers *sh_peers_now;
void sh_peers_set(const sh_peers *peers);

#endif
