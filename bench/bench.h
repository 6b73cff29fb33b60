/* Measures the library's primitives, each compared with the physical limit of its kind.
 *
 * A measurement checks its answers, warms up, and then runs limit and primitive alternately, round after round. It
 * reports medians. Work of two processes is measured in two processes that are started for it, so that both start alike
 * and read SHOAL_SPIN_NS anew. The program links all of this for `shoal bench`.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <shoal/shoal.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum bench_limit {
    BENCH_NO_LIMIT,
    BENCH_CACHE_LINE,  /* one word of a shared page, back and forth between two CPUs that spin */
    BENCH_FUTEX,       /* the same, but sleeping on a futex */
    BENCH_MEMCPY,      /* 64 MiB from one warm private buffer to another */
    BENCH_POSIX_SPAWN, /* start /bin/true four times, and wait for it */
    BENCH_MALLOC,      /* malloc and free of 64 KiB */
    BENCH_HEAP_ALONE,  /* heap_alloc_free_64k while no other process works */
    BENCH_FMA,         /* f32 multiply-adds on registers, one core */
    BENCH_LIMITS,
} bench_limit;

typedef enum bench_wanted {
    BENCH_ANY,
    BENCH_AT_MOST,
    BENCH_AT_LEAST,
} bench_wanted;

typedef struct bench_line {
    const char *name, *unit;
    double value;
    const char *limit_name; /* NULL if there is no limit */
    double limit;
    bench_wanted wanted;
    double target;
} bench_line;

/* Receives the lines. line and skip return false if they cannot write; then measuring ends. */
typedef struct bench_report {
    bool (*line)(const bench_line *line, void *context);
    bool (*skip)(const char *name, const char *why, void *context);
    void *context;
    unsigned limits_told; /* a bit for each bench_limit that was reported */
} bench_report;

/* Errors: SHOAL_ECLOSED if the report could not be written. */
SHOAL_MUST_USE shoal_err bench_queue(bench_report *report);
SHOAL_MUST_USE shoal_err bench_barrier(bench_report *report);
SHOAL_MUST_USE shoal_err bench_spawn(bench_report *report);
SHOAL_MUST_USE shoal_err bench_heap(bench_report *report);
SHOAL_MUST_USE shoal_err bench_tensor(bench_report *report);
SHOAL_MUST_USE shoal_err bench_train(bench_report *report);
SHOAL_MUST_USE shoal_err bench_loader(bench_report *report); /* part of train: batches per second */
SHOAL_MUST_USE shoal_err bench_flow(bench_report *report);   /* part of queue: messages per second */
SHOAL_MUST_USE shoal_err bench_fresh(bench_report *report);  /* part of queue: large fresh data */

/* ---- for the measurements ---- */

/* The number of rounds, after one that is not counted.
 * Many and short, so that few of them lose their CPU to other processes. */
#define BENCH_ROUNDS 101
#define BENCH_STEPS 4 /* the most steps in one measurement */
#define BENCH_PATIENCE SHOAL_SECONDS(20)
#define BENCH_SPIN "20000000" /* SHOAL_SPIN_NS for processes that should spin: longer than a time slice of a busy CPU */
#define BENCH_PARK "0"

/* Reports a limit the first time that it is measured in this run. The value has the unit of its line. */
SHOAL_MUST_USE shoal_err bench_tell_limit(bench_report *report, bench_limit limit, double value);
SHOAL_MUST_USE shoal_err bench_tell(bench_report *report, const bench_line *line);
SHOAL_MUST_USE shoal_err bench_tell_skip(bench_report *report, const char *name, const char *why);
const char *bench_limit_name(bench_limit limit);

double bench_now(void);                            /* seconds; the same clock in every process */
double bench_median(double *values, size_t count); /* sorts them */

/* Returns two CPUs of different cores if possible, otherwise any two. Returns false if only one may be used. */
bool bench_cpus(int out_cpus[2]);

/* Runs ranks 0 and 1 of target in two fresh processes, with SHOAL_SPIN_NS set to spin (NULL leaves it unchanged), and
 * returns what rank 0 passed to shoal_return. args is a map, which is consumed. apart binds them to two CPUs. */
SHOAL_MUST_USE shoal_err bench_pair(shoal_target target, shoal_value *args, const char *spin, bool apart,
                                    shoal_value **out_result);

/* The first call in such a target: binds it to its CPU. */
SHOAL_MUST_USE shoal_err bench_enter(int rank, const shoal_value *args);

/* Both ranks run all steps, round after round. A step does its work count times. Rank 0 gets the median of the seconds
 * that each step takes for one. */
typedef shoal_err (*bench_step)(void *context, int rank, uint64_t count);
SHOAL_MUST_USE shoal_err bench_interleave(const bench_step *steps, size_t count_of_steps, void *context, int rank,
                                          uint64_t count, double *out_medians);
/* The same, as the last call of a target: rank 0 returns the medians as a list of floats. */
SHOAL_MUST_USE shoal_err bench_interleave_return(const bench_step *steps, size_t count_of_steps, void *context,
                                                 int rank, uint64_t count);

double bench_result(const shoal_value *result, size_t i); /* member i of that list */

/* The limits as steps. page is a zeroed page that both ranks share. */
shoal_err bench_limit_cache_line(void *page, int rank, uint64_t count);
shoal_err bench_limit_futex(void *page, int rank, uint64_t count);

/* Reports the memory of a spawned worker in KiB (PSS), after target has run with args, a map that is consumed. target
 * ends with bench_idle, which waits until the memory was read. */
SHOAL_MUST_USE shoal_err bench_worker_pss(bench_report *report, const char *name, double most, shoal_target target,
                                          shoal_value *args);
shoal_err bench_idle(int rank, const shoal_value *args);

/* Returns the GFLOP/s of one core; 0 if it has no FMA. */
double bench_fma_peak(void);

/* Returns a zeroed page as a block: memory of the same kind as a shared anonymous mapping. */
SHOAL_MUST_USE shoal_err bench_page(shoal_block **out_page);

#endif
