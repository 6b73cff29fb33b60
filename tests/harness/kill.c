#include "tests/harness/kill.h"
#include "shm/block.h"

#include "base/clock.h"
#include "base/death.h"
#include "base/random.h"
#include "ipc/queue.h"
#include "os/futex.h"
#include "shm/card_store.h"
#include "shm/kind.h"
#include "shm/slot.h"
#include "shm/world.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define HEAP_ENOUGH (UINT64_C(192) << 20)
#define RESERVE (UINT64_C(1) << 36)

/* AddressSanitizer reads this. Every fork copies the page tables of the parent's quarantine, and a kill test forks
 * thousands of times: with the default of 256 MiB it spent most of its time there. */
const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__asan_default_options(void)
{
    return "quarantine_size_mb=4:thread_local_quarantine_size_kb=64";
}

static void doze(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10000}, NULL);
}

/* ---- failures ---- */

void kill_fail(kill_stage *stage, const char *format, ...)
{
    kill_board *board = stage->board;
    uint32_t no = 0;
    if (sh_cas_acq_rel(&board->failed, &no, 1)) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(board->failure, sizeof board->failure, format, arguments);
        va_end(arguments);
        sh_store_release(&board->failed, 2);
    }
}

bool kill_is_tight(kill_stage *stage, shoal_err err)
{
    bool tight = err == SHOAL_ENOMEM && stage->tight;
    if (tight) {
        sh_add_relaxed(&stage->board->refused, 1);
    }
    return tight;
}

void kill_report(kill_stage *stage, const char *what)
{
    if (sh_load_acquire(&stage->board->failed) != 0) {
        ck_abort_msg("%s: %s", what, stage->board->failure);
    }
}

uint64_t kill_seed(void)
{
    const char *text = getenv("SHOAL_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : UINT64_C(20240607);
    printf("seed %llu\n", (unsigned long long)seed);
    fflush(stdout);
    return seed;
}

bool kill_step_is_chosen(int step)
{
    const char *only = getenv("SHOAL_KILL_STEP");
    return only == NULL || (step >= 0 && strstr(kill_steps[step].name, only) != NULL);
}

/* ---- points ---- */

static const char *point_names[KILL_POINTS_MAX];
static int points = -1;

static void list_points(void)
{
    points = 0;
#ifdef SHOAL_DEATH_POINTS
    const char *const *names;
    size_t count = sh_death_points(&names);
    for (size_t i = 0; i < count; i++) {
        if (kill_point_find(names[i]) < 0 && points < KILL_POINTS_MAX) {
            point_names[points++] = names[i];
        }
    }
#endif
}

int kill_point_count(void)
{
    if (points < 0) {
        list_points();
    }
    return points;
}

int kill_point_find(const char *name)
{
    for (int i = 0; i < kill_point_count(); i++) {
        if (point_names[i] != NULL && strcmp(point_names[i], name) == 0) {
            return i;
        }
    }
    return -1;
}

const char *kill_point_name(int point)
{
    return point_names[point];
}

void kill_arm_from_environment(void)
{
#ifdef SHOAL_DEATH_POINTS
    static char name[64];
    int count;
    const char *text = getenv("SHOAL_KILL_AT");
    if (text != NULL && sscanf(text, "%63[^:]:%d", name, &count) == 2) {
        sh_death_arm(name, count);
    }
#endif
}

void kill_disarm(void)
{
#ifdef SHOAL_DEATH_POINTS
    sh_death_arm(NULL, 0);
#endif
}

/* ---- processes ---- */

pid_t kill_fork(const char *name)
{
    uint32_t slot;
    int32_t pid = -1;
    sh_ctx *c = sh_enter();
    if (c == NULL) {
        return -1;
    }
    shoal_err err = sh_slot_reserve(c, name, &slot);
    sh_leave();
    if (err != SHOAL_OK) {
        return -1;
    }
    uint64_t generation = sh_slot_state_generation(sh_load_relaxed(&sh_slot_at(slot)->state));
    err = sh_world_fork(slot, &pid);
    if (err != SHOAL_OK) {
        if (sh_enter() != NULL) {
            sh_slot_cancel(slot, generation);
            sh_leave();
        }
        return -1;
    }
    if (pid == 0) {
        signal(SIGTERM, SIG_DFL); /* libcheck's handler would end the whole test */
        signal(SIGINT, SIG_DFL);
        if (sh_world_become(slot) != SHOAL_OK) {
            _exit(1); /* its parent died before it assigned the slot */
        }
        return 0;
    }
    sh_slot_expect(slot, pid);
    return pid;
}

_Noreturn void kill_exit(int status)
{
    kill_disarm();
    sh_world_detach();
    _exit(status);
}

static void rest(kill_board *board, int me)
{
    uint32_t pause = sh_load_acquire(&board->pause);
    if ((pause & 1) != 0) {
        sh_store_release(&board->resting[me], pause);
        while (sh_load_acquire(&board->pause) == pause) {
            sh_futex_wait(&board->pause, pause, sh_now() + SHOAL_MS(100));
        }
    }
}

static _Noreturn void survive(kill_stage *stage, int me)
{
    kill_board *board = stage->board;
    uint64_t random = stage->random ^ (0x1234567u * (uint64_t)(me + 1));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (sh_load_acquire(&board->stop) == 0) {
        rest(board, me);
        uint32_t n = (uint32_t)sh_splitmix_below(&random, (uint64_t)kill_step_count);
        uint32_t favour = sh_load_acquire(&board->favour);
        bool favoured = favour != 0 && sh_splitmix_below(&random, 2) == 0;
        n = favoured ? favour - 1 : n;
        if (favoured || kill_steps[n].flags == KILL_BY_ALL) {
            sh_store_relaxed(&board->busy[me], n);
            kill_steps[n].run(stage, &random);
            sh_store_release(&board->worked[me], sh_load_relaxed(&board->worked[me]) + 1);
        }
    }
    kill_exit(0);
}

static bool is_survivor(const kill_stage *stage, pid_t pid)
{
    for (int i = 0; i < stage->survivors; i++) {
        if (stage->pids[i] == pid) {
            return true;
        }
    }
    return false;
}

int kill_reap(kill_stage *stage, pid_t pid)
{
    int status = 0;
    int64_t deadline = sh_deadline(SH_PATIENCE);
    for (;;) {
        pid_t got = waitpid(pid, &status, WNOHANG);
        if (got == pid) {
            return status;
        }
        kill_require(got == 0 || errno == EINTR, "waitpid %d: %s", (int)pid, strerror(errno));
        if (sh_passed(deadline)) {
            kill_report(stage, "a process that does not end");
            ck_abort_msg("process %d does not end; its step was %u", (int)pid, sh_load_acquire(&stage->board->doing));
        }
        doze();
    }
}

void kill_reap_orphans(kill_stage *stage)
{
    int64_t deadline = sh_deadline(SH_PATIENCE);
    while (sh_count_children() > stage->survivors) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid > 0 && is_survivor(stage, pid)) {
            kill_report(stage, "a survivor ended");
            ck_abort_msg("a survivor ended with wait status 0x%x at step %s", status,
                         kill_steps[sh_load_relaxed(&stage->board->busy[0])].name);
        }
        if (pid <= 0) {
            kill_recover(stage); /* one may wait to learn that its parent is dead */
            kill_require(!sh_passed(deadline), "the processes that the victim started do not end");
            doze();
        }
    }
}

/* ---- pause and work ---- */

static void stuck(kill_stage *stage, int survivor, const char *what)
{
    kill_report(stage, what);
    ck_abort_msg("%s: survivor %d is stuck in step %s", what, survivor,
                 kill_steps[sh_load_relaxed(&stage->board->busy[survivor])].name);
}

void kill_pause(kill_stage *stage)
{
    kill_board *board = stage->board;
    int64_t deadline = sh_deadline(SH_PATIENCE);
    uint32_t pause = sh_load_relaxed(&board->pause) + 1;
    sh_store_release(&board->pause, pause);
    for (int i = 0; i < stage->survivors; i++) {
        while (sh_load_acquire(&board->resting[i]) != pause) {
            if (sh_passed(deadline)) {
                stuck(stage, i, "pause");
            }
            doze();
        }
    }
}

void kill_resume(kill_stage *stage)
{
    kill_board *board = stage->board;
    sh_store_release(&board->pause, sh_load_relaxed(&board->pause) + 1);
    sh_futex_wake(&board->pause, INT_MAX);
}

void kill_let_work(kill_stage *stage, uint64_t steps)
{
    int64_t deadline = sh_deadline(SH_PATIENCE);
    uint64_t before[KILL_SURVIVORS_MAX];
    for (int i = 0; i < stage->survivors; i++) {
        before[i] = sh_load_acquire(&stage->board->worked[i]);
    }
    for (int i = 0; i < stage->survivors; i++) {
        while (sh_load_acquire(&stage->board->worked[i]) < before[i] + steps) {
            if (sh_passed(deadline)) {
                stuck(stage, i, "work");
            }
            doze();
        }
    }
}

/* ---- checks ---- */

static bool somebody_is_dead(void)
{
    uint32_t used = sh_load_acquire(&sh_the_world.header->slots_used);
    for (uint32_t i = 0; i < used; i++) {
        if (sh_slot_is_dead(i)) {
            return true;
        }
    }
    return false;
}

void kill_recover(kill_stage *stage)
{
    int64_t deadline = sh_deadline(SH_PATIENCE);
    do {
        uint32_t n;
        kill_require_ok(shoal_world_sweep(&n));
        if (sh_passed(deadline)) {
            kill_report(stage, "recovery");
            ck_abort_msg("recovery does not finish");
        }
    } while (somebody_is_dead()); /* a survivor may be recovering it */
}

static uint64_t difference(uint64_t world, uint64_t board, uint64_t *lost, const char *what, const char *name)
{
    uint64_t d = world - board - *lost;
    kill_require(d <= 2, "%s: %s: the queue counts %llu, its users %llu, %llu of them by killed processes", what, name,
                 (unsigned long long)world, (unsigned long long)board, (unsigned long long)*lost);
    *lost += d;
    return d;
}

/* Checks that every message that was put was taken once or is still there. Returns how many calls were not counted. */
static uint64_t check_channels(kill_stage *stage, const char *what)
{
    uint64_t unknown = 0;
    for (int i = 0; i < KILL_CHANNELS; i++) {
        kill_count *count = &stage->board->channels[i];
        shoal_queue *q = stage->queues[i];
        uint64_t puts = sh_queue_puts(q), takes = sh_queue_takes(q), size = shoal_queue_size(q);
        char name[32];
        if (i == KILL_DELIVERIES) { /* a taken message is not gone: it is unacknowledged, was returned, or is done */
            kill_require(size >= puts - takes && size <= puts, "%s: %llu put, %llu taken, %llu there", what,
                         (unsigned long long)puts, (unsigned long long)takes, (unsigned long long)size);
            takes = puts - size;
        }
        if (i == KILL_LEASES) { /* the same, or it was rejected; none is dropped */
            uint64_t rejected = sh_queue_puts(stage->queues[KILL_REJECTS]), dropped = shoal_queue_dropped(q);
            kill_require(size + rejected <= puts && dropped == 0,
                         "%s: %llu put, %llu rejected, %llu there, %llu dropped", what, (unsigned long long)puts,
                         (unsigned long long)rejected, (unsigned long long)size, (unsigned long long)dropped);
            puts -= rejected;
            takes = puts - size;
        }
        kill_require(puts == takes + size, "%s: channel %d: %llu put, %llu taken, %llu there", what, i,
                     (unsigned long long)puts, (unsigned long long)takes, (unsigned long long)size);
        snprintf(name, sizeof name, "puts to channel %d", i);
        if (i == KILL_LEASES) {
            puts += sh_queue_puts(stage->queues[KILL_REJECTS]);
        }
        if (i != KILL_REJECTS) { /* the library puts these */
            unknown += difference(puts, sh_load_acquire(&count->put), &stage->lost_puts[i], what, name);
        }
        snprintf(name, sizeof name, "gets from channel %d", i);
        unknown += difference(takes, sh_load_acquire(&count->got), &stage->lost_gets[i], what, name);
    }
    sh_queue_shm *tasks = (sh_queue_shm *)((shoal_block *)stage->queues[KILL_TASKS])->data;
    unknown += difference(sh_load_acquire(&tasks->done), sh_load_acquire(&stage->board->channels[KILL_TASKS].done),
                          &stage->lost_done, what, "task_done");
    return unknown;
}

bool kill_guard_died(kill_stage *stage, const kill_guard *guard)
{
    const kill_board *board = stage->board;
    return guard == &board->lock       ? shoal_lock_owner_died(stage->lock)
           : guard == &board->unmarked ? shoal_lock_owner_died(stage->unmarked)
           : guard == &board->rlock    ? shoal_rlock_owner_died(stage->rlock)
                                       : shoal_condition_owner_died(stage->condition);
}

shoal_err kill_guard_mark(kill_stage *stage, const kill_guard *guard)
{
    const kill_board *board = stage->board;
    return guard == &board->lock       ? shoal_lock_mark_consistent(stage->lock)
           : guard == &board->unmarked ? SHOAL_OK
           : guard == &board->rlock    ? shoal_rlock_mark_consistent(stage->rlock)
                                       : shoal_condition_mark_consistent(stage->condition);
}

/* Checks that a lock was free at once, and that the death of a holder is known. */
static void check_lock(kill_stage *stage, kill_guard *guard, shoal_err err, const char *what, const char *name)
{
    kill_require(err == SHOAL_OK, "%s: %s: %s", what, name, shoal_err_name(err));
    bool died = kill_guard_died(stage, guard);
    kill_require(died || sh_load_acquire(&guard->inside) == 0,
                 "%s: %s: process %u died inside and this was not reported", what, name,
                 sh_load_acquire(&guard->inside));
    kill_require(died || guard != &stage->board->unmarked, "%s: %s: a death was forgotten", what, name);
    sh_store_release(&guard->inside, 0);
    kill_require_ok(kill_guard_mark(stage, guard));
}

static void check_locks(kill_stage *stage, int deaths, const char *what)
{
    kill_board *board = stage->board;
    check_lock(stage, &board->lock, shoal_lock_lock(stage->lock, SH_PATIENCE), what, "lock");
    kill_require_ok(shoal_lock_unlock(stage->lock));
    check_lock(stage, &board->unmarked, shoal_lock_lock(stage->unmarked, SH_PATIENCE), what, "unmarked lock");
    kill_require_ok(shoal_lock_unlock(stage->unmarked));
    check_lock(stage, &board->rlock, shoal_rlock_lock(stage->rlock, SH_PATIENCE), what, "rlock");
    kill_require_ok(shoal_rlock_unlock(stage->rlock));
    check_lock(stage, &board->condition, shoal_condition_lock(stage->condition, SH_PATIENCE), what, "condition");
    kill_require_ok(shoal_condition_notify_all(stage->condition));
    kill_require_ok(shoal_condition_unlock(stage->condition));
    uint64_t waiters = shoal_queue_size((shoal_queue *)((shoal_block *)stage->condition)->parts[1]);
    kill_require(waiters == 0, "%s: %llu waiters are left after notify_all", what, (unsigned long long)waiters);
    uint32_t value = shoal_semaphore_value(stage->semaphore);
    kill_require(value <= KILL_SEMAPHORE && (deaths > 0 || value == KILL_SEMAPHORE), "%s: semaphore at %u", what,
                 value);
    kill_require_ok(shoal_semaphore_post(stage->semaphore, KILL_SEMAPHORE - value));
}

void kill_check(kill_stage *stage, int deaths, const char *what)
{
    kill_report(stage, what);
    uint64_t unknown = check_channels(stage, what);
    kill_require(unknown <= (uint64_t)deaths, "%s: %llu calls were not counted, but %d processes died", what,
                 (unsigned long long)unknown, deaths);
    check_locks(stage, deaths, what);
    shoal_audit audit;
    kill_require(sh_world_audit(false, &audit) == SHOAL_OK, "%s: %s", what, shoal_last_error_text());
    uint64_t recovered = sh_load_relaxed(&sh_the_world.header->recovered);
    kill_require(stage->in_order || recovered - stage->recovered >= (uint64_t)(deaths > 0), "%s: nobody was recovered",
                 what);
    stage->recovered = recovered;
}

void kill_drain(kill_stage *stage)
{
    do { /* rejects may be full, and then those over the limit wait in their queue */
        while (kill_get(stage, KILL_REJECTS)) {
        }
        while (kill_get(stage, KILL_LEASES)) {
        }
        kill_report(stage, "draining");
    } while (shoal_queue_size(stage->queues[KILL_LEASES]) > 0);
    for (int i = 0; i < KILL_CHANNELS; i++) {
        while (kill_get(stage, (kill_channel)i)) {
        }
    }
    kill_report(stage, "draining");
}

/* ---- the stage ---- */

static void make_objects(kill_stage *stage)
{
    for (int i = 0; i < KILL_CHANNELS; i++) {
        shoal_queue_options options = {.bound = i == KILL_BOUNDED   ? 8
                                                : i == KILL_REJECTS ? 4
                                                                    : 0,
                                       .acknowledge = i == KILL_DELIVERIES};
        if (i != KILL_LEASES) {
            kill_require_ok(shoal_queue_create_with(&options, &stage->queues[i]));
        }
    }
    shoal_queue_options leases = {
        .acknowledge = true, .lease = SHOAL_MS(1), .deliveries = 2, .rejects = stage->queues[KILL_REJECTS]};
    kill_require_ok(shoal_queue_create_with(&leases, &stage->queues[KILL_LEASES]));
    kill_require_ok(shoal_lock_create(&stage->lock));
    kill_require_ok(shoal_lock_create(&stage->unmarked));
    kill_require_ok(shoal_lock_lock(stage->unmarked, SHOAL_NOW));
    kill_require(sh_lock_repair((sh_lock_shm *)((shoal_block *)stage->unmarked)->data, sh_peers_now->self()),
                 "the unmarked lock");
    kill_require_ok(shoal_rlock_create(&stage->rlock));
    kill_require_ok(shoal_semaphore_create(KILL_SEMAPHORE, KILL_SEMAPHORE, &stage->semaphore));
    kill_require_ok(shoal_event_create(&stage->event));
    kill_require_ok(shoal_condition_create(&stage->condition));
    kill_require_ok(shoal_barrier_create(2, &stage->barrier));
}

void kill_stage_begin(kill_stage *stage, int survivors, uint64_t heap_limit)
{
    memset(stage, 0, sizeof *stage);
    stage->tight = heap_limit != 0;
    stage->random = kill_seed();
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* when a victim dies, its children become children of this process */
    stage->board = mmap(NULL, sizeof *stage->board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(stage->board, MAP_FAILED);
    sh_cardstore_limit = SHOAL_MS(20); /* a stopped process may have its lock */
    kill_point_count();                /* lists the points once, before the forks */
    kill_require_ok(shoal_world_create(
        &(shoal_world_options){.heap_limit = stage->tight ? heap_limit : HEAP_ENOUGH, .reserve = RESERVE}));
    make_objects(stage);
    for (int i = 0; i < survivors; i++) {
        pid_t pid = kill_fork("survivor");
        kill_require(pid >= 0, "fork: %s", shoal_last_error_text());
        if (pid == 0) {
            survive(stage, i);
        }
        stage->pids[stage->survivors++] = pid;
    }
}

static uint64_t gets_of(const kill_stage *stage, int channel)
{
    return sh_load_relaxed(&stage->board->channels[channel].got) + stage->lost_gets[channel];
}

void kill_stage_end(kill_stage *stage)
{
    sh_store_release(&stage->board->stop, 1);
    for (int i = 0; i < stage->survivors; i++) {
        int status = kill_reap(stage, stage->pids[i]);
        kill_require(status == 0, "survivor %d ended with wait status 0x%x", i, status);
    }
    stage->survivors = 0;
    kill_drain(stage);
    kill_check(stage, 0, "the end");
    for (int i = 0; i < KILL_CHANNELS; i++) {
        uint64_t put = sh_load_relaxed(&stage->board->channels[i].put) + stage->lost_puts[i];
        uint64_t got = gets_of(stage, i) + (i == KILL_LEASES ? gets_of(stage, KILL_REJECTS) : 0);
        kill_require(put == got || i == KILL_REJECTS, "channel %d: %llu put, %llu got", i, (unsigned long long)put,
                     (unsigned long long)got);
        shoal_release(stage->queues[i]);
    }
    void *const objects[] = {stage->lock,  stage->unmarked,  stage->rlock,  stage->semaphore,
                             stage->event, stage->condition, stage->barrier};
    for (size_t i = 0; i < sizeof objects / sizeof objects[0]; i++) {
        sh_block_release(objects[i]);
    }
    munmap(stage->board, sizeof *stage->board);
}
