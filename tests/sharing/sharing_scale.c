/* Many tensors, and a full heap: B11, B12, B14. */
#include "tests/harness/counts.h"
#include "tests/harness/numbers.h"
#include "tests/harness/talk.h"

#include <stdlib.h>

#define LIMITED (32u << 20)       /* a heap that fills up quickly */
#define ROUNDS (SH_SLOW ? 6 : 30) /* how often it is filled and emptied */

/* ---- B11 ---- */

/* Adds one to each tensor and forwards it. Rank 1 gives it away. */
static shoal_err add_one(int rank, const shoal_value *args)
{
    shoal_queue *in = ARG(queue, "in"), *out = ARG(queue, "out");
    shoal_tensor *t;
    shoal_err err;
    while ((err = shoal_queue_get_tensor(in, LIMIT, &t)) == SHOAL_OK) {
        ((float *)shoal_tensor_data(t))[0] += 1;
        if (rank == 1) {
            must_ok(shoal_queue_give_tensor(out, t, LIMIT));
        } else {
            must_ok(shoal_queue_put_tensor(out, t, LIMIT));
            shoal_tensor_release(t);
        }
    }
    must(err == SHOAL_ECLOSED);
    return SHOAL_OK;
}

/* The blocks of all storages used so far, by id. */
typedef struct ids {
    uint64_t seen[64];
    int count;
} ids;

static void ids_add(ids *all, uint64_t id)
{
    int k = 0;
    for (; k < all->count && all->seen[k] != id; k++) {
    }
    hot(k < 64);
    all->seen[k] = id;
    all->count += k == all->count;
}

START_TEST(b11_fresh_tensors_through_two_queues_use_their_blocks_again)
{
    enum { WARM = 1000, MESSAGES = SH_REPEAT(10000), COUNT = 25000, MOST = 16 }; /* as many as two processes cache */
    talk t;
    ids all = {.count = 0};
    shoal_world_info warm = {.blocks_live = 0};
    talk_begin(&t, _i, add_one);
    for (int n = 0; n < WARM + MESSAGES; n++) {
        /* one kind is moved into the heap, the other is created there */
        shoal_tensor *back, *sent = n % 2 == 0 ? shoal_empty(SHOAL_F32, SHOAL_SHAPE(COUNT))
                                               : shoal_empty_shared(SHOAL_F32, SHOAL_SHAPE(COUNT));
        hot(sent != NULL);
        ((float *)shoal_tensor_data(sent))[0] = (float)n;
        hot_ok(shoal_queue_put_tensor(t.in, sent, LIMIT));
        ids_add(&all, shoal_tensor_storage_id(sent));
        shoal_tensor_release(sent);
        hot_ok(shoal_queue_get_tensor(t.out, LIMIT, &back));
        hot(((float *)shoal_tensor_data(back))[0] == (float)n + 1);
        shoal_tensor_release(back);
        if (n == WARM) {
            warm = sh_test_world();
        }
    }
    shoal_world_info end = sh_test_world();
    printf("%d tensors sent and returned: %d different blocks, heap %llu and %llu KiB, live %llu and %llu\n", MESSAGES,
           all.count, (unsigned long long)warm.heap_used >> 10, (unsigned long long)end.heap_used >> 10,
           (unsigned long long)warm.blocks_live, (unsigned long long)end.blocks_live);
    ck_assert_int_le(all.count, MOST);
    ck_assert_uint_le(end.heap_used, warm.heap_used + MOST * COUNT * sizeof(float));
    ck_assert_uint_le(end.blocks_live, warm.blocks_live + 4); /* the child may not have released the last one yet */
    talk_end(&t);
}
END_TEST

START_TEST(b11_a_tensor_that_goes_to_and_fro_makes_no_block)
{
    enum { WARM = 100, MESSAGES = SH_REPEAT(10000) };
    talk t;
    uint64_t warm = 0;
    shoal_tensor *sent = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(100));
    talk_begin(&t, _i, add_one);
    for (int n = 0; n < WARM + MESSAGES; n++) {
        shoal_tensor *back;
        hot_ok(shoal_queue_put_tensor(t.in, sent, LIMIT));
        hot_ok(shoal_queue_get_tensor(t.out, LIMIT, &back));
        hot(shoal_tensor_data(back) == shoal_tensor_data(sent));
        shoal_tensor_release(n % 2 == 0 ? sent : back); /* each continues as the other */
        sent = n % 2 == 0 ? back : sent;
        warm = n == WARM ? sh_test_world().blocks_live : warm;
    }
    ck_assert(((float *)shoal_tensor_data(sent))[0] == WARM + MESSAGES);
    ck_assert_uint_eq(sh_test_world().blocks_live, warm);
    shoal_tensor_release(sent);
    talk_end(&t);
}
END_TEST

/* ---- B12 ---- */

/* Holds n tensors at once, and reports its counts. */
static shoal_err hold(int rank, const shoal_value *args)
{
    int64_t n = ARG_INT("count");
    must(n >= 0);
    shoal_tensor **held = calloc((size_t)n + 1, sizeof *held);
    must(held != NULL);
    (void)rank;
    for (int64_t i = 0; i < n; i++) {
        must_ok(shoal_queue_get_tensor(ARG(queue, "in"), LIMIT, &held[i]));
    }
    counts c = count_here();
    for (int64_t i = 0; i < n; i++) {
        must(AT(held[i], 3) == (double)i);
        shoal_tensor_release(held[i]);
    }
    free(held);
    must_ok(shoal_return(shoal_list(c.fds, c.mappings)));
    return SHOAL_OK;
}

static counts with_tensors(int method, int64_t n, counts *out_child)
{
    shoal_queue *in;
    shoal_tensor **held = calloc((size_t)n, sizeof(void *));
    ck_assert_ok(shoal_queue_create(0, &in));
    for (int64_t i = 0; i < n; i++) {
        held[i] = shoal_full(SHOAL_F32, (double)i, SHOAL_SHAPE(4));
        hot_ok(shoal_queue_put_tensor(in, held[i], LIMIT));
    }
    counts here = count_here();
    *out_child = finish_counted(talk_start(method, 0, hold, shoal_map("in", in, "count", n)));
    for (int64_t i = 0; i < n; i++) {
        shoal_tensor_release(held[i]);
    }
    free(held);
    shoal_release(in);
    return here;
}

START_TEST(b12_ten_thousand_tensors_cost_no_fd_and_no_mapping)
{
    counts few_there, many_there;
    finish(talk_start(_i, 0, hold, shoal_map("count", 0))); /* from now on the fork server exists */
    counts few = with_tensors(_i, 10, &few_there), many = with_tensors(_i, 10000, &many_there);
    expect_same_counts("tensors", few, many, few_there, many_there);
}
END_TEST

/* Three processes in a chain: the test creates tensors, two processes forward them, the test adds them up. */
START_TEST(b12_a_million_tensors_in_a_chain_add_up_and_all_memory_returns)
{
    enum { LINKS = 2 };
    shoal_queue *q[LINKS + 1];
    shoal_process *p[LINKS];
    int64_t n = SH_REPEAT(1000000) / (SH_SLOW ? 5 : 1);
    double sum = 0;
    for (int i = 0; i <= LINKS; i++) {
        ck_assert_ok(shoal_queue_create(100, &q[i]));
    }
    for (int i = 0; i < LINKS; i++) {
        p[i] = talk_start(_i, i, add_one, shoal_map("in", q[i], "out", q[i + 1]));
    }
    shoal_world_info before = sh_test_world();
    for (int64_t put = 0, got = 0; got < n;) {
        shoal_tensor *t;
        if (put < n && put - got < 150) {
            t = shoal_empty(SHOAL_F32, SHOAL_SHAPE(16));
            ((float *)shoal_tensor_data(t))[0] = (float)(put++ % 1000);
            hot_ok(shoal_queue_put_tensor(q[0], t, LIMIT));
        } else {
            hot_ok(shoal_queue_get_tensor(q[LINKS], LIMIT, &t));
            sum += ((float *)shoal_tensor_data(t))[0];
            got++;
        }
        shoal_tensor_release(t);
    }
    double wanted = 0;
    for (int64_t i = 0; i < n; i++) {
        wanted += (double)(i % 1000) + LINKS;
    }
    ck_assert(sum == wanted);
    for (int i = 0; i < LINKS; i++) {
        shoal_queue_close(q[i]);
        finish(p[i]);
    }
    shoal_world_info after = sh_test_world();
    ck_assert_uint_le(after.blocks_live, before.blocks_live);
    ck_assert_uint_lt(after.heap_used, before.heap_used + (4u << 20));
    for (int i = 0; i <= LINKS; i++) {
        shoal_release(q[i]);
    }
}
END_TEST

/* ---- B14 ---- */

/* Shares tensors with that many rows until one no longer fits. */
typedef struct pile {
    shoal_tensor **all;
    size_t count, room;
} pile;

static void pile_up(pile *p, int64_t rows)
{
    for (;;) {
        if (p->count == p->room) {
            p->room = p->room == 0 ? 1024 : p->room * 2;
            p->all = realloc(p->all, p->room * sizeof *p->all);
        }
        shoal_tensor *t = counted(rows, 4, (double)p->count);
        p->all[p->count] = t;
        shoal_err err = shoal_tensor_share(t);
        if (err != SHOAL_OK) {
            ck_assert_int_eq(err, SHOAL_ENOMEM);
            shoal_tensor_release(t);
            return;
        }
        p->count++;
    }
}

static void pile_end(pile *p)
{
    for (size_t i = 0; i < p->count; i++) {
        hot(is_counted(p->all[i], (double)i) && shoal_tensor_is_shared(p->all[i]));
        shoal_tensor_release(p->all[i]);
    }
    free(p->all);
    *p = (pile){0};
}

static void refused(shoal_err err, size_t asked)
{
    ck_assert_int_eq(err, SHOAL_ENOMEM);
    ck_words(asked);
}

/* A tensor that could not be shared is unchanged: private, complete, usable. */
static void ck_untouched(shoal_tensor *t, const void *data, double first)
{
    ck_assert(!shoal_tensor_is_shared(t) && shoal_tensor_data(t) == data && is_counted(t, first));
    ck_assert(shoal_add_scalar_(t, 1) == t && is_counted(t, first + 1));
    ck_assert(shoal_add_scalar_(t, -1) == t);
}

START_TEST(b14_a_tensor_that_does_not_fit_stays_as_it_was)
{
    shoal_queue *q;
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.heap_limit = LIMITED}));
    ck_assert_ok(shoal_queue_create(0, &q));
    shoal_tensor *old = counted(3, 4, 7), *back;
    ck_assert_ok(shoal_queue_put_tensor(q, old, SHOAL_NOW));
    for (int round = 0; round < ROUNDS; round++) {
        pile p = {0};
        int64_t rows = _i + round * (240 / ROUNDS);
        size_t asked = (size_t)rows * 4 * sizeof(float);
        pile_up(&p, rows);
        shoal_tensor *t = counted(rows, 4, 1), *view = shoal_transpose(t, 0, 1);
        void *data = shoal_tensor_data(t);
        uint64_t id = shoal_tensor_storage_id(t);
        refused(shoal_tensor_share(t), asked);
        refused(shoal_tensor_share(view), asked);
        refused(shoal_queue_put_tensor(q, t, SHOAL_NOW), asked);
        ck_assert_ptr_null(shoal_map("a", shoal_list(1, t)));
        refused(shoal_last_error(), asked);
        ck_assert_ptr_null(shoal_empty_shared(SHOAL_F32, SHOAL_SHAPE(rows, 4)));
        refused(shoal_last_error(), asked);
        ck_untouched(t, data, 1);
        ck_assert(shoal_tensor_storage_id(t) == id && same_memory(view, t) && shoal_queue_size(q) == 1);
        ck_assert_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &back)); /* everything that was there still works */
        ck_assert(is_counted(back, 7) && same_memory(back, old));
        ck_assert_ok(shoal_queue_put_tensor(q, old, SHOAL_NOW));
        shoal_tensor_release(back);
        sh_assert_audit("when it is full");
        pile_end(&p);
        ck_assert_ok(shoal_tensor_share(t)); /* now there is memory */
        ck_assert(is_counted(t, 1) && same_memory(view, t));
        shoal_tensor_release(t);
        shoal_scope_release(0);
    }
    shoal_tensor_release(old);
    shoal_release(q);
}
END_TEST

/* The tensor fits but its grad does not, or one part of a sparse tensor does not: an error, and nothing is damaged. */
START_TEST(b14_a_part_that_does_not_fit_spoils_nothing)
{
    enum { COUNT = 1 << 20 }; /* f32: 4 MiB */
    shoal_queue *q;
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.heap_limit = LIMITED}));
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int round = 0; round < ROUNDS; round++) {
        shoal_tensor *room = shoal_empty_shared(SHOAL_F32, SHOAL_SHAPE(6, COUNT)); /* so that one fits, but not two */
        shoal_tensor *w = counted(COUNT / 4, 4, 0), *grad = counted(COUNT / 4, 4, 5), *back = NULL;
        ck_assert(room != NULL);
        ck_assert_ok(shoal_tensor_set_grad(w, grad));
        shoal_tensor *huge = counted(COUNT / 2, 4, 0);
        ck_assert_err(shoal_tensor_share(huge), SHOAL_ENOMEM); /* 8 MiB are too much */
        shoal_tensor *more = shoal_empty_shared(SHOAL_F32, SHOAL_SHAPE(COUNT / 4 * 3));
        ck_assert_err(shoal_queue_put_tensor(q, w, SHOAL_NOW), SHOAL_ENOMEM);
        ck_assert(is_counted(w, 0) && is_counted(grad, 5) && shoal_tensor_grad(w) == grad);
        ck_assert(!shoal_tensor_is_shared(grad) && shoal_queue_size(q) == 0);
        shoal_tensor *starts = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(11)),
                     *columns = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(COUNT));
        shoal_tensor *values = shoal_view(grad, SHOAL_SHAPE(COUNT));
        shoal_sparse *s = shoal_sparse_csr(starts, columns, values, 10, 100);
        if (s == NULL) { /* starts must end with the count */
            ((int64_t *)shoal_tensor_data(starts))[10] = COUNT;
            s = shoal_sparse_csr(starts, columns, values, 10, 100);
        }
        ck_assert(s != NULL);
        ck_assert_err(shoal_sparse_share(s), SHOAL_ENOMEM);
        ck_assert_ptr_null(shoal_value_sparse(s));
        ck_assert_err(shoal_last_error(), SHOAL_ENOMEM);
        ck_assert(is_counted(grad, 5) && item_of(shoal_sum(columns, SHOAL_ALL_DIMS, false)) == 0);
        shoal_tensor_release(more);
        shoal_tensor_release(room);
        ck_assert_ok(shoal_queue_put_tensor(q, w, SHOAL_NOW)); /* now both fit */
        ck_assert_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &back));
        ck_assert(is_counted(back, 0) && is_counted(shoal_tensor_grad(back), 5));
        ck_assert_ok(shoal_sparse_share(s));
        shoal_sparse_destroy(s);
        shoal_tensor *const all[] = {w, grad, back, huge, starts, columns};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            shoal_tensor_release(all[i]);
        }
        shoal_scope_release(0);
    }
    shoal_release(q);
}
END_TEST

/* A full heap and small messages: put may fail or not, but what it reports is true. */
START_TEST(b14_put_of_shared_tensors_into_a_full_heap)
{
    shoal_queue *q;
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.heap_limit = LIMITED}));
    ck_assert_ok(shoal_queue_create(0, &q));
    pile p = {0}, small = {0};
    pile_up(&p, 4000);
    for (int i = 0; i < 40; i++) {
        shoal_tensor_release(p.all[--p.count]);
    }
    pile_up(&small, 1);
    uint64_t put = 0;
    for (size_t i = 0; i < p.count; i++) { /* each needs a description, for which there may be no room */
        shoal_err err = shoal_queue_put_tensor(q, p.all[i], SHOAL_NOW);
        ck_assert(err == SHOAL_OK || err == SHOAL_ENOMEM);
        put += err == SHOAL_OK;
        ck_assert_uint_eq(shoal_queue_size(q), put);
    }
    sh_assert_audit("when it is full");
    ck_assert_uint_lt(put, p.count);
    pile_end(&small);
    for (size_t i = 0; i < p.count; i++) {
        ck_assert_ok(shoal_queue_put_tensor(q, p.all[i], SHOAL_NOW));
        put++;
    }
    pile_end(&p);
    for (; put > 0; put--) {
        shoal_tensor *t;
        ck_assert_ok(shoal_queue_get_tensor(q, SHOAL_NOW, &t));
        ck_assert(is_counted(t, AT(t, 0, 0)));
        shoal_tensor_release(t);
    }
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    shoal_release(q);
}
END_TEST

/* Gets as many tensors with grads as it can, and returns how many. A message that finds no room stays in the queue. */
static int take_with_grads(shoal_queue *q, shoal_tensor **out)
{
    int got = 0;
    for (shoal_err err = SHOAL_OK; err == SHOAL_OK && shoal_queue_size(q) > 0;) {
        uint64_t size = shoal_queue_size(q);
        err = shoal_queue_get_tensor(q, SHOAL_NOW, &out[got]);
        hot(err == SHOAL_OK || err == SHOAL_ENOMEM);
        hot(shoal_queue_size(q) == size - (err == SHOAL_OK));
        got += err == SHOAL_OK;
    }
    return got;
}

START_TEST(b14_a_get_that_finds_no_room_loses_nothing)
{
    enum { MESSAGES = 600 };
    static shoal_tensor *got[MESSAGES];
    shoal_queue *q;
    ck_assert_ok(shoal_world_create(&(shoal_world_options){.heap_limit = LIMITED / 4}));
    ck_assert_ok(shoal_queue_create(0, &q));
    for (int round = 0; round < 30; round += 30 / ROUNDS) {
        for (int i = 0; i < MESSAGES; i++) {
            shoal_tensor *w = counted(1, 4, i), *grad = counted(1, 4, -i);
            hot_ok(shoal_tensor_set_grad(w, grad));
            hot_ok(shoal_queue_put_tensor(q, w, SHOAL_NOW));
            shoal_tensor_release(w);
            shoal_tensor_release(grad);
        }
        pile p = {0};
        pile_up(&p, 1000); /* fills all room, even that for handles */
        pile_up(&p, 1);
        for (int i = 0; i <= round; i++) { /* frees some handles: a message may find memory for half of what it needs */
            shoal_tensor_release(p.all[--p.count]);
        }
        int n = take_with_grads(q, got);
        ck_assert_int_lt(n, MESSAGES);
        pile_end(&p);
        n += take_with_grads(q, got + n);
        ck_assert_int_eq(n, MESSAGES);
        for (int i = 0; i < n; i++) {
            hot(is_counted(got[i], i) && is_counted(shoal_tensor_grad(got[i]), -i));
            shoal_tensor_release(got[i]);
        }
    }
    shoal_release(q);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("sharing_scale");
    TCase *tc = children_case("reuse");
    add_for_methods(tc, b11_fresh_tensors_through_two_queues_use_their_blocks_again);
    add_for_methods(tc, b11_a_tensor_that_goes_to_and_fro_makes_no_block);
    suite_add_tcase(s, tc);
    tc = children_case("many");
    add_for_methods(tc, b12_ten_thousand_tensors_cost_no_fd_and_no_mapping);
    add_for_methods(tc, b12_a_million_tensors_in_a_chain_add_up_and_all_memory_returns);
    suite_add_tcase(s, tc);
    tc = children_case("full");
    tcase_add_loop_test(tc, b14_a_tensor_that_does_not_fit_stays_as_it_was, 1000, 1001);
    tcase_add_loop_test(tc, b14_a_tensor_that_does_not_fit_stays_as_it_was, 100000, 100001);
    tcase_add_test(tc, b14_a_part_that_does_not_fit_spoils_nothing);
    tcase_add_test(tc, b14_put_of_shared_tensors_into_a_full_heap);
    tcase_add_test(tc, b14_a_get_that_finds_no_room_loses_nothing);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
