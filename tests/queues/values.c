/* Values to another process and back: every type, every kind of shared object, alone and nested, through a queue. */
#include "base/random.h"
#include "ipc/value.h"
#include "shm/block.h"
#include "tests/harness/talk.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#define SEED 1234567u

/* Answers each value with the value itself and with its text as formatted there. */
static shoal_err echo(int rank, const shoal_value *args)
{
    shoal_queue *in = ARG(queue, "in"), *out = ARG(queue, "out");
    (void)rank;
    shoal_value *v = NULL;
    shoal_err err;
    while ((err = shoal_queue_get(in, LIMIT, &v)) == SHOAL_OK) {
        size_t length = shoal_value_format(v, NULL, 0);
        char *text = malloc(length + 1);
        must(text != NULL && shoal_value_format(v, text, length + 1) == length);
        must_ok(shoal_queue_put(out, shoal_value_string(text), LIMIT));
        must_ok(shoal_queue_put(out, v, LIMIT));
        free(text);
    }
    must_err(err, SHOAL_ECLOSED);
    return SHOAL_OK;
}

/* Sends the value, which it consumes, and checks what comes back. */
static void there_and_back(talk *t, shoal_value *v)
{
    shoal_value *copy = shoal_value_copy(v), *text = NULL, *back = NULL;
    hot(v != NULL && copy != NULL);
    size_t length = shoal_value_format(v, NULL, 0);
    char *here = malloc(length + 1);
    shoal_value_format(v, here, length + 1);
    hot_ok(shoal_queue_put(t->in, v, LIMIT));
    hot_ok(shoal_queue_get(t->out, LIMIT, &text));
    hot_ok(shoal_queue_get(t->out, LIMIT, &back));
    if (!shoal_value_equal(back, copy) || strcmp(shoal_value_as_string(text), here) != 0) {
        ck_abort_msg("sent %.300s, but it arrived as %.300s (seed %u)", here, shoal_value_as_string(text), SEED);
    }
    free(here);
    shoal_value_destroy(copy);
    shoal_value_destroy(text);
    shoal_value_destroy(back);
}

/* ---- plain values ---- */

START_TEST(numbers_arrive_bit_for_bit)
{
    static const double numbers[] = {0.0,      -0.0,      1.5, -1e300, DBL_MIN, DBL_MAX, DBL_TRUE_MIN,
                                     INFINITY, -INFINITY, 3.0, 0x1p53, 0x1p63,  NAN,     1.0 / 3.0};
    talk t;
    talk_begin(&t, _i, echo);
    there_and_back(&t, shoal_value_null());
    there_and_back(&t, shoal_value_bool(true));
    there_and_back(&t, shoal_value_bool(false));
    for (int bit = 0; bit < 64; bit++) { /* every width of the encoding, from both sides */
        for (int64_t d = -1; d <= 1; d++) {
            uint64_t u = (UINT64_C(1) << bit) + (uint64_t)d;
            there_and_back(&t, shoal_value_int((int64_t)u));
            there_and_back(&t, shoal_list((int64_t)u, (int64_t)(0 - u)));
        }
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        there_and_back(&t, shoal_value_float(numbers[i]));
        there_and_back(&t, shoal_list(numbers[i], -numbers[i], (float)numbers[i]));
    }
    talk_end(&t);
}
END_TEST

START_TEST(texts_and_bytes_arrive_whole)
{
    static const size_t sizes[] = {0, 1, 7, 8, 9, 31, 32, 255, 256, 65535, 65536, 3u << 20};
    talk t;
    talk_begin(&t, _i, echo);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *bytes = calloc(1, sizes[i] + 1);
        uint64_t state = SEED;
        for (size_t k = 0; k < sizes[i]; k++) {
            bytes[k] = (char)(sh_splitmix_next(&state) % 94 + 33);
        }
        there_and_back(&t, shoal_value_string(bytes));
        there_and_back(&t, shoal_map(sizes[i] < 1000 ? bytes : "key", bytes));
        for (size_t k = 0; k < sizes[i]; k += 3) {
            bytes[k] = (char)(k & 0xff); /* not UTF-8, with zeros in it */
        }
        there_and_back(&t, shoal_value_bytes(bytes, sizes[i]));
        there_and_back(&t, shoal_list(shoal_value_bytes(bytes, sizes[i]), 1));
        free(bytes);
    }
    there_and_back(&t, shoal_value_string("Grüße, 鱼 🐟"));
    there_and_back(&t, shoal_map("鱼", "🐟", "", ""));
    talk_end(&t);
}
END_TEST

START_TEST(containers_arrive_in_order)
{
    talk t;
    talk_begin(&t, _i, echo);
    there_and_back(&t, shoal_value_list());
    there_and_back(&t, shoal_value_map());
    for (int n = 14; n < 70000; n = n * 3 + 5) { /* every width of the counts */
        shoal_value *list = shoal_value_list(), *map = shoal_value_map();
        for (int i = 0; i < n; i++) {
            char key[16];
            snprintf(key, sizeof key, "k%d", i);
            list = shoal_list_add(list, shoal_value_int(i));
            map = n < 5000 ? shoal_map_set(map, key, shoal_value_int(i)) : map;
        }
        there_and_back(&t, list);
        there_and_back(&t, map);
    }
    shoal_value *deep = shoal_value_list();
    for (int i = 1; i < SHOAL_VALUE_DEPTH; i++) {
        deep = i % 2 == 0 ? shoal_list_add(shoal_value_list(), deep) : shoal_map_set(shoal_value_map(), "in", deep);
    }
    there_and_back(&t, deep);
    talk_end(&t);
}
END_TEST

/* ---- shared objects ---- */

#define KINDS (SHOAL_KIND_BARRIER - SHOAL_KIND_BLOCK + 1)

typedef struct objects {
    void *all[KINDS]; /* by kind - SHOAL_KIND_BLOCK */
    shoal_pipe *other_end;
} objects;

static void objects_make(objects *o)
{
    shoal_pipe *end;
    ck_assert_ok(shoal_block_create_zeroed(100, (shoal_block **)&o->all[SHOAL_KIND_BLOCK - 1]));
    ck_assert_ok(shoal_queue_create(3, (shoal_queue **)&o->all[SHOAL_KIND_QUEUE - 1]));
    ck_assert_ok(shoal_pipe_create(true, &end, &o->other_end));
    o->all[SHOAL_KIND_PIPE - 1] = end;
    ck_assert_ok(shoal_lock_create((shoal_lock **)&o->all[SHOAL_KIND_LOCK - 1]));
    ck_assert_ok(shoal_rlock_create((shoal_rlock **)&o->all[SHOAL_KIND_RLOCK - 1]));
    ck_assert_ok(shoal_semaphore_create(1, 5, (shoal_semaphore **)&o->all[SHOAL_KIND_SEMAPHORE - 1]));
    ck_assert_ok(shoal_condition_create((shoal_condition **)&o->all[SHOAL_KIND_CONDITION - 1]));
    ck_assert_ok(shoal_event_create((shoal_event **)&o->all[SHOAL_KIND_EVENT - 1]));
    ck_assert_ok(shoal_barrier_create(1, (shoal_barrier **)&o->all[SHOAL_KIND_BARRIER - 1]));
}

static void objects_release(objects *o)
{
    for (int i = 0; i < KINDS; i++) {
        sh_block_release(o->all[i]);
    }
    shoal_release(o->other_end);
}

/* Returns which kinds the value can be read as, one bit per kind. */
static unsigned kinds_read(const shoal_value *v, void **out)
{
    void *const read[KINDS] = {
        shoal_value_as_block(v),     shoal_value_as_queue(v), shoal_value_as_pipe(v),
        shoal_value_as_lock(v),      shoal_value_as_rlock(v), shoal_value_as_semaphore(v),
        shoal_value_as_condition(v), shoal_value_as_event(v), shoal_value_as_barrier(v),
    };
    unsigned bits = 0;
    for (int i = 0; i < KINDS; i++) {
        bits |= read[i] != NULL ? 1u << i : 0;
        *out = read[i] != NULL ? read[i] : *out;
    }
    return bits;
}

START_TEST(every_kind_of_object_comes_back_as_the_same_handle)
{
    talk t;
    objects o;
    talk_begin(&t, _i, echo);
    objects_make(&o);
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < KINDS; i++) {
            shoal_value *back = NULL;
            void *object = NULL;
            there_and_back(&t, sh_value_object(o.all[i]));
            hot_ok(shoal_queue_put(t.in, sh_value_object(o.all[i]), LIMIT));
            until_told(t.out);
            hot_ok(shoal_queue_get(t.out, LIMIT, &back));
            hot((int)shoal_value_object_kind(back) == i + 1);
            hot(kinds_read(back, &object) == 1u << i && object == o.all[i]);
            shoal_value_destroy(back);
        }
    }
    objects_release(&o);
    talk_end(&t);
}
END_TEST

/* Uses each object in a map of maps and reports what it saw. */
static shoal_err use_all(int rank, const shoal_value *args)
{
    const shoal_value *in = shoal_value_find(shoal_value_find(args, "a"), "b");
    const shoal_value *locks = shoal_value_find(in, "locks");
    uint32_t index;
    (void)rank;
    strcpy(shoal_block_data(shoal_value_as_block(shoal_value_find(in, "block"))), "written there");
    must_ok(shoal_queue_put(shoal_value_as_queue(shoal_value_find(in, "queue")), shoal_value_int(5), SHOAL_NOW));
    must_ok(shoal_pipe_send(shoal_value_as_pipe(shoal_value_find(in, "pipe")), shoal_value_int(6), SHOAL_NOW));
    must_err(shoal_lock_lock(shoal_value_as_lock(shoal_value_at(locks, 0)), SHOAL_NOW),
             SHOAL_ETIMEDOUT); /* it arrived locked */
    must_ok(shoal_lock_unlock(shoal_value_as_lock(shoal_value_at(locks, 0))));
    must_err(shoal_rlock_lock(shoal_value_as_rlock(shoal_value_at(locks, 1)), SHOAL_NOW), SHOAL_ETIMEDOUT);
    must_ok(shoal_semaphore_post(shoal_value_as_semaphore(shoal_value_at(locks, 2)), 2));
    must_ok(shoal_condition_lock(shoal_value_as_condition(shoal_value_at(locks, 3)), SHOAL_NOW));
    must_ok(shoal_condition_notify(shoal_value_as_condition(shoal_value_at(locks, 3)), 1));
    must_ok(shoal_condition_unlock(shoal_value_as_condition(shoal_value_at(locks, 3))));
    shoal_event_set(shoal_value_as_event(shoal_value_at(locks, 4)));
    must_ok(shoal_barrier_wait(shoal_value_as_barrier(shoal_value_at(locks, 5)), SHOAL_NOW, &index));
    must_ok(shoal_return(shoal_value_copy(args)));
    return SHOAL_OK;
}

START_TEST(objects_in_nested_maps_are_the_same_objects_there)
{
    for (int round = 0; round < 10; round++) {
        objects o;
        shoal_value *v = NULL;
        objects_make(&o);
        shoal_value *locks = shoal_list(
            sh_value_object(o.all[SHOAL_KIND_LOCK - 1]), sh_value_object(o.all[SHOAL_KIND_RLOCK - 1]),
            sh_value_object(o.all[SHOAL_KIND_SEMAPHORE - 1]), sh_value_object(o.all[SHOAL_KIND_CONDITION - 1]),
            sh_value_object(o.all[SHOAL_KIND_EVENT - 1]), sh_value_object(o.all[SHOAL_KIND_BARRIER - 1]));
        shoal_value *in = shoal_map("locks", locks, "block", sh_value_object(o.all[SHOAL_KIND_BLOCK - 1]), "queue",
                                    sh_value_object(o.all[SHOAL_KIND_QUEUE - 1]), "pipe",
                                    sh_value_object(o.all[SHOAL_KIND_PIPE - 1]));
        shoal_value *args = shoal_map("a", shoal_map("b", in)), *copy = shoal_value_copy(args);
        ck_assert_ok(shoal_lock_lock(o.all[SHOAL_KIND_LOCK - 1], SHOAL_NOW));
        ck_assert_ok(shoal_rlock_lock(o.all[SHOAL_KIND_RLOCK - 1], SHOAL_NOW));
        shoal_process *p = start(_i, 0, use_all, args);
        shoal_status status;
        ck_assert_ok(shoal_process_join(p, LIMIT, &status));
        ck_assert_msg(status.end == SHOAL_PROCESS_RETURNED, "%s", status.text);
        ck_assert(shoal_value_equal(shoal_process_result(p), copy)); /* the same handles came back */
        finish(p);
        shoal_value_destroy(copy);
        ck_assert_str_eq(shoal_block_data(o.all[SHOAL_KIND_BLOCK - 1]), "written there");
        ck_assert_ok(shoal_queue_get(o.all[SHOAL_KIND_QUEUE - 1], SHOAL_NOW, &v));
        shoal_value_destroy(v);
        ck_assert_ok(shoal_pipe_recv(o.other_end, SHOAL_NOW, &v));
        ck_assert_int_eq(sh_int_of(v), 6);
        shoal_value_destroy(v);
        ck_assert_ok(shoal_lock_lock(o.all[SHOAL_KIND_LOCK - 1], SHOAL_NOW));
        ck_assert_ok(shoal_lock_unlock(o.all[SHOAL_KIND_LOCK - 1]));
        ck_assert_ok(shoal_rlock_unlock(o.all[SHOAL_KIND_RLOCK - 1]));
        ck_assert_uint_eq(shoal_semaphore_value(o.all[SHOAL_KIND_SEMAPHORE - 1]), 3);
        ck_assert(shoal_event_is_set(o.all[SHOAL_KIND_EVENT - 1]));
        objects_release(&o);
    }
}
END_TEST

/* ---- random trees ---- */

static shoal_value *random_value(uint64_t *state, objects *o, int depth)
{
    char text[40];
    uint64_t r = sh_splitmix_next(state), members = sh_splitmix_below(state, 6);
    shoal_value *v;
    switch (r % (depth > 5 ? 7 : 10)) {
    case 0: return shoal_value_null();
    case 1: return shoal_value_bool((r >> 8) % 2 == 0);
    case 2: return shoal_value_int((int64_t)sh_splitmix_next(state) >> (r >> 8) % 64);
    case 3: return shoal_value_float((double)(int64_t)sh_splitmix_next(state) / 7);
    case 4: snprintf(text, sizeof text, "%llx ü", (unsigned long long)r); return shoal_value_string(text);
    case 5: return shoal_value_bytes(&r, r >> 8 & 7);
    case 6: return sh_value_object(o->all[(r >> 8) % KINDS]);
    case 7:
    case 8:
        v = shoal_value_list();
        for (uint64_t i = 0; i < members; i++) {
            v = shoal_list_add(v, random_value(state, o, depth + 1));
        }
        return v;
    default:
        v = shoal_value_map();
        for (uint64_t i = 0; i < members; i++) {
            snprintf(text, sizeof text, "%llu",
                     (unsigned long long)sh_splitmix_below(state, 8)); /* some are duplicates */
            v = shoal_map_set(v, text, random_value(state, o, depth + 1));
        }
        return v;
    }
}

START_TEST(random_trees_with_objects_come_back_equal)
{
    talk t;
    objects o;
    uint64_t state = SEED + (uint64_t)_i;
    talk_begin(&t, _i, echo);
    objects_make(&o);
    for (int i = 0; i < SH_REPEAT(3000); i++) {
        there_and_back(&t, random_value(&state, &o, 0));
    }
    objects_release(&o);
    talk_end(&t);
}
END_TEST

/* ---- references ---- */

START_TEST(an_object_often_in_one_message_is_one_handle_and_lives_in_it)
{
    talk t;
    talk_begin(&t, _i, echo);
    for (int round = 0; round < 30; round++) {
        shoal_block *b;
        shoal_value *list = shoal_value_list(), *back = NULL;
        ck_assert_ok(shoal_block_create(10, &b));
        memcpy(shoal_block_data(b), "only here", 10);
        uint64_t id = shoal_block_id(b);
        for (int i = 0; i < 200; i++) {
            list = shoal_list_add(list, shoal_value_of(b));
        }
        shoal_release(b); /* the value holds it, then the messages, then the value that comes back */
        hot_ok(shoal_queue_put(t.in, list, LIMIT));
        until_told(t.out);
        hot_ok(shoal_queue_get(t.out, LIMIT, &back));
        b = shoal_value_as_block(shoal_value_at(back, 0));
        hot(shoal_block_id(b) == id && strcmp(shoal_block_data(b), "only here") == 0);
        for (size_t i = 0; i < 200; i++) {
            hot(shoal_value_as_block(shoal_value_at(back, i)) == b);
        }
        shoal_value_destroy(back);
    }
    talk_end(&t);
}
END_TEST

START_TEST(b22_what_is_no_value_is_refused)
{
    shoal_value *v = shoal_value_int(1);
    void *unused = NULL;
    ck_assert_ptr_null(shoal_value_block(NULL));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_value_string(NULL));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_value_string("\xc3(")); /* not UTF-8 */
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_map("a", 1, "b", shoal_value_block(NULL), "c", 2));
    ck_assert_int_eq(shoal_value_object_kind(v), SHOAL_KIND_NONE);
    ck_assert_uint_eq(kinds_read(v, &unused), 0);
    ck_assert_int_eq(shoal_last_error(), SHOAL_ETYPE);
    shoal_value_destroy(v);
}
END_TEST

/* ---- members stay in their containers ---- */

static shoal_err return_member(int rank, const shoal_value *args)
{
    shoal_value *list = shoal_value_copy(args), *member = (shoal_value *)(uintptr_t)shoal_value_at(list, 0);
    (void)rank;
    must_err(shoal_return(member), SHOAL_EINVAL);
    must(sh_int_of(shoal_value_at(list, 0)) == 7);
    shoal_value_destroy(list);
    return SHOAL_OK;
}

static shoal_err give_member(const shoal_value *arg, shoal_value **out_result)
{
    *out_result = (shoal_value *)(uintptr_t)(shoal_value_type(arg) == SHOAL_TYPE_LIST ? shoal_value_at(arg, 0) : arg);
    return SHOAL_OK;
}

/* Every call that consumes a value rejects one that a container owns, and leaves it there; so does destroy. */
START_TEST(a_member_is_not_consumed)
{
    shoal_value *seven = shoal_value_int(7), *text = shoal_value_string("a text"), *inner = shoal_list(1, 2), *got;
    shoal_value *list = shoal_list(seven, text, inner), *all[] = {seven, text, inner};
    shoal_queue *q;
    shoal_pipe *a, *b;
    shoal_process *p;
    shoal_pool *pool;
    ck_assert_ok(shoal_queue_create(0, &q));
    ck_assert_ok(shoal_pipe_create(true, &a, &b));
    ck_assert_ok(shoal_pool_create(&(shoal_pool_options){.workers = 1}, &pool));
    for (int i = 0; i < 3; i++) {
        ck_assert_err(shoal_queue_put(q, all[i], SHOAL_NOW), SHOAL_EINVAL);
        ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "member"));
        ck_assert_err(shoal_pipe_send(a, all[i], SHOAL_NOW), SHOAL_EINVAL);
        ck_assert_err(shoal_process_start(return_member, all[i], NULL, &p), SHOAL_EINVAL);
        ck_assert_err(shoal_spawn(return_member, 1, all[i]), SHOAL_EINVAL);
        ck_assert_err(shoal_pool_apply(pool, give_member, all[i], &got), SHOAL_EINVAL);
        shoal_value_destroy(all[i]);
    }
    ck_assert_err(shoal_pool_map(pool, give_member, inner, 0, &got), SHOAL_EINVAL);
    shoal_pool *none;
    ck_assert_err(shoal_pool_create(&(shoal_pool_options){.workers = 1, .init_args = text}, &none), SHOAL_EINVAL);
    ck_assert_uint_eq(shoal_queue_size(q), 0);
    ck_assert_ok(shoal_spawn(return_member, 1, shoal_list(7)));
    ck_assert_err(shoal_pool_apply(pool, give_member, shoal_value_int(1), &got), SHOAL_EINVAL); /* in the worker */
    ck_assert_err(shoal_pool_apply(pool, give_member, shoal_list(1), &got), SHOAL_EINVAL);
    shoal_value *same = shoal_list(7, "a text", shoal_list(1, 2));
    ck_assert(shoal_value_equal(list, same));
    shoal_pool_destroy(pool);
    shoal_value_destroy(same);
    shoal_value_destroy(list);
    shoal_release(q);
    shoal_release(a);
    shoal_release(b);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("values");
    TCase *tc = children_case("values");
    add_for_methods(tc, numbers_arrive_bit_for_bit);
    add_for_methods(tc, texts_and_bytes_arrive_whole);
    add_for_methods(tc, containers_arrive_in_order);
    add_for_methods(tc, every_kind_of_object_comes_back_as_the_same_handle);
    add_for_methods(tc, objects_in_nested_maps_are_the_same_objects_there);
    add_for_methods(tc, random_trees_with_objects_come_back_equal);
    add_for_methods(tc, an_object_often_in_one_message_is_one_handle_and_lives_in_it);
    tcase_add_test(tc, b22_what_is_no_value_is_refused);
    tcase_add_test(tc, a_member_is_not_consumed);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
