/* The world: one shared heap and the processes attached to it.
 *
 * A process is in at most one world. The first call that needs a world makes it. Children are born into their
 * parent's world. An unrelated process of the same user can join a world by name. A world has no name in a file
 * system: it is an anonymous memory file that its members hold open, and it is gone when its last member is.
 *
 * The library opens file descriptors (3 and above, close-on-exec) that must stay open: one for the memory file; two
 * once the process has started a child, and one for each child until its handle is destroyed; two for a fork server;
 * and those of shoal_queue_fd. A program that closes all fds, as daemons do, must do so before its first call. If it
 * closes the memory file later, existing objects keep working, but calls that need more memory or another process
 * fail with SHOAL_EOS and the reason.
 *
 * Limits of one world: 4,094 processes at a time; 4 billion blocks of up to 64 bytes, 67 million of up to 64 KiB, 16
 * million of up to 1 MiB, or 4 million larger ones (4,194,304 spans, each for blocks of one size); 1 TiB for one
 * block; 16 TiB of addresses, less if the address space of the process is limited (shoal_world_info_get reports it).
 *
 * Environment variables: SHOAL_HEAP_LIMIT limits the memory of worlds that this process makes. It is a number of
 * bytes, or of units of 1,024, 1,024^2 or 1,024^3 bytes if K, M or G follows. SHOAL_SPIN_NS is the longest time in
 * nanoseconds that a waiter spins before it sleeps: 20,000 by default, at most 100 ms, and always 0 with a single
 * core. Waiters learn where spinning does not pay, and sleep there at once. If one of the variables is not such a
 * number, the call that makes the world fails with SHOAL_EINVAL.
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

/* The longest name of a world or a process, in bytes. */
#define SHOAL_NAME_MAX 63

/* Initialises the library. It must be the first call of main. In a process that runs a target of this program
 * (shoal_process_start, shoal_spawn, a pool), it runs the target and ends the process, so it does not return. In any
 * other process it returns SHOAL_OK. Without it, a program cannot start such processes (SHOAL_ESTATE). If a program
 * uses the library before it, its children cannot start: they write a log line and exit with 127. A child that gains
 * privileges when it is executed (setuid, setgid, file capabilities) cannot trust its role: it writes a log line and
 * exits with 126. argc and argv are reserved: they are not used now, and may be NULL. Errors: SHOAL_EINVAL if someone
 * else set the environment variable SHOAL_CHILD, which the library sets for its children. */
SHOAL_MUST_USE shoal_err shoal_init(int *argc, char ***argv);

/* Options of shoal_world_create. Zero is the default of each. */
typedef struct shoal_world_options {
    /* for shoal_world_join and `shoal ps`: at most SHOAL_NAME_MAX letters, digits, '-', '_' and '.'; NULL: the pid.
     * Nothing makes names unique, because no one keeps a list of all worlds */
    const char *name;
    uint64_t heap_limit; /* bytes of memory; 0: SHOAL_HEAP_LIMIT, else the memory of the machine or its cgroup */
    uint64_t reserve;    /* bytes of address space; 0: as much as possible, up to 16 TiB */
} shoal_world_options;

/* Makes a world and attaches this process to it. options may be NULL. Only programs that want options need this
 * call. Does not block. Thread-safe. Errors: SHOAL_ESTATE if the process is already in a world; SHOAL_EINVAL if an
 * option or an environment variable is invalid; SHOAL_ENOMEM; SHOAL_EOS. */
SHOAL_MUST_USE shoal_err shoal_world_create(const shoal_world_options *options);

/* Attaches this process to a world of the same user by its name. If several worlds have that name, it joins the
 * first that it finds among the running processes. It is for tools: a process that joined has no handles of existing
 * objects. It can watch the world (shoal_world_info_get, shoal_world_sweep, shoal_world_audit), make its own objects
 * and start processes. To pass objects to another program, start it as a child with arguments
 * (shoal_process_start_program). Does not block. Errors: SHOAL_ENOENT; SHOAL_EPERM if only other users have a world of
 * that name; SHOAL_ELAYOUT; SHOAL_ECORRUPT; SHOAL_ELIMIT if there is no free slot; SHOAL_ESTATE if the process is
 * already in a world. */
SHOAL_MUST_USE shoal_err shoal_world_join(const char *name);

/* Drops all references of this process and detaches it from its world. Afterwards its handles can only be released
 * and destroyed, and pointers into blocks and shared tensors are invalid. Other members of the world continue.
 * Children of this process do too, and can still be joined, but their results and error texts are lost. The next
 * call that needs a world makes a new one. No other thread may be inside a call of the library. Does not block. The
 * library calls it at exit. */
void shoal_world_leave(void);

/* Statistics of a world. */
typedef struct shoal_world_info {
    char name[SHOAL_NAME_MAX + 1];
    uint64_t reserved;       /* bytes of address space */
    uint64_t heap_limit;     /* bytes that the heap may use */
    uint64_t heap_used;      /* bytes of memory that the heap uses now, cached free blocks included */
    uint64_t blocks_live;    /* blocks that a process or a message refers to */
    uint64_t bytes_live;     /* the sum of their requested sizes */
    uint32_t processes;      /* in the world; those that are starting, or dead and not recovered, count too */
    uint64_t recovered;      /* dead processes whose references were dropped since the world was made */
    uint64_t locks_repaired; /* locks that were repaired because their holder died */
} shoal_world_info;

/* Gets statistics of the world; makes a world if the process is not in one. It walks the whole heap, while calls of
 * other threads of this process wait, so it is for tests and tools, not for loops. Does not wait for other
 * processes. Thread-safe. Errors: SHOAL_EFORK; if the process is not in a world, those of shoal_world_create. */
SHOAL_MUST_USE shoal_err shoal_world_info_get(shoal_world_info *out_info);

/* Recovers dead processes: drops the references and repairs the locks that they held. Waits and shoal_process_join do
 * so automatically; a supervisor may call it. *out_recovered is the number of processes recovered; out_recovered may
 * be NULL. Among more than 64 processes, a later call may be the one that finds a process that has executed another
 * program. Does not block. Thread-safe. Errors: as for shoal_world_info_get. */
SHOAL_MUST_USE shoal_err shoal_world_sweep(uint32_t *out_recovered);

/* Returns the memory of free blocks to the system. A block above 32 KiB is returned by itself, smaller ones once
 * their whole span (up to 1,024 blocks of one size) is free. The heap keeps its own records, about 60 bytes for each
 * block of the largest number that ever existed at once. Memory that the program has locked (mlock) is not returned.
 * Does not wait for other processes. Thread-safe. Errors: as for shoal_world_info_get. */
SHOAL_MUST_USE shoal_err shoal_world_trim(void);

/* The findings of an audit. */
typedef struct shoal_audit {
    uint64_t blocks;     /* live blocks that were checked */
    uint64_t references; /* references found to them */
    uint64_t unheld;     /* blocks whose reference count does not match the references: leaked, or freed too early */
    uint64_t lost;       /* free blocks that no allocation can find */
    uint64_t dead_slots; /* dead processes that cannot be recovered */
    uint64_t dead_locks; /* locks that dead processes hold */
    uint64_t unfinished; /* operations that no one will finish */
    char first[192];     /* describes the first finding; empty if there is none */
} shoal_audit;

/* Checks every invariant of the world (docs/world.md), after recovering dead processes like shoal_world_sweep. Call
 * it while no other process works in the world (they may sleep in a wait): operations in progress look like damage.
 * The text of a finding may contain the weight of a block or a reference, which is how the library counts
 * references. Does not wait for other processes. Thread-safe. Errors: SHOAL_ECORRUPT with the first finding in the
 * text (*out_audit has all of them); SHOAL_ENOMEM; as for shoal_world_info_get. */
SHOAL_MUST_USE shoal_err shoal_world_audit(shoal_audit *out_audit);

/* A process of a world, as shoal_world_list reports it. The texts are valid during the callback only. The state is
 * "running", "waiting" (at least one of its threads waits in a call), "reserved" (a slot for a child that is
 * starting) or "dead" (it has ended and is not recovered yet). */
typedef struct shoal_ps_entry {
    const char *world;                                 /* its name */
    uint64_t world_used, world_limit, world_recovered; /* as in shoal_world_info: heap_used, heap_limit, recovered */
    int32_t pid;
    uint32_t slot;       /* the number of the process in its world, from 0; free again after its end */
    const char *name;    /* of the process, as given at its start */
    const char *state;   /* as above */
    const char *doing;   /* the operation it is in, or what it waits for, such as "gets from queue 17"; else "" */
    uint64_t references; /* blocks that it holds references to */
    uint64_t cached;     /* free blocks that it keeps for its own use */
    uint64_t cuda_held;  /* bytes of GPU memory that it has from the driver */
    uint64_t cuda_used;  /* the part of cuda_held that its tensors use, and that it has lent to other processes */
} shoal_ps_entry;

/* Lists the processes of all worlds of this user, like `shoal ps`. Calls `each` once for each process, with context,
 * until it returns false; the call returns SHOAL_OK then too. `each` may call the library, but must not leave the
 * world. Does not need a world, and does not join one. Does not block. Errors: SHOAL_ENOMEM; SHOAL_EINVAL. */
SHOAL_MUST_USE shoal_err shoal_world_list(bool (*each)(const shoal_ps_entry *entry, void *context), void *context);

#ifdef __cplusplus
}
#endif
#endif
