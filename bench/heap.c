/* Allocates and releases blocks of 64 KiB: in one process, and in two at once. */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

#define SIZE 65536
#define COUNT 2000

static shoal_err malloc_and_free(void *context, int rank, uint64_t count)
{
    (void)context, (void)rank;
    for (uint64_t i = 0; i < count; i++) {
        void *memory = malloc(SIZE);
        __asm__ volatile("" : "+r"(memory)::"memory"); /* or the compiler would remove both calls */
        free(memory);
    }
    return SHOAL_OK;
}

static shoal_err create_and_release(void *context, int rank, uint64_t count)
{
    shoal_err err = SHOAL_OK;
    (void)context, (void)rank;
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        shoal_block *block;
        err = shoal_block_create(SIZE, &block);
        if (err == SHOAL_OK) {
            shoal_release(block);
        }
    }
    return err;
}

/* Checks that blocks that exist at the same time do not overlap, and keep what is written to them. */
static shoal_err check_blocks(void)
{
    enum { LIVE = 32 };
    shoal_block *blocks[LIVE] = {NULL};
    shoal_err err = SHOAL_OK;
    for (int i = 0; i < LIVE && err == SHOAL_OK; i++) {
        err = shoal_block_create(SIZE, &blocks[i]);
        if (err == SHOAL_OK) {
            memset(shoal_block_data(blocks[i]), i + 1, SIZE);
        }
    }
    for (int i = 0; i < LIVE && err == SHOAL_OK; i++) {
        const unsigned char *bytes = shoal_block_data(blocks[i]);
        for (size_t n = 0; n < SIZE && err == SHOAL_OK; n++) {
            err = bytes[n] == i + 1 ? SHOAL_OK : shoal_fail(SHOAL_ECORRUPT, "byte %zu of block %d was changed", n, i);
        }
    }
    for (int i = 0; i < LIVE; i++) {
        shoal_release(blocks[i]);
    }
    return err;
}

/* ---- two processes ---- */

static shoal_err begin_together(void *context)
{
    uint32_t index;
    return shoal_barrier_wait(context, BENCH_PATIENCE, &index);
}

static shoal_err alone(void *context, int rank, uint64_t count)
{
    shoal_err err = begin_together(context);
    return err == SHOAL_OK && rank == 0 ? create_and_release(context, rank, count) : err;
}

static shoal_err together(void *context, int rank, uint64_t count)
{
    shoal_err err = begin_together(context);
    return err == SHOAL_OK ? create_and_release(context, rank, count) : err;
}

static shoal_err two(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {alone, together};
    shoal_barrier *start = shoal_arg_barrier(args, "start");
    if (start == NULL) {
        return shoal_last_error();
    }
    shoal_err err = bench_enter(rank, args);
    return err == SHOAL_OK ? bench_interleave_return(steps, 2, start, rank, COUNT) : err;
}

static shoal_err report_two(bench_report *report)
{
    static const char name[] = "heap_alloc_free_2_processes";
    shoal_barrier *start;
    shoal_value *result;
    int cpus[2];
    if (!bench_cpus(cpus)) {
        return bench_tell_skip(report, name, "two processes at once need two CPUs, and there is only one");
    }
    shoal_err err = shoal_barrier_create(2, &start);
    if (err != SHOAL_OK) {
        return err;
    }
    err = bench_pair(two, shoal_map("start", start), NULL, true, &result);
    shoal_release(start);
    if (err != SHOAL_OK) {
        return err;
    }
    double limit = bench_result(result, 0) * 1e9, value = bench_result(result, 1) * 1e9;
    shoal_value_destroy(result);
    return bench_tell(report, &(bench_line){.name = name,
                                            .unit = "ns",
                                            .value = value,
                                            .limit_name = bench_limit_name(BENCH_HEAP_ALONE),
                                            .limit = limit,
                                            .wanted = BENCH_AT_MOST,
                                            .target = 2 * limit});
}

shoal_err bench_heap(bench_report *report)
{
    static const bench_step steps[] = {malloc_and_free, create_and_release};
    double medians[2];
    shoal_err err = check_blocks();
    if (err == SHOAL_OK) {
        err = bench_interleave(steps, 2, NULL, 0, COUNT, medians);
    }
    if (err == SHOAL_OK) {
        err = bench_tell_limit(report, BENCH_MALLOC, medians[0] * 1e9);
    }
    if (err == SHOAL_OK) {
        err = bench_tell(report, &(bench_line){.name = bench_limit_name(BENCH_HEAP_ALONE),
                                               .unit = "ns",
                                               .value = medians[1] * 1e9,
                                               .limit_name = bench_limit_name(BENCH_MALLOC),
                                               .limit = medians[0] * 1e9,
                                               .wanted = BENCH_AT_MOST,
                                               .target = 200});
    }
    return err == SHOAL_OK ? report_two(report) : err;
}
