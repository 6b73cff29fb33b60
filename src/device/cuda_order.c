/* The order of work between the streams of processes. cuda_share.h describes it. */
#include "device/cuda_capture.h"

#include "base/clock.h"
#include "base/error.h"
#include "device/cuda_share.h"
#include "shm/block.h"
#include "sync/peers.h"

#include <stdlib.h>
#include <time.h>

#define END_LIMIT SHOAL_SECONDS(2) /* how long an end waits for marks, and a leave for a GPU that was lost */
#define SPINS 2000                 /* looks without a pause: about 0.3 ms, as long as a short kernel */
#define POLL_NS 50000
#define SWEEP_EVERY 20    /* polls */
#define PROBE_EVERY 4000  /* polls: 0.2 s */
#define UNMARKED_LIMIT 16 /* a mark is a call of the driver, so some releases share one */

/* A GPU that has nothing else to do makes a mark in less, also if processes take turns on it. */
int64_t sh_cuda_mark_limit = SHOAL_MS(5);

static void (*before_end_of_others)(bool ends);

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
}

/* ---- marks ---- */

/* Checks whether the GPU has reached a mark of this process. */
static bool is_reached(sh_work mark)
{
    /* pairs with the GPU's write: the work before it is visible */
    return mark == 0 || sh_load_acquire(sh_timeline_done_word(sh_work_timeline(mark))) >= sh_work_number(mark);
}

/* Checks whether the work before a mark is done. Looks at the GPU last: if it is lost, `done` was raised after that,
 * and says nothing about the work. */
static bool is_done(sh_work mark)
{
    return is_reached(mark) && sh_cuda_is_well();
}

bool sh_cuda_order_is_awaited(void)
{
    return !is_reached(sh_load_acquire(&sh_gpu.last));
}

/* Checks whether everything that was enqueued lies before the last mark. */
static bool is_marked(void)
{
    return sh_load_relaxed(&sh_gpu.enqueued) == sh_gpu.marked && sh_load_relaxed(&sh_gpu.uncounted) == 0;
}

/* Waits on the host until the stream has done all. The driver knows nothing of processes: only for calls that cannot
 * wait in another way. */
static shoal_err synchronize(void)
{
    int mode = sh_cuda_relax(), result = sh_cu.cuStreamSynchronize(sh_cuda_the_card()->stream);
    sh_cuda_restrict(mode);
    return sh_cuda_result("cannot wait for the GPU", result);
}

/* death: the number may never be written; recovery finds that it was issued, and calls it lost */
static shoal_err enqueue_mark(void)
{
    uint32_t timeline = sh_load_relaxed(&sh_gpu.timeline);
    uint64_t number = sh_timeline_issue(timeline);
    sh_cu_address word = (uint64_t)(uintptr_t)sh_timeline_done_word(timeline) + sh_gpu.to_card;
    SH_TRY(sh_cuda_result(
        "cannot mark the end of work on the GPU",
        sh_cu.cuStreamWriteValue64(sh_cuda_the_card()->stream, word, number, SH_CU_WRITE_VALUE_DEFAULT)));
    sh_store_release(&sh_gpu.last, sh_work_make(timeline, number));
    sh_gpu.unmarked = 0;
    return SHOAL_OK;
}

/* Under the lock: after this, everything that was enqueued lies before the last mark, or is done, and so does every
 * release. There may be one that waits for the next mark although all is done: it came while another thread waited for
 * the GPU. */
static shoal_err mark_all(void)
{
    if (is_marked() && sh_gpu.unmarked == 0) {
        return SHOAL_OK;
    }
    uint64_t seen = sh_load_relaxed(&sh_gpu.enqueued);
    SH_TRY(sh_gpu.host_only ? synchronize() : enqueue_mark());
    sh_gpu.marked = seen;
    return SHOAL_OK;
}

/* ---- blocks to release ---- */

/* Under the lock. number: of the mark after which it is released. Returns false if there is no memory. */
static bool add_release(shoal_block *block, uint64_t number)
{
    sh_cuda_release *r = malloc(sizeof *r);
    if (r) {
        *r = (sh_cuda_release){.block = block, .after = number};
        *sh_gpu.end = r;
        sh_gpu.end = &r->next;
    }
    return r != NULL;
}

/* Under the lock: releases the blocks whose work is done, or all. */
static void release_blocks(bool all)
{
    uint32_t timeline = sh_load_relaxed(&sh_gpu.timeline);
    for (sh_cuda_release *r; (r = sh_gpu.first) && (all || is_done(sh_work_make(timeline, r->after)));) {
        sh_gpu.first = r->next;
        if (!r->next) {
            sh_gpu.end = &sh_gpu.first;
            sh_gpu.unmarked = 0;
        }
        sh_block_release(r->block);
        free(r);
    }
}

/* Checks whether a GPU that is lost has stopped. After some errors it may work on: what it uses is not given back
 * then. */
static bool has_stopped(void)
{
    const sh_cuda_card *card = sh_cuda_the_card();
    (void)sh_cu.cuCtxSetCurrent(card->context);
    int mode = sh_cuda_relax(), result = sh_cu.cuStreamQuery(card->stream);
    sh_cuda_restrict(mode);
    return result != SH_CU_NOT_READY;
}

void sh_cuda_order_abandon(void)
{
    if (sh_cuda_is_ours() && !sh_cuda_is_well()) {
        sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
        if (sh_gpu.first && has_stopped()) {
            release_blocks(true);
        }
        sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    }
}

/* ---- the world ---- */

/* Registers the words of all timelines. Returns false if the driver refuses. */
static bool register_words(void)
{
    size_t size;
    sh_cu_address at = 0;
    sh_timelines_range(&sh_gpu.pages, &size);
    int result = sh_cu.cuMemHostRegister(sh_gpu.pages, size, SH_CU_HOST_REGISTER_PORTABLE_MAPPED);
    if (result != SH_CU_OK && result != SH_CU_ALREADY_REGISTERED) {
        return false;
    }
    if (sh_cu.cuMemHostGetDevicePointer(&at, sh_gpu.pages, 0) != SH_CU_OK) {
        (void)sh_cu.cuMemHostUnregister(sh_gpu.pages);
        return false;
    }
    sh_gpu.to_card = at - (uint64_t)(uintptr_t)sh_gpu.pages;
    return true;
}

static void set_timeline(uint32_t timeline)
{
    sh_store_release(&sh_gpu.last, sh_timeline_last(timeline));
    sh_store_release(&sh_gpu.timeline, timeline);
}

/* Under the lock: gets a timeline in this world. Without one, the order is kept by waiting on the host. */
static void begin(void)
{
    uint32_t timeline;
    if (sh_gpu.begun) {
        return;
    }
    sh_cleanup_begin();
    int mode = sh_cuda_relax();
    bool claimed = sh_timeline_claim(&timeline) == SHOAL_OK;
    sh_gpu.host_only = !claimed || !register_words();
    if (!sh_gpu.host_only) {
        set_timeline(timeline);
    } else if (claimed) {
        sh_timeline_release(timeline);
    }
    sh_gpu.begun = true;
    sh_cuda_restrict(mode);
    sh_cleanup_end();
}

void sh_cuda_order_begin(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    begin();
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
}

/* A lost GPU that works on uses memory of others. Not for ever: this process leaves, and holds nothing in the world
 * then. */
static void wait_for_stop(void)
{
    int64_t deadline = sh_deadline(END_LIMIT);
    while (!sh_cuda_is_well() && !has_stopped() && !sh_passed(deadline)) {
        pause_briefly();
    }
}

/* Under the lock. */
static void end(void)
{
    uint32_t timeline = sh_load_relaxed(&sh_gpu.timeline);
    release_blocks(true);
    sh_store_relaxed(&sh_gpu.wait_count, 0);
    sh_store_release(&sh_gpu.last, 0); /* first: a signal handler may look (wait_for_marks) */
    sh_store_release(&sh_gpu.timeline, 0);
    if (timeline != 0) {
        sh_timeline_release(timeline);
        (void)sh_cu.cuMemHostUnregister(sh_gpu.pages);
    }
    sh_gpu.begun = sh_gpu.host_only = false;
}

static void leave_world(void)
{
    sh_cleanup_begin();
    (void)sh_cuda_check(); /* the context becomes current in this thread */
    int mode = sh_cuda_relax();
    sh_cuda_service_quiet(false);
    sh_cuda_service_end(false);
    sh_cuda_order_drain();
    wait_for_stop();
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    if (sh_gpu.begun) {
        end();
    }
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    sh_cuda_share_leave();
    sh_cuda_restrict(mode);
    sh_cleanup_end();
}

/* A process that ends waits for its marks: what is not done when it has ended is lost for those who wait for it. It may
 * be in a signal handler, so it takes no lock and does not call the driver. */
static void wait_for_marks(void)
{
    int64_t deadline = sh_deadline(END_LIMIT);
    while (sh_cuda_order_is_awaited() && sh_cuda_is_well() && !sh_passed(deadline)) {
        pause_briefly();
    }
}

static void before_end(bool ends)
{
    if (sh_cuda_is_ours() && ends) {
        sh_cuda_service_quiet(true);
        wait_for_marks(); /* the thread still notices the deaths of those for whom the marks wait */
        sh_cuda_service_end(true);
    } else if (sh_cuda_is_ours()) {
        leave_world();
    }
    if (before_end_of_others) {
        before_end_of_others(ends);
    }
}

/* At the end of the process: checks whether the GPU may still use memory of other processes. Their makers use it again
 * as soon as this process has given it back; so it does not, and others do that for it when it is gone, and its context
 * with it. This very process may have been interrupted anywhere, also between a launch and its count, and streams of
 * other libraries may use the memory as well; so it is enough that some of it is mapped. Its own memory does not
 * matter: nobody uses that again. */
static bool is_at_rest(void)
{
    return !sh_cuda_is_ours() || !sh_gpu.begun || !sh_cuda_imports_exist();
}

__attribute__((constructor)) static void install(void)
{
    before_end_of_others = sh_world_before_end;
    sh_world_before_end = before_end;
    sh_world_is_at_rest = is_at_rest;
}

/* ---- waits ---- */

static shoal_err lost_work(void)
{
    return sh_fail(SHOAL_ELOST,
                   "the process that computed a tensor on the GPU lost its GPU or died before that work was done: the "
                   "tensor's elements are undefined");
}

static size_t look(bool forget_lost, bool *out_lost)
{
    return sh_load_acquire(&sh_gpu.timeline) != 0 ? sh_timeline_look(forget_lost, out_lost) : 0;
}

size_t sh_cuda_order_look(void)
{
    bool lost = false;
    return look(false, &lost);
}

/* Between two looks at something that another process will change. */
static void pause_and_sweep(unsigned *polls)
{
    if (++*polls <= SPINS) {
        sh_pause();
        return;
    }
    pause_briefly();
    if (*polls % SWEEP_EVERY == 0) {
        (void)sh_peers_now->sweep(SH_SWEEP_AGE);
    }
    if (*polls % PROBE_EVERY == 0) {
        sh_granules_probe();
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

/* Under the lock: returns the place of the wait for this process's work among those that are not enqueued, or the next
 * one. */
static uint32_t place_of(sh_work work)
{
    uint32_t i = 0, count = sh_load_relaxed(&sh_gpu.wait_count);
    while (i < count && sh_work_timeline(sh_gpu.waits[i]) != sh_work_timeline(work)) {
        i++;
    }
    return i;
}

/* Under the lock: checks whether the stream waits for this work already, or will. */
static bool is_awaited(sh_work work)
{
    uint32_t i = place_of(work);
    return (i < sh_load_relaxed(&sh_gpu.wait_count) && sh_gpu.waits[i] >= work) ||
           (sh_load_relaxed(&sh_gpu.timeline) != 0 && sh_timeline_awaits(work));
}

/* Checks whether the work was lost and this was not reported yet in this process: its stream waits for it, and no host
 * wait came since. */
static bool is_lost_untold(sh_work work)
{
    if (work == 0 || sh_work_look(work) != SH_WORK_LOST) {
        return false;
    }
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    bool untold = is_awaited(work);
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    return untold;
}

static shoal_err await_on_card(sh_work work)
{
    bool lost;
    uint32_t timeline = sh_load_relaxed(&sh_gpu.timeline);
    if (!sh_timeline_depend(timeline, work)) { /* the stream waits for many processes: now they come first */
        SH_TRY(synchronize());
        (void)look(true,
                   &lost); /* those that are lost have poisoned this timeline, so the next host wait, or put, says so */
        (void)sh_timeline_depend(timeline, work);
    }
    /* The next host wait, or put, says so. If it was lost only now, the stream waits all the same: it is released when
     * this timeline is poisoned. */
    if (sh_work_look(work) == SH_WORK_LOST && sh_timeline_is_poisoned(timeline)) {
        return SHOAL_OK;
    }
    sh_cu_address word = (uint64_t)(uintptr_t)sh_timeline_done_word(sh_work_timeline(work)) + sh_gpu.to_card;
    int result =
        sh_cu.cuStreamWaitValue64(sh_cuda_the_card()->stream, word, sh_work_number(work), SH_CU_WAIT_VALUE_GEQ);
    sh_cuda_touch();
    return sh_cuda_result("cannot wait for another process's work", result);
}

/* Under the lock: the stream waits for all that was remembered. On error, the remaining waits stay queued. */
static shoal_err follow(void)
{
    for (uint32_t count; (count = sh_load_relaxed(&sh_gpu.wait_count)) > 0;) {
        sh_work work = sh_gpu.waits[count - 1];
        if (sh_work_look(work) != SH_WORK_DONE) {
            SH_TRY(await_on_card(work));
        }
        sh_store_relaxed(&sh_gpu.wait_count, count - 1);
    }
    return SHOAL_OK;
}

shoal_err sh_cuda_follow_slow(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    shoal_err err = follow();
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    sh_cuda_service_watch();
    return err;
}

/* Under the lock: the stream will wait for this work. A process that only sends a tensor on never enqueues that wait,
 * and of several tensors of one process only the last work counts. *out_waits: the stream may wait already. */
static shoal_err remember_wait(sh_work work, bool *out_waits)
{
    bool at_once = sh_load_relaxed(&sh_gpu.uncounted) != 0; /* others enqueue without asking */
    *out_waits = at_once;
    if (sh_work_timeline(work) == sh_load_relaxed(&sh_gpu.timeline) || is_awaited(work)) {
        return SHOAL_OK; /* this very stream, or it waits for that already */
    }
    uint32_t i = place_of(work);
    if (i == SH_CUDA_WAITS) {
        *out_waits = true;
        SH_TRY(follow());
        i = 0;
    }
    sh_gpu.waits[i] = work;
    if (i == sh_load_relaxed(&sh_gpu.wait_count)) {
        sh_store_relaxed(&sh_gpu.wait_count, i + 1);
    }
    return at_once ? follow() : SHOAL_OK;
}

shoal_err sh_cuda_await(sh_work work)
{
    if (__builtin_expect(!sh_cuda_is_ours(), 0)) {
        return sh_cuda_check(); /* a child of fork knows the storages of its parent, and cannot use them */
    }
    /* Also if the work is done: whether a program may receive in a capture must not depend on how fast its sender
     * is. */
    SH_TRY(sh_cuda_capture_refuse("receiving a tensor from another process"));
    switch (sh_work_look(work)) {
    case SH_WORK_DONE: return SHOAL_OK;
    case SH_WORK_LOST: return lost_work();
    case SH_WORK_PENDING: break;
    }
    SH_TRY(sh_cuda_check());
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    begin();
    bool host = sh_gpu.host_only, waits_now = false;
    shoal_err err = host ? SHOAL_OK : remember_wait(work, &waits_now);
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    if (waits_now) {
        sh_cuda_service_watch();
    }
    return host ? await_on_host(work) : err;
}

/* ---- puts ---- */

/* Marks this process's work, and returns what a receiver must wait for; 0 if nothing. *out_timeline: of this process; 0
 * if it has none. */
static shoal_err own_work(sh_work *out_work, uint32_t *out_timeline)
{
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    begin();
    shoal_err err = mark_all();
    sh_work last = sh_load_relaxed(&sh_gpu.last);
    *out_timeline = sh_load_relaxed(&sh_gpu.timeline);
    *out_work = sh_work_look(last) == SH_WORK_DONE ? 0 : last; /* lost if it came after lost work */
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    SH_TRY(err);
    /* Last: if the GPU is lost meanwhile, another thread raises `done`, and nothing is done. */
    return sh_cuda_lost();
}

/* The same. If what this process has done comes after lost work, the program is told: then it may do it again. */
static shoal_err good_work(sh_work *out_work, uint32_t *out_timeline)
{
    SH_TRY(own_work(out_work, out_timeline));
    if (sh_work_look(*out_work) == SH_WORK_LOST) {
        SH_TRY(sh_cuda_order_wait());
        return own_work(out_work, out_timeline); /* another thread was told */
    }
    return SHOAL_OK;
}

shoal_err sh_cuda_mark(sh_a64 *work)
{
    uint32_t timeline;
    sh_work mine, before = sh_load_acquire(work), awaited = 0;
    SH_TRY(sh_cuda_check());
    SH_TRY(sh_cuda_capture_refuse("sending a tensor to another process"));
    SH_TRY(good_work(&mine, &timeline));
    while (before != mine) {
        bool foreign = sh_work_timeline(before) != timeline;
        if (before != awaited && foreign && sh_work_look(before) == SH_WORK_PENDING) {
            if (mine == 0) {
                return SHOAL_OK; /* this process has nothing to add */
            }
            awaited = before;
            SH_TRY(sh_cuda_await(before)); /* so what is marked next comes after it */
            SH_TRY(sh_cuda_follow());
            SH_TRY(own_work(&mine, &timeline));
        } else if (foreign && is_lost_untold(before)) {
            return SHOAL_OK;                              /* the word stays, so that the next receiver sees the loss */
        } else if (sh_cas_acq_rel(work, &before, mine)) { /* pairs with the receiver's acquire of the work */
            return SHOAL_OK;
        }
    }
    return SHOAL_OK;
}

/* ---- host waits ---- */

/* Waits on the host until the stream has done all that was enqueued. While it waits for other processes, notices their
 * deaths. */
static shoal_err drain(bool *out_lost)
{
    sh_cu_stream stream = sh_cuda_the_card()->stream;
    unsigned polls = 0;
    int mode = sh_cuda_relax(), result = SH_CU_NOT_READY;
    while (result == SH_CU_NOT_READY && look(false, out_lost) > 0) {
        result = sh_cu.cuStreamQuery(stream);
        if (result == SH_CU_NOT_READY) {
            pause_and_sweep(&polls);
        }
    }
    if (result == SH_CU_NOT_READY) {
        result = sh_cu.cuStreamSynchronize(stream);
    }
    sh_cuda_restrict(mode);
    return sh_cuda_result("cannot wait for the GPU", result);
}

void sh_cuda_order_drain(void)
{
    bool lost = false;
    sh_cleanup_begin();
    (void)drain(&lost);
    sh_cleanup_end();
}

void sh_cuda_order_ask(void)
{
    if (sh_cuda_order_is_awaited() && sh_cuda_check() == SHOAL_OK) {
        int result = sh_cu.cuStreamQuery(sh_cuda_the_card()->stream);
        if (result != SH_CU_NOT_READY) {
            (void)sh_cuda_result("the GPU's work failed", result);
        }
    }
}

/* Under the lock: checks whether what this process marks is lost, because it comes after lost work. */
static bool is_poisoned(void)
{
    uint32_t timeline = sh_load_relaxed(&sh_gpu.timeline);
    return timeline != 0 && sh_timeline_is_poisoned(timeline);
}

/* Under the lock, when the program will be told of a loss: what it does from now on is good again, but the timeline is
 * poisoned. So this process goes on with another one. What other threads have enqueued meanwhile gets done first. */
static shoal_err renew(void)
{
    bool lost = false;
    uint32_t fresh = 0, poisoned = sh_load_relaxed(&sh_gpu.timeline);
    uint64_t seen = sh_load_relaxed(&sh_gpu.enqueued);
    if (!is_poisoned()) {
        return SHOAL_OK;
    }
    SH_TRY(synchronize());
    (void)look(false, &lost);
    if (lost) { /* one more loss: the next host wait tells it */
        return SHOAL_OK;
    }
    release_blocks(true);
    /* Without one, what this process sends stays lost, and each put says so. */
    if (sh_timeline_claim(&fresh) == SHOAL_OK) {
        set_timeline(fresh);
        sh_gpu.marked = seen;
        sh_timeline_release(poisoned);
    }
    return SHOAL_OK;
}

/* tells: the caller reports what was lost. */
static shoal_err wait_for_all(bool tells)
{
    bool lost = false;
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    shoal_err err = follow();
    uint64_t seen = sh_load_relaxed(&sh_gpu.enqueued);
    if (err == SHOAL_OK && sh_gpu.unmarked > 0) {
        err = mark_all();
    }
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    SH_TRY(err);
    SH_TRY(drain(&lost));
    (void)look(tells, &lost);
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    lost = lost || is_poisoned();
    if (!lost && seen > sh_gpu.marked) { /* if lost, the next mark is a lost number, so that receivers see it */
        sh_gpu.marked = seen;
    }
    release_blocks(false);
    err = lost && tells ? renew() : SHOAL_OK;
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    sh_cuda_imports_tidy();
    SH_TRY(err);
    return lost && tells ? lost_work() : SHOAL_OK;
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
static bool keep_for_now(shoal_block *block)
{
    sh_work last = sh_load_relaxed(&sh_gpu.last);
    bool marked = is_marked();
    if (sh_gpu.host_only) {
        (void)mark_all();
        return false;
    }
    if (marked && is_done(last)) {
        return false;
    }
    if (!add_release(block, sh_work_number(last) + !marked)) {
        (void)synchronize();
        return false;
    }
    sh_gpu.unmarked += !marked;
    if (sh_gpu.unmarked >= UNMARKED_LIMIT) {
        (void)mark_all();
    }
    return true;
}

/* Under the lock. A lost GPU that works on uses the block. */
static bool keep(shoal_block *block, bool well)
{
    if (!well) {
        return !has_stopped() && add_release(block, 0);
    }
    begin();
    release_blocks(false);
    return keep_for_now(block);
}

void sh_cuda_close(shoal_block *owner_block)
{
    sh_cleanup_begin();
    bool kept = owner_block && sh_cuda_capture_hold(owner_block);
    if (!kept && owner_block && !sh_block_is_lost(owner_block) && sh_cuda_is_ours()) {
        bool well = sh_cuda_check() == SHOAL_OK;
        sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
        kept = keep(owner_block, well);
        sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    }
    if (!kept) {
        sh_block_release(owner_block);
        sh_cuda_order_abandon();
    }
    sh_cleanup_end();
}

/* Returns whether some are left. */
static bool release_some(void)
{
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    if (sh_gpu.first && sh_gpu.unmarked > 0) {
        (void)mark_all();
    }
    release_blocks(false);
    bool left = sh_gpu.first != NULL;
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    return left;
}

/* The imports come last: what was released may have been the last of a dead process's granule. */
void sh_cuda_order_poll(void)
{
    (void)release_some();
    sh_cuda_imports_tidy();
}

void sh_cuda_order_give_back(void)
{
    int64_t deadline = sh_deadline(sh_cuda_mark_limit);
    while (release_some() && !sh_passed(deadline)) {
        pause_briefly();
    }
    sh_cuda_imports_tidy();
}
