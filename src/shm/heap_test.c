/* The heap from the inside: caches, lists, claims, weights, cells, and what is freed with a block. The audit adds up
 * the weights. */
#include "base/random.h"
#include "shm/block.h"
#include "shm/intent.h"
#include "shm/kind.h"
#include "shm/slot.h"
#include "tests/harness/runner.h"

#include <shoal/queue.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SEED 20240229u

static sh_ctx *enter(void)
{
    sh_ctx *c = sh_enter();
    ck_assert_ptr_nonnull(c);
    return c;
}

static uint64_t spans_made(void)
{
    enter();
    sh_leave();
    return sh_load_acquire(&sh_the_world.header->frontier.hi) >> SH_TAG_BITS;
}

static uint64_t live_blocks(void)
{
    shoal_world_info info;
    ck_assert_ok(shoal_world_info_get(&info));
    return info.blocks_live;
}

static sh_ref cell_of(const shoal_block *b)
{
    return sh_load_acquire((sh_a64 *)sh_at(b->cell));
}

static uint64_t word_weight(uint64_t id)
{
    sh_found f;
    ck_assert(sh_heap_find(id, &f));
    return sh_word_weight(sh_load_acquire(&f.meta->word));
}

static shoal_block *make(size_t size)
{
    shoal_block *b = NULL;
    /* No ck_assert: it costs a system call, too much half a million times. */
    if (shoal_block_create(size, &b) != SHOAL_OK) {
        ck_abort_msg("%zu bytes: %s", size, shoal_last_error_text());
    }
    return b;
}

static void shuffle(shoal_block **blocks, size_t n, uint64_t seed)
{
    uint64_t state = seed;
    for (size_t i = n; i > 1; i--) {
        size_t j = sh_splitmix_below(&state, i);
        shoal_block *b = blocks[i - 1];
        blocks[i - 1] = blocks[j];
        blocks[j] = b;
    }
}

/* ---- free blocks ---- */

START_TEST(a_freed_block_is_the_next_one_of_its_class)
{
    for (size_t size = 0; size <= (4u << 20); size = size * 5 / 4 + 1) {
        shoal_block *b = make(size);
        uint64_t id = b->id, spans = spans_made();
        ck_assert_uint_eq(sh_ref_weight(cell_of(b)), SH_WEIGHT_NEW);
        shoal_release(b);
        b = make(size);
        ck_assert_uint_eq(b->id, id);
        ck_assert_uint_eq(spans_made(), spans);
        shoal_release(b);
    }
}
END_TEST

/* More blocks than a cache holds: the rest is in the maps, and all of it is found again before a new span is made. */
START_TEST(blocks_beyond_the_cache_are_listed_and_found_again)
{
    static const size_t sizes[] = {64, 300, 4096, 20000, 70000, 3u << 20};
    enum { N = 100 };
    shoal_block *blocks[N];
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        size_t n = sizes[s] > (1u << 20) ? 12 : N;
        for (int round = 0; round < 30; round++) {
            uint64_t spans = spans_made();
            for (size_t i = 0; i < n; i++) {
                blocks[i] = make(sizes[s]);
            }
            ck_assert_msg(round == 0 || spans_made() == spans, "size %zu: free blocks were not found", sizes[s]);
            shuffle(blocks, n, SEED + (uint64_t)round);
            for (size_t i = 0; i < n; i++) {
                shoal_release(blocks[i]);
            }
            ck_assert_uint_le(sh_the_world.self.cached[sh_class_of(sizes[s])], SH_CACHE_SMALL);
        }
        sh_assert_audit("after a size");
    }
}
END_TEST

START_TEST(a_claim_clears_the_bits_and_keeps_its_intent_open)
{
    uint64_t ids[8];
    uint32_t got = 0;
    shoal_release(make(64));
    sh_ctx *c = enter();
    ck_assert(sh_span_claim(c, sh_class_of(64), ids, 8, &got));
    ck_assert_uint_ge(got, 1);
    ck_assert_uint_le(got, 8);
    ck_assert_uint_eq(sh_load_relaxed(&c->slot->intent.code), SH_INTENT_BITS);
    for (uint32_t i = 0; i < got; i++) {
        sh_found f;
        ck_assert(sh_heap_find(ids[i], &f));
        ck_assert_uint_eq(f.klass, sh_class_of(64));
        ck_assert_uint_ne(sh_load_acquire(&f.meta->word) & SH_WORD_FREE, 0);
        uint32_t index = (uint32_t)(ids[i] & ((1u << SH_INDEX_BITS) - 1));
        sh_a64 *bits = sh_span_map_word((uint32_t)(ids[i] >> SH_INDEX_BITS), f.klass, index / 64);
        ck_assert_uint_eq((sh_load_acquire(bits) >> (index % 64)) & 1, 0);
    }
    sh_intent_end(c);
    sh_leave();
    shoal_audit audit; /* no hint names them now, and the audit says so */
    ck_assert_err(shoal_world_audit(&audit), SHOAL_ECORRUPT);
    ck_assert_uint_eq(audit.lost, got);
    for (uint32_t i = 0; i < got; i++) {
        sh_heap_list(ids[i]);
        sh_heap_list(ids[i]); /* twice is harmless */
    }
    sh_assert_audit("after listing them again");
}
END_TEST

START_TEST(ids_that_name_nothing_are_not_found)
{
    sh_found f;
    uint64_t state = SEED;
    shoal_block *b = make(64);
    ck_assert(sh_heap_find(b->id, &f));
    ck_assert_ptr_eq(f.data, b->data);
    const uint64_t bad[] = {
        SH_ID_MASK,
        SH_ID_MASK + 1,
        UINT64_MAX,
        spans_made() << SH_INDEX_BITS,
        (b->id | ((1u << SH_INDEX_BITS) - 1)) & SH_ID_MASK, /* a span of 64-byte blocks has 1,024 of them */
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_msg(!sh_heap_find(bad[i], &f), "block %llx was found", (unsigned long long)bad[i]);
    }
    for (int i = 0; i < 1000000; i++) {
        uint64_t id = sh_splitmix_next(&state) >> (i % 40);
        if (sh_heap_find(id, &f)) {
            ck_assert(f.data >= sh_the_world.base + SH_HEAP_AT);
            ck_assert(f.data + f.room <= sh_the_world.base + sh_the_world.size);
        }
    }
    shoal_release(b);
}
END_TEST

/* ---- weights ---- */

START_TEST(split_moves_weight_and_the_sum_stays)
{
    shoal_block *b = make(100);
    uint64_t id = b->id, state = SEED;
    sh_ctx *c = enter();
    uint64_t cells[5];
    for (uint32_t i = 0; i < 5; i++) { /* unused cells: one handle needs few */
        cells[i] = sh_offset_of(&c->slot->cells[SH_SLOT_CELLS - 1 - i]);
        ck_assert_uint_eq(sh_load_relaxed((sh_a64 *)sh_at(cells[i])), 0);
    }
    sh_heap_split(c, b->cell, cells[0], sh_ref_weight(cell_of(b)) / 2);
    for (int i = 0; i < 10000; i++) {
        uint64_t from = cells[sh_splitmix_below(&state, 5)], to = cells[sh_splitmix_below(&state, 5)];
        uint64_t have = sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(from)));
        if (from != to && have > 0) {
            sh_heap_split(c, from, to, i % 7 == 0 ? have : sh_splitmix_below(&state, have) + 1);
        }
    }
    uint64_t sum = sh_ref_weight(cell_of(b));
    for (uint32_t i = 0; i < 5; i++) {
        sum += sh_ref_weight(sh_load_relaxed((sh_a64 *)sh_at(cells[i])));
    }
    ck_assert_uint_eq(sum, SH_WEIGHT_NEW);
    ck_assert_uint_eq(word_weight(id), SH_WEIGHT_NEW);
    sh_leave();
    sh_assert_audit("after the splits");
    shoal_release(b);
    ck_assert_uint_eq(live_blocks(), 1); /* the other cells keep it */
    c = enter();
    for (uint32_t i = 0; i < 5; i++) {
        if (sh_load_relaxed((sh_a64 *)sh_at(cells[i])) != 0) {
            ck_assert_uint_ne(word_weight(id), 0);
            sh_heap_release(c, cells[i]);
        }
    }
    ck_assert_uint_eq(word_weight(id), 0);
    sh_leave();
}
END_TEST

START_TEST(share_never_gives_all_and_draws_when_there_is_too_little)
{
    shoal_block *b = make(100);
    uint64_t weight, spare;
    sh_ctx *c = enter();
    spare = sh_offset_of(&c->slot->cells[SH_SLOT_CELLS - 1]);
    ck_assert_ok(sh_heap_share(c, b->cell, &weight));
    ck_assert_uint_gt(weight, 0);
    ck_assert_uint_lt(weight, sh_ref_weight(cell_of(b)));
    sh_heap_split(c, b->cell, spare, sh_ref_weight(cell_of(b)) - 1); /* one is left */
    ck_assert_uint_eq(sh_ref_weight(cell_of(b)), 1);
    ck_assert_ok(sh_heap_share(c, b->cell, &weight));
    ck_assert_uint_eq(sh_ref_weight(cell_of(b)), 1 + SH_WEIGHT_MORE);
    ck_assert_uint_lt(weight, sh_ref_weight(cell_of(b)));
    ck_assert_uint_eq(word_weight(b->id), SH_WEIGHT_NEW + SH_WEIGHT_MORE);
    sh_leave();
    sh_assert_audit("after drawing");
    c = enter();
    sh_heap_release(c, spare);
    sh_leave();
    shoal_release(b);
}
END_TEST

START_TEST(a_block_with_too_many_holders_says_so_and_lives_on)
{
    shoal_block *b = make(100);
    sh_ctx *c = enter();
    shoal_err err = SHOAL_OK;
    for (int i = 0; i < 40000 && err == SHOAL_OK; i++) {
        err = sh_heap_draw(c, b->id, b->cell);
    }
    ck_assert_int_eq(err, SHOAL_ELIMIT);
    ck_assert_uint_lt(word_weight(b->id), SH_WEIGHT_TRIM);
    ck_assert_uint_eq(word_weight(b->id), sh_ref_weight(cell_of(b)));
    sh_leave();
    sh_assert_audit("at the limit");
    shoal_release(b);
}
END_TEST

START_TEST(weight_of_a_dead_block_cannot_be_drawn)
{
    shoal_block *b = make(100);
    uint64_t id = b->id;
    shoal_release(b);
    sh_ctx *c = enter();
    uint64_t cell = sh_offset_of(&c->slot->cells[SH_SLOT_CELLS - 1]);
    ck_assert_err(sh_heap_draw(c, id, cell), SHOAL_ECORRUPT);
    ck_assert_err(sh_heap_draw(c, SH_ID_MASK, cell), SHOAL_ECORRUPT);
    ck_assert_uint_eq(sh_load_relaxed((sh_a64 *)sh_at(cell)), 0);
    sh_leave();
}
END_TEST

/* ---- cells ---- */

static void hold_and_release(size_t n, int order)
{
    shoal_block **blocks = calloc(n, sizeof *blocks);
    ck_assert_ptr_nonnull(blocks);
    for (size_t i = 0; i < n; i++) {
        blocks[i] = make(0);
    }
    ck_assert_uint_eq(live_blocks(), n);
    sh_assert_audit("with all held");
    if (order == 1) {
        for (size_t i = 0; i < n / 2; i++) {
            shoal_block *b = blocks[i];
            blocks[i] = blocks[n - 1 - i];
            blocks[n - 1 - i] = b;
        }
    } else if (order == 2) {
        shuffle(blocks, n, SEED);
    }
    for (size_t i = 0; i < n; i++) {
        shoal_release(blocks[i]);
    }
    free(blocks);
}

static uint64_t chunk_count(void)
{
    uint64_t n = 0;
    for (sh_ref ref = sh_load_acquire(&sh_the_world.self.slot->chunks); ref != 0; n++) {
        sh_found f;
        ck_assert(sh_heap_find(sh_ref_id(ref), &f));
        ck_assert_int_eq(f.kind, SH_KIND_CELLS);
        ref = sh_load_acquire(&((sh_cells_shm *)f.data)->next);
    }
    return n;
}

START_TEST(cells_grow_with_what_is_held_and_are_used_again)
{
    hold_and_release(100000, _i);
    uint64_t chunks = chunk_count();
    ck_assert_uint_gt(chunks, 0);
    hold_and_release(100000, (_i + 1) % 3);
    ck_assert_uint_eq(chunk_count(), chunks);
}
END_TEST

START_TEST(half_a_million_handles_come_and_go)
{
    hold_and_release(SH_REPEAT(500000), 2);
    hold_and_release(1000, 0);
    ck_assert_uint_eq(live_blocks(), 0);
}
END_TEST

/* ---- what dies with a block ---- */

static shoal_queue *queues_within(int depth)
{
    shoal_queue *outer = NULL;
    for (int i = 0; i < depth; i++) {
        shoal_queue *q;
        ck_assert_ok(shoal_queue_create(0, &q));
        if (outer != NULL) {
            ck_assert_ok(shoal_queue_put(q, shoal_value_of(outer), SHOAL_NOW));
            shoal_release(outer);
        }
        outer = q;
    }
    return outer;
}

START_TEST(queues_within_queues_die_together)
{
    static const int depths[] = {1, 2, 100, 20000};
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
        shoal_queue *q = queues_within(depths[i]);
        ck_assert_uint_eq(live_blocks(), 2 * (uint64_t)depths[i]); /* a queue and its ring */
        sh_assert_audit("nested");
        shoal_release(q);
        ck_assert_uint_eq(live_blocks(), 0);
    }
}
END_TEST

START_TEST(a_message_with_a_thousand_blocks_dies_with_its_queue)
{
    for (int keep = 0; keep < 2; keep++) {
        shoal_queue *q;
        shoal_block *blocks[1000];
        ck_assert_ok(shoal_queue_create(0, &q));
        shoal_value *list = shoal_value_list();
        for (int i = 0; i < 1000; i++) {
            blocks[i] = make((size_t)i);
            list = shoal_list_add(list, shoal_value_of(blocks[i]));
        }
        ck_assert_ok(shoal_queue_put(q, list, SHOAL_NOW));
        for (int i = 0; i < 1000 && keep == 0; i++) {
            shoal_release(blocks[i]);
        }
        sh_assert_audit("in the message");
        uint64_t before = live_blocks();
        shoal_release(q);
        ck_assert_uint_eq(live_blocks(), before - 3 - (keep == 0 ? 1000 : 0)); /* queue, ring, message */
        for (int i = 0; i < 1000 && keep == 1; i++) {
            shoal_release(blocks[i]);
        }
    }
}
END_TEST

START_TEST(messages_left_in_a_queue_die_with_it)
{
    char bytes[100] = {0};
    for (int round = 0; round < 3; round++) {
        shoal_queue *q;
        shoal_block *b = make(10);
        ck_assert_ok(shoal_queue_create(round == 1 ? 10000 : 0, &q));
        for (int i = 0; i < 10000; i++) {
            ck_assert_ok(i % 3 == 0   ? shoal_queue_put_bytes(q, bytes, sizeof bytes, SHOAL_NOW)
                         : i % 3 == 1 ? shoal_queue_put_block(q, b, SHOAL_NOW)
                                      : shoal_queue_put(q, shoal_list(i, b), SHOAL_NOW));
        }
        shoal_release(b);
        sh_assert_audit("full");
        ck_assert_uint_gt(live_blocks(), 6000);
        shoal_release(q);
        ck_assert_uint_eq(live_blocks(), 0);
    }
}
END_TEST

/* ---- fork ---- */

/* The child of a forked pair; ends the process. The parent closes `go` when it is the child's turn. */
static void forked_child(uint32_t slot, int go, shoal_block **blocks, size_t n, unsigned char fill)
{
    char byte;
    int failed = sh_world_become(slot) != SHOAL_OK;
    failed |= read(go, &byte, 1) != 0;
    for (size_t i = 0; i < n && failed == 0; i++) {
        failed |= *(unsigned char *)shoal_block_data(blocks[i]) != (unsigned char)(fill + i);
        shoal_release(blocks[i]);
    }
    shoal_audit audit;
    failed |= failed == 0 && shoal_world_audit(&audit) != SHOAL_OK;
    if (failed != 0) {
        fprintf(stderr, "forked child: %s\n", shoal_last_error_text());
    }
    shoal_world_leave();
    _exit(failed);
}

static void fork_and_release(size_t n, bool child_first)
{
    int go[2], status;
    uint32_t slot;
    int32_t pid;
    shoal_block **blocks = calloc(n, sizeof *blocks);
    for (size_t i = 0; i < n; i++) {
        blocks[i] = make(1);
        *(unsigned char *)shoal_block_data(blocks[i]) = (unsigned char)(SEED + i);
    }
    ck_assert_int_eq(pipe(go), 0);
    ck_assert_ok(sh_slot_reserve(enter(), "child", &slot));
    sh_leave();
    ck_assert_ok(sh_world_fork(slot, &pid));
    if (pid == 0) {
        close(go[1]);
        forked_child(slot, go[0], blocks, n, (unsigned char)SEED);
    }
    sh_slot_expect(slot, pid);
    close(go[0]);
    for (int turn = 0; turn < 2; turn++) {
        if ((turn == 0) == child_first) {
            close(go[1]);
            ck_assert_int_eq(waitpid(pid, &status, 0), pid);
            ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "child: status %x", (unsigned)status);
        } else {
            for (size_t i = 0; i < n; i++) {
                ck_assert_uint_eq(*(unsigned char *)shoal_block_data(blocks[i]), (unsigned char)(SEED + i));
                shoal_release(blocks[i]);
            }
            sh_assert_audit("after the parent's release");
        }
    }
    free(blocks);
    sh_assert_audit("after both");
    ck_assert_uint_eq(live_blocks(), 0);
}

START_TEST(a_forked_child_holds_all_that_its_parent_held)
{
    static const size_t counts[] = {0, 1, 30, 31, 59, 60, 1000};
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
            fork_and_release(counts[i], _i == 0);
        }
    }
}
END_TEST

START_TEST(a_forked_child_holds_very_many_blocks)
{
    fork_and_release(SH_REPEAT(300000), _i == 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("heap");
    TCase *tc = tcase_create("free");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, a_freed_block_is_the_next_one_of_its_class);
    tcase_add_test(tc, a_claim_clears_the_bits_and_keeps_its_intent_open);
    tcase_add_test(tc, ids_that_name_nothing_are_not_found);
    tcase_add_test(tc, split_moves_weight_and_the_sum_stays);
    tcase_add_test(tc, share_never_gives_all_and_draws_when_there_is_too_little);
    tcase_add_test(tc, a_block_with_too_many_holders_says_so_and_lives_on);
    tcase_add_test(tc, weight_of_a_dead_block_cannot_be_drawn);
    tcase_add_test(tc, queues_within_queues_die_together);
    suite_add_tcase(s, tc);
    tc = tcase_create("cells");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, blocks_beyond_the_cache_are_listed_and_found_again);
    tcase_add_loop_test(tc, cells_grow_with_what_is_held_and_are_used_again, 0, 3);
    tcase_add_test(tc, half_a_million_handles_come_and_go);
    tcase_add_test(tc, a_message_with_a_thousand_blocks_dies_with_its_queue);
    tcase_add_test(tc, messages_left_in_a_queue_die_with_it);
    tcase_add_loop_test(tc, a_forked_child_holds_all_that_its_parent_held, 0, 2);
    tcase_add_loop_test(tc, a_forked_child_holds_very_many_blocks, 0, 2);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
