/* Tensors between two processes: a shared one back and forth, many one way, and 64 MiB that are made,
 * filled and sent. */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

#define TRIP_COUNT 500
#define TRIP_FLOATS (INT64_C(1) << 18) /* 1 MiB */
#define FLOW_COUNT 10000
#define FLOW_BOUND 1024
#define FLOW_TENSORS 64
#define FLOW_FLOATS 256 /* 1 KiB */
#define FRESH_FLOATS (INT64_C(16) << 20)
#define FRESH_SIZE ((size_t)FRESH_FLOATS * sizeof(float))

typedef struct tensors {
    shoal_queue *there, *back;
    shoal_block *page;
    shoal_barrier *start;
    shoal_tensor *one;                /* of rank 0: back and forth */
    shoal_tensor *many[FLOW_TENSORS]; /* of rank 1: one way */
    char *source, *copy;              /* of rank 0: for memcpy */
    uint64_t round;
    bool checked;
} tensors;

static shoal_err wrong(const char *what)
{
    return shoal_fail(SHOAL_ECORRUPT, "tensor: %s", what);
}

static shoal_err cache_line(void *context, int rank, uint64_t count)
{
    return bench_limit_cache_line(shoal_block_data(((tensors *)context)->page), rank, count);
}

/* ---- a shared tensor of 1 MiB, back and forth ---- */

static shoal_err round_trip(tensors *t)
{
    float *data = shoal_tensor_data(t->one);
    shoal_tensor *same = NULL;
    if (!t->checked) {
        data[TRIP_FLOATS - 1] = 1;
    }
    shoal_err err = shoal_queue_put_tensor(t->there, t->one, BENCH_PATIENCE);
    if (err == SHOAL_OK) {
        err = shoal_queue_get_tensor(t->back, BENCH_PATIENCE, &same);
    }
    if (err == SHOAL_OK && (shoal_tensor_data(same) != (void *)data || (!t->checked && data[TRIP_FLOATS - 1] != 2))) {
        err = wrong("a different tensor came back");
    }
    shoal_tensor_release(same);
    return err;
}

static shoal_err send_back(tensors *t)
{
    shoal_tensor *got = NULL;
    shoal_err err = shoal_queue_get_tensor(t->there, BENCH_PATIENCE, &got);
    if (err == SHOAL_OK && !t->checked) {
        float *data = shoal_tensor_data(got);
        data[TRIP_FLOATS - 1]++;
    }
    return err == SHOAL_OK ? shoal_queue_give_tensor(t->back, got, BENCH_PATIENCE) : err;
}

/* Both sides write to the tensor in the first round, which is not counted; later they only pass it on. */
static shoal_err trip(void *context, int rank, uint64_t count)
{
    tensors *t = context;
    shoal_err err = SHOAL_OK;
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        err = rank == 0 ? round_trip(t) : send_back(t);
    }
    t->checked = true;
    return err;
}

/* ---- one way ---- */

static shoal_err take(tensors *t, uint64_t i)
{
    shoal_tensor *got = NULL;
    shoal_err err = shoal_queue_get_tensor(t->there, BENCH_PATIENCE, &got);
    if (err == SHOAL_OK && *(const float *)shoal_tensor_data(got) != (float)(i % FLOW_TENSORS)) {
        err = wrong("a tensor arrived out of order");
    }
    shoal_tensor_release(got);
    return err;
}

static shoal_err flow(void *context, int rank, uint64_t count)
{
    tensors *t = context;
    uint32_t index;
    shoal_err err = shoal_barrier_wait(t->start, BENCH_PATIENCE, &index);
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        err = rank == 0 ? take(t, i) : shoal_queue_put_tensor(t->there, t->many[i % FLOW_TENSORS], BENCH_PATIENCE);
    }
    return err;
}

/* Makes a new private tensor each time, which put moves into the heap. */
static shoal_err flow_fresh(void *context, int rank, uint64_t count)
{
    tensors *t = context;
    uint32_t index;
    shoal_err err = shoal_barrier_wait(t->start, BENCH_PATIENCE, &index);
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        if (rank == 0) {
            err = take(t, i);
            continue;
        }
        shoal_tensor *fresh = shoal_full(SHOAL_F32, (double)(i % FLOW_TENSORS), SHOAL_SHAPE(FLOW_FLOATS));
        err = fresh ? shoal_queue_put_tensor(t->there, fresh, BENCH_PATIENCE) : shoal_last_error();
        shoal_tensor_release(fresh);
    }
    return err;
}

/* ---- 64 MiB: made, filled, put, and sent back ---- */

static shoal_err copy(void *context, int rank, uint64_t count)
{
    tensors *t = context;
    for (uint64_t i = 0; rank == 0 && i < count; i++) {
        memcpy(t->copy, t->source, FRESH_SIZE);
        __asm__ volatile("" ::"r"(t->copy) : "memory");
    }
    return SHOAL_OK;
}

static bool is_full_of(const shoal_tensor *t, float value, bool all)
{
    const float *data = shoal_tensor_data(t);
    for (int64_t i = 0; all && i < FRESH_FLOATS; i++) {
        if (data[i] != value) {
            return false;
        }
    }
    return data[0] == value && data[FRESH_FLOATS - 1] == value;
}

static shoal_err fresh(void *context, int rank, uint64_t count)
{
    tensors *t = context;
    shoal_err err = SHOAL_OK;
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        shoal_tensor *made = NULL, *got = NULL;
        float value = (float)t->round;
        if (rank == 0) {
            made = shoal_full(SHOAL_F32, value, SHOAL_SHAPE(FRESH_FLOATS));
            err = made ? shoal_queue_put_tensor(t->there, made, BENCH_PATIENCE) : shoal_last_error();
        }
        if (err == SHOAL_OK) {
            err = shoal_queue_get_tensor(rank == 0 ? t->back : t->there, BENCH_PATIENCE, &got);
        }
        if (err == SHOAL_OK && !is_full_of(got, value, t->round == 0)) {
            err = wrong("64 MiB arrived with wrong numbers");
        }
        if (err == SHOAL_OK && rank == 1) {
            err = shoal_queue_put_tensor(t->back, got, BENCH_PATIENCE);
        }
        shoal_tensor_release(got);
        shoal_tensor_release(made);
        t->round++;
    }
    return err;
}

/* ---- both sides ---- */

static shoal_err enter(int rank, const shoal_value *args, tensors *t)
{
    *t = (tensors){.there = shoal_arg_queue(args, "there"),
                   .back = shoal_arg_queue(args, "back"),
                   .page = shoal_arg_block(args, "page"),
                   .start = shoal_arg_barrier(args, "start")};
    if (!t->there || !t->back || !t->page || !t->start) {
        return shoal_last_error();
    }
    for (int i = 0; rank == 1 && i < FLOW_TENSORS; i++) {
        t->many[i] = shoal_full(SHOAL_F32, i, SHOAL_SHAPE(FLOW_FLOATS));
        if (!t->many[i]) {
            return shoal_last_error();
        }
    }
    t->one = rank == 0 ? shoal_zeros(SHOAL_F32, SHOAL_SHAPE(TRIP_FLOATS)) : NULL;
    shoal_err err = rank == 0 ? shoal_tensor_share(t->one) : SHOAL_OK;
    return err == SHOAL_OK ? bench_enter(rank, args) : err;
}

static void leave(tensors *t)
{
    shoal_tensor_release(t->one);
    for (int i = 0; i < FLOW_TENSORS; i++) {
        shoal_tensor_release(t->many[i]);
    }
    free(t->source);
    free(t->copy);
}

static shoal_err run(int rank, const shoal_value *args, const bench_step *steps, size_t step_count, uint64_t count)
{
    tensors t;
    shoal_err err = enter(rank, args, &t);
    if (err == SHOAL_OK) {
        err = bench_interleave_return(steps, step_count, &t, rank, count);
    }
    leave(&t);
    return err;
}

static shoal_err spinning(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {cache_line, trip};
    return run(rank, args, steps, 2, TRIP_COUNT);
}

static shoal_err as_shipped(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {trip};
    return run(rank, args, steps, 1, TRIP_COUNT);
}

static shoal_err one_way(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {flow, flow_fresh};
    return run(rank, args, steps, 2, FLOW_COUNT);
}

static shoal_err large(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {copy, fresh};
    tensors t;
    shoal_err err = enter(rank, args, &t);
    if (err == SHOAL_OK && rank == 0) {
        t.source = malloc(FRESH_SIZE);
        t.copy = malloc(FRESH_SIZE);
        if (!t.source || !t.copy) {
            err = shoal_fail(SHOAL_ENOMEM, "no memory for two buffers of 64 MiB");
        } else {
            memset(t.source, 1, FRESH_SIZE);
        }
    }
    if (err == SHOAL_OK) {
        err = bench_interleave_return(steps, 2, &t, rank, 1);
    }
    leave(&t);
    return err;
}

static shoal_err measure(shoal_target target, uint64_t bound, const char *spin, shoal_value **out_result)
{
    shoal_queue *there = NULL, *back = NULL;
    shoal_block *page = NULL;
    shoal_barrier *start = NULL;
    shoal_err err = shoal_queue_create(bound, &there);
    if (err == SHOAL_OK) {
        err = shoal_queue_create(bound, &back);
    }
    if (err == SHOAL_OK) {
        err = bench_page(&page);
    }
    if (err == SHOAL_OK) {
        err = shoal_barrier_create(2, &start);
    }
    if (err == SHOAL_OK) {
        err = bench_pair(target, shoal_map("there", there, "back", back, "page", page, "start", start), spin, true,
                         out_result);
    }
    shoal_release(start);
    shoal_release(page);
    shoal_release(back);
    shoal_release(there);
    return err;
}

/* ---- the report ---- */

static shoal_err tell(bench_report *report, const char *name, const char *unit, double value, bench_limit limit,
                      double limit_value, double times)
{
    return bench_tell(report, &(bench_line){.name = name,
                                            .unit = unit,
                                            .value = value,
                                            .limit_name = bench_limit_name(limit),
                                            .limit = limit_value,
                                            .wanted = BENCH_AT_MOST,
                                            .target = times * limit_value});
}

static shoal_err report_spinning(bench_report *report)
{
    shoal_value *result;
    int cpus[2];
    if (!bench_cpus(cpus)) {
        return bench_tell_skip(report, "tensor_round_trip_spin",
                               "two spinning processes need two CPUs, and there is only one");
    }
    shoal_err err = measure(spinning, 0, BENCH_SPIN, &result);
    if (err != SHOAL_OK) {
        return err;
    }
    double limit = bench_result(result, 0) * 1e6;
    err = bench_tell_limit(report, BENCH_CACHE_LINE, limit);
    if (err == SHOAL_OK) {
        err = tell(report, "tensor_round_trip_spin", "us", bench_result(result, 1) * 1e6, BENCH_CACHE_LINE, limit, 3);
    }
    shoal_value_destroy(result);
    return err;
}

static shoal_err report_as_shipped(bench_report *report)
{
    shoal_value *result;
    shoal_err err = measure(as_shipped, 0, NULL, &result);
    if (err == SHOAL_OK) {
        err = bench_tell(
            report,
            &(bench_line){.name = "tensor_round_trip_default", .unit = "us", .value = bench_result(result, 0) * 1e6});
        shoal_value_destroy(result);
    }
    return err;
}

static shoal_err report_one_way(bench_report *report)
{
    static const char *const names[] = {"tensors_per_second", "tensors_fresh_1k_per_second"};
    shoal_value *result;
    shoal_err err = measure(one_way, FLOW_BOUND, NULL, &result);
    if (err != SHOAL_OK) {
        return err;
    }
    for (size_t i = 0; i < 2 && err == SHOAL_OK; i++) {
        err = bench_tell(report, &(bench_line){.name = names[i],
                                               .unit = "1/s",
                                               .value = 1 / bench_result(result, i),
                                               .wanted = i == 0 ? BENCH_AT_LEAST : BENCH_ANY,
                                               .target = 1e6});
    }
    shoal_value_destroy(result);
    return err;
}

static shoal_err report_large(bench_report *report)
{
    shoal_value *result;
    shoal_err err = measure(large, 0, NULL, &result);
    if (err != SHOAL_OK) {
        return err;
    }
    double limit = bench_result(result, 0) * 1e3;
    err = bench_tell_limit(report, BENCH_MEMCPY, limit);
    if (err == SHOAL_OK) {
        err =
            tell(report, "tensor_fresh_64mib_round_trip", "ms", bench_result(result, 1) * 1e3, BENCH_MEMCPY, limit, 3);
    }
    shoal_value_destroy(result);
    return err;
}

shoal_err bench_tensor(bench_report *report)
{
    shoal_err err = report_spinning(report);
    if (err == SHOAL_OK) {
        err = report_as_shipped(report);
    }
    if (err == SHOAL_OK) {
        err = report_one_way(report);
    }
    return err == SHOAL_OK ? report_large(report) : err;
}
