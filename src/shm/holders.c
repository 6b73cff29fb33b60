#include "shm/holders.h"

#include "shm/kind.h"
#include "shm/slot.h"

#define CHUNKS_MAX (1u << 16) /* no slot has more: a longer chain is forged */

void sh_blocks_visit(void (*visit)(uint64_t id, const sh_found *found, void *context), void *context)
{
    uint32_t spans = sh_heap_spans();
    for (uint32_t s = 0; s < spans; s++) {
        sh_found f;
        for (uint64_t id = (uint64_t)s << SH_INDEX_BITS; sh_heap_find(id, &f); id++) {
            if (sh_word_weight(sh_load_acquire(&f.meta->word)) != 0) {
                visit(id, &f, context);
            }
        }
    }
}

/* The cells of one slot: its own, and those in its chunks. */
static void visit_slot(uint32_t slot, void (*visit)(uint32_t slot, uint64_t id, void *context), void *context)
{
    sh_slot_shm *s = sh_slot_at(slot);
    sh_a64 *cells = s->cells;
    uint64_t count = SH_SLOT_CELLS;
    sh_ref next = sh_load_acquire(&s->chunks);
    for (uint32_t n = 0; n < CHUNKS_MAX; n++) {
        for (uint64_t i = 0; i < count; i++) {
            sh_ref ref = sh_load_acquire(&cells[i]);
            if (ref != 0) {
                visit(slot, sh_ref_id(ref), context);
            }
        }
        sh_found f;
        if (next == 0 || !sh_heap_find(sh_ref_id(next), &f) ||
            (f.kind != SH_KIND_CELLS && f.kind != SH_KIND_INHERITED) || f.size < sizeof(sh_cells_shm)) {
            return;
        }
        sh_cells_shm *chunk = (sh_cells_shm *)f.data;
        cells = chunk->cells;
        count = (f.size - sizeof *chunk) / sizeof cells[0];
        next = sh_load_acquire(&chunk->next);
    }
}

void sh_holders_visit(void (*visit)(uint32_t slot, uint64_t id, void *context), void *context)
{
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used);
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        sh_phase phase = sh_slot_state_phase(sh_load_acquire(&sh_slot_at(i)->state));
        if (phase == SH_PHASE_ALIVE || phase == SH_PHASE_RESERVED) {
            visit_slot(i, visit, context);
        }
    }
}
