/* Slots: which processes are in the world, which are dead, and what a child inherits. */
#ifndef SH_SHM_SLOT_H
#define SH_SHM_SLOT_H

#include "shm/world.h"

static inline sh_phase sh_slot_state_phase(uint64_t state)
{
    return (sh_phase)(state & 0xff);
}

static inline uint64_t sh_slot_state_generation(uint64_t state)
{
    return state >> 20;
}

/* Returns the slot number + 1 of the process that reserved the slot, or 0. */
static inline uint32_t sh_slot_state_maker(uint64_t state)
{
    return (uint32_t)(state >> 8) & 0xfff;
}

static inline uint64_t sh_slot_state_make(sh_phase phase, uint32_t maker, uint64_t generation)
{
    return generation << 20 | (uint64_t)maker << 8 | (uint64_t)phase;
}

/* Returns the owner id of one life of a slot (sync/peers.h): 18 bits of the generation, 12 of the slot number + 1. */
static inline sh_owner sh_slot_owner(uint32_t index, uint64_t state)
{
    return (sh_owner)((sh_slot_state_generation(state) & 0x3ffff) << SH_SLOT_BITS | (index + 1));
}

/* Returns the whole life (sync/peers.h): above the owner, the other bits of the generation. */
static inline uint64_t sh_slot_life(uint32_t index, uint64_t state)
{
    return sh_slot_state_generation(state) >> 18 << 32 | sh_slot_owner(index, state);
}

static inline uint32_t sh_owner_slot(sh_owner owner)
{
    return (owner & ((1u << SH_SLOT_BITS) - 1)) - 1;
}

/* Bytes of the world's file that are locked as marks, by slot number: the life mark from 0, the claim byte (slot.c),
 * the second mark (os/life_lock.h). Above them, the bytes of recoverers (recovery.c). */
static inline uint64_t sh_slot_life_lock_byte(uint32_t index)
{
    return 2 * (uint64_t)SH_SLOTS + index;
}

/* Claims a free slot for this process and marks it alive. Errors: SHOAL_ELIMIT, SHOAL_ENOMEM. */
shoal_err sh_slot_claim(const char *name, uint32_t *out_index);

/* Makes this process the slot that was reserved for it, once the maker has said so (sh_slot_expect). Errors:
 * SHOAL_ESTATE if the reservation was undone meanwhile, or if the maker died before it said so. */
shoal_err sh_slot_adopt(uint32_t index);

/* Releases all that this process's slot holds, as recovery would (recovery.c), then frees the slot. Uses only shared
 * memory, so it is correct at every instruction of this process that a signal handler may have interrupted. No death is
 * reported. */
void sh_slot_end(uint32_t index);

/* Makes a child of fork the slot that its parent (slot number `maker`) reserved for it. Returns false if the
 * reservation was undone meanwhile. */
bool sh_slot_adopt_forked(uint32_t index, uint64_t generation, uint32_t maker);

/* Frees the slot of this process, which holds nothing any more. */
void sh_slot_vacate(uint32_t index);

/* Reserves a slot for a child that the caller is about to start. */
shoal_err sh_slot_reserve(sh_ctx *c, const char *name, uint32_t *out_index);

/* Stores in the slot which process it is for. Until then the reservation ends with its maker, and nobody else writes to
 * the slot. */
void sh_slot_expect(uint32_t index, int32_t pid);

/* Undoes a reservation of this process, and releases all that the slot was given. No process was told of it. Called
 * inside. */
void sh_slot_cancel(uint32_t index, uint64_t generation);

/* Gives the reserved slot a reference to the block in this process's cell, in its cell number n. */
shoal_err sh_slot_give(sh_ctx *c, uint32_t index, uint64_t cell, uint32_t n);

/* Exact: false for a stopped process, true only if no thread of it will run again. The second one also returns which
 * life of the slot is dead: that stays true, while the slot may have another life soon. */
bool sh_slot_is_dead(uint32_t index);
bool sh_slot_life_is_dead(uint32_t index, uint64_t *out_generation);
bool sh_owner_is_dead(sh_owner owner);

/* Checks whether its recovery has begun or is over. Reads only the state. If this returns false, recovery sees every
 * change that was made before by a seq_cst swap. */
bool sh_owner_is_being_recovered(sh_owner owner);

/* Recovers the slot if it is dead and nobody else is recovering it. Returns true if this call finished the recovery.
 * The work is done in a separate short-lived process, so that one that is stopped in the middle can be killed and
 * replaced: recovery.c. */
bool sh_slot_recover(uint32_t index);

/* Lives of slots that were found dead, to be recovered together: such a process costs as much as its maker has fds. */
#define SH_DEAD_MAX 32
typedef struct sh_dead_lives {
    uint32_t count;
    uint32_t index[SH_DEAD_MAX];
    uint64_t generation[SH_DEAD_MAX];
} sh_dead_lives;

/* Recovers them, but those that others recover, and empties the list. Returns the number that this call recovered. */
uint32_t sh_slots_recover(sh_dead_lives *lives);

/* Checks whether the calling process is such a process: it acts for its maker, but may be killed at any time. */
bool sh_recovery_is_helper(void);

/* For tests: recover without such a process, as where the system makes none; and the number of them that were lost. */
extern bool sh_recovery_is_own;
extern uint32_t sh_recovery_lost;

/* Checks all slots and recovers the dead ones, unless another process does or did so less than `age` ns ago; 0: in any
 * case.
 * Returns the number recovered. In a world of more than 64 slots a process that executed another program, or whose pid
 * was reused before any sweep, is found by one of the next sweeps. */
uint32_t sh_slots_sweep(int64_t age);

/* Sweeps in any case. Returns whether a process was recovered meanwhile, by this process or another one: then what the
 * caller did not find may be there now. */
bool sh_slots_sweep_found(void);

/* Returns the number of free slots, after a sweep if there are few. If this process cannot enter a world, returns the
 * number of all slots: then the first start says why. */
uint32_t sh_slots_free(void);

/* Waits until a process that was seen to end is recovered; recovers it if nobody else does. Returns false, with a log
 * line, if that took more than a minute: then the recoverer is stopped, and the system makes no helpers that could be
 * replaced. */
bool sh_slot_bury(uint32_t index, uint64_t generation);

#endif
