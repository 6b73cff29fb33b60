#include "shm/deliveries.h"

#include "base/death.h"

#include <limits.h>

#define TABLES_MAX 64 /* a longer chain is forged */
#define CHUNKS_MAX (1u << 16)

void sh_deliveries_tell(sh_queue_shm *queue)
{
    sh_add_acq_rel(&queue->returned, 1);
    sh_fence_seq_cst(); /* orders the entry and the count before the load of the gate */
    sh_gate_wake(&queue->not_empty, 1);
}

/* Gives one entry of a process that is gone back to the queue. Nobody else writes the entry: it belongs to its owner,
 * unless its lease ends, and then the swap of the state decides. */
static void give_back(sh_ctx *c, sh_queue_shm *queue, sh_delivery_shm *entry, sh_owner gone)
{
    uint64_t state = sh_load_acquire(&entry->state);
    sh_delivery_phase phase = sh_delivery_phase_of(state);
    if (sh_delivery_owner_of(state) != gone || phase == SH_DELIVERY_EMPTY || phase == SH_DELIVERY_RETURNED) {
        return;
    }
    if (phase == SH_DELIVERY_FINISHING && sh_load_acquire(&entry->reference) != 0) {
        sh_heap_release(c, sh_offset_of(&entry->reference)); /* the receiver has finished it */
    }
    SH_DEATH("recovery.delivery.released"); /* death: FINISHING without a reference; the next recoverer empties it */
    bool message = sh_load_acquire(&entry->reference) != 0;
    uint64_t after = sh_delivery_state(state, message ? SH_DELIVERY_RETURNED : SH_DELIVERY_EMPTY, 0);
    if (sh_cas_seq_cst(&entry->state, &state, after) && message) {
        /* death: the next recoverer tells the receivers, as sh_deliveries_give_back always does */
        SH_DEATH("recovery.delivery.returned");
        sh_deliveries_tell(queue);
    }
}

void sh_deliveries_give_back(sh_ctx *c, const sh_found *f, sh_owner gone)
{
    if (f->kind != SH_KIND_QUEUE || f->size < sizeof(sh_queue_shm)) {
        return;
    }
    sh_queue_shm *queue = (sh_queue_shm *)f->data;
    if ((sh_load_acquire(&queue->flags) & SH_QUEUE_ACKNOWLEDGED) == 0) {
        return;
    }
    sh_ref ref = sh_load_acquire(&queue->deliveries);
    sh_found t;
    for (uint32_t n = 0; n < TABLES_MAX && ref != 0 && sh_heap_find(sh_ref_id(ref), &t); n++) {
        if (t.kind != SH_KIND_DELIVERIES || t.size < sizeof(sh_deliveries_shm)) {
            break;
        }
        sh_deliveries_shm *table = (sh_deliveries_shm *)t.data;
        for (uint64_t i = 0; i < (t.size - sizeof *table) / sizeof table->entries[0]; i++) {
            give_back(c, queue, &table->entries[i], gone);
        }
        ref = sh_load_acquire(&table->next);
    }
    sh_add_acq_rel(&queue->returned, 1); /* it may have died between a return and telling the receivers */
    sh_gate_wake(&queue->not_empty, INT_MAX);
    sh_gate_wake(&queue->all_done, INT_MAX);
}

/* Handles the queue that the reference names, or all queues in a chunk of cells and in the chunks behind it. */
static void give_back_behind(sh_ctx *c, sh_ref ref, sh_owner gone)
{
    sh_found f, g;
    for (uint32_t chunks = 0; ref != 0 && chunks < CHUNKS_MAX && sh_heap_find(sh_ref_id(ref), &f); chunks++) {
        if ((f.kind != SH_KIND_CELLS && f.kind != SH_KIND_INHERITED) || f.size < sizeof(sh_cells_shm)) {
            sh_deliveries_give_back(c, &f, gone);
            return;
        }
        sh_cells_shm *cells = (sh_cells_shm *)f.data;
        for (uint64_t i = 0; i < (f.size - sizeof *cells) / 8; i++) {
            sh_ref inner = sh_load_acquire(&cells->cells[i]);
            if (inner != 0 && sh_heap_find(sh_ref_id(inner), &g)) {
                sh_deliveries_give_back(c, &g, gone);
            }
        }
        ref = sh_load_acquire(&cells->next);
    }
}

void sh_deliveries_give_back_all(sh_ctx *c, sh_owner gone)
{
    for (uint32_t i = 0; i < SH_SLOT_CELLS; i++) {
        give_back_behind(c, sh_load_acquire(&c->slot->cells[i]), gone);
    }
    give_back_behind(c, sh_load_acquire(&c->slot->chunks), gone);
}
