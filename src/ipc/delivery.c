/* Acknowledged queues: a message that was received belongs to the queue until its receiver reports that it is done.
 *
 * shm/deliveries.h has the table of messages that are out, with the states of an entry and the bounds above them. A get
 * claims an entry, moves the oldest message from the ring into it with the CAS on the ring's entry, and reads it
 * through a separate weight. A message comes back if its receiver died, exited, returned it, or let its lease expire. A
 * get finds it in the table and takes it before those in the ring.
 *
 * A stopped receiver costs the others the message that it has, and nothing else. With a lease it loses even that
 * message, unless it is stopped in the few instructions between its claim and OUT.
 *
 * What a get costs, with n entries in the tables: one load if nothing is due; a walk along one path of bounds, of which
 * there are log64 n, if a message has come back; and the same once more when the end of a lease that is over passes.
 * An empty entry is found by a bounded number of looks: tables that are so full that these fail grow. */
#include "ipc/delivery.h"

#include "base/error.h"

#include "base/clock.h"
#include "base/death.h"
#include "ipc/message_write.h"
#include "ipc/queue.h"
#include "ipc/receipt.h"
#include "ipc/value.h"
#include "ipc/watch.h"

#include <limits.h>
#include <stdlib.h>

#define RETRY SHOAL_MS(10) /* between attempts to move messages to a queue for rejects that has no room */

#define NOT_OURS                                                                                                       \
    "this delivery is over: another receiver got its message after the lease, or it belongs to another process"

/* ---- the limit of deliveries ---- */

static sh_entry_kind kind_of(sh_ref ref)
{
    sh_found f;
    return sh_heap_find(sh_ref_id(ref), &f) && f.kind == SH_KIND_MESSAGE ? SH_ENTRY_MESSAGE : SH_ENTRY_BLOCK;
}

/* Inside: moves the message to the queue for rejects. Errors: SHOAL_ENOMEM and SHOAL_ELIMIT if it has no room for now;
 * others if it never takes a message again. */
static shoal_err move_to_rejects(sh_ctx *c, shoal_block *q, const sh_delivery *d)
{
    sh_ref rejects = sh_load_acquire(&sh_queue_shm_of(q)->rejects);
    sh_ref ref = sh_load_relaxed(&d->entry->reference);
    sh_transfer transfer = {.word = ref, .cell = sh_offset_of(&d->entry->reference)};
    bool full = false;
    shoal_err err = SHOAL_OK;
    if (rejects == 0) {
        return SHOAL_ENOENT;
    }
    if (q->parts[0] == NULL) {
        err = sh_block_open(c, sh_ref_id(rejects), &q->parts[0]);
    }
    if (err == SHOAL_OK) {
        err = sh_queue_prepare(q->parts[0], "rejects");
    }
    if (err == SHOAL_OK) {
        err = sh_queue_put_once(c, q->parts[0], kind_of(ref), &transfer, &full);
    }
    if (err != SHOAL_OK || full) {
        return full ? SHOAL_ELIMIT : err;
    }
    SH_DEATH(
        "delivery.rejected"); /* death: the other queue has it, the entry does not: recovery empties it and wakes */
    sh_gate_wake(&sh_queue_shm_of(q->parts[0])->not_empty, 1);
    return SHOAL_OK;
}

/* Inside: keeps a message that the queue for rejects has no room for. */
static void refuse(const shoal_block *q, sh_delivery *d)
{
    int64_t at = sh_now() + RETRY;
    sh_store_release(&sh_queue_shm_of(q)->retry_at, (uint64_t)at);
    sh_delivery_leave(d, SH_DELIVERY_REFUSED);
    SH_DEATH("delivery.refused"); /* death: recovery lowers the bounds */
    sh_deliveries_lower(sh_queue_shm_of(q), d->table, d->place, at);
}

/* Inside: a message has been delivered often enough. */
static void reject(sh_ctx *c, shoal_block *q, sh_delivery *d)
{
    shoal_err err = move_to_rejects(c, q, d);
    if (err == SHOAL_ENOMEM || err == SHOAL_ELIMIT) {
        refuse(q, d);
        return;
    }
    if (err != SHOAL_OK) {
        sh_add_relaxed(&sh_queue_shm_of(q)->dropped, 1);
    }
    sh_delivery_drop(c, q, d);
}

/* ---- getting ---- */

typedef enum outcome { GOT, NOTHING, FAILED } outcome;

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
                sh_delivery_empty(q, d);
            }
            return r == SH_RING_BROKEN ? FAILED : NOTHING;
        } else if (!claimed) {
            *out_err = sh_delivery_claim_empty(c, q, d);
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

/* Inside: counts this delivery of a CLAIMED message. Returns false if it has been delivered often enough. */
static bool count_delivery(const shoal_block *q, const sh_delivery *d)
{
    uint64_t most = sh_load_relaxed(&sh_queue_shm_of(q)->most), deliveries = sh_load_relaxed(&d->entry->deliveries);
    if (most != 0 && deliveries >= most) {
        return false;
    }
    sh_store_relaxed(&d->entry->deliveries, deliveries + 1);
    return true;
}

/* Inside: claims a message, returned or new, and counts this delivery. */
static outcome claim_message(sh_ctx *c, shoal_block *q, bool all, sh_delivery *d, shoal_err *out_err)
{
    for (;;) {
        bool claimed;
        *out_err = sh_delivery_claim_due(q, all, d, &claimed);
        if (!claimed) {
            break;
        }
        if (count_delivery(q, d)) {
            return GOT;
        }
        reject(c, q, d);
    }
    outcome o = *out_err == SHOAL_OK ? take_new(c, q, d, out_err) : FAILED;
    if (o == GOT) {
        sh_store_relaxed(&d->entry->deliveries, 1);
    }
    if (o == FAILED && *out_err == SHOAL_ECLOSED) {
        *out_err = sh_deliveries_open(q);
        o = *out_err != SHOAL_OK ? FAILED : NOTHING; /* a message that is out may come back */
        if (o == NOTHING && sh_deliveries_out(q, 1) == 0) {
            o = FAILED;
            *out_err = sh_fail(SHOAL_ECLOSED, "the queue is closed");
        }
    }
    return o;
}

/* Inside: marks a CLAIMED message as OUT, until that time. */
static void go_out(const shoal_block *q, sh_delivery *d, int64_t until)
{
    sh_queue_shm *shm = sh_queue_shm_of(q);
    until = until < SH_DUE_FAR ? until : SH_DUE_FAR;
    sh_store_seq_cst(&d->entry->until, (uint64_t)until);
    if (until < SH_DUE_FAR) {
        sh_deliveries_lower(shm, d->table, d->place, until);
    }
    sh_delivery_leave(d, SH_DELIVERY_OUT);
    SH_DEATH("delivery.out"); /* death: recovery returns it; the next receiver sees that it was delivered before */
    if (until < SH_DUE_FAR) {
        sh_deliveries_lower(shm, d->table, d->place, until);
    }
}

/* Inside: marks the message in the entry as OUT and opens it for reading. The handle draws a separate weight, so the
 * message stays while this process reads it, whatever happens to the entry. */
static shoal_err send_out(sh_ctx *c, const shoal_block *q, sh_delivery *d, shoal_block **out_block)
{
    int64_t lease = (int64_t)sh_load_relaxed(&sh_queue_shm_of(q)->lease);
    int64_t until = lease > 0 ? sh_deadline(lease) : SH_DUE_FAR;
    sh_ref ref = sh_load_acquire(&d->entry->reference);
    shoal_block *b = NULL;
    d->deliveries = (uint32_t)sh_load_relaxed(&d->entry->deliveries);
    shoal_err err = sh_ref_weight(ref) == 0 ? sh_deliveries_damaged(q)
                                            : sh_block_open(c, sh_ref_id(ref), &b); /* CLAIMED: it cannot go away */
    if (err == SHOAL_ECORRUPT) { /* it names nothing: it must not block the queue */
        sh_add_relaxed(&sh_queue_shm_of(q)->dropped, 1);
        sh_delivery_drop(c, q, d);
    } else if (err != SHOAL_OK) {
        sh_delivery_put_back(q, d);
    } else {
        go_out(q, d, until);
        *out_block = b;
    }
    return err;
}

static shoal_err require(shoal_block *q, const char *what)
{
    SH_TRY(sh_queue_prepare(q, what));
    if ((sh_load_acquire(&sh_queue_shm_of(q)->flags) & SH_QUEUE_ACKNOWLEDGED) == 0) {
        return sh_fail(SHOAL_EINVAL, "%s: the queue was not created with .acknowledge", what);
    }
    return sh_deliveries_open(q);
}

/* Waits until a get may find a message. Returns false if the time ran out. */
static bool wait_for_message(shoal_block *q, int64_t timeout, int64_t deadline)
{
    sh_wait wait;
    if (timeout <= SHOAL_NOW) {
        return false;
    }
    int64_t until = sh_deliveries_wait_until(q, deadline), now = sh_now();
    sh_wait_init(&wait,
                 until == SH_NO_DEADLINE ? SHOAL_FOREVER
                 : until > now           ? until - now
                                         : 0,
                 SH_SLICE_LONG, &sh_queue_shm_of(q)->not_empty);
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
    return sh_message_value(b, false, out_value);
}

/* Inside: swaps the state of an entry that is OUT, if this process still owns it. */
static shoal_err leave_out(sh_delivery *d, uint64_t after)
{
    uint64_t state = d->state;
    if (sh_delivery_owner_of(state) != sh_peers_now->self() || !sh_cas_seq_cst(&d->entry->state, &state, after)) {
        return sh_fail(SHOAL_ESTATE, NOT_OURS);
    }
    d->state = after;
    return SHOAL_OK;
}

/* Inside: ends this process's delivery: its message is done. */
static shoal_err finish(sh_ctx *c, const shoal_block *q, sh_delivery *d)
{
    SH_TRY(leave_out(d, sh_delivery_state(d->state, SH_DELIVERY_FINISHING, sh_delivery_owner_of(d->state))));
    SH_DEATH("delivery.done"); /* death: FINISHING: recovery releases the message; nobody gets it again */
    sh_delivery_drop(c, q, d);
    return SHOAL_OK;
}

/* Inside: ends this process's delivery: its message goes to the next receiver. */
static shoal_err give_back(const shoal_block *q, sh_delivery *d)
{
    SH_TRY(leave_out(d, sh_delivery_state(d->state, SH_DELIVERY_RETURNED, 0)));
    sh_delivery_tell(q, d);
    return SHOAL_OK;
}

/* After OUT: the message could not be read, so nobody has seen it. Drops it if nobody can read it, otherwise returns it
 * and does not count the delivery. Another receiver may have it by now. Keeps the error. */
static shoal_err take_back(const shoal_block *q, sh_delivery *d, shoal_err err)
{
    sh_error saved;
    sh_error_save(&saved, err);
    sh_ctx *c = sh_enter_held();
    if (c != NULL && err == SHOAL_ECORRUPT) {
        if (finish(c, q, d) == SHOAL_OK) {
            sh_add_relaxed(&sh_queue_shm_of(q)->dropped, 1);
        }
    } else if (c != NULL && leave_out(d, sh_delivery_claimed(d->state)) == SHOAL_OK) {
        sh_delivery_put_back(q, d);
    }
    if (c != NULL) {
        sh_leave();
    }
    return sh_error_restore(&saved);
}

/* Inside: claims a message. One that finds none ignores the bounds from time to time: deliveries.h. */
static outcome find_message(sh_ctx *c, shoal_block *q, sh_delivery *d, shoal_err *out_err)
{
    sh_queue_view *v = sh_queue_view_of(q);
    outcome o = claim_message(c, q, false, d, out_err);
    if (o == NOTHING && sh_passed(v->all_at)) {
        v->all_at = sh_deadline(SH_SLICE_LONG);
        o = claim_message(c, q, true, d, out_err);
    }
    return o;
}

/* Waits for a message and marks it OUT. */
static shoal_err get_message(shoal_block *q, int64_t timeout, sh_delivery *d, shoal_block **out_block)
{
    int64_t deadline = sh_deadline(timeout);
    for (;;) {
        outcome o = FAILED;
        sh_ctx *c = sh_enter_held();
        if (c == NULL) {
            return shoal_last_error();
        }
        shoal_err err = require(q, "get_delivery");
        if (err == SHOAL_OK) {
            o = find_message(c, q, d, &err);
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
    }
}

/* After OUT: reads the message and makes its receipt. */
static shoal_err receive(shoal_queue *queue, sh_delivery *d, shoal_block *b, shoal_value **out_value,
                         shoal_delivery *out_delivery)
{
    shoal_block *q = (shoal_block *)queue;
    shoal_value *value = NULL;
    sh_receipt_key key;
    sh_receipt receipt = {.queue = queue, .number = d->number, .state = d->state, .view = sh_queue_view_of(q)};
    shoal_err err = read_message(b, &value);
    if (err == SHOAL_OK) {
        err = sh_receipt_add(&receipt, &key);
    }
    if (err != SHOAL_OK) {
        shoal_value_destroy(value);
        return err;
    }
    *out_value = value;
    *out_delivery = (shoal_delivery){
        .queue = shoal_queue_retain(queue), .number = key.place, .state = key.serial, .deliveries = d->deliveries};
    return SHOAL_OK;
}

shoal_err shoal_queue_get_delivery(shoal_queue *queue, int64_t timeout, shoal_value **out_value,
                                   shoal_delivery *out_delivery)
{
    SH_NEED(queue);
    SH_NEED(out_value);
    SH_NEED(out_delivery);
    shoal_block *q = (shoal_block *)queue, *b = NULL;
    sh_delivery d = {.entry = NULL};
    shoal_err err = get_message(q, timeout, &d, &b);
    if (sh_queue_is_acknowledged(q) && sh_queue_is_prepared(q)) {
        sh_watch_got(sh_queue_view_of(q));
    }
    if (err != SHOAL_OK) {
        return err;
    }
    err = receive(queue, &d, b, out_value, out_delivery);
    if (err != SHOAL_OK) {
        err = take_back(q, &d, err);
    }
    sh_block_release(b);
    return err;
}

/* ---- afterwards ---- */

static sh_receipt_key key_of(const shoal_delivery *d)
{
    return (sh_receipt_key){.place = d->number, .serial = d->state};
}

typedef enum action { DONE, RETURN, EXTEND } action;

/* Inside: moves the end of the lease. */
static shoal_err extend(const shoal_block *q, sh_delivery *d, int64_t time)
{
    shoal_err err = leave_out(d, sh_delivery_claimed(d->state)); /* nobody takes it over while its lease changes */
    if (err != SHOAL_OK) {
        return err;
    }
    SH_DEATH("delivery.extending"); /* death: claimed, with its message: recovery returns the message */
    go_out(q, d, sh_load_relaxed(&sh_queue_shm_of(q)->lease) == 0 ? SH_DUE_FAR : sh_deadline(time));
    return SHOAL_OK;
}

/* Inside: acts on the delivery that the receipt describes. *out_state: of its entry. */
static shoal_err act_inside(sh_ctx *c, const sh_receipt *receipt, action what, const char *name, int64_t time,
                            uint64_t *out_state)
{
    shoal_block *q = (shoal_block *)receipt->queue;
    sh_delivery d = {.entry = NULL};
    shoal_err err = require(q, name);
    if (err == SHOAL_OK && !sh_delivery_find(q, receipt->number, &d)) {
        err = sh_deliveries_damaged(q);
    }
    d.state = receipt->state;
    if (err == SHOAL_OK) {
        err = what == DONE ? finish(c, q, &d) : what == RETURN ? give_back(q, &d) : extend(q, &d, time);
    }
    *out_state = d.state;
    return err;
}

static shoal_err fail_ended(shoal_delivery *delivery, const char *name)
{
    delivery->queue = NULL;
    return sh_fail(SHOAL_ESTATE, "%s: the delivery has already ended", name);
}

/* Acts on a delivery. The receipt is read and changed inside, so threads that have copies of one delivery act one after
 * the other: one that extends the lease does not get in the way of one that is done. */
static shoal_err act(shoal_delivery *delivery, action what, const char *name, int64_t time)
{
    const sh_receipt_key key = key_of(delivery);
    sh_receipt receipt;
    uint64_t state = 0;
    if (delivery->queue == NULL || !sh_receipt_find(key, &receipt)) {
        return fail_ended(delivery, name);
    }
    sh_ctx *c = sh_enter_held();
    if (c != NULL && !sh_receipt_find(key, &receipt)) { /* another thread has just ended it */
        sh_leave();
        return fail_ended(delivery, name);
    }
    shoal_err err = c == NULL ? shoal_last_error() : act_inside(c, &receipt, what, name, time, &state);
    bool ended = what != EXTEND && (err == SHOAL_OK || err == SHOAL_ESTATE); /* otherwise the caller may try again */
    bool ours = ended && sh_receipt_drop(key);
    if (what == EXTEND && err == SHOAL_OK) {
        sh_receipt_set(key, state);
    }
    if (c != NULL) {
        sh_leave();
    }
    if (ours) {
        shoal_queue_release(receipt.queue);
    }
    delivery->queue = ended ? NULL : delivery->queue;
    return err;
}

shoal_err shoal_delivery_done(shoal_delivery *delivery)
{
    SH_NEED(delivery);
    return act(delivery, DONE, "shoal_delivery_done", 0);
}

shoal_err shoal_delivery_return(shoal_delivery *delivery)
{
    SH_NEED(delivery);
    return act(delivery, RETURN, "shoal_delivery_return", 0);
}

shoal_err shoal_delivery_extend(shoal_delivery *delivery, int64_t time)
{
    SH_NEED(delivery);
    if (time < 0) {
        return sh_fail(SHOAL_EINVAL, "shoal_delivery_extend: the time is negative");
    }
    return act(delivery, EXTEND, "shoal_delivery_extend", time);
}

uint64_t shoal_queue_dropped(shoal_queue *queue)
{
    const shoal_block *q = (const shoal_block *)queue;
    bool known = q != NULL && q->kind == SH_KIND_QUEUE && q->size >= sizeof(sh_queue_shm);
    return known ? sh_load_relaxed(&sh_queue_shm_of(q)->dropped) : 0;
}
