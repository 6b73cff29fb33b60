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

/* On whose behalf the heap is changed: the slot of the calling process or, in recovery, that of a dead process. */
typedef struct sh_ctx {
    sh_slot_shm *slot;
    uint32_t index;
    bool recovering;             /* free blocks go to the maps, not to the slot's cache */
    uint32_t cursor[SH_CLASSES]; /* the span where the last free block of the class was found: a hint */
    uint8_t cached[SH_CLASSES];  /* entries of the slot's cache in use, as far as this process knows */
} sh_ctx;

typedef enum sh_attachment {
    SH_DETACHED,
    SH_ATTACHED,
    SH_ENDED,   /* the process is about to end: every call is refused; the mapping stays, for pointers and threads */
    SH_LEAVING, /* shoal_world_leave is running: every call is refused; slot and mapping may be gone already */
    SH_FORKED,  /* a child of fork without a slot, or not yet with one: the heap is not its own (fork.c) */
} sh_attachment;

/* Private to the process. base, fd, file, size and header change only while no other thread is inside. */
typedef struct sh_world {
    char *base;
    uint64_t size;
    int fd;
    sh_memory_id file; /* the file behind fd */
    sh_world_shm *header;
    sh_a32 attachment; /* sh_attachment; a thread that ends the process changes it without the lock (end.c) */
    bool locked;       /* a thread is inside, and holds the lock of this process */
    sh_ctx self;
} sh_world;

extern sh_world sh_the_world;

static inline sh_attachment sh_attachment_now(void)
{
    return (sh_attachment)sh_load_relaxed(&sh_the_world.attachment);
}

static inline void sh_attachment_set(sh_attachment next)
{
    sh_store_relaxed(&sh_the_world.attachment, (uint32_t)next);
}

/* 1: the attachment is SH_ENDED or SH_LEAVING, or is about to be. For threads without the lock. The thread that changes
 * it from 0 to 1 ends what this process has in the world, and no other thread does. */
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

/* Enters the heap: attaches (and creates a world) at the first call, and takes the process's private lock. One thread
 * of a process is inside at a time, and never while it waits; other processes are not excluded. Returns NULL with the
 * error recorded if that fails. */
sh_ctx *sh_enter_slow(void);
sh_ctx *sh_enter_held_slow(void);
void sh_leave_slow(void);

static inline sh_ctx *sh_enter(void)
{
    if (__builtin_expect(__libc_single_threaded && sh_attachment_now() == SH_ATTACHED, 1)) {
        return &sh_the_world.self; /* one thread needs no lock */
    }
    return sh_enter_slow();
}

/* The same for a call on a handle. A process that has a handle but is in no world has left the handle's world: this
 * fails with SHOAL_ESTATE, and creates no world. */
static inline sh_ctx *sh_enter_held(void)
{
    if (__builtin_expect(__libc_single_threaded && sh_attachment_now() == SH_ATTACHED, 1)) {
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

/* Returns the fd of the world's file, or -1 if the program has closed it: its number may belong to another file by now,
 * which must not be punched, locked, closed or passed to a child. With -1 every system call fails without harm. Costs a
 * system call. */
int sh_world_file(void);

/* The error for that: SHOAL_EOS. */
shoal_err sh_world_file_lost(void);

/* Checks whether this process is attached. Does not attach. */
bool sh_attached(void);

/* Attaches to the world behind fd, in a slot that was reserved for this process, or in a new one with SH_SLOT_NEW.
 * Takes fd over. */
#define SH_SLOT_NEW UINT32_MAX
shoal_err sh_world_attach(int fd, uint32_t slot, const char *name);

/* Finds a world of this user by its name, for a process that is in none. *out_fd is a new fd of its file. Errors:
 * SHOAL_ENOENT, SHOAL_ESTATE, SHOAL_EINVAL. */
shoal_err sh_world_find(const char *name, int *out_fd);

/* Calls `see` while the world behind fd is mapped, for tools: what reads the heap only (holders.h) may be called there,
 * as inside. Takes no slot, so no process of the world is concerned. This process must be in no world. Takes fd over.
 * Errors: SHOAL_ESTATE; those of sh_world_attach, except for the slot. */
shoal_err sh_world_inspect(int fd, void (*see)(void *context), void *context);

/* Called in a child of sh_world_fork or sh_world_fork_bare: it becomes that slot, which was reserved for it. */
shoal_err sh_world_become(uint32_t slot);

/* Forks a child that inherits all that this process holds, in a slot that was reserved for it. No thread is inside in
 * between, so the slot is given exactly what the child's handles name. *out_pid is 0 in the child, which calls
 * sh_world_become next. */
shoal_err sh_world_fork(uint32_t slot, int32_t *out_pid);

/* Forks a child of a process that holds nothing; the child calls sh_world_become with a slot that another process
 * reserved. Returns as fork. */
int32_t sh_world_fork_bare(void);

/* The fork handlers (fork.c), which base/fork.h calls around every fork. */
void sh_world_fork_prepare(void);
void sh_world_fork_parent(void);
void sh_world_fork_child(void);

/* Called inside. tidy: undoes the reservations of plain forks that no child will take. await: waits a while for
 * children that may still come, because this process is about to end. forget: drops the list, because this process has
 * left the world. */
extern int64_t sh_fork_adopt_limit; /* how long to wait if nothing is known of the child; 5 s, except in tests */
void sh_forks_tidy(void);

/* shoal_world_audit; without `recover` it checks what the dead have left, for tests. */
shoal_err sh_world_audit(bool recover, shoal_audit *out_audit);
void sh_forks_await(void);
void sh_forks_forget(void);

/* Makes this process that slot, which it has marked as its own. */
void sh_world_be(uint32_t index);

/* Records SHOAL_EFORK with a text. */
shoal_err sh_world_not_ours(const char *what);

/* shoal_world_leave for a process that is in the world. */
void sh_world_detach(void);

/* The end of the process (end.c). watch_end: arranges that the others are called at exit and quick_exit. end_begin:
 * calls sh_world_before_end, then refuses every call from now on. refuse: the same without that, for an attached
 * process; returns false if another thread, or the call that a signal handler interrupted, ends or leaves already. end:
 * releases everything, unless other threads or a card run: then another process does when it sees that this one has
 * ended. They neither wait for a lock nor use private memory in a state that a signal handler could have
 * interrupted. */
void sh_world_watch_end(void);
bool sh_world_refuse(sh_attachment next); /* SH_ENDED or SH_LEAVING */
void sh_world_end_begin(void);
void sh_world_end(void);

/* Called before the process leaves its world (not inside) or ends; may be NULL. If `ends`, it may be called in a signal
 * handler, and waits for no lock. */
extern void (*sh_world_before_end)(bool ends);

/* Asked when the process ends and has no other thread; may be NULL. Returns false if something other than a thread, a
 * card, may still use what this process holds: then the process holds it until it is gone. Takes no lock. */
extern bool (*sh_world_is_at_rest)(void);

/* Called when this process is in a world, outside of its lock or as the last thing before a call goes on inside; may
 * start a thread. May be NULL. */
extern void (*sh_world_after_attach)(void);

/* Checks whether this process, or the one that it was forked from, has used a card. Then its children of fork cannot,
 * and do not inherit references to card memory: they would keep it from its owner for as long as they live. NULL: it
 * has not. Called with the locks of a fork held. */
extern bool (*sh_world_uses_card)(void);

/* Called outside, when a world has been left and all handles are lost. */
extern void (*sh_world_after_leave)(void);

/* Records SHOAL_ESTATE with a text, for a call that comes after the process began to end. */
shoal_err sh_world_ending(const char *what);

/* Checks the header of a world before anything else in it is trusted. Whose world it is does not matter here: a process
 * that was passed the file may use it, also if its parent has made the world as another user. shoal_world_join, which
 * takes files that nobody passed, looks at the owner of the file (list.c). */
shoal_err sh_world_check(const sh_world_shm *header, uint64_t size);

#endif
