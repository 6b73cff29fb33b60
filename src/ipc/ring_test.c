/* Tests the ring alone against its state table (ring.h): every row, hints in every order, laps up to their wrap. */
#include "ipc/ring.h"

#include "base/random.h"
#include "shm/block.h"
#include "tests/harness/runner.h"

#include <stdio.h>
#include <string.h>

#define SEED 77u
#define ORDER 4u
#define SIZE (1u << ORDER)

/* A passing assertion of libcheck costs a system call, which is too slow for the loops here. */
#define must(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            ck_abort_msg("line %d: %s (seed %u)", __LINE__, #condition, SEED);                                         \
        }                                                                                                              \
    } while (0)

/* One ring without a queue. begin_at starts it at a given lap. */
static shoal_block *block;
static sh_ring ring;
static sh_ctx *self;

static sh_a128 *entry_of(uint64_t position)
{
    return sh_ring_entry(&ring, position);
}

static uint64_t state_of(uint64_t position)
{
    return sh_load_acquire(&entry_of(position)->lo);
}

static uint64_t lap_in(uint64_t state)
{
    return state >> SH_ENTRY_LAP_SHIFT;
}

static void begin_at(uint32_t order, uint64_t lap)
{
    self = sh_enter();
    ck_assert_ptr_nonnull(self);
    uint64_t bytes = sh_ring_bytes(order);
    ck_assert_ok(sh_block_new(self, sh_class_of(bytes), bytes, &block));
    sh_block_become(block, SH_KIND_RING);
    sh_store_release(&((sh_ring_shm *)block->data)->order, order);
    ck_assert(sh_ring_open(block->id, &ring));
    ck_assert_uint_eq(ring.order, order);
    for (uint64_t i = 0; i < UINT64_C(1) << order; i++) {
        sh_store_relaxed(&entry_of(i)->lo, (lap & SH_ENTRY_LAP_MASK) << SH_ENTRY_LAP_SHIFT);
    }
    sh_store_relaxed(&ring.shm->tail.hint, lap << order);
    sh_store_relaxed(&ring.shm->tail.base, lap << order);
    sh_store_relaxed(&ring.shm->head.hint, lap << order);
    sh_store_relaxed(&ring.shm->head.base, lap << order);
}

static void end(void)
{
    sh_block_unref(self, block);
    sh_leave();
}

static sh_ring_result put(uint64_t word, uint64_t bound)
{
    return sh_ring_put(self, &ring, SH_ENTRY_INT, word, 0, 0, bound, block->id);
}

static sh_ring_result take(uint64_t *out_word)
{
    sh_peek peek;
    sh_ring_result r = sh_ring_peek(&ring, &peek);
    if (r == SH_RING_DONE) {
        *out_word = peek.word;
        r = sh_ring_take(self, &ring, &peek, 0, 0, block->id);
    }
    return r;
}

static void ck_take(uint64_t wanted)
{
    uint64_t word;
    must(take(&word) == SH_RING_DONE);
    must(word == wanted);
}

static void ck_sizes(uint64_t puts, uint64_t takes)
{
    must(sh_ring_takes(&ring) == takes);
    must(sh_ring_puts(&ring) == puts);
}

/* The laps at which the tests try a ring: new, in use, and around the wrap of the 23 bits. */
static const uint64_t laps[] = {
    0, 1, 5, SH_ENTRY_LAP_MASK - 1, SH_ENTRY_LAP_MASK, SH_ENTRY_LAP_MASK + 1, UINT64_C(1) << 30};
#define LAPS (int)(sizeof laps / sizeof laps[0])

START_TEST(neighbouring_positions_use_different_cache_lines)
{
    for (uint32_t order = SH_RING_ORDER_MIN; order < 9; order++) {
        begin_at(order, 0);
        for (uint64_t i = 0; i < UINT64_C(1) << order; i++) {
            ck_assert_int_eq(put(i, 0), SH_RING_DONE);
            ck_assert_uint_eq(sh_load_acquire(&entry_of(i)->hi), i);
            ck_assert_uint_ne(sh_offset_of(entry_of(i)) / SH_CACHE_LINE, sh_offset_of(entry_of(i + 1)) / SH_CACHE_LINE);
        }
        ck_assert_int_eq(put(1, 0), SH_RING_FULL);
        end();
    }
}
END_TEST

START_TEST(the_state_table_row_by_row)
{
    uint64_t lap = laps[_i], p = lap << ORDER, word;
    begin_at(ORDER, lap);
    ck_assert_int_eq(take(&word), SH_RING_EMPTY);
    ck_assert_int_eq(put(42, 0), SH_RING_DONE);
    uint64_t full = state_of(p);
    ck_assert_uint_eq(lap_in(full), lap & SH_ENTRY_LAP_MASK);
    ck_assert_int_eq(sh_entry_kind_of(full), SH_ENTRY_INT);
    ck_assert_uint_eq((full & SH_TAG_MASK) >> SH_SEQ_BITS, self->index);
    ck_assert_uint_ne(full & SH_SEQ_MASK, 0);
    ck_take(42);
    uint64_t empty = state_of(p);
    ck_assert_uint_eq(lap_in(empty), (lap + 1) & SH_ENTRY_LAP_MASK);
    ck_assert_int_eq(sh_entry_kind_of(empty), SH_ENTRY_EMPTY);
    ck_assert_uint_ne(empty & SH_TAG_MASK, full & SH_TAG_MASK);
    ck_assert_uint_eq(sh_load_acquire(&entry_of(p)->hi) & SH_TAG_MASK, full & SH_TAG_MASK); /* both tags are kept */
    ck_assert_int_eq(take(&word), SH_RING_EMPTY);
    ck_sizes(p + 1, p + 1);
    ck_assert_uint_eq(sh_load_relaxed(&self->slot->intent.code), SH_INTENT_NONE);
    end();
}
END_TEST

START_TEST(order_is_kept_over_many_laps)
{
    begin_at(ORDER, laps[_i]);
    uint64_t state = SEED, put_next = 0, take_next = 0, word, start = laps[_i] << ORDER;
    for (int i = 0; i < 100000; i++) {
        if (sh_splitmix_below(&state, 2) == 0) {
            sh_ring_result r = put(put_next, 0);
            must(r == (put_next - take_next == SIZE ? SH_RING_FULL : SH_RING_DONE));
            put_next += r == SH_RING_DONE;
        } else {
            sh_ring_result r = take(&word);
            must(r == (put_next == take_next ? SH_RING_EMPTY : SH_RING_DONE));
            if (r == SH_RING_DONE) {
                must(word == take_next++);
            }
        }
        ck_sizes(start + put_next, start + take_next);
    }
    ck_assert_uint_gt(put_next / SIZE, 1000);
    end();
}
END_TEST

START_TEST(a_take_that_comes_second_takes_nothing)
{
    sh_peek first, second;
    begin_at(ORDER, laps[_i]);
    ck_assert_int_eq(put(1, 0), SH_RING_DONE);
    ck_assert_int_eq(put(2, 0), SH_RING_DONE);
    ck_assert_int_eq(sh_ring_peek(&ring, &first), SH_RING_DONE);
    ck_assert_int_eq(sh_ring_peek(&ring, &second), SH_RING_DONE);
    ck_assert_int_eq(sh_ring_take(self, &ring, &first, 0, 0, block->id), SH_RING_DONE);
    ck_assert_int_eq(sh_ring_take(self, &ring, &second, 0, 0, block->id), SH_RING_AGAIN);
    for (uint64_t i = 3; i <= SIZE + 2; i++) { /* the same entry is full again, one lap later */
        ck_assert_int_eq(put(i, 0), i <= SIZE + 1 ? SH_RING_DONE : SH_RING_FULL);
    }
    ck_assert_int_eq(sh_ring_take(self, &ring, &second, 0, 0, block->id), SH_RING_AGAIN);
    ck_take(2);
    end();
}
END_TEST

START_TEST(cells_change_with_the_cas_and_only_with_it)
{
    sh_peek peek;
    begin_at(ORDER, laps[_i]);
    sh_a64 *cell = &self->slot->cells[SH_SLOT_CELLS - 1];
    uint64_t at = sh_offset_of(cell);
    ck_assert_int_eq(sh_ring_put(self, &ring, SH_ENTRY_INT, 7, at, 99, 1, block->id), SH_RING_DONE);
    ck_assert_uint_eq(sh_load_relaxed(cell), 99);
    ck_assert_int_eq(sh_ring_put(self, &ring, SH_ENTRY_INT, 7, at, 98, 1, block->id), SH_RING_FULL);
    ck_assert_uint_eq(sh_load_relaxed(cell), 99);
    ck_assert_int_eq(sh_ring_peek(&ring, &peek), SH_RING_DONE);
    ck_assert_int_eq(sh_ring_take(self, &ring, &peek, at, 55, block->id), SH_RING_DONE);
    ck_assert_uint_eq(sh_load_relaxed(cell), 55);
    ck_assert_int_eq(sh_ring_take(self, &ring, &peek, at, 54, block->id), SH_RING_AGAIN);
    ck_assert_uint_eq(sh_load_relaxed(cell), 55);
    sh_store_relaxed(cell, 0);
    end();
}
END_TEST

/* A process that is stopped before it advances a hint sets it back later, by as much as the others have advanced it: a
 * few positions, or many laps. */
START_TEST(hints_that_lag_are_moved_on)
{
    uint64_t base = laps[_i] << ORDER, state = SEED, put_next = 0, take_next = 0;
    begin_at(ORDER, laps[_i]);
    for (int i = 0; i < 30000; i++) {
        uint64_t far = i % 3 == 0 ? 1000 * SIZE : i % 3 == 1 ? 3 * SIZE : SIZE;
        uint64_t tail_back = sh_splitmix_below(&state, far), head_back = sh_splitmix_below(&state, far);
        sh_store_relaxed(&ring.shm->tail.hint, base + put_next - (tail_back < put_next ? tail_back : put_next));
        sh_store_relaxed(&ring.shm->head.hint, base + take_next - (head_back < take_next ? head_back : take_next));
        uint64_t room = SIZE - (put_next - take_next);
        if (i % 7 == 0) {
            ck_sizes(base + put_next, base + take_next);
        } else if (room > 0 && sh_splitmix_below(&state, 5) < 3) {
            must(put(put_next++, 0) == SH_RING_DONE);
        } else if (room == 0 && i % 2 == 0) {
            must(put(1, 0) == SH_RING_FULL);
        } else if (room < SIZE) {
            ck_take(take_next++);
        } else {
            uint64_t word;
            must(take(&word) == SH_RING_EMPTY);
        }
    }
    must(take_next > 5000);
    end();
}
END_TEST

/* The others advanced so many laps that the 23 bits of a state say nothing about the difference, or are misleading:
 * 2^22 laps, 2^23 laps, or a few positions less than 2^23 laps, where an empty entry looks like the next one. */
static const uint64_t long_ago[] = {(UINT64_C(1) << 22) - 1, UINT64_C(1) << 22,       (UINT64_C(1) << 22) + 1,
                                    (UINT64_C(1) << 23) - 1, UINT64_C(1) << 23,       (UINT64_C(1) << 23) + 1,
                                    UINT64_C(3) << 22,       (UINT64_C(1) << 24) - 1, UINT64_C(1) << 24};
#define LONG_AGO (int)(sizeof long_ago / sizeof long_ago[0])

static void set_back(uint64_t tail, uint64_t head)
{
    sh_store_relaxed(&ring.shm->tail.hint, tail);
    sh_store_relaxed(&ring.shm->head.hint, head);
}

START_TEST(an_outdated_hint_does_no_harm)
{
    uint64_t lap = UINT64_C(1) << 30, start = lap << ORDER, back = long_ago[_i] << ORDER, n = 0;
    begin_at(ORDER, lap);
    for (uint64_t near = 0; near < 3 * SIZE; near++) {
        for (uint64_t held = 0; held < SIZE - 1; held += 5) { /* messages that stay in the ring */
            uint64_t tail = start + n, head = start + n;
            for (uint64_t i = 0; i < held; i++, tail++) {
                set_back(tail - back + near, head - back);
                must(put(tail, 0) == SH_RING_DONE);
            }
            set_back(tail - back + near, head - back + near);
            ck_sizes(tail, head);
            set_back(tail - back + near, head - back + near);
            must(put(tail, held) == (held == 0 ? SH_RING_DONE : SH_RING_FULL)); /* held is the bound */
            tail += held == 0;
            for (; head < tail; head++) {
                set_back(tail - back, head - back + near);
                ck_take(head);
            }
            set_back(tail - back + near, head - back + near);
            ck_sizes(tail, head);
            n = tail - start;
        }
    }
    set_back(0, 0);
    ck_sizes(start + n, start + n);
    must(sh_ring_seal(&ring) == SH_RING_DONE);
    must(put(1, 0) == SH_RING_NEXT);
    end();
}
END_TEST

START_TEST(a_full_ring_is_closed_and_drained)
{
    uint64_t base = laps[_i] << ORDER, word;
    for (uint64_t taken = 0; taken <= SIZE; taken += 3) { /* the oldest message is at every kind of position */
        begin_at(ORDER, laps[_i]);
        ck_assert_int_eq(sh_ring_close(&ring), SH_RING_AGAIN); /* empty */
        for (uint64_t i = 0; i < taken; i++) {
            ck_assert_int_eq(put(i, 0), SH_RING_DONE);
            ck_take(i);
        }
        for (uint64_t i = 0; i < SIZE; i++) {
            ck_assert_int_eq(sh_ring_close(&ring), SH_RING_AGAIN); /* not full yet */
            ck_assert_int_eq(put(taken + i, 0), SH_RING_DONE);
        }
        ck_assert_int_eq(sh_ring_close(&ring), SH_RING_DONE);
        ck_assert_int_eq(sh_ring_close(&ring), SH_RING_DONE); /* the second caller has nothing to do */
        ck_assert_int_eq(put(1, 0), SH_RING_NEXT);
        ck_assert_uint_ne(state_of(base + taken) & SH_ENTRY_CLOSING, 0);
        for (uint64_t i = 0; i < SIZE; i++) {
            ck_take(taken + i);
            ck_assert_int_eq(put(1, 0), SH_RING_NEXT); /* room does not reopen it */
            ck_assert_int_eq(sh_ring_close(&ring), SH_RING_AGAIN);
        }
        ck_assert_int_eq(sh_entry_kind_of(state_of(base + taken)), SH_ENTRY_CLOSED);
        ck_assert_int_eq(take(&word), SH_RING_NEXT);
        ck_assert_int_eq(take(&word), SH_RING_NEXT);
        ck_sizes(base + taken + SIZE, base + taken + SIZE);
        end();
    }
}
END_TEST

/* A take that looked before the ring was closed must not lose the flag. */
START_TEST(closing_beats_a_take_that_looked_before)
{
    sh_peek before;
    uint64_t word;
    begin_at(ORDER, laps[_i]);
    for (uint64_t i = 0; i < SIZE; i++) {
        ck_assert_int_eq(put(i, 0), SH_RING_DONE);
    }
    ck_assert_int_eq(sh_ring_peek(&ring, &before), SH_RING_DONE);
    ck_assert_int_eq(sh_ring_close(&ring), SH_RING_DONE);
    ck_assert_int_eq(sh_ring_take(self, &ring, &before, 0, 0, block->id), SH_RING_AGAIN);
    for (uint64_t i = 0; i < SIZE; i++) {
        ck_take(i);
    }
    ck_assert_int_eq(take(&word), SH_RING_NEXT);
    ck_assert_int_eq(put(1, 0), SH_RING_NEXT);
    end();
}
END_TEST

START_TEST(a_bound_below_the_size_is_exact)
{
    for (uint64_t bound = 1; bound <= SIZE; bound++) {
        begin_at(ORDER, laps[_i]);
        uint64_t state = SEED + bound, put_next = 0, take_next = 0;
        for (int i = 0; i < 3000; i++) {
            if (i % 500 == 0) { /* lagging hints change nothing */
                uint64_t tail = sh_load_relaxed(&ring.shm->tail.hint), back = put_next < bound ? put_next : bound;
                sh_store_relaxed(&ring.shm->tail.hint, tail - back);
            }
            if (sh_splitmix_below(&state, 3) > 0) {
                sh_ring_result r = put(put_next, bound);
                must(r == (put_next - take_next == bound ? SH_RING_FULL : SH_RING_DONE));
                put_next += r == SH_RING_DONE;
            } else if (put_next > take_next) {
                ck_take(take_next++);
            }
        }
        ck_assert_uint_gt(put_next, SIZE);
        end();
    }
}
END_TEST

START_TEST(a_lap_wraps_correctly)
{
    begin_at(ORDER, SH_ENTRY_LAP_MASK - 1);
    for (uint64_t i = 0; i < 4 * SIZE; i++) { /* half full all the time */
        ck_assert_int_eq(put(i, 0), SH_RING_DONE);
        if (i >= SIZE / 2) {
            ck_take(i - SIZE / 2);
        }
    }
    ck_assert_uint_eq(lap_in(state_of(sh_load_relaxed(&ring.shm->tail.hint))), 2);
    end();
}
END_TEST

START_TEST(garbage_ends_the_search_and_damages_nothing)
{
    uint64_t state = SEED, word;
    for (int round = 0; round < 300; round++) {
        begin_at(ORDER, 3);
        for (uint64_t i = 0; i < SIZE; i++) {
            sh_store_relaxed(&entry_of(i)->lo, sh_splitmix_next(&state));
            sh_store_relaxed(&entry_of(i)->hi, sh_splitmix_next(&state));
        }
        sh_store_relaxed(&ring.shm->head.hint, sh_splitmix_next(&state) >> (round % 60));
        for (int i = 0; i < 40; i++) {
            (void)take(&word); /* any result will do, as long as it returns */
        }
        for (uint64_t i = 0; i < SIZE; i++) { /* leaves no reference for recovery to follow */
            sh_store_relaxed(&entry_of(i)->lo, 0);
        }
        end();
    }
}
END_TEST

START_TEST(a_block_that_is_not_a_ring_is_not_opened)
{
    sh_ring r;
    begin_at(ORDER, 0);
    ck_assert(!sh_ring_open(SH_ID_MASK, &r));
    const uint64_t orders[] = {
        0, SH_RING_ORDER_MIN - 1, ORDER + 1, SH_RING_ORDER_MAX, SH_RING_ORDER_MAX + 1, 64, UINT64_MAX};
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        sh_store_relaxed(&ring.shm->order, orders[i]);
        ck_assert_msg(!sh_ring_open(block->id, &r), "order %llu", (unsigned long long)orders[i]);
    }
    sh_store_relaxed(&ring.shm->order, ORDER);
    sh_heap_set_kind(block->id, SH_KIND_DATA);
    ck_assert(!sh_ring_open(block->id, &r));
    sh_heap_set_kind(block->id, SH_KIND_RING);
    ck_assert(sh_ring_open(block->id, &r));
    end();
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("ring");
    TCase *tc = tcase_create("ring");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, neighbouring_positions_use_different_cache_lines);
    tcase_add_loop_test(tc, the_state_table_row_by_row, 0, LAPS);
    tcase_add_loop_test(tc, order_is_kept_over_many_laps, 0, LAPS);
    tcase_add_loop_test(tc, a_take_that_comes_second_takes_nothing, 0, LAPS);
    tcase_add_loop_test(tc, cells_change_with_the_cas_and_only_with_it, 0, LAPS);
    tcase_add_loop_test(tc, an_outdated_hint_does_no_harm, 0, LONG_AGO);
    tcase_add_loop_test(tc, hints_that_lag_are_moved_on, 0, LAPS);
    tcase_add_loop_test(tc, a_full_ring_is_closed_and_drained, 0, LAPS);
    tcase_add_loop_test(tc, closing_beats_a_take_that_looked_before, 0, LAPS);
    tcase_add_loop_test(tc, a_bound_below_the_size_is_exact, 0, LAPS);
    tcase_add_test(tc, a_lap_wraps_correctly);
    tcase_add_test(tc, garbage_ends_the_search_and_damages_nothing);
    tcase_add_test(tc, a_block_that_is_not_a_ring_is_not_opened);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
