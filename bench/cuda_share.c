/* Card tensors between processes: one back and forth, with and without work between; many small ones through three
 * processes; a late process that opens a world with 1 GiB of them. Checks every answer, then prints one JSON line for each
 * measurement. `deaths` kills the makers of that many tensors instead, and starts their receivers later. Needs a card.
 *
 *     build/bench/cuda_share [trips]
 *     build/bench/cuda_share deaths [count]
 */
#include <shoal/shoal.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PATIENCE SHOAL_SECONDS(30)
#define ROUNDS 5
#define SMALL 100000
#define AHEAD 1024
#define LATE_TENSORS 64
#define LATE_FLOATS (INT64_C(4) << 20) /* 16 MiB */

#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        shoal_err err_ = (expression);                                                                                 \
        if (err_ != SHOAL_OK) {                                                                                        \
            return err_;                                                                                               \
        }                                                                                                              \
    } while (0)

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static shoal_err wrong(const char *what)
{
    return shoal_fail(SHOAL_ECORRUPT, "cuda_share: %s", what);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int count)
{
    qsort(x, (size_t)count, sizeof *x, by_size);
    return x[count / 2];
}

static shoal_err start(shoal_target target, int rank, shoal_value *args, shoal_process **out)
{
    return shoal_process_start(target, args, &(shoal_process_options){.start = SHOAL_START_SPAWN, .rank = rank}, out);
}

static shoal_err finish(shoal_process *p)
{
    shoal_status status;
    shoal_err err = shoal_process_join(p, PATIENCE, &status);
    if (err == SHOAL_OK && status.end != SHOAL_RETURNED) {
        err = shoal_fail(SHOAL_ESTATE, "%s", status.text);
    }
    shoal_process_destroy(p);
    return err;
}

/* ---- one tensor, back and forth ---- */

/* Sends back what it gets; with work, adds 1 to it before. */
static shoal_err answer(int rank, const shoal_value *args)
{
    bool work = rank == 1;
    shoal_queue *there = shoal_arg_queue(args, "there"), *back = shoal_arg_queue(args, "back");
    shoal_tensor *t;
    shoal_err err;
    while ((err = shoal_queue_get_tensor(there, PATIENCE, &t)) == SHOAL_OK) {
        if (work && !shoal_add_scalar_(t, 1)) {
            return shoal_last_error();
        }
        TRY(shoal_queue_give_tensor(back, t, PATIENCE));
        shoal_scope_release(0);
    }
    return err == SHOAL_ECLOSED ? SHOAL_OK : err;
}

static shoal_err trips(shoal_queue *there, shoal_queue *back, shoal_tensor *t, bool work, int count)
{
    for (int i = 0; i < count; i++) {
        shoal_tensor *same = NULL;
        if (work && !shoal_add_scalar_(t, 1)) {
            return shoal_last_error();
        }
        TRY(shoal_queue_put_tensor(there, t, PATIENCE));
        TRY(shoal_queue_get_tensor(back, PATIENCE, &same));
        if (shoal_tensor_storage_id(same) != shoal_tensor_storage_id(t)) {
            return wrong("another tensor came back");
        }
        shoal_tensor_release(same);
        shoal_scope_release(0);
    }
    return SHOAL_OK;
}

static shoal_err measure_trips(bool work, int count)
{
    shoal_queue *there, *back;
    shoal_process *p;
    TRY(shoal_queue_create(0, &there));
    TRY(shoal_queue_create(0, &back));
    shoal_tensor *t = shoal_full_on(SHOAL_CUDA, SHOAL_F32, 0, SHOAL_SHAPE(1 << 18));
    if (!t) {
        return shoal_last_error();
    }
    TRY(start(answer, work, shoal_map("there", there, "back", back), &p));
    TRY(trips(there, back, t, work, 200));
    double us[ROUNDS], last;
    for (int r = 0; r < ROUNDS; r++) {
        TRY(shoal_card_wait());
        double begin = now();
        TRY(trips(there, back, t, work, count));
        TRY(shoal_card_wait());
        us[r] = (now() - begin) / count * 1e6;
    }
    TRY(shoal_tensor_at(t, 1, (int64_t[]){(1 << 18) - 1}, &last));
    if (last != (work ? 2.0 * (200 + ROUNDS * count) : 0)) {
        return wrong("a step of the work was lost");
    }
    printf("{\"name\": \"cuda_share_%s\", \"unit\": \"us\", \"value\": %.2f, \"trips\": %d, \"MiB\": 1}\n",
           work ? "trip_work" : "trip_idle", median(us, ROUNDS), count);
    (void)fflush(stdout);
    shoal_queue_close(there);
    TRY(finish(p));
    shoal_tensor_release(t);
    shoal_release(there);
    shoal_release(back);
    return SHOAL_OK;
}

/* ---- many small ones through three processes ---- */

#define SMALL_FLOATS 16
#define SLOTS 4096 /* pinned places that copies use in turn */

/* Returns a view of one pinned place; the scope owns it. */
static shoal_tensor *slot(shoal_tensor *pinned, int i)
{
    return shoal_select(pinned, 0, i % SLOTS);
}

/* Makes tensor i on the card, all elements i. */
static shoal_err make_one(shoal_tensor *pinned, int i, shoal_tensor **out)
{
    double *place = (double *)shoal_tensor_data(pinned) + (size_t)(i % SLOTS) * SMALL_FLOATS;
    if (i % SLOTS == 0) {
        TRY(shoal_card_wait()); /* the places are free again */
    }
    for (int k = 0; k < SMALL_FLOATS; k++) {
        place[k] = i;
    }
    *out = shoal_empty_on(SHOAL_CUDA, SHOAL_F64, SHOAL_SHAPE(SMALL_FLOATS));
    return *out ? shoal_copy_later_(*out, slot(pinned, i)) : shoal_last_error();
}

/* A copy to the card and one back cost 2 us each; a launch costs 4. */
static shoal_err make_small(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_queue *first = shoal_arg_queue(args, "first"), *done = shoal_arg_queue(args, "done");
    shoal_tensor *pinned = shoal_empty_pinned(SHOAL_F64, SHOAL_SHAPE(SLOTS, SMALL_FLOATS));
    if (!pinned) {
        return shoal_last_error();
    }
    for (int i = 0; i < AHEAD + SMALL; i++) { /* the first ones are for warming up */
        shoal_tensor *t;
        TRY(make_one(pinned, i, &t));
        TRY(shoal_queue_put_tensor(first, t, PATIENCE));
        shoal_tensor_release(t);
        shoal_scope_release(0);
    }
    shoal_value *v = NULL; /* what is lent stays here until it is back */
    TRY(shoal_queue_get(done, PATIENCE, &v));
    shoal_value_destroy(v);
    shoal_tensor_release(pinned);
    return SHOAL_OK;
}

static shoal_err pass_small(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *t;
    for (int i = 0; i < AHEAD + SMALL; i++) {
        TRY(shoal_queue_get_tensor(shoal_arg_queue(args, "first"), PATIENCE, &t));
        TRY(shoal_queue_give_tensor(shoal_arg_queue(args, "second"), t, PATIENCE));
    }
    return SHOAL_OK;
}

/* Adds up the last elements of count tensors. */
static shoal_err take_small(shoal_queue *second, shoal_tensor *pinned, int count, double *sum)
{
    const double *places = shoal_tensor_data(pinned);
    for (int i = 0; i < count; i++) {
        shoal_tensor *t;
        TRY(shoal_queue_get_tensor(second, PATIENCE, &t));
        TRY(shoal_copy_later_(slot(pinned, i), t));
        shoal_tensor_release(t);
        shoal_scope_release(0);
        if ((i + 1) % SLOTS == 0 || i + 1 == count) {
            TRY(shoal_card_wait());
            for (int k = i / SLOTS * SLOTS; k <= i; k++) {
                *sum += places[(size_t)(k % SLOTS) * SMALL_FLOATS + SMALL_FLOATS - 1];
            }
        }
    }
    return SHOAL_OK;
}

static shoal_err measure_small(void)
{
    shoal_queue *first, *second, *done;
    shoal_process *maker, *messenger;
    TRY(shoal_queue_create(AHEAD, &first));
    TRY(shoal_queue_create(AHEAD, &second));
    TRY(shoal_queue_create(0, &done));
    shoal_value *args = shoal_value_keep(shoal_map("first", first, "second", second, "done", done));
    TRY(start(make_small, 0, args, &maker));
    TRY(start(pass_small, 1, args, &messenger));
    shoal_value_destroy(args);
    shoal_tensor *pinned = shoal_empty_pinned(SHOAL_F64, SHOAL_SHAPE(SLOTS, SMALL_FLOATS));
    if (!pinned) {
        return shoal_last_error();
    }
    double sum = 0;
    TRY(take_small(second, pinned, AHEAD, &sum));
    double begin = now();
    TRY(take_small(second, pinned, SMALL, &sum));
    double seconds = now() - begin;
    if (sum != (double)(AHEAD + SMALL) * (AHEAD + SMALL - 1) / 2) {
        return wrong("the sum of the small tensors is wrong");
    }
    printf("{\"name\": \"cuda_share_small\", \"unit\": \"1/s\", \"value\": %.0f, \"tensors\": %d, \"processes\": 3}\n",
           SMALL / seconds, SMALL);
    (void)fflush(stdout);
    TRY(shoal_queue_put(done, shoal_value_int(1), PATIENCE));
    TRY(finish(messenger));
    TRY(finish(maker));
    shoal_tensor_release(pinned);
    shoal_release(first);
    shoal_release(second);
    shoal_release(done);
    return SHOAL_OK;
}

/* ---- a late process ---- */

/* Opens the card first: a context takes a quarter of a second, whoever makes it. */
static shoal_err come_late(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *warm = shoal_full_on(SHOAL_CUDA, SHOAL_F32, 1, SHOAL_SHAPE(4));
    double x, sum = 0;
    TRY(shoal_item(warm ? shoal_sum(warm, SHOAL_ALL, false) : NULL, &x));
    shoal_value *all = NULL;
    TRY(shoal_queue_put(shoal_arg_queue(args, "ready"), shoal_value_int(1), PATIENCE));
    TRY(shoal_queue_get(shoal_arg_queue(args, "all"), PATIENCE, &all));
    double begin = now();
    for (size_t i = 0; i < LATE_TENSORS; i++) {
        shoal_tensor *t = shoal_value_as_tensor(shoal_value_at(all, i));
        if (!t) {
            return shoal_last_error();
        }
    }
    double ms = (now() - begin) * 1e3;
    for (size_t i = 0; i < LATE_TENSORS; i++) {
        TRY(shoal_tensor_at(shoal_value_as_tensor(shoal_value_at(all, i)), 1, (int64_t[]){LATE_FLOATS - 1}, &x));
        sum += x;
    }
    if (sum != LATE_TENSORS * (LATE_TENSORS - 1) / 2.0) {
        return wrong("a tensor of the world is wrong");
    }
    printf("{\"name\": \"cuda_share_late\", \"unit\": \"ms\", \"value\": %.3f, \"GiB\": 1, \"tensors\": %d}\n", ms,
           LATE_TENSORS);
    (void)fflush(stdout);
    shoal_value_destroy(all);
    shoal_tensor_release(warm);
    shoal_scope_release(0);
    return SHOAL_OK;
}

static shoal_err measure_late(void)
{
    shoal_queue *ready, *queue;
    shoal_process *p;
    shoal_tensor *made[LATE_TENSORS];
    TRY(shoal_queue_create(0, &ready));
    TRY(shoal_queue_create(0, &queue));
    shoal_value *all = shoal_value_list();
    for (int i = 0; i < LATE_TENSORS; i++) {
        made[i] = shoal_full_on(SHOAL_CUDA, SHOAL_F32, i, SHOAL_SHAPE(LATE_FLOATS));
        all = shoal_list_add(all, shoal_value_tensor(made[i]));
    }
    TRY(start(come_late, 0, shoal_map("ready", ready, "all", queue), &p));
    TRY(shoal_card_wait());
    shoal_value *v = NULL;
    TRY(shoal_queue_get(ready, PATIENCE, &v));
    shoal_value_destroy(v);
    TRY(shoal_queue_put(queue, all, PATIENCE));
    TRY(finish(p));
    for (int i = 0; i < LATE_TENSORS; i++) {
        shoal_tensor_release(made[i]);
    }
    shoal_release(ready);
    shoal_release(queue);
    return SHOAL_OK;
}

/* ---- makers that are killed ---- */

#define BATCH 25 /* processes at a time */
#define DEATH_FLOATS (INT64_C(1) << 18)
#define DEATH_WORK 3000 /* launches, some milliseconds */

/* Makes a tensor whose elements all have its rank, puts it, and is killed: with the work done, or with most of it
 * outstanding. */
static shoal_err make_and_die(int rank, const shoal_value *args)
{
    int64_t unfinished = 0;
    TRY(shoal_arg_int(args, "unfinished", &unfinished));
    shoal_tensor *t = shoal_full_on(SHOAL_CUDA, SHOAL_F32, unfinished ? 0 : rank, SHOAL_SHAPE(DEATH_FLOATS));
    if (!t) {
        return shoal_last_error();
    }
    TRY(shoal_card_wait());
    for (int i = 0; unfinished && i < DEATH_WORK; i++) {
        if (!shoal_add_scalar_(t, 1)) {
            return shoal_last_error();
        }
    }
    TRY(shoal_queue_put_tensor(shoal_arg_queue(args, "queue"), t, PATIENCE));
    (void)raise(SIGKILL);
    return SHOAL_OK;
}

/* Returns SHOAL_OK if a tensor came whole, or SHOAL_EOWNERDEAD if its work was lost. */
static shoal_err check_one(shoal_queue *queue, bool unfinished)
{
    shoal_tensor *t = NULL;
    double low = -1, high = -2;
    TRY(shoal_queue_get_tensor(queue, PATIENCE, &t));
    shoal_tensor *least = shoal_min(t, SHOAL_ALL, false), *most = shoal_max(t, SHOAL_ALL, false);
    shoal_err err = least && most ? shoal_card_wait() : shoal_last_error();
    if (err == SHOAL_OK) {
        err = shoal_item(least, &low);
    }
    if (err == SHOAL_OK) {
        err = shoal_item(most, &high);
    }
    if (err == SHOAL_OK && (low != high || (unfinished && low != DEATH_WORK))) {
        err = wrong("a tensor of a dead process came, and not whole");
    }
    shoal_tensor_release(t);
    shoal_scope_release(0);
    return err;
}

static shoal_err receive_late(int rank, const shoal_value *args)
{
    (void)rank;
    int64_t unfinished = 0;
    TRY(shoal_arg_int(args, "unfinished", &unfinished));
    shoal_err err = check_one(shoal_arg_queue(args, "queue"), unfinished != 0);
    bool lost = err == SHOAL_EOWNERDEAD && unfinished;
    TRY(lost ? SHOAL_OK : err);
    return shoal_queue_put(shoal_arg_queue(args, "told"), shoal_value_int(lost), PATIENCE);
}

/* Starts BATCH processes and waits for their end. */
static shoal_err run_batch(shoal_target target, const shoal_value *args, bool killed)
{
    shoal_process *all[BATCH];
    for (int i = 0; i < BATCH; i++) {
        TRY(start(target, i, shoal_value_copy(args), &all[i]));
    }
    for (int i = 0; i < BATCH; i++) {
        shoal_status status;
        TRY(shoal_process_join(all[i], PATIENCE, &status));
        if (status.end != (killed ? SHOAL_KILLED : SHOAL_RETURNED)) {
            return shoal_fail(SHOAL_ESTATE, "%s", status.text);
        }
        shoal_process_destroy(all[i]);
    }
    return SHOAL_OK;
}

static shoal_err measure_deaths(bool unfinished, int count, double pause)
{
    shoal_queue *queue, *told;
    int whole = 0, lost = 0;
    TRY(shoal_queue_create(0, &queue));
    TRY(shoal_queue_create(0, &told));
    shoal_value *args = shoal_value_keep(shoal_map("queue", queue, "told", told, "unfinished", (int64_t)unfinished));
    double begin = now();
    for (int n = 0; n < count; n += BATCH) {
        TRY(run_batch(make_and_die, args, true));
        struct timespec wait = {.tv_sec = (time_t)pause};
        (void)nanosleep(&wait, NULL);
        TRY(run_batch(receive_late, args, false));
        for (int i = 0; i < BATCH; i++) {
            shoal_value *v = NULL;
            int64_t was_lost = 0;
            TRY(shoal_queue_get(told, PATIENCE, &v));
            TRY(shoal_value_as_int(v, &was_lost));
            shoal_value_destroy(v);
            lost += was_lost != 0;
            whole += was_lost == 0;
        }
    }
    printf("{\"name\": \"cuda_share_%s\", \"whole\": %d, \"lost\": %d, \"seconds\": %.1f}\n",
           unfinished ? "killed_unfinished" : "killed_finished", whole, lost, now() - begin);
    (void)fflush(stdout);
    shoal_value_destroy(args);
    shoal_release(queue);
    shoal_release(told);
    return SHOAL_OK;
}

/* This process does not open the card before: its children find the memory in the world alone. */
static shoal_err deaths(int count)
{
    shoal_card_memory memory;
    TRY(measure_deaths(false, count, 2));
    TRY(measure_deaths(true, count < 2 * BATCH ? count : 2 * BATCH, 0));
    TRY(shoal_world_sweep(NULL));
    TRY(shoal_card_memory_get(&memory));
    printf("{\"name\": \"cuda_share_after_deaths\", \"unit\": \"MiB\", \"in_use\": %zu, \"held\": %zu}\n",
           (memory.total - memory.free) >> 20, memory.held >> 20);
    return SHOAL_OK;
}

static shoal_err measure(int count)
{
    TRY(measure_trips(false, count));
    TRY(measure_trips(true, count > 10 ? count / 10 : count));
    TRY(measure_small());
    return measure_late();
}

int main(int argc, char **argv)
{
    shoal_err err = shoal_init(&argc, &argv);
    bool kill = argc > 1 && strcmp(argv[1], "deaths") == 0;
    int given = argc > 1 + kill ? atoi(argv[1 + kill]) : 0;
    if (err == SHOAL_OK) {
        err = kill ? deaths(given > 0 ? given : 200) : measure(given > 0 ? given : 20000);
    }
    if (err != SHOAL_OK) {
        (void)fprintf(stderr, "cuda_share: %s\n", shoal_last_error_text());
    }
    return err == SHOAL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
