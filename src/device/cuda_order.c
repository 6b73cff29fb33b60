/* The order of work between the streams of processes. cuda_share.h describes it. */
#include "device/cuda_capture.h"

#include "base/clock.h"
#include "base/error.h"
#include "device/cuda_closings.h"
#include "device/cuda_share.h"
#include "device/cuda_waits.h"
#include "shm/block.h"
#include "shm/card_lock.h"
#include "sync/peers.h"

#include <time.h>

#define END_LIMIT                                                                                                      \
    SHOAL_SECONDS(2) /* how long an end waits for marks that others wait for, and a leave for a lost card */
#define SPINS 2000   /* looks without a pause: about 0.3 ms, as long as a short kernel */
#define POLL_NS 50000
#define SWEEP_EVERY 20   /* polls */
#define NUDGE_EVERY 4000 /* polls: 0.2 s */
#define NOTED 8

sh_a64 sh_cuda_enqueued;
sh_a32 sh_cuda_noted; /* how many waits are noted; changed under the lock */

/* A card that has nothing else to do makes a mark in less, also if processes take turns on it. */
int64_t sh_cuda_mark_limit = SHOAL_MS(5);

#define CLOSINGS_UNMARKED 16 /* a mark is a call of the driver, so some closings share one */

static struct {
    bool begun;     /* in this world */
    bool host_only; /* the driver cannot write and wait for the world's words: a put waits on the host */
    uint32_t timeline;
    sh_a64 *done;         /* of the timeline */
    void *pages;          /* registered with the driver */
    uint64_t to_card;     /* added to a host address of these pages */
    uint64_t covered;     /* sh_cuda_enqueued up to here lies before the last mark, or is done */
    uint64_t last;        /* the number of the last mark */
    sh_work noted[NOTED]; /* the last of each process that the stream must wait for before its next work */
} order;

static sh_a32 uncounted; /* 1: another library has the stream, and may enqueue work at any time */
static void (*before_end_of_others)(bool ends);

/* Checks whether everything that was enqueued lies before the last mark. */
static bool is_covered(void)
{
    return sh_load_relaxed(&sh_cuda_enqueued) == order.covered && sh_load_relaxed(&uncounted) == 0;
}

void sh_cuda_order_distrust(void)
{
    sh_store_relaxed(&uncounted, 1);
}

static bool is_done(uint64_t number)
{
    return number == 0 || sh_load_acquire(order.done) >= number; /* pairs with the card's write: the work is visible */
}

/* Checks whether the work before that mark is done. Looks at the card last: if it is lost, `done` was raised after that, and says
 * nothing about the work. */
static bool is_over(uint64_t number)
{
    return is_done(number) && sh_cuda_is_well();
}

/* ---- the world ---- */

/* Checks whether a card that is lost has stopped. After some errors it may work on: what it uses is not given back then. */
static bool has_stopped(void)
{
    const sh_cuda_card *card = sh_cuda_the_card();
    (void)sh_cu.cuCtxSetCurrent(card->context);
    int mode = sh_cuda_relax(), result = sh_cu.cuStreamQuery(card->stream);
    sh_cuda_restrict(mode);
    return result != SH_CU_NOT_READY;
}

/* A lost card that works on uses memory of others. Not for ever: this process leaves, and holds nothing in the world then. */
static void wait_for_stop(void)
{
    const struct timespec moment = {.tv_nsec = POLL_NS};
    int64_t deadline = sh_deadline(END_LIMIT);
    while (!sh_cuda_is_well() && !has_stopped() && !sh_passed(deadline)) {
        nanosleep(&moment, NULL);
    }
}

static void leave_world(void)
{
    sh_cleanup_begin();
    (void)sh_cuda_check(); /* the context becomes current in this thread */
    int mode = sh_cuda_relax();
    sh_cuda_watch_stop();
    sh_cuda_answer_leave();
    sh_cuda_order_drain();
    wait_for_stop();
    sh_cardlock_lock(SH_CARD_LOCK_ORDER);
    if (order.begun) {
        sh_cuda_closings_release(NULL);
        sh_cuda_waits_forget();
        sh_store_relaxed(&sh_cuda_noted, 0);
        if (!order.host_only) {
            sh_timeline_release(order.timeline);
            (void)sh_cu.cuMemHostUnregister(order.pages);
        }
        order.begun = order.host_only = false;
        order.last = 0;
    }
    sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
    sh_cuda_share_leave();
    sh_cuda_restrict(mode);
    sh_cleanup_end();
}

/* A process that ends waits for its marks: what is not done when it has ended is lost for those who wait for it. It may
 * be in a signal handler, so it takes no lock and does not call the driver. */
static void wait_for_marks(void)
{
    const struct timespec moment = {.tv_nsec = POLL_NS};
    int64_t deadline = sh_deadline(END_LIMIT);
    while (order.begun && !order.host_only && !is_done(order.last) && sh_cuda_is_well() && !sh_passed(deadline)) {
        nanosleep(&moment, NULL);
    }
}

static void before_end(bool ends)
{
    if (sh_cuda_is_ours()) {
        if (ends) {
            sh_cuda_answer_end();
            wait_for_marks();
            sh_cuda_watch_end(); /* until now it noticed the deaths of those for whom the marks wait */
        } else {
            leave_world();
        }
    }
    if (before_end_of_others) {
        before_end_of_others(ends);
    }
}

/* At the end of the process: checks whether the card may still use memory of other processes. Their makers use it again as
 * soon as this process has given it back; so it does not, and others do that for it when it is gone, and its context with
 * it. This very process may have been interrupted anywhere, also between a launch and its count, and streams of other
 * libraries may use the memory as well; so it is enough that some of it is mapped. Its own memory does not matter: nobody
 * uses that again. */
static bool is_at_rest(void)
{
    return !sh_cuda_is_ours() || !order.begun || !sh_cuda_imports_exist();
}

__attribute__((constructor)) static void install(void)
{
    before_end_of_others = sh_world_before_end;
    sh_world_before_end = before_end;
    sh_world_is_at_rest = is_at_rest;
}

/* Registers the words of all timelines. Returns false if the driver refuses. */
static bool register_words(void)
{
    size_t size;
    sh_cu_address at = 0;
    sh_timelines_range(&order.pages, &size);
    int result = sh_cu.cuMemHostRegister(order.pages, size, SH_CU_HOST_REGISTER_PORTABLE_MAPPED);
    if (result != SH_CU_OK && result != SH_CU_ALREADY_REGISTERED) {
        return false;
    }
    if (sh_cu.cuMemHostGetDevicePointer(&at, order.pages, 0) != SH_CU_OK) {
        (void)sh_cu.cuMemHostUnregister(order.pages);
        return false;
    }
    order.to_card = at - (uint64_t)(uintptr_t)order.pages;
    return true;
}

/* Under the lock: gets a timeline in this world. Without one, the order is kept by waiting on the host. */
static void begin(void)
{
    if (order.begun) {
        return;
    }
    sh_cleanup_begin();
    int mode = sh_cuda_relax();
    bool claimed = sh_timeline_claim(&order.timeline) == SHOAL_OK;
    order.host_only = !claimed || !register_words();
    if (claimed && order.host_only) {
        sh_timeline_release(order.timeline);
    }
    order.done = order.host_only ? NULL : sh_timeline_done_word(order.timeline);
    order.begun = true;
    order.last = 0;
    sh_cuda_restrict(mode);
    sh_cleanup_end();
}

void sh_cuda_order_begin(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_ORDER);
    begin();
    sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
}

/* ---- marks ---- */

/* Waits on the host until the stream has done all. The driver knows nothing of processes: only for calls that cannot wait in
 * another way. */
static int synchronize(void)
{
    int mode = sh_cuda_relax(), result = sh_cu.cuStreamSynchronize(sh_cuda_the_card()->stream);
    sh_cuda_restrict(mode);
    return result;
}

/* Under the lock: after this, everything that was enqueued lies before order.last, or is done, and every closing has a mark.
 * One may have none although all is done: it came while another thread waited for the card. */
static shoal_err cover(void)
{
    if (is_covered() && sh_cuda_closings_unmarked() == 0) {
        return SHOAL_OK;
    }
    uint64_t seen = sh_load_relaxed(&sh_cuda_enqueued);
    sh_cu_stream stream = sh_cuda_the_card()->stream;
    shoal_err err;
    if (order.host_only) {
        err = sh_cuda_result("cannot wait for the GPU", synchronize());
    } else {
        uint64_t number = sh_timeline_issue(order.timeline);
        sh_cu_address word = (uint64_t)(uintptr_t)order.done + order.to_card;
        err = sh_cuda_result("cannot mark the end of work on the GPU",
                             sh_cu.cuStreamWriteValue64(stream, word, number, SH_CU_WRITE_VALUE_DEFAULT));
        if (err == SHOAL_OK) {
            order.last = number;
            sh_cuda_closings_mark(order.last);
        }
    }
    order.covered = err == SHOAL_OK ? seen : order.covered;
    return err;
}

/* Covers this process's work, and returns what a receiver must wait for; 0 if nothing. *out_timeline: of this process; 0 if it
 * has none. */
static shoal_err own_work(sh_work *out_work, uint32_t *out_timeline)
{
    sh_cardlock_lock(SH_CARD_LOCK_ORDER);
    begin();
    shoal_err err = cover();
    *out_timeline = order.host_only ? 0 : order.timeline;
    sh_work last = sh_work_make(order.timeline, order.last);
    bool done =
        order.host_only || order.last == 0 || sh_work_look(last) == SH_WORK_DONE; /* lost if it came after lost work */
    *out_work = done ? 0 : last;
    sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
    /* Last: if the card is lost meanwhile, another thread raises `done`, and nothing is done. */
    return err == SHOAL_OK ? sh_cuda_lost() : err;
}

static bool is_awaited(sh_work work);

/* Checks whether the work was lost and this was not reported yet in this process: its stream waits for it, and no host
 * wait came since. */
static bool is_lost_untold(sh_work work)
{
    if (work == 0 || sh_work_look(work) != SH_WORK_LOST) {
        return false;
    }
    sh_cardlock_lock(SH_CARD_LOCK_ORDER);
    bool untold = is_awaited(work);
    sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
    return untold;
}

/* The same. If what this process has done comes after lost work, the program is told: then it may do it again. */
static shoal_err good_work(sh_work *out_work, uint32_t *out_timeline)
{
    shoal_err err = own_work(out_work, out_timeline);
    if (err == SHOAL_OK && *out_work != 0 && sh_work_look(*out_work) == SH_WORK_LOST) {
        err = sh_cuda_order_wait();
        err = err == SHOAL_OK ? own_work(out_work, out_timeline) : err; /* another thread was told */
    }
    return err;
}

shoal_err sh_cuda_mark(sh_a64 *work)
{
    uint32_t timeline;
    sh_work mine, before = sh_load_acquire(work);
    shoal_err err = sh_cuda_check();
    if (err == SHOAL_OK) {
        err = sh_cuda_capture_refuse("sending a tensor to another process");
    }
    if (err == SHOAL_OK) {
        err = good_work(&mine, &timeline);
    }
    for (sh_work awaited = 0; err == SHOAL_OK && before != mine;) {
        bool foreign = sh_work_timeline(before) != timeline;
        if (before != awaited && foreign && sh_work_look(before) == SH_WORK_PENDING) {
            if (mine == 0) {
                return SHOAL_OK; /* this process has nothing to add */
            }
            awaited = before;
            err = sh_cuda_await(before); /* so what is marked next comes after it */
            err = err == SHOAL_OK ? sh_cuda_follow() : err;
            err = err == SHOAL_OK ? own_work(&mine, &timeline) : err;
        } else if (foreign && is_lost_untold(before)) {
            return SHOAL_OK;                              /* the word stays, so that the next receiver sees the loss */
        } else if (sh_cas_acq_rel(work, &before, mine)) { /* pairs with the receiver's acquire of the work */
            return SHOAL_OK;
        }
    }
    return err;
}

/* ---- waits ---- */

static shoal_err lost_work(void)
{
    return sh_fail(SHOAL_EOWNERDEAD,
                   "the process that computed a tensor on the GPU lost its GPU or died before that work was done: the "
                   "tensor's elements are undefined");
}

/* Between two looks at something that another process will change. */
static void pause_and_sweep(unsigned *polls)
{
    if (++*polls <= SPINS) {
        sh_pause();
        return;
    }
    const struct timespec moment = {.tv_nsec = POLL_NS};
    nanosleep(&moment, NULL);
    if (*polls % SWEEP_EVERY == 0) {
        (void)sh_peers_now->sweep(SH_SWEEP_AGE);
    }
    if (*polls % NUDGE_EVERY == 0) {
        sh_granules_nudge();
    }
}

static shoal_err await_on_host(sh_work work)
{
    unsigned polls = 0;
    sh_work_state state;
    while ((state = sh_work_look(work)) == SH_WORK_PENDING) {
        pause_and_sweep(&polls);
    }
    return state == SH_WORK_LOST ? lost_work() : SHOAL_OK;
}

/* Under the lock: checks whether the stream waits for this work already, or will. */
static bool is_awaited(sh_work work)
{
    return sh_cuda_waits_have(work) || sh_cuda_is_among(order.noted, sh_load_relaxed(&sh_cuda_noted), work);
}

static shoal_err await_on_card(sh_work work)
{
    if (!sh_cuda_waits_add(work)) {
        return sh_fail(SHOAL_ENOMEM, "no memory to wait for another process's work");
    }
    if (!sh_timeline_depend(order.timeline, work)) { /* the stream waits for many processes: now they come first */
        shoal_err err = sh_cuda_result("cannot wait for the GPU", synchronize());
        if (err != SHOAL_OK) {
            return err;
        }
        (void)sh_timeline_depend(order.timeline, work);
    }
    /* The next host wait, or put, says so. If it was lost only now, the stream waits all the same: it is let go when this
     * timeline is spoiled. */
    if (sh_work_look(work) == SH_WORK_LOST && sh_timeline_is_spoiled(order.timeline)) {
        return SHOAL_OK;
    }
    sh_cu_address word = (uint64_t)(uintptr_t)sh_timeline_done_word(sh_work_timeline(work)) + order.to_card;
    int result =
        sh_cu.cuStreamWaitValue64(sh_cuda_the_card()->stream, word, sh_work_number(work), SH_CU_WAIT_VALUE_GEQ);
    sh_cuda_touch();
    return sh_cuda_result("cannot wait for another process's work", result);
}

/* Under the lock: the stream waits for all that is noted. What cannot be waited for stays noted. */
static shoal_err follow(void)
{
    shoal_err err = SHOAL_OK;
    uint32_t count = sh_load_relaxed(&sh_cuda_noted);
    while (err == SHOAL_OK && count > 0) {
        sh_work work = order.noted[count - 1];
        err = sh_work_look(work) == SH_WORK_DONE ? SHOAL_OK : await_on_card(work);
        count -= err == SHOAL_OK;
    }
    sh_store_relaxed(&sh_cuda_noted, count);
    return err;
}

shoal_err sh_cuda_follow_noted(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_ORDER);
    shoal_err err = follow();
    sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
    sh_cuda_watch();
    return err;
}

/* Under the lock: the stream will wait for this work. A process that only sends a tensor on never enqueues that wait, and
 * of several tensors of one process only the last work counts. *out_waits: the stream may wait already. */
static shoal_err note(sh_work work, bool *out_waits)
{
    *out_waits = sh_load_relaxed(&uncounted) != 0; /* others enqueue without asking */
    if (sh_work_timeline(work) == order.timeline || is_awaited(work)) {
        return SHOAL_OK; /* this very stream, or it waits for that already */
    }
    uint32_t i = 0, count = sh_load_relaxed(&sh_cuda_noted);
    while (i < count && sh_work_timeline(order.noted[i]) != sh_work_timeline(work)) {
        i++;
    }
    if (i == NOTED) {
        shoal_err err = follow();
        *out_waits = true;
        if (err != SHOAL_OK) {
            return err;
        }
        i = count = 0;
    }
    order.noted[i] = work;
    sh_store_relaxed(&sh_cuda_noted, i < count ? count : i + 1);
    return sh_load_relaxed(&uncounted) != 0 ? follow() : SHOAL_OK;
}

shoal_err sh_cuda_await(sh_work work)
{
    if (__builtin_expect(!sh_cuda_is_ours(), 0)) {
        return sh_cuda_check(); /* a child of fork knows the storages of its parent, and cannot use them */
    }
    /* Also if the work is done: whether a program may receive in a capture must not depend on how fast its sender is. */
    shoal_err err = sh_cuda_capture_refuse("receiving a tensor from another process");
    if (err != SHOAL_OK || work == 0) {
        return err;
    }
    switch (sh_work_look(work)) {
    case SH_WORK_DONE: return SHOAL_OK;
    case SH_WORK_LOST: return lost_work();
    case SH_WORK_PENDING: break;
    }
    err = sh_cuda_check();
    if (err != SHOAL_OK) {
        return err;
    }
    sh_cardlock_lock(SH_CARD_LOCK_ORDER);
    begin();
    bool host = order.host_only, waits_now = false;
    err = host ? SHOAL_OK : note(work, &waits_now);
    sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
    if (waits_now) {
        sh_cuda_watch();
    }
    return host ? await_on_host(work) : err;
}

/* Waits on the host until the stream has done all that was enqueued. While it waits for other processes, notices their
 * deaths. */
static int drain(bool *out_lost)
{
    sh_cu_stream stream = sh_cuda_the_card()->stream;
    unsigned polls = 0;
    int mode = sh_cuda_relax(), result = SH_CU_NOT_READY;
    while (result == SH_CU_NOT_READY && sh_cuda_waits_look(false, out_lost) > 0) {
        result = sh_cu.cuStreamQuery(stream);
        if (result == SH_CU_NOT_READY) {
            pause_and_sweep(&polls);
        }
    }
    if (result == SH_CU_NOT_READY) {
        result = sh_cu.cuStreamSynchronize(stream);
    }
    sh_cuda_restrict(mode);
    return result;
}

void sh_cuda_order_ask(void)
{
    if (!sh_cardlock_trylock(SH_CARD_LOCK_ORDER)) {
        return; /* who has it calls the driver */
    }
    bool open = order.begun && !order.host_only && !is_done(order.last);
    sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
    if (open && sh_cuda_check() == SHOAL_OK) {
        int result = sh_cu.cuStreamQuery(sh_cuda_the_card()->stream);
        if (result != SH_CU_NOT_READY) {
            (void)sh_cuda_result("the GPU's work failed", result);
        }
    }
}

size_t sh_cuda_order_look(void)
{
    bool lost = false;
    return sh_cuda_waits_look(false, &lost);
}

void sh_cuda_order_drain(void)
{
    bool lost = false;
    (void)drain(&lost);
}

/* Under the lock: checks whether what this process marks is lost, because it comes after lost work. */
static bool is_spoiled(void)
{
    return order.begun && !order.host_only && sh_timeline_is_spoiled(order.timeline);
}

/* Under the lock, when the program will be told of a loss: what it does from now on is good again, but the timeline is spoiled.
 * So this process goes on with another one. What other threads have enqueued meanwhile gets done first. */
static shoal_err renew(void)
{
    bool lost = false;
    uint32_t fresh = 0;
    uint64_t seen = sh_load_relaxed(&sh_cuda_enqueued);
    if (!is_spoiled()) {
        return SHOAL_OK;
    }
    shoal_err err = sh_cuda_result("cannot wait for the GPU", synchronize());
    (void)sh_cuda_waits_look(false, &lost);
    if (err != SHOAL_OK || lost) { /* one more loss: the next host wait tells it */
        return err;
    }
    sh_cuda_closings_release(NULL);
    /* Without one, what this process sends stays lost, and each put says so. */
    if (sh_timeline_claim(&fresh) == SHOAL_OK) {
        uint32_t spoiled = order.timeline;
        order.last = 0; /* first: a signal handler may look (wait_for_marks) */
        order.timeline = fresh;
        order.done = sh_timeline_done_word(fresh);
        order.covered = seen;
        sh_timeline_release(spoiled);
    }
    return SHOAL_OK;
}

/* tells: the caller reports what was lost. */
static shoal_err wait_for_all(bool tells)
{
    bool lost = false;
    sh_cardlock_lock(SH_CARD_LOCK_ORDER);
    shoal_err err = follow();
    uint64_t seen = sh_load_relaxed(&sh_cuda_enqueued);
    if (err == SHOAL_OK && sh_cuda_closings_unmarked() > 0) {
        err = cover();
    }
    sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
    if (err == SHOAL_OK) {
        err = sh_cuda_result("cannot wait for the GPU", drain(&lost));
    }
    if (err != SHOAL_OK) {
        return err;
    }
    (void)sh_cuda_waits_look(tells, &lost);
    sh_cardlock_lock(SH_CARD_LOCK_ORDER);
    lost = lost || is_spoiled();
    if (!lost) { /* otherwise the next mark is a lost number, so that receivers see it */
        order.covered = seen > order.covered ? seen : order.covered;
    }
    sh_cuda_closings_release(is_over);
    err = lost && tells ? renew() : SHOAL_OK;
    sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
    sh_cuda_imports_tidy();
    return err == SHOAL_OK && lost && tells ? lost_work() : err;
}

shoal_err sh_cuda_order_wait(void)
{
    return wait_for_all(true);
}

void sh_cuda_order_finish(void)
{
    (void)wait_for_all(false);
}

/* ---- giving back ---- */

/* Under the lock: keeps the block until the work so far is done. Returns false if it can be released now. */
static bool keep_for_now(shoal_block *owner_block)
{
    if (order.host_only) {
        (void)cover();
        return false;
    }
    bool covered = is_covered();
    if (covered && is_done(order.last) &&
        sh_cuda_is_well()) { /* the card last, as in is_over: another thread may have lost it */
        return false;
    }
    if (!sh_cuda_closings_add(owner_block)) {
        (void)synchronize();
        return false;
    }
    if (covered) {
        sh_cuda_closings_mark(order.last);
    } else if (sh_cuda_closings_unmarked() >= CLOSINGS_UNMARKED) {
        (void)cover();
    }
    return true;
}

void sh_cuda_order_abandon(void)
{
    if (sh_cuda_is_ours() && !sh_cuda_is_well()) {
        sh_cardlock_lock(SH_CARD_LOCK_ORDER);
        if (sh_cuda_closings_exist() && has_stopped()) {
            sh_cuda_closings_release(NULL);
        }
        sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
    }
}

void sh_cuda_close(shoal_block *owner_block)
{
    sh_cleanup_begin();
    bool kept = owner_block && sh_cuda_capture_keeper(owner_block);
    if (!kept && owner_block && !sh_block_is_lost(owner_block) && sh_cuda_is_ours()) {
        bool well = sh_cuda_check() == SHOAL_OK;
        sh_cardlock_lock(SH_CARD_LOCK_ORDER);
        if (well) {
            begin();
            sh_cuda_closings_release(is_over);
            kept = keep_for_now(owner_block);
        } else {
            kept = !has_stopped() && sh_cuda_closings_add(owner_block);
        }
        sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
    }
    if (!kept) {
        sh_block_release(owner_block);
        sh_cuda_order_abandon();
    }
    sh_cleanup_end();
}

/* Returns whether some are left. */
static bool look_at_closings(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_ORDER);
    if (sh_cuda_closings_exist()) {
        if (sh_cuda_closings_unmarked() > 0) {
            (void)cover();
        }
        sh_cuda_closings_release(is_over);
    }
    bool left = sh_cuda_closings_exist();
    sh_cardlock_unlock(SH_CARD_LOCK_ORDER);
    return left;
}

/* The imports come last: what was released may have been the last of a dead process's granule. */
void sh_cuda_order_poll(void)
{
    (void)look_at_closings();
    sh_cuda_imports_tidy();
}

void sh_cuda_order_give_back(void)
{
    const struct timespec moment = {.tv_nsec = POLL_NS};
    int64_t deadline = sh_deadline(sh_cuda_mark_limit);
    while (look_at_closings() && !sh_passed(deadline)) {
        nanosleep(&moment, NULL);
    }
    sh_cuda_imports_tidy();
}
