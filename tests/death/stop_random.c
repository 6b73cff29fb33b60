/* Random stops: processes pass messages through one small ring. One of them is stopped at any instruction while the
 * others continue, and continues later. A stopped process costs the others nothing: no call fails, no message is lost
 * or arrives twice, and the size of the queue is exact.
 *
 * SHOAL_SOAK_STOPS sets how often, SHOAL_SEED sets the seed. In the soak test some stops last for up to 2^22 laps of
 * the ring and more than 2^24 operations of each other process: long enough for a lap, or a tag, to repeat. */
#include "base/clock.h"
#include "base/random.h"
#include "os/futex.h"
#include "shm/slot.h"
#include "tests/harness/kill.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORKERS 3
#define RING 16                  /* entries in the ring of a queue with few messages */
#define LONG (UINT64_C(1) << 26) /* messages: 2^22 laps of the ring */

/* Outside the world. Synchronisation: each worker writes its own words after the call returned; the test reads them. */
typedef struct worker_count {
    sh_a64 puts, gets, sum_put, sum_got;
} __attribute__((aligned(SH_CACHE_LINE))) worker_count;

typedef struct board {
    worker_count workers[WORKERS];
    sh_a32 end;
    sh_a32 failed; /* 1 + the error of a call */
} board;

static void give_up(board *b, shoal_err err)
{
    uint32_t none = 0;
    sh_cas_acq_rel(&b->failed, &none, 1 + (uint32_t)err);
}

static void count(sh_a64 *word, uint64_t more)
{
    sh_store_release(word, sh_load_relaxed(word) + more);
}

/* Puts a number, takes one, and sometimes sends a block around, so each worker has at most one message more in the ring
 * than it took. */
static _Noreturn void work(board *b, int me, shoal_queue *numbers, shoal_queue *blocks)
{
    worker_count *mine = &b->workers[me];
    shoal_block *block = NULL;
    if (shoal_block_create(64, &block) != SHOAL_OK) {
        give_up(b, shoal_last_error());
    }
    for (uint64_t n = 1; sh_load_acquire(&b->end) == 0 && sh_load_relaxed(&b->failed) == 0; n++) {
        uint64_t got = 0;
        size_t size;
        shoal_err err = shoal_queue_put_bytes(numbers, &n, sizeof n, SHOAL_NOW);
        if (err != SHOAL_OK) {
            give_up(b, err);
            break;
        }
        count(&mine->sum_put, n);
        count(&mine->puts, 1);
        err = shoal_queue_get_bytes(numbers, &got, sizeof got, SHOAL_NOW, &size);
        if (err == SHOAL_OK) {
            count(&mine->sum_got, got);
            count(&mine->gets, 1);
        } else if (err != SHOAL_ETIMEDOUT) { /* empty: the worker that took our message has put none yet */
            give_up(b, err);
        }
        if (n % 8 == 0 && block != NULL) {
            shoal_block *other = NULL;
            err = shoal_queue_put_block(blocks, block, SHOAL_NOW);
            if (err == SHOAL_OK) {
                err = shoal_queue_get_block(blocks, SHOAL_NOW, &other);
                shoal_release(other);
            }
            if (err != SHOAL_OK && err != SHOAL_ETIMEDOUT) {
                give_up(b, err);
            }
        }
    }
    shoal_release(block);
    kill_exit(0);
}

static uint64_t puts_of_others(const board *b, int stopped)
{
    uint64_t n = 0;
    for (int i = 0; i < WORKERS; i++) {
        n += i == stopped ? 0 : sh_load_acquire(&b->workers[i].puts);
    }
    return n;
}

/* Stops one worker while the others pass that many messages. The test fails if they cannot. */
static void stop_one(const board *b, const pid_t *pids, int who, uint64_t messages)
{
    int status;
    kill(pids[who], SIGSTOP);
    kill_require(waitpid(pids[who], &status, WUNTRACED) == pids[who] && WIFSTOPPED(status), "worker %d: status 0x%x",
                 who, status);
    uint64_t before = puts_of_others(b, who), seen = before;
    int64_t deadline = sh_deadline(SH_PATIENCE);
    while (seen < before + messages && sh_load_acquire(&b->failed) == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        uint64_t now = puts_of_others(b, who);
        deadline = now != seen ? sh_deadline(SH_PATIENCE) : deadline;
        kill_require(!sh_passed(deadline), "while worker %d is stopped the others do not continue", who);
        seen = now;
    }
    ck_assert_ok(shoal_world_sweep(NULL));
    kill(pids[who], SIGCONT);
}

static void check_sums(const board *b, shoal_queue *numbers)
{
    uint64_t puts = 0, gets = 0, sum = 0, left = 0, got;
    size_t size;
    for (int i = 0; i < WORKERS; i++) {
        puts += sh_load_acquire(&b->workers[i].puts);
        gets += sh_load_acquire(&b->workers[i].gets);
        sum += sh_load_acquire(&b->workers[i].sum_put) - sh_load_acquire(&b->workers[i].sum_got);
    }
    ck_assert_uint_eq(shoal_queue_size(numbers), puts - gets);
    while (shoal_queue_get_bytes(numbers, &got, sizeof got, SHOAL_NOW, &size) == SHOAL_OK) {
        sum -= got;
        left++;
    }
    ck_assert_uint_eq(left, puts - gets);
    ck_assert_uint_eq(sum, 0);
    printf("%llu messages, %.3g laps\n", (unsigned long long)puts, (double)puts / RING);
    fflush(stdout);
}

START_TEST(stops_at_random)
{
    const char *text = getenv("SHOAL_SOAK_STOPS");
    uint64_t stops = text != NULL ? strtoull(text, NULL, 10) : (uint64_t)SH_REPEAT(100), random = kill_seed();
    shoal_queue *numbers, *blocks;
    pid_t pids[WORKERS];
    int status;
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(b, MAP_FAILED);
    ck_assert_ok(shoal_queue_create(0, &numbers));
    ck_assert_ok(shoal_queue_create(0, &blocks));
    for (int i = 0; i < WORKERS; i++) {
        pids[i] = kill_fork("worker");
        kill_require(pids[i] >= 0, "fork: %s", shoal_last_error_text());
        if (pids[i] == 0) {
            work(b, i, numbers, blocks);
        }
    }
    for (uint64_t n = 0; n < stops && sh_load_acquire(&b->failed) == 0; n++) {
        bool very_long = text != NULL && n % 128 == 0;
        uint64_t most = very_long ? LONG + LONG / 4 : 1 << 12;
        stop_one(b, pids, (int)sh_splitmix_below(&random, WORKERS),
                 sh_splitmix_below(&random, most) + (very_long ? LONG : 0));
    }
    sh_store_release(&b->end, 1);
    for (int i = 0; i < WORKERS; i++) {
        ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
        ck_assert_int_eq(status, 0);
    }
    uint32_t failed = sh_load_acquire(&b->failed);
    ck_assert_msg(failed == 0, "a call failed: %s", failed == 0 ? "" : shoal_err_name((shoal_err)(failed - 1)));
    printf("%llu stops of workers\n", (unsigned long long)stops);
    check_sums(b, numbers);
    shoal_release(numbers);
    shoal_release(blocks);
    munmap(b, sizeof *b);
}
END_TEST

/* The same for receivers of an acknowledged queue with a lease of 1 ms, which lose their messages when they are
 * stopped: every block that a message brings carries the message's number, and each message is done, rejected or
 * there. */
START_TEST(receivers_stop_at_random)
{
    const char *text = getenv("SHOAL_SOAK_STOPS");
    uint64_t stops = text != NULL ? strtoull(text, NULL, 10) : (uint64_t)SH_REPEAT(300);
    kill_stage stage;
    setenv("SHOAL_KILL_STEP", "leases", 1);
    kill_stage_begin(&stage, WORKERS, 0);
    for (uint64_t n = 0; n < stops; n++) {
        int status;
        pid_t pid = stage.pids[sh_splitmix_below(&stage.random, WORKERS)];
        kill(pid, SIGSTOP);
        kill_require(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status), "status 0x%x", status);
        nanosleep(&(struct timespec){.tv_nsec = (long)sh_splitmix_below(&stage.random, SHOAL_MS(4))}, NULL);
        kill(pid, SIGCONT);
        if (n % 16 == 15 || n + 1 == stops) {
            kill_pause(&stage);
            kill_check(&stage, 0, "after stops of receivers");
            kill_resume(&stage);
        }
    }
    printf("%llu stops of receivers\n", (unsigned long long)stops);
    kill_stage_end(&stage);
}
END_TEST

/* The harness itself: a message that one process holds while more others pass than there are words for ids is still
 * known when it returns. */
START_TEST(a_message_may_be_away_for_long)
{
    kill_stage stage;
    shoal_value *value;
    shoal_delivery away;
    kill_stage_begin(&stage, 0, 0);
    ck_assert(kill_put(&stage, KILL_DELIVERIES, &stage.random));
    ck_assert_ok(shoal_queue_get_delivery(stage.queues[KILL_DELIVERIES], SHOAL_NOW, &value, &away));
    shoal_value_destroy(value);
    for (uint32_t n = 0; n <= KILL_IDS; n++) {
        kill_require(kill_put(&stage, KILL_DELIVERIES, &stage.random), "put %u", n);
        kill_require(kill_get(&stage, KILL_DELIVERIES), "get %u", n);
    }
    ck_assert_ok(shoal_delivery_return(&away));
    kill_stage_end(&stage); /* gets it, and checks that it was not got before */
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stop_random");
    TCase *c = tcase_create("random");
    tcase_set_timeout(c, getenv("SHOAL_SOAK_STOPS") != NULL ? 86400 : SH_TEST_SECONDS);
    tcase_add_checked_fixture(c, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(c, stops_at_random);
    tcase_add_test(c, receivers_stop_at_random);
    tcase_add_test(c, a_message_may_be_away_for_long);
    suite_add_tcase(s, c);
    return s;
}

SH_TEST_MAIN(suite)
