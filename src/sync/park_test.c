#include "sync/park.h"

#include "sync/peers_test.h"

/* Waits once, and returns whether the wait spun. It ends as soon as it may look again, or when its spin runs out. */
static bool wait_once(const sh_gate *gate, bool answered)
{
    sh_wait wait;
    sh_wait_init(&wait, SHOAL_FOREVER, SH_SLICE_LONG, gate);
    bool spins = sh_wait_spin(&wait);
    while (spins && !answered && sh_wait_spin(&wait)) {
    }
    return spins;
}

static int spins_of(const sh_gate *gate, bool answered, int waits)
{
    int spins = 0;
    for (int i = 0; i < waits; i++) {
        spins += wait_once(gate, answered);
    }
    return spins;
}

/* Waits that always outlast their spin stop spinning, but for a trial now and then. */
START_TEST(y6_spins_in_vain_end)
{
    sh_gate gate = {.word = {0}};
    sh_spin_set(1000);
    ck_assert(wait_once(&gate, false));
    (void)spins_of(&gate, false, 5000);
    int spins = spins_of(&gate, false, 5000);
    ck_assert_int_gt(spins, 0);
    ck_assert_int_lt(spins, 250);
}
END_TEST

/* Waits that end while they spin go on spinning, even if one of ten does not. */
START_TEST(spins_that_pay_go_on)
{
    sh_gate gate = {.word = {0}};
    sh_spin_set(SHOAL_MS(1)); /* a waiter that loses the core for a moment does not count here */
    ck_assert_int_eq(spins_of(&gate, true, 1000), 1000);
    sh_spin *spin = sh_spin_at(&gate);
    for (int i = 0; i < 100; i++) {
        ck_assert(sh_spin_pays(spin));
        ck_assert_int_eq(spins_of(&gate, true, 9), 9);
        sh_store_relaxed(&spin->credit, sh_load_relaxed(&spin->credit) - SH_SPIN_LOSS);
    }
}
END_TEST

/* A gate that rests finds out that spinning pays again, however long it did not. */
START_TEST(spinning_comes_back)
{
    sh_gate gate = {.word = {0}};
    sh_spin_set(1000);
    (void)spins_of(&gate, false, 20000);
    sh_spin_set(SHOAL_MS(1));
    (void)spins_of(&gate, true, 2 * SH_REST_LONG + SH_SPIN_CREDIT);
    ck_assert_int_eq(spins_of(&gate, true, 1000), 1000);
    ck_assert_uint_eq(sh_load_relaxed(&sh_spin_at(&gate)->rest), 0); /* the next rest is a short one */
}
END_TEST

/* What one gate learned does not silence another. */
START_TEST(gates_learn_separately)
{
    sh_gate gates[2] = {{.word = {0}}, {.word = {0}}};
    ck_assert_ptr_ne(sh_spin_at(&gates[0]), sh_spin_at(&gates[1]));
    sh_spin_set(1000);
    (void)spins_of(&gates[0], false, 1000);
    sh_spin_set(SHOAL_MS(1));
    ck_assert_int_eq(spins_of(&gates[1], true, 1000), 1000);
}
END_TEST

START_TEST(no_spin_with_0)
{
    sh_gate gate = {.word = {0}};
    sh_spin_set(0);
    ck_assert_int_eq(spins_of(&gate, true, 100), 0);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        y6_spins_in_vain_end, spins_that_pay_go_on, spinning_comes_back, gates_learn_separately, no_spin_with_0,
    };
    return fake_run("sync/park", tests, sizeof tests / sizeof tests[0]);
}
