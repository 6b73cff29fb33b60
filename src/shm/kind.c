#include "shm/kind.h"

#include "base/death.h"
#include "shm/card_store.h"
#include "sync/barrier.h"
#include "sync/event.h"
#include "sync/lock.h"
#include "sync/rlock.h"
#include "sync/semaphore.h"

#include <limits.h>

/* Walks the words [first, last) of the block, which may be shorter. */
static sh_a64 *next_in_words(const sh_found *f, sh_a64 *progress, uint64_t first, uint64_t last)
{
    uint64_t words = f->size / 8, at = sh_load_relaxed(progress);
    last = last < words ? last : words;
    for (at = at < first ? first : at; at < last; at++) {
        sh_a64 *word = (sh_a64 *)f->data + at;
        if (sh_load_acquire(word) != 0) {
            sh_store_relaxed(progress, at);
            return word;
        }
    }
    sh_store_relaxed(progress, at);
    return NULL;
}

static sh_a64 *next_in_cells(const sh_found *f, sh_a64 *progress)
{
    return next_in_words(f, progress, 2, UINT64_MAX);
}

static sh_a64 *next_in_message(const sh_found *f, sh_a64 *progress)
{
    uint64_t count =
        f->size < sizeof(sh_message_shm) ? 0 : (uint32_t)sh_load_relaxed(&((sh_message_shm *)f->data)->count);
    return next_in_words(f, progress, 4, 4 + count);
}

static sh_a64 *next_fixed(const sh_found *f, sh_a64 *progress)
{
    return next_in_words(f, progress, 2, sh_kind_look_up(f->kind)->reference_end);
}

/* Progress in a ring: 0 is `next`, n + 1 is entry n. */
static sh_a64 *next_in_ring(const sh_found *f, sh_a64 *progress)
{
    sh_ring_shm *ring = (sh_ring_shm *)f->data;
    uint64_t at = sh_load_relaxed(progress);
    if (f->size < sizeof *ring) {
        return NULL;
    }
    uint64_t room = (f->size - sizeof *ring) / sizeof ring->entries[0];
    if (at == 0) {
        if (sh_load_acquire(&ring->next) != 0) {
            return &ring->next;
        }
        at = 1;
    }
    for (; at - 1 < room; at++) {
        sh_a128 *entry = &ring->entries[at - 1];
        sh_entry_kind kind = sh_entry_kind_of(sh_load_acquire(&entry->lo));
        if ((kind == SH_ENTRY_BLOCK || kind == SH_ENTRY_MESSAGE) && sh_load_relaxed(&entry->hi) != 0) {
            sh_store_relaxed(progress, at);
            return &entry->hi;
        }
    }
    sh_store_relaxed(progress, at);
    return NULL;
}

/* Progress in a table of deliveries: 0 is `next`, n + 1 is entry n. */
static sh_a64 *next_in_deliveries(const sh_found *f, sh_a64 *progress)
{
    sh_deliveries_shm *table = (sh_deliveries_shm *)f->data;
    uint64_t at = sh_load_relaxed(progress);
    uint64_t room = f->size < sizeof *table ? 0 : (f->size - sizeof *table) / sizeof table->entries[0];
    uint64_t count = room == 0 ? 0 : sh_load_relaxed(&table->count);
    room = count < room ? count : room;
    for (; room > 0 && at <= room; at++) {
        sh_a64 *word = at == 0 ? &table->next : &table->entries[at - 1].reference;
        if (sh_load_acquire(word) != 0) {
            sh_store_relaxed(progress, at);
            return word;
        }
    }
    sh_store_relaxed(progress, at);
    return NULL;
}

static sh_queue_shm *queue_behind(sh_ref ref)
{
    sh_found f;
    if (sh_ref_weight(ref) == 0 || !sh_heap_find(sh_ref_id(ref), &f) || f.kind != SH_KIND_QUEUE ||
        f.size < sizeof(sh_queue_shm)) {
        return NULL;
    }
    return (sh_queue_shm *)f.data;
}

/* The wake functions repeat the wake-ups that a dead process may have owed or consumed. They wake nobody who would only
 * sleep again, because each of many deaths calls them for each of many waiters.
 *
 * A thread owes or consumes one wake-up of a queue that is not closed. Processes with more threads than WAKES leave
 * the rest to the waiters' slices (park.h). */
#define WAKES 64

static void wake_queue(void *object)
{
    sh_queue_shm *queue = object;
    int count = (sh_load_seq_cst(&queue->flags) & SH_QUEUE_CLOSED) != 0 ? INT_MAX : WAKES;
    sh_gate_wake(&queue->not_empty, count);
    sh_gate_wake(&queue->not_full, count);
    sh_gate_wake(&queue->all_done, INT_MAX);
}

static void wake_semaphore(void *object)
{
    sh_semaphore_shm *semaphore = object;
    uint32_t value = sh_load_seq_cst(&semaphore->value);
    if (value != 0) {
        sh_gate_wake(&semaphore->gate, value < INT_MAX ? (int)value : INT_MAX);
    }
}

/* If it was set and is clear again, the waiters see that when their slice ends. */
static void wake_event(void *object)
{
    sh_event_shm *event = object;
    if (sh_event_is_set(event)) {
        sh_gate_wake(&event->gate, INT_MAX);
    }
}

/* Called when the last holder of this end is gone: tells the other end. */
static void close_pipe(void *object)
{
    sh_pipe_shm *end = object;
    sh_a64 *const references[] = {&end->reads, &end->writes};
    for (int i = 0; i < 2; i++) {
        sh_queue_shm *queue = queue_behind(sh_load_relaxed(references[i]));
        if (queue != NULL) {
            sh_or_seq_cst(&queue->flags, SH_QUEUE_CLOSED);
            wake_queue(queue);
        }
    }
}

/* Passes on the notification of a waiter that died before it held the lock again. */
static void pass_notice_on(void *object, sh_owner dead, bool died)
{
    (void)died;
    sh_waiter_shm *w = object;
    uint32_t notified = SH_WAITER_NOTIFIED;
    sh_found f;
    if (sh_load_relaxed(&w->owner) != dead || !sh_cas_acq_rel(&w->state, &notified, SH_WAITER_LOST)) {
        return;
    }
    /* The dead process held the condition, too, so it exists. death: here, the notification is lost with its second
     * receiver. */
    if (sh_heap_find(sh_load_relaxed(&w->condition), &f) && f.kind == SH_KIND_CONDITION &&
        f.size >= sizeof(sh_condition_shm)) {
        sh_add_acq_rel(&((sh_condition_shm *)f.data)->lost, 1u);
    }
}

static void break_barrier(void *object, sh_owner dead, bool died)
{
    (void)dead;
    if (died) {
        sh_barrier_break(object);
    }
}

/* A granule's memory goes when its fd leaves the store. The block has weight 0 and is not free: the sweep finds it
 * dead, and its id belongs to nobody else yet. The release pairs with the acquire in sh_granules_died and in the sweep:
 * who sees the count sees the weight. death: counted and not swept: whoever finishes this block's destruction calls
 * this again. */
static void count_granule(void *object)
{
    (void)object;
    sh_add_acq_rel(&sh_the_world.header->store.died, 1);
    SH_DEATH("granule.dying.counted");
    sh_cardstore_tidy();
}

static void repair_lock(void *lock, sh_owner dead)
{
    sh_lock_repair(lock, dead);
}

static void repair_rlock(void *lock, sh_owner dead)
{
    sh_rlock_repair(lock, dead);
}

static sh_owner owner_of_lock(void *lock)
{
    return sh_lock_owner(lock);
}

static sh_owner owner_of_rlock(void *lock)
{
    return sh_rlock_owner(lock);
}

const sh_kind_row sh_kinds[SH_KIND_COUNT] = {
    [SH_KIND_DATA] = {.name = "block", .shared = SHOAL_KIND_BLOCK},
    [SH_KIND_CELLS] = {.is_private = true, .next_reference = next_in_cells},
    [SH_KIND_INHERITED] = {.is_private = true, .next_reference = next_in_cells},
    [SH_KIND_MESSAGE] = {.next_reference = next_in_message},
    [SH_KIND_QUEUE] = {.name = "queue",
                       .shared = SHOAL_KIND_QUEUE,
                       .next_reference = next_fixed,
                       .reference_end = 5,
                       .size = sizeof(sh_queue_shm),
                       .wake = wake_queue},
    [SH_KIND_RING] = {.is_private = true, .next_reference = next_in_ring},
    [SH_KIND_DELIVERIES] = {.is_private = true, .next_reference = next_in_deliveries},
    [SH_KIND_PIPE] = {.name = "pipe",
                      .shared = SHOAL_KIND_PIPE,
                      .next_reference = next_fixed,
                      .reference_end = 4,
                      .size = sizeof(sh_pipe_shm),
                      .dying = close_pipe},
    [SH_KIND_CONDITION] = {.name = "condition",
                           .shared = SHOAL_KIND_CONDITION,
                           .next_reference = next_fixed,
                           .reference_end = 4},
    [SH_KIND_WAITER] = {.size = sizeof(sh_waiter_shm), .holder_ended = pass_notice_on},
    [SH_KIND_TASK] = {.next_reference = next_fixed, .reference_end = 4},
    [SH_KIND_LOCK] = {.name = "lock",
                      .shared = SHOAL_KIND_LOCK,
                      .size = sizeof(sh_lock_shm),
                      .repair = repair_lock,
                      .owner = owner_of_lock},
    [SH_KIND_RLOCK] = {.name = "rlock",
                       .shared = SHOAL_KIND_RLOCK,
                       .size = sizeof(sh_rlock_shm),
                       .repair = repair_rlock,
                       .owner = owner_of_rlock},
    [SH_KIND_SEMAPHORE] = {.name = "semaphore",
                           .shared = SHOAL_KIND_SEMAPHORE,
                           .size = sizeof(sh_semaphore_shm),
                           .wake = wake_semaphore},
    [SH_KIND_EVENT] = {.name = "event", .shared = SHOAL_KIND_EVENT, .size = sizeof(sh_event_shm), .wake = wake_event},
    [SH_KIND_BARRIER] = {.name = "barrier",
                         .shared = SHOAL_KIND_BARRIER,
                         .size = sizeof(sh_barrier_shm),
                         .holder_ended = break_barrier},
    [SH_KIND_TENSOR] = {.name = "tensor", .shared = SHOAL_KIND_TENSOR, .next_reference = next_in_message},
    [SH_KIND_SPARSE] = {.name = "sparse", .shared = SHOAL_KIND_SPARSE, .next_reference = next_in_message},
    [SH_KIND_MODULE] = {.name = "module", .shared = SHOAL_KIND_MODULE, .next_reference = next_in_message},
    /* A granule refers to nothing, but a block without next_reference is freed without `dying`. */
    [SH_KIND_GRANULE] = {.name = "granule",
                         .next_reference = next_fixed,
                         .reference_end = 2,
                         .size = sizeof(sh_granule_shm),
                         .dying = count_granule},
    [SH_KIND_PIECE] = {.name = "piece of GPU memory",
                       .next_reference = next_fixed,
                       .reference_end = 3,
                       .size = sizeof(sh_piece_shm)},
};

const sh_kind_row *sh_kind_look_up(sh_kind kind)
{
    static const sh_kind_row nonsense = {.is_private = true};
    return kind < SH_KIND_COUNT ? &sh_kinds[kind] : &nonsense;
}

/* Returns the row if the block has room for the object; otherwise one without functions. */
static const sh_kind_row *row_of(const sh_found *f)
{
    static const sh_kind_row too_small = {.is_private = true};
    const sh_kind_row *row = sh_kind_look_up(f->kind);
    return f->size >= row->size ? row : &too_small;
}

sh_a64 *sh_kind_next_reference(const sh_found *f, sh_a64 *progress)
{
    const sh_kind_row *row = sh_kind_look_up(f->kind);
    return row->next_reference != NULL ? row->next_reference(f, progress) : NULL;
}

void sh_kind_dying(const sh_found *f)
{
    const sh_kind_row *row = row_of(f);
    if (row->dying != NULL) {
        row->dying(f->data);
    }
}

void sh_kind_wake(const sh_found *f)
{
    const sh_kind_row *row = row_of(f);
    if (row->wake != NULL) {
        row->wake(f->data);
    }
}

void sh_kind_holder_ended(const sh_found *f, sh_owner dead, bool died)
{
    const sh_kind_row *row = row_of(f);
    if (row->holder_ended != NULL) {
        row->holder_ended(f->data, dead, died);
    }
    sh_kind_wake(f); /* it may have ended between its change and the wake-up for it */
}

void sh_kind_repair(const sh_found *f, sh_owner dead)
{
    const sh_kind_row *row = row_of(f);
    if (row->repair != NULL) {
        row->repair(f->data, dead);
    }
}

sh_owner sh_kind_owner(const sh_found *f)
{
    const sh_kind_row *row = row_of(f);
    return row->owner != NULL ? row->owner(f->data) : 0;
}

const char *sh_kind_shared_name(shoal_kind kind)
{
    for (int i = 0; kind != SHOAL_KIND_NONE && i < SH_KIND_COUNT; i++) {
        if (sh_kinds[i].shared == kind) {
            return sh_kinds[i].name;
        }
    }
    return "unknown";
}
