/* The audit: checks every invariant of layout.h by walking the whole world. For tests and tools; no other process may
 * use the world meanwhile. */
#include "os/memory.h"

#include "base/error.h"
#include "shm/card_store.h"
#include "shm/commit.h"
#include "shm/granule.h"
#include "shm/heap.h"
#include "shm/kind.h"
#include "shm/slot.h"
#include "sync/lock.h"
#include "sync/rlock.h"

#include <shoal/world.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the walk has found, in private memory: one record per block. */
typedef struct tally {
    uint64_t sum;   /* the sum of the weights of the references found */
    uint32_t count; /* the number of references found */
    bool listed;    /* a cache names it */
} tally;

typedef struct audit {
    shoal_audit *out;
    tally **spans; /* for each span, one tally per block */
    uint32_t span_count;
} audit;

__attribute__((format(printf, 3, 4))) static void finding(audit *a, uint64_t *counter, const char *format, ...)
{
    (*counter)++;
    if (a->out->first[0] == 0) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(a->out->first, sizeof a->out->first, format, arguments);
        va_end(arguments);
    }
}

static tally *tally_of(audit *a, uint64_t id)
{
    sh_found f;
    uint64_t span = id >> SH_INDEX_BITS;
    if (span >= a->span_count || a->spans[span] == NULL || !sh_heap_find(id, &f)) {
        return NULL;
    }
    return &a->spans[span][id & ((1u << SH_INDEX_BITS) - 1)];
}

static void count_reference(audit *a, sh_ref ref, const char *where)
{
    if (ref == 0) {
        return;
    }
    tally *t = tally_of(a, sh_ref_id(ref));
    if (t == NULL) {
        finding(a, &a->out->unheld, "%s refers to block %llu, which does not exist", where,
                (unsigned long long)sh_ref_id(ref));
        return;
    }
    t->sum += sh_ref_weight(ref);
    t->count++;
    a->out->references++;
}

static bool make_tallies(audit *a)
{
    a->span_count = sh_heap_spans();
    a->spans = calloc(a->span_count + 1, sizeof *a->spans);
    if (a->spans == NULL) {
        return false;
    }
    for (uint32_t s = 0; s < a->span_count; s++) {
        sh_found f;
        if (!sh_heap_find((uint64_t)s << SH_INDEX_BITS, &f)) {
            finding(a, &a->out->lost, "span %u was never finished", s);
            continue;
        }
        a->spans[s] = calloc(sh_class_blocks(f.klass), sizeof **a->spans);
        if (a->spans[s] == NULL) {
            return false;
        }
    }
    return true;
}

/* Checks what no slot may be, whatever it holds. */
static void check_slot(audit *a, uint32_t index, sh_slot_shm *slot, uint64_t references)
{
    uint64_t state = sh_load_acquire(&slot->state);
    sh_phase phase = sh_slot_state_phase(state);
    uint32_t maker = sh_slot_state_maker(state) - 1;
    bool orphan =
        phase == SH_PHASE_RESERVED && sh_load_acquire(&slot->pid) == 0 &&
        (maker >= SH_SLOTS || sh_slot_state_phase(sh_load_acquire(&sh_slot_at(maker)->state)) == SH_PHASE_FREE);
    if (orphan || (phase != SH_PHASE_FREE && sh_slot_is_dead(index))) {
        finding(a, &a->out->dead_slots, "slot %u is dead and not recovered", index);
    }
    if (phase == SH_PHASE_FREE && references != 0) {
        finding(a, &a->out->unheld, "slot %u is free but holds %llu references", index, (unsigned long long)references);
    }
    if (sh_load_acquire(&slot->intent.code) != SH_INTENT_NONE) {
        finding(a, &a->out->unfinished, "slot %u has operation %d open", index,
                (int)sh_load_acquire(&slot->intent.code));
    }
    if (sh_load_acquire(&slot->destroying) != 0) {
        finding(a, &a->out->unfinished, "slot %u has block %llu to destroy", index,
                (unsigned long long)sh_load_acquire(&slot->destroying) - 1);
    }
}

static void walk_slots(audit *a)
{
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used);
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        sh_slot_shm *slot = sh_slot_at(i);
        sh_phase phase = sh_slot_state_phase(sh_load_acquire(&slot->state));
        uint64_t before = a->out->references;
        char where[32];
        snprintf(where, sizeof where, "slot %u", i);
        for (uint32_t n = 0; n < SH_SLOT_CELLS; n++) {
            count_reference(a, sh_load_acquire(&slot->cells[n]), where);
        }
        count_reference(a, sh_load_acquire(&slot->chunks), where);
        for (uint32_t n = 0; n < SH_CACHE_ENTRIES; n++) {
            uint64_t id = sh_load_acquire(&slot->cache[n]);
            tally *t = id != 0 ? tally_of(a, id - 1) : NULL;
            if (t != NULL && (phase == SH_PHASE_ALIVE || phase == SH_PHASE_RESERVED)) {
                t->listed = true;
            }
        }
        check_slot(a, i, slot, a->out->references - before);
    }
}

static void walk_references(audit *a, uint64_t id, const sh_found *f)
{
    sh_a64 progress = {0}, *word;
    char where[48];
    snprintf(where, sizeof where, "block %llu of kind %d", (unsigned long long)id, (int)f->kind);
    while ((word = sh_kind_next_reference(f, &progress)) != NULL) {
        count_reference(a, sh_load_acquire(word), where);
        sh_store_relaxed(&progress, sh_load_relaxed(&progress) + 1);
    }
}

static void check_lock(audit *a, uint64_t id, const sh_found *f)
{
    sh_owner owner = sh_kind_owner(f);
    if (owner != 0 && sh_owner_is_dead(owner)) {
        finding(a, &a->out->dead_locks, "a dead process holds lock %llu", (unsigned long long)id);
    }
}

static void check_piece(audit *a, uint64_t id, const sh_found *f)
{
    sh_piece piece;
    if (f->kind == SH_KIND_PIECE && !sh_piece_look(f, &piece)) {
        finding(a, &a->out->unheld, "piece %llu of GPU memory is not inside a granule", (unsigned long long)id);
    }
}

/* Calls each for every block. */
static void each_block(audit *a, void (*each)(audit *, uint64_t, const sh_found *, uint64_t))
{
    for (uint32_t s = 0; s < a->span_count; s++) {
        sh_found f;
        for (uint32_t i = 0; a->spans[s] != NULL && sh_heap_find((uint64_t)s << SH_INDEX_BITS | i, &f); i++) {
            each(a, (uint64_t)s << SH_INDEX_BITS | i, &f, sh_load_acquire(&f.meta->word));
        }
    }
}

static void check_block(audit *a, uint64_t id, const sh_found *f, uint64_t word)
{
    if (sh_word_weight(word) != 0) {
        walk_references(a, id, f);
        check_lock(a, id, f);
        check_piece(a, id, f);
    }
}

/* Checks whether an allocation can find the block: by its bit, and the bits above it. */
static bool is_listed(uint64_t id, const sh_found *f)
{
    uint32_t index = (uint32_t)(id & ((1u << SH_INDEX_BITS) - 1)), span = (uint32_t)(id >> SH_INDEX_BITS);
    sh_a64 *bits = sh_span_map_word(span, f->klass, index / 64);
    return bits != NULL && ((sh_load_acquire(bits) >> (index % 64)) & 1) != 0 && sh_span_is_listed(f->klass, span);
}

static void check_sum(audit *a, uint64_t id, const sh_found *f, uint64_t word)
{
    const tally *t = tally_of(a, id);
    if ((word & SH_WORD_FREE) != 0) {
        if (t->count != 0) {
            finding(a, &a->out->unheld, "free block %llu has %u references", (unsigned long long)id, t->count);
        }
        if (!t->listed && !is_listed(id, f)) {
            finding(a, &a->out->lost, "free block %llu of class %u is not listed", (unsigned long long)id, f->klass);
        }
        return;
    }
    a->out->blocks++;
    if (sh_word_weight(word) == 0 || sh_word_weight(word) != t->sum) {
        finding(a, &a->out->unheld, "block %llu of kind %d has weight %llu, its %u references have %llu",
                (unsigned long long)id, (int)f->kind, (unsigned long long)sh_word_weight(word), t->count,
                (unsigned long long)t->sum);
    }
}

/* ---- card memory ---- */

static bool is_in_store(const sh_store_entry *entries, int count, uint64_t granule, uint64_t serial)
{
    for (int i = 0; i < count; i++) {
        if (entries[i].granule == granule && entries[i].serial == serial) {
            return true;
        }
    }
    return false;
}

/* Checks that the store has the fd of every granule, and of no other. A granule that is not complete is still its
 * maker's only. */
static void check_store(audit *a)
{
    sh_store_entry entries[SH_STORE_MAX];
    sh_granule_info info;
    if (!sh_granules_existed()) {
        return;
    }
    int count = sh_cardstore_table(entries);
    for (int i = 0; i < count; i++) {
        if (!sh_granule_look(entries[i].granule, &info) || info.serial != entries[i].serial) {
            finding(a, &a->out->lost, "the store has the fd of granule %llu, which does not exist",
                    (unsigned long long)entries[i].granule);
        }
    }
    for (uint32_t s = 0; count >= 0 && s < a->span_count; s++) {
        sh_found f;
        for (uint32_t i = 0; sh_heap_find((uint64_t)s << SH_INDEX_BITS | i, &f); i++) {
            uint64_t id = (uint64_t)s << SH_INDEX_BITS | i;
            if (f.kind == SH_KIND_GRANULE && sh_granule_look(id, &info) &&
                !is_in_store(entries, count, id, info.serial)) {
                finding(a, &a->out->unheld, "the store has no fd of granule %llu", (unsigned long long)id);
            }
        }
    }
}

static void check_timelines(audit *a)
{
    sh_timeline_shm *timelines = sh_at(SH_TIMELINES_AT);
    uint32_t used = sh_load_acquire(&sh_the_world.header->timelines_used);
    for (uint32_t i = 1; i < used && i < SH_TIMELINES; i++) {
        sh_owner owner = sh_load_acquire(&timelines[i].owner);
        if (owner != 0 && sh_load_acquire(&timelines[i].lost_from) == 0 && sh_owner_is_dead(owner)) {
            finding(a, &a->out->unfinished, "timeline %u belongs to a dead process", i);
        }
    }
}

shoal_err sh_world_audit(bool recover, shoal_audit *out_audit)
{
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    if (recover) {
        sh_forks_tidy();
        (void)sh_slots_sweep(0);
        sh_cardstore_tidy();
    }
    shoal_audit found = {0};
    audit a = {.out = &found};
    shoal_err err = SHOAL_OK;
    if (make_tallies(&a)) {
        walk_slots(&a);
        each_block(&a, check_block);
        each_block(&a, check_sum);
        check_store(&a);
        check_timelines(&a);
        if (found.first[0] != 0) {
            err = sh_fail(SHOAL_ECORRUPT, "audit: %s", found.first);
        }
        *out_audit = found;
    } else {
        err = sh_fail(SHOAL_ENOMEM, "no memory for the audit");
    }
    for (uint32_t s = 0; a.spans != NULL && s < a.span_count; s++) {
        free(a.spans[s]);
    }
    free(a.spans);
    sh_leave();
    return err;
}

shoal_err shoal_world_audit(shoal_audit *out_audit)
{
    SH_NEED(out_audit);
    return sh_world_audit(true, out_audit);
}

/* ---- what the world contains ---- */

static void count_live(shoal_world_info *info, uint32_t spans)
{
    for (uint32_t s = 0; s < spans; s++) {
        sh_found f;
        for (uint32_t i = 0; sh_heap_find((uint64_t)s << SH_INDEX_BITS | i, &f); i++) {
            if (sh_word_weight(sh_load_acquire(&f.meta->word)) != 0 && f.kind != SH_KIND_CELLS &&
                f.kind != SH_KIND_INHERITED) { /* cells of slots do not count */
                info->blocks_live++;
                info->bytes_live += f.size;
            }
        }
    }
}

shoal_err shoal_world_info_get(shoal_world_info *out_info)
{
    SH_NEED(out_info);
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return shoal_last_error();
    }
    sh_world_shm *header = sh_the_world.header;
    memset(out_info, 0, sizeof *out_info);
    memcpy(out_info->name, header->name, sizeof out_info->name - 1);
    out_info->reserved = sh_the_world.size;
    out_info->heap_limit = sh_load_relaxed(&header->heap_limit);
    out_info->heap_used = sh_memory_used(sh_world_file());
    out_info->recovered = sh_load_relaxed(&header->recovered);
    out_info->locks_repaired = sh_load_relaxed(&header->repaired);
    count_live(out_info, sh_heap_spans());
    uint32_t used = sh_load_acquire(&header->slots_used);
    for (uint32_t i = 0; i < used && i < SH_SLOTS; i++) {
        sh_phase phase = sh_slot_state_phase(sh_load_acquire(&sh_slot_at(i)->state));
        if (phase == SH_PHASE_ALIVE || phase == SH_PHASE_RESERVED) {
            out_info->processes++;
        }
    }
    sh_leave();
    return SHOAL_OK;
}
