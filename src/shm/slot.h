/* Slots: who is in the world, who is dead, and what a child is born with. */
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

/* Slot number + 1 of the process that reserved it; 0: nobody did. */
static inline uint32_t sh_slot_state_maker(uint64_t state)
{
    return (uint32_t)(state >> 8) & 0xfff;
}

static inline uint64_t sh_slot_state_make(sh_phase phase, uint32_t maker, uint64_t generation)
{
    return generation << 20 | (uint64_t)maker << 8 | (uint64_t)phase;
}

/* The owner id of one life of a slot (sync/peers.h): 18 bits of the generation, 12 of the slot number + 1. */
static inline sh_owner sh_slot_owner(uint32_t index, uint64_t state)
{
    return (sh_owner)((sh_slot_state_generation(state) & 0x3ffff) << SH_SLOT_BITS | (index + 1));
}

static inline uint32_t sh_owner_slot(sh_owner owner)
{
    return (owner & ((1u << SH_SLOT_BITS) - 1)) - 1;
}

/* Bytes of the world's file, by slot number: the life mark at 0, the claim byte (slot.c), the second mark (os/hold.h), the recovery
 * byte (recovery.c). */
static inline uint64_t sh_slot_hold_byte(uint32_t index)
{
    return 2 * (uint64_t)SH_SLOTS + index;
}

/* Claims a free slot for this process and marks it alive. Errors: SHOAL_ELIMIT, SHOAL_ENOMEM. */
shoal_err sh_slot_claim(const char *name, uint32_t *out_index);

/* This process becomes the slot that was reserved for it, once the maker has said so (sh_slot_expect). SHOAL_ESTATE
 * when it was given up meanwhile, or when the maker died without saying so. */
shoal_err sh_slot_adopt(uint32_t index);

/* This process gives back all that its slot holds, as recovery would (recovery.c), then leaves it. Relies on shared memory alone, so
 * it is right at every instruction of this process that a signal handler may have interrupted. Nobody is told of a death. */
void sh_slot_end(uint32_t index);

/* A child of fork becomes the slot that its parent (slot number `maker`) reserved for it. False when it was given up meanwhile. */
bool sh_slot_adopt_forked(uint32_t index, uint64_t generation, uint32_t maker);

/* Leaves: everything is given back already. */
void sh_slot_vacate(uint32_t index);

/* Reserves a slot for a child that the caller is about to start. The child is `outlive`d or not by the parent: for
 * ps only. */
shoal_err sh_slot_reserve(sh_ctx *c, const char *name, uint32_t *out_index);

/* Tells the slot which process it is for. Until then the reservation lives with its maker, and nobody else writes to
 * the slot. */
void sh_slot_expect(uint32_t index, int32_t pid);

/* Undoes a reservation of ours that no process was told of, with all that the slot was given. Inside. */
void sh_slot_cancel(uint32_t index, uint64_t generation);

/* Gives the reserved slot a reference to what our cell holds, in its cell number n. */
shoal_err sh_slot_give(sh_ctx *c, uint32_t index, uint64_t cell, uint32_t n);

/* Exact: false for a process that is stopped, true only when no thread of it will run again. */
bool sh_slot_is_dead(uint32_t index);
bool sh_owner_is_dead(sh_owner owner);

/* Has its recovery begun, or is it over? Only the state is looked at. What was changed before this answers no, by a seq_cst swap, that
 * recovery sees. */
bool sh_owner_is_being_recovered(sh_owner owner);

/* Recovers the slot if it is dead and nobody else is at it. True when this call finished it. The work is done in a process of its own
 * for as long as it takes, so that whoever is stopped in the middle of it can be killed and replaced: recovery.c. */
bool sh_slot_recover(uint32_t index);

/* For tests: without such a process, as where the system makes none. And how many of them were lost. */
extern bool sh_recovery_is_own;
extern uint32_t sh_recovery_lost;

/* Slots that this one reserved and that nobody has come to: they go with their maker. */
void sh_slots_recover_reserved(uint32_t maker);

/* Looks at all slots. When `now` is false it does so only if nobody did in the last 20 ms. Returns how many were
 * recovered. */
uint32_t sh_slots_sweep(bool now);

/* Slots that can be had now, after a look for the dead when there are few. All of them in a process that is
 * in no world: then the first start says why. */
uint32_t sh_slots_free(void);

/* Waits until the process is known to be dead and recovered, and does it; for one that was seen to end. False, with a line in the log,
 * when it was not after a minute: the recoverer is stopped, and the system makes no helpers that could be replaced. */
bool sh_slot_bury(uint32_t index, uint64_t generation);

#endif
