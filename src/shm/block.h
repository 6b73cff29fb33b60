/* Handles: the blocks that this process holds. One handle a block, however often it was received; it owns one cell
 * of the slot.
 *
 * All functions that take a context are called inside (sh_enter). The public types of the library (queue, lock, …)
 * are this type under other names; `kind` tells which. */
#ifndef SH_SHM_BLOCK_H
#define SH_SHM_BLOCK_H

#include "shm/heap.h"

#include <shoal/block.h>

#define SH_HANDLE_MAGIC 0x6c616f68u

struct shoal_block {
    uint32_t
        magic; /* SH_HANDLE_MAGIC while it is a handle: a pointer of another type, given by a cast, is known by it */
    sh_kind kind;
    void *extra; /* what the kind keeps in private memory; freed with free() */
    char *data;
    uint64_t id;
    uint64_t cell;     /* offset of the cell that holds its reference */
    sh_a64 refs;       /* of this process; the handle goes with the last */
    sh_meta_shm *meta; /* NULL: lost */
    uint32_t idle_at;  /* place among the idle handles + 1; 0: in use */
    bool received;     /* it came by a message: it may come again */
    bool inherited;    /* its cell is one of SH_KIND_INHERITED */
    bool left_behind;  /* an end of a pipe that a plain fork left to the parent; it is lost, too */
    /* Up to here is what every message looks at. */
    uint64_t size;
    uint64_t room;                          /* of the class; size is at most that */
    void (*let_go)(sh_ctx *c, void *extra); /* inside, before extra is freed: releases what it holds; NULL: nothing */
    shoal_block *parts[2];                  /* handles of the blocks that this one is made of; released with it */
    shoal_block *next;
    uint64_t tenure; /* a number of its own for each time that this process comes to hold a block */
};

/* Allocates a block of SH_KIND_DATA with a handle. The bytes are not cleared. */
shoal_err sh_block_new(sh_ctx *c, uint32_t klass, uint64_t size, shoal_block **out_block);

/* Clears the bytes, says what the block is. For kinds with references: before any of them is stored. */
void sh_block_become(shoal_block *block, sh_kind kind);

/* A shared object of a fixed size and kind, its bytes cleared: what the creators of locks and queues need. Enters by
 * itself. */
shoal_err sh_object_create(uint32_t klass, uint64_t size, sh_kind kind, shoal_block **out_block);

/* How often this process has left a world: places of blocks that were seen before are true while this stays the same. */
extern uint64_t sh_blocks_world_serial;

/* Moves a reference from a word that is ours (of a block, or a cell that was given to our slot) to a handle. */
shoal_err sh_block_take(sh_ctx *c, uint64_t from, shoal_block **out_block);

/* A handle for a block that another block of ours refers to, and so keeps alive: it draws a weight of its own. */
shoal_err sh_block_open(sh_ctx *c, uint64_t id, shoal_block **out_block);

/* Gives a part of our weight to an empty reference word that is ours. */
shoal_err sh_block_give(sh_ctx *c, const shoal_block *block, uint64_t to);

/* References of any kind of object, without a check of the kind; NULL is allowed. */
shoal_block *sh_block_retain(shoal_block *block);
void sh_block_release(shoal_block *block);

/* sh_block_release for one who is inside. */
void sh_block_unref(sh_ctx *c, shoal_block *block);

shoal_kind sh_block_kind(const shoal_block *block);

/* Inside: the same for a block that may not be ours. One that is, is not looked at in the heap: that would cost a cache
 * line that another process works on. SHOAL_KIND_NONE when there is none. */
shoal_kind sh_block_kind_of(uint64_t id);

/* Checks that the object is of the kind. usable: the same for accessors, which cannot fail and record nothing; of any kind. */
bool sh_block_is_usable(const shoal_block *block);
shoal_err sh_block_require(const shoal_block *block, sh_kind kind, const char *what);

/* A handle that was in use when this process left its world. It is of no kind, so every call refuses it, and there is nothing
 * behind it; whoever has it can still release it. */
static inline bool sh_block_is_lost(const shoal_block *block)
{
    return block->meta == NULL;
}

/* sh_block_release for one of those. */
void sh_block_unref_lost(shoal_block *block);

/* All handles go, or are lost: at the end of the process's stay. Also forgets the free cells. */
void sh_blocks_forget(void);

/* The cells of a slot that this process has just become: all that are empty can be used. */
shoal_err sh_blocks_begin(sh_ctx *c);

/* Before a fork: a reserved slot gets a reference to everything that we hold, or to all but ends of pipes: an end is closed when its
 * last holder ends, and a child that nobody told of it would keep it open. In the child, sh_blocks_become points the handles there. */
typedef enum sh_inherit {
    SH_INHERIT_ALL,
    SH_INHERIT_PLAIN, /* not the ends of pipes */
} sh_inherit;
shoal_err sh_blocks_inherit(sh_ctx *c, uint32_t index, sh_inherit what);
void sh_blocks_become(sh_ctx *c, sh_inherit what);

/* This process takes part in what the object is for from now on: it waits there, or was given it. Inside. */
shoal_err sh_block_own(sh_ctx *c, shoal_block *block);

/* The same for an object that came by a message, where it matters: only barriers have parties. */
static inline shoal_err sh_block_own_given(sh_ctx *c, shoal_block *block)
{
    return __builtin_expect(block->inherited && block->kind == SH_KIND_BARRIER, 0) ? sh_block_own(c, block) : SHOAL_OK;
}

#endif
