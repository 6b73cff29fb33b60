/* Tensors between processes: both sides use the same memory, however it got there: B1 to B5, B15, B16. With
 * SHOAL_TALK_DEVICE=cuda, tensors of a card: B50. */
#include "tests/harness/talk.h"

#include <signal.h>
#include <stdlib.h>

#define ROUNDS (talk_is_card() ? 3 : 30) /* a process takes half a second to open a card */
#define ROWS 5
#define COLUMNS 7

/* ---- B1 ---- */

/* Writes through each of the two, and keeps both; then reports what it sees in those that it kept. */
static shoal_err answer_views(const shoal_value *asked, shoal_value **out)
{
    static shoal_tensor *whole, *view;
    if (shoal_value_type(asked) == SHOAL_TYPE_NULL) {
        *out = shoal_list(AT(whole, 0, 2), AT(view, 0), AT(whole, 4, 2), AT(view, 4));
        shoal_tensor_release(whole);
        shoal_tensor_release(view);
        return SHOAL_OK;
    }
    double n = sh_float_of(shoal_value_find(asked, "n"));
    whole = shoal_tensor_retain(ASKED(tensor, "whole"));
    view = shoal_tensor_retain(ASKED(tensor, "view"));
    must(is_counted(whole, n) && shoal_tensor_ndim(view) == 1 && shoal_tensor_stride(view, 0) == COLUMNS);
    must(shoal_tensor_is_shared(whole) && shoal_tensor_is_shared(view) && same_memory(whole, view));
    set_f32(whole, 1, 2, n + 1000);
    must(AT(view, 1) == n + 1000);
    set_f32(view, 3, 0, n + 3000);
    must(AT(whole, 3, 2) == n + 3000);
    return SHOAL_OK;
}
TALK_TARGET(views_target, answer_views)

START_TEST(b1_a_tensor_and_its_view_in_one_message_are_one_memory)
{
    talk t;
    talk_begin(&t, _i, views_target);
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *whole = counted(ROWS, COLUMNS, n), *view = shoal_select(whole, 1, 2);
        /* sometimes the view is first, or already in the heap */
        shoal_value *v = n % 3 == 0 ? shoal_map("view", view, "whole", whole, "n", n)
                                    : shoal_map("whole", whole, "view", view, "n", n);
        talk_tell(&t, v);
        hot(AT(whole, 1, 2) == n + 1000 && AT(view, 1) == n + 1000);
        hot(AT(whole, 3, 2) == n + 3000 && AT(view, 3) == n + 3000);
        set_f32(whole, 0, 2, n + 1);
        set_f32(view, 4, 0, n + 5);
        v = talk_ask(&t, shoal_value_null());
        hot(sh_float_of(shoal_value_at(v, 0)) == n + 1 && sh_float_of(shoal_value_at(v, 1)) == n + 1);
        hot(sh_float_of(shoal_value_at(v, 2)) == n + 5 && sh_float_of(shoal_value_at(v, 3)) == n + 5);
        shoal_value_destroy(v);
        shoal_tensor_release(whole);
        shoal_scope_release(0);
    }
    talk_end(&t);
}
END_TEST

/* ---- B2 ---- */

/* Keeps the first tensor of each round; later ones must be the same. Sends back what it got. */
static shoal_err answer_again(const shoal_value *asked, shoal_value **out)
{
    static shoal_tensor *first;
    shoal_tensor *t = ASKED(tensor, "t");
    int64_t n = sh_int_of(shoal_value_find(asked, "n"));
    must(t != NULL && AT(t, 0, 0) == (double)n);
    if (n == 0) {
        first = shoal_tensor_retain(t);
    }
    must(same_memory(first, t));
    must(shoal_tensor_storage_size(t) == ROWS * COLUMNS * sizeof(float));
    set_f32(t, 1, 1, (double)n + 100);
    must(AT(first, 1, 1) == (double)n + 100); /* visible at once */
    *out = shoal_map("t", n % 2 == 0 ? t : first, "id", shoal_tensor_storage_id(t));
    if (sh_bool_of(shoal_value_find(asked, "last"))) {
        shoal_tensor_release(first);
    }
    return SHOAL_OK;
}
TALK_TARGET(again_target, answer_again)

START_TEST(b2_a_storage_that_comes_again_or_back_is_the_same)
{
    enum { TIMES = 4 };
    talk t;
    talk_begin(&t, _i, again_target);
    for (int round = 0; round < ROUNDS; round++) {
        shoal_tensor *sent = counted(ROWS, COLUMNS, 0), *kept[TIMES];
        for (int n = 0; n < TIMES; n++) {
            set_f32(sent, 0, 0, n);
            shoal_value *v = talk_ask(&t, shoal_map("t", sent, "n", n, "last", shoal_value_bool(n == TIMES - 1)));
            kept[n] = shoal_tensor_retain(shoal_value_as_tensor(shoal_value_find(v, "t")));
            hot(same_memory(kept[n], sent) && address_of(kept[n]) == address_of(sent));
            hot((uint64_t)sh_int_of(shoal_value_find(v, "id")) == shoal_tensor_storage_id(sent));
            hot(AT(sent, 1, 1) == n + 100);
            set_f32(kept[n], 2, 2, n + 200);
            hot(AT(sent, 2, 2) == n + 200 && AT(kept[0], 2, 2) == n + 200);
            shoal_value_destroy(v);
        }
        shoal_tensor_release(sent);
        hot(AT(kept[0], 4, 6) == 34); /* the tensor that came back is alive by itself */
        for (int n = 0; n < TIMES; n++) {
            shoal_tensor_release(kept[n]);
        }
    }
    talk_end(&t);
}
END_TEST

/* Gets tensors one by one and sends each back, alternately with put and with give. */
static shoal_err reflect(int rank, const shoal_value *args)
{
    shoal_tensor *t;
    shoal_err err;
    (void)rank;
    for (int i = 0; (err = shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &t)) == SHOAL_OK; i++) {
        if (i % 3 == 0) {
            must_ok(shoal_queue_give_tensor(ARG(queue, "out"), t, LIMIT));
            continue;
        }
        must_ok(shoal_queue_put_tensor(ARG(queue, "out"), t, LIMIT));
        shoal_tensor_release(t);
    }
    must(err == SHOAL_ECLOSED);
    return SHOAL_OK;
}

/* At times only the message holds the tensor: its memory is neither lost nor reused. */
START_TEST(b2_a_tensor_that_only_the_message_holds_comes_back_whole)
{
    talk t;
    talk_begin(&t, _i, reflect);
    for (int n = 0; n < SH_REPEAT(300); n++) {
        shoal_tensor *sent = counted(ROWS, COLUMNS, n), *row = shoal_select(sent, 0, 3), *back;
        hot(!shoal_tensor_is_shared(sent));
        hot_ok(shoal_queue_put_tensor(t.in, n % 2 == 0 ? sent : row, LIMIT));
        hot(shoal_tensor_is_shared(sent) && shoal_tensor_is_shared(row));
        shoal_tensor_release(sent);
        shoal_scope_release(0);
        shoal_tensor *other = counted(ROWS, COLUMNS, -1000); /* would reuse its memory */
        hot_ok(shoal_tensor_share(other));
        hot_ok(shoal_queue_get_tensor(t.out, LIMIT, &back));
        hot(is_counted(back, n % 2 == 0 ? n : n + 3 * COLUMNS) && is_counted(other, -1000));
        hot(shoal_tensor_storage_id(back) != shoal_tensor_storage_id(other));
        shoal_tensor_release(other);
        shoal_tensor_release(back);
    }
    talk_end(&t);
}
END_TEST

/* ---- B3 ---- */

/* storage, whole, row, column: each is written at a separate place, and the others see it. */
static shoal_err check_overlap(shoal_tensor *all, shoal_tensor *whole, shoal_tensor *row, shoal_tensor *column, int n)
{
    must(all != NULL && whole != NULL && row != NULL && column != NULL);
    must(same_memory(all, whole) && same_memory(whole, row) && same_memory(row, column));
    must(shoal_tensor_offset(row) == 2 * COLUMNS && shoal_tensor_offset(column) == 4);
    must(shoal_tensor_count(all) * (int64_t)sizeof(float) == (int64_t)shoal_tensor_storage_size(all));
    must(address_of(row) - address_of(whole) == 2 * COLUMNS * (int)sizeof(float));
    must(address_of(column) - address_of(all) == 4 * (int)sizeof(float));
    set_f32(column, 2, 0, n + 0.5); /* where all four overlap */
    must(AT(row, 4) == n + 0.5 && AT(whole, 2, 4) == n + 0.5 && AT(all, 2 * COLUMNS + 4) == n + 0.5);
    set_f32(all, 2 * COLUMNS + 4, 0, n + 0.25);
    must(AT(row, 4) == n + 0.25 && AT(whole, 2, 4) == n + 0.25 && AT(column, 2) == n + 0.25);
    return SHOAL_OK;
}

static shoal_err answer_overlap(const shoal_value *asked, shoal_value **out)
{
    shoal_tensor *t[4];
    (void)out;
    for (size_t i = 0; i < 4; i++) {
        t[i] = shoal_value_as_tensor(shoal_value_at(asked, i));
    }
    must_ok(check_overlap(t[0], t[1], t[2], t[3], 7));
    set_f32(t[0], 0, 0, 10);
    set_f32(t[1], 0, 1, 11);
    set_f32(t[2], 0, 0, 12);
    set_f32(t[3], 1, 0, 13);
    return SHOAL_OK;
}
TALK_TARGET(overlap_target, answer_overlap)

START_TEST(b3_views_sent_together_overlap_as_before)
{
    talk t;
    talk_begin(&t, _i, overlap_target);
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *whole = counted(ROWS, COLUMNS, 0), *all = shoal_view(whole, SHOAL_SHAPE(ROWS * COLUMNS));
        shoal_tensor *row = shoal_select(whole, 0, 2), *column = shoal_select(whole, 1, 4);
        ck_assert_ok(check_overlap(all, whole, row, column, n));
        talk_tell(&t, shoal_list(all, whole, row, column));
        hot(AT(whole, 0, 0) == 10 && AT(whole, 0, 1) == 11 && AT(whole, 2, 0) == 12 && AT(whole, 1, 4) == 13);
        hot(AT(all, 0) == 10 && AT(all, 1) == 11 && AT(row, 0) == 12 && AT(column, 1) == 13);
        hot(AT(column, 2) == 7.25);
        ck_assert_ok(check_overlap(all, whole, row, column, n));
        shoal_tensor_release(whole);
        shoal_scope_release(0);
    }
    talk_end(&t);
}
END_TEST

/* ---- B4 ---- */

static const shoal_dtype dtypes[] = {SHOAL_F32, SHOAL_F64, SHOAL_BF16, SHOAL_F16,
                                     SHOAL_I64, SHOAL_I32, SHOAL_U8,   SHOAL_B8};

/* Add a new dtype here. */
START_TEST(b4_all_dtypes_are_tried)
{
    int known = 0;
    for (int d = 0; d < 256; d++) {
        known += shoal_dtype_size((shoal_dtype)d) > 0;
    }
    ck_assert_int_eq(known, sizeof dtypes / sizeof dtypes[0]);
}
END_TEST

static void empty_there_and_back(talk *t, shoal_tensor *sent)
{
    shoal_tensor *back;
    hot(sent != NULL && !shoal_tensor_is_shared(sent));
    hot_ok(shoal_queue_put_tensor(t->in, sent, LIMIT));
    hot(shoal_tensor_is_shared(sent));
    hot_ok(shoal_queue_get_tensor(t->out, LIMIT, &back));
    hot(shoal_tensor_equal(sent, back) && shoal_tensor_count(back) == 0 && shoal_tensor_is_shared(back));
    for (int d = 0; d < shoal_tensor_ndim(sent); d++) {
        hot(shoal_tensor_stride(sent, d) == shoal_tensor_stride(back, d));
    }
    hot(shoal_tensor_storage_id(sent) == shoal_tensor_storage_id(back));
    shoal_tensor_release(back);
    shoal_tensor_release(sent);
}

START_TEST(b4_empty_tensors_of_every_dtype_make_the_round_trip)
{
    talk t;
    talk_begin(&t, _i, reflect);
    for (int round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
            empty_there_and_back(&t, shoal_empty(dtypes[i], SHOAL_SHAPE(0)));
            empty_there_and_back(&t, shoal_zeros(dtypes[i], SHOAL_SHAPE(3, 0, 2)));
            empty_there_and_back(&t, shoal_zeros(dtypes[i], SHOAL_SHAPE(0, 0, 0, 0, 0, 0, 0, 0)));
            shoal_tensor *full = shoal_ones(dtypes[i], SHOAL_SHAPE(4, 4));
            shoal_tensor *none = shoal_tensor_retain(shoal_narrow(full, 0, 4, 0)); /* at the very end of a tensor */
            shoal_tensor_release(full);
            shoal_scope_release(0);
            empty_there_and_back(&t, none);
        }
    }
    talk_end(&t);
}
END_TEST

START_TEST(b4_is_shared_tells_the_truth)
{
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int way = 0; way < 5 * ROUNDS; way++) {
        shoal_tensor *t = counted(ROWS, way % 2 == 0 ? COLUMNS : 0, 1), *view = shoal_transpose(t, 0, 1), *back;
        shoal_value *v = NULL;
        hot(!shoal_tensor_is_shared(t) && !shoal_tensor_is_shared(view));
        uint64_t before = shoal_tensor_storage_id(t);
        switch (way % 5) {
        case 0: hot_ok(shoal_tensor_share(t)); break;
        case 1: hot_ok(shoal_tensor_share(view)); break;
        case 2: hot((v = shoal_value_tensor(t)) != NULL); break;
        case 3: hot_ok(shoal_queue_put(q, shoal_list(1, shoal_map("in", view)), SHOAL_NOW)); break;
        default:
            hot_ok(shoal_queue_put_tensor(q, t, SHOAL_NOW));
            hot_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &back));
            hot(shoal_tensor_is_shared(back) && same_memory(t, back));
            shoal_tensor_release(back);
        }
        hot(shoal_tensor_is_shared(t) && shoal_tensor_is_shared(view) && same_memory(t, view));
        hot(is_counted(t, 1));
        uint64_t id = shoal_tensor_storage_id(t);
        void *data = address_of(t);
        hot_ok(shoal_tensor_share(t)); /* once more: nothing moves */
        hot(shoal_tensor_storage_id(t) == id && address_of(t) == data && before != 0);
        hot(!shoal_tensor_is_shared(shoal_clone(t)));
        shoal_value_destroy(v);
        if (way % 5 == 3) {
            until_told(q);
        }
        shoal_tensor_release(t);
        shoal_scope_release(0);
    }
    shoal_tensor *born = shoal_empty_shared(SHOAL_F32, SHOAL_SHAPE(ROWS, 3));
    ck_assert(shoal_tensor_is_shared(born));
    void *data = shoal_tensor_data(born);
    ck_assert_ok(shoal_queue_put_tensor(q, born, SHOAL_NOW));
    ck_assert_ptr_eq(shoal_tensor_data(born), data); /* never moves */
    shoal_tensor_release(born);
    shoal_release(q);
}
END_TEST

/* ---- B5 ---- */

static shoal_err add_three(int rank, const shoal_value *args)
{
    shoal_tensor *t = ARG(tensor, "t");
    must(is_counted(t, rank) && shoal_tensor_is_shared(t));
    must(shoal_add_scalar_(t, 3) == t);
    shoal_scope_release(0);
    must_ok(shoal_return(shoal_map("same", t, "mine", shoal_scoped(counted(2, 2, rank)))));
    shoal_scope_release(0);
    return SHOAL_OK;
}

START_TEST(b5_a_tensor_among_the_arguments_is_the_same_memory)
{
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *t = counted(ROWS, COLUMNS, n);
        shoal_status status;
        if (n % 2 == 0) {
            ck_assert_ok(shoal_tensor_share(t));
        }
        shoal_process *p = talk_start(_i, n, add_three, shoal_map("t", t));
        ck_assert_ok(shoal_process_join(p, LIMIT, &status));
        ck_assert_msg(status.end == SHOAL_PROCESS_RETURNED, "%s", status.text);
        hot(is_counted(t, n + 3));
        const shoal_value *result = shoal_process_result(p);
        shoal_tensor *same = shoal_value_as_tensor(shoal_value_find(result, "same"));
        shoal_tensor *mine = shoal_tensor_retain(shoal_value_as_tensor(shoal_value_find(result, "mine")));
        hot(same_memory(t, same) && is_counted(mine, n));
        finish(p);
        hot(is_counted(mine, n)); /* its creator is gone */
        shoal_tensor_release(mine);
        shoal_tensor_release(t);
    }
}
END_TEST

/* What a forked child has of tensors that it did not get as arguments:
 * shared ones are shared, private ones are copies. */
static shoal_tensor *inherited_shared, *inherited_private;

static shoal_err change_inherited(int rank, const shoal_value *args)
{
    (void)args;
    must(is_counted(inherited_shared, rank) && is_counted(inherited_private, rank));
    must(shoal_add_scalar_(inherited_shared, 5) != NULL && shoal_add_scalar_(inherited_private, 7) != NULL);
    must(is_counted(inherited_private, rank + 7));
    must_ok(shoal_tensor_share(inherited_private)); /* becomes a storage of this process only */
    must_ok(shoal_return(shoal_value_tensor(inherited_private)));
    shoal_tensor_release(inherited_private);
    shoal_tensor_release(inherited_shared);
    return SHOAL_OK;
}

START_TEST(a_forked_child_shares_the_shared_and_copies_the_private)
{
    for (int n = 0; n < ROUNDS && !talk_is_card(); n++) { /* a card does not work across fork */
        shoal_status status;
        inherited_shared = counted(ROWS, COLUMNS, n);
        inherited_private = counted(ROWS, COLUMNS, n);
        ck_assert_ok(shoal_tensor_share(inherited_shared));
        shoal_process *p = talk_start(SHOAL_START_FORK, n, change_inherited, NULL);
        ck_assert_ok(shoal_process_join(p, LIMIT, &status));
        ck_assert_msg(status.end == SHOAL_PROCESS_RETURNED, "%s", status.text);
        hot(is_counted(inherited_shared, n + 5) && is_counted(inherited_private, n));
        hot(!shoal_tensor_is_shared(inherited_private));
        hot(is_counted(shoal_value_as_tensor(shoal_process_result(p)), n + 7));
        finish(p);
        shoal_tensor_release(inherited_shared);
        shoal_tensor_release(inherited_private);
    }
}
END_TEST

/* ---- B15 ---- */

typedef enum way_out { BY_RETURN, BY_EXIT, BY_KILL, WAYS_OUT } way_out;

/* Puts a tensor, a view in a value and a sparse tensor, and exits. */
static shoal_err put_and_go(int rank, const shoal_value *args)
{
    shoal_tensor *t = counted(300, 100, rank), *eye = shoal_eye(SHOAL_F32, 20);
    shoal_sparse *s = shoal_sparse_from_dense(eye, SHOAL_LAYOUT_CSR);
    shoal_queue *out = ARG(queue, "out");
    must_ok(shoal_queue_put_tensor(out, t, LIMIT));
    must_ok(shoal_queue_put(out, shoal_map("sparse", s, "row", shoal_select(t, 0, 17)), LIMIT));
    switch ((way_out)ARG_INT("way")) {
    case BY_EXIT: _exit(5);
    case BY_KILL: raise(SIGKILL); break;
    default: break;
    }
    shoal_tensor_release(t);
    shoal_tensor_release(eye);
    shoal_sparse_destroy(s);
    shoal_scope_release(0);
    return SHOAL_OK;
}

START_TEST(b15_what_was_put_outlives_its_sender)
{
    static const shoal_end ends[] = {
        [BY_RETURN] = SHOAL_PROCESS_RETURNED, [BY_EXIT] = SHOAL_PROCESS_EXITED, [BY_KILL] = SHOAL_PROCESS_KILLED};
    static const int codes[] = {[BY_EXIT] = 5, [BY_KILL] = SIGKILL};
    shoal_queue *q;
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int n = 0; n < ROUNDS * WAYS_OUT; n++) {
        int way = n % WAYS_OUT;
        finish_as(talk_start(_i, n, put_and_go, shoal_map("out", q, "way", way)), ends[way], way > 0 ? codes[way] : 0);
        ck_assert_ok(shoal_world_sweep(NULL));
        ck_assert_ok(shoal_world_trim());
        shoal_tensor *others = counted(300, 100, -50000),
                     *t; /* would reuse the memory if it had been freed too early */
        hot_ok(shoal_tensor_share(others));
        shoal_value *v = NULL;
        hot_ok(shoal_queue_get_tensor(q, LIMIT, &t));
        hot_ok(shoal_queue_get(q, LIMIT, &v));
        shoal_tensor *row = shoal_value_as_tensor(shoal_value_find(v, "row"));
        shoal_sparse *s = shoal_value_as_sparse(shoal_value_find(v, "sparse"));
        shoal_tensor *dense = shoal_sparse_to_dense(s), *eye = shoal_eye(SHOAL_F32, 20);
        hot(is_counted(t, n) && is_counted(row, n + 1700) && same_memory(t, row));
        hot(dense != NULL && shoal_tensor_equal(dense, eye));
        hot(is_counted(others, -50000));
        shoal_value_destroy(v);
        shoal_tensor_release(t);
        shoal_tensor_release(others);
        shoal_tensor_release(dense);
        shoal_tensor_release(eye);
    }
    shoal_release(q);
}
END_TEST

/* ---- B16 ---- */

static shoal_err make_one(int rank, const shoal_value *args)
{
    shoal_tensor *t = counted(ROWS, COLUMNS, rank);
    must_ok(shoal_queue_put_tensor(ARG(queue, "first"), t, LIMIT));
    shoal_tensor_release(t);
    return SHOAL_OK;
}

/* Forwards what it got, whole or a view of it. Dies by a signal if asked to. */
static shoal_err send_on(int rank, const shoal_value *args)
{
    shoal_tensor *t;
    must_ok(shoal_queue_get_tensor(ARG(queue, "first"), LIMIT, &t));
    must(is_counted(t, rank) && shoal_add_scalar_(t, 1) != NULL);
    must_ok(talk_is_card() ? shoal_cuda_wait() : SHOAL_OK); /* a killed process loses the work that is not done */
    if (rank % 4 == 0) {
        must_ok(shoal_queue_give_tensor(ARG(queue, "second"), shoal_tensor_retain(t), LIMIT));
    } else {
        must_ok(shoal_queue_put_tensor(ARG(queue, "second"), rank % 2 == 0 ? t : shoal_select(t, 0, 1), LIMIT));
    }
    if (rank % 3 == 0) {
        raise(SIGKILL);
    }
    shoal_tensor_release(t);
    shoal_scope_release(0);
    return SHOAL_OK;
}

START_TEST(b16_sent_on_it_outlives_maker_and_messenger)
{
    shoal_queue *first, *second;
    ck_assert_ok(shoal_queue_create(0, &first));
    ck_assert_ok(shoal_queue_create(0, &second));
    for (int n = 0; n < ROUNDS; n++) {
        shoal_tensor *t;
        shoal_process *maker = talk_start(_i, n, make_one, shoal_map("first", first));
        shoal_process *messenger = talk_start(_i, n, send_on, shoal_map("first", first, "second", second));
        finish(maker);
        finish_as(messenger, n % 3 == 0 ? SHOAL_PROCESS_KILLED : SHOAL_PROCESS_RETURNED, n % 3 == 0 ? SIGKILL : 0);
        ck_assert_ok(shoal_world_sweep(NULL));
        hot_ok(shoal_queue_get_tensor(second, LIMIT, &t));
        shoal_tensor *other = counted(ROWS, COLUMNS, -900);
        hot_ok(shoal_tensor_share(other));
        hot(is_counted(t, n % 2 == 0 ? n + 1 : n + 1 + COLUMNS));
        hot(shoal_add_scalar_(t, 1) != NULL && is_counted(other, -900));
        shoal_tensor_release(other);
        shoal_tensor_release(t);
    }
    shoal_release(first);
    shoal_release(second);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sharing");
    TCase *tc = children_case("same");
    add_for_methods(tc, b1_a_tensor_and_its_view_in_one_message_are_one_memory);
    add_for_methods(tc, b2_a_storage_that_comes_again_or_back_is_the_same);
    add_for_methods(tc, b2_a_tensor_that_only_the_message_holds_comes_back_whole);
    add_for_methods(tc, b3_views_sent_together_overlap_as_before);
    suite_add_tcase(s, tc);
    tc = children_case("shared");
    tcase_add_test(tc, b4_all_dtypes_are_tried);
    add_for_methods(tc, b4_empty_tensors_of_every_dtype_make_the_round_trip);
    tcase_add_test(tc, b4_is_shared_tells_the_truth);
    suite_add_tcase(s, tc);
    tc = children_case("processes");
    add_for_methods(tc, b5_a_tensor_among_the_arguments_is_the_same_memory);
    tcase_add_test(tc, a_forked_child_shares_the_shared_and_copies_the_private);
    add_for_methods(tc, b15_what_was_put_outlives_its_sender);
    add_for_methods(tc, b16_sent_on_it_outlives_maker_and_messenger);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
