/* The world: one shared heap and the processes attached to it.
 *
 * A process is in one world at most. It is made at the first need; children are born into their parent's; an
 * unrelated process of the same user joins by name. Nothing is named in a file system: a world is an anonymous
 * memory file that its members hold open, and it is gone with the last of them.
 *
 * The fds that the library opens (3 and above, close-on-exec) must stay open: a program that closes all fds, as daemons do, does
 * so before its first call. Where the memory file was closed all the same, what there is goes on, and whatever needs more memory
 * or another process is SHOAL_EOS with the reason.
 *
 * Limits of one world: 4,094 processes, 4,194,304 spans of up to 1,024 blocks (so over 100 million small blocks), 1
 * TiB a block, 16 TiB of addresses (less where the address space of the process is limited: shoal_world_info tells).
 *
 * Environment: SHOAL_HEAP_LIMIT (bytes, with K, M, G) bounds the memory of the worlds that this process makes;
 * SHOAL_SPIN_NS is the longest time that a waiter spins before it parks; more than 100 ms counts as that.
 */
#ifndef SHOAL_WORLD_H
#define SHOAL_WORLD_H

#include <shoal/error.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_NAME_MAX 63

/* Initialises the library: the first call of main. In a process that was started by Shoal it runs the target and ends the process: it does not
 * return. Elsewhere it returns SHOAL_OK. argc and argv may be NULL. */
shoal_err shoal_init(int *argc, char ***argv);

/* Options of shoal_world_create. Zero is the default of each. */
typedef struct shoal_world_options {
    /* for shoal_world_join and `shoal ps`; at most SHOAL_NAME_MAX letters, digits, '-', '_', '.'; NULL: from the pid. Names need not be
     * unique: a world is found by a look at the running processes, and two that are made at one moment could not see each other */
    const char *name;
    uint64_t heap_limit; /* bytes of memory; 0: SHOAL_HEAP_LIMIT, else what the machine or its cgroup has */
    uint64_t reserve;    /* bytes of address space; 0: as much as can be had, up to 16 TiB */
} shoal_world_options;

/* Makes a world and attaches this process. options may be NULL. Errors: SHOAL_ESTATE when it is in one already, SHOAL_EINVAL,
 * SHOAL_ENOMEM, SHOAL_EOS. */
SHOAL_MUST_USE shoal_err shoal_world_create(const shoal_world_options *options);

/* Attaches this process to a world of the same user, found by its name among the running processes; of several with that name, to
 * the first that is found. A process that joined has no handle of what is there: it can watch (shoal_world_info_get, _sweep, _audit),
 * make objects of its own and start processes. To hand objects to another program, start it as a child with arguments
 * (shoal_process_start_program, binding.h).
 * Errors: SHOAL_ENOENT, SHOAL_EPERM, SHOAL_ELAYOUT, SHOAL_ECORRUPT, SHOAL_ELIMIT (no free slot), SHOAL_ESTATE. */
SHOAL_MUST_USE shoal_err shoal_world_join(const char *name);

/* Gives back all that this process holds and detaches it. Its handles can be released and destroyed afterwards, and nothing
 * else. No other thread may be inside a call of the library then, nor wait in one. Called at exit by itself. */
void shoal_world_leave(void);

/* Numbers about a world. */
typedef struct shoal_world_info {
    char name[SHOAL_NAME_MAX + 1];
    uint64_t reserved;       /* bytes of address space */
    uint64_t heap_limit;     /* bytes that the heap may use */
    uint64_t heap_used;      /* bytes of memory behind it now, free blocks kept warm included */
    uint64_t blocks_live;    /* blocks that somebody holds */
    uint64_t bytes_live;     /* and their sizes as asked */
    uint32_t processes;      /* attached and alive, as far as known */
    uint64_t recovered;      /* dead processes whose holdings were returned since the world began */
    uint64_t locks_repaired; /* locks that the dead held */
} shoal_world_info;

/* Gets numbers about the world. It walks the heap: for tests and tools, not for loops. Errors: SHOAL_EFORK, or what making a world gives. */
SHOAL_MUST_USE shoal_err shoal_world_info_get(shoal_world_info *out_info);

/* Looks for dead processes and returns what they held. Waiters and shoal_process_join do so by themselves; a
 * supervisor may call it. out_recovered may be NULL. */
SHOAL_MUST_USE shoal_err shoal_world_sweep(uint32_t *out_recovered);

/* Gives memory of free blocks back to the system: of a block above 32 KiB by itself, of smaller ones once their whole span (up to
 * 1,024 blocks of one size) is free. What the heap keeps to find its blocks stays, about 60 bytes for each that there ever was at
 * once, and so does what the program has locked into memory (mlock). */
SHOAL_MUST_USE shoal_err shoal_world_trim(void);

/* What an audit found. */
typedef struct shoal_audit {
    uint64_t blocks;     /* live blocks that were checked */
    uint64_t references; /* and the references found to them */
    uint64_t unheld;     /* live blocks whose references do not add up: leaked or freed too early */
    uint64_t lost;       /* free blocks that no allocation can find */
    uint64_t dead_slots; /* processes that died and cannot be recovered */
    uint64_t dead_locks; /* locks held by the dead */
    uint64_t unfinished; /* operations that nobody will finish */
    char first[192];     /* words for the first finding; empty when clean */
} shoal_audit;

/* Recovers the dead, as shoal_world_sweep does, and checks every invariant of docs/world.md. Call it while no other process of the world
 * works in it (they may be parked): changes under way look like damage. Returns SHOAL_OK when clean, SHOAL_ECORRUPT with the text of the
 * first finding otherwise. */
SHOAL_MUST_USE shoal_err shoal_world_audit(shoal_audit *out_audit);

/* Lists the processes of all worlds of this user, as `shoal ps` does. each is called once for each process and returns false to
 * stop. context is given to each and may be NULL. */
typedef struct shoal_ps_entry {
    const char *world;
    uint64_t world_used, world_limit, world_recovered;
    int32_t pid;
    uint32_t slot;
    const char *name;    /* of the process, as given at its start */
    const char *state;   /* "running", "waiting" (one of its threads at least), "reserved", "dead" */
    const char *doing;   /* the operation it is in, or what it waits for: "gets from queue 17"; else "" */
    uint64_t references; /* blocks that it holds */
    uint64_t cached;     /* free blocks that it keeps for itself */
} shoal_ps_entry;

SHOAL_MUST_USE shoal_err shoal_world_list(bool (*each)(const shoal_ps_entry *entry, void *context), void *context);

#ifdef __cplusplus
}
#endif
#endif
