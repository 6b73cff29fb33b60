#include "shm/slot.h"

#include "base/clock.h"
#include "base/death.h"
#include "base/log.h"
#include "os/life_lock.h"
#include "os/memory.h"
#include "os/pid.h"
#include "shm/commit.h"
#include "shm/heap.h"
#include "shm/waits.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define SWEEP_ASKS 64u /* see sh_slots_sweep */
#define BURY_LIMIT SHOAL_SECONDS(60)

static void set_name(sh_slot_shm *slot, const char *name)
{
    snprintf(slot->name, sizeof slot->name, "%s", name != NULL ? name : "");
}

/* Commits memory for the slot. The caller then checks whether it is free. Slots are used from the lowest number up. */
static shoal_err slot_memory(uint32_t index)
{
    if (sh_world_file() < 0) {
        return sh_world_file_lost();
    }
    if (!sh_memory_commit(sh_the_world.fd, sh_the_world.base, sh_offset_of(sh_slot_at(index)), sizeof(sh_slot_shm))) {
        return sh_fail_os("memory for a slot");
    }
    sh_a32 *used = &sh_the_world.header->slots_used;
    uint32_t n = sh_load_relaxed(used);
    while (n < index + 1 && !sh_cas_acq_rel(used, &n, index + 1)) {
    }
    return SHOAL_OK;
}

/* A process that wants a slot first locks its claim byte, then wins its state, and only then marks it alive. So a
 * claimant that is stopped anywhere costs the others this one slot: other claimants go on to the next, and the mark of
 * a slot that was reserved for a child is free for the child. */
static uint64_t claim_byte(uint32_t index)
{
    return SH_SLOTS + (uint64_t)index;
}

/* space: the pid namespace in which pid was read. */
static void set_identity(sh_slot_shm *slot, int32_t pid, uint64_t space)
{
    sh_store_relaxed(&slot->start, sh_pid_start_time(pid));
    sh_store_relaxed(&slot->space, space);
    sh_store_release(&slot->pid, (uint32_t)pid);
}

/* Returns the pid namespace of this process, which is about to become that slot. Outside the world's home it takes a
 * second mark, by which the others can tell its death: its pid means nothing to them. */
static uint64_t own_space(uint32_t index)
{
    uint32_t space = sh_pid_space(), home = sh_load_relaxed(&sh_the_world.header->home);
    bool away = space != 0 && home != 0 && space != home;
    return space | (away && sh_life_lock_take(sh_the_world.fd, sh_slot_life_lock_byte(index)) ? SH_SPACE_HELD : 0);
}

static bool looks_free(uint32_t index)
{
    return index >= sh_load_acquire(&sh_the_world.header->slots_used) ||
           sh_slot_state_phase(sh_load_acquire(&sh_slot_at(index)->state)) == SH_PHASE_FREE;
}

/* Takes the slot if it is free. This process has the claim byte, and the slot has memory. */
static bool claim_if_free(uint32_t index, const char *name)
{
    sh_slot_shm *slot = sh_slot_at(index);
    uint64_t state = sh_load_acquire(&slot->state);
    if (sh_slot_state_phase(state) != SH_PHASE_FREE ||
        !sh_cas_acq_rel(&slot->state, &state,
                        sh_slot_state_make(SH_PHASE_ALIVE, 0, sh_slot_state_generation(state) + 1))) {
        return false; /* reserved meanwhile */
    }
    SH_DEATH("slot.claim.alive"); /* death: pid 0, no claim: recovered like any other. stopped: pid 0, but claimed */
    uint64_t space = own_space(index);
    (void)!sh_life_mark(sh_the_world.fd, index); /* nobody has it: a process that vacates a slot unmarks it first */
    set_identity(slot, (int32_t)getpid(), space);
    SH_DEATH("slot.claim.marked");
    set_name(slot, name);
    return true;
}

shoal_err sh_slot_claim(const char *name, uint32_t *out_index)
{
    for (uint32_t i = 0; i < SH_SLOTS; i++) {
        if (!looks_free(i) || !sh_life_mark(sh_the_world.fd, claim_byte(i))) {
            continue;
        }
        shoal_err err = slot_memory(i);
        bool ours = err == SHOAL_OK && claim_if_free(i, name);
        sh_life_unmark(sh_the_world.fd, claim_byte(i));
        if (err != SHOAL_OK) {
            return err;
        }
        if (ours) {
            *out_index = i;
            return SHOAL_OK;
        }
    }
    return sh_fail(SHOAL_ELIMIT, "the world has no free slot: %u processes are in it", SH_SLOTS);
}

static shoal_err reserve_free(sh_ctx *c, const char *name, uint32_t *out_index)
{
    /* Read once: a signal handler may fork between the two steps below, and the child then has another slot. What it
     * reserves by the second step is its parent's, who did the first. */
    sh_slot_shm *self = c->slot;
    uint32_t maker = c->index + 1;
    for (uint32_t i = 0; i < SH_SLOTS; i++) {
        sh_slot_shm *slot = sh_slot_at(i);
        if (i >= sh_load_relaxed(&sh_the_world.header->slots_used)) {
            SH_TRY(slot_memory(i));
        }
        uint64_t state = sh_load_acquire(&slot->state);
        if (sh_slot_state_phase(state) != SH_PHASE_FREE) {
            continue;
        }
        sh_store_release(&self->reserves, 1); /* before the swap: recovery looks for what it reserved only then */
        uint64_t reserved = sh_slot_state_make(SH_PHASE_RESERVED, maker, sh_slot_state_generation(state) + 1);
        if (sh_cas_acq_rel(&slot->state, &state, reserved)) {
            SH_DEATH("slot.reserve.reserved"); /* death: pid is 0, so our own recovery recovers it (recovery.c) */
            sh_store_relaxed(&slot->made_by, sh_slot_state_generation(sh_load_relaxed(&self->state)));
            set_name(slot, name);
            *out_index = i;
            return SHOAL_OK;
        }
    }
    return sh_fail(SHOAL_ELIMIT, "the world has no free slot: %u processes are in it", SH_SLOTS);
}

shoal_err sh_slot_reserve(sh_ctx *c, const char *name, uint32_t *out_index)
{
    shoal_err err = reserve_free(c, name, out_index);
    if (err == SHOAL_ELIMIT && sh_slots_sweep_found()) {
        err = reserve_free(c, name, out_index);
    }
    return err;
}

void sh_slot_expect(uint32_t index, int32_t pid)
{
    sh_slot_shm *slot = sh_slot_at(index);
    if (sh_slot_state_phase(sh_load_acquire(&slot->state)) == SH_PHASE_RESERVED && sh_load_acquire(&slot->pid) == 0) {
        set_identity(slot, pid, sh_pid_space());
    }
}

shoal_err sh_slot_give(sh_ctx *c, uint32_t index, uint64_t cell, uint32_t n)
{
    uint64_t weight;
    SH_TRY(sh_heap_share(c, cell, &weight));
    sh_heap_split(c, cell, sh_offset_of(&sh_slot_at(index)->cells[n]), weight);
    return SHOAL_OK;
}

void sh_slot_cancel(uint32_t index, uint64_t generation)
{
    sh_slot_shm *slot = sh_slot_at(index);
    uint64_t state = sh_slot_state_make(SH_PHASE_RESERVED, sh_the_world.self.index + 1, generation);
    uint64_t dead = sh_slot_state_make(SH_PHASE_DEAD, sh_slot_state_maker(state), generation);
    if (sh_cas_acq_rel(&slot->state, &state, dead)) {
        SH_DEATH("slot.cancel.marked"); /* death: a dead slot like any other */
        sh_slot_bury(index, generation);
    }
}

static bool same_life(uint32_t index, uint64_t generation)
{
    uint64_t state = sh_load_acquire(&sh_slot_at(index)->state);
    return sh_slot_state_phase(state) != SH_PHASE_FREE && sh_slot_state_generation(state) == generation;
}

/* Waits until the maker has said that the slot is for this process. The maker does so right after the fork or spawn, so
 * there is nothing to wait for unless this process is very quick. Only the maker writes to the slot until then, so it
 * need not consider a child that is ahead of it. */
static bool is_expected(uint32_t index, uint64_t *out_state)
{
    sh_slot_shm *slot = sh_slot_at(index);
    for (uint32_t round = 1;; round++) {
        uint64_t state = sh_load_acquire(&slot->state);
        int32_t pid = (int32_t)sh_load_acquire(&slot->pid); /* pairs with the release in set_identity */
        if (sh_slot_state_phase(state) != SH_PHASE_RESERVED || (pid != 0 && pid != (int32_t)getpid())) {
            return false;
        }
        if (pid != 0) {
            *out_state = state;
            return true;
        }
        uint32_t maker = sh_slot_state_maker(state) - 1;
        if (round % 256 == 0 &&
            (maker >= SH_SLOTS || !same_life(maker, sh_load_relaxed(&slot->made_by)) || sh_slot_is_dead(maker))) {
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}

shoal_err sh_slot_adopt(uint32_t index)
{
    sh_slot_shm *slot = sh_slot_at(index);
    uint64_t state = 0;
    int64_t deadline = sh_deadline(SHOAL_SECONDS(5));
    if (index >= SH_SLOTS || !is_expected(index, &state)) {
        return sh_fail(SHOAL_ESTATE, "the reservation of slot %u was undone before this process came", index);
    }
    uint64_t space = own_space(index);
    /* Nobody else has the mark: claimants take it only when they own the slot, and a leaving process drops it first. */
    while (!sh_life_mark(sh_world_file(), index)) {
        if (sh_passed(deadline)) {
            return sh_fail(SHOAL_ESTATE, "cannot mark slot %u as alive", index);
        }
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    if (!sh_cas_acq_rel(&slot->state, &state, sh_slot_state_make(SH_PHASE_ALIVE, 0, sh_slot_state_generation(state)))) {
        sh_life_unmark(sh_world_file(), index);
        return sh_fail(SHOAL_ESTATE, "the reservation of slot %u was undone before this process came", index);
    }
    sh_store_relaxed(&slot->space, space); /* it was the maker's, who sees the same pids; now perhaps SH_SPACE_HELD */
    return SHOAL_OK;
}

/* Nobody stores whom the slot is for, and no other process knows of it. As in sh_slot_claim, the swap decides, under
 * the mark. */
bool sh_slot_adopt_forked(uint32_t index, uint64_t generation, uint32_t maker)
{
    sh_slot_shm *slot = sh_slot_at(index);
    uint64_t state = sh_slot_state_make(SH_PHASE_RESERVED, maker + 1, generation);
    int64_t deadline = sh_deadline(SHOAL_SECONDS(1));
    uint64_t space = own_space(index);
    while (!sh_life_mark(sh_world_file(), index)) { /* nobody else has it, as in sh_slot_adopt */
        if (sh_load_acquire(&slot->state) != state || sh_world_file() < 0 || sh_passed(deadline)) {
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    }
    if (!sh_cas_acq_rel(&slot->state, &state, sh_slot_state_make(SH_PHASE_ALIVE, 0, generation))) {
        sh_life_unmark(sh_world_file(), index);
        return false;
    }
    SH_DEATH("slot.adopt.alive"); /* death: no mark and no pid: recovered like any other */
    set_identity(slot, (int32_t)getpid(), space);
    return true;
}

/* The mark is dropped before the slot is free, so that the next owner finds it free, too, however long this process is
 * stopped in between. Meanwhile the claim byte says that this is not a death; if this process cannot get it, another
 * one has it, which says the same. */
void sh_slot_vacate(uint32_t index)
{
    sh_slot_shm *slot = sh_slot_at(index);
    uint64_t state = sh_load_relaxed(&slot->state);
    int file = sh_world_file();
    bool claimed = sh_life_mark(file, claim_byte(index));
    sh_life_unmark(file, index);
    SH_DEATH("slot.vacate.unmarked");
    sh_store_relaxed(&slot->pid, 0); /* the next reservation has none until its child is there */
    sh_waits_clear(slot);
    sh_store_relaxed(&slot->leaving, 0);
    sh_racy_store(&slot->held, 0);
    SH_DEATH("slot.vacate.nameless"); /* death: pid 0 and no claim: it holds nothing, and is recovered */
    if (sh_slot_state_phase(state) == SH_PHASE_ALIVE) { /* otherwise another process took us for dead */
        sh_cas_acq_rel(&slot->state, &state, sh_slot_state_make(SH_PHASE_FREE, 0, sh_slot_state_generation(state)));
    }
    if (claimed) {
        sh_life_unmark(file, claim_byte(index));
    }
    sh_life_lock_drop(); /* drops all marks, but this process has none any more */
}

/* For a process of another pid namespace that has a pid there, and no life mark: only its marks tell. A process that
 * has not yet taken its reserved slot has none: that case is left to its own namespace. So is a process that leaves,
 * which has the claim byte until the slot is free. A process in the world's home has no second mark, so one whose
 * program closed the world's fd is taken for dead from other namespaces. */
static bool is_dead_elsewhere(uint32_t index, uint64_t state, uint64_t space, int file)
{
    return sh_slot_state_phase(state) == SH_PHASE_ALIVE && file >= 0 && !sh_life_marked(file, claim_byte(index)) &&
           ((space & SH_SPACE_HELD) == 0 || !sh_life_marked(file, sh_slot_life_lock_byte(index))) &&
           sh_load_acquire(&sh_slot_at(index)->state) == state;
}

/* Checks whether the slot is dead in that state. If so, that life of it remains dead. */
static bool is_dead_in(uint32_t index, uint64_t state)
{
    sh_slot_shm *slot = sh_slot_at(index);
    sh_phase phase = sh_slot_state_phase(state);
    if (phase == SH_PHASE_FREE || (index == sh_the_world.self.index && sh_attachment_now() == SH_ATTACHED)) {
        return false;
    }
    if (phase == SH_PHASE_DEAD) {
        return true;
    }
    int file = sh_world_file(); /* -1: this process has lost it; then only pid, start time and threads tell */
    if (file >= 0 && sh_life_marked(file, index)) {
        return false;
    }
    int32_t pid = (int32_t)sh_load_acquire(&slot->pid);
    uint64_t start = sh_load_relaxed(&slot->start), space = sh_load_relaxed(&slot->space);
    if (pid != 0 && (uint32_t)space != 0 && sh_pid_space() != 0 && (uint32_t)space != sh_pid_space()) {
        return is_dead_elsewhere(index, state, space, file);
    }
    if (pid != 0) {
        /* A process with the right pid and start time but neither mark nor mapping has executed another program; or, if
         * the slot is reserved for it, it has not come yet. A process that ends drops its mark before the kernel ends
         * its work on a card, which may write to memory of other processes; so it is not dead before it is gone. */
        bool gone = sh_pid_gone(pid, start) ||
                    (phase == SH_PHASE_ALIVE && !sh_pid_maps(pid, (uint64_t)sh_the_world.file.inode));
        return gone && sh_load_acquire(&slot->state) == state;
    }
    if (phase == SH_PHASE_ALIVE) {
        /* It died while it claimed the slot, or left it: if it lives, it has the claim byte until the pid is there, or
         * the slot is free. So the pid and the state are read again, after the claim byte. */
        return file >= 0 && !sh_life_marked(file, claim_byte(index)) && sh_load_acquire(&slot->pid) == 0 &&
               sh_load_acquire(&slot->state) == state;
    }
    return false; /* reserved for a child that nobody has seen: only its maker's recovery handles it (recovery.c) */
}

bool sh_slot_life_is_dead(uint32_t index, uint64_t *out_generation)
{
    uint64_t state = sh_load_acquire(&sh_slot_at(index)->state);
    bool dead = is_dead_in(index, state);
    if (dead) {
        *out_generation = sh_slot_state_generation(state);
    }
    return dead;
}

bool sh_slot_is_dead(uint32_t index)
{
    return is_dead_in(index, sh_load_acquire(&sh_slot_at(index)->state));
}

bool sh_owner_is_dead(sh_owner owner)
{
    uint32_t index = sh_owner_slot(owner);
    if (index >= SH_SLOTS || index >= sh_load_acquire(&sh_the_world.header->slots_used)) {
        return true;
    }
    for (;;) {
        uint64_t state = sh_load_acquire(&sh_slot_at(index)->state);
        if (sh_slot_state_phase(state) == SH_PHASE_FREE || sh_slot_owner(index, state) != owner ||
            sh_slot_is_dead(index)) {
            return true;
        }
        if (sh_load_acquire(&sh_slot_at(index)->state) == state) {
            return false;
        } /* otherwise a recovery has just begun, which sh_slot_is_dead may have missed */
    }
}

bool sh_owner_is_being_recovered(sh_owner owner)
{
    uint32_t index = sh_owner_slot(owner);
    /* The load pairs with the fence after the swap to DEAD in recover_here (recovery.c). */
    uint64_t state = index < SH_SLOTS ? sh_load_seq_cst(&sh_slot_at(index)->state) : 0;
    return index >= SH_SLOTS || sh_slot_state_phase(state) == SH_PHASE_FREE ||
           sh_slot_state_phase(state) == SH_PHASE_DEAD || sh_slot_owner(index, state) != owner;
}

/* Checks whether the pid of the slot runs, where that pid means something: nothing is known then of a pid that was
 * reused, or of a process that has executed another program. */
static bool seems_alive(uint32_t index)
{
    const sh_slot_shm *slot = sh_slot_at(index);
    sh_phase phase = sh_slot_state_phase(sh_load_acquire(&slot->state));
    uint32_t pid = sh_load_acquire(&slot->pid), space = (uint32_t)sh_load_relaxed(&slot->space);
    return (phase == SH_PHASE_ALIVE || phase == SH_PHASE_RESERVED) && pid != 0 && space != 0 &&
           space == sh_pid_space() && sh_pid_runs((int32_t)pid);
}

/* To ask for one life mark, the kernel walks the marks of all processes, so a sweep that asked for each would cost the
 * square of their number. A sweep looks for their pids instead, which costs the same for each, and asks exactly
 * (sh_slot_is_dead) only about those whose pid does not run, and about SWEEP_ASKS others in turn, for what a pid does
 * not tell: all others in a world of that many slots. Two sweepers that take the same turn harm nobody.
 *
 * swept_at keeps others from sweeping at the same time. A sweeper sets it again and again, so one that takes long is
 * left alone, and one that is stopped or killed is replaced after `age`. */
uint32_t sh_slots_sweep(int64_t age)
{
    sh_world_shm *header = sh_the_world.header;
    uint64_t last = sh_load_relaxed(&header->swept_at), time = (uint64_t)sh_now();
    if (age > 0 && (time - last < (uint64_t)age || !sh_cas_acq_rel(&header->swept_at, &last, time))) {
        return 0;
    }
    uint32_t recovered = 0, taken = 0, used = sh_load_acquire(&header->slots_used);
    used = used < SH_SLOTS ? used : SH_SLOTS;
    uint32_t turn = used <= SWEEP_ASKS ? 0 : sh_add_relaxed(&header->sweep_turn, SWEEP_ASKS) % used;
    sh_dead_lives dead = {.count = 0};
    for (uint32_t i = 0; i < used; i++) {
        bool ask = (i + used - turn) % used < SWEEP_ASKS;
        taken += sh_slot_state_phase(sh_load_relaxed(&sh_slot_at(i)->state)) != SH_PHASE_FREE;
        if ((ask || !seems_alive(i)) && sh_slot_life_is_dead(i, &dead.generation[dead.count])) {
            dead.index[dead.count++] = i;
        }
        if (dead.count == SH_DEAD_MAX || i == used - 1) {
            recovered += sh_slots_recover(&dead);
            sh_store_relaxed(&header->swept_at, (uint64_t)sh_now());
        } else if (i % SWEEP_ASKS == 0) {
            sh_store_relaxed(&header->swept_at, (uint64_t)sh_now());
        }
    }
    sh_store_relaxed(&header->slots_taken, taken - recovered);
    return recovered;
}

bool sh_slots_sweep_found(void)
{
    sh_a64 *recovered = &sh_the_world.header->recovered;
    uint64_t before = sh_load_acquire(recovered);
    return sh_slots_sweep(0) > 0 || sh_load_acquire(recovered) != before;
}

static uint32_t count_free(void)
{
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used), n = SH_SLOTS;
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        n -= sh_slot_state_phase(sh_load_relaxed(&sh_slot_at(i)->state)) != SH_PHASE_FREE;
    }
    return n;
}

uint32_t sh_slots_free(void)
{
    if (sh_enter() == NULL) {
        return SH_SLOTS;
    }
    uint32_t n = count_free();
    if (n < SH_SLOTS / 2) {
        sh_slots_sweep(0);
        n = count_free();
    }
    sh_leave();
    return n;
}

bool sh_slot_bury(uint32_t index, uint64_t generation)
{
    int64_t deadline = sh_deadline(BURY_LIMIT);
    for (;;) {
        uint64_t state = sh_load_acquire(&sh_slot_at(index)->state);
        if (sh_slot_state_generation(state) != generation || sh_slot_state_phase(state) == SH_PHASE_FREE ||
            sh_slot_recover(index)) {
            return true;
        }
        if (sh_passed(deadline)) {
            sh_log("slot %u is not recovered yet: process %u, which recovers it, is stopped", index,
                   (unsigned)(sh_load_acquire(&sh_slot_at(index)->recoverer) >> 32 & SH_RECOVERER_PID_MASK));
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
}
