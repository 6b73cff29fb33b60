/* Handles: the blocks that this process holds. There is one handle per block, however often it was received; it owns
 * one cell of the slot.
 *
 * All functions that take a context are called inside (sh_enter). The public types of the library (queue, lock, …) are
 * this type under other names; `kind` says which. */
#ifndef SH_SHM_BLOCK_H
#define SH_SHM_BLOCK_H

#include "shm/heap.h"

#include <shoal/block.h>

/* What this process sees at a block's address (private.c). */
typedef enum sh_block_view {
    SH_BLOCK_SHARED,
    SH_BLOCK_PRIVATE, /* its own copy */
    SH_BLOCK_STUCK,   /* its own copy; nobody here holds the block, but the view could not end */
} sh_block_view;

#define SH_HANDLE_MAGIC 0x6c616f68u

/* What a fork does not pass on to the child. */
typedef enum sh_left_behind {
    SH_LEFT_NOTHING,
    SH_LEFT_PIPE, /* an end of a pipe, which a plain fork leaves to the parent */
    SH_LEFT_CARD, /* memory of a card, or what refers to it, if the parent has used the card (sh_world_uses_card) */
} sh_left_behind;

#define SH_LEFT_CARD_TEXT                                                                                              \
    "this process was forked after its parent had used the GPU, and CUDA does not work across a fork: start it with "  \
    "spawn"

struct shoal_block {
    uint32_t magic; /* SH_HANDLE_MAGIC while it is a handle: detects a pointer of another type that was cast */
    sh_kind kind;
    void *extra; /* private data of the kind; freed with free() */
    char *data;
    uint64_t id;
    uint64_t cell;       /* offset of the cell that holds its reference */
    sh_a64 refs;         /* references of this process; the last one frees the handle */
    sh_meta_shm *meta;   /* NULL: lost */
    uint32_t idle_at;    /* place among the idle handles + 1; 0: in use */
    bool received;       /* a message brought it: it may come again */
    bool inherited;      /* its cell is in a chunk of SH_KIND_INHERITED */
    uint8_t left_behind; /* an sh_left_behind; if not 0, it is lost, too */
    uint8_t view;        /* an sh_block_view */
    /* Every message reads the fields up to here. */
    uint64_t size;
    uint64_t room;                          /* the size of the class; size is at most that */
    void (*let_go)(sh_ctx *c, void *extra); /* inside, before extra is freed: releases what it holds; may be NULL */
    shoal_block *parts[2];                  /* handles of the blocks that this one consists of; released with it */
    shoal_block *next;
    uint64_t tenure; /* a new number each time that this process begins to hold a block */
};

/* Allocates a block of SH_KIND_DATA with a handle. The bytes are not cleared. */
shoal_err sh_block_new(sh_ctx *c, uint32_t klass, uint64_t size, shoal_block **out_block);

/* Clears the bytes and sets the kind. For kinds with references: called before any of them is stored. */
void sh_block_become(shoal_block *block, sh_kind kind);

/* Creates a shared object of a fixed size and kind with cleared bytes, such as a lock or a queue. Calls sh_enter
 * itself. */
shoal_err sh_object_create(uint32_t klass, uint64_t size, sh_kind kind, shoal_block **out_block);

/* The number of times that this process has left a world. Addresses of blocks stay valid while it is unchanged. */
extern uint64_t sh_blocks_world_serial;

/* Moves a reference to a handle, from a word that belongs to this process (in a block, or a cell that was given to its
 * slot). */
shoal_err sh_block_take(sh_ctx *c, uint64_t from, shoal_block **out_block);

/* Returns a handle for a block that another block of this process refers to, and so keeps alive. Draws a separate
 * weight. */
shoal_err sh_block_open(sh_ctx *c, uint64_t id, shoal_block **out_block);

/* Moves a part of this process's weight to an empty reference word that belongs to it. */
shoal_err sh_block_give(sh_ctx *c, const shoal_block *block, uint64_t to);

/* Retains and releases objects of any kind, without a check of the kind; NULL is allowed. */
shoal_block *sh_block_retain(shoal_block *block);
void sh_block_release(shoal_block *block);

/* sh_block_release for a caller that is inside. */
void sh_block_unref(sh_ctx *c, shoal_block *block);

/* Called inside, for a private block whose last reference goes: the address shows the shared bytes again. Returns false
 * if that fails; then the handle keeps a reference, and must stay. */
bool sh_block_end_view(sh_ctx *c, shoal_block *block);

/* Checks whether a put may take the caller's reference along, instead of sharing it: this process has no other one, and
 * no private view to end first. */
static inline bool sh_block_can_move(const shoal_block *block)
{
    return sh_load_relaxed(&block->refs) == 1 && block->view == SH_BLOCK_SHARED;
}

/* Checks whether the caller's reference is the only one in the world: this process has no other, and no other process,
 * message or block has any. If it returns true, everything that others did with the block has happened before, and
 * nobody can get it but from the caller. When the last other holder is gone, it becomes true without any further call.
 * Takes no lock. */
bool sh_block_is_sole_holder(const shoal_block *block);

shoal_kind sh_block_kind(const shoal_block *block);

/* The kinds whose public type is a block under another name: the noun of its calls, the shoal_kind, the sh_kind. */
#define SH_HANDLE_KINDS(X)                                                                                             \
    X(block, BLOCK, DATA)                                                                                              \
    X(queue, QUEUE, QUEUE)                                                                                             \
    X(pipe, PIPE, PIPE)                                                                                                \
    X(lock, LOCK, LOCK)                                                                                                \
    X(rlock, RLOCK, RLOCK)                                                                                             \
    X(semaphore, SEMAPHORE, SEMAPHORE)                                                                                 \
    X(condition, CONDITION, CONDITION)                                                                                 \
    X(event, EVENT, EVENT)                                                                                             \
    X(barrier, BARRIER, BARRIER)

/* The same for a block that this process may not hold. Called inside. If it holds the block, nothing is read from the
 * heap: that would take a cache line away from another process. Returns SHOAL_KIND_NONE if there is no such block. */
shoal_kind sh_block_kind_of(uint64_t id);

/* Check the object. require: it is usable and of that kind. is_usable: the same for accessors, which cannot fail and
 * record nothing; of any kind. */
bool sh_block_is_usable(const shoal_block *block);
shoal_err sh_block_require(const shoal_block *block, sh_kind kind, const char *what);

/* Checks for a handle that was in use when this process left its world. It has no kind, so every call refuses it, and
 * no block; its owner can still release it. */
static inline bool sh_block_is_lost(const shoal_block *block)
{
    return block->meta == NULL;
}

/* sh_block_release for a lost handle. */
void sh_block_unref_lost(shoal_block *block);

/* Frees all handles, or makes them lost. Called when the process leaves. Also forgets the free cells. */
void sh_blocks_forget(void);

/* Prepares the cells of a slot that this process has just become: it may use all that are empty. */
shoal_err sh_blocks_begin(sh_ctx *c);

/* Called before a fork: gives a reserved slot a reference to everything that this process holds, or to all but ends of
 * pipes. An end is closed when its last holder ends, and a child that does not know of it would keep it open. In the
 * child, sh_blocks_become points the handles to them. */
typedef enum sh_inherit {
    SH_INHERIT_ALL,
    SH_INHERIT_PLAIN, /* not the ends of pipes */
} sh_inherit;
shoal_err sh_blocks_inherit(sh_ctx *c, uint32_t index, sh_inherit what);
void sh_blocks_become(sh_ctx *c, sh_inherit what);

/* Makes this process a participant in the object: it waits there, or was given it. Called inside. */
shoal_err sh_block_own(sh_ctx *c, shoal_block *block);

/* The same for an object that came by a message, where it matters: only barriers have parties. */
static inline shoal_err sh_block_own_given(sh_ctx *c, shoal_block *block)
{
    return __builtin_expect(block->inherited && block->kind == SH_KIND_BARRIER, 0) ? sh_block_own(c, block) : SHOAL_OK;
}

#endif
