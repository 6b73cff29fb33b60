/* Timelines: what is done, pending and lost, who may use one again, and a card that writes late. The words that a card
 * would write are written here. Owners die by fork and SIGKILL. */
#include "shm/timeline.h"
#include "tests/harness/runner.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void card_writes(uint32_t index, uint64_t number)
{
    sh_store_release(sh_timeline_done_word(index), number);
}

START_TEST(work_is_done_when_the_card_says_so)
{
    uint32_t index = 0;
    ck_assert_ok(sh_timeline_claim(&index));
    ck_assert_uint_ne(index, 0);
    uint64_t first = sh_timeline_issue(index), second = sh_timeline_issue(index);
    ck_assert_uint_eq(second, first + 1);
    ck_assert_int_eq(sh_work_look(0), SH_WORK_DONE);
    ck_assert_int_eq(sh_work_look(sh_work_make(index, first)), SH_WORK_PENDING);
    card_writes(index, first);
    ck_assert_int_eq(sh_work_look(sh_work_make(index, first)), SH_WORK_DONE);
    ck_assert_int_eq(sh_work_look(sh_work_make(index, second)), SH_WORK_PENDING);
    card_writes(index, second);
    sh_timeline_free_waiters(index); /* nothing is lost, so nothing happens */
    ck_assert_uint_eq(sh_load_relaxed(sh_timeline_done_word(index)), second);
    sh_timeline_release(index);
    ck_assert_int_eq(sh_work_look(sh_work_make(index, second)), SH_WORK_DONE);
}
END_TEST

START_TEST(nonsense_is_lost)
{
    uint32_t index = 0;
    ck_assert_ptr_nonnull(sh_enter());
    sh_leave();
    ck_assert_int_eq(sh_work_look(sh_work_make(1, 1)), SH_WORK_LOST); /* nobody has a timeline: no memory is touched */
    ck_assert_ptr_null(sh_timeline_done_word(1));
    ck_assert_ok(sh_timeline_claim(&index));
    ck_assert_int_eq(sh_work_look(sh_work_make(0, 1)), SH_WORK_LOST);
    ck_assert_int_eq(sh_work_look(sh_work_make(index + 1, 1)), SH_WORK_LOST);
    ck_assert_int_eq(sh_work_look(UINT64_MAX), SH_WORK_LOST);
    ck_assert_ptr_null(sh_timeline_done_word(0));
    ck_assert_ptr_null(sh_timeline_done_word(SH_TIMELINES));
    sh_timeline_free_waiters(SH_TIMELINES);
    sh_timeline_release(SH_TIMELINES);
    sh_timeline_release(index);
}
END_TEST

START_TEST(the_words_lie_in_the_range)
{
    uint32_t index = 0;
    void *start;
    size_t size;
    ck_assert_ok(sh_timeline_claim(&index));
    sh_timelines_range(&start, &size);
    char *word = (char *)sh_timeline_done_word(index);
    ck_assert(word >= (char *)start && word < (char *)start + size);
    ck_assert_uint_eq((uintptr_t)start % 4096, 0);
    ck_assert_uint_eq(size % 4096, 0);
    memset((char *)start + size - 64, 0, 64); /* has memory */
    sh_timeline_release(index);
}
END_TEST

/* ---- owners that die ---- */

typedef struct owner {
    uint32_t index;
    uint64_t issued;
} owner;

/* Forks a process that claims a timeline and issues numbers, of which its card has done some, and kills it. */
static owner die_with(uint64_t issue, uint64_t leave_open)
{
    owner *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (sh_timeline_claim(&shared->index) != SHOAL_OK) {
            _exit(1);
        }
        for (uint64_t i = 0; i < issue; i++) {
            shared->issued = sh_timeline_issue(shared->index);
        }
        if (shared->issued > leave_open) {
            card_writes(shared->index, shared->issued - leave_open);
        }
        raise(SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    owner o = *shared;
    munmap(shared, 4096);
    return o;
}

START_TEST(what_was_not_done_at_the_death_is_lost)
{
    ck_assert_ptr_nonnull(sh_enter());
    sh_leave();
    owner o = die_with(10, 3);
    sh_work done = sh_work_make(o.index, o.issued - 3), lost = sh_work_make(o.index, o.issued - 2);
    ck_assert_int_eq(sh_work_look(done), SH_WORK_DONE);
    ck_assert_int_eq(sh_work_look(lost), SH_WORK_PENDING); /* nobody has noticed yet */
    ck_assert_ok(shoal_world_sweep(NULL));
    ck_assert_int_eq(sh_work_look(done), SH_WORK_DONE);
    ck_assert_int_eq(sh_work_look(lost), SH_WORK_LOST);
    ck_assert_uint_eq(sh_load_relaxed(sh_timeline_done_word(o.index)), o.issued); /* no stream waits any more */

    card_writes(o.index, o.issued - 2); /* the card ends the dead process only now */
    ck_assert_int_eq(sh_work_look(lost), SH_WORK_LOST);
    ck_assert_int_eq(sh_work_look(done), SH_WORK_DONE);
    sh_timeline_free_waiters(o.index);
    ck_assert_uint_eq(sh_load_relaxed(sh_timeline_done_word(o.index)), o.issued);

    card_writes(o.index, 0);
    ck_assert_int_eq(sh_work_look(done), SH_WORK_DONE);
    sh_timeline_free_waiters(o.index);
    uint32_t next = 0;
    ck_assert_ok(sh_timeline_claim(&next));
    ck_assert_uint_ne(next, o.index); /* it is never used again */
    sh_timeline_release(next);
}
END_TEST

START_TEST(a_timeline_without_losses_goes_on_counting)
{
    ck_assert_ptr_nonnull(sh_enter());
    sh_leave();
    owner o = die_with(10, 0);
    ck_assert_ok(shoal_world_sweep(NULL));
    uint32_t next = 0;
    ck_assert_ok(sh_timeline_claim(&next));
    ck_assert_uint_eq(next, o.index);
    uint64_t number = sh_timeline_issue(next);
    ck_assert_uint_eq(number, o.issued + 1);
    ck_assert_int_eq(sh_work_look(sh_work_make(next, o.issued)), SH_WORK_DONE);
    ck_assert_int_eq(sh_work_look(sh_work_make(next, number)), SH_WORK_PENDING);
    card_writes(next, number);
    sh_timeline_release(next);
}
END_TEST

/* A process that ends, or gives its timeline back, with work outstanding loses it as if it had died. */
START_TEST(an_end_loses_what_is_not_done)
{
    uint32_t index = 0;
    ck_assert_ok(sh_timeline_claim(&index));
    uint64_t number = sh_timeline_issue(index);
    sh_timeline_release(index);
    ck_assert_int_eq(sh_work_look(sh_work_make(index, number)), SH_WORK_LOST);
}
END_TEST

START_TEST(there_is_an_end_of_timelines)
{
    uint32_t index = 0;
    for (uint32_t i = 1; i < SH_TIMELINES; i++) {
        if (sh_timeline_claim(&index) != SHOAL_OK || index != i) {
            ck_abort_msg("timeline %u is %u: %s", i, index, shoal_last_error_text());
        }
        if (i == 1000) { /* claiming looks at all below; the rest of the test need not */
            sh_store_release(&sh_the_world.header->timelines_used, SH_TIMELINES - 10);
            i = SH_TIMELINES - 11;
            for (uint32_t k = 1001; k < SH_TIMELINES - 10; k++) {
                sh_timeline_shm *lost = (sh_timeline_shm *)sh_at(SH_TIMELINES_AT) + k;
                sh_store_relaxed(&lost->owner, 1u);
                sh_store_relaxed(&lost->lost_from, 1);
            }
        }
    }
    ck_assert_err(sh_timeline_claim(&index), SHOAL_ELIMIT);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "65535"));
}
END_TEST

/* A process that has lost its card lives on. What it issues later is lost as well: another thread may be about to. */
START_TEST(a_lost_card_loses_what_is_not_done)
{
    uint32_t index = 0, next = 0;
    ck_assert_ok(sh_timeline_claim(&index));
    sh_work done = sh_work_make(index, sh_timeline_issue(index)), open = sh_work_make(index, sh_timeline_issue(index));
    card_writes(index, sh_work_number(done));
    sh_timelines_lose();
    sh_work later = sh_work_make(index, sh_timeline_issue(index));
    ck_assert_int_eq(sh_work_look(done), SH_WORK_DONE);
    ck_assert_int_eq(sh_work_look(open), SH_WORK_LOST);
    ck_assert_int_eq(sh_work_look(later), SH_WORK_LOST);
    ck_assert_uint_ge(sh_load_relaxed(sh_timeline_done_word(index)), sh_work_number(open)); /* no stream waits */
    sh_timelines_lose();
    ck_assert_int_eq(sh_work_look(done), SH_WORK_DONE);
    sh_timeline_release(index);
    ck_assert_ok(sh_timeline_claim(&next));
    ck_assert_uint_ne(next, index);
    sh_timeline_release(next);
}
END_TEST

/* ---- work that comes after lost work ---- */

typedef struct chain {
    uint32_t first, second, third; /* this process plays the owners of all three */
    sh_work lost, before, after, last;
} chain;

/* `after` comes after `lost`, and `last` after `after`. */
static chain make_chain(void)
{
    chain c = {0};
    ck_assert_ok(sh_timeline_claim(&c.first));
    ck_assert_ok(sh_timeline_claim(&c.second));
    ck_assert_ok(sh_timeline_claim(&c.third));
    c.lost = sh_work_make(c.first, sh_timeline_issue(c.first));
    c.before = sh_work_make(c.second, sh_timeline_issue(c.second));
    ck_assert(sh_timeline_depend(c.second, c.lost));
    c.after = sh_work_make(c.second, sh_timeline_issue(c.second));
    ck_assert(sh_timeline_depend(c.third, c.after));
    c.last = sh_work_make(c.third, sh_timeline_issue(c.third));
    return c;
}

START_TEST(what_comes_after_lost_work_is_lost)
{
    chain c = make_chain();
    sh_timeline_release(c.first); /* with work outstanding */
    ck_assert_int_eq(sh_work_look(c.before), SH_WORK_PENDING);
    ck_assert_int_eq(sh_work_look(c.after), SH_WORK_LOST);
    ck_assert_int_eq(sh_work_look(c.last), SH_WORK_LOST);
    ck_assert(sh_timeline_is_poisoned(c.second) && sh_timeline_is_poisoned(c.third));
    ck_assert_uint_eq(sh_load_relaxed(sh_timeline_done_word(c.second)), 0); /* its owner's card is there */
    sh_work later = sh_work_make(c.second, sh_timeline_issue(c.second));
    card_writes(c.second, sh_work_number(later));
    card_writes(c.third, sh_work_number(c.last));
    ck_assert_int_eq(sh_work_look(c.before), SH_WORK_DONE);
    ck_assert_int_eq(sh_work_look(c.after), SH_WORK_LOST);
    ck_assert_int_eq(sh_work_look(later), SH_WORK_LOST);
    ck_assert_int_eq(sh_work_look(c.last), SH_WORK_LOST);
    sh_timeline_release(c.second);
    sh_timeline_release(c.third);
    uint32_t next = 0;
    ck_assert_ok(sh_timeline_claim(&next));
    ck_assert_uint_gt(next, c.third); /* none of them is used again */
    sh_timeline_release(next);
}
END_TEST

START_TEST(what_comes_after_done_work_is_not_lost)
{
    chain c = make_chain();
    card_writes(c.first, sh_work_number(c.lost));
    sh_timeline_issue(c.first);
    sh_timeline_release(c.first); /* only the later number is lost */
    ck_assert_int_eq(sh_work_look(c.after), SH_WORK_PENDING);
    ck_assert(!sh_timeline_is_poisoned(c.second) && !sh_timeline_is_poisoned(c.third));
    card_writes(c.second, sh_work_number(c.after));
    card_writes(c.third, sh_work_number(c.last));
    ck_assert_int_eq(sh_work_look(c.last), SH_WORK_DONE);
    sh_timeline_release(c.second);
    sh_timeline_release(c.third);
}
END_TEST

START_TEST(work_after_what_is_lost_already_is_lost)
{
    uint32_t first = 0, second = 0;
    ck_assert_ok(sh_timeline_claim(&first));
    ck_assert_ok(sh_timeline_claim(&second));
    sh_work lost = sh_work_make(first, sh_timeline_issue(first));
    sh_timeline_release(first);
    sh_work before = sh_work_make(second, sh_timeline_issue(second));
    ck_assert(sh_timeline_depend(second, lost));
    ck_assert_int_eq(sh_work_look(before), SH_WORK_PENDING);
    ck_assert_int_eq(sh_work_look(sh_work_make(second, sh_timeline_issue(second))), SH_WORK_LOST);
    sh_timeline_release(second);
}
END_TEST

/* Its owner has given it back, but a wait of its stream may still be lost: nobody else gets the timeline. */
START_TEST(a_timeline_that_may_be_poisoned_is_not_used_again)
{
    uint32_t first = 0, second = 0, next = 0;
    ck_assert_ok(sh_timeline_claim(&first));
    ck_assert_ok(sh_timeline_claim(&second));
    sh_work lost = sh_work_make(first, sh_timeline_issue(first));
    sh_work done = sh_work_make(second, sh_timeline_issue(second));
    card_writes(second, sh_work_number(done));
    ck_assert(sh_timeline_depend(second, lost)); /* and nothing was issued after it */
    sh_timeline_release(second);
    ck_assert_int_eq(sh_work_look(done), SH_WORK_DONE);
    sh_timeline_release(first);
    ck_assert_int_eq(sh_work_look(lost), SH_WORK_LOST);
    ck_assert_int_eq(sh_work_look(done), SH_WORK_DONE);
    ck_assert_ok(sh_timeline_claim(&next));
    ck_assert_uint_gt(next, second);
    sh_timeline_release(next);
}
END_TEST

/* The room is for different processes; several works of one share an entry if there is no more. */
START_TEST(a_stream_waits_for_a_limited_number_of_processes)
{
    uint32_t mine = 0, others[SH_SLOT_AWAITS + 1];
    sh_work works[SH_SLOT_AWAITS + 1];
    ck_assert_ok(sh_timeline_claim(&mine));
    for (uint32_t i = 0; i <= SH_SLOT_AWAITS; i++) {
        ck_assert_ok(sh_timeline_claim(&others[i]));
        works[i] = sh_work_make(others[i], sh_timeline_issue(others[i]));
    }
    for (uint32_t i = 0; i < SH_SLOT_AWAITS; i++) {
        ck_assert(sh_timeline_depend(mine, works[i]));
    }
    ck_assert(!sh_timeline_depend(mine, works[SH_SLOT_AWAITS]));
    sh_work again = sh_work_make(others[3], sh_timeline_issue(others[3]));
    ck_assert(sh_timeline_depend(mine, again));
    card_writes(others[5], sh_work_number(works[5]));
    ck_assert(sh_timeline_depend(mine, works[SH_SLOT_AWAITS])); /* one is over */
    sh_work last = sh_work_make(mine, sh_timeline_issue(mine));
    card_writes(others[3], sh_work_number(works[3]));
    sh_timeline_release(others[3]); /* `again` is lost */
    ck_assert_int_eq(sh_work_look(last), SH_WORK_LOST);
    for (uint32_t i = 0; i <= SH_SLOT_AWAITS; i++) {
        sh_timeline_release(others[i]);
    }
    sh_timeline_release(mine);
}
END_TEST

/* A lost wait keeps its place until the program is told: the dying GPU may write a smaller number once more, and then
 * the stream waits again. */
START_TEST(a_lost_wait_stays_until_it_is_reported)
{
    uint32_t others[SH_SLOT_AWAITS + 1], mine = 0;
    sh_work works[SH_SLOT_AWAITS + 1];
    bool lost = false;
    ck_assert_ok(sh_timeline_claim(&mine));
    ck_assert_int_eq(sh_work_look(sh_timeline_last(mine)), SH_WORK_DONE);
    for (uint32_t i = 0; i <= SH_SLOT_AWAITS; i++) {
        ck_assert_ok(sh_timeline_claim(&others[i]));
        works[i] = sh_work_make(others[i], sh_timeline_issue(others[i]));
        ck_assert(sh_timeline_last(others[i]) == works[i]);
    }
    ck_assert_uint_eq(sh_timeline_look(false, &lost), 0);
    for (uint32_t i = 0; i < SH_SLOT_AWAITS; i++) {
        ck_assert(!sh_timeline_awaits(works[i]));
        ck_assert(sh_timeline_depend(mine, works[i]));
        ck_assert(sh_timeline_awaits(works[i]));
    }
    ck_assert_uint_eq(sh_timeline_look(false, &lost), SH_SLOT_AWAITS);
    ck_assert(!lost);
    sh_timeline_release(others[2]);
    card_writes(others[2], sh_work_number(works[2]) - 1);
    ck_assert(!sh_timeline_depend(mine, works[SH_SLOT_AWAITS]));
    ck_assert_uint_eq(sh_timeline_look(false, &lost), SH_SLOT_AWAITS);
    ck_assert(lost);
    ck_assert_uint_ge(sh_load_relaxed(sh_timeline_done_word(others[2])), sh_work_number(works[2]));
    ck_assert_uint_eq(sh_timeline_look(true, &lost), SH_SLOT_AWAITS - 1);
    lost = false;
    ck_assert_uint_eq(sh_timeline_look(false, &lost), SH_SLOT_AWAITS - 1);
    ck_assert(!lost);
    ck_assert(sh_timeline_depend(mine, works[SH_SLOT_AWAITS]));
    for (uint32_t i = 0; i <= SH_SLOT_AWAITS; i++) {
        sh_timeline_release(others[i]);
    }
    sh_timeline_release(mine);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("timeline");
    TCase *tc = tcase_create("timeline");
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    tcase_add_test(tc, work_is_done_when_the_card_says_so);
    tcase_add_test(tc, nonsense_is_lost);
    tcase_add_test(tc, the_words_lie_in_the_range);
    tcase_add_test(tc, what_was_not_done_at_the_death_is_lost);
    tcase_add_test(tc, a_timeline_without_losses_goes_on_counting);
    tcase_add_test(tc, an_end_loses_what_is_not_done);
    tcase_add_test(tc, a_lost_card_loses_what_is_not_done);
    tcase_add_test(tc, what_comes_after_lost_work_is_lost);
    tcase_add_test(tc, what_comes_after_done_work_is_not_lost);
    tcase_add_test(tc, work_after_what_is_lost_already_is_lost);
    tcase_add_test(tc, a_lost_wait_stays_until_it_is_reported);
    tcase_add_test(tc, a_timeline_that_may_be_poisoned_is_not_used_again);
    tcase_add_test(tc, a_stream_waits_for_a_limited_number_of_processes);
    tcase_add_test(tc, there_is_an_end_of_timelines);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
