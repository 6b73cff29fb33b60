/* Environments: CartPole against numbers from another implementation, and the rules of episodes. */
#include "env/cartpole.h"

#include "tests/harness/runner.h"

#include <math.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* The results of Gym's equations, computed in Python from these states by:
 *
 *     def step(x, v, a, w, action):
 *         f, c, s, total = 10.0 if action == 1 else -10.0, math.cos(a), math.sin(a), 1.0 + 0.1
 *         temp = (f + 0.1 * 0.5 * w**2 * s) / total
 *         w_acc = (9.8 * s - c * temp) / (0.5 * (4.0 / 3.0 - 0.1 * c**2 / total))
 *         v_acc = temp - 0.1 * 0.5 * w_acc * c / total
 *         return x + 0.02 * v, v + 0.02 * v_acc, a + 0.02 * w, w + 0.02 * w_acc
 */
static const struct {
    int64_t action;
    bool from; /* this is a starting state */
    double state[4];
} golden[] = {
    {0, true, {0.01, -0.02, 0.03, 0.04}},
    {1, false, {0.0096000000000000009, 0.17467919574755525, 0.030799999999999998, -0.24306871796000809}},
    {1, false, {0.013093583914951107, 0.36934797605795561, 0.025938625640799837, -0.52587962805014832}},
    {0, false, {0.020480543436110221, 0.17387081260481596, 0.015421033079796869, -0.22513741609237464}},
    {1, false, {0.023957959688206541, 0.36876901017476171, 0.010918284757949377, -0.51291634780265871}},
    {0, false, {0.031333339891701777, 0.17349499275068458, 0.00065995780189620316, -0.21681286835696195}},
    {0, false, {0.034803239746715467, -0.021636386741578473, -0.0036762995652430356, 0.076078164719837749}},
    {0, true, {-0.5, 1.25, -0.15, -0.9}},
    {0, false, {-0.47499999999999998, 1.0571941031140148, -0.16799999999999998, -0.65797346920266686}},
    {0, false, {-0.45385611793771968, 0.8647594990391031, -0.18115946938405331, -0.42254543472051276}},
    {1, false, {-0.43656092795693763, 1.0619233792154565, -0.18961037807846357, -0.76642154407705276}},
};

static shoal_env *open_cartpole(uint64_t seed)
{
    float seen[4];
    shoal_env *env = shoal_env_create("cartpole", seed);
    ck_assert_ptr_nonnull(env);
    ck_assert_ok(shoal_env_reset(env, seen));
    return env;
}

START_TEST(cartpole_moves_as_gyms)
{
    shoal_env *env = open_cartpole(1);
    for (size_t i = 0; i < COUNT(golden); i++) {
        const double *wanted = golden[i].state;
        if (golden[i].from) {
            *(sh_cartpole *)shoal_env_state(env) = (sh_cartpole){wanted[0], wanted[1], wanted[2], wanted[3]};
            continue;
        }
        float seen[4];
        shoal_env_outcome out;
        ck_assert_ok(shoal_env_step(env, golden[i].action, seen, &out));
        const sh_cartpole *s = shoal_env_state(env);
        const double got[4] = {s->x, s->speed, s->angle, s->spin};
        for (int j = 0; j < 4; j++) {
            ck_assert_msg(fabs(got[j] - wanted[j]) < 1e-12, "step %zu, %d: %.17g, not %.17g", i, j, got[j], wanted[j]);
            ck_assert_float_eq(seen[j], (float)got[j]);
        }
        ck_assert(out.reward == 1 && !out.terminated && !out.truncated);
    }
    shoal_env_destroy(env);
}
END_TEST

/* Each state is inside or outside the bounds after one step of 0.02 s. */
START_TEST(cartpole_ends_beyond_its_bounds)
{
    const double most = 12 * 2 * 3.14159265358979323846 / 360;
    const struct {
        sh_cartpole from;
        bool ends;
    } cases[] = {
        {{2.4, 0, 0, 0}, false},     {{2.4, 0.01, 0, 0}, true},    {{-2.4, 0, 0, 0}, false},
        {{-2.4, -0.01, 0, 0}, true}, {{0, 0, most, 0}, false},     {{0, 0, most, 0.01}, true},
        {{0, 0, -most, 0}, false},   {{0, 0, -most, -0.01}, true}, {{0, 9, 0, 9}, false},
    };
    shoal_env *env = open_cartpole(1);
    for (size_t i = 0; i < COUNT(cases); i++) {
        float seen[4];
        shoal_env_outcome out;
        ck_assert_ok(shoal_env_reset(env, seen));
        *(sh_cartpole *)shoal_env_state(env) = cases[i].from;
        ck_assert_ok(shoal_env_step(env, 0, seen, &out));
        ck_assert_msg(out.terminated == cases[i].ends && !out.truncated && out.reward == 1, "case %zu", i);
        if (cases[i].ends) {
            ck_assert_err(shoal_env_step(env, 0, seen, &out), SHOAL_ESTATE);
            ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "reset"));
        }
    }
    shoal_env_destroy(env);
}
END_TEST

START_TEST(cartpole_is_cut_off_after_500_steps)
{
    shoal_env *env = open_cartpole(1);
    float seen[4];
    shoal_env_outcome out = {0};
    for (int i = 1; i <= 500; i++) {
        *(sh_cartpole *)shoal_env_state(env) = (sh_cartpole){0};
        ck_assert_ok(shoal_env_step(env, i % 2, seen, &out));
        ck_assert_int_eq(shoal_env_steps(env), i);
        ck_assert(!out.terminated && out.truncated == (i == 500));
    }
    ck_assert_err(shoal_env_step(env, 0, seen, &out), SHOAL_ESTATE);
    ck_assert_ok(shoal_env_reset(env, seen));
    ck_assert_int_eq(shoal_env_steps(env), 0);
    ck_assert_ok(shoal_env_step(env, 0, seen, &out));
    shoal_env_destroy(env);
}
END_TEST

START_TEST(cartpole_begins_near_the_middle)
{
    float least[4] = {1, 1, 1, 1}, most[4] = {-1, -1, -1, -1}, seen[4];
    double sum[4] = {0};
    shoal_env *env = open_cartpole(3);
    for (int i = 0; i < 10000; i++) {
        ck_assert_ok(shoal_env_reset(env, seen));
        for (int j = 0; j < 4; j++) {
            least[j] = seen[j] < least[j] ? seen[j] : least[j];
            most[j] = seen[j] > most[j] ? seen[j] : most[j];
            sum[j] += (double)seen[j];
        }
    }
    for (int j = 0; j < 4; j++) {
        ck_assert(least[j] >= -0.05f && least[j] < -0.0499f && most[j] <= 0.05f && most[j] > 0.0499f);
        ck_assert(fabs(sum[j] / 10000) < 0.002); /* uniform: the mean's standard deviation is 0.0003 */
    }
    shoal_env_destroy(env);
}
END_TEST

START_TEST(the_seed_decides)
{
    shoal_env *envs[3] = {open_cartpole(5), open_cartpole(5), open_cartpole(6)};
    float seen[3][4];
    for (int i = 0; i < 3; i++) {
        ck_assert_ok(shoal_env_reset(envs[i], seen[i]));
        shoal_env_destroy(envs[i]);
    }
    ck_assert_int_eq(memcmp(seen[0], seen[1], sizeof seen[0]), 0);
    ck_assert_int_ne(memcmp(seen[0], seen[2], sizeof seen[0]), 0);
}
END_TEST

/* ---- kinds that the program registers ---- */

static int finished;

static shoal_err coin_init(shoal_env *self)
{
    *(int *)shoal_env_state(self) += 7;
    return SHOAL_OK;
}

static shoal_err no_init(shoal_env *self)
{
    (void)self;
    return shoal_fail(SHOAL_EOS, "no luck");
}

static shoal_err bare_init(shoal_env *self)
{
    (void)self;
    return SHOAL_EPERM;
}

static shoal_err bare_reset(shoal_env *self, float *observation)
{
    (void)self;
    return *observation < 0 ? SHOAL_ELIMIT : SHOAL_OK;
}

static shoal_err bare_step(shoal_env *self, int64_t action, float *observation, double *out_reward,
                           bool *out_terminated)
{
    (void)self;
    (void)action;
    (void)observation;
    (void)out_reward;
    (void)out_terminated;
    return SHOAL_ECLOSED;
}

static void coin_fini(shoal_env *self)
{
    (void)self;
    finished++;
}

static shoal_err coin_reset(shoal_env *self, float *observation)
{
    observation[0] = (float)*(int *)shoal_env_state(self);
    return SHOAL_OK;
}

static shoal_err coin_step(shoal_env *self, int64_t action, float *observation, double *out_reward,
                           bool *out_terminated)
{
    (void)out_terminated;
    observation[0] = 1;
    *out_reward = shoal_env_uniform(self, 2, 4);
    return action == 0 ? SHOAL_OK : shoal_fail(SHOAL_EOS, "the coin is lost");
}

static const shoal_env_type coin = {.name = "coin",
                                    .observation = 1,
                                    .actions = 2,
                                    .state_size = sizeof(int),
                                    .init = coin_init,
                                    .fini = coin_fini,
                                    .reset = coin_reset,
                                    .step = coin_step};

START_TEST(kinds_by_name)
{
    ck_assert_str_eq(shoal_env_at(0)->name, "cartpole");
    ck_assert_ptr_null(shoal_env_at(1));
    ck_assert_ptr_null(shoal_env_create("coin", 1));
    ck_assert_int_eq(shoal_last_error(), SHOAL_ENOENT);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "unknown environment 'coin': the known ones are cartpole"));
    ck_assert_ok(shoal_env_register(&coin));
    ck_assert_ok(shoal_env_register(&coin));
    ck_assert_ptr_eq(shoal_env_at(1), &coin);
    shoal_env_type other = coin;
    ck_assert_err(shoal_env_register(&other), SHOAL_ESTATE);
    other.name = "two coins";
    other.actions = 0;
    ck_assert_err(shoal_env_register(&other), SHOAL_EINVAL);
    ck_assert_err(shoal_env_register(NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_env_register(&(shoal_env_type){.name = "x", .observation = 1, .actions = 1}), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_env_find(NULL));
}
END_TEST

START_TEST(a_kind_of_ones_own)
{
    float seen = 0;
    shoal_env_outcome out = {.reward = -1};
    ck_assert_ok(shoal_env_register(&coin));
    shoal_env *env = shoal_env_create("coin", 9);
    ck_assert_ptr_eq(shoal_env_type_of(env), &coin);
    ck_assert_err(shoal_env_step(env, 0, &seen, &out), SHOAL_ESTATE);
    ck_assert_ok(shoal_env_reset(env, &seen));
    ck_assert(seen == 7);
    ck_assert_err(shoal_env_step(env, 2, &seen, &out), SHOAL_EINVAL);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "0 to 1"));
    ck_assert_err(shoal_env_step(env, -1, &seen, &out), SHOAL_EINVAL);
    for (int i = 0; i < 1000; i++) { /* without a limit */
        ck_assert_ok(shoal_env_step(env, 0, &seen, &out));
        ck_assert(out.reward >= 2 && out.reward < 4 && !out.truncated && !out.terminated);
    }
    ck_assert_err(shoal_env_step(env, 1, &seen, &out), SHOAL_EOS);
    ck_assert_err(shoal_env_step(env, 0, &seen, &out), SHOAL_ESTATE);
    shoal_env_destroy(env);
    ck_assert_int_eq(finished, 1);
    shoal_env_type unlucky = coin;
    unlucky.name = "unlucky";
    unlucky.init = no_init;
    ck_assert_ok(shoal_env_register(&unlucky));
    ck_assert_ptr_null(shoal_env_create("unlucky", 1));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EOS);
    ck_assert_int_eq(finished, 2);
}
END_TEST

/* If a kind's function returns a code without setting an error, that code becomes the last error, not an older one or
 * none. */
START_TEST(bare_codes)
{
    static const shoal_env_type closed = {
        .name = "closed", .observation = 1, .actions = 1, .init = bare_init, .reset = bare_reset, .step = bare_step};
    static const shoal_env_type bare = {
        .name = "bare", .observation = 1, .actions = 1, .reset = bare_reset, .step = bare_step};
    float seen = -1;
    shoal_env_outcome out;
    ck_assert_ok(shoal_env_register(&closed));
    ck_assert_ok(shoal_env_register(&bare));
    ck_assert_ptr_null(shoal_env_create("closed", 1));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EPERM);
    ck_assert_str_eq(shoal_last_error_text(), "closed: init returned SHOAL_EPERM");
    shoal_env *env = shoal_env_create("bare", 1);
    ck_assert_err(shoal_env_reset(env, &seen), SHOAL_ELIMIT);
    ck_assert_str_eq(shoal_last_error_text(), "bare: reset returned SHOAL_ELIMIT");
    seen = 0;
    ck_assert_ok(shoal_env_reset(env, &seen));
    ck_assert_err(shoal_env_step(env, 0, &seen, &out), SHOAL_ECLOSED);
    ck_assert_str_eq(shoal_last_error_text(), "bare: step returned SHOAL_ECLOSED");
    shoal_env_destroy(env);
}
END_TEST

START_TEST(null_is_an_error)
{
    float seen[4];
    shoal_env_outcome out;
    shoal_env *env = open_cartpole(1);
    ck_assert_err(shoal_env_reset(NULL, seen), SHOAL_EINVAL);
    ck_assert_err(shoal_env_reset(env, NULL), SHOAL_EINVAL);
    ck_assert_err(shoal_env_step(NULL, 0, seen, &out), SHOAL_EINVAL);
    ck_assert_ok(shoal_env_reset(env, seen));
    ck_assert_err(shoal_env_step(env, 0, NULL, &out), SHOAL_EINVAL);
    ck_assert_err(shoal_env_step(env, 0, seen, NULL), SHOAL_EINVAL);
    ck_assert(shoal_env_type_of(NULL) == NULL && shoal_env_state(NULL) == NULL && shoal_env_steps(NULL) == 0);
    shoal_env_destroy(env);
    shoal_env_destroy(NULL);
}
END_TEST

static Suite *suite(void)
{
    const TTest *const tests[] = {
        cartpole_moves_as_gyms,
        cartpole_ends_beyond_its_bounds,
        cartpole_is_cut_off_after_500_steps,
        cartpole_begins_near_the_middle,
        the_seed_decides,
        kinds_by_name,
        a_kind_of_ones_own,
        bare_codes,
        null_is_an_error,
    };
    Suite *s = suite_create("env");
    TCase *group = tcase_create("env");
    tcase_set_timeout(group, SH_TEST_SECONDS);
    tcase_add_checked_fixture(group, sh_leaks_begin, sh_leaks_end);
    for (size_t i = 0; i < COUNT(tests); i++) {
        tcase_add_test(group, tests[i]);
    }
    suite_add_tcase(s, group);
    return s;
}

SH_TEST_MAIN(suite)
