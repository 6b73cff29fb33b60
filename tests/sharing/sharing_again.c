/* Objects that arrive under the id of an earlier one: a process keeps handles and tensors that it gave away, in case
 * they arrive again (shm/block.c, share/recycled.h), and must not confuse others with them: B2, B16. */
#include "tests/harness/talk.h"

#define ROUNDS (talk_is_card() ? 20 : 120)
#define KINDS 6

/* Tensors that need blocks of the same sizes, so that each gets the ids of the one before it, but that differ in
 * everything else. */
static shoal_tensor *make(int kind, double value)
{
    shoal_tensor *t;
    switch (kind) {
    case 0: return shoal_full(SHOAL_F32, value, SHOAL_SHAPE(4, 6));
    case 1: return shoal_full(SHOAL_F32, value, SHOAL_SHAPE(6, 4));
    case 2: return shoal_full(SHOAL_I32, value, SHOAL_SHAPE(4, 6));
    case 3: return shoal_full(SHOAL_F64, value, SHOAL_SHAPE(2, 6));
    case 4: return shoal_full(SHOAL_F32, value, SHOAL_SHAPE(3, 7)); /* slightly smaller */
    default:
        t = shoal_full(SHOAL_F32, value, SHOAL_SHAPE(4, 6));
        (void)!shoal_tensor_set_requires_grad(t, true);
        return t;
    }
}

static shoal_value *tell(const shoal_tensor *t)
{
    return shoal_list(shoal_tensor_dtype(t), shoal_tensor_size(t, 0), shoal_tensor_size(t, 1),
                      shoal_tensor_stride(t, 0), (int64_t)shoal_tensor_storage_size(t), shoal_tensor_requires_grad(t),
                      shoal_tensor_is_shared(t), AT(t, 0, 0), AT(t, 1, 2));
}

static bool are_equal(const shoal_value *a, const shoal_value *b)
{
    bool good = shoal_value_count(a) == shoal_value_count(b);
    for (size_t i = 0; good && i < shoal_value_count(a); i++) {
        const shoal_value *x = shoal_value_at(a, i), *y = shoal_value_at(b, i);
        good = shoal_value_type(x) == shoal_value_type(y) &&
               (shoal_value_type(x) == SHOAL_TYPE_BOOL    ? sh_bool_of(x) == sh_bool_of(y)
                : shoal_value_type(x) == SHOAL_TYPE_FLOAT ? sh_float_of(x) == sh_float_of(y)
                                                          : sh_int_of(x) == sh_int_of(y));
    }
    return good;
}

/* Gets a tensor, or a value and its tensor: both reuse what was here before. */
static shoal_err receive(shoal_queue *queue, bool in_value, shoal_tensor **out_tensor)
{
    shoal_value *v;
    if (!in_value) {
        return shoal_queue_get_tensor(queue, LIMIT, out_tensor);
    }
    shoal_err err = shoal_queue_get(queue, LIMIT, &v);
    if (err == SHOAL_OK) {
        *out_tensor = shoal_tensor_retain(shoal_value_as_tensor(v));
        err = *out_tensor ? SHOAL_OK : shoal_last_error();
        shoal_value_destroy(v);
    }
    return err;
}

/* Reports what it gets, and gives it back; every other time it only releases it. */
static shoal_err reflect(int rank, const shoal_value *args)
{
    shoal_tensor *t;
    shoal_err err;
    (void)rank;
    for (int i = 0; (err = receive(ARG(queue, "in"), i % 3 == 0, &t)) == SHOAL_OK; i++) {
        must_ok(shoal_queue_put(ARG(queue, "out"), tell(t), LIMIT));
        if (i % 2 == 0) {
            must_ok(shoal_queue_give_tensor(ARG(queue, "out"), t, LIMIT));
        } else {
            shoal_tensor_release(t);
        }
    }
    must(err == SHOAL_ECLOSED);
    return SHOAL_OK;
}

START_TEST(b2_another_tensor_under_the_same_id_is_another)
{
    talk t;
    talk_begin(&t, _i, reflect);
    for (int n = 0; n < SH_REPEAT(ROUNDS); n++) {
        shoal_tensor *sent = make(n / 4 % KINDS, n), *back = NULL;
        for (int i = 0; i < 2; i++) { /* the second time it is already known */
            hot_ok(shoal_queue_put_tensor(t.in, sent, LIMIT));
            shoal_value *said = talk_hear(&t), *right = tell(sent);
            hot(are_equal(said, right));
            shoal_value_destroy(said);
            shoal_value_destroy(right);
            if (i == 0) {
                hot_ok(receive(t.out, n % 2 == 0, &back));
                hot(same_memory(back, sent) && shoal_tensor_requires_grad(back) == shoal_tensor_requires_grad(sent));
                shoal_tensor_release(back);
            }
        }
        shoal_tensor_release(sent);
    }
    talk_end(&t);
}
END_TEST

/* A tensor that was changed here before it was released: what arrives is as it was sent. */
START_TEST(b6_what_the_last_receiver_did_to_its_own_does_not_come_back)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    shoal_tensor *sent = make(0, 1), *got;
    for (int n = 0; n < 10; n++) {
        hot_ok(shoal_queue_put_tensor(q, sent, LIMIT));
        hot_ok(receive(q, n >= 5, &got));
        hot(got != sent && same_memory(got, sent) && !shoal_tensor_requires_grad(got) && !shoal_tensor_grad(got));
        hot_ok(shoal_tensor_set_requires_grad(got, n % 2 == 0));
        if (n % 4 == 0) {
            hot_ok(shoal_backward(
                shoal_sum(shoal_mul(shoal_scoped(shoal_tensor_retain(got)), got), SHOAL_ALL_DIMS, false)));
            shoal_scope_release(0);
        }
        shoal_tensor_release(got);
    }
    shoal_tensor_release(sent);
    shoal_release(q);
}
END_TEST

/* Gives each block back unchanged, preceded by its size. */
static shoal_err reflect_blocks(int rank, const shoal_value *args)
{
    shoal_block *b;
    shoal_err err;
    (void)rank;
    while ((err = shoal_queue_get_block(ARG(queue, "in"), LIMIT, &b)) == SHOAL_OK) {
        must(((unsigned char *)shoal_block_data(b))[shoal_block_size(b) - 1] == shoal_block_size(b) % 251);
        must_ok(shoal_queue_put(ARG(queue, "out"), shoal_value_int((int64_t)shoal_block_size(b)), LIMIT));
        must_ok(shoal_queue_give_block(ARG(queue, "out"), b, LIMIT));
    }
    must(err == SHOAL_ECLOSED);
    return SHOAL_OK;
}

START_TEST(b16_another_block_under_the_same_id_has_its_own_size)
{
    talk t;
    talk_begin(&t, _i, reflect_blocks);
    for (int n = 0; n < SH_REPEAT(ROUNDS); n++) {
        shoal_block *sent, *back;
        size_t size = 1000 + (size_t)(n % 5);
        hot_ok(shoal_block_create(size, &sent));
        ((unsigned char *)shoal_block_data(sent))[size - 1] = (unsigned char)(size % 251);
        hot_ok(n % 3 == 0 ? shoal_queue_give_block(t.in, sent, LIMIT) : shoal_queue_put_block(t.in, sent, LIMIT));
        shoal_value *said = talk_hear(&t);
        hot((size_t)sh_int_of(said) == size);
        shoal_value_destroy(said);
        hot_ok(shoal_queue_get_block(t.out, LIMIT, &back));
        hot(shoal_block_size(back) == size && (n % 3 == 0 || back == sent));
        shoal_release(back);
        if (n % 3 != 0) {
            shoal_release(sent);
        }
    }
    talk_end(&t);
}
END_TEST

/* The first blocks of every world have the same ids, and the first descriptions have the same stamps. */
START_TEST(another_world_has_other_tensors)
{
    static const struct {
        shoal_dtype dtype;
        int64_t rows, columns;
        bool needs_grad;
    } sent[] = {{SHOAL_F32, 4, 6, false}, {SHOAL_F32, 6, 4, false}, {SHOAL_I32, 4, 6, false}, {SHOAL_F32, 2, 12, true}};
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) {
        shoal_queue *q;
        shoal_tensor *got = NULL, *t = shoal_full(sent[i].dtype, 1, SHOAL_SHAPE(sent[i].rows, sent[i].columns));
        ck_assert_ok(shoal_world_create(NULL));
        ck_assert_ok(shoal_queue_create(0, &q));
        if (sent[i].needs_grad) {
            ck_assert_ok(shoal_tensor_set_requires_grad(t, true));
        }
        ck_assert_ok(shoal_queue_put_tensor(q, t, SHOAL_NOW));
        ck_assert_ok(receive(q, i % 2 == 1, &got));
        ck_assert(shoal_tensor_dtype(got) == sent[i].dtype);
        ck_assert_int_eq(shoal_tensor_size(got, 0), sent[i].rows);
        ck_assert_int_eq(shoal_tensor_size(got, 1), sent[i].columns);
        ck_assert(shoal_tensor_requires_grad(got) == sent[i].needs_grad);
        shoal_tensor_release(got);
        shoal_tensor_release(t);
        shoal_release(q);
        shoal_world_leave();
    }
}
END_TEST

/* A tensor that outlives its world is not confused with one of the next world under the same id, neither before nor
 * after its release. */
START_TEST(a_tensor_of_a_world_that_was_left_does_not_come_back)
{
    shoal_tensor *old = NULL, *older = NULL;
    for (int i = 0; i < 3 && !talk_is_card(); i++) { /* card memory that was lent stays with the process */
        shoal_queue *q;
        shoal_tensor *got = NULL, *t = shoal_full(SHOAL_I64, i, SHOAL_SHAPE(10 + i));
        ck_assert_ok(shoal_world_create(NULL));
        ck_assert_ok(shoal_queue_create(0, &q));
        ck_assert_ok(shoal_queue_put_tensor(q, t, SHOAL_NOW));
        if (i == 1) {
            shoal_tensor_release(older);
            older = NULL;
        }
        ck_assert_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &got));
        ck_assert_int_eq(shoal_tensor_size(got, 0), 10 + i);
        ck_assert_int_eq((int64_t)AT(got, 9), i);
        shoal_tensor_release(old);
        shoal_tensor_release(older);
        old = got;
        older = t;
        shoal_world_leave();
        shoal_release(q);
    }
    shoal_tensor_release(old);
    shoal_tensor_release(older);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sharing_again");
    TCase *tc = children_case("again");
    add_for_methods(tc, b2_another_tensor_under_the_same_id_is_another);
    tcase_add_test(tc, b6_what_the_last_receiver_did_to_its_own_does_not_come_back);
    add_for_methods(tc, b16_another_block_under_the_same_id_has_its_own_size);
    tcase_add_test(tc, another_world_has_other_tensors);
    tcase_add_test(tc, a_tensor_of_a_world_that_was_left_does_not_come_back);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
