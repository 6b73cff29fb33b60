/* The world as one process sees it, and how a public call enters it. */
#ifndef SH_SHM_WORLD_H
#define SH_SHM_WORLD_H

#include "base/error.h"
#include "os/memory.h"
#include "shm/class.h"
#include "shm/layout.h"
#include "sync/peers.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/single_threaded.h>

/* In whose name the heap is worked on: the calling process's slot, or, in recovery, a dead one's. */
typedef struct sh_ctx {
    sh_slot_shm *slot;
    uint32_t index;
    bool recovering;             /* free blocks go to the maps, not to the slot's cache */
    uint32_t cursor[SH_CLASSES]; /* span where the last free block of the class was found: a hint */
    uint8_t cached[SH_CLASSES];  /* entries of the slot's cache in use, as far as we know */
} sh_ctx;

typedef enum sh_attachment {
    SH_DETACHED,
    SH_ATTACHED,
    SH_ENDED,   /* the process is on its way out: every call is refused; the mapping stays, for pointers and threads */
    SH_LEAVING, /* shoal_world_leave is at work: every call is refused; slot and mapping may be gone already */
    SH_FORKED,  /* a child of fork that has no slot, or none yet: the heap is not its own (fork.c) */
} sh_attachment;

/* Private to the process. base, fd, file, size and header change only while no other thread is inside. */
typedef struct sh_world {
    char *base;
    uint64_t size;
    int fd;
    sh_memory_id file; /* what is behind fd */
    sh_world_shm *header;
    sh_attachment attachment;
    bool locked; /* a thread is inside, and holds the lock of this process */
    sh_ctx self;
} sh_world;

extern sh_world sh_the_world;

/* 1: the attachment is SH_ENDED or SH_LEAVING, or about to be, for those who do not have the lock. Who turns it from 0 to 1 ends
 * what this process has in the world, and nobody else does. */
extern sh_a32 sh_world_has_ended;

static inline void *sh_at(uint64_t offset)
{
    return sh_the_world.base + offset;
}

static inline uint64_t sh_offset_of(const void *p)
{
    return (uint64_t)((const char *)p - sh_the_world.base);
}

static inline sh_slot_shm *sh_slot_at(uint32_t index)
{
    return (sh_slot_shm *)sh_at(SH_SLOTS_AT + (uint64_t)index * sizeof(sh_slot_shm));
}

static inline sh_span_shm *sh_span_at(uint32_t span)
{
    return (sh_span_shm *)sh_at(SH_SPANS_AT + (uint64_t)span * sizeof(sh_span_shm));
}

/* Enters the heap: attaches (and makes a world) at the first need, takes the process's private lock. One thread of a
 * process is inside at a time, and never while it waits; other processes are not kept out. NULL with the error
 * recorded when it cannot. */
sh_ctx *sh_enter_slow(void);
sh_ctx *sh_enter_held_slow(void);
void sh_leave_slow(void);

static inline sh_ctx *sh_enter(void)
{
    if (__builtin_expect(__libc_single_threaded && sh_the_world.attachment == SH_ATTACHED, 1)) {
        return &sh_the_world.self; /* one thread needs no lock */
    }
    return sh_enter_slow();
}

/* The same for a call on a handle. A process that has one and is in no world has left the handle's: SHOAL_ESTATE, and no new world is
 * made. */
static inline sh_ctx *sh_enter_held(void)
{
    if (__builtin_expect(__libc_single_threaded && sh_the_world.attachment == SH_ATTACHED, 1)) {
        return &sh_the_world.self;
    }
    return sh_enter_held_slow();
}

static inline void sh_leave(void)
{
    if (__builtin_expect(sh_the_world.locked, 0)) {
        sh_leave_slow();
    }
}

/* The fd of the world's file, or -1 when the program has closed it: its number may be another file's by now, which must not be
 * punched, locked, closed or handed to a child. With -1 every system call fails and harms nobody. Costs a system call. */
int sh_world_file(void);

/* The error for that: SHOAL_EOS. */
shoal_err sh_world_file_lost(void);

/* Attached already? Does not attach. */
bool sh_attached(void);

/* Attaches to the world behind fd, which is taken over, as a slot that was reserved for this process, or as a new
 * one with SH_SLOT_NEW. */
#define SH_SLOT_NEW UINT32_MAX
shoal_err sh_world_attach(int fd, uint32_t slot, const char *name);

/* In a child of sh_world_fork or sh_world_fork_bare: it is that slot from now on, which was reserved for it. */
shoal_err sh_world_become(uint32_t slot);

/* Forks a child that inherits all that this process holds, in a slot that was reserved for it. Nobody is inside in
 * between, so what the slot is given is what the child's handles name. *out_pid is 0 in the child, which calls
 * sh_world_become next. */
shoal_err sh_world_fork(uint32_t slot, int32_t *out_pid);

/* Forks a child of a process that holds nothing; the child calls sh_world_become with a slot that another reserved. As fork. */
int32_t sh_world_fork_bare(void);

/* Around every fork: the handlers of fork.c, which base/fork.h calls. */
void sh_world_fork_prepare(void);
void sh_world_fork_parent(void);
void sh_world_fork_child(void);

/* Inside: undoes the reservations by plain forks that nobody will come to. await: waits a while for those that may still come, because
 * this process is about to end. forget: it has left the world. */
extern int64_t sh_fork_adopt_limit; /* how long they are waited for when nothing tells of them; 5 s but in tests */
void sh_forks_tidy(void);

/* shoal_world_audit; without `recover` as the dead have left it, for tests. */
shoal_err sh_world_audit(bool recover, shoal_audit *out_audit);
void sh_forks_await(void);
void sh_forks_forget(void);

/* This process is that slot, which it has marked as its own. */
void sh_world_be(uint32_t index);

/* SHOAL_EFORK in words. */
shoal_err sh_world_not_ours(const char *what);

/* Like shoal_world_leave for a process that is in the world. */
void sh_world_detach(void);

/* The end of the process (end.c). watch: at exit and quick_exit these are called. begin: from now on every call is refused, after
 * sh_world_before_end. refuse: the same without that, for an attached process; false when another thread, or the call that a signal
 * handler interrupted, ends or leaves already. end: all is given back, unless other threads run: then by whoever sees that we have ended. Neither waits for a lock nor needs private
 * memory in a state that a signal handler could have interrupted. */
void sh_world_watch_end(void);
bool sh_world_refuse(sh_attachment next); /* SH_ENDED or SH_LEAVING */
void sh_world_end_begin(void);
void sh_world_end(void);

/* Called before the process leaves its world (not inside) or ends; NULL: nothing is to be done. ends: it may be called in a signal
 * handler, and waits for no lock. */
extern void (*sh_world_before_end)(bool ends);

/* Called when a world has been left and all handles are lost, outside. */
extern void (*sh_world_after_leave)(void);

/* SHOAL_ESTATE in words, for a call that comes after the beginning of the end. */
shoal_err sh_world_ending(const char *what);

/* Checks the header of a world before anything else of it is believed. */
shoal_err sh_world_check(const sh_world_shm *header, uint64_t size);

#endif
