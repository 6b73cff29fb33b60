/* A barrier for two processes: spinning, parked, and with the defaults. */
#include "bench/bench.h"

#define SPIN_COUNT 500
#define PARK_COUNT 20

typedef struct meeting {
    shoal_block *page;
    shoal_barrier *barrier;
    uint64_t sum; /* of the indexes that this rank got */
    uint64_t waits;
} meeting;

static shoal_err cache_line(void *context, int rank, uint64_t count)
{
    return bench_limit_cache_line(shoal_block_data(((meeting *)context)->page), rank, count);
}

static shoal_err futex(void *context, int rank, uint64_t count)
{
    return bench_limit_futex(shoal_block_data(((meeting *)context)->page), rank, count);
}

static shoal_err meet(void *context, int rank, uint64_t count)
{
    meeting *m = context;
    shoal_err err = SHOAL_OK;
    (void)rank;
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        uint32_t index = 2;
        err = shoal_barrier_wait(m->barrier, BENCH_PATIENCE, &index);
        if (err == SHOAL_OK && index > 1) {
            err = shoal_fail(SHOAL_ECORRUPT, "a barrier for two gave the index %u", index);
        }
        m->sum += index;
        m->waits++;
    }
    return err;
}

/* Each time one of the two gets 0 and the other 1, so both sums add up to the number of meetings.
 * The page passes the sums. */
static shoal_err check_sums(meeting *m, int rank)
{
    uint64_t *sums = (uint64_t *)shoal_block_data(m->page) + 8; /* the ping-pongs use other lines */
    uint32_t index;
    sums[rank] = m->sum;
    shoal_err err = shoal_barrier_wait(m->barrier, BENCH_PATIENCE, &index);
    return err == SHOAL_OK && sums[0] + sums[1] != m->waits
               ? shoal_fail(SHOAL_ECORRUPT, "two processes met %llu times, but one came last %llu times",
                            (unsigned long long)m->waits, (unsigned long long)(sums[0] + sums[1]))
               : err;
}

static shoal_err run_steps(int rank, const shoal_value *args, const bench_step *steps, size_t steps_count,
                           uint64_t count)
{
    meeting m = {.page = shoal_arg_block(args, "page"), .barrier = shoal_arg_barrier(args, "barrier")};
    if (m.page == NULL || m.barrier == NULL) {
        return shoal_last_error();
    }
    shoal_err err = bench_enter(rank, args);
    if (err == SHOAL_OK) {
        err = meet(&m, rank, 100);
    }
    if (err == SHOAL_OK) {
        err = check_sums(&m, rank);
    }
    return err == SHOAL_OK ? bench_interleave_return(steps, steps_count, &m, rank, count) : err;
}

static shoal_err spinning(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {cache_line, meet};
    return run_steps(rank, args, steps, 2, SPIN_COUNT);
}

static shoal_err parked(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {futex, meet};
    return run_steps(rank, args, steps, 2, PARK_COUNT);
}

static shoal_err as_shipped(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {meet};
    return run_steps(rank, args, steps, 1, SPIN_COUNT);
}

/* One line of the report, and how to measure it. */
typedef struct way {
    const char *name;
    shoal_target target;
    const char *spin;
    bool apart;
    bench_limit limit;
    double times; /* at most this multiple of the limit */
} way;

static const way ways[] = {
    {"barrier_wait_spin", spinning, BENCH_SPIN, true, BENCH_CACHE_LINE, 2.5},
    {"barrier_wait_parked", parked, BENCH_PARK, true, BENCH_FUTEX, 1.5},
    {"barrier_wait_default", as_shipped, NULL, false, BENCH_NO_LIMIT, 0},
};

static shoal_err measure(const way *w, shoal_value **out_result)
{
    shoal_block *page = NULL;
    shoal_barrier *barrier = NULL;
    shoal_err err = bench_page(&page);
    if (err == SHOAL_OK) {
        err = shoal_barrier_create(2, &barrier);
    }
    if (err == SHOAL_OK) {
        err = bench_pair(w->target, shoal_map("page", page, "barrier", barrier), w->spin, w->apart, out_result);
    }
    shoal_release(barrier);
    shoal_release(page);
    return err;
}

static shoal_err report_way(bench_report *report, const way *w)
{
    shoal_value *result;
    int cpus[2];
    if (w->limit == BENCH_CACHE_LINE && !bench_cpus(cpus)) {
        return bench_tell_skip(report, w->name, "two spinning processes need two CPUs, and there is only one");
    }
    shoal_err err = measure(w, &result);
    if (err != SHOAL_OK) {
        return err;
    }
    bool limited = w->limit != BENCH_NO_LIMIT;
    double limit = limited ? bench_result(result, 0) * 1e6 : 0, value = bench_result(result, limited) * 1e6;
    shoal_value_destroy(result);
    err = limited ? bench_tell_limit(report, w->limit, limit) : SHOAL_OK;
    if (err != SHOAL_OK) {
        return err;
    }
    return bench_tell(report, &(bench_line){.name = w->name,
                                            .unit = "us",
                                            .value = value,
                                            .limit_name = bench_limit_name(w->limit),
                                            .limit = limit,
                                            .wanted = limited ? BENCH_AT_MOST : BENCH_ANY,
                                            .target = w->times * limit});
}

shoal_err bench_barrier(bench_report *report)
{
    shoal_err err = SHOAL_OK;
    for (size_t i = 0; i < sizeof ways / sizeof *ways && err == SHOAL_OK; i++) {
        err = report_way(report, &ways[i]);
    }
    return err;
}
