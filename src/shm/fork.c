/* Forks. Every child of fork() is a member of the world, whether or not the library started it. Before the fork, the
 * parent reserves a slot and gives it a reference to all that it holds, and the child becomes that slot. So no block
 * changes under a pointer that the child inherited.
 *
 *   ours    shoal_process_start: the caller has reserved the slot, and stores whom it is for once it knows the pid
 *   plain   fork() in the program: the handlers below reserve the slot, and the child takes it; ends of pipes stay with
 *           the parent
 *   bare    the fork server: the child gets a slot that another process has reserved
 *
 * A plain child that finds no slot (no room in the heap or in the table, or its parent's death undid the reservation)
 * has no heap. Its mapping is replaced by one without access, so that a pointer faults instead of reading what now
 * belongs to another process, and calls return SHOAL_EFORK.
 *
 * The parent is not told whether a plain fork succeeded, nor its child's pid. It uses a pipe (os/alive_pipe.h), whose
 * write end the child closes only after it has taken its slot. So if the pipe is closed and nobody has taken the slot,
 * nobody will: the
 * fork failed, or the child was killed too early. The reservation is undone at once, or by the next fork, sweep or
 * wait. A stopped child keeps it, for any time. Without a pipe (no fds left, or the program closed it), a reservation
 * that nobody took within sh_fork_adopt_limit is undone, and a child that comes later finds it undone. death: of the
 * parent, before the child has its slot: its recovery undoes the reservation, with the same result.
 *
 * Signals are blocked from before the reservation until the child knows who it is (base/fork.h). So no signal handler
 * of the child acts, or ends, on behalf of its parent, and no handler of the parent ends the process between the fork
 * and the fork handler below.
 *
 * Inheriting an object by fork does not make a process a participant in it: see SH_KIND_INHERITED.
 */
#include "base/fork.h"
#include "base/clock.h"
#include "os/alive_pipe.h"
#include "os/life_lock.h"
#include "os/memory.h"
#include "os/pid.h"
#include "shm/block.h"
#include "shm/intent.h"
#include "shm/slot.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define EXIT_LIMIT SHOAL_SECONDS(1) /* how long an ending process waits until its last children have their slots */
#define PENDING_MAX 256
#define SWEEP_EVERY 16 /* plain forks */

int64_t sh_fork_adopt_limit = SHOAL_SECONDS(5); /* without a pipe */

/* The current fork. Under the locks of base/fork.h. */
static struct {
    enum { PLAIN, OURS, BARE } kind;
    bool given; /* plain: the slot is reserved and holds what this process holds */
    uint32_t slot;
    uint64_t generation;
    uint32_t forks; /* the number of plain forks */
} plan;

/* Reservations by plain forks that no child has taken yet. Used inside. */
typedef struct reservation {
    uint32_t slot;
    uint64_t generation;
    int64_t since;
    sh_alive_pipe pipe;
} reservation;

static reservation pending[PENDING_MAX];
static size_t pending_count;

static bool is_taken(const reservation *r)
{
    uint64_t state = sh_load_acquire(&sh_slot_at(r->slot)->state);
    return sh_slot_state_phase(state) != SH_PHASE_RESERVED || sh_slot_state_generation(state) != r->generation;
}

/* A closed pipe counts only together with a later check of the slot (sh_slot_cancel): a child takes the slot first,
 * then closes the pipe. */
static bool has_no_child(const reservation *r)
{
    sh_alive_pipe_state state = sh_alive_pipe_check(&r->pipe);
    return state == SH_ALIVE_PIPE_CLOSED ||
           (state == SH_ALIVE_PIPE_UNKNOWN && sh_now() - r->since > sh_fork_adopt_limit);
}

/* Returns true if there is nothing left to wait for. The cancel does nothing to a slot that was taken meanwhile. */
static bool settle(reservation *r)
{
    if (!is_taken(r)) {
        if (!has_no_child(r)) {
            return false;
        }
        sh_slot_cancel(r->slot, r->generation);
    }
    sh_alive_pipe_close_read(&r->pipe);
    return true;
}

void sh_forks_tidy(void)
{
    for (size_t i = 0; i < pending_count;) {
        if (settle(&pending[i])) {
            pending[i] = pending[--pending_count];
        } else {
            i++;
        }
    }
}

/* Writes nothing: a signal handler that ends the process may have interrupted sh_forks_tidy. */
void sh_forks_await(void)
{
    int64_t deadline = sh_deadline(EXIT_LIMIT);
    for (size_t i = 0; i < pending_count && i < PENDING_MAX; i++) {
        while (!is_taken(&pending[i]) && !has_no_child(&pending[i]) && !sh_passed(deadline)) {
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        }
    }
}

void sh_forks_forget(void)
{
    for (size_t i = 0; i < pending_count; i++) {
        sh_alive_pipe_close_read(&pending[i].pipe);
    }
    pending_count = 0;
}

/* ---- around every fork ---- */

static bool reserve_for_fork(sh_ctx *c)
{
    char name[sizeof c->slot->name];
    snprintf(name, sizeof name, "%.*s (fork)", (int)sizeof name - 8, c->slot->name);
    if (sh_slot_reserve(c, name, &plan.slot) != SHOAL_OK) {
        return false;
    }
    plan.generation = sh_slot_state_generation(sh_load_relaxed(&sh_slot_at(plan.slot)->state));
    SH_DEATH("world.fork.reserved"); /* death: our recovery recovers the slots that we reserved */
    if (sh_blocks_inherit(c, plan.slot, SH_INHERIT_PLAIN) != SHOAL_OK) {
        sh_slot_cancel(plan.slot, plan.generation);
        return false;
    }
    reservation *r = &pending[pending_count++];
    *r = (reservation){.slot = plan.slot, .generation = plan.generation, .since = sh_now()};
    sh_alive_pipe_open(&r->pipe);
    return true;
}

void sh_world_fork_prepare(void)
{
    sh_ctx *c = &sh_the_world.self;
    if (plan.kind != PLAIN || sh_attachment_now() != SH_ATTACHED) {
        return;
    }
    /* If an intent is open, it is of this thread: a signal handler forks in the middle of a call. */
    if (sh_load_relaxed(&c->slot->intent.code) == SH_INTENT_NONE) {
        if (++plan.forks % SWEEP_EVERY == 0) { /* mainly for children that have executed other programs */
            sh_slots_sweep(SH_SWEEP_AGE);
        }
        sh_forks_tidy();
        plan.given = pending_count < PENDING_MAX && reserve_for_fork(c);
        SH_DEATH("world.fork.prepared"); /* death: the same */
    }
}

void sh_world_fork_parent(void)
{
    if (plan.given) {
        int number = errno; /* of a fork that failed */
        reservation *r = &pending[pending_count - 1];
        sh_alive_pipe_close_write(&r->pipe);
        pending_count -= settle(r); /* there is no child, or it was very fast */
        errno = number;
    }
    plan.kind = PLAIN;
    plan.given = false;
}

void sh_world_fork_child(void)
{
    bool ours = sh_fork_has(SH_FORK_WORLD); /* if not, the plan belongs to another thread */
    bool plain = plan.kind == PLAIN || !ours, given = plan.given && ours;
    sh_alive_pipe pipe = given ? pending[pending_count - 1].pipe : (sh_alive_pipe){.read_end = -1, .write_end = -1};
    plan.kind = PLAIN;
    plan.given = false;
    if (ours) {
        sh_forks_forget();
    }
    pending_count = 0;
    sh_the_world.locked = false;
    if (sh_attachment_now() == SH_DETACHED || sh_attachment_now() == SH_FORKED) {
        return; /* nothing was given */
    }
    sh_attachment_set(SH_FORKED); /* until sh_world_become */
    sh_pid_find_space_of_child();
    sh_life_lock_after_fork(); /* before this process has marks */
    sh_peers_set(NULL, 0);
    if (plain && given && sh_slot_adopt_forked(plan.slot, plan.generation, sh_the_world.self.index)) {
        sh_world_be(plan.slot);
        sh_blocks_become(&sh_the_world.self, SH_INHERIT_PLAIN);
        SH_DEATH("world.fork.became");
    } else if (plain) {
        sh_memory_hide(sh_the_world.base, sh_the_world.size);
    }
    sh_alive_pipe_close_write(&pipe); /* this process has its slot now, or will never have it */
}

/* ---- forks of the library ---- */

shoal_err sh_world_become(uint32_t slot)
{
    SH_INVARIANT(sh_attachment_now() == SH_FORKED);
    SH_TRY(sh_slot_adopt(slot));
    sh_world_be(slot);
    sh_blocks_become(&sh_the_world.self, SH_INHERIT_ALL);
    return SHOAL_OK;
}

shoal_err sh_world_fork(uint32_t slot, int32_t *out_pid)
{
    sh_ctx *c = sh_enter(); /* attaches if necessary */
    if (c == NULL) {
        return shoal_last_error();
    }
    sh_leave();
    sh_fork_hold();
    shoal_err err = sh_attached() ? sh_blocks_inherit(c, slot, SH_INHERIT_ALL)
                                  : sh_fail(SHOAL_ESTATE, "another thread has left the world");
    if (err == SHOAL_OK) {
        SH_DEATH("world.fork.inherited"); /* death: the slot is recovered with ours */
        plan.kind = OURS;
        pid_t pid = fork();
        if (pid == 0) {
            *out_pid = 0;
            sh_fork_let_go();
            return SHOAL_OK;
        }
        if (pid < 0) {
            err = sh_fail_os("fork");
        } else {
            *out_pid = (int32_t)pid;
        }
    }
    sh_fork_let_go();
    return err;
}

int32_t sh_world_fork_bare(void)
{
    sh_fork_hold();
    plan.kind = BARE;
    pid_t pid = fork();
    int number = errno;
    sh_fork_let_go();
    errno = number;
    return (int32_t)pid;
}
