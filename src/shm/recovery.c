/* Recovers a dead process: finishes or drops its open operation, lists its free blocks, releases its locks and its
 * references.
 *
 * The recoverer works on behalf of the dead slot: every step opens intents there, as the dead process did. So if the
 * recoverer dies, too, the slot looks as if its process had died a little later, and the next recoverer continues
 * (B41). One at a time: the field recoverer names it, and a dead recoverer is replaced.
 *
 * A stopped recoverer would keep the others waiting: for the locks of the dead process, the ends of its pipes, its
 * barriers, its slot. The steps are not made for two recoverers at a time. So recovery runs in a separate short-lived
 * process (a helper: sh_helper_run), which has nothing to lose, and a process that finds a stopped helper kills it and
 * takes its place. The maker of a helper sees at once that it is stopped, others when they want the same slot. A helper
 * that runs but has not finished in a second is killed, too: what it did stays done. If its maker is stopped, the
 * helper continues. */
#include "base/clock.h"
#include "base/death.h"
#include "os/fd.h"
#include "os/pid.h"
#include "shm/card_store.h"
#include "shm/commit.h"
#include "shm/deliveries.h"
#include "shm/heap.h"
#include "shm/intent.h"
#include "shm/kind.h"
#include "shm/slot.h"
#include "shm/timeline.h"
#include "shm/waits.h"
#include "sync/lock.h"
#include "sync/rlock.h"

#include <sched.h>
#include <unistd.h>

/* Checks an offset from a dead slot's intent, like one from a message. Returns NULL if it is not valid. */
static sh_a64 *cell_at(uint64_t offset)
{
    if (offset == 0 || offset % 8 != 0 || offset > sh_the_world.size - 16) {
        return NULL;
    }
    return sh_at(offset);
}

static void store_cell(const sh_intent_shm *op, uint64_t value)
{
    sh_a64 *cell = cell_at(sh_load_relaxed(&op->cell));
    if (cell != NULL) {
        sh_store_release(cell, value);
    }
}

static void finish_entry(const sh_slot_shm *slot, uint32_t index)
{
    const sh_intent_shm *op = &slot->intent;
    uint64_t target = sh_load_relaxed(&op->target);
    if (target % 16 != 0 || cell_at(target) == NULL) {
        return;
    }
    sh_a128 *entry = sh_at(target);
    uint64_t lo, hi;
    do { /* both halves of one moment */
        lo = sh_load_acquire(&entry->lo);
        hi = sh_load_acquire(&entry->hi);
    } while (sh_load_acquire(&entry->lo) != lo);
    bool taken = sh_entry_kind_of(lo) <= SH_ENTRY_CLOSED; /* then hi has the tag of the put */
    if (sh_intent_applied(slot, index, lo & SH_TAG_MASK, taken ? hi & SH_TAG_MASK : 0)) {
        store_cell(op, sh_load_relaxed(&op->value));
    }
    sh_found f;
    if (sh_heap_find(sh_load_relaxed(&op->extra), &f)) {
        sh_kind_wake(&f); /* it may have died before its wake-up */
    }
}

static void finish_bits(const sh_intent_shm *op)
{
    uint64_t bits = sh_load_relaxed(&op->word), word = sh_load_relaxed(&op->value);
    uint64_t span = sh_load_relaxed(&op->extra);
    for (uint64_t i = 0; i < 64 && word < 64; i++) {
        uint64_t id = span << SH_INDEX_BITS | (word * 64 + i);
        sh_found f;
        if (((bits >> i) & 1) != 0 && sh_heap_find(id, &f) && (sh_load_acquire(&f.meta->word) & SH_WORD_FREE) != 0) {
            sh_heap_list(id);
        }
    }
    sh_heap_list_span((uint32_t)span); /* it may have died while it cleared the class map */
}

static void finish_link(const sh_intent_shm *op)
{
    sh_a64 *target = cell_at(sh_load_relaxed(&op->target));
    if (target != NULL && sh_load_acquire(target) == sh_load_relaxed(&op->word)) {
        store_cell(op, 0);
    }
}

/* Finishes or drops the operation that the dead process had open. */
static void finish_operation(sh_ctx *c)
{
    sh_intent_shm *op = &c->slot->intent;
    sh_intent_code code = (sh_intent_code)sh_load_acquire(&op->code); /* pairs with the release in sh_intent_begin */
    uint64_t id = sh_load_relaxed(&op->extra);
    sh_found f;
    bool known =
        (code == SH_INTENT_ALLOC || code == SH_INTENT_RELEASE || code == SH_INTENT_WEIGHT || code == SH_INTENT_FREE) &&
        sh_heap_find(id, &f);
    bool applied = known && sh_intent_applied(c->slot, c->index, sh_load_acquire(&f.meta->word) & SH_TAG_MASK, 0);
    switch (code) {
    case SH_INTENT_ALLOC:
    case SH_INTENT_WEIGHT:
        if (applied) {
            store_cell(op, sh_load_relaxed(&op->value));
        }
        sh_heap_redo(c, code, id, applied);
        break;
    case SH_INTENT_RELEASE:
        if (applied) {
            store_cell(op, 0);
        }
        SH_DEATH("recovery.release.half");
        sh_heap_redo(c, code, id, applied);
        break;
    case SH_INTENT_FREE:
        sh_store_release(&c->slot->destroying, sh_load_relaxed(&op->value));
        sh_heap_redo(c, code, id, true);
        break;
    case SH_INTENT_MOVE: {
        sh_a64 *target = cell_at(sh_load_relaxed(&op->target));
        if (target != NULL) {
            sh_store_release(target, sh_load_relaxed(&op->word));
            store_cell(op, sh_load_relaxed(&op->value));
        }
        break;
    }
    case SH_INTENT_LINK: finish_link(op); break;
    case SH_INTENT_ENTRY: finish_entry(c->slot, c->index); break;
    case SH_INTENT_BITS: finish_bits(op); break;
    case SH_INTENT_TRIM: sh_trim_undo(c, (uint32_t)id); break;
    case SH_INTENT_SPAN: {
        uint64_t word = sh_load_relaxed(&op->word);
        uint32_t span = (uint32_t)word, klass = (uint32_t)(word >> 32);
        if (klass < SH_CLASSES && span < SH_SPANS && id >= SH_HEAP_AT && id < sh_the_world.size &&
            sh_span_bytes(klass) <= sh_the_world.size - id &&
            sh_intent_applied(c->slot, c->index, sh_load_acquire(&sh_the_world.header->frontier.hi) & SH_TAG_MASK, 0)) {
            sh_span_finish(span, klass, id);
        }
        break;
    }
    case SH_INTENT_NONE: break;
    }
    SH_DEATH("recovery.operation.finished");
    sh_intent_end(c);
}

static void list_cache(sh_ctx *c)
{
    for (uint32_t i = 0; i < SH_CACHE_ENTRIES; i++) {
        uint64_t id = sh_load_acquire(&c->slot->cache[i]);
        if (id != 0) {
            sh_heap_list(id - 1);
            SH_DEATH("recovery.cache.listed");
            sh_store_release(&c->slot->cache[i], 0);
        }
    }
}

/* Locks are in separate spans, so the length of this walk depends on the number of locks, not of blocks. */
static void repair_locks(sh_owner dead)
{
    uint32_t spans = sh_heap_spans();
    sh_cardstore_repair(dead);
    SH_DEATH("recovery.store.repaired");
    for (uint32_t span = 0; span < spans; span++) {
        if (sh_load_acquire(&sh_span_at(span)->klass) != SH_CLASS_SYNC + 1) {
            continue;
        }
        for (uint32_t i = 0; i < sh_class_blocks(SH_CLASS_SYNC); i++) {
            sh_found f;
            if (sh_heap_find((uint64_t)span << SH_INDEX_BITS | i, &f) &&
                sh_word_weight(sh_load_acquire(&f.meta->word)) != 0) {
                sh_kind_repair(&f, dead);
                SH_DEATH("recovery.lock.repaired");
            }
        }
    }
}

#define CHUNKS_MAX (1u << 16) /* no slot has more: a longer chain is forged */

/* Tells the object that a holder of it ended; for a chunk of cells, tells all objects in it and in the chunks behind
 * it. died: it did not end normally, so that objects in which it was a participant break. */
static void notify_holder_ended(sh_ref ref, sh_owner dead, bool died)
{
    for (uint32_t chunks = 0; ref != 0 && chunks < CHUNKS_MAX; chunks++) {
        sh_found f, g;
        if (!sh_heap_find(sh_ref_id(ref), &f)) {
            return;
        }
        if ((f.kind != SH_KIND_CELLS && f.kind != SH_KIND_INHERITED) || f.size < sizeof(sh_cells_shm)) {
            sh_kind_holder_ended(&f, dead, died);
            return;
        }
        sh_cells_shm *cells = (sh_cells_shm *)f.data;
        for (uint64_t i = 0; i < (f.size - sizeof *cells) / 8; i++) {
            sh_ref inner = sh_load_acquire(&cells->cells[i]);
            if (inner != 0 && sh_heap_find(sh_ref_id(inner), &g)) {
                sh_kind_holder_ended(&g, dead, died && f.kind == SH_KIND_CELLS);
            }
        }
        ref = sh_load_acquire(&cells->next);
    }
}

/* Releases its references: first tells the objects that a holder ended, then releases all. A slot that no process ever
 * took, or whose process ended normally, is not a death; but that process, too, may have ended between a change and its
 * wake-up. */
static void release_references(sh_ctx *c, uint64_t state)
{
    sh_owner dead = sh_slot_owner(c->index, state);
    bool died = (sh_slot_state_maker(state) == 0 || sh_load_relaxed(&c->slot->pid) != 0) &&
                sh_load_acquire(&c->slot->leaving) == 0;
    for (uint32_t i = 0; i < SH_SLOT_CELLS; i++) {
        notify_holder_ended(sh_load_acquire(&c->slot->cells[i]), dead, died);
    }
    notify_holder_ended(sh_load_acquire(&c->slot->chunks), dead, died);
    sh_deliveries_give_back_all(c, dead);
    SH_DEATH("recovery.holders.told");
    for (uint32_t i = 0; i < SH_SLOT_CELLS; i++) {
        if (sh_load_acquire(&c->slot->cells[i]) != 0) {
            sh_heap_release(c, sh_offset_of(&c->slot->cells[i]));
        }
    }
    if (sh_load_acquire(&c->slot->chunks) != 0) {
        sh_heap_release(c, sh_offset_of(&c->slot->chunks));
    }
}

/* Recovers children that the process was about to start and that nobody has seen. Called only after its own open
 * operation is finished: that may be a gift to such a slot, which must not belong to another process by then. The slots
 * are marked first, even if another recoverer works on them: so the next sweep finds those that cannot be recovered
 * now, when nobody knows their maker any more. */
static void recover_reserved(uint32_t maker)
{
    if (sh_load_acquire(&sh_slot_at(maker)->reserves) == 0) {
        return; /* most processes start no others: the end of each of thousands must not cost a walk over all of them */
    }
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used);
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        sh_slot_shm *slot = sh_slot_at(i);
        uint64_t state = sh_load_acquire(&slot->state);
        if (i == maker || sh_slot_state_phase(state) != SH_PHASE_RESERVED || sh_slot_state_maker(state) != maker + 1) {
            continue;
        }
        if (sh_load_acquire(&slot->pid) == 0) {
            sh_cas_acq_rel(&slot->state, &state,
                           sh_slot_state_make(SH_PHASE_DEAD, maker + 1, sh_slot_state_generation(state)));
            SH_DEATH("recovery.reserved.marked");
        }
        sh_slot_recover(i);
    }
}

/* Releases all that the slot holds. Every step can be repeated, by the next recoverer of the slot. */
static void release_all_of_slot(uint32_t index, uint64_t state)
{
    sh_slot_shm *slot = sh_slot_at(index);
    sh_ctx c = {.slot = slot, .index = index, .recovering = true};
    finish_operation(&c);
    list_cache(&c);
    sh_heap_drain(&c);
    SH_DEATH("recovery.drained");
    repair_locks(sh_slot_owner(index, state));
    recover_reserved(index);
    sh_timelines_settle(sh_slot_owner(index, state)); /* before anybody learns of this end by the references */
    release_references(&c, state);
    SH_DEATH("recovery.released");
    for (uint32_t i = 0; i < SH_SLOT_WAITS; i++) {
        sh_found f;
        uint64_t name = sh_load_acquire(&slot->waits[i]);
        if (sh_waits_is_at_object(name) && sh_heap_find(sh_waits_number(name), &f)) {
            sh_kind_wake(&f); /* otherwise a wake-up for it would be lost */
        }
    }
    sh_waits_clear(slot);
    sh_racy_store(&slot->held, 0);
    sh_racy_store(&slot->card_held, 0);
    sh_racy_store(&slot->card_used, 0);
    sh_store_relaxed(&slot->card_answered, 0);
    sh_store_relaxed(&slot->store[0], 0);
    sh_store_relaxed(&slot->store[1], 0);
    sh_store_relaxed(&slot->reserves, 0);
}

static void recover_as(uint32_t index, uint64_t state)
{
    sh_slot_shm *slot = sh_slot_at(index);
    release_all_of_slot(index, state);
    sh_store_relaxed(&slot->leaving, 0);
    sh_store_relaxed(&slot->pid, 0);
    sh_add_relaxed(&sh_the_world.header->recovered, 1);
}

/* The slot stays ALIVE and ours until it is free, so nobody else recovers it, and this needs no right to recover.
 * death: at any step, this process is dead like any other, with `leaving` set: no death is reported. */
void sh_slot_end(uint32_t index)
{
    sh_slot_shm *slot = sh_slot_at(index);
    release_all_of_slot(index, sh_load_acquire(&slot->state));
    sh_cardstore_tidy(); /* for processes that found this one holding the store's lock */
    SH_DEATH("slot.end.settled");
    sh_slot_vacate(index);
}

/* ---- who recovers ---- */

/* The right to recover a slot: pid namespace 10 | pid 22 | helper 1 | start time 31. No system has longer pids. Its
 * holder also locks a byte of the world's file that its namespace and pid name, from before it takes its first right
 * until it ends. A holder whose byte is locked is not gone, whatever its pid and start time say: they mean nothing in
 * another pid namespace, start times are shifted in another time namespace, and a process without /proc or a free fd
 * stores 0. A
 * stopped holder in another namespace cannot be killed; the others wait for it. */
#define SPACE_SHIFT 54
#define START_MASK ((UINT64_C(1) << 31) - 1)
#define HELPER (UINT64_C(1) << 31)
#define HELPER_LIMIT SHOAL_SECONDS(1)
#define ATTEMPTS 8

bool sh_recovery_is_own;
uint32_t sh_recovery_lost;

static uint64_t helper; /* the right of the helper that runs for this process, or 0; under the lock of sh_enter */

static uint64_t own_space_bits(void)
{
    return sh_pid_space() & 0x3ff;
}

static uint64_t own_right(uint64_t flag)
{
    int32_t pid = (int32_t)getpid();
    return own_space_bits() << SPACE_SHIFT | ((uint64_t)pid & SH_RECOVERER_PID_MASK) << 32 | flag |
           (sh_pid_start_time(pid) & START_MASK);
}

static int32_t pid_of(uint64_t holder)
{
    return (int32_t)(holder >> 32 & SH_RECOVERER_PID_MASK);
}

static uint64_t byte_of(uint64_t holder)
{
    return 3 * (uint64_t)SH_SLOTS + (holder >> 32);
}

static bool is_elsewhere(uint64_t holder)
{
    return holder >> SPACE_SHIFT != own_space_bits();
}

static bool is_gone(uint64_t holder)
{
    int32_t pid = pid_of(holder);
    int file = sh_world_file();
    if (file >= 0 && sh_life_marked(file, byte_of(holder))) {
        return false;
    }
    if (is_elsewhere(holder)) {
        return file >= 0;
    }
    uint64_t known = holder & START_MASK, start = sh_pid_start_time(pid);
    return (known != 0 && start != 0 && (start & START_MASK) != known) || sh_pid_gone(pid, start);
}

/* Kills a helper that is stopped or takes too long for one slot. Returns whether it is gone. */
static bool kill_helper_if_stuck(const sh_slot_shm *slot, uint64_t holder)
{
    static uint32_t seen_at; /* the number of a slot: a pointer may be of a world that was left */
    static uint64_t seen;
    static int64_t since;
    int32_t pid = pid_of(holder);
    if (is_elsewhere(holder)) {
        return false;
    }
    uint64_t start = sh_pid_start_time(pid);
    /* A helper may have two slots at once: a dead one, and one that was reserved there. As long as it has the one at
     * which it was seen, the time goes on. */
    if (seen != holder || (sh_slot_at(seen_at) != slot && sh_load_acquire(&sh_slot_at(seen_at)->recoverer) != holder)) {
        since = sh_now();
        seen = holder;
        seen_at = (uint32_t)(slot - sh_slot_at(0));
    }
    if ((start & START_MASK) == (holder & START_MASK)) {
        sh_pid_kill_stopped(pid, start, sh_now() - since > HELPER_LIMIT);
    }
    for (int i = 0; i < 100 && !is_gone(holder); i++) {
        sched_yield();
    }
    return is_gone(holder);
}

/* Checks whether the right can be taken: nobody has it, or its holder is gone. Kills a stopped helper. */
static bool can_take_right(const sh_slot_shm *slot, uint64_t holder)
{
    return holder == 0 || is_gone(holder) || ((holder & HELPER) != 0 && kill_helper_if_stuck(slot, holder));
}

static bool take_right(sh_slot_shm *slot, uint64_t self)
{
    uint64_t holder = sh_load_acquire(&slot->recoverer);
    return holder != self && can_take_right(slot, holder) && sh_cas_acq_rel(&slot->recoverer, &holder, self);
}

/* Recovers a life of the slot that is dead, in this process, which may be a helper. */
static bool recover_here(uint32_t index, uint64_t generation, uint64_t self)
{
    sh_slot_shm *slot = sh_slot_at(index);
    if (!take_right(slot, self)) {
        return false;
    }
    SH_DEATH("recovery.right.taken");
    bool done = false;
    /* Read again under the right: another process may have finished meanwhile, and the slot may have another life.
     * RESERVED and ALIVE become DEAD, so a child that comes late finds no slot. */
    uint64_t state = sh_load_acquire(&slot->state);
    if (sh_slot_state_generation(state) == generation && sh_slot_state_phase(state) != SH_PHASE_FREE) {
        uint64_t dead = sh_slot_state_make(SH_PHASE_DEAD, sh_slot_state_maker(state), generation);
        if (state == dead || sh_cas_acq_rel(&slot->state, &state, dead)) {
            /* DEAD before all that recovery reads. The swap alone does that on x86-64 only, and a recoverer that
             * follows a dead recoverer swaps nothing. Pairs with the seq_cst load in sh_owner_is_being_recovered, which
             * follows a seq_cst swap: either that load finds DEAD or later, or recovery finds what was swapped. */
            sh_fence_seq_cst();
            SH_DEATH("recovery.marked");
            recover_as(index, dead);
            done = true;
        }
    }
    if (done) {
        /* First free the slot, then release the right: while we hold it nobody else finishes this life. death: in
         * between, the slot still names a dead recoverer, which the next recoverer of its next life replaces. */
        uint64_t dead = sh_slot_state_make(SH_PHASE_DEAD, sh_slot_state_maker(state), generation);
        sh_cas_acq_rel(&slot->state, &dead, sh_slot_state_make(SH_PHASE_FREE, 0, generation));
        SH_DEATH("recovery.freed");
    }
    uint64_t holder = self;
    sh_cas_acq_rel(&slot->recoverer, &holder, 0);
    return done;
}

/* What a helper does. It may be killed at any instruction: then `tried` says how far it came, and only the life at that
 * place may have been recovered without being counted. */
typedef struct request {
    const sh_dead_lives *lives;
    uint32_t tried, recovered;
} request;

/* Locks the byte of this process's right. Fails if another process has it, of a namespace with the same 10 bits and
 * with the same pid: then a later sweep tries again. Only the end of this process unlocks it: if it were free before, a
 * process elsewhere that found it free, and was stopped, could take a right away that this process has got again. */
static bool take_byte(uint64_t self)
{
    int file = sh_world_file();
    return file < 0 || sh_life_mark(file, byte_of(self));
}

static void recover_all(request *r, uint64_t self)
{
    while (r->tried < r->lives->count) {
        bool done = recover_here(r->lives->index[r->tried], r->lives->generation[r->tried], self);
        r->recovered += done;
        r->tried++;
        sh_store_relaxed(&sh_the_world.header->swept_at, (uint64_t)sh_now()); /* others need not sweep meanwhile */
    }
}

static int helper_main(void *argument)
{
    if (getppid() == 0) {
        return 1; /* in another pid namespace: its maker has unshared, and recovers without a helper */
    }
    /* If its maker is killed, the others take that for dead when it has ended. By then its files must be closed: as
     * long as one of a card is open, the card goes on with the work of the maker. Before the helper has locks, which
     * would go too. */
    sh_fd_close_others(sh_world_file());
    helper = own_right(HELPER);
    if (take_byte(helper)) {
        recover_all(argument, helper);
    }
    return 0;
}

bool sh_recovery_is_helper(void)
{
    return helper != 0 && pid_of(helper) == (int32_t)getpid();
}

/* Drops those that another process recovers: they need no helper. */
static void drop_taken(sh_dead_lives *lives)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < lives->count; i++) {
        const sh_slot_shm *slot = sh_slot_at(lives->index[i]);
        if (can_take_right(slot, sh_load_acquire(&slot->recoverer))) {
            lives->index[kept] = lives->index[i];
            lives->generation[kept++] = lives->generation[i];
        }
    }
    lives->count = kept;
}

uint32_t sh_slots_recover(sh_dead_lives *lives)
{
    request r = {.lives = lives};
    if (sh_recovery_is_helper()) {
        recover_all(&r, helper); /* reserved by the slot that is being recovered */
        return r.recovered;
    }
    drop_taken(lives);
    for (int i = 0; i < ATTEMPTS && r.tried < lives->count && !sh_recovery_is_own; i++) {
        uint32_t tried = r.tried;
        sh_helper_result result = sh_helper_run(helper_main, &r);
        helper = 0;
        if (result == SH_HELPER_REFUSED || result == SH_HELPER_FAILED) {
            break;
        }
        sh_recovery_lost += result != SH_HELPER_DONE;
        i = r.tried > tried ? -1 : i; /* so many for each life */
    }
    uint64_t self = r.tried < lives->count ? own_right(0) : 0;
    if (self != 0 && take_byte(self)) {
        recover_all(&r, self);
    }
    if (r.recovered > 0) {
        sh_cardstore_tidy(); /* a helper only counts the granules that died with the process */
    }
    lives->count = 0;
    return r.recovered;
}

bool sh_slot_recover(uint32_t index)
{
    sh_dead_lives lives = {.count = 1, .index = {index}};
    return sh_slot_life_is_dead(index, &lives.generation[0]) && sh_slots_recover(&lives) == 1;
}
