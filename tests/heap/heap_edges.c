/* The heap at its edges: a block that is sent more often than its word can count, and addresses that run out while dead
 * or idle processes have free blocks. */
#include "shm/block.h"
#include "shm/handle.h"
#include "tests/harness/children.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

/* ---- weights ---- */

/* Gets the block once, then sends it back as often as requested. */
static shoal_err send_again(int rank, const shoal_value *args)
{
    shoal_queue *in = ARG(queue, "in"), *out = ARG(queue, "out");
    shoal_block *block = NULL;
    (void)rank;
    must_ok(shoal_queue_get_block(in, LIMIT, &block));
    for (int64_t n = ARG_INT("count"); n > 0; n--) {
        shoal_err err = shoal_queue_put_block(out, block, LIMIT);
        if (err != SHOAL_OK) {
            return err;
        }
    }
    shoal_release(block);
    return SHOAL_OK;
}

static uint64_t weight_of(const shoal_block *b)
{
    return sh_word_weight(sh_load_acquire(&b->meta->word));
}

/* Draws until the block's word has no room for another draw, as after 10^8 sends that this process has received. */
static void fill_word(const shoal_block *b)
{
    sh_ctx *c = sh_enter();
    hot(c != NULL);
    while (sh_heap_draw(c, b->id, b->cell) == SHOAL_OK) {
    }
    sh_leave();
    ck_assert_err(shoal_last_error(), SHOAL_ELIMIT);
}

/* The receiver keeps one handle. The bound holds the sender back, so it draws only after this process has received. It
 * starts before there is a block: what it inherited would be drawn from the block's word, which has no room. */
static void receive_and_keep(int method, uint64_t count, bool filled)
{
    shoal_queue *in = make_queue(0), *out = make_queue(filled ? 8 : 1024);
    shoal_block *block = NULL, *again = NULL;
    shoal_process *p = start(method, 0, send_again, shoal_map("in", in, "out", out, "count", (int64_t)count));
    ck_assert_ok(shoal_block_create_zeroed(64, &block));
    if (filled) {
        fill_word(block);
    }
    ck_assert_ok(shoal_queue_put_block(in, block, LIMIT));
    for (uint64_t n = 0; n < count; n++) {
        hot_ok(shoal_queue_get_block(out, LIMIT, &again));
        hot(again == block);
        shoal_release(again);
        if (n > 8) {
            hot(weight_of(block) < (UINT64_C(1) << 17)); /* two holders and a few messages */
        }
    }
    finish(p);
    sh_assert_audit("a block that was sent very often");
    shoal_release(block);
    shoal_release(in);
    shoal_release(out);
}

START_TEST(weight_that_was_gathered_goes_back)
{
    receive_and_keep(SHOAL_START_FORK, SH_REPEAT(100000), true);
}
END_TEST

START_TEST(a_block_is_sent_for_ever)
{
    const char *sends = getenv("SHOAL_SOAK_SENDS");
    receive_and_keep(SHOAL_START_FORK, sends != NULL ? strtoull(sends, NULL, 10) : SH_REPEAT(200000), false);
}
END_TEST

/* A block that is given around a circle of processes that hold it already gathers no
 * more weight than a cell may have. */
START_TEST(a_given_block_carries_no_more_than_a_cell)
{
    shoal_queue *q = make_queue(0);
    shoal_block *block = NULL;
    ck_assert_ok(shoal_block_create_zeroed(64, &block));
    fill_word(block);
    ck_assert_ok(shoal_queue_give_block(q, block, LIMIT));
    ck_assert_ok(shoal_queue_get_block(q, LIMIT, &block));
    ck_assert_uint_le(weight_of(block), 2 * SH_WEIGHT_HOLD);
    shoal_release(block);
    shoal_release(q);
}
END_TEST

/* ---- addresses ---- */

#define RESERVE ((uint64_t)512 << 20) /* the minimum; spans of large blocks soon fill what the tables leave */
#define LARGE ((size_t)40 << 20)

static void small_world(void)
{
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.reserve = RESERVE}));
}

/* Takes all addresses in blocks of one size; then dies, or releases the blocks into its cache and sleeps. */
static shoal_err take_all(int rank, const shoal_value *args)
{
    shoal_block *blocks[64] = {NULL};
    shoal_queue *told = ARG(queue, "told"), *ended = ARG(queue, "ended");
    shoal_value *v = NULL;
    int64_t size = ARG_INT("size");
    int n = 0;
    while (n < 64 && shoal_block_create((size_t)size, &blocks[n]) == SHOAL_OK) {
        n++;
    }
    must(n > 2 && n < 64);
    for (int i = 0; rank == 0 && i < n; i++) {
        shoal_release(blocks[i]);
    }
    must_ok(shoal_queue_put(told, shoal_value_int(n), LIMIT));
    if (rank == 1) {
        raise(SIGKILL);
    }
    must_err(shoal_queue_get(ended, LIMIT, &v), SHOAL_ECLOSED);
    return SHOAL_OK;
}

static void take_what_is_left(int rank)
{
    shoal_queue *told = make_queue(0), *ended = make_queue(0);
    shoal_process *p =
        start(SHOAL_START_FORK, rank, take_all, shoal_map("told", told, "ended", ended, "size", (int64_t)LARGE));
    shoal_block *blocks[64] = {NULL};
    int n = 0;
    shoal_value *had = NULL;
    ck_assert_ok(shoal_queue_get(told, LIMIT, &had));
    if (rank == 1) { /* wait for its death without joining it, which would recover it */
        siginfo_t info;
        ck_assert_int_eq(waitid(P_PID, (id_t)shoal_process_pid(p), &info, WEXITED | WNOWAIT), 0);
    }
    while (n < 64 && shoal_block_create(LARGE, &blocks[n]) == SHOAL_OK) {
        memset(shoal_block_data(blocks[n]), 1, 4096);
        n++;
    }
    ck_assert_err(shoal_last_error(), SHOAL_ENOMEM);
    ck_assert_int_eq(n, sh_int_of(had));
    shoal_value_destroy(had);
    sh_assert_audit("after the caches of others were emptied");
    while (n > 0) {
        shoal_release(blocks[--n]);
    }
    shoal_queue_close(ended);
    finish_as(p, rank == 1 ? SHOAL_PROCESS_KILLED : SHOAL_PROCESS_RETURNED, SIGKILL);
    shoal_release(told);
    shoal_release(ended);
}

START_TEST(addresses_of_the_dead_are_used_again)
{
    small_world();
    take_what_is_left(1);
}
END_TEST

START_TEST(addresses_in_the_caches_of_the_idle_are_used_again)
{
    small_world();
    take_what_is_left(0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("heap_edges");
    TCase *tc = children_case("weights");
    tcase_add_test(tc, weight_that_was_gathered_goes_back);
    tcase_add_test(tc, a_block_is_sent_for_ever);
    tcase_add_test(tc, a_given_block_carries_no_more_than_a_cell);
    if (getenv("SHOAL_SOAK_SENDS") != NULL) {
        tcase_set_timeout(tc, 3600);
    }
    suite_add_tcase(s, tc);
    tc = children_case("addresses");
    tcase_add_test(tc, addresses_of_the_dead_are_used_again);
    tcase_add_test(tc, addresses_in_the_caches_of_the_idle_are_used_again);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
