/* Who waits, and how it learns that another died. The layer below the world: the world fills this in.
 *
 * An owner names one life of one process in the world; 0 is nobody. It is never used again for another life within
 * 2^17 lives of one slot, and it fits into SH_OWNER_BITS, so a futex word has room for two flags beside it.
 */
#ifndef SH_SYNC_PEERS_H
#define SH_SYNC_PEERS_H

#include <stdbool.h>
#include <stdint.h>

typedef uint32_t sh_owner;
#define SH_OWNER_BITS 30
#define SH_OWNER_MASK ((1u << SH_OWNER_BITS) - 1)

typedef struct sh_peers {
    sh_owner (*self)(void);          /* the calling process */
    bool (*is_dead)(sh_owner owner); /* exact: a stopped process is alive; costs a system call */
    void (*sweep)(void);             /* look for dead processes and recover them; cheap when somebody just did */
    void (*repaired)(void);          /* a lock of a dead one was handed on: for statistics; may be NULL */
    /* The calling thread is about to sleep, and is awake again: for those who look at it from outside. name: of what it waits for,
     * as whoever made that wrote it there; holder: who has it, 0 for nobody known. May be NULL; else wakes gets what sleeps said. */
    uint32_t (*sleeps)(uint64_t name, sh_owner holder);
    void (*wakes)(uint32_t entry);
} sh_peers;

/* Set once, by the world, before any wait. Until then every process is alone: self is 1 and nobody is dead. */
extern const sh_peers *sh_peers_now;
void sh_peers_set(const sh_peers *peers);

#endif
