/* Modules and state dicts between processes: B10. And modules whose functions fail. */
#include "tests/harness/numbers.h"
#include "tests/harness/talk.h"

#include <stdlib.h>

#define ROUNDS (talk_is_card() ? 3 : 30)
#define IN 4
#define OUT 3

/* A module that the program defines: a layer, a child that is a sequence, a buffer that counts,
 * and one tensor with two names. */
static shoal_err net_init(shoal_module *self, const double *settings)
{
    int64_t hidden = (int64_t)settings[0];
    shoal_tensor *tied = shoal_ones(SHOAL_F32, SHOAL_SHAPE(hidden));
    shoal_err err = shoal_module_add_parameter(self, "scale", shoal_tensor_retain(tied));
    if (err == SHOAL_OK) {
        err = shoal_module_add_parameter(self, "same", tied);
    }
    if (err == SHOAL_OK) {
        err = shoal_module_add_buffer(self, "steps", shoal_zeros(SHOAL_I64, SHOAL_SHAPE(1)));
    }
    if (err == SHOAL_OK) {
        err = shoal_module_add_child(self, "first", shoal_linear_create(IN, hidden, true));
    }
    return err == SHOAL_OK ? shoal_module_add_child(self, "last", shoal_linear_create(hidden, OUT, false)) : err;
}

static shoal_tensor *net_forward(shoal_module *self, shoal_tensor *x)
{
    shoal_tensor *h =
        shoal_mul(shoal_module_forward(shoal_module_child_at(self, 0), x), shoal_module_parameter_at(self, 0));
    return shoal_log_softmax(shoal_module_forward(shoal_module_child_at(self, 1), shoal_relu(h)), 1);
}

static const shoal_module_type net = {.name = "test-net", .init = net_init, .forward = net_forward};

static shoal_module *make_net(int hidden)
{
    shoal_module *m = shoal_module_create(&net, 1, (const double[]){hidden});
    return m != NULL && shoal_module_to(m, talk_device()) == SHOAL_OK ? m : NULL;
}

/* ---- a module ---- */

/* Trains a few steps on the same data; returns the last loss. */
static shoal_err train(shoal_module *m, int steps, double *out_loss)
{
    shoal_optimizer *sgd = shoal_sgd_create(m, .lr = 0.1);
    const int64_t classes[] = {0, 1, 2, 1};
    shoal_tensor *x = shoal_eye(SHOAL_F32, IN), *y = shoal_from_data(SHOAL_I64, classes, SHOAL_SHAPE(4));
    for (int i = 0; i < steps; i++) {
        size_t mark = shoal_scope_mark();
        shoal_optimizer_zero_grad(sgd);
        shoal_tensor *loss = shoal_nll_loss(shoal_module_forward(m, x), y);
        must(loss != NULL);
        *out_loss = item_of(loss);
        must_ok(shoal_backward(loss));
        must_ok(shoal_optimizer_step(sgd));
        must(shoal_add_scalar_(shoal_module_get(m, "steps"), 1) != NULL);
        shoal_scope_release(mark);
    }
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    shoal_optimizer_destroy(sgd);
    return SHOAL_OK;
}

static shoal_err answer_train(const shoal_value *asked, shoal_value **out)
{
    shoal_module *m = ASKED(module, "model");
    double loss = 0;
    must(m != NULL && m == ASKED(module, "model"));
    must(strcmp(shoal_module_type_name(m), "test-net") == 0 &&
         shoal_module_settings(m)[0] == sh_float_of(shoal_value_find(asked, "hidden")));
    must(shoal_module_get(m, "scale") == shoal_module_get(m, "same")); /* one tensor, one grad */
    must(shoal_tensor_requires_grad(shoal_module_get(m, "first.weight")));
    must(shoal_tensor_grad(shoal_module_get(m, "first.weight")) == NULL);
    must_ok(train(m, 20, &loss));
    *out = shoal_map("loss", loss, "model", m);
    return SHOAL_OK;
}
TALK_TARGET(train_target, answer_train)

/* Checks that both have the same tensors. */
static void ck_same(const shoal_module *a, const shoal_module *b)
{
    int count = 0;
    for (shoal_named it = {0}; shoal_module_next(a, &it) == SHOAL_OK; count++) {
        const shoal_tensor *other = shoal_module_get(b, it.name);
        hot(same_memory(it.tensor, other) && address_of(it.tensor) == address_of(other));
        hot(shoal_tensor_is_shared(it.tensor));
    }
    hot(count >= 5 && shoal_module_count(a) == shoal_module_count(b));
}

START_TEST(b10_a_module_sent_trains_there_and_its_weights_move_here)
{
    talk t;
    talk_begin(&t, _i, train_target);
    for (int n = 0; n < ROUNDS; n++) {
        shoal_manual_seed((uint64_t)n);
        shoal_module *m = make_net(5 + n), *before = make_net(5 + n);
        double loss = 0;
        ck_assert(m != NULL && before != NULL);
        ck_assert_ok(shoal_module_copy(before, m));
        if (n % 2 == 0) {
            ck_assert_ok(shoal_module_share(m));
        }
        shoal_value *v = talk_ask(&t, shoal_map("model", m, "hidden", 5 + n));
        ck_same(m, shoal_value_as_module(shoal_value_find(v, "model"))); /* and comes back with the same tensors */
        hot(!shoal_tensor_equal(shoal_module_get(m, "last.weight"), shoal_module_get(before, "last.weight")));
        hot(!shoal_tensor_equal(shoal_module_get(m, "first.weight"), shoal_module_get(before, "first.weight")));
        hot(item_of(shoal_module_get(m, "steps")) == 20);                    /* the buffers too */
        hot(shoal_tensor_grad(shoal_module_get(m, "first.weight")) == NULL); /* the child's grads stay with the child */
        ck_assert_ok(train(before, 20, &loss));                              /* the same steps in this process */
        hot(loss == sh_float_of(shoal_value_find(v, "loss")));
        hot(shoal_tensor_equal(shoal_module_get(m, "last.weight"), shoal_module_get(before, "last.weight")));
        shoal_value_destroy(v);
        shoal_module_destroy(m);
        shoal_module_destroy(before);
        shoal_scope_release(0);
    }
    talk_end(&t);
}
END_TEST

/* ---- a state dict ---- */

/* Writes to the dict that arrived; copies it into another module and writes to that. */
static shoal_err answer_state(const shoal_value *asked, shoal_value **out)
{
    shoal_module *own = make_net(6);
    must(own != NULL);
    shoal_tensor *w = shoal_value_as_tensor(shoal_value_find(asked, "first.weight"));
    must(w != NULL && shoal_tensor_is_shared(w));
    shoal_no_grad_begin();
    must(shoal_fill_(w, 7) == w);
    must_ok(shoal_module_load_state_dict(own, asked));
    shoal_tensor *mine = shoal_module_get(own, "first.weight");
    must(AT(mine, 2, 2) == 7 && !same_memory(mine, w));
    must(shoal_fill_(mine, 9) == mine && AT(w, 2, 2) == 7);
    shoal_no_grad_end();
    *out = shoal_module_state_dict(own);
    must(*out != NULL);
    shoal_module_destroy(own);
    return SHOAL_OK;
}
TALK_TARGET(state_target, answer_state)

START_TEST(b10_a_state_dict_is_the_same_memory_and_copied_in_it_is_not)
{
    talk t;
    talk_begin(&t, _i, state_target);
    for (int n = 0; n < ROUNDS; n++) {
        shoal_module *m = make_net(6);
        shoal_value *state = shoal_module_state_dict(m);
        ck_assert(state != NULL);
        for (shoal_named it = {0}; shoal_module_next(m, &it) == SHOAL_OK;) {
            hot(same_memory(shoal_value_as_tensor(shoal_value_find(state, it.name)), it.tensor));
        }
        shoal_value *theirs = talk_ask(&t, state);
        hot(AT(shoal_module_get(m, "first.weight"), 2, 2) == 7); /* what it wrote to the dict, not to its copy */
        hot(AT(shoal_value_as_tensor(shoal_value_find(theirs, "first.weight")), 2, 2) == 9);
        hot_ok(shoal_module_load_state_dict(m, theirs));
        hot(AT(shoal_module_get(m, "first.weight"), 2, 2) == 9);
        hot(!same_memory(shoal_value_as_tensor(shoal_value_find(theirs, "first.weight")),
                         shoal_module_get(m, "first.weight")));
        shoal_value_destroy(theirs);
        hot(AT(shoal_module_get(m, "first.weight"), 2, 2) == 9);
        shoal_module_destroy(m);
    }
    talk_end(&t);
}
END_TEST

static void refuse(shoal_module *m, shoal_value *state, const char *word)
{
    ck_assert_ptr_nonnull(state);
    ck_assert_err(shoal_module_load_state_dict(m, state), SHOAL_EINVAL);
    ck_assert_msg(strstr(shoal_last_error_text(), word) != NULL, "no %s in '%s'", word, shoal_last_error_text());
    shoal_value_destroy(state);
}

START_TEST(b10_a_state_dict_that_does_not_fit_is_refused_by_name)
{
    shoal_module *m = make_net(6), *other = make_net(7);
    shoal_tensor *wrong = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(3, 2));
    refuse(m, shoal_module_state_dict(other), "scale"); /* the first with another shape */
    refuse(m, shoal_map_set(shoal_module_state_dict(m), "more", shoal_value_tensor(wrong)), "more");
    refuse(m, shoal_map_set(shoal_module_state_dict(m), "last.weight", shoal_value_tensor(wrong)), "last.weight");
    refuse(m, shoal_map_set(shoal_module_state_dict(m), "last.weight", shoal_value_int(1)), "last.weight");
    refuse(m, shoal_map("scale", shoal_module_get(m, "scale")), "same");
    shoal_value *list = shoal_list(1);
    ck_assert(shoal_module_load_state_dict(m, list) != SHOAL_OK);
    shoal_value_destroy(list);
    shoal_tensor_release(wrong);
    shoal_module_destroy(other);
    shoal_module_destroy(m);
}
END_TEST

/* ---- functions of a module that fail without setting an error ---- */

/* settings: the only process in which it can be created, and whether forward sets an error when it fails. */
static shoal_err mute_init(shoal_module *self, const double *settings)
{
    (void)self;
    return (pid_t)settings[0] == getpid() ? SHOAL_OK : SHOAL_EPERM;
}

static shoal_tensor *mute_forward(shoal_module *self, shoal_tensor *x)
{
    return shoal_module_settings(self)[1] != 0 ? shoal_select(x, 0, 99) : NULL;
}

static const shoal_module_type mute = {.name = "Mute", .init = mute_init, .forward = mute_forward};

static void told(shoal_err err, const char *words)
{
    ck_assert_int_eq(shoal_last_error(), err);
    ck_assert_msg(strstr(shoal_last_error_text(), words) != NULL, "%s", shoal_last_error_text());
}

static shoal_err take_module(int rank, const shoal_value *args)
{
    (void)rank;
    return shoal_value_as_module(shoal_value_find(args, "m")) != NULL ? SHOAL_OK : shoal_last_error();
}

/* If init fails, or forward returns NULL, there is an error with a text, and not an older one; also in a child that it
 * is sent to. */
START_TEST(bare_codes_of_a_module_get_a_text)
{
    (void)shoal_fail(SHOAL_ELIMIT, "an older one");
    ck_assert_ptr_null(shoal_module_create(&mute, 0, NULL));
    told(SHOAL_EPERM, "Mute: init returned SHOAL_EPERM");
    shoal_module *m = shoal_module_create(&mute, 1, (double[]){getpid()});
    shoal_module *clear = shoal_module_create(&mute, 2, (double[]){getpid(), 1});
    shoal_tensor *x = counted(2, 2, 0);
    ck_assert_ptr_null(shoal_module_forward(m, x));
    told(SHOAL_EINVAL, "Mute: forward returned NULL without setting an error");
    ck_assert_ptr_null(shoal_module_forward(clear, x));
    told(SHOAL_EINVAL, "select of");
    ck_assert_err(shoal_spawn_with(take_module, 1, shoal_map("m", m), NULL, NULL), SHOAL_ECHILD);
    told(SHOAL_ECHILD, "Mute: init returned SHOAL_EPERM");
    shoal_tensor_release(x);
    shoal_module_destroy(clear);
    shoal_module_destroy(m);
}
END_TEST

/* NULL gives SHOAL_EINVAL, and the text ends with the failure that may have caused it. */
START_TEST(sharing_nothing_is_an_error)
{
    shoal_queue *queue;
    ck_assert_ok(shoal_queue_create(0, &queue));
    for (int i = 0; i < 6; i++) {
        shoal_err before = i % 2 == 0 ? SHOAL_OK : SHOAL_ELIMIT;
        (void)shoal_fail(before, "of another call");
        shoal_err err = i < 2   ? shoal_module_share(NULL)
                        : i < 4 ? shoal_tensor_share(NULL)
                                : shoal_queue_put_tensor(queue, NULL, SHOAL_NOW);
        ck_assert_err(err, SHOAL_EINVAL);
        ck_assert((strstr(shoal_last_error_text(), "SHOAL_ELIMIT: of another call") != NULL) == (before != SHOAL_OK));
    }
    shoal_release(queue);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sharing_modules");
    TCase *tc = children_case("modules");
    add_for_methods(tc, b10_a_module_sent_trains_there_and_its_weights_move_here);
    add_for_methods(tc, b10_a_state_dict_is_the_same_memory_and_copied_in_it_is_not);
    tcase_add_test(tc, b10_a_state_dict_that_does_not_fit_is_refused_by_name);
    tcase_add_test(tc, bare_codes_of_a_module_get_a_text);
    tcase_add_test(tc, sharing_nothing_is_an_error);
    suite_add_tcase(s, tc);
    return s;
}

int main(int argc, char **argv)
{
    return shoal_module_register(&net) == SHOAL_OK && shoal_module_register(&mute) == SHOAL_OK
               ? sh_test_main(argc, argv, suite)
               : EXIT_FAILURE;
}
