#include "shm/kind.h"

#include "sync/barrier.h"
#include "sync/event.h"
#include "sync/semaphore.h"

#include <limits.h>

bool sh_kind_has_references(sh_kind kind)
{
    switch (kind) {
    case SH_KIND_CELLS:
    case SH_KIND_INHERITED:
    case SH_KIND_MESSAGE:
    case SH_KIND_TENSOR:
    case SH_KIND_SPARSE:
    case SH_KIND_MODULE:
    case SH_KIND_QUEUE:
    case SH_KIND_RING:
    case SH_KIND_DELIVERIES:
    case SH_KIND_PIPE:
    case SH_KIND_CONDITION:
    case SH_KIND_TASK: return true;
    default: return false;
    }
}

/* The words [first, last) of the block are references. */
static void reference_range(const sh_found *f, uint64_t *out_first, uint64_t *out_last)
{
    uint64_t words = f->size / 8;
    uint64_t first = 2, last = 2;
    switch (f->kind) {
    case SH_KIND_CELLS:
    case SH_KIND_INHERITED: last = words; break;
    case SH_KIND_MESSAGE:
    case SH_KIND_TENSOR:
    case SH_KIND_SPARSE:
    case SH_KIND_MODULE: {
        uint64_t count = words < 4 ? 0 : (uint32_t)sh_load_relaxed(&((sh_message_shm *)f->data)->count);
        first = 4;
        last = 4 + count;
        break;
    }
    case SH_KIND_QUEUE: last = 5; break;
    case SH_KIND_PIPE:
    case SH_KIND_CONDITION:
    case SH_KIND_TASK: last = 4; break;
    default: break;
    }
    *out_last = last < words ? last : words;
    *out_first = first < *out_last ? first : *out_last;
}

/* Progress of a ring: 0 is `next`, n + 1 is entry n. */
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

/* Progress of a table of deliveries: 0 is `next`, n + 1 is entry n. */
static sh_a64 *next_in_deliveries(const sh_found *f, sh_a64 *progress)
{
    sh_deliveries_shm *table = (sh_deliveries_shm *)f->data;
    uint64_t at = sh_load_relaxed(progress);
    uint64_t room = f->size < sizeof *table ? 0 : (f->size - sizeof *table) / sizeof table->entries[0];
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

sh_a64 *sh_kind_next_reference(const sh_found *f, sh_a64 *progress)
{
    if (f->kind == SH_KIND_DELIVERIES) {
        return next_in_deliveries(f, progress);
    }
    if (f->kind == SH_KIND_RING) {
        return next_in_ring(f, progress);
    }
    uint64_t first, last, at = sh_load_relaxed(progress);
    reference_range(f, &first, &last);
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

static sh_queue_shm *queue_behind(sh_ref ref)
{
    sh_found f;
    if (sh_ref_weight(ref) == 0 || !sh_heap_find(sh_ref_id(ref), &f) || f.kind != SH_KIND_QUEUE ||
        f.size < sizeof(sh_queue_shm)) {
        return NULL;
    }
    return (sh_queue_shm *)f.data;
}

static void wake_queue(sh_queue_shm *queue)
{
    sh_gate_wake(&queue->not_empty, INT_MAX);
    sh_gate_wake(&queue->not_full, INT_MAX);
    sh_gate_wake(&queue->all_done, INT_MAX);
}

void sh_kind_dying(const sh_found *f)
{
    if (f->kind != SH_KIND_PIPE || f->size < sizeof(sh_pipe_shm)) {
        return;
    }
    sh_pipe_shm *end = (sh_pipe_shm *)f->data;
    sh_a64 *const references[] = {&end->reads, &end->writes};
    for (int i = 0; i < 2; i++) {
        sh_queue_shm *queue = queue_behind(sh_load_relaxed(references[i]));
        if (queue != NULL) {
            sh_or_seq_cst(&queue->flags, SH_QUEUE_CLOSED);
            wake_queue(queue);
        }
    }
}

/* A waiter that was notified and died before it had the lock again: its notice is for another. */
static void notice_lost(const sh_waiter_shm *seen, sh_owner dead)
{
    sh_waiter_shm *w = (sh_waiter_shm *)seen;
    uint32_t notified = SH_WAITER_NOTIFIED;
    sh_found f;
    if (sh_load_relaxed(&w->owner) != dead || !sh_cas_acq_rel(&w->state, &notified, SH_WAITER_LOST)) {
        return;
    }
    /* The dead one held the condition too, so it is there. death: here, the notice is lost with its second bearer. */
    if (sh_heap_find(sh_load_relaxed(&w->condition), &f) && f.kind == SH_KIND_CONDITION &&
        f.size >= sizeof(sh_condition_shm)) {
        sh_add_acq_rel(&((sh_condition_shm *)f.data)->lost, 1u);
    }
}

void sh_kind_holder_ended(const sh_found *f, sh_owner dead, bool died)
{
    if (f->kind == SH_KIND_WAITER && f->size >= sizeof(sh_waiter_shm)) {
        notice_lost((const sh_waiter_shm *)f->data, dead);
    }
    if (died && f->kind == SH_KIND_BARRIER && f->size >= sizeof(sh_barrier_shm)) {
        sh_barrier_break((sh_barrier_shm *)f->data);
    }
    sh_kind_wake(f); /* it may have ended after its change and before the wake that belongs to it */
}

void sh_kind_wake(const sh_found *f)
{
    if (f->kind == SH_KIND_QUEUE && f->size >= sizeof(sh_queue_shm)) {
        wake_queue((sh_queue_shm *)f->data);
    } else if (f->kind == SH_KIND_SEMAPHORE && f->size >= sizeof(sh_semaphore_shm)) {
        sh_gate_wake(&((sh_semaphore_shm *)f->data)->gate, INT_MAX);
    } else if (f->kind == SH_KIND_EVENT && f->size >= sizeof(sh_event_shm)) {
        sh_gate_wake(&((sh_event_shm *)f->data)->gate, INT_MAX);
    }
}
