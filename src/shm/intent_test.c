/* A process that confirms an operation of another process, too late. */
#include "shm/intent.h"

#include "base/clock.h"
#include "shm/block.h"
#include "shm/slot.h"
#include "tests/harness/runner.h"

#define SEQ ((UINT64_C(5) << SH_SEQ_BITS) + 77)

/* Another process, which has an operation open on a word. */
typedef struct other {
    sh_ctx *self;
    shoal_block *block;
    sh_a128 *word;
    uint64_t target, tag, generation;
    uint32_t index;
    sh_slot_shm *slot;
} other;

static other begin(void)
{
    other o = {.self = sh_enter()};
    ck_assert_ptr_nonnull(o.self);
    ck_assert_ok(sh_block_new(o.self, sh_class_of(64), 64, &o.block));
    ck_assert_ok(sh_slot_reserve(o.self, "other", &o.index));
    o.slot = sh_slot_at(o.index);
    o.generation = sh_slot_state_generation(sh_load_relaxed(&o.slot->state));
    o.word = (sh_a128 *)o.block->data;
    o.target = sh_offset_of(o.word);
    o.tag = sh_tag(o.index, SEQ);
    sh_store_relaxed(&o.slot->intent.target, o.target);
    sh_store_relaxed(&o.slot->intent.seq, SEQ);
    sh_store_relaxed(&o.slot->confirmed, 0);
    return o;
}

static void end(const other *o)
{
    sh_store_relaxed(&o->slot->intent.seq, 0);
    sh_slot_cancel(o->index, o->generation);
    sh_block_unref(o->self, o->block);
    sh_leave();
}

/* This process saw the tag of an old operation, and was stopped. Now the slot has an operation open whose sequence ends
 * in the same 24 bits, on the same word, and its swap has not happened. */
START_TEST(a_tag_that_is_gone_confirms_nothing)
{
    other o = begin();
    sh_store_relaxed(&o.word->lo, sh_word_make(3, sh_tag(o.index + 1, 5)));
    sh_intent_forget();
    sh_intent_confirm(o.self, o.tag, o.target);
    ck_assert_uint_eq(sh_load_relaxed(&o.slot->confirmed), 0);
    sh_store_relaxed(&o.word->lo, sh_word_make(3, o.tag));
    sh_intent_confirm(o.self, o.tag, o.target);
    ck_assert_uint_eq(sh_load_relaxed(&o.slot->confirmed), SEQ);
    end(&o);
}
END_TEST

/* The same if the tag is beside the word that shows whether it is still there: an entry of a ring. */
START_TEST(an_entry_that_has_changed_confirms_nothing)
{
    other o = begin();
    uint64_t seen = UINT64_C(7) << SH_TAG_BITS | sh_tag(o.index + 1, 9);
    sh_store_relaxed(&o.word->hi, o.tag); /* a value that looks like the tag */
    sh_store_relaxed(&o.word->lo, seen + (UINT64_C(1) << SH_TAG_BITS));
    sh_intent_forget();
    sh_intent_confirm_in(o.self, o.tag, o.target, &o.word->lo, seen, UINT64_MAX);
    sh_intent_confirm_long(o.self, o.tag, SEQ >> SH_SEQ_BITS, o.target, &o.word->lo, seen);
    ck_assert_uint_eq(sh_load_relaxed(&o.slot->confirmed), 0);
    sh_store_relaxed(&o.word->lo, seen);
    sh_intent_confirm_in(o.self, o.tag, o.target, &o.word->lo, seen, UINT64_MAX);
    ck_assert_uint_eq(sh_load_relaxed(&o.slot->confirmed), SEQ);
    end(&o);
}
END_TEST

/* The time stamp counter began again after a suspend, and has come back to the step in which this process last looked
 * at the slot. Since then the slot has made so many operations that its open one looks like an earlier one. */
START_TEST(f17_a_clock_that_begins_again_fools_nobody)
{
    other o = begin();
    uint64_t step;
    sh_store_relaxed(&o.word->lo, sh_word_make(3, o.tag));
    do {
        sh_store_relaxed(&o.slot->confirmed, 0);
        step = sh_coarse_time();
        sh_intent_seen[o.index] = SEQ + 5;
        sh_intent_seen_when[o.index] = step;
        sh_intent_seen_tick[o.index] = sh_coarse_tick() - SHOAL_SECONDS(3600);
        sh_intent_confirm(o.self, o.tag, o.target);
    } while (sh_coarse_time() != step); /* else it has looked because the step was over */
    ck_assert_uint_eq(sh_load_relaxed(&o.slot->confirmed), SEQ);
    end(&o);
}
END_TEST

/* In one step of the clock no process makes 2^23 operations. Tries the fastest of all: one that changes nothing. */
START_TEST(a_step_of_the_clock_is_short)
{
    enum { STEPS = 20, TRIES = 1 << 17 };
    other o = begin();
    int64_t begun = sh_now();
    uint64_t first = sh_coarse_time(), last = first;
    while (last < first + STEPS) {
        last = sh_coarse_time();
    }
    /* last - first is more than STEPS if this process loses the core. */
    double step = (double)(sh_now() - begun) / (double)(last - first), best = 1e9;
    for (int round = 0; round < 5; round++) {
        begun = sh_now();
        for (int i = 0; i < TRIES; i++) {
            uint64_t none = 1;
            sh_intent_begin(o.self, SH_INTENT_ALLOC, o.target, 0, 0, 0, 0, 0, 0);
            sh_cas_acq_rel(&o.word->lo, &none, 1);
            sh_intent_end(o.self);
        }
        double took = (double)(sh_now() - begun) / TRIES;
        best = took < best ? took : best;
    }
    ck_assert_msg(step / best < (1 << 21), "a step takes %.1f ms, an operation %.1f ns", step / 1e6, best);
    end(&o);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("op");
    TCase *c = tcase_create("confirm");
    tcase_set_timeout(c, SH_TEST_SECONDS);
    tcase_add_checked_fixture(c, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(c, a_tag_that_is_gone_confirms_nothing);
    tcase_add_test(c, an_entry_that_has_changed_confirms_nothing);
    tcase_add_test(c, f17_a_clock_that_begins_again_fools_nobody);
    tcase_add_test(c, a_step_of_the_clock_is_short);
    suite_add_tcase(s, c);
    return s;
}

SH_TEST_MAIN(suite)
