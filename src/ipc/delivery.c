/* Acknowledged queues: a message that was received belongs to the queue until its receiver reports that it is done.
 *
 * shm/deliveries.h has the table of messages that are out, with the states of an entry. A get claims an entry, moves
 * the oldest message from the ring into it with the CAS on the ring's entry, and reads it through a separate weight. A
 * message comes back if its receiver died, exited, returned it, or let its lease expire. A get finds it in the table
 * and takes it before those in the ring.
 *
 * A stopped receiver costs the others the message that it has, and nothing else. With a lease it loses even that
 * message, unless it is stopped in the few instructions between its claim and OUT. */
#include "ipc/delivery.h"

#include "base/error.h"

#include "base/clock.h"
#include "base/death.h"
#include "ipc/message_write.h"
#include "ipc/queue.h"
#include "ipc/value.h"
#include "ipc/watch.h"
#include "shm/deliveries.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define TABLE_FIRST 30u /* entries of the first table: 1 KiB in all; each further table has twice as many */

#define NOT_OURS                                                                                                       \
    "this delivery is over: another receiver got its message after the lease, or it belongs to another process"

/* ---- tables ---- */

static uint64_t table_bytes(uint64_t entries)
{
    return sizeof(sh_deliveries_shm) + entries * sizeof(sh_delivery_shm);
}

static shoal_err damaged(const shoal_block *q)
{
    return sh_fail(SHOAL_ECORRUPT, "queue %llu: the table of deliveries is damaged", (unsigned long long)q->id);
}

/* Inside: creates a table in a separate block. Its reference is in the handle's cell. */
static shoal_err make_table(sh_ctx *c, uint64_t entries, shoal_block **out_table)
{
    shoal_err err = sh_block_new(c, sh_class_of(table_bytes(entries)), table_bytes(entries), out_table);
    if (err == SHOAL_OK) {
        sh_block_become(*out_table, SH_KIND_DELIVERIES);
    }
    return err;
}

shoal_err sh_deliveries_create(sh_ctx *c, shoal_block *q)
{
    shoal_block *table = NULL;
    shoal_err err = make_table(c, TABLE_FIRST, &table);
    if (err == SHOAL_OK) {
        sh_heap_split(c, table->cell, sh_offset_of(&sh_queue_shm_of(q)->deliveries),
                      sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(table->cell))));
        sh_block_unref(c, table);
    }
    return err;
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
        if (n == SH_TABLES_MAX || !sh_heap_find(sh_ref_id(ref), &f) || f.kind != SH_KIND_DELIVERIES ||
            f.size < table_bytes(1)) {
            return damaged(q);
        }
        v->tables[n].shm = (sh_deliveries_shm *)f.data;
        v->tables[n].count = (f.size - sizeof(sh_deliveries_shm)) / sizeof(sh_delivery_shm);
        sh_store_release(&v->table_count, n + 1); /* pairs with the acquire in entry_at: read anywhere */
    }
}

/* Inside: adds a table when all entries are in use. */
static shoal_err grow(sh_ctx *c, const shoal_block *q)
{
    sh_queue_view *v = sh_queue_view_of(q);
    const sh_table_view *last = &v->tables[sh_load_relaxed(&v->table_count) - 1];
    shoal_block *table = NULL;
    if (sh_load_relaxed(&v->table_count) == SH_TABLES_MAX) {
        return sh_fail(SHOAL_ELIMIT, "queue %llu: too many messages wait for their acknowledgement",
                       (unsigned long long)q->id);
    }
    shoal_err err = make_table(c, last->count * 2, &table);
    if (err == SHOAL_OK) {
        sh_queue_link(c, &last->shm->next, table);
        err = sh_deliveries_open(q);
    }
    return err;
}

/* Returns the n-th entry of all known tables, or NULL. Anywhere. */
static sh_delivery_shm *entry_at(const shoal_block *q, uint64_t n)
{
    const sh_queue_view *v = sh_queue_view_of(q);
    uint32_t tables = sh_load_acquire(&v->table_count);
    for (uint32_t i = 0; i < tables; i++) {
        if (n < v->tables[i].count) {
            return &v->tables[i].shm->entries[n];
        }
        n -= v->tables[i].count;
    }
    return NULL;
}

uint64_t sh_deliveries_out(const shoal_block *q)
{
    const sh_queue_view *v = sh_queue_view_of(q);
    uint64_t out = 0;
    uint32_t tables = sh_load_acquire(&v->table_count);
    for (uint32_t i = 0; i < tables; i++) {
        for (uint64_t n = 0; n < v->tables[i].count; n++) {
            out += sh_delivery_phase_of(sh_load_acquire(&v->tables[i].shm->entries[n].state)) != SH_DELIVERY_EMPTY;
        }
    }
    return out;
}

/* ---- leases ---- */

static bool lease_passed(const sh_delivery_shm *entry, uint64_t state, int64_t now)
{
    uint64_t until = sh_load_acquire(&entry->until);
    return sh_delivery_phase_of(state) == SH_DELIVERY_OUT && until != 0 && (int64_t)until <= now;
}

/* Returns when the next lease expires; INT64_MAX if there is none. Anywhere. */
static int64_t next_lease(const shoal_block *q)
{
    int64_t next = INT64_MAX;
    sh_delivery_shm *entry;
    for (uint64_t n = 0; (entry = entry_at(q, n)) != NULL; n++) {
        int64_t until = (int64_t)sh_load_acquire(&entry->until);
        if (sh_delivery_phase_of(sh_load_acquire(&entry->state)) == SH_DELIVERY_OUT && until != 0 && until < next) {
            next = until;
        }
    }
    return next;
}

bool sh_deliveries_ready(const shoal_block *q)
{
    sh_queue_shm *shm = sh_queue_shm_of(q);
    return sh_load_acquire(&shm->returned) != sh_load_acquire(&shm->looked) ||
           (sh_load_relaxed(&shm->lease) != 0 && next_lease(q) <= sh_now());
}

/* ---- claiming ---- */

static uint64_t claimed_by_us(uint64_t before)
{
    return sh_delivery_state(before + SH_DELIVERY_SERIAL, SH_DELIVERY_CLAIMED, sh_peers_now->self());
}

/* Inside: claims an empty entry. */
static shoal_err claim_empty(sh_ctx *c, const shoal_block *q, sh_delivery *out)
{
    sh_queue_view *v = sh_queue_view_of(q);
    for (;;) {
        uint64_t first = v->last_entry, n = first; /* the entry that was used last is most likely empty */
        sh_delivery_shm *entry;
        do {
            entry = entry_at(q, n);
            uint64_t state = entry != NULL ? sh_load_acquire(&entry->state) : 0;
            uint64_t ours = claimed_by_us(state);
            if (entry != NULL && sh_delivery_phase_of(state) == SH_DELIVERY_EMPTY &&
                sh_cas_acq_rel(&entry->state, &state, ours)) {
                SH_DEATH("delivery.claimed"); /* death: claimed, without a message: recovery empties the entry */
                v->last_entry = n;
                sh_store_relaxed(&entry->deliveries, 0);
                *out = (sh_delivery){.entry = entry, .number = n, .state = ours};
                return SHOAL_OK;
            }
            n = entry != NULL ? n + 1 : 0;
        } while (n != first);
        shoal_err err = grow(c, q);
        if (err != SHOAL_OK) {
            return err;
        }
    }
}

/* Inside: claims a message that came back or whose lease has expired. */
static bool claim_returned(const shoal_block *q, sh_delivery *out)
{
    sh_queue_shm *shm = sh_queue_shm_of(q);
    uint64_t returned =
        sh_load_acquire(&shm->returned); /* before looking: what comes back meanwhile is counted later */
    int64_t now = sh_load_relaxed(&shm->lease) != 0 ? sh_now() : 0;
    sh_delivery_shm *entry;
    for (uint64_t n = 0; (entry = entry_at(q, n)) != NULL; n++) {
        uint64_t state = sh_load_acquire(&entry->state), ours = claimed_by_us(state);
        bool free = sh_delivery_phase_of(state) == SH_DELIVERY_RETURNED || lease_passed(entry, state, now);
        if (free && sh_cas_acq_rel(&entry->state, &state, ours)) {
            SH_DEATH("delivery.taken_over"); /* death: claimed, with its message: recovery returns the message */
            *out = (sh_delivery){.entry = entry, .number = n, .state = ours};
            return true;
        }
    }
    /* Errs on the safe side: if another process stores an older value here late, the next get looks once more. */
    sh_store_release(&shm->looked, returned);
    return false;
}

/* Inside: changes this process's entry to the phase. While an entry is CLAIMED or FINISHING only its owner changes its
 * state. */
static void leave_entry(sh_delivery *d, sh_delivery_phase phase)
{
    d->state = sh_delivery_state(d->state, phase, phase == SH_DELIVERY_OUT ? sh_peers_now->self() : 0);
    sh_store_release(&d->entry->state, d->state);
    sh_fence_seq_cst(); /* before checking a gate */
}

/* Wakes those who wait for the last entry to become empty. */
static void tell_empty(sh_queue_shm *shm)
{
    sh_gate_wake(&shm->all_done, INT_MAX);
    if ((sh_load_acquire(&shm->flags) & SH_QUEUE_CLOSED) != 0) {
        sh_gate_wake(&shm->not_empty, INT_MAX); /* receivers that wait to see whether a message comes back */
    }
}

/* Inside: drops the message of a CLAIMED or FINISHING entry of this process. */
static void drop_message(sh_ctx *c, const shoal_block *q, sh_delivery *d)
{
    if (sh_load_relaxed(&d->entry->reference) != 0) {
        sh_heap_release(c, sh_offset_of(&d->entry->reference));
    }
    SH_DEATH("delivery.released"); /* death: no message any more: recovery empties the entry */
    leave_entry(d, SH_DELIVERY_EMPTY);
    tell_empty(sh_queue_shm_of(q));
}

/* Inside: returns the message to the queue, for the next receiver. */
static void return_message(const shoal_block *q, sh_delivery *d)
{
    leave_entry(d, SH_DELIVERY_RETURNED);
    SH_DEATH(
        "delivery.given_back"); /* death: nobody is woken; recovery reports to the queue that a holder of it died */
    sh_deliveries_tell(sh_queue_shm_of(q));
}

/* ---- the limit of deliveries ---- */

static sh_entry_kind kind_of(sh_ref ref)
{
    sh_found f;
    return sh_heap_find(sh_ref_id(ref), &f) && f.kind == SH_KIND_MESSAGE ? SH_ENTRY_MESSAGE : SH_ENTRY_BLOCK;
}

/* Inside: moves the message to the queue for rejects. Returns false if there is none, or it has no room. */
static bool move_to_rejects(sh_ctx *c, shoal_block *q, sh_delivery *d)
{
    sh_ref rejects = sh_load_acquire(&sh_queue_shm_of(q)->rejects);
    sh_ref ref = sh_load_relaxed(&d->entry->reference);
    sh_transfer transfer = {.word = ref, .cell = sh_offset_of(&d->entry->reference)};
    bool full = false;
    if (rejects == 0 || (q->parts[0] == NULL && sh_block_open(c, sh_ref_id(rejects), &q->parts[0]) != SHOAL_OK) ||
        sh_queue_prepare(q->parts[0], "rejects") != SHOAL_OK ||
        sh_queue_put_once(c, q->parts[0], kind_of(ref), &transfer, &full) != SHOAL_OK || full) {
        return false;
    }
    SH_DEATH(
        "delivery.rejected"); /* death: the other queue has it, the entry does not: recovery empties it and wakes */
    sh_gate_wake(&sh_queue_shm_of(q->parts[0])->not_empty, 1);
    return true;
}

static void reject(sh_ctx *c, shoal_block *q, sh_delivery *d)
{
    if (!move_to_rejects(c, q, d)) {
        sh_add_relaxed(&sh_queue_shm_of(q)->dropped, 1);
    }
    drop_message(c, q, d);
}

/* ---- getting ---- */

typedef enum outcome { GOT, NOTHING, FAILED } outcome;

/* Inside: gives up a claim for which there was no message. Those who looked meanwhile counted it as a message. */
static void unclaim(const shoal_block *q, sh_delivery *d)
{
    leave_entry(d, SH_DELIVERY_EMPTY);
    tell_empty(sh_queue_shm_of(q));
}

/* Inside: moves the oldest message of the ring into an entry, which this process claims once it has seen a message. */
static outcome take_new(sh_ctx *c, shoal_block *q, sh_delivery *d, shoal_err *out_err)
{
    bool claimed = false;
    for (;;) {
        const sh_ring *ring;
        sh_peek peek;
        bool closed = sh_queue_is_closed(q); /* before looking at the ring, as in try_get */
        sh_ring_result r = sh_queue_peek(q, &ring, &peek);
        if (r == SH_RING_EMPTY && closed) {
            sh_ring_seal(ring);
        } else if (r != SH_RING_DONE) {
            *out_err = r == SH_RING_BROKEN ? shoal_last_error() : SHOAL_OK;
            if (claimed) {
                unclaim(q, d);
            }
            return r == SH_RING_BROKEN ? FAILED : NOTHING;
        } else if (!claimed) {
            *out_err = claim_empty(c, q, d);
            if (*out_err != SHOAL_OK) {
                return FAILED;
            }
            claimed = true;
        } else {
            bool reference = peek.kind == SH_ENTRY_BLOCK || peek.kind == SH_ENTRY_MESSAGE; /* otherwise it is forged */
            uint64_t cell = reference ? sh_offset_of(&d->entry->reference) : 0;
            if (sh_ring_take(c, ring, &peek, cell, peek.word, q->id) == SH_RING_DONE) {
                break;
            }
        }
    }
    SH_DEATH("delivery.taken"); /* death: claimed, with its message: recovery returns the message */
    if (sh_load_relaxed(&sh_queue_shm_of(q)->bound) != 0) {
        sh_gate_wake(&sh_queue_shm_of(q)->not_full, 1);
    }
    return GOT;
}

/* Inside: claims a message, returned or new, and counts this delivery. */
static outcome claim_message(sh_ctx *c, shoal_block *q, bool look, sh_delivery *d, shoal_err *out_err)
{
    sh_queue_shm *shm = sh_queue_shm_of(q);
    uint64_t most = sh_load_relaxed(&shm->most);
    while (look || sh_deliveries_ready(q)) {
        if (!claim_returned(q, d)) {
            break;
        }
        uint64_t deliveries = sh_load_relaxed(&d->entry->deliveries) + 1;
        sh_store_relaxed(&d->entry->deliveries, deliveries);
        if (most == 0 || deliveries <= most) {
            return GOT;
        }
        reject(c, q, d);
    }
    outcome o = take_new(c, q, d, out_err);
    if (o == GOT) {
        sh_store_relaxed(&d->entry->deliveries, 1);
    }
    if (o == FAILED && *out_err == SHOAL_ECLOSED && sh_deliveries_out(q) != 0) {
        return NOTHING; /* a message that is out may come back */
    }
    return o;
}

/* Inside: marks the message in the entry as OUT and opens it for reading. The handle draws a separate weight, so the
 * message stays while this process reads it, whatever happens to the entry. */
static shoal_err send_out(sh_ctx *c, const shoal_block *q, sh_delivery *d, shoal_block **out_block)
{
    int64_t lease = (int64_t)sh_load_relaxed(&sh_queue_shm_of(q)->lease);
    sh_ref ref = sh_load_acquire(&d->entry->reference);
    shoal_block *b = NULL;
    sh_store_release(&d->entry->until, lease > 0 ? (uint64_t)sh_deadline(lease) : 0);
    d->deliveries = (uint32_t)sh_load_relaxed(&d->entry->deliveries);
    shoal_err err =
        sh_ref_weight(ref) == 0 ? damaged(q) : sh_block_open(c, sh_ref_id(ref), &b); /* CLAIMED: it cannot go away */
    if (err != SHOAL_OK) {
        if (err == SHOAL_ENOMEM || err == SHOAL_ELIMIT) {
            sh_store_relaxed(&d->entry->deliveries, d->deliveries - 1u); /* nobody has seen it */
            return_message(q, d);
        } else {
            drop_message(c, q, d); /* it names nothing: it must not block the queue */
        }
        return err;
    }
    leave_entry(d, SH_DELIVERY_OUT);
    SH_DEATH("delivery.out"); /* death: recovery returns it; the next receiver sees that it was delivered before */
    *out_block = b;
    return SHOAL_OK;
}

static shoal_err require(shoal_block *q, const char *what)
{
    shoal_err err = sh_queue_prepare(q, what);
    if (err == SHOAL_OK && (sh_load_acquire(&sh_queue_shm_of(q)->flags) & SH_QUEUE_ACKNOWLEDGED) == 0) {
        err = sh_fail(SHOAL_EINVAL, "%s: the queue was not created with .acknowledge", what);
    }
    return err == SHOAL_OK ? sh_deliveries_open(q) : err;
}

/* Returns how long to wait at most for now: an expiring lease wakes nobody. */
int64_t sh_deliveries_until_lease(const shoal_block *q, int64_t deadline)
{
    int64_t now = sh_now(), lease = (int64_t)sh_load_relaxed(&sh_queue_shm_of(q)->lease);
    int64_t left = deadline == SH_NO_DEADLINE ? SHOAL_FOREVER : deadline > now ? deadline - now : 0;
    if (lease > 0) {
        int64_t next = next_lease(q); /* a lease that is given during the wait expires after `lease` */
        next = next == INT64_MAX || next - now > lease ? lease : next > now ? next - now : 0;
        left = next < left ? next : left;
    }
    return left;
}

/* Waits until a get may find a message. Returns false if the time ran out. */
static bool wait_for_message(shoal_block *q, int64_t timeout, int64_t deadline)
{
    sh_wait wait;
    if (timeout <= SHOAL_NOW) {
        return false;
    }
    sh_wait_init(&wait, sh_deliveries_until_lease(q, deadline), SH_SLICE_LONG, &sh_queue_shm_of(q)->not_empty);
    (void)sh_queue_wait(q, &wait, sh_queue_is_ready, &sh_queue_shm_of(q)->not_empty);
    if (sh_interrupt_mine.hit) { /* a signal ends the wait */
        return sh_queue_is_ready(q);
    }
    return deadline == SH_NO_DEADLINE || sh_now() < deadline || sh_queue_is_ready(q);
}

/* Decodes a message or block without changing it: other processes may read it at the same time. */
static shoal_err read_message(shoal_block *b, shoal_value **out_value)
{
    if (b->kind != SH_KIND_MESSAGE) {
        *out_value = sh_value_object(b);
        return *out_value != NULL ? SHOAL_OK : shoal_last_error();
    }
    shoal_block **objects = NULL;
    size_t count = 0;
    sh_ctx *c = sh_enter_held();
    shoal_err err = c == NULL ? shoal_last_error() : sh_message_objects(c, b, false, &objects, &count);
    if (c != NULL) {
        sh_leave();
    }
    if (err == SHOAL_OK) {
        err = sh_message_decode(b, objects, count, out_value);
        for (size_t i = 0; i < count; i++) {
            sh_block_release(objects[i]);
        }
        free(objects);
    }
    return err;
}

/* After OUT: ends this process's delivery, if it still owns it. */
static shoal_err end_delivery(shoal_block *q, sh_delivery *d, bool done)
{
    sh_ctx *c = sh_enter_held();
    if (c == NULL) {
        return shoal_last_error();
    }
    uint64_t state = d->state;
    uint64_t after = sh_delivery_state(state, done ? SH_DELIVERY_FINISHING : SH_DELIVERY_RETURNED,
                                       done ? sh_delivery_owner_of(state) : 0);
    shoal_err err = SHOAL_OK;
    if (sh_delivery_owner_of(state) != sh_peers_now->self() || !sh_cas_seq_cst(&d->entry->state, &state, after)) {
        err = sh_fail(SHOAL_ESTATE, NOT_OURS);
    } else if (done) {
        SH_DEATH("delivery.done"); /* death: FINISHING: recovery releases the message; nobody gets it again */
        d->state = after;
        drop_message(c, q, d);
    } else {
        SH_DEATH("delivery.given_back"); /* death: as in return_message */
        sh_deliveries_tell(sh_queue_shm_of(q));
    }
    sh_leave();
    return err;
}

/* Waits for a message and marks it OUT. */
static shoal_err get_message(shoal_block *q, int64_t timeout, sh_delivery *d, shoal_block **out_block)
{
    int64_t deadline = sh_deadline(timeout);
    bool look = false; /* search the whole table, whatever the counts say: the wait may have ended with a slice */
    for (;;) {
        outcome o = FAILED;
        sh_ctx *c = sh_enter_held();
        if (c == NULL) {
            return shoal_last_error();
        }
        shoal_err err = require(q, "get_delivery");
        if (err == SHOAL_OK) {
            o = claim_message(c, q, look, d, &err);
        }
        if (o == GOT) {
            err = send_out(c, q, d, out_block);
        }
        sh_leave();
        if (o != NOTHING) {
            return err;
        }
        if (!wait_for_message(q, timeout, deadline)) {
            return sh_fail_waiting(timeout, "the queue stayed empty");
        }
        look = true;
    }
}

shoal_err shoal_queue_get_delivery(shoal_queue *queue, int64_t timeout, shoal_value **out_value,
                                   shoal_delivery *out_delivery)
{
    SH_NEED(queue);
    SH_NEED(out_value);
    SH_NEED(out_delivery);
    shoal_block *q = (shoal_block *)queue, *b = NULL;
    sh_delivery d = {.entry = NULL};
    if (out_value == NULL || out_delivery == NULL) {
        return sh_fail(SHOAL_EINVAL, "shoal_queue_get_delivery: an output is NULL");
    }
    shoal_err err = get_message(q, timeout, &d, &b);
    if (sh_queue_is_acknowledged(q) && sh_queue_is_prepared(q)) {
        sh_watch_got(sh_queue_view_of(q));
    }
    if (err != SHOAL_OK) {
        return err;
    }
    err = read_message(b, out_value);
    sh_block_release(b);
    if (err != SHOAL_OK) { /* without memory the queue keeps it; a message that cannot be read is dropped */
        char text[200];
        snprintf(text, sizeof text, "%s", shoal_last_error_text());
        (void)end_delivery(q, &d, err != SHOAL_ENOMEM);
        return sh_fail(err, "%s", text);
    }
    *out_delivery = (shoal_delivery){
        .queue = shoal_queue_retain(queue), .number = d.number, .state = d.state, .deliveries = d.deliveries};
    return SHOAL_OK;
}

/* ---- afterwards ---- */

static shoal_err find_delivery(const shoal_delivery *delivery, const char *what, sh_delivery *out)
{
    if (delivery == NULL) {
        return sh_fail(SHOAL_EINVAL, "%s: the delivery is NULL", what);
    }
    if (delivery->queue == NULL) {
        return sh_fail(SHOAL_ESTATE, "%s: the delivery has already ended", what);
    }
    shoal_block *q = (shoal_block *)delivery->queue;
    sh_ctx *c = sh_enter_held();
    shoal_err err = c == NULL ? shoal_last_error() : require(q, what);
    if (c != NULL) {
        sh_leave();
    }
    if (err == SHOAL_OK) {
        *out =
            (sh_delivery){.entry = entry_at(q, delivery->number), .number = delivery->number, .state = delivery->state};
        err = out->entry != NULL ? SHOAL_OK : sh_fail(SHOAL_EINVAL, "%s: this is not a delivery", what);
    }
    return err;
}

static shoal_err end_public(shoal_delivery *delivery, const char *what, bool done)
{
    sh_delivery d = {.entry = NULL};
    shoal_err err = find_delivery(delivery, what, &d);
    if (err == SHOAL_OK) {
        err = end_delivery((shoal_block *)delivery->queue, &d, done);
    }
    if (err == SHOAL_OK || (err == SHOAL_ESTATE && delivery->queue != NULL)) {
        shoal_queue_release(delivery->queue);
        delivery->queue = NULL;
    }
    return err;
}

shoal_err shoal_delivery_done(shoal_delivery *delivery)
{
    SH_NEED(delivery);
    return end_public(delivery, "shoal_delivery_done", true);
}

shoal_err shoal_delivery_return(shoal_delivery *delivery)
{
    SH_NEED(delivery);
    return end_public(delivery, "shoal_delivery_return", false);
}

shoal_err shoal_delivery_extend(shoal_delivery *delivery, int64_t time)
{
    SH_NEED(delivery);
    sh_delivery d = {.entry = NULL};
    shoal_err err = find_delivery(delivery, "shoal_delivery_extend", &d);
    if (err != SHOAL_OK) {
        return err;
    }
    if (time < 0) {
        return sh_fail(SHOAL_EINVAL, "shoal_delivery_extend: the time is negative");
    }
    uint64_t state = d.state, ours = claimed_by_us(state);
    if (sh_delivery_owner_of(state) != sh_peers_now->self() || !sh_cas_seq_cst(&d.entry->state, &state, ours)) {
        return sh_fail(SHOAL_ESTATE, NOT_OURS);
    }
    SH_DEATH("delivery.extending"); /* death: claimed, with its message: recovery returns the message */
    d.state = ours;                 /* CLAIMED: nobody takes it over while its deadline changes */
    if (sh_load_relaxed(&d.entry->until) != 0) {
        sh_store_release(&d.entry->until, (uint64_t)sh_deadline(time));
    }
    leave_entry(&d, SH_DELIVERY_OUT);
    delivery->state = d.state;
    return SHOAL_OK;
}

uint64_t shoal_queue_dropped(shoal_queue *queue)
{
    const shoal_block *q = (const shoal_block *)queue;
    bool known = q != NULL && q->kind == SH_KIND_QUEUE && q->size >= sizeof(sh_queue_shm);
    return known ? sh_load_relaxed(&sh_queue_shm_of(q)->dropped) : 0;
}
