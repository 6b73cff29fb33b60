/* Round trips through two queues: eight bytes, a number as a value, a block handle, and a fresh block each way. */
#include "bench/bench.h"

#include <string.h>

#define SPIN_COUNT 500
#define PARK_COUNT 20
#define FRESH_SIZE 64

typedef struct trip {
    shoal_block *page;
    shoal_queue *there, *back;
    shoal_block *block; /* of rank 0, for the handle */
    uint64_t made;      /* round trips that rank 0 has begun, of all kinds */
    bool checked;       /* the bytes behind the handle were checked */
} trip;

static shoal_err wrong(const char *what)
{
    return shoal_fail(SHOAL_ECORRUPT, "queue: a wrong answer came back: %s", what);
}

static uint64_t answer_to(uint64_t question)
{
    return question * 3 + 1;
}

static shoal_err cache_line(void *context, int rank, uint64_t count)
{
    return bench_limit_cache_line(shoal_block_data(((trip *)context)->page), rank, count);
}

static shoal_err futex(void *context, int rank, uint64_t count)
{
    return bench_limit_futex(shoal_block_data(((trip *)context)->page), rank, count);
}

/* ---- eight bytes ---- */

static shoal_err ask_bytes(trip *t)
{
    uint64_t question = t->made++, answer = 0;
    size_t size;
    shoal_err err = shoal_queue_put_bytes(t->there, &question, sizeof question, BENCH_PATIENCE);
    if (err == SHOAL_OK) {
        err = shoal_queue_get_bytes(t->back, &answer, sizeof answer, BENCH_PATIENCE, &size);
    }
    return err != SHOAL_OK ? err : answer == answer_to(question) ? SHOAL_OK : wrong("eight bytes");
}

static shoal_err answer_bytes(trip *t)
{
    uint64_t question;
    size_t size;
    shoal_err err = shoal_queue_get_bytes(t->there, &question, sizeof question, BENCH_PATIENCE, &size);
    if (err != SHOAL_OK) {
        return err;
    }
    uint64_t answer = answer_to(question);
    return shoal_queue_put_bytes(t->back, &answer, sizeof answer, BENCH_PATIENCE);
}

static shoal_err bytes_trip(void *context, int rank, uint64_t count)
{
    shoal_err err = SHOAL_OK;
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        err = rank == 0 ? ask_bytes(context) : answer_bytes(context);
    }
    return err;
}

/* ---- a number, as a value ---- */

static shoal_err put_number(shoal_queue *queue, uint64_t number)
{
    return shoal_queue_put(queue, shoal_value_int((int64_t)number), BENCH_PATIENCE);
}

static shoal_err get_number(shoal_queue *queue, uint64_t *out_number)
{
    shoal_value *value;
    shoal_err err = shoal_queue_get(queue, BENCH_PATIENCE, &value);
    if (err == SHOAL_OK) {
        err = shoal_value_as_uint(value, out_number);
        shoal_value_destroy(value);
    }
    return err;
}

static shoal_err number_trip(void *context, int rank, uint64_t count)
{
    trip *t = context;
    shoal_err err = SHOAL_OK;
    for (uint64_t i = 0, n = 0; i < count && err == SHOAL_OK; i++) {
        if (rank == 0) {
            uint64_t question = t->made++;
            err = put_number(t->there, question);
            err = err == SHOAL_OK ? get_number(t->back, &n) : err;
            err = err == SHOAL_OK && n != answer_to(question) ? wrong("a number") : err;
        } else {
            err = get_number(t->there, &n);
            err = err == SHOAL_OK ? put_number(t->back, answer_to(n)) : err;
        }
    }
    return err;
}

/* ---- a block handle, back and forth ---- */

/* Only the handle travels. Both sides write to the block while they check, but not while they are timed. */
static shoal_err ask_handle(trip *t)
{
    uint64_t *word = shoal_block_data(t->block), question = t->made++;
    shoal_block *same = NULL;
    if (!t->checked) {
        *word = question;
    }
    shoal_err err = shoal_queue_put_block(t->there, t->block, BENCH_PATIENCE);
    if (err == SHOAL_OK) {
        err = shoal_queue_get_block(t->back, BENCH_PATIENCE, &same);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    shoal_release(same);
    return same == t->block && (t->checked || *word == answer_to(question)) ? SHOAL_OK : wrong("a block");
}

static shoal_err answer_handle(trip *t)
{
    shoal_block *block;
    shoal_err err = shoal_queue_get_block(t->there, BENCH_PATIENCE, &block);
    if (err != SHOAL_OK) {
        return err;
    }
    if (!t->checked) {
        uint64_t *word = shoal_block_data(block);
        *word = answer_to(*word);
    }
    return shoal_queue_give_block(t->back, block, BENCH_PATIENCE);
}

static shoal_err handle_trip(void *context, int rank, uint64_t count)
{
    shoal_err err = SHOAL_OK;
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        err = rank == 0 ? ask_handle(context) : answer_handle(context);
    }
    ((trip *)context)->checked = true; /* the first call is not counted */
    return err;
}

/* ---- a fresh block of 64 bytes each way ---- */

static shoal_err put_fresh(shoal_queue *queue, uint64_t number)
{
    shoal_block *block;
    shoal_err err = shoal_block_create(FRESH_SIZE, &block);
    if (err != SHOAL_OK) {
        return err;
    }
    uint64_t *words = shoal_block_data(block);
    for (size_t i = 0; i < FRESH_SIZE / sizeof *words; i++) {
        words[i] = number + i;
    }
    err = shoal_queue_put_block(queue, block, BENCH_PATIENCE);
    shoal_release(block);
    return err;
}

static shoal_err get_fresh(shoal_queue *queue, uint64_t *out_number)
{
    shoal_block *block;
    shoal_err err = shoal_queue_get_block(queue, BENCH_PATIENCE, &block);
    if (err != SHOAL_OK) {
        return err;
    }
    const uint64_t *words = shoal_block_data(block);
    *out_number = words[0];
    for (size_t i = 0; i < FRESH_SIZE / sizeof *words; i++) {
        err = words[i] == words[0] + i ? err : wrong("the bytes of a fresh block");
    }
    shoal_release(block);
    return err;
}

static shoal_err fresh_trip(void *context, int rank, uint64_t count)
{
    trip *t = context;
    shoal_err err = SHOAL_OK;
    for (uint64_t i = 0, n = 0; i < count && err == SHOAL_OK; i++) {
        if (rank == 0) {
            uint64_t question = t->made++;
            err = put_fresh(t->there, question);
            err = err == SHOAL_OK ? get_fresh(t->back, &n) : err;
            err = err == SHOAL_OK && n != answer_to(question) ? wrong("a fresh block") : err;
        } else {
            err = get_fresh(t->there, &n);
            err = err == SHOAL_OK ? put_fresh(t->back, answer_to(n)) : err;
        }
    }
    return err;
}

/* ---- both sides and the report ---- */

static shoal_err enter(int rank, const shoal_value *args, trip *t)
{
    *t = (trip){.page = shoal_arg_block(args, "page"),
                .there = shoal_arg_queue(args, "there"),
                .back = shoal_arg_queue(args, "back")};
    if (t->page == NULL || t->there == NULL || t->back == NULL) {
        return shoal_last_error();
    }
    shoal_err err = rank == 0 ? shoal_block_create(FRESH_SIZE, &t->block) : SHOAL_OK;
    return err == SHOAL_OK ? bench_enter(rank, args) : err;
}

static shoal_err run_steps(int rank, const shoal_value *args, const bench_step *steps, size_t steps_count,
                           uint64_t count)
{
    trip t;
    shoal_err err = enter(rank, args, &t);
    if (err == SHOAL_OK) {
        err = bench_interleave_return(steps, steps_count, &t, rank, count);
    }
    shoal_release(t.block);
    return err;
}

static shoal_err spinning(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {cache_line, bytes_trip, handle_trip, fresh_trip};
    return run_steps(rank, args, steps, 4, SPIN_COUNT);
}

static shoal_err parked(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {futex, bytes_trip};
    return run_steps(rank, args, steps, 2, PARK_COUNT);
}

static shoal_err as_shipped(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {number_trip, handle_trip, fresh_trip};
    return run_steps(rank, args, steps, 3, SPIN_COUNT);
}

/* Starts the pair with two fresh queues and a fresh page. */
static shoal_err measure(shoal_target target, const char *spin, bool apart, shoal_value **out_result)
{
    shoal_queue *there = NULL, *back = NULL;
    shoal_block *page = NULL;
    shoal_err err = shoal_queue_create(0, &there);
    if (err == SHOAL_OK) {
        err = shoal_queue_create(0, &back);
    }
    if (err == SHOAL_OK) {
        err = bench_page(&page);
    }
    if (err == SHOAL_OK) {
        err = bench_pair(target, shoal_map("there", there, "back", back, "page", page), spin, apart, out_result);
    }
    shoal_release(page);
    shoal_release(back);
    shoal_release(there);
    return err;
}

static shoal_err tell_trip(bench_report *report, const char *name, double seconds, bench_limit limit,
                           double limit_seconds, double times)
{
    return bench_tell(report, &(bench_line){.name = name,
                                            .unit = "us",
                                            .value = seconds * 1e6,
                                            .limit_name = bench_limit_name(limit),
                                            .limit = limit_seconds * 1e6,
                                            .wanted = times > 0 ? BENCH_AT_MOST : BENCH_ANY,
                                            .target = times * limit_seconds * 1e6});
}

static shoal_err report_spinning(bench_report *report)
{
    static const char *const names[] = {NULL, "queue_round_trip_spin", "queue_handle_round_trip",
                                        "queue_fresh_64b_round_trip"};
    static const double times[] = {0, 2.5, 2.5, 0};
    shoal_value *result;
    int cpus[2];
    shoal_err err = SHOAL_OK;
    if (!bench_cpus(cpus)) {
        for (size_t i = 1; i < 4 && err == SHOAL_OK; i++) {
            err = bench_tell_skip(report, names[i], "two spinning processes need two CPUs, and there is only one");
        }
        return err;
    }
    err = measure(spinning, BENCH_SPIN, true, &result);
    if (err != SHOAL_OK) {
        return err;
    }
    double limit = bench_result(result, 0);
    err = bench_tell_limit(report, BENCH_CACHE_LINE, limit * 1e6);
    for (size_t i = 1; i < 4 && err == SHOAL_OK; i++) {
        err = tell_trip(report, names[i], bench_result(result, i), BENCH_CACHE_LINE, limit, times[i]);
    }
    shoal_value_destroy(result);
    return err;
}

static shoal_err report_parked(bench_report *report)
{
    shoal_value *result;
    shoal_err err = measure(parked, BENCH_PARK, true, &result);
    if (err != SHOAL_OK) {
        return err;
    }
    double limit = bench_result(result, 0);
    err = bench_tell_limit(report, BENCH_FUTEX, limit * 1e6);
    if (err == SHOAL_OK) {
        err = tell_trip(report, "queue_round_trip_parked", bench_result(result, 1), BENCH_FUTEX, limit, 1.5);
    }
    shoal_value_destroy(result);
    return err;
}

/* With the defaults, as a program gets them that sets nothing: other libraries are compared with this. */
static shoal_err report_shipped(bench_report *report)
{
    static const char *const names[] = {"queue_int_round_trip_default", "queue_handle_round_trip_default",
                                        "queue_fresh_64b_round_trip_default"};
    shoal_value *result;
    shoal_err err = measure(as_shipped, NULL, false, &result);
    if (err != SHOAL_OK) {
        return err;
    }
    for (size_t i = 0; i < 3 && err == SHOAL_OK; i++) {
        err = tell_trip(report, names[i], bench_result(result, i), BENCH_NO_LIMIT, 0, 0);
    }
    shoal_value_destroy(result);
    return err;
}

shoal_err bench_queue(bench_report *report)
{
    static shoal_err (*const parts[])(bench_report *) = {report_spinning, report_parked, report_shipped, bench_flow,
                                                         bench_fresh};
    shoal_err err = SHOAL_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && err == SHOAL_OK; i++) {
        err = parts[i](report);
    }
    return err;
}
