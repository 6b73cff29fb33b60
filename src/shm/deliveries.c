#include "shm/deliveries.h"

#include "base/death.h"

#include <limits.h>

#define TABLES_MAX 64 /* a longer chain is forged */
#define CHUNKS_MAX (1u << 16)
#define FAN 64 /* words below a bound */

/* ---- bounds ---- */

#define TAG (UINT64_C(1) << 63) /* tag: 1 | owner | number of this process */
#define TAG_NUMBERS (TAG >> SH_OWNER_BITS)

static uint64_t nodes_above(uint64_t nodes)
{
    return (nodes + FAN - 1) / FAN;
}

/* Returns the number of levels of bounds; the last has one word. */
static uint32_t levels(uint64_t count)
{
    uint32_t n = 0;
    do {
        count = nodes_above(count);
        n++;
    } while (count > 1);
    return n;
}

/* Returns the first bound of a level, from 1. */
static sh_a64 *bounds_of(const sh_delivery_table *t, uint32_t level)
{
    sh_a64 *words = (sh_a64 *)&t->shm->entries[t->count];
    for (uint64_t n = nodes_above(t->count); level > 1; level--, n = nodes_above(n)) {
        words += n;
    }
    return words;
}

uint64_t sh_delivery_table_bytes(uint64_t count)
{
    uint64_t words = 0;
    uint64_t nodes = count;
    do {
        nodes = nodes_above(nodes);
        words += nodes;
    } while (nodes > 1);
    return sizeof(sh_deliveries_shm) + count * sizeof(sh_delivery_shm) + words * sizeof(sh_a64);
}

bool sh_delivery_table_open(const sh_found *f, sh_delivery_table *out_table)
{
    if (f->kind != SH_KIND_DELIVERIES || f->size < sizeof(sh_deliveries_shm)) {
        return false;
    }
    sh_deliveries_shm *shm = (sh_deliveries_shm *)f->data;
    uint64_t count = sh_load_acquire(&shm->count);
    if (count == 0 || count > f->size / sizeof(sh_delivery_shm) || sh_delivery_table_bytes(count) > f->size) {
        return false;
    }
    *out_table = (sh_delivery_table){.shm = shm, .count = count};
    return true;
}

/* Returns the time that a word means, whatever it holds: it may be a tag, or nonsense. */
static int64_t time_of(uint64_t word)
{
    return (word & TAG) != 0 ? 0 : (int64_t)word;
}

int64_t sh_deliveries_due(sh_queue_shm *queue)
{
    return time_of(sh_load_seq_cst(&queue->due));
}

static void lower(sh_a64 *bound, int64_t due)
{
    uint64_t word = sh_load_seq_cst(bound);
    while (time_of(word) > due || (word & TAG) != 0) {
        if (sh_cas_seq_cst(bound, &word, (word & TAG) != 0 ? 0 : (uint64_t)due)) {
            return;
        }
    }
}

void sh_deliveries_lower(sh_queue_shm *queue, const sh_delivery_table *table, uint64_t n, int64_t due)
{
    uint32_t top = levels(table->count);
    for (uint32_t level = 1; level <= top; level++) {
        n /= FAN;
        lower(&bounds_of(table, level)[n], due);
    }
    lower(&queue->due, due);
}

/* limit: what a walk looks for. A claim is never due, but its lease may be there before it is OUT. */
static int64_t due_of(sh_queue_shm *queue, const sh_delivery_shm *entry, int64_t limit, uint64_t *out_state)
{
    uint64_t state = *out_state = sh_load_seq_cst(&entry->state);
    int64_t due = SH_DUE_FAR, until = time_of(sh_load_seq_cst(&entry->until));
    switch (sh_delivery_phase_of(state)) {
    case SH_DELIVERY_EMPTY: return SH_DUE_NEVER;
    case SH_DELIVERY_RETURNED: return 0;
    case SH_DELIVERY_CLAIMED: due = until > limit ? until : SH_DUE_FAR; break;
    case SH_DELIVERY_OUT: due = until; break;
    case SH_DELIVERY_REFUSED: due = time_of(sh_load_acquire(&queue->retry_at)); break;
    default: break;
    }
    return due < SH_DUE_FAR ? due : SH_DUE_FAR;
}

/* ---- walks ---- */

typedef struct visit {
    sh_delivery_walk *walk;
    const sh_delivery_table *table;
    uint64_t base; /* number of the table's first entry */
    uint64_t tag;
} visit;

/* Tags the bound. Returns what it was; a tag of another process is gone for good. */
static bool tag(sh_a64 *bound, uint64_t tag, uint64_t *out_before)
{
    uint64_t before = sh_load_seq_cst(bound);
    *out_before = (before & TAG) != 0 ? 0 : before;
    return sh_cas_seq_cst(bound, &before, tag);
}

/* Visits the node below the place, if it may be due. Returns whether to stop. *out_due: its bound afterwards. */
static bool visit_node(const visit *v, uint32_t level, uint64_t at, int64_t *out_due);

static bool visit_entry(const visit *v, uint64_t n, int64_t *out_due)
{
    sh_delivery_walk *w = v->walk;
    const sh_delivery_shm *entry = &v->table->shm->entries[n];
    uint64_t state;
    *out_due = due_of(w->queue, entry, w->limit, &state);
    if (*out_due > w->limit) {
        return false;
    }
    w->visited++;
    bool stop = w->each(w, v->table, n, v->base + n, state);
    *out_due = due_of(w->queue, entry, w->limit, &state);
    return stop;
}

/* Visits everything below a bound, and raises it. */
static bool visit_below(const visit *v, uint32_t level, uint64_t at)
{
    sh_a64 *bound = &bounds_of(v->table, level)[at];
    uint64_t below = v->table->count, before, mine = v->tag;
    bool tagged = tag(bound, mine, &before), stop = false;
    int64_t least = SH_DUE_NEVER;
    for (uint32_t i = 1; i < level; i++) {
        below = nodes_above(below);
    }
    uint64_t end = (at + 1) * FAN < below ? (at + 1) * FAN : below;
    SH_DEATH("delivery.bound.tagged");
    for (uint64_t n = at * FAN; n < end && !stop; n++) {
        int64_t due;
        stop = level == 1 ? visit_entry(v, n, &due) : visit_node(v, level - 1, n, &due);
        least = due < least ? due : least;
    }
    if (tagged) {
        (void)sh_cas_seq_cst(bound, &mine, stop ? before : (uint64_t)least);
    }
    return stop;
}

static bool visit_node(const visit *v, uint32_t level, uint64_t at, int64_t *out_due)
{
    const sh_a64 *bound = &bounds_of(v->table, level)[at];
    *out_due = time_of(sh_load_seq_cst(bound));
    if (*out_due > v->walk->limit && !v->walk->all) {
        return false;
    }
    bool stop = visit_below(v, level, at);
    *out_due = time_of(sh_load_seq_cst(bound));
    return stop;
}

sh_walk_result sh_deliveries_walk(sh_delivery_walk *w, const sh_delivery_table *tables, uint32_t count)
{
    static sh_a64 numbers;
    visit v = {.walk = w,
               .tag = TAG | (uint64_t)sh_peers_now->self() * TAG_NUMBERS | sh_add_relaxed(&numbers, 1) % TAG_NUMBERS};
    uint64_t before, mine = v.tag;
    bool tagged = tag(&w->queue->due, mine, &before), stop = false;
    int64_t least = SH_DUE_NEVER;
    for (uint32_t i = 0; i < count && !stop; i++) {
        int64_t due;
        v.table = &tables[i];
        stop = visit_node(&v, levels(tables[i].count), 0, &due);
        least = due < least ? due : least;
        v.base += tables[i].count;
    }
    /* A table that is linked after this load is lowered after (3): its lowering removes the tag. */
    bool unknown = count == 0 || sh_load_seq_cst(&tables[count - 1].shm->next) != 0;
    if (tagged) {
        (void)sh_cas_seq_cst(&w->queue->due, &mine, stop || unknown ? before : (uint64_t)least);
    }
    return stop ? SH_WALK_STOPPED : unknown ? SH_WALK_UNKNOWN : SH_WALK_DONE;
}

/* ---- the end of a process ---- */

/* Gives one entry of a process that is gone back to the queue. Nobody else writes the entry: it belongs to its owner,
 * unless its lease ends, and then the swap of the state decides. */
static void give_back(sh_ctx *c, sh_delivery_shm *entry, sh_owner gone)
{
    uint64_t state = sh_load_acquire(&entry->state);
    sh_delivery_phase phase = sh_delivery_phase_of(state);
    if (sh_delivery_owner_of(state) != gone ||
        (phase != SH_DELIVERY_CLAIMED && phase != SH_DELIVERY_OUT && phase != SH_DELIVERY_FINISHING)) {
        return;
    }
    if (phase == SH_DELIVERY_FINISHING && sh_load_acquire(&entry->reference) != 0) {
        sh_heap_release(c, sh_offset_of(&entry->reference)); /* the receiver has finished it */
    }
    SH_DEATH("recovery.delivery.released"); /* death: FINISHING without a reference; the next recoverer empties it */
    bool message = sh_load_acquire(&entry->reference) != 0;
    uint64_t after = sh_delivery_state(state, message ? SH_DELIVERY_RETURNED : SH_DELIVERY_EMPTY, 0);
    if (sh_cas_seq_cst(&entry->state, &state, after) && message) {
        /* death: the next recoverer lowers the bounds and wakes the receivers */
        SH_DEATH("recovery.delivery.returned");
    }
}

/* Gives back what the process had in one table. Lowers the bounds of all entries there, because it may have died
 * between a change and that. */
static void give_back_table(sh_ctx *c, sh_queue_shm *queue, const sh_delivery_table *table, sh_owner gone)
{
    for (uint64_t n = 0; n < table->count; n++) {
        sh_delivery_shm *entry = &table->shm->entries[n];
        uint64_t state;
        give_back(c, entry, gone);
        int64_t due = due_of(queue, entry, 0, &state);
        if (due != SH_DUE_NEVER) {
            sh_deliveries_lower(queue, table, n, due);
        }
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
    sh_found found;
    sh_delivery_table table;
    for (uint32_t n = 0; n < TABLES_MAX && ref != 0 && sh_heap_find(sh_ref_id(ref), &found); n++) {
        if (!sh_delivery_table_open(&found, &table)) {
            break;
        }
        give_back_table(c, queue, &table, gone);
        ref = sh_load_acquire(&table.shm->next);
    }
    sh_fence_seq_cst();
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
