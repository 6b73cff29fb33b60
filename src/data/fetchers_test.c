/* Tests loaders with worker processes, with the three start methods. */
#include "data/loader_test.h"
#include "sync/atomic.h"

#include <stdio.h>
#include <unistd.h>

#define N 103

static shoal_loader_options with(int method, int workers)
{
    return (shoal_loader_options){
        .batch = 10, .shuffle = true, .seed = 9, .workers = workers, .start = (shoal_start)method};
}

START_TEST(same_order)
{
    int64_t wanted[3 * N], got[3 * N];
    shoal_dataset *set = counting(N);
    for (int workers = 0; workers <= 3; workers++) {
        shoal_loader *loader = must_load(set, with(_i, workers));
        int64_t n = 0;
        for (int epoch = 0; epoch < 3; epoch++) {
            int64_t some = one_epoch(loader, got + n);
            ck_assert_int_eq(some, N);
            assert_each_once(got + n, N);
            n += some;
        }
        if (workers == 0) {
            memcpy(wanted, got, sizeof got);
        }
        ck_assert_mem_eq(wanted, got, sizeof got);
        shoal_loader_destroy(loader);
    }
    ck_assert_mem_ne(wanted, wanted + N, N * sizeof *wanted);
    shoal_dataset_release(set);
}
END_TEST

/* B11: after the first epoch no block is allocated, however many batches follow. */
START_TEST(blocks_come_back)
{
    int64_t numbers[N];
    shoal_dataset *set = counting(N);
    shoal_loader *loader = must_load(set, with(_i, 2));
    (void)!one_epoch(loader, numbers);
    (void)!one_epoch(loader, numbers);
    uint64_t before = sh_test_world().blocks_live;
    for (int epoch = 0; epoch < SH_REPEAT(200); epoch++) {
        (void)!one_epoch(loader, numbers);
    }
    ck_assert_uint_eq(sh_test_world().blocks_live, before);
    shoal_loader_destroy(loader);
    shoal_dataset_release(set);
}
END_TEST

START_TEST(seek_with_workers)
{
    int64_t numbers[N];
    shoal_batch b;
    shoal_dataset *set = counting(N);
    shoal_loader_options o = with(_i, 3);
    o.shuffle = false;
    shoal_loader *loader = must_load(set, o);
    static const int places[] = {0, 5, 4, 10, 0, 9};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        ck_assert_ok(shoal_loader_seek(loader, (int64_t)i, places[i]));
        for (int step = 0; step < 2 && places[i] + step < 11; step++) {
            ck_assert(shoal_loader_next(loader, &b) == SHOAL_OK);
            (void)!numbers_of(&b, numbers);
            ck_assert_int_eq(numbers[0], 10 * (places[i] + step));
        }
    }
    shoal_loader_destroy(loader);
    shoal_dataset_release(set);
}
END_TEST

/* What the caller retains stays unchanged while the workers continue. */
START_TEST(retained)
{
    enum { KEPT = 22 };
    shoal_tensor *x[KEPT], *y[KEPT];
    int64_t numbers[N];
    shoal_dataset *set = counting(N);
    shoal_loader_options o = with(_i, 2);
    o.shuffle = false;
    shoal_loader *loader = must_load(set, o);
    int n = 0;
    for (int epoch = 0; epoch < 2; epoch++) {
        for (shoal_batch b; shoal_loader_next(loader, &b) == SHOAL_OK;) {
            x[n] = shoal_tensor_retain(b.x);
            y[n++] = shoal_tensor_retain(b.y);
        }
    }
    ck_assert_int_eq(n, KEPT);
    (void)!one_epoch(loader, numbers);
    shoal_loader_destroy(loader);
    for (int i = 0; i < KEPT; i++) {
        shoal_batch b = {.x = x[i], .y = y[i], .count = i % 11 < 10 ? 10 : 3};
        (void)!numbers_of(&b, numbers);
        ck_assert_int_eq(numbers[0], i % 11 * 10);
        shoal_tensor_release(x[i]);
        shoal_tensor_release(y[i]);
    }
    shoal_dataset_release(set);
}
END_TEST

START_TEST(left_early)
{
    shoal_batch b;
    shoal_dataset *set = counting(N);
    for (int steps = 0; steps < 4; steps++) {
        shoal_loader *loader = must_load(set, with(_i, 2));
        for (int i = 0; i < steps; i++) {
            ck_assert(shoal_loader_next(loader, &b) == SHOAL_OK);
        }
        shoal_loader_destroy(loader);
        ck_assert_int_eq(sh_count_children(), _i == SHOAL_START_FORKSERVER ? 1 : 0); /* the server itself */
    }
    shoal_dataset_release(set);
}
END_TEST

/* ---- a set that the program defines, which can fail and kill ---- */

enum { FINE, FAILS, DIES_ONCE, DIES, EXITS, OPENS_NOT };

typedef struct faulty {
    int fault;
    shoal_block *deaths; /* one word: how often it died */
} faulty;

/* The batch before the fatal one comes late, from the other worker: by then the loader has seen the deaths. A sleep
 * that is too short for that would test less, but not fail. */
static void come_late(const faulty *m, const sh_a32 *deaths)
{
    uint32_t before = m->fault == EXITS ? 1 : m->fault == DIES ? 3 : 0;
    for (int i = 0; i < 2000 && sh_load_relaxed(deaths) < before; i++) {
        usleep(5000);
    }
    usleep(before > 0 ? 100000 : 0);
}

static shoal_err faulty_fetch(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y)
{
    const faulty *m = state;
    sh_a32 *deaths = shoal_block_data(m->deaths);
    for (int64_t i = 0; i < count; i++) {
        if (numbers[i] == 42 && m->fault == FAILS) {
            return shoal_fail(SHOAL_ESTATE, "sample 42 is gone");
        }
        if (numbers[i] == 42 && (m->fault == DIES || (m->fault == DIES_ONCE && sh_load_relaxed(deaths) == 0))) {
            sh_add_relaxed(deaths, 1);
            kill(getpid(), SIGKILL);
        }
        if (numbers[i] == 30) {
            come_late(m, deaths);
        }
        if (numbers[i] == 42 && m->fault == EXITS) {
            sh_add_relaxed(deaths, 1);
            _exit(7);
        }
        ((float *)shoal_tensor_data(x))[2 * i] = (float)numbers[i];
        ((float *)shoal_tensor_data(x))[2 * i + 1] = -(float)numbers[i];
        ((int64_t *)shoal_tensor_data(y))[i] = numbers[i];
    }
    return SHOAL_OK;
}

static void faulty_destroy(void *state)
{
    faulty *m = state;
    shoal_release(m->deaths);
    free(m);
}

static shoal_value *faulty_pack(void *state)
{
    const faulty *m = state;
    return shoal_map("fault", m->fault, "deaths", m->deaths);
}

static shoal_err faulty_open(const shoal_value *packed, void **out_state)
{
    if (sh_int_of(shoal_value_find(packed, "fault")) == OPENS_NOT) {
        return SHOAL_EPERM;
    }
    faulty *m = calloc(1, sizeof *m);
    m->fault = (int)sh_int_of(shoal_value_find(packed, "fault"));
    m->deaths = shoal_retain(shoal_arg_block(packed, "deaths"));
    *out_state = m;
    return SHOAL_OK;
}

static shoal_dataset *faulty_set(int fault)
{
    faulty *m = calloc(1, sizeof *m);
    m->fault = fault;
    ck_assert_ok(shoal_block_create_zeroed(sizeof(sh_a32), &m->deaths));
    return shoal_dataset_create(&(shoal_dataset_type){.name = "faulty",
                                                      .length = N,
                                                      .x_ndim = 1,
                                                      .x_shape = {2},
                                                      .y_dtype = SHOAL_I64,
                                                      .fetch = faulty_fetch,
                                                      .destroy = faulty_destroy,
                                                      .pack = faulty_pack,
                                                      .open = faulty_open},
                                m);
}

static void no_log(const char *line, void *context)
{
    (void)line;
    ++*(int *)context;
}

START_TEST(dies_once)
{
    int64_t numbers[N];
    int lines = 0;
    shoal_set_log(no_log, &lines);
    shoal_dataset *set = faulty_set(DIES_ONCE);
    shoal_loader_options o = with(_i, 2);
    o.shuffle = false;
    shoal_loader *loader = must_load(set, o);
    for (int epoch = 0; epoch < 2; epoch++) {
        ck_assert_int_eq(one_epoch(loader, numbers), N);
        for (int i = 0; i < N; i++) {
            ck_assert_int_eq(numbers[i], i);
        }
    }
    ck_assert_int_eq(lines, 1);
    shoal_loader_destroy(loader);
    shoal_dataset_release(set);
    shoal_set_log(NULL, NULL);
}
END_TEST

/* The caller gets fetch's error, or how a worker ended, after the batches before it. */
static void ends_with(int method, int fault, shoal_err err, const char *words)
{
    int64_t numbers[N];
    int lines = 0;
    shoal_batch b;
    shoal_set_log(no_log, &lines);
    shoal_dataset *set = faulty_set(fault);
    shoal_loader_options o = with(method, 2);
    o.shuffle = false;
    shoal_loader *loader = must_load(set, o);
    for (int i = 0; i < 4; i++) {
        ck_assert_msg(shoal_loader_next(loader, &b) == SHOAL_OK, "%s", shoal_last_error_text());
        (void)!numbers_of(&b, numbers);
        ck_assert_int_eq(numbers[0], 10 * i);
    }
    ck_assert_err(shoal_loader_next(loader, &b), err);
    ck_assert_msg(strstr(shoal_last_error_text(), words) != NULL, "%s", shoal_last_error_text());
    ck_assert_err(shoal_loader_next(loader, &b), SHOAL_ESTATE);
    if (fault != EXITS) { /* the batches after it are available */
        ck_assert_ok(shoal_loader_seek(loader, 0, 5));
        ck_assert_msg(shoal_loader_next(loader, &b) == SHOAL_OK, "%s", shoal_last_error_text());
        (void)!numbers_of(&b, numbers);
        ck_assert_int_eq(numbers[0], 50);
    }
    shoal_loader_destroy(loader);
    shoal_dataset_release(set);
    shoal_set_log(NULL, NULL);
}

START_TEST(fetch_fails)
{
    ends_with(_i, FAILS, SHOAL_ESTATE, "sample 42 is gone");
}
END_TEST

START_TEST(dies_always)
{
    ends_with(_i, DIES, SHOAL_ECHILD, "died while fetching one batch");
}
END_TEST

START_TEST(exits)
{
    ends_with(_i, EXITS, SHOAL_ECHILD, "7");
}
END_TEST

/* If a set does not open in the workers and sets no error text, the caller gets its code, and no batch. */
START_TEST(open_fails)
{
    shoal_batch b;
    shoal_dataset *set = faulty_set(OPENS_NOT);
    shoal_loader *loader = must_load(set, with(_i, 2));
    ck_assert_err(shoal_loader_next(loader, &b), SHOAL_ECHILD);
    ck_assert_msg(strstr(shoal_last_error_text(), "faulty: open returned SHOAL_EPERM"), "%s", shoal_last_error_text());
    shoal_loader_destroy(loader);
    shoal_dataset_release(set);
}
END_TEST

/* A worker is killed at random moments, again and again: no batch is lost or comes twice, and nothing leaks. */
/* A stopped worker costs the loader's timeout, and no batch. */
START_TEST(a_timeout)
{
    int64_t numbers[N], n = 0;
    int late = 0, pid = 0;
    char path[64];
    shoal_batch b;
    shoal_err err;
    shoal_dataset *set = counting(N);
    shoal_loader_options o = with(SHOAL_START_FORK, 1);
    o.timeout = SHOAL_MS(200);
    shoal_loader *loader = must_load(set, o);
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "re");
    if (f != NULL && fscanf(f, "%d", &pid) == 1) {
        ck_assert_int_eq(kill(pid, SIGSTOP), 0);
        while ((err = shoal_loader_next(loader, &b)) != SHOAL_END) {
            ck_assert_msg(err == SHOAL_OK || err == SHOAL_ETIMEDOUT, "%s", shoal_last_error_text());
            n += err == SHOAL_OK ? numbers_of(&b, numbers + n) : 0;
            late += err == SHOAL_ETIMEDOUT;
            ck_assert_int_eq(late > 1 ? kill(pid, SIGCONT) : 0, 0);
        }
        ck_assert_int_eq(n, N);
        assert_each_once(numbers, N);
        ck_assert_int_ge(late, 2);
    }
    if (f != NULL) {
        fclose(f);
    }
    shoal_loader_destroy(loader);
    shoal_dataset_release(set);
}
END_TEST

START_TEST(killed_at_random)
{
    enum { MANY = 2000 };
    int64_t *numbers = calloc(MANY, sizeof *numbers), n;
    int lines = 0;
    shoal_batch b;
    shoal_set_log(no_log, &lines);
    shoal_dataset *set = counting(MANY);
    shoal_loader_options o = with(_i, 3);
    o.shuffle = false;
    shoal_loader *loader = must_load(set, o);
    srand(11);
    for (int epoch = 0; epoch < 5; epoch++) {
        shoal_err err;
        for (n = 0; (err = shoal_loader_next(loader, &b)) == SHOAL_OK; n += numbers_of(&b, numbers + n)) {
            if (b.index % 40 == 20) {
                shoal_world_info info;
                ck_assert_ok(shoal_world_info_get(&info)); /* takes a varying time */
                int pids[8], count = 0;
                char path[64];
                snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
                FILE *f = fopen(path, "re");
                while (f != NULL && count < 8 && fscanf(f, "%d", &pids[count]) == 1) {
                    count++;
                }
                if (f != NULL) {
                    fclose(f);
                }
                if (count > 0) {
                    kill(pids[rand() % count], SIGKILL);
                }
            }
        }
        ck_assert_msg(err == SHOAL_END, "%s", shoal_last_error_text());
        ck_assert_int_eq(n, MANY);
        for (int i = 0; i < MANY; i++) {
            ck_assert_int_eq(numbers[i], i);
        }
    }
    ck_assert_int_gt(lines, 10);
    shoal_loader_destroy(loader);
    shoal_dataset_release(set);
    shoal_set_log(NULL, NULL);
    free(numbers);
}
END_TEST

/* A loader can be destroyed after this process left its world, with everything that was got from it, and no world is
 * entered for it. */
START_TEST(destroyed_after_its_world)
{
    shoal_batch b;
    shoal_dataset *set = counting(N);
    shoal_loader *loader = must_load(set, with(_i, 2));
    ck_assert(shoal_loader_next(loader, &b) == SHOAL_OK);
    shoal_tensor *kept = shoal_tensor_retain(b.x);
    shoal_world_leave();
    shoal_loader_destroy(loader);
    ck_assert_ok(shoal_world_create(NULL));
    shoal_tensor_release(kept);
    shoal_dataset_release(set);
}
END_TEST

START_TEST(mnist_with_workers)
{
    shoal_batch a, b;
    shoal_dataset *set = shoal_mnist(SHOAL_PART_TEST), *parts[3];
    ck_assert_ok(shoal_split_iid(set, 3, 1, parts));
    shoal_loader_options o = with(_i, 2);
    o.batch = 64;
    shoal_loader *there = must_load(parts[1], o);
    o.workers = 0;
    shoal_loader *here = must_load(parts[1], o);
    int batches = 0;
    while (shoal_loader_next(here, &a) == SHOAL_OK) {
        ck_assert(shoal_loader_next(there, &b) == SHOAL_OK);
        ck_assert(shoal_tensor_equal(a.x, b.x) && shoal_tensor_equal(a.y, b.y));
        ck_assert(shoal_tensor_is_shared(b.x));
        batches++;
    }
    ck_assert_int_eq(shoal_loader_next(there, &b), SHOAL_END);
    ck_assert_int_eq(batches, (3333 + 63) / 64);
    shoal_loader_destroy(here);
    shoal_loader_destroy(there);
    for (int i = 0; i < 3; i++) {
        shoal_dataset_release(parts[i]);
    }
    shoal_dataset_release(set);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("fetchers");
    TCase *tc = methods_case("fetchers");
    add_for_methods(tc, same_order);
    add_for_methods(tc, blocks_come_back);
    add_for_methods(tc, seek_with_workers);
    add_for_methods(tc, retained);
    add_for_methods(tc, left_early);
    add_for_methods(tc, dies_once);
    add_for_methods(tc, fetch_fails);
    add_for_methods(tc, open_fails);
    add_for_methods(tc, dies_always);
    add_for_methods(tc, exits);
    add_for_methods(tc, destroyed_after_its_world);
    tcase_add_loop_test(tc, killed_at_random, SHOAL_START_SPAWN,
                        SHOAL_START_FORK + 1); /* the server's children are not children of this process */
    tcase_add_test(tc, a_timeout);
    add_for_methods(tc, mnist_with_workers);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
