/* Tensors as members of values, among other messages, over memory that moves or must not,
 * and with two writers at once. */
#include "tests/harness/numbers.h"
#include "tests/harness/talk.h"

#include <pthread.h>
#include <stdlib.h>

#define ROUNDS 30

/* ---- values ---- */

START_TEST(a_value_makes_one_tensor_of_a_tensor)
{
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *t = counted(3, 4, n);
        shoal_value *v = shoal_value_tensor(t), *list = shoal_list(t, t, shoal_select(t, 0, 1));
        shoal_tensor *a = shoal_value_as_tensor(v);
        hot(a != NULL && a == shoal_value_as_tensor(v) && same_memory(a, t));
        hot(shoal_value_type(v) == SHOAL_TYPE_OBJECT && shoal_value_object_kind(v) == SHOAL_KIND_TENSOR);
        hot(shoal_value_as_sparse(v) == NULL && shoal_last_error() == SHOAL_ETYPE);
        hot(shoal_value_as_block(v) == NULL && shoal_last_error() == SHOAL_ETYPE);
        hot(shoal_value_as_queue(v) == NULL && shoal_last_error() == SHOAL_ETYPE);
        hot(shoal_value_as_tensor(list) == NULL && shoal_last_error() == SHOAL_ETYPE);
        hot(shoal_value_equal(v, shoal_value_at(list, 0)) &&
            shoal_value_equal(shoal_value_at(list, 0), shoal_value_at(list, 1)));
        hot(!shoal_value_equal(v, shoal_value_at(list, 2)));
        shoal_value *copy = shoal_value_copy(list);
        hot(shoal_value_equal(copy, list));
        shoal_tensor *kept = shoal_tensor_retain(shoal_value_as_tensor(shoal_value_at(copy, 0)));
        shoal_tensor *borrowed = shoal_value_as_tensor(shoal_value_at(copy, 2));
        hot(same_memory(kept, t) && is_counted(borrowed, n + 4));
        shoal_tensor_release(t);
        shoal_value_destroy(v);
        shoal_value_destroy(list);
        hot(is_counted(borrowed, n + 4) && is_counted(kept, n)); /* the copy keeps them alive by itself */
        shoal_value_destroy(copy);
        hot(is_counted(kept, n) && shoal_add_scalar_(kept, 1) != NULL && is_counted(kept, n + 1));
        shoal_tensor_release(kept);
        shoal_scope_release(0);
    }
    ck_assert_ptr_null(shoal_value_tensor(NULL));
    ck_assert_ptr_null(shoal_value_sparse(NULL));
    ck_assert_ptr_null(shoal_value_as_tensor(NULL));
}
END_TEST

/* Finds the tensors wherever they are, and adds one to each place once. */
static shoal_err answer_nested(const shoal_value *asked, shoal_value **out)
{
    const shoal_value *deep = shoal_value_find(asked, "deep");
    for (int i = 0; i < 20; i++) {
        deep = i % 2 == 0 ? shoal_value_at(deep, 0) : shoal_value_find(deep, "in");
    }
    shoal_tensor *a = shoal_value_as_tensor(deep), *b = shoal_value_as_tensor(shoal_value_at(asked, 1));
    const shoal_value *twice = shoal_value_find(asked, "twice");
    shoal_tensor *c = shoal_value_as_tensor(shoal_value_at(twice, 0)),
                 *d = shoal_value_as_tensor(shoal_value_at(twice, 1));
    must(is_counted(a, 10) && is_counted(b, 20) && is_counted(c, 30) && is_counted(d, 30));
    must(same_memory(c, d) && !same_memory(a, c) &&
         shoal_value_equal(shoal_value_at(twice, 0), shoal_value_at(twice, 1)));
    must(shoal_value_as_block(shoal_value_find(asked, "block")) != NULL);
    must(strcmp(ASKED(string, "text"), "words") == 0 && sh_int_of(shoal_value_find(asked, "number")) == 5);
    must(shoal_add_scalar_(a, 1) && shoal_add_scalar_(b, 1) && shoal_add_scalar_(c, 1));
    *out = shoal_value_copy(asked);
    return SHOAL_OK;
}
TALK_TARGET(nested_target, answer_nested)

START_TEST(tensors_deep_in_lists_and_maps_and_twice_in_one)
{
    talk t;
    talk_begin(&t, _i, nested_target);
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *a = counted(2, 3, 10), *b = counted(2, 3, 20), *c = counted(2, 3, 30);
        shoal_block *block;
        hot_ok(shoal_block_create(100, &block));
        shoal_value *deep = shoal_value_tensor(a);
        for (int i = 19; i >= 0; i--) {
            deep = i % 2 == 0 ? shoal_list(deep) : shoal_map("in", deep);
        }
        shoal_value *v =
            shoal_map("deep", deep, "b", b, "twice", shoal_list(c, c), "block", block, "text", "words", "number", 5);
        shoal_value *copy = shoal_value_copy(v), *back = talk_ask(&t, v);
        hot(shoal_value_equal(copy, back));
        hot(is_counted(a, 11) && is_counted(b, 21) && is_counted(c, 31));
        shoal_value_destroy(copy);
        shoal_value_destroy(back);
        shoal_release(block);
        shoal_tensor_release(a);
        shoal_tensor_release(b);
        shoal_tensor_release(c);
    }
    talk_end(&t);
}
END_TEST

/* Reads everything in a value, and forwards the value itself. */
static shoal_err look_and_send_on(int rank, const shoal_value *args)
{
    shoal_value *v = NULL;
    shoal_err err;
    (void)rank;
    while ((err = shoal_queue_get(ARG(queue, "in"), LIMIT, &v)) == SHOAL_OK) {
        must(is_counted(shoal_value_as_tensor(shoal_value_at(v, 0)), 0));
        must(shoal_value_as_sparse(shoal_value_find(shoal_value_at(v, 1), "sparse")) != NULL);
        must(shoal_add_scalar_(shoal_value_as_tensor(shoal_value_at(v, 0)), 1) != NULL);
        must_ok(shoal_queue_put(ARG(queue, "out"), v, LIMIT));
    }
    must(err == SHOAL_ECLOSED);
    return SHOAL_OK;
}

START_TEST(b16_a_value_that_was_read_can_be_sent_on)
{
    talk t;
    talk_begin(&t, _i, look_and_send_on);
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *a = counted(2, 3, 0), *eye = shoal_eye(SHOAL_F32, 4);
        shoal_sparse *s = shoal_sparse_from_dense(eye, SHOAL_LAYOUT_COO);
        shoal_value *v = shoal_list(a, shoal_map("sparse", s), 1);
        hot(shoal_value_as_tensor(shoal_value_at(v, 0)) != NULL); /* also read before it is sent */
        shoal_value *back = talk_ask(&t, v);
        hot(is_counted(a, 1) && same_memory(shoal_value_as_tensor(shoal_value_at(back, 0)), a));
        shoal_sparse *got = shoal_value_as_sparse(shoal_value_find(shoal_value_at(back, 1), "sparse"));
        hot(same_memory(shoal_sparse_values(got), shoal_sparse_values(s)));
        shoal_value_destroy(back);
        shoal_sparse_destroy(s);
        shoal_tensor_release(eye);
        shoal_tensor_release(a);
    }
    talk_end(&t);
}
END_TEST

/* Messages with tensors among others: each call takes its own kind and leaves the rest. */
START_TEST(each_get_takes_its_own_kind_and_leaves_the_others)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *t = counted(2, 2, n), *got = NULL;
        shoal_block *block = NULL, *b = NULL;
        shoal_value *v = NULL;
        char bytes[8];
        size_t size;
        hot_ok(shoal_block_create(8, &block));
        hot_ok(shoal_queue_put_tensor(q, t, SHOAL_NOW));
        hot(shoal_queue_get_block(q, SHOAL_NOW, &b) == SHOAL_ETYPE && b == NULL);
        hot(shoal_queue_get_bytes(q, bytes, 8, SHOAL_NOW, &size) == SHOAL_ETYPE && shoal_queue_size(q) == 1);
        hot_ok(shoal_queue_get(q, SHOAL_NOW, &v)); /* any kind can be received as a value */
        hot(same_memory(shoal_value_as_tensor(v), t));
        hot_ok(shoal_queue_put(q, v, SHOAL_NOW)); /* a value that is a tensor is sent as a tensor */
        hot_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &got));
        hot(same_memory(got, t) && got != t);
        shoal_tensor_release(got);
        got = NULL;
        hot_ok(shoal_queue_put_block(q, block, SHOAL_NOW));
        hot_ok(shoal_queue_put_bytes(q, "1", 1, SHOAL_NOW));
        hot_ok(shoal_queue_put(q, shoal_list(t), SHOAL_NOW));
        for (int k = 0; k < 3; k++) {
            hot(shoal_queue_get_tensor(q, SHOAL_NOW, &got) == SHOAL_ETYPE && got == NULL);
            hot(shoal_queue_size(q) == (uint64_t)(3 - k));
            until_told(q);
        }
        hot(shoal_queue_get_tensor(q, SHOAL_NOW, &got) == SHOAL_ETIMEDOUT && got == NULL);
        shoal_release(block);
        shoal_tensor_release(t);
    }
    shoal_queue_close(q);
    shoal_tensor *t = counted(2, 2, 0), *got = NULL;
    ck_assert_err(shoal_queue_put_tensor(q, t, SHOAL_NOW), SHOAL_ECLOSED);
    ck_assert_err(shoal_queue_get_tensor(q, SHOAL_NOW, &got), SHOAL_ECLOSED);
    ck_assert(is_counted(t, 0) && shoal_queue_put_tensor(q, NULL, SHOAL_NOW) != SHOAL_OK);
    shoal_tensor_release(t);
    shoal_release(q);
}
END_TEST

/* A tensor that was given away belongs to the queue, whoever else holds it here.
 * If that fails, the caller still owns it. */
START_TEST(a_tensor_is_given_away)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(2, &q));
    for (int n = 0; n < 6 * ROUNDS; n++) {
        shoal_tensor *t = counted(2, 3, n), *got = NULL, *other = NULL;
        shoal_value *v = NULL;
        switch (n % 6) { /* who else holds it */
        case 0: break;
        case 1: other = shoal_tensor_retain(t); break;
        case 2: other = shoal_tensor_retain(shoal_select(t, 0, 1)); break;
        case 3: v = shoal_value_tensor(t); break;
        case 4: hot_ok(shoal_tensor_set_grad(t, shoal_scoped(counted(2, 3, -n)))); break;
        default: hot_ok(shoal_queue_put_tensor(q, t, SHOAL_NOW)); hot_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &other));
        }
        shoal_scope_release(0);
        hot_ok(shoal_queue_give_tensor(q, t, SHOAL_NOW));
        hot_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &got));
        hot(is_counted(got, n) && shoal_tensor_is_shared(got));
        hot(other == NULL || (same_memory(other, got) && AT(got, 1, 2) == n + 5));
        hot(n % 6 != 4 || is_counted(shoal_tensor_grad(got), -n));
        hot(v == NULL || same_memory(shoal_value_as_tensor(v), got));
        hot_ok(shoal_queue_give_tensor(q, got, SHOAL_NOW)); /* a received tensor is given away, twice */
        hot_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &got));
        hot_ok(shoal_queue_give_tensor(q, got, SHOAL_NOW));
        hot_ok(shoal_queue_put(q, shoal_value_null(), SHOAL_NOW));
        shoal_tensor *left = counted(2, 3, 50);
        hot(shoal_queue_give_tensor(q, left, SHOAL_NOW) == SHOAL_ETIMEDOUT && is_counted(left, 50)); /* queue is full */
        shoal_value_destroy(v);
        shoal_tensor_release(other);
        hot_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &got));
        hot(is_counted(got, n));
        until_told(q);
        shoal_tensor_release(got);
        shoal_tensor_release(left);
    }
    shoal_tensor *w = counted(2, 3, 0);
    ck_assert_ok(shoal_tensor_set_requires_grad(w, true));
    shoal_tensor *result = shoal_mul_scalar(w, 2);
    ck_assert_err(shoal_queue_give_tensor(q, result, SHOAL_NOW), SHOAL_ESTATE);
    ck_assert(AT(result, 1, 1) == 8 && shoal_queue_size(q) == 0);
    ck_assert_err(shoal_queue_give_tensor(q, NULL, SHOAL_NOW), shoal_last_error());
    shoal_scope_release(0);
    shoal_tensor_release(w);
    shoal_release(q);
}
END_TEST

START_TEST(a_bounded_queue_and_its_time_limit_hold_for_tensors)
{
    shoal_queue *q;
    shoal_tensor *t = counted(2, 2, 0), *got;
    ck_assert_ok(shoal_queue_create(1, &q));
    ck_assert_err(shoal_queue_get_tensor(q, SOON, &got), SHOAL_ETIMEDOUT);
    ck_assert_ok(shoal_queue_put_tensor(q, t, SHOAL_NOW));
    for (int i = 0; i < 3; i++) {
        ck_assert_err(shoal_queue_put_tensor(q, t, i == 0 ? SHOAL_NOW : SOON), SHOAL_ETIMEDOUT);
    }
    ck_assert_uint_eq(shoal_queue_size(q), 1);
    ck_assert_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &got));
    shoal_tensor_release(got);
    shoal_tensor_release(t);
    shoal_release(q);
}
END_TEST

/* Through pipes, and to a process that got the other end as an argument. */
START_TEST(tensors_go_through_pipes)
{
    shoal_pipe *a, *b;
    ck_assert_ok(shoal_pipe_create(true, &a, &b));
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *t = counted(2, 2, n);
        shoal_value *v = NULL;
        hot_ok(shoal_pipe_send(a, shoal_value_tensor(t), SHOAL_NOW));
        hot_ok(shoal_pipe_recv(b, SHOAL_NOW, &v));
        hot(same_memory(shoal_value_as_tensor(v), t));
        hot_ok(shoal_pipe_send(b, v, SHOAL_NOW));
        shoal_tensor_release(t);
        hot_ok(shoal_pipe_recv(a, SHOAL_NOW, &v));
        hot(is_counted(shoal_value_as_tensor(v), n));
        shoal_value_destroy(v);
    }
    shoal_release(a);
    shoal_release(b);
}
END_TEST

/* ---- memory that moves, and memory that must not ---- */

START_TEST(all_private_views_move_together)
{
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *t = counted(6, 8, n), *views[5], *other = counted(6, 8, 1000);
        void *before = shoal_tensor_data(t), *still = shoal_tensor_data(other);
        views[0] = shoal_select(t, 0, 5);
        views[1] = shoal_transpose(t, 0, 1);
        views[2] = shoal_slice(t, 1, 1, 8, 3);
        views[3] = shoal_expand(shoal_select(t, 1, 7), SHOAL_SHAPE(4, 6));
        views[4] = shoal_select(views[0], 0, 7);
        ptrdiff_t at[5];
        for (int i = 0; i < 5; i++) {
            at[i] = (char *)shoal_tensor_data(views[i]) - (char *)before;
        }
        hot_ok(shoal_tensor_share(n % 6 == 5 ? t : views[n % 6]));
        char *now = shoal_tensor_data(t);
        hot((void *)now != before && shoal_tensor_data(other) == still && !shoal_tensor_is_shared(other));
        for (int i = 0; i < 5; i++) {
            hot((char *)shoal_tensor_data(views[i]) - now == at[i] && same_memory(views[i], t));
            hot(shoal_tensor_is_shared(views[i]));
        }
        hot(is_counted(t, n) && is_counted(views[0], n + 40) && item_of(views[4]) == n + 47);
        set_f32(t, 5, 7, -1);
        hot(item_of(views[4]) == -1 && AT(views[1], 7, 5) == -1 && AT(views[3], 3, 5) == -1 &&
            AT(views[2], 5, 2) == -1);
        shoal_tensor *late = shoal_select(t, 0, 5); /* created afterwards */
        hot(shoal_tensor_data(late) == shoal_tensor_data(views[0]) && shoal_tensor_is_shared(late));
        shoal_tensor *last = shoal_tensor_retain(views[2]);
        shoal_tensor_release(t);
        shoal_tensor_release(other);
        shoal_scope_release(0);
        hot(AT(last, 0, 0) == n + 1 && AT(last, 5, 2) == -1); /* the view keeps the storage */
        shoal_tensor_release(last);
    }
}
END_TEST

/* What autograd saved moves with its storage. */
START_TEST(sharing_between_forward_and_backward_changes_nothing)
{
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *w = counted(3, 4, n);
        hot_ok(shoal_tensor_set_requires_grad(w, true));
        shoal_tensor *loss = shoal_sum(shoal_square(w), SHOAL_ALL_DIMS, false);
        hot_ok(shoal_tensor_share(w));
        hot_ok(shoal_backward(loss));
        hot(AT(shoal_tensor_grad(w), 2, 3) == 2.0 * (n + 11));
        shoal_tensor_release(w);
        shoal_scope_release(0);
    }
}
END_TEST

static void count_release(void *context)
{
    ++*(int *)context;
}

START_TEST(memory_of_the_program_does_not_move)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int n = 0; n < ROUNDS; n++) {
        float own[6] = {1, 2, 3, 4, 5, 6};
        int released = 0;
        shoal_tensor *t = shoal_from_memory(SHOAL_F32, own, SHOAL_SHAPE(2, 3), count_release, &released), *got;
        shoal_tensor *row = shoal_select(t, 0, 1), *w = counted(2, 3, 0);
        shoal_tensor *const all[] = {t, row};
        for (int i = 0; i < 2; i++) {
            hot(shoal_tensor_share(all[i]) == SHOAL_EINVAL && strlen(shoal_last_error_text()) > 20);
            hot(shoal_queue_put_tensor(q, all[i], SHOAL_NOW) == SHOAL_EINVAL);
            hot(shoal_queue_put(q, shoal_list(1, all[i]), SHOAL_NOW) == SHOAL_EINVAL);
            hot(!shoal_tensor_is_shared(all[i]));
        }
        hot_ok(shoal_tensor_set_grad(w, t)); /* not even as a grad */
        hot(shoal_queue_put_tensor(q, w, SHOAL_NOW) == SHOAL_EINVAL && is_counted(w, 0) && shoal_tensor_grad(w) == t);
        hot_ok(shoal_tensor_set_grad(w, NULL));
        hot_ok(shoal_queue_put_tensor(q, w, SHOAL_NOW));
        until_told(q);
        hot(shoal_tensor_data(t) == own && own[3] == 4 && shoal_queue_size(q) == 0 && released == 0);
        hot_ok(shoal_queue_put_tensor(q, shoal_clone(t), SHOAL_NOW)); /* a copy may be sent */
        hot_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &got));
        hot(is_counted(got, 1));
        shoal_tensor_release(got);
        shoal_tensor_release(w);
        shoal_tensor_release(t);
        hot(released == 0); /* the row still uses it */
        shoal_scope_release(0);
        hot(released == 1);
    }
    shoal_release(q);
}
END_TEST

/* ---- two writers at once ---- */

/* A number that shows whether it was torn: in all its multiples both halves are equal. */
#define PATTERN ((INT64_C(1) << 32) + 1)
#define ELEMENTS 1000

/* Adds the pattern to all elements again and again, as Hogwild does. */
static shoal_err add_pattern(int rank, const shoal_value *args)
{
    shoal_tensor *t = ARG(tensor, "t"), *step = shoal_full(SHOAL_I64, (double)PATTERN, SHOAL_SHAPE(ELEMENTS));
    int64_t rounds = ARG_INT("rounds");
    must(rank >= 0 && *(int64_t *)shoal_tensor_data(step) == PATTERN);
    must_ok(shoal_queue_put(ARG(queue, "ready"), shoal_value_null(), LIMIT));
    must_ok(shoal_event_wait(ARG(event, "go"), LIMIT));
    for (int64_t i = 0; i < rounds; i++) {
        must(shoal_add_(t, step) == t);
    }
    shoal_tensor_release(step);
    return SHOAL_OK;
}

static bool is_whole(const shoal_tensor *t, int64_t most)
{
    for (int i = 0; i < ELEMENTS; i++) {
        uint64_t word = __atomic_load_n((uint64_t *)shoal_tensor_data(t) + i, __ATOMIC_RELAXED);
        if ((uint32_t)word != word >> 32 || (int64_t)(word >> 32) > most) {
            return false;
        }
    }
    return true;
}

START_TEST(two_processes_that_add_at_once_lose_updates_but_tear_nothing)
{
    int64_t rounds = SH_REPEAT(20000);
    for (int n = 0; n < 5; n++) {
        shoal_tensor *t = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(ELEMENTS));
        shoal_event *go;
        shoal_queue *ready;
        shoal_process *p[2];
        ck_assert_ok(shoal_event_create(&go));
        ck_assert_ok(shoal_queue_create(0, &ready));
        for (int i = 0; i < 2; i++) {
            p[i] = talk_start(_i, i, add_pattern, shoal_map("t", t, "rounds", rounds, "go", go, "ready", ready));
        }
        until_told(ready);
        until_told(ready);
        shoal_event_set(go);
        for (int i = 0; i < 200; i++) {
            hot(is_whole(t, 2 * rounds));
        }
        finish(p[0]);
        finish(p[1]);
        hot(is_whole(t, 2 * rounds));
        int64_t *data = shoal_tensor_data(t);
        for (int i = 0; i < ELEMENTS; i++) { /* at least one writer's last run of updates is there */
            hot(data[i] >= PATTERN);
        }
        shoal_tensor_release(t);
        shoal_release(go);
        shoal_release(ready);
    }
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sharing_values");
    TCase *tc = children_case("values");
    tcase_add_test(tc, a_value_makes_one_tensor_of_a_tensor);
    add_for_methods(tc, tensors_deep_in_lists_and_maps_and_twice_in_one);
    add_for_methods(tc, b16_a_value_that_was_read_can_be_sent_on);
    tcase_add_test(tc, each_get_takes_its_own_kind_and_leaves_the_others);
    tcase_add_test(tc, a_tensor_is_given_away);
    tcase_add_test(tc, a_bounded_queue_and_its_time_limit_hold_for_tensors);
    tcase_add_test(tc, tensors_go_through_pipes);
    suite_add_tcase(s, tc);
    tc = children_case("memory");
    tcase_add_test(tc, all_private_views_move_together);
    tcase_add_test(tc, sharing_between_forward_and_backward_changes_nothing);
    tcase_add_test(tc, memory_of_the_program_does_not_move);
    add_for_methods(tc, two_processes_that_add_at_once_lose_updates_but_tear_nothing);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
