/* The tables of an acknowledged queue: finding what is due, claiming entries and leaving them. */
#include "ipc/delivery.h"

#include "base/clock.h"
#include "base/death.h"
#include "base/error.h"
#include "base/random.h"

#include <limits.h>

#define TABLE_FIRST 30u /* entries of the first table: 1 KiB in all; each further table has twice as many */
#define LOOKS 32        /* at entries in order, and again at random ones, before a table grows */

/* ---- tables ---- */

shoal_err sh_deliveries_damaged(const shoal_block *q)
{
    return sh_fail(SHOAL_ECORRUPT, "queue %llu: the table of deliveries is damaged", (unsigned long long)q->id);
}

/* Inside: creates a table in a separate block. Its reference is in the handle's cell. */
static shoal_err make_table(sh_ctx *c, uint64_t entries, shoal_block **out_table)
{
    uint64_t bytes = sh_delivery_table_bytes(entries);
    SH_TRY(sh_block_new(c, sh_class_of(bytes), bytes, out_table));
    sh_block_become(*out_table, SH_KIND_DELIVERIES);
    sh_store_release(&((sh_deliveries_shm *)(*out_table)->data)->count, entries);
    return SHOAL_OK;
}

shoal_err sh_deliveries_create(sh_ctx *c, shoal_block *q)
{
    shoal_block *table = NULL;
    SH_TRY(make_table(c, TABLE_FIRST, &table));
    sh_heap_split(c, table->cell, sh_offset_of(&sh_queue_shm_of(q)->deliveries),
                  sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(table->cell))));
    sh_block_unref(c, table);
    return SHOAL_OK;
}

shoal_err sh_deliveries_open(const shoal_block *q)
{
    sh_queue_view *v = sh_queue_view_of(q);
    for (;;) {
        uint32_t n = sh_load_relaxed(&v->table_count);
        sh_ref ref = sh_load_acquire(n == 0 ? &sh_queue_shm_of(q)->deliveries : &v->tables[n - 1].shm->next);
        sh_found f;
        if (n > 0 && ref == 0) {
            return SHOAL_OK;
        }
        if (n == SH_TABLES_MAX || !sh_heap_find(sh_ref_id(ref), &f) || !sh_delivery_table_open(&f, &v->tables[n])) {
            return sh_deliveries_damaged(q);
        }
        sh_store_release(&v->table_count,
                         n + 1); /* pairs with the acquire in sh_delivery_find and walk: read anywhere */
    }
}

/* Inside: adds a table when most entries are in use. */
static shoal_err grow(sh_ctx *c, const shoal_block *q)
{
    sh_queue_view *v = sh_queue_view_of(q);
    const sh_delivery_table *last = &v->tables[sh_load_relaxed(&v->table_count) - 1];
    shoal_block *table = NULL;
    if (sh_load_relaxed(&v->table_count) == SH_TABLES_MAX) {
        return sh_fail(SHOAL_ELIMIT, "queue %llu: too many messages wait for their acknowledgement",
                       (unsigned long long)q->id);
    }
    SH_TRY(make_table(c, last->count * 2, &table));
    sh_queue_link(c, &last->shm->next, table);
    return sh_deliveries_open(q);
}

static sh_delivery delivery_of(const sh_delivery_table *table, uint64_t place, uint64_t number, uint64_t state)
{
    return (sh_delivery){
        .table = table, .place = place, .entry = &table->shm->entries[place], .number = number, .state = state};
}

/* Finds the entry of that number in all known tables. Anywhere. */
bool sh_delivery_find(const shoal_block *q, uint64_t number, sh_delivery *out)
{
    const sh_queue_view *v = sh_queue_view_of(q);
    uint32_t tables = sh_load_acquire(&v->table_count);
    uint64_t n = number;
    for (uint32_t i = 0; i < tables; i++) {
        if (n < v->tables[i].count) {
            *out = delivery_of(&v->tables[i], n, number, 0);
            return true;
        }
        n -= v->tables[i].count;
    }
    return false;
}

static uint64_t entries_of(const sh_queue_view *v)
{
    uint64_t entries = 0;
    for (uint32_t i = 0; i < sh_load_relaxed(&v->table_count); i++) {
        entries += v->tables[i].count;
    }
    return entries;
}

/* ---- what is due ---- */

typedef bool visitor(sh_delivery_walk *walk, const sh_delivery_table *table, uint64_t n, uint64_t number,
                     uint64_t state);

/* Visits the entries that are due. Anywhere. */
static sh_walk_result walk(const shoal_block *q, int64_t limit, bool all, visitor *each, void *context)
{
    const sh_queue_view *v = sh_queue_view_of(q);
    sh_delivery_walk w = {.queue = sh_queue_shm_of(q), .limit = limit, .all = all, .each = each, .context = context};
    return sh_deliveries_walk(&w, v->tables, sh_load_acquire(&v->table_count));
}

static bool stop_at_most(sh_delivery_walk *w, const sh_delivery_table *table, uint64_t n, uint64_t number,
                         uint64_t state)
{
    (void)table;
    (void)n;
    (void)number;
    (void)state;
    uint64_t *left = w->context;
    return --*left == 0;
}

uint64_t sh_deliveries_out(const shoal_block *q, uint64_t most)
{
    uint64_t left = most;
    if (sh_deliveries_due(sh_queue_shm_of(q)) != SH_DUE_NEVER) {
        (void)walk(q, SH_DUE_FAR, false, stop_at_most, &left);
    }
    return most - left;
}

bool sh_deliveries_may_be_over(const shoal_block *q)
{
    uint64_t left = 1;
    return sh_deliveries_due(sh_queue_shm_of(q)) == SH_DUE_NEVER ||
           walk(q, SH_DUE_FAR, false, stop_at_most, &left) != SH_WALK_STOPPED;
}

/* Returns whether something in the queue may be due, and the time. */
static bool may_be_due(const shoal_block *q, int64_t *out_now)
{
    int64_t due = sh_deliveries_due(sh_queue_shm_of(q));
    if (due >= SH_DUE_FAR) {
        return false;
    }
    *out_now = sh_now();
    return due <= *out_now;
}

bool sh_deliveries_ready(const shoal_block *q)
{
    int64_t now;
    uint64_t left = 1;
    return may_be_due(q, &now) && walk(q, now, false, stop_at_most, &left) != SH_WALK_DONE;
}

int64_t sh_deliveries_wait_until(const shoal_block *q, int64_t deadline)
{
    int64_t lease = (int64_t)sh_load_relaxed(&sh_queue_shm_of(q)->lease);
    int64_t due = sh_deliveries_due(sh_queue_shm_of(q));
    if (lease > 0) { /* a lease that is given during the wait ends after `lease` */
        int64_t next = sh_deadline(lease);
        due = due < next ? due : next;
    }
    return due < SH_DUE_FAR && due < deadline ? due : deadline;
}

/* ---- claiming ---- */

uint64_t sh_delivery_claimed(uint64_t before)
{
    return sh_delivery_state(before + SH_DELIVERY_SERIAL, SH_DELIVERY_CLAIMED, sh_peers_now->self());
}

/* Inside: claims the entry of that number, if it is empty. */
static bool claim_if_empty(const shoal_block *q, uint64_t number, sh_delivery *out)
{
    if (!sh_delivery_find(q, number, out)) {
        return false;
    }
    uint64_t state = sh_load_acquire(&out->entry->state);
    out->state = sh_delivery_claimed(state);
    if (sh_delivery_phase_of(state) != SH_DELIVERY_EMPTY || !sh_cas_seq_cst(&out->entry->state, &state, out->state)) {
        return false;
    }
    SH_DEATH("delivery.claimed"); /* death: claimed, without a message: recovery empties the entry */
    sh_store_relaxed(&out->entry->deliveries, 0);
    sh_deliveries_lower(sh_queue_shm_of(q), out->table, out->place, SH_DUE_FAR); /* before the message is there */
    return true;
}

/* Inside: claims an empty entry: one of those that follow the entry that was claimed last, itself included, or any one.
 * If the tables are nearly full, adds one; if that fails, searches all entries. */
shoal_err sh_delivery_claim_empty(sh_ctx *c, const shoal_block *q, sh_delivery *out)
{
    sh_queue_view *v = sh_queue_view_of(q);
    for (;;) {
        uint64_t entries = entries_of(v);
        for (uint64_t i = 0; i < 2 * LOOKS; i++) {
            uint64_t number = i < LOOKS ? (v->last_entry + i) % entries : sh_splitmix_below(&v->random, entries);
            if (claim_if_empty(q, number, out)) {
                v->last_entry = number;
                return SHOAL_OK;
            }
        }
        shoal_err err = grow(c, q);
        for (uint64_t number = 0; err != SHOAL_OK && number < entries; number++) {
            if (claim_if_empty(q, number, out)) {
                return SHOAL_OK;
            }
        }
        if (err != SHOAL_OK) {
            return err;
        }
        v->last_entry = entries; /* the first of the new table */
    }
}

static bool claim_this(sh_delivery_walk *w, const sh_delivery_table *table, uint64_t n, uint64_t number, uint64_t state)
{
    uint64_t ours = sh_delivery_claimed(state);
    if (!sh_cas_seq_cst(&table->shm->entries[n].state, &state, ours)) {
        return false;
    }
    SH_DEATH("delivery.taken_over"); /* death: claimed, with its message: recovery returns the message */
    *(sh_delivery *)w->context = delivery_of(table, n, number, ours);
    return true;
}

/* Inside: claims a message that came back or whose lease has expired. all: whatever the bounds say. */
shoal_err sh_delivery_claim_due(const shoal_block *q, bool all, sh_delivery *out, bool *out_claimed)
{
    int64_t now;
    sh_walk_result r = SH_WALK_DONE;
    shoal_err err = SHOAL_OK;
    if (all || may_be_due(q, &now)) {
        now = sh_now();
        while ((r = walk(q, now, all, claim_this, out)) == SH_WALK_UNKNOWN && err == SHOAL_OK) {
            err = sh_deliveries_open(q); /* another process has just added a table */
        }
    }
    *out_claimed = r == SH_WALK_STOPPED;
    return err;
}

/* Inside: changes this process's entry to the phase. While an entry is CLAIMED or FINISHING only its owner changes its
 * state. */
void sh_delivery_leave(sh_delivery *d, sh_delivery_phase phase)
{
    d->state = sh_delivery_state(d->state, phase, phase == SH_DELIVERY_OUT ? sh_peers_now->self() : 0);
    sh_store_release(&d->entry->state, d->state);
    sh_fence_seq_cst(); /* before the bounds are lowered, or a gate is checked */
}

/* Wakes those who wait for the last entry to become empty. */
static void tell_empty(sh_queue_shm *shm)
{
    sh_gate_wake(&shm->all_done, INT_MAX);
    if ((sh_load_acquire(&shm->flags) & SH_QUEUE_CLOSED) != 0) {
        sh_gate_wake(&shm->not_empty, INT_MAX); /* receivers that wait to see whether a message comes back */
    }
}

/* Inside: empties an entry of this process that has no message. Those who looked meanwhile counted it as a message. */
void sh_delivery_empty(const shoal_block *q, sh_delivery *d)
{
    sh_delivery_leave(d, SH_DELIVERY_EMPTY);
    tell_empty(sh_queue_shm_of(q));
}

/* Inside: drops the message of a CLAIMED or FINISHING entry of this process. */
void sh_delivery_drop(sh_ctx *c, const shoal_block *q, sh_delivery *d)
{
    if (sh_load_relaxed(&d->entry->reference) != 0) {
        sh_heap_release(c, sh_offset_of(&d->entry->reference));
    }
    SH_DEATH("delivery.released"); /* death: no message any more: recovery empties the entry */
    sh_delivery_empty(q, d);
}

/* Inside: after an entry became RETURNED: lets the next receiver find it. */
void sh_delivery_tell(const shoal_block *q, const sh_delivery *d)
{
    /* death: recovery lowers the bounds, and wakes the receivers */
    SH_DEATH("delivery.given_back");
    sh_deliveries_lower(sh_queue_shm_of(q), d->table, d->place, 0);
    SH_DEATH("delivery.given_back.lowered");
    sh_fence_seq_cst(); /* before the gate is checked */
    sh_gate_wake(&sh_queue_shm_of(q)->not_empty, 1);
}

/* Inside: returns a CLAIMED message that nobody has seen. */
void sh_delivery_put_back(const shoal_block *q, sh_delivery *d)
{
    sh_store_relaxed(&d->entry->deliveries, sh_load_relaxed(&d->entry->deliveries) - 1);
    sh_delivery_leave(d, SH_DELIVERY_RETURNED);
    sh_delivery_tell(q, d);
}
