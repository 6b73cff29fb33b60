/* Forks. Every child of fork() is a member of the world, whether or not the library was told of it: before the fork a slot is reserved
 * and given a reference to all that this process holds, and the child becomes that slot. So no block changes under a pointer that the
 * child inherited.
 *
 *   ours    shoal_process_start: the caller has reserved the slot, and says whom it is for once it knows the pid
 *   plain   anybody's fork(): the handlers below reserve the slot, and the child takes it by itself. Ends of pipes stay with the parent.
 *   bare    the fork server's: the child gets a slot that somebody else has reserved
 *
 * A plain child that finds no slot (no room in the heap or in the table, or its parent's death undid the reservation) has no heap: its
 * mapping is replaced by nothing, so that a pointer faults instead of reading what is another's by now, and calls return SHOAL_EFORK.
 *
 * The parent is not told whether a plain fork succeeded, nor its child's pid. A cord tells it (os/cord.h): the child lets go of it only
 * after it has taken its slot. So a reservation whose cord is cut and that nobody has taken is one that nobody comes to: the fork failed,
 * or the child was killed too early. It is undone at once, or by the next fork, sweep or wait. A child that is stopped keeps it, however
 * long. Without a cord (no fds left, or the program closed it) a reservation that nobody came to in sh_fork_adopt_limit is undone, and a
 * child that comes later finds that its slot was given up. death: of the parent, before the child is there: its recovery undoes the
 * reservation, with the same result.
 *
 * Signals wait from before the reservation until the child knows who it is (base/fork.h). So no handler of the child acts, or ends, in the
 * name of its parent, and none of the parent ends the process between the fork and the handler below.
 *
 * What a fork inherits makes nobody a party: see SH_KIND_INHERITED.
 */
#include "base/fork.h"
#include "base/clock.h"
#include "os/cord.h"
#include "os/hold.h"
#include "os/memory.h"
#include "os/pid.h"
#include "shm/block.h"
#include "shm/intent.h"
#include "shm/slot.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define EXIT_LIMIT SHOAL_SECONDS(1) /* how long an ending process waits for its last children to take their slots */
#define PENDING_MAX 256
#define SWEEP_EVERY 16 /* plain forks */

int64_t sh_fork_adopt_limit = SHOAL_SECONDS(5); /* without a cord */

/* The fork that is under way. Under the locks of base/fork.h. */
static struct {
    enum { PLAIN, OURS, BARE } kind;
    bool given; /* plain: the slot is reserved and holds what we hold */
    uint32_t slot;
    uint64_t generation;
    uint32_t forks; /* plain ones so far */
} plan;

/* Reservations by plain forks that nobody has come to yet. Inside. */
typedef struct reservation {
    uint32_t slot;
    uint64_t generation;
    int64_t since;
    sh_cord cord;
} reservation;

static reservation pending[PENDING_MAX];
static size_t pending_count;

static bool is_taken(const reservation *r)
{
    uint64_t state = sh_load_acquire(&sh_slot_at(r->slot)->state);
    return sh_slot_state_phase(state) != SH_PHASE_RESERVED || sh_slot_state_generation(state) != r->generation;
}

/* The cord first, then the slot: a child lets go of the one after it has taken the other. */
static bool will_nobody_come(const reservation *r)
{
    sh_cord_state cord = sh_cord_look(&r->cord);
    return cord == SH_CORD_CUT || (cord == SH_CORD_UNKNOWN && sh_now() - r->since > sh_fork_adopt_limit);
}

/* True when there is nothing to wait for any more. The cancel does nothing to a slot that was taken meanwhile. */
static bool settle(reservation *r)
{
    if (!is_taken(r)) {
        if (!will_nobody_come(r)) {
            return false;
        }
        sh_slot_cancel(r->slot, r->generation);
    }
    sh_cord_close(&r->cord);
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

/* Writes nothing: a signal handler that ends the process may have interrupted a tidy. */
void sh_forks_await(void)
{
    int64_t deadline = sh_deadline(EXIT_LIMIT);
    for (size_t i = 0; i < pending_count && i < PENDING_MAX; i++) {
        while (!is_taken(&pending[i]) && !will_nobody_come(&pending[i]) && !sh_passed(deadline)) {
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        }
    }
}

void sh_forks_forget(void)
{
    for (size_t i = 0; i < pending_count; i++) {
        sh_cord_close(&pending[i].cord);
    }
    pending_count = 0;
}

/* ---- around every fork ---- */

static bool reserve_for_plain(sh_ctx *c)
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
    sh_cord_make(&r->cord);
    return true;
}

void sh_world_fork_prepare(void)
{
    sh_ctx *c = &sh_the_world.self;
    if (plan.kind != PLAIN || sh_the_world.attachment != SH_ATTACHED) {
        return;
    }
    /* A note that is open is this thread's: a signal handler forks, in the middle of a call. */
    if (sh_load_relaxed(&c->slot->intent.code) == SH_INTENT_NONE) {
        if (++plan.forks % SWEEP_EVERY == 0) { /* children that have become other programs, above all */
            sh_slots_sweep(false);
        }
        sh_forks_tidy();
        plan.given = pending_count < PENDING_MAX && reserve_for_plain(c);
        SH_DEATH("world.fork.prepared"); /* death: the same */
    }
}

void sh_world_fork_parent(void)
{
    if (plan.given) {
        int number = errno; /* of a fork that failed */
        reservation *r = &pending[pending_count - 1];
        sh_cord_let_go(&r->cord);
        pending_count -= settle(r); /* there is no child, or it was very quick */
        errno = number;
    }
    plan.kind = PLAIN;
    plan.given = false;
}

void sh_world_fork_child(void)
{
    bool ours = sh_fork_has(SH_FORK_WORLD); /* if not, the plan is another thread's */
    bool plain = plan.kind == PLAIN || !ours, given = plan.given && ours;
    sh_cord cord = given ? pending[pending_count - 1].cord : (sh_cord){.near = -1, .far = -1};
    plan.kind = PLAIN;
    plan.given = false;
    if (ours) {
        sh_forks_forget();
    }
    pending_count = 0;
    sh_the_world.locked = false;
    if (sh_the_world.attachment == SH_DETACHED || sh_the_world.attachment == SH_FORKED) {
        return; /* nothing was given */
    }
    sh_the_world.attachment = SH_FORKED; /* until sh_world_become */
    sh_pid_find_space_of_child();
    sh_hold_inherited(); /* before this process has marks */
    sh_peers_set(NULL);
    if (plain && given && sh_slot_adopt_forked(plan.slot, plan.generation, sh_the_world.self.index)) {
        sh_world_be(plan.slot);
        sh_blocks_become(&sh_the_world.self, SH_INHERIT_PLAIN);
        SH_DEATH("world.fork.became");
    } else if (plain) {
        sh_memory_hide(sh_the_world.base, sh_the_world.size);
    }
    sh_cord_let_go(&cord); /* the slot is ours by now, or we shall never have it */
}

/* ---- forks of the library ---- */

shoal_err sh_world_become(uint32_t slot)
{
    SH_INVARIANT(sh_the_world.attachment == SH_FORKED);
    shoal_err err = sh_slot_adopt(slot);
    if (err == SHOAL_OK) {
        sh_world_be(slot);
        sh_blocks_become(&sh_the_world.self, SH_INHERIT_ALL);
    }
    return err;
}

shoal_err sh_world_fork(uint32_t slot, int32_t *out_pid)
{
    sh_ctx *c = sh_enter(); /* attaches, if need be */
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
