#include "shm/timeline.h"

#include "base/death.h"
#include "shm/card_lock.h"
#include "shm/commit.h"
#include "shm/slot.h"

static sh_timeline_shm *timeline_at(uint32_t index)
{
    return (sh_timeline_shm *)sh_at(SH_TIMELINES_AT) + index;
}

/* Timelines up to here have memory. The acquire pairs with the swaps in commit and take_any. */
static uint32_t used_now(void)
{
    uint32_t used = sh_load_acquire(&sh_the_world.header->timelines_used);
    return used < SH_TIMELINES ? used : SH_TIMELINES;
}

/* Returns the timeline, or NULL: the index may come from a message. */
static sh_timeline_shm *find(uint32_t index)
{
    return index != 0 && index < used_now() ? timeline_at(index) : NULL;
}

/* `done` is read first. Recovery sets lost_from before it raises `done`: a process that sees the raised `done` sees
 * lost_from, too. And if it sees a `done` of the GPU's that has reached the number, recovery saw that one or a later
 * one, so lost_from is larger. A `done` that a dying GPU lowered again does not matter: lost_from is set by then.
 * poisoned_from is the same: it is set before the stream that then writes `done` is released. */
sh_work_state sh_work_look(sh_work work)
{
    uint64_t number = sh_work_number(work);
    if (work == 0) {
        return SH_WORK_DONE;
    }
    sh_timeline_shm *t = find(sh_work_timeline(work));
    if (t == NULL) {
        return SH_WORK_LOST;
    }
    uint64_t done = sh_load_acquire(&t->done);
    uint64_t lost_from = sh_load_acquire(&t->lost_from), poisoned_from = sh_load_acquire(&t->poisoned_from);
    if (poisoned_from != 0 && number >= poisoned_from) {
        return SH_WORK_LOST;
    }
    if (lost_from != 0) {
        return number >= lost_from ? SH_WORK_LOST : SH_WORK_DONE;
    }
    return done >= number ? SH_WORK_DONE : SH_WORK_PENDING;
}

/* ---- claiming ---- */

void sh_timelines_range(void **out_start, size_t *out_size)
{
    *out_start = sh_at(SH_TIMELINES_AT);
    *out_size = SH_TIMELINES_BYTES;
}

/* Called inside. All of it at once: the driver registers whole ranges, and a process cannot register what others claim
 * later. */
static shoal_err commit(sh_ctx *c)
{
    uint32_t none = 0;
    if (used_now() != 0) {
        return SHOAL_OK;
    }
    SH_TRY(sh_commit(c, SH_TIMELINES_AT, SH_TIMELINES_BYTES, SH_TIMELINES_BYTES));
    /* death: memory that nobody uses until the next one commits it again; a world comes here once, so no kill test
     * does */
    sh_cas_acq_rel(&sh_the_world.header->timelines_used, &none, 1u);
    return SHOAL_OK;
}

/* A timeline with lost numbers keeps its owner, so nobody takes it. The acquire pairs with the swap that removed the
 * last owner: its numbers are visible. */
static bool take(sh_timeline_shm *t, sh_owner self)
{
    sh_owner nobody = 0;
    return sh_load_acquire(&t->owner) == 0 && sh_load_acquire(&t->poisoned_from) == 0 &&
           sh_cas_acq_rel(&t->owner, &nobody, self);
}

static shoal_err take_any(sh_owner self, uint32_t *out_index)
{
    uint32_t i = 1, used;
    do {
        for (used = used_now(); i < used; i++) {
            if (take(timeline_at(i), self)) {
                *out_index = i;
                return SHOAL_OK;
            }
        }
        if (used < SH_TIMELINES) {
            /* death: one more timeline without an owner; the next claim finds it */
            sh_cas_acq_rel(&sh_the_world.header->timelines_used, &used, used + 1);
            SH_DEATH("timeline.claim.extended");
        }
    } while (i < used_now());
    return sh_fail(
        SHOAL_ELIMIT,
        "the world has no timeline left for this process's GPU: %u are in use, or belonged to processes that "
        "died while their GPU worked",
        SH_TIMELINES - 1);
}

/* What the slot's last process, or this one with its last timeline, waited for. */
static void forget_awaits(sh_slot_shm *slot)
{
    for (uint32_t i = 0; i < SH_SLOT_AWAITS; i++) {
        sh_store_relaxed(&slot->awaits[i].work, 0);
    }
}

shoal_err sh_timeline_claim(uint32_t *out_index)
{
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    forget_awaits(c->slot);
    shoal_err err = commit(c);
    if (err == SHOAL_OK) {
        err = take_any(sh_peers_now->self(), out_index);
        SH_DEATH("timeline.claim.taken"); /* death: nothing is issued; recovery gives it back */
    }
    sh_leave();
    return err;
}

uint64_t sh_timeline_issue(uint32_t index)
{
    sh_timeline_shm *t = timeline_at(index);
    uint64_t number = sh_load_relaxed(&t->issued) + 1;
    sh_store_release(&t->issued, number);
    /* death: the number may never be written, and is lost, like the work before it that was not marked */
    SH_DEATH("timeline.issued");
    return number;
}

sh_work sh_timeline_last(uint32_t index)
{
    return sh_work_make(index, sh_load_relaxed(&timeline_at(index)->issued));
}

sh_a64 *sh_timeline_done_word(uint32_t index)
{
    sh_timeline_shm *t = find(index);
    return t != NULL ? &t->done : NULL;
}

/* ---- work that comes after lost work ---- */

bool sh_timeline_is_poisoned(uint32_t index)
{
    sh_timeline_shm *t = find(index);
    return t != NULL && sh_load_acquire(&t->poisoned_from) != 0;
}

static void poison(sh_timeline_shm *t, uint64_t from)
{
    uint64_t old = sh_load_acquire(&t->poisoned_from);
    while ((old == 0 || from < old) && !sh_cas_acq_rel(&t->poisoned_from, &old, from)) {
    }
}

/* If the work is lost, poisons what comes after it. Returns the work if it is lost, otherwise 0. Called before the
 * streams that wait for it are released: so what comes after it is not done, and what is done does not come after it.
 * (A dying GPU may release them itself, when it has done the work after all. Then what is done is whole.) The process
 * may be gone, or use another timeline now: settle gives no timeline away that an entry may still poison. */
static sh_work poison_after(const sh_await_shm *a)
{
    sh_work work = sh_load_acquire(&a->work), first = sh_load_acquire(&a->first);
    if (work == 0 || sh_work_look(work) != SH_WORK_LOST || sh_load_acquire(&a->work) != work) {
        return 0;
    }
    sh_timeline_shm *t = find(sh_work_timeline(first));
    if (t != NULL) {
        uint64_t done = sh_load_acquire(&t->done), from = sh_work_number(first);
        poison(t, from > done ? from : done + 1);
    }
    return work;
}

/* Looks at all waits once. Returns a number that names the lost ones among them. */
static uint64_t poison_once(void)
{
    uint64_t lost = 0, place = 0;
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used);
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        const sh_slot_shm *slot = sh_slot_at(i);
        bool is_free = sh_slot_state_phase(sh_load_acquire(&slot->state)) == SH_PHASE_FREE;
        for (uint32_t n = 0; n < SH_SLOT_AWAITS; n++) {
            place += 2;
            lost += is_free ? 0 : poison_after(&slot->awaits[n]) * (place + 1);
        }
    }
    return lost;
}

/* Poisons what comes after lost work, and what comes after that. What was lost in one look has poisoned its timeline
 * before the next look begins; so when two looks find the same, nothing more comes after it, also if others do this at
 * the same time, and owners use entries again. The fence pairs with that in sh_timeline_depend: either this process
 * sees what the other one waits for, or that one sees that the work is lost. */
static void spread_losses(void)
{
    uint64_t before, lost = 0;
    int looks = 0;
    do {
        before = lost;
        sh_fence_seq_cst();
        lost = poison_once();
    } while (++looks < 2 || lost != before);
}

/* Returns an entry whose work is done, or NULL. A lost one stays: a dying GPU may write a smaller `done` once more, and
 * then the stream still waits, and must be released again (sh_timeline_look). */
static sh_await_shm *find_room(sh_slot_shm *slot)
{
    for (uint32_t i = 0; i < SH_SLOT_AWAITS; i++) {
        if (sh_work_look(sh_load_relaxed(&slot->awaits[i].work)) == SH_WORK_DONE) {
            return &slot->awaits[i];
        }
    }
    return NULL;
}

/* Returns an entry for earlier work of the same process, or NULL. */
static sh_await_shm *find_earlier(sh_slot_shm *slot, sh_work work)
{
    for (uint32_t i = 0; i < SH_SLOT_AWAITS; i++) {
        if (sh_work_timeline(sh_load_relaxed(&slot->awaits[i].work)) == sh_work_timeline(work)) {
            return &slot->awaits[i];
        }
    }
    return NULL;
}

bool sh_timeline_depend(uint32_t index, sh_work work)
{
    sh_slot_shm *slot = sh_slot_at(sh_the_world.self.index);
    sh_timeline_shm *t = timeline_at(index);
    uint64_t next = sh_load_relaxed(&t->issued) + 1;
    sh_await_shm *a = find_room(slot);
    if (a != NULL) {
        sh_store_release(&a->work, 0);
        sh_store_release(&a->first, sh_work_make(index, next));
    } else if ((a = find_earlier(slot, work)) == NULL) {
        return false;
    }
    SH_DEATH("timeline.depend.found"); /* death: all that this process has issued and not done is lost anyway */
    /* With an earlier `first`, numbers may be called lost that only come after earlier work of the same process. */
    sh_store_release(&a->work, work);
    sh_fence_seq_cst();
    if (sh_work_look(work) == SH_WORK_LOST) {
        poison(t, next);
    }
    return true;
}

bool sh_timeline_awaits(sh_work work)
{
    const sh_slot_shm *slot = sh_slot_at(sh_the_world.self.index);
    for (uint32_t i = 0; i < SH_SLOT_AWAITS; i++) {
        sh_work awaited = sh_load_acquire(&slot->awaits[i].work);
        if (sh_work_timeline(awaited) == sh_work_timeline(work) && awaited >= work) {
            return true;
        }
    }
    return false;
}

size_t sh_timeline_look(bool forget_lost, bool *out_lost)
{
    sh_slot_shm *slot = sh_slot_at(sh_the_world.self.index);
    size_t count = 0;
    for (uint32_t i = 0; i < SH_SLOT_AWAITS; i++) {
        sh_work work = sh_load_acquire(&slot->awaits[i].work);
        sh_work_state state = sh_work_look(work);
        if (state == SH_WORK_LOST) {
            *out_lost = true;
            sh_timeline_free_waiters(sh_work_timeline(work));
        }
        if (state == SH_WORK_LOST && forget_lost) {
            /* What comes after it is poisoned by now, unless the dying card did the work after all. Another thread may
             * have used the entry again: that work stays. */
            (void)sh_cas_acq_rel(&slot->awaits[i].work, &work, 0u);
        } else {
            count += state != SH_WORK_DONE;
        }
    }
    return count;
}

/* ---- the end of the owner ---- */

/* death: `done` may be raised by the next one who waits, who first does the same. */
void sh_timeline_free_waiters(uint32_t index)
{
    sh_timeline_shm *t = find(index);
    if (t != NULL && sh_load_acquire(&t->lost_from) != 0) {
        uint64_t issued = sh_load_relaxed(&t->issued);
        if (sh_load_relaxed(&t->done) < issued) {
            spread_losses();
            SH_DEATH("timeline.free.spread");
            sh_store_release(&t->done, issued);
        }
    }
}

/* Checks whether the owner's stream waits for something, after which no number of this timeline was issued. If that is
 * lost, somebody poisons the timeline, perhaps much later: the entry stays until the slot's next process claims a
 * timeline. */
static bool may_be_poisoned(uint32_t index, sh_owner owner)
{
    uint32_t number = sh_owner_slot(owner);
    if (sh_load_acquire(&timeline_at(index)->poisoned_from) != 0 || number >= SH_SLOTS) {
        return true;
    }
    for (uint32_t i = 0; i < SH_SLOT_AWAITS; i++) {
        const sh_await_shm *a = &sh_slot_at(number)->awaits[i];
        if (sh_work_timeline(sh_load_acquire(&a->first)) == index &&
            sh_work_look(sh_load_acquire(&a->work)) != SH_WORK_DONE) {
            return true;
        }
    }
    return false;
}

/* The owner issues nothing any more. If its card has done all, nothing will ever be written here by it: numbers are
 * written in order, and none is enqueued that was not issued. */
static void settle(uint32_t index, sh_owner owner)
{
    sh_timeline_shm *t = timeline_at(index);
    uint64_t lost_from = sh_load_acquire(&t->lost_from), done = sh_load_acquire(&t->done);
    if (lost_from == 0 && done >= sh_load_acquire(&t->issued) && !may_be_poisoned(index, owner)) {
        SH_DEATH("timeline.settle.all_done"); /* death: the next recoverer comes to the same end */
        sh_cas_acq_rel(&t->owner, &owner, 0u);
        return;
    }
    if (lost_from == 0) {
        sh_store_release(&t->lost_from, done + 1); /* pairs with the acquire in sh_work_look */
    }
    SH_DEATH("timeline.settle.lost"); /* death: waiters still wait; the next recoverer, or a waiter, frees them */
    sh_timeline_free_waiters(index);
}

/* A thread of this process that gives a timeline back, and one that says that its numbers are lost: the second must not
 * look at the owner before, and write after, another process has got it. */

void sh_timeline_release(uint32_t index)
{
    sh_timeline_shm *t = sh_attached() ? find(index) : NULL;
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    if (t != NULL && sh_load_acquire(&t->owner) == sh_peers_now->self()) {
        settle(index, sh_peers_now->self());
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
}

/* Also if all is done: another thread may be about to issue a number that its card will never write. So a receiver
 * finds every later number lost, and never waits for it. death: recovery finds the timeline with lost numbers, and goes
 * on. */
static void lose(uint32_t index)
{
    sh_timeline_shm *t = timeline_at(index);
    if (sh_load_acquire(&t->lost_from) == 0) {
        sh_store_release(&t->lost_from, sh_load_acquire(&t->done) + 1); /* pairs with the acquire in sh_work_look */
    }
    sh_timeline_free_waiters(index);
}

void sh_timelines_lose(void)
{
    uint32_t used = sh_attached() ? used_now() : 0;
    sh_cardlock_lock(SH_CARD_LOCK_STATE);
    for (uint32_t i = 1; i < used; i++) {
        if (sh_load_acquire(&timeline_at(i)->owner) == sh_peers_now->self()) {
            lose(i);
        }
    }
    sh_cardlock_unlock(SH_CARD_LOCK_STATE);
}

void sh_timelines_settle(sh_owner dead)
{
    uint32_t used = used_now();
    for (uint32_t i = 1; i < used; i++) {
        if (sh_load_acquire(&timeline_at(i)->owner) == dead) {
            settle(i, dead);
        }
    }
}
