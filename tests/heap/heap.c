/* The heap as a program sees it: it gets full, memory is returned and reused,
 * and fds and mappings do not grow: B11 to B14. */
#include "tests/harness/children.h"
#include "tests/harness/counts.h"

#include <shoal/binding.h>

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/time.h>

#define LIMITED (32u << 20) /* a heap that is soon full */

static void limited_world(uint64_t bytes)
{
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.heap_limit = bytes}));
    ck_assert_uint_eq(sh_test_world().heap_limit, bytes);
}

/* Blocks of one size, made until the heap is full; each contains its number. */
typedef struct pile {
    shoal_block **blocks;
    size_t count, room;
} pile;

static shoal_err pile_up(pile *p, size_t size, size_t most)
{
    for (;;) {
        shoal_block *b = NULL;
        if (p->count == most) {
            return SHOAL_OK;
        }
        if (p->count == p->room) {
            p->room = p->room == 0 ? 1024 : p->room * 2;
            p->blocks = realloc(p->blocks, p->room * sizeof *p->blocks);
        }
        shoal_err err = shoal_block_create(size, &b);
        if (err != SHOAL_OK) {
            hot(b == NULL); /* outputs stay unchanged */
            return err;
        }
        hot(shoal_block_size(b) == size);
        if (size >= 8) { /* write the first and last bytes, to prove that all of it exists */
            memcpy(shoal_block_data(b), &p->count, 8);
            memcpy((char *)shoal_block_data(b) + size - 8, &p->count, 8);
        }
        p->blocks[p->count++] = b;
    }
}

static void pile_check(const pile *p, size_t size)
{
    for (size_t i = 0; i < p->count; i++) {
        hot(memcmp(shoal_block_data(p->blocks[i]), &i, 8) == 0);
        hot(memcmp((char *)shoal_block_data(p->blocks[i]) + size - 8, &i, 8) == 0);
    }
}

static void pile_release(pile *p)
{
    for (size_t i = 0; i < p->count; i++) {
        shoal_release(p->blocks[i]);
    }
    free(p->blocks);
    *p = (pile){0};
}

/* ---- B14 ---- */

START_TEST(b14_a_full_heap_says_so_and_goes_on)
{
    static const size_t sizes[] = {64, 3000, 40000, 1u << 20, 5u << 20};
    shoal_queue *q;
    shoal_lock *lock;
    size_t size = sizes[_i];
    limited_world(LIMITED);
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(shoal_lock_create(&lock));
    ck_assert_ok(shoal_queue_put_bytes(q, "put before it was full", 22, LIMIT));
    for (int round = 0; round < 2; round++) {
        pile p = {0};
        char buffer[32];
        size_t n = 0;
        ck_assert_err(pile_up(&p, size, SIZE_MAX), SHOAL_ENOMEM);
        ck_words(size);
        ck_assert_uint_le(sh_test_world().heap_used, LIMITED);
        ck_assert_uint_ge(p.count * size, LIMITED / 2); /* the heap's own data take less than half */
        pile_check(&p, size);
        ck_assert_ok(shoal_queue_get_bytes(q, buffer, sizeof buffer, LIMIT, &n)); /* existing objects still work */
        ck_assert_mem_eq(buffer, "put before it was full", 22);
        ck_assert_ok(shoal_lock_lock(lock, LIMIT));
        ck_assert_ok(shoal_lock_unlock(lock));
        ck_assert_ok(shoal_queue_put_bytes(q, "12345678", 8, LIMIT));
        ck_assert_ok(shoal_queue_get_bytes(q, buffer, sizeof buffer, LIMIT, &n));
        sh_assert_audit("when it is full");
        size_t count = p.count;
        for (size_t i = count / 2; i < count; i++) { /* free half of it: as much fits again */
            shoal_release(p.blocks[i]);
        }
        p.count = count / 2;
        ck_assert_ok(pile_up(&p, size, count - 1));
        pile_check(&p, size);
        pile_release(&p);
        ck_assert_ok(shoal_queue_put_bytes(q, "put before it was full", 22, LIMIT));
    }
    shoal_release(lock);
    shoal_release(q);
}
END_TEST

START_TEST(b14_freed_small_blocks_make_room_for_a_large_one_and_the_other_way_round)
{
    enum { LARGE = 17 << 20 }; /* of 32 MiB; the records of the small blocks and the cells of their handles stay */
    limited_world(LIMITED);
    for (int round = 0; round < 2; round++) {
        pile small = {0}, large = {0};
        ck_assert_err(pile_up(&small, round % 2 == 0 ? 64 : 5000, SIZE_MAX), SHOAL_ENOMEM);
        ck_assert_err(pile_up(&large, LARGE, 1), SHOAL_ENOMEM);
        pile_release(&small);
        ck_assert_ok(pile_up(&large, LARGE, 1));
        pile_check(&large, LARGE);
        ck_assert_err(pile_up(&small, 64, SIZE_MAX), SHOAL_ENOMEM);
        size_t beside = small.count;
        pile_release(&large);
        ck_assert_err(pile_up(&small, 64, SIZE_MAX), SHOAL_ENOMEM);
        ck_assert_uint_gt(small.count, beside + LARGE / 2 / 80);
        pile_check(&small, 64);
        pile_release(&small);
        pile_release(&large);
        sh_assert_audit("after a round");
    }
}
END_TEST

START_TEST(b14_requests_that_cannot_be_met_leave_no_trace)
{
    static const size_t sizes[] = {(size_t)1 << 40, ((size_t)1 << 40) + 1, (size_t)1 << 45,
                                   SIZE_MAX / 2,    SIZE_MAX - 4095,       SIZE_MAX};
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.heap_limit = 100u << 20}));
    shoal_block_release(NULL);
    uint64_t used = sh_test_world().heap_used;
    for (int round = 0; round < 30; round++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            shoal_block *b = NULL;
            ck_assert_err(shoal_block_create(sizes[i], &b), SHOAL_ENOMEM);
            ck_assert_err(shoal_block_create_zeroed(sizes[i], &b), SHOAL_ENOMEM);
            ck_assert_ptr_null(b);
        }
        ck_assert_uint_eq(sh_test_world().blocks_live, 0);
    }
    ck_assert_uint_lt(sh_test_world().heap_used, used + (1u << 20));
}
END_TEST

START_TEST(b14_a_limit_from_the_environment)
{
    shoal_block *b = NULL;
    static const char *const wrong[] = {"", "x", "12Q", "-1", "0", "64MB", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        setenv("SHOAL_HEAP_LIMIT", wrong[i], 1);
        ck_assert_err(shoal_block_create(1, &b), SHOAL_EINVAL);
        ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "SHOAL_HEAP_LIMIT"));
    }
    setenv("SHOAL_HEAP_LIMIT", "48M", 1);
    setenv("SHOAL_SPIN_NS", "abc", 1);
    ck_assert_err(shoal_block_create(1, &b), SHOAL_EINVAL);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "SHOAL_SPIN_NS=abc"));
    unsetenv("SHOAL_SPIN_NS");
    ck_assert_err(shoal_block_create(49u << 20, &b), SHOAL_ENOMEM);
    ck_assert_uint_eq(sh_test_world().heap_limit, 48u << 20);
    ck_assert_ok(shoal_block_create(40u << 20, &b));
    shoal_release(b);
}
END_TEST

/* A world that would exceed the file size limit of this process is an error; the signal that the system sends does not
 * end the process. */
START_TEST(b14_a_limit_of_file_sizes)
{
    static const rlim_t limits[] = {0, 512000, (512u << 20) - 1};
    struct rlimit limit;
    shoal_block *b = NULL;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        int set = setrlimit(RLIMIT_FSIZE, &(struct rlimit){limits[i], limit.rlim_max});
        shoal_err err = shoal_block_create(1, &b);
        set += setrlimit(RLIMIT_FSIZE, &limit); /* reset before the checks, because they write to a file */
        ck_assert_int_eq(set, 0);
        ck_assert_err(err, SHOAL_EOS);
        ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "RLIMIT_FSIZE"));
    }
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){512u << 20, limit.rlim_max}), 0);
    ck_assert_ok(shoal_block_create(1, &b));
    ck_assert_uint_eq(sh_test_world().reserved, 512u << 20);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    shoal_release(b);
}
END_TEST

/* ---- memory comes and goes ---- */

START_TEST(b14_a_large_block_is_given_back)
{
    enum { MIB = 1 << 20, LARGE = 512 };
    limited_world((uint64_t)1024 * MIB);
    for (int round = 0; round < 3; round++) {
        shoal_block *b;
        ck_assert_ok(shoal_block_create((size_t)LARGE * MIB, &b));
        memset(shoal_block_data(b), round, (size_t)LARGE * MIB);
        ck_assert_uint_ge(sh_test_world().heap_used, (uint64_t)LARGE * MIB);
        shoal_release(b);
        ck_assert_uint_lt(sh_test_world().heap_used, (uint64_t)LARGE / 2 * MIB);
    }
    pile p = {0};
    ck_assert_ok(pile_up(&p, 3 * MIB, 100));
    uint64_t full = sh_test_world().heap_used;
    pile_release(&p);
    ck_assert_ok(shoal_world_trim());
    ck_assert_uint_lt(sh_test_world().heap_used + (uint64_t)290 * MIB, full);
    ck_assert_ok(pile_up(&p, 1000, 100000));
    pile_check(&p, 1000);
    full = sh_test_world().heap_used;
    pile_release(&p);
    ck_assert_ok(shoal_world_trim());
    ck_assert_uint_lt(sh_test_world().heap_used + (uint64_t)80 * MIB, full);
    ck_assert_ok(pile_up(&p, 1000, 100000)); /* and returns */
    pile_check(&p, 1000);
    pile_release(&p);
}
END_TEST

/* A timer that interrupts every long system call must not stop an allocation. */
static void ignore(int number)
{
    (void)number;
}

START_TEST(signals_do_not_stop_an_allocation)
{
    struct itimerval each = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}}, never = {0};
    struct sigaction action = {.sa_handler = ignore};
    shoal_block *b;
    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &each, NULL), 0);
    ck_assert_ok(shoal_block_create((size_t)512 << 20, &b));
    ck_assert_int_eq(setitimer(ITIMER_REAL, &never, NULL), 0);
    shoal_release(b);
}
END_TEST

static double ns_of_allocations(void)
{
    enum { N = 20000 };
    int64_t begin = clock_ns();
    for (int i = 0; i < N; i++) {
        shoal_block *b;
        hot_ok(shoal_block_create(200, &b));
        shoal_release(b);
    }
    return (double)(clock_ns() - begin) / N;
}

START_TEST(b12_a_million_live_blocks)
{
    pile p = {0};
    size_t n = SH_REPEAT(1000000);
    double few = ns_of_allocations();
    ck_assert_ok(pile_up(&p, 200, n));
    double many = ns_of_allocations();
    printf("%zu live blocks: create and release %.0f ns; with none %.0f ns\n", n, many, few);
    pile_check(&p, 200);
    ck_assert_uint_eq(sh_test_world().blocks_live, n);
    ck_assert_uint_eq(sh_test_world().bytes_live, n * 200);
    pile_release(&p);
}
END_TEST

START_TEST(blocks_are_aligned_zeroed_and_distinct)
{
    for (size_t size = 0; size < (8u << 20); size = size * 3 / 2 + 1) {
        shoal_block *a, *b;
        ck_assert_ok(shoal_block_create(size, &a));
        memset(shoal_block_data(a), 0xff, size);
        shoal_release(a);
        ck_assert_ok(shoal_block_create_zeroed(size, &a)); /* probably the same memory */
        ck_assert_ok(shoal_block_create(size, &b));
        ck_assert_ptr_ne(a, b);
        ck_assert_uint_ne(shoal_block_id(a), shoal_block_id(b));
        uintptr_t address = (uintptr_t)shoal_block_data(a);
        ck_assert_uint_eq(address % (size >= 16384 ? 4096 : 64), 0);
        ck_assert_uint_eq(shoal_block_size(a), size);
        memset(shoal_block_data(b), 0xff, size);
        for (size_t i = 0; i < size; i++) {
            hot(((char *)address)[i] == 0);
        }
        shoal_release(a);
        shoal_release(b);
    }
}
END_TEST

START_TEST(b4_blocks_of_no_size_travel)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int i = 0; i < 30; i++) {
        shoal_block *a, *b = NULL;
        ck_assert_ok(shoal_block_create(0, &a));
        ck_assert_ok(shoal_queue_put_block(q, a, SHOAL_NOW));
        ck_assert_ok(shoal_queue_get_block(q, SHOAL_NOW, &b));
        ck_assert(a == b && shoal_block_size(b) == 0);
        shoal_release(a);
        shoal_release(b);
    }
    shoal_release(q);
}
END_TEST

START_TEST(blocks_are_found_by_address)
{
    shoal_block *small[3], *large, *found = NULL;
    for (int i = 0; i < 3; i++) {
        ck_assert_ok(shoal_block_create(100, &small[i]));
    }
    ck_assert_ok(shoal_block_create(100000, &large));
    for (int i = 0; i < 3; i++) {
        for (size_t at = 0; at < 100; at += 33) {
            ck_assert_ok(shoal_block_find((char *)shoal_block_data(small[i]) + at, &found));
            ck_assert_ptr_eq(found, small[i]);
            shoal_release(found);
        }
    }
    char *end = (char *)shoal_block_data(large) + 100000;
    ck_assert_ok(shoal_block_find(end - 1, &found));
    ck_assert_ptr_eq(found, large);
    shoal_release(found);
    ck_assert_err(shoal_block_find(end, &found), SHOAL_ENOENT);
    ck_assert_err(shoal_block_find(&found, &found), SHOAL_ENOENT);
    shoal_release(large);
    ck_assert_err(shoal_block_find(end - 1, &found), SHOAL_ENOENT);
    for (int i = 0; i < 3; i++) {
        shoal_release(small[i]);
    }
}
END_TEST

/* Opens the block by its number, and adds to its bytes. */
static shoal_err open_block(int rank, const shoal_value *args)
{
    shoal_block *b;
    (void)rank;
    must_ok(shoal_block_open((uint64_t)ARG_INT("id"), &b));
    must(shoal_block_size(b) == 100);
    ((char *)shoal_block_data(b))[99] += 1;
    shoal_release(b);
    must_err(shoal_block_open((uint64_t)ARG_INT("queue"), &b), SHOAL_ENOENT);
    must_err(shoal_block_open(UINT64_MAX, &b), SHOAL_ENOENT);
    return SHOAL_OK;
}

START_TEST(blocks_are_opened_by_number)
{
    shoal_block *b, *again;
    ck_assert_ok(shoal_block_create_zeroed(100, &b));
    shoal_queue *q = make_queue(0);
    int64_t id = (int64_t)shoal_block_id(b), other = (int64_t)((shoal_block *)(void *)q)->id;
    for (int i = 1; i <= 3; i++) {
        finish(start(_i, 0, open_block, shoal_map("id", id, "queue", other)));
        ck_assert_int_eq(((char *)shoal_block_data(b))[99], i);
    }
    ck_assert_ok(shoal_block_open((uint64_t)id, &again));
    ck_assert_ptr_eq(again, b);
    shoal_release(again);
    shoal_release(b);
    ck_assert_err(shoal_block_open((uint64_t)id, &again), SHOAL_ENOENT);
    shoal_release(q);
}
END_TEST

/* ---- B12: fds and mappings ---- */

/* Holds n blocks that it gets, reports its counts, and ends. */
static shoal_err hold_blocks(int rank, const shoal_value *args)
{
    int64_t n = ARG_INT("count");
    shoal_block *b;
    (void)rank;
    for (int64_t i = 0; i < n; i++) {
        must_ok(shoal_queue_get_block(ARG(queue, "in"), LIMIT, &b)); /* kept */
    }
    counts c = count_here();
    must_ok(shoal_return(shoal_list(c.fds, c.mappings)));
    return SHOAL_OK;
}

static counts with_blocks(int method, int64_t n, counts *out_child)
{
    shoal_queue *in, *messages;
    shoal_block **blocks = calloc((size_t)n, sizeof *blocks);
    ck_assert_ok(shoal_queue_create(0, &in));
    ck_assert_ok(shoal_queue_create(0, &messages));
    for (int64_t i = 0; i < n; i++) {
        hot_ok(shoal_block_create(100, &blocks[i]));
        hot_ok(shoal_queue_put_block(in, blocks[i], LIMIT));
        hot_ok(shoal_queue_put(messages, shoal_list(i, "in flight", blocks[i]), LIMIT));
    }
    counts here = count_here();
    *out_child = finish_counted(start(method, 0, hold_blocks, shoal_map("in", in, "count", n)));
    for (int64_t i = 0; i < n; i++) {
        shoal_release(blocks[i]);
    }
    free(blocks);
    shoal_release(in);
    shoal_release(messages);
    return here;
}

START_TEST(b12_ten_thousand_blocks_and_messages_cost_no_fd_and_no_mapping)
{
    counts few_child, many_child;
    finish(start(_i, 0, hold_blocks, shoal_map("count", 0))); /* from now on the fork server exists */
    counts few = with_blocks(_i, 10, &few_child), many = with_blocks(_i, 10000, &many_child);
    expect_same_counts("blocks and messages", few, many, few_child, many_child);
}
END_TEST

/* ---- B11, B12: through other processes ---- */

/* Gets a block, adds its rank + 1 to the contents, and sends it on. */
static shoal_err pass_on(int rank, const shoal_value *args)
{
    shoal_queue *in = ARG(queue, "in"), *out = ARG(queue, "out");
    shoal_block *b;
    shoal_err err;
    while ((err = shoal_queue_get_block(in, LIMIT, &b)) == SHOAL_OK) {
        *(int64_t *)shoal_block_data(b) += rank + 1;
        must_ok(shoal_queue_put_block(out, b, LIMIT));
        shoal_release(b);
    }
    must_err(err, SHOAL_ECLOSED);
    return SHOAL_OK;
}

START_TEST(b12_blocks_in_a_chain_of_three_add_up_and_all_memory_returns)
{
    enum { LINKS = 2 };
    shoal_queue *q[LINKS + 1];
    shoal_process *p[LINKS];
    int64_t n = SH_REPEAT(200000), sum = 0;
    for (int i = 0; i <= LINKS; i++) {
        ck_assert_ok(shoal_queue_create(100, &q[i]));
    }
    for (int i = 0; i < LINKS; i++) {
        p[i] = start(_i, i, pass_on, shoal_map("in", q[i], "out", q[i + 1]));
    }
    uint64_t live = sh_test_world().blocks_live;
    for (int64_t put = 0, got = 0; got < n;) {
        shoal_block *b;
        if (put < n && put - got < 150) {
            hot_ok(shoal_block_create(1024, &b));
            *(int64_t *)shoal_block_data(b) = put++;
            hot_ok(shoal_queue_put_block(q[0], b, LIMIT));
        } else {
            hot_ok(shoal_queue_get_block(q[LINKS], LIMIT, &b));
            sum += *(int64_t *)shoal_block_data(b);
            got++;
        }
        shoal_release(b);
    }
    ck_assert_int_eq(sum, n * (n - 1) / 2 + n * 3);
    shoal_queue_close(q[0]);
    finish(p[0]);
    shoal_queue_close(q[1]);
    finish(p[1]);
    ck_assert_uint_le(sh_test_world().blocks_live, live);
    ck_assert_uint_lt(sh_test_world().heap_used, 32u << 20);
    for (int i = 0; i <= LINKS; i++) {
        shoal_release(q[i]);
    }
}
END_TEST

/* The number of blocks does not exceed what the two processes can cache: when the next block is requested, a block may
 * be in the cache of the other process, or not released there yet. */
START_TEST(b11_buffers_that_come_back_are_used_again)
{
    enum { MOST = 12 };
    shoal_queue *in, *out;
    uint64_t ids[MOST];
    int different = 0;
    ck_assert_ok(shoal_queue_create(0, &in));
    ck_assert_ok(shoal_queue_create(0, &out));
    shoal_process *p = start(_i, 0, pass_on, shoal_map("in", in, "out", out));
    for (int i = 0; i < 10000; i++) {
        shoal_block *b, *back;
        int k = 0;
        hot_ok(shoal_block_create(100000, &b));
        for (; k < different && ids[k] != shoal_block_id(b); k++) {
        }
        hot(k < MOST);
        different += k == different;
        ids[k] = shoal_block_id(b);
        hot_ok(shoal_queue_put_block(in, b, LIMIT));
        shoal_release(b);
        hot_ok(shoal_queue_get_block(out, LIMIT, &back));
        hot(shoal_block_id(back) == ids[k]);
        shoal_release(back);
    }
    printf("10,000 blocks sent and returned: %d different ones\n", different);
    shoal_queue_close(in);
    finish(p);
    shoal_release(in);
    shoal_release(out);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("heap");
    TCase *tc = children_case("limit");
    tcase_add_loop_test(tc, b14_a_full_heap_says_so_and_goes_on, 0, 5);
    tcase_add_test(tc, b14_freed_small_blocks_make_room_for_a_large_one_and_the_other_way_round);
    tcase_add_test(tc, b14_requests_that_cannot_be_met_leave_no_trace);
    tcase_add_test(tc, b14_a_limit_from_the_environment);
    tcase_add_test(tc, b14_a_limit_of_file_sizes);
    tcase_add_test(tc, b14_a_large_block_is_given_back);
    suite_add_tcase(s, tc);
    tc = children_case("blocks");
    tcase_add_test(tc, signals_do_not_stop_an_allocation);
    tcase_add_test(tc, b12_a_million_live_blocks);
    tcase_add_test(tc, blocks_are_aligned_zeroed_and_distinct);
    tcase_add_test(tc, b4_blocks_of_no_size_travel);
    tcase_add_test(tc, blocks_are_found_by_address);
    add_for_methods(tc, blocks_are_opened_by_number);
    suite_add_tcase(s, tc);
    tc = children_case("processes");
    add_for_methods(tc, b12_ten_thousand_blocks_and_messages_cost_no_fd_and_no_mapping);
    add_for_methods(tc, b12_blocks_in_a_chain_of_three_add_up_and_all_memory_returns);
    add_for_methods(tc, b11_buffers_that_come_back_are_used_again);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
