/* Tests A3C: its arithmetic against numbers computed by hand and against the tape, and short jobs with and without
 * deaths. */
#include "train/methods/a3c.h"

#include "proc/process.h"
#include "tests/harness/numbers.h"
#include "tests/harness/runner.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- arithmetic ---- */

START_TEST(returns_by_hand)
{
    double out[3];
    sh_a3c_returns(3, (double[]){1, 2, 4}, 8, 0.5, out); /* 4 + 8/2; 2 + 8/2; 1 + 6/2 */
    ck_assert(out[2] == 8 && out[1] == 6 && out[0] == 4);
    sh_a3c_returns(3, (double[]){1, 1, 1}, 0, 0.5, out); /* the episode ended: nothing follows */
    ck_assert(out[2] == 1 && out[1] == 1.5 && out[0] == 1.75);
    sh_a3c_returns(1, (double[]){3}, 100, 0, out);
    ck_assert(out[0] == 3);
}
END_TEST

/* Two actions with equal logits, V = 1, R = 3, so A = 2, p = 1/2 each, H = log 2. */
START_TEST(loss_of_one_step_by_hand)
{
    float gradient[3];
    double loss = sh_a3c_loss(1, 2, (float[]){0.5f, 0.5f, 1}, (int64_t[]){1}, (double[]){3}, 0.1, gradient);
    ck_assert_double_eq_tol(loss, 2 * log(2) - 0.1 * log(2) + 2, 1e-12);
    ck_assert_float_eq_tol(gradient[0], 1.0f, 1e-6f);  /* A p */
    ck_assert_float_eq_tol(gradient[1], -1.0f, 1e-6f); /* A (p - 1) */
    ck_assert_float_eq_tol(gradient[2], -2.0f, 1e-6f); /* V - R */
}
END_TEST

/* Computes the same loss on the tape, which gives its gradient. */
static shoal_tensor *plain_loss(shoal_tensor *output, int64_t actions, shoal_tensor *chosen, shoal_tensor *wanted,
                                double entropy)
{
    shoal_tensor *log_p = shoal_log_softmax(shoal_narrow(output, 1, 0, actions), 1);
    shoal_tensor *value = shoal_squeeze(shoal_narrow(output, 1, actions, 1), 1);
    shoal_tensor *advantage = shoal_sub(wanted, value);
    shoal_tensor *of_chosen = shoal_squeeze(shoal_gather(log_p, 1, shoal_unsqueeze(chosen, 1)), 1);
    shoal_tensor *policy = shoal_neg(shoal_sum(shoal_mul(of_chosen, shoal_detach(advantage)), SHOAL_ALL_DIMS, false));
    shoal_tensor *minus_h = shoal_sum(shoal_mul(shoal_exp(log_p), log_p), SHOAL_ALL_DIMS, false);
    shoal_tensor *error = shoal_mul_scalar(shoal_sum(shoal_square(advantage), SHOAL_ALL_DIMS, false), 0.5);
    return shoal_add(shoal_add(policy, shoal_mul_scalar(minus_h, entropy)), error);
}

START_TEST(loss_and_gradient_are_those_of_the_tape)
{
    enum { N = 7, ACTIONS = 5 };
    const double entropy = 0.3;
    int64_t chosen[N];
    double wanted[N];
    float gradient[N * (ACTIONS + 1)];
    shoal_manual_seed(11);
    shoal_tensor *output = shoal_normal_(shoal_empty(SHOAL_F64, SHOAL_SHAPE(N, ACTIONS + 1)), 0, 2);
    shoal_tensor *single = shoal_tensor_retain(shoal_to_dtype(output, SHOAL_F32)); /* as a model gives them */
    ck_assert_ptr_nonnull(shoal_copy_(output, single));
    for (int i = 0; i < N; i++) {
        chosen[i] = (3 * i + 1) % ACTIONS;
        wanted[i] = 1.5 * i - 4;
    }
    double loss = sh_a3c_loss(N, ACTIONS, shoal_tensor_data(single), chosen, wanted, entropy, gradient);
    shoal_tensor *a = shoal_from_data(SHOAL_I64, chosen, SHOAL_SHAPE(N));
    shoal_tensor *r = shoal_from_data(SHOAL_F64, wanted, SHOAL_SHAPE(N));
    ck_assert_ok(shoal_tensor_set_requires_grad(output, true));
    shoal_tensor *plain = plain_loss(output, ACTIONS, a, r, entropy);
    ck_assert_ok(shoal_backward(plain));
    ck_assert_double_eq_tol(loss, item_of(plain), 1e-9);
    const double *g = shoal_tensor_data(shoal_tensor_grad(output));
    for (int i = 0; i < N * (ACTIONS + 1); i++) {
        ck_assert_msg(fabs((double)gradient[i] - g[i]) < 1e-6 * (1 + fabs(g[i])), "%d: %g, not %g", i,
                      (double)gradient[i], g[i]);
    }
    shoal_scope_release(0);
    shoal_tensor_release(a);
    shoal_tensor_release(r);
    shoal_tensor_release(single);
    shoal_tensor_release(output);
}
END_TEST

START_TEST(actions_are_drawn_by_their_probabilities)
{
    const float logits[3] = {logf(1), logf(2), logf(5)}; /* 1/8, 1/4, 5/8 */
    ck_assert_int_eq(sh_a3c_choose(3, logits, 0), 0);
    ck_assert_int_eq(sh_a3c_choose(3, logits, 0.1249), 0);
    ck_assert_int_eq(sh_a3c_choose(3, logits, 0.1251), 1);
    ck_assert_int_eq(sh_a3c_choose(3, logits, 0.3749), 1);
    ck_assert_int_eq(sh_a3c_choose(3, logits, 0.3751), 2);
    ck_assert_int_eq(sh_a3c_choose(3, logits, 1 - 0x1p-53), 2);
    ck_assert_int_eq(sh_a3c_choose(1, logits, 0.9), 0);
    ck_assert_int_eq(sh_a3c_choose(3, (float[]){NAN, NAN, NAN}, 0.5), 2); /* any valid action */
    ck_assert_int_eq(sh_a3c_choose(2, (float[]){-1e30f, 1e30f}, 0.5), 1);
}
END_TEST

/* ---- jobs ---- */

#define ENDLESS INT64_C(10000000000)

typedef struct counts {
    int begins, epochs, deaths, summaries;
    int kill_left;       /* how many actors to kill */
    int64_t kill_images; /* kills the next one after this many steps of all actors */
    int64_t stop_after;  /* stops this many steps after the last kill; 0: never */
    int64_t last_death;  /* the number of steps at that time */
    bool stop;           /* at the first epoch */
} counts;

static bool count(const shoal_train_event *event, void *context)
{
    counts *c = context;
    c->begins += event->kind == SHOAL_TRAIN_BEGIN;
    if (event->kind == SHOAL_TRAIN_EPOCH) {
        ck_assert_int_eq(event->so_far.epochs, ++c->epochs); /* each once */
    }
    c->deaths += event->kind == SHOAL_TRAIN_DEATH;
    c->summaries += event->kind == SHOAL_TRAIN_SUMMARY;
    int victim = c->kill_left % event->workers_count;
    if (event->kind == SHOAL_TRAIN_TICK && c->kill_left > 0 && event->so_far.images >= c->kill_images &&
        event->workers[victim].pid > 0) {
        c->kill_left--;
        c->kill_images += 1000;
        (void)!kill(event->workers[victim].pid, SIGKILL);
    }
    if (event->kind == SHOAL_TRAIN_DEATH) {
        c->last_death = event->so_far.images;
    }
    bool enough = c->stop_after > 0 && c->deaths == 4 && event->so_far.images >= c->last_death + c->stop_after;
    return !enough && !(c->stop && event->kind == SHOAL_TRAIN_EPOCH);
}

/* Without learning the pole falls after about 20 steps; the actors reach 60 after a tenth of these steps. */
START_TEST(actors_learn)
{
    static const shoal_start starts[] = {SHOAL_START_SPAWN, SHOAL_START_FORK, SHOAL_START_FORKSERVER};
    counts c = {0};
    shoal_train_result r;
    ck_assert_ok(shoal_train_run(&(shoal_train_options){.method = SHOAL_METHOD_A3C,
                                                        .workers = 3,
                                                        .start = starts[_i],
                                                        .until = 60,
                                                        .seed = 5,
                                                        .call = count,
                                                        .context = &c},
                                 &r));
    ck_assert_msg(r.reward >= 60 && r.episodes >= 100, "reward %g after %lld episodes, %lld steps", r.reward,
                  (long long)r.episodes, (long long)r.images);
    ck_assert(r.images < 2000000 && isnan(r.test_loss) && isnan(r.test_accuracy) && !r.stopped && r.deaths == 0);
    ck_assert(c.begins == 1 && c.summaries == 1 && c.epochs >= 1);
    if (starts[_i] == SHOAL_START_FORKSERVER) {
        shoal_fork_server_stop();
    }
}
END_TEST

/* The job ends at its limit, counts each step once, and reports what it reached. */
START_TEST(the_steps_are_limited)
{
    shoal_train_result r;
    shoal_module *model = shoal_actor_critic_create(4, 2, 8);
    const shoal_train_options o = {.method = SHOAL_METHOD_A3C,
                                   .workers = 2,
                                   .module = model,
                                   .a3c.env_steps = 3000,
                                   .a3c.rollout = 7,
                                   .until = -1};
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert(r.images >= 3000 && r.images < 3000 + 2 * 7); /* each actor may be in a rollout */
    ck_assert(r.episodes >= 2 && r.episodes <= 3000 / 8 && r.reward >= 8 && r.reward <= 500);
    ck_assert(!r.stopped && r.epochs == 1);
    shoal_module_destroy(model);
}
END_TEST

/* Twelve epochs are twelve events, the last of them shorter. The same holds for a job that ends at its mean return. */
START_TEST(each_epoch_is_reported_once)
{
    counts c = {0}, d = {0};
    shoal_train_result r;
    shoal_train_options o = {.method = SHOAL_METHOD_A3C,
                             .workers = 3,
                             .a3c.env_steps = 115000,
                             .until = -1,
                             .seed = 5,
                             .call = count,
                             .context = &c};
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert(c.epochs == 12 && r.epochs == 12 && r.reached_epoch == 0);
    o.context = &d;
    o.until = 60;
    ck_assert_ok(shoal_train_run(&o, &r));
    ck_assert(d.epochs >= 1 && r.epochs == d.epochs && r.reached_epoch == d.epochs);
}
END_TEST

/* A job that reached its limit continues from its checkpoint with a higher limit, and keeps its counts. */
START_TEST(continues_from_a_checkpoint)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/shoal_a3c_test.%d", (int)getpid());
    shoal_train_options o = {
        .method = SHOAL_METHOD_A3C, .workers = 2, .a3c.env_steps = 4000, .until = -1, .save = path};
    shoal_train_result first, second, third;
    ck_assert_ok(shoal_train_run(&o, &first));
    o.resume = path;
    o.a3c.env_steps = 30000;
    ck_assert_ok(shoal_train_run(&o, &second));
    ck_assert(second.images >= 30000 && second.images < 30000 + 2 * 20 && second.epochs == 3);
    ck_assert(second.episodes > first.episodes && second.reward > first.reward);
    ck_assert_ok(shoal_train_run(&o, &third)); /* nothing is left to do */
    ck_assert(third.images == second.images && third.episodes == second.episodes && third.reward == second.reward);
    shoal_tensors *file = shoal_safetensors_read(path);
    const float *square = shoal_tensor_data(shoal_tensors_find(file, "shoal/rmsprop/policy1.weight.square_avg"));
    ck_assert(square != NULL && square[0] > 0);
    shoal_tensors_destroy(file);
    o.a3c.gamma = 0.5;
    ck_assert_err(shoal_train_run(&o, NULL), SHOAL_EINVAL);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "gamma is 0.99 in the checkpoint, but 0.5 was given"));
    unlink(path);
}
END_TEST

/* A goal that is already reached leaves nothing to do, unless the new goal is higher. */
START_TEST(solved_is_solved_when_it_is_resumed)
{
    char path[64];
    counts c = {.kill_left = 0};
    snprintf(path, sizeof path, "/tmp/shoal_a3c_test.%d", (int)getpid());
    shoal_train_options o = {
        .method = SHOAL_METHOD_A3C, .workers = 2, .until = 25, .save = path, .call = count, .context = &c};
    shoal_train_result first, second;
    ck_assert_ok(shoal_train_run(&o, &first));
    ck_assert(first.reward >= 25 && first.episodes >= 100 && c.epochs >= 1);
    int epochs = c.epochs;
    o.resume = path;
    ck_assert_ok(shoal_train_run(&o, &second));
    ck_assert(second.images == first.images && second.episodes == first.episodes && second.reward == first.reward);
    ck_assert(c.epochs == epochs && c.summaries == 2);
    o.until = first.reward + 10;
    ck_assert_ok(shoal_train_run(&o, &second));
    ck_assert(second.reward >= o.until && second.images > first.images);
    unlink(path);
}
END_TEST

START_TEST(killed_actors_are_restarted)
{
    counts c = {.kill_left = 4, .kill_images = 500, .stop_after = 30000};
    shoal_train_result r;
    ck_assert_ok(shoal_train_run(&(shoal_train_options){.method = SHOAL_METHOD_A3C,
                                                        .workers = 2,
                                                        .until = -1,
                                                        .a3c.env_steps = ENDLESS,
                                                        .call = count,
                                                        .context = &c},
                                 &r));
    ck_assert(r.stopped && c.kill_left == 0);
    ck_assert_int_eq(r.deaths, 4);
    ck_assert_int_eq(c.deaths, 4);
    ck_assert_msg(r.reward > 40, "%g", r.reward);
}
END_TEST

START_TEST(restarts_are_limited)
{
    counts c = {.kill_left = 100};
    ck_assert_err(shoal_train_run(&(shoal_train_options){.method = SHOAL_METHOD_A3C,
                                                         .workers = 2,
                                                         .until = -1,
                                                         .a3c.env_steps = ENDLESS,
                                                         .restarts = 1,
                                                         .call = count,
                                                         .context = &c},
                                  NULL),
                  SHOAL_ECHILD);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "SIGKILL"));
}
END_TEST

START_TEST(the_callback_stops_it)
{
    counts c = {.stop = true};
    shoal_train_result r;
    ck_assert_ok(shoal_train_run(&(shoal_train_options){.method = SHOAL_METHOD_A3C,
                                                        .workers = 2,
                                                        .until = -1,
                                                        .a3c.env_steps = ENDLESS,
                                                        .call = count,
                                                        .context = &c},
                                 &r));
    ck_assert(r.stopped && r.images >= 10000 && c.epochs == 1 && c.summaries == 1);
}
END_TEST

/* ---- an environment that the program defines: the observation is the right action, and an episode is truncated after
 * ten steps ---- */

static shoal_err follow_reset(shoal_env *self, float *observation)
{
    float *shown = shoal_env_state(self);
    *observation = *shown = shoal_env_uniform(self, 0, 3) < 1 ? 1 : 0;
    return SHOAL_OK;
}

static shoal_err follow_step(shoal_env *self, int64_t action, float *observation, double *out_reward,
                             bool *out_terminated)
{
    (void)out_terminated;
    const float *shown = shoal_env_state(self);
    *out_reward = (float)action == *shown ? 1 : 0;
    return follow_reset(self, observation);
}

static const shoal_env_type follow = {.name = "follow",
                                      .observation = 1,
                                      .actions = 2,
                                      .most_steps = 10,
                                      .state_size = sizeof(float),
                                      .reset = follow_reset,
                                      .step = follow_step};

START_TEST(an_environment_of_the_program)
{
    shoal_train_result r;
    ck_assert_ok(shoal_train_run(&(shoal_train_options){.method = SHOAL_METHOD_A3C,
                                                        .workers = 2,
                                                        .a3c.env = "follow",
                                                        .a3c.gamma = -1,
                                                        .a3c.rollout = 4,
                                                        .until = 9.5},
                                 &r));
    ck_assert_msg(r.reward >= 9.5 && r.reward <= 10 && r.images < 2000000, "%g after %lld steps", r.reward,
                  (long long)r.images);
}
END_TEST

START_TEST(wrong_options)
{
    shoal_dataset *set = (shoal_dataset *)&(char){0}; /* is not looked at */
    const struct {
        shoal_train_options o;
        const char *words;
        shoal_err err;
    } wrong[] = {
        {{.a3c.env = "moon"}, "unknown environment 'moon': the known ones are cartpole, follow", SHOAL_ENOENT},
        {{.model = "mlp"}, "unknown model 'mlp' for a3c; the model is actor-critic", SHOAL_ENOENT},
        {{.data = "mnist"}, "a3c takes none", SHOAL_EINVAL},
        {{.train_set = set}, "a3c takes none", SHOAL_EINVAL},
        {{.a3c.rollout = -1}, "-1 steps in a rollout", SHOAL_EINVAL},
        {{.a3c.env_steps = -1}, "-1 steps of environments", SHOAL_EINVAL},
        {{.a3c.gamma = 1.5}, "gamma is 1.5", SHOAL_EINVAL},
        {{.a3c.gamma = NAN}, "gamma", SHOAL_EINVAL},
        {{.a3c.entropy = INFINITY}, "entropy", SHOAL_EINVAL},
        {{.until = NAN}, "until", SHOAL_EINVAL},
        {{.lr = -1}, "learning rate", SHOAL_EINVAL},
        {{.workers = -1}, "-1 workers", SHOAL_EINVAL},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        shoal_train_options o = wrong[i].o;
        o.method = SHOAL_METHOD_A3C;
        ck_assert_err(shoal_train_run(&o, NULL), wrong[i].err);
        ck_assert_msg(strstr(shoal_last_error_text(), wrong[i].words) != NULL, "%s", shoal_last_error_text());
    }
}
END_TEST

/* The actor that runs a model of the wrong size reports it. */
START_TEST(a_model_that_does_not_fit)
{
    shoal_module *model = shoal_actor_critic_create(4, 3, 8);
    ck_assert_err(
        shoal_train_run(&(shoal_train_options){.method = SHOAL_METHOD_A3C, .workers = 1, .module = model}, NULL),
        SHOAL_ECHILD);
    ck_assert_msg(strstr(shoal_last_error_text(), "must return f32 [1, 3]") != NULL, "%s", shoal_last_error_text());
    shoal_module_destroy(model);
}
END_TEST

static Suite *suite(void)
{
    const TTest *const tests[] = {
        returns_by_hand,
        loss_of_one_step_by_hand,
        loss_and_gradient_are_those_of_the_tape,
        actions_are_drawn_by_their_probabilities,
        the_steps_are_limited,
        each_epoch_is_reported_once,
        continues_from_a_checkpoint,
        solved_is_solved_when_it_is_resumed,
        killed_actors_are_restarted,
        restarts_are_limited,
        the_callback_stops_it,
        an_environment_of_the_program,
        wrong_options,
        a_model_that_does_not_fit,
    };
    Suite *s = suite_create("a3c");
    TCase *group = tcase_create("a3c");
    tcase_set_timeout(group, SH_TEST_SECONDS);
    tcase_add_checked_fixture(group, sh_leaks_begin, sh_leaks_end);
    for (size_t i = 0; i < COUNT(tests); i++) {
        tcase_add_test(group, tests[i]);
    }
    tcase_add_loop_test(group, actors_learn, 0, 3);
    suite_add_tcase(s, group);
    return s;
}

int main(int argc, char **argv)
{
    return shoal_env_register(&follow) == SHOAL_OK ? sh_test_main(argc, argv, suite) : EXIT_FAILURE;
}
