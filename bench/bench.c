#include "bench/bench.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- the report ---- */

static const struct {
    const char *name, *unit;
} limits[BENCH_LIMITS] = {
    [BENCH_NO_LIMIT] = {NULL, NULL},
    [BENCH_CACHE_LINE] = {"cache_line_ping_pong", "us"},
    [BENCH_FUTEX] = {"futex_ping_pong", "us"},
    [BENCH_MEMCPY] = {"memcpy_64mib", "ms"},
    [BENCH_POSIX_SPAWN] = {"posix_spawn_join_4", "ms"},
    [BENCH_MALLOC] = {"malloc_free_64k", "ns"},
    [BENCH_HEAP_ALONE] = {"heap_alloc_free_64k", "ns"},
    [BENCH_FMA] = {"fma_peak_gflops", "GFLOP/s"},
};

const char *bench_limit_name(bench_limit limit)
{
    return limits[limit].name;
}

static shoal_err told(bool written)
{
    return written ? SHOAL_OK : shoal_fail(SHOAL_ECLOSED, "cannot write the report");
}

shoal_err bench_tell(bench_report *report, const bench_line *line)
{
    return told(report->line(line, report->context));
}

shoal_err bench_tell_skip(bench_report *report, const char *name, const char *why)
{
    return told(report->skip(name, why, report->context));
}

shoal_err bench_tell_limit(bench_report *report, bench_limit limit, double value)
{
    if ((report->limits_told & 1u << limit) != 0) {
        return SHOAL_OK;
    }
    report->limits_told |= 1u << limit;
    return bench_tell(report, &(bench_line){.name = limits[limit].name, .unit = limits[limit].unit, .value = value});
}

/* ---- clock and medians ---- */

double bench_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

/* ---- CPUs ---- */

/* Reads the siblings of a CPU as the system writes them, to distinguish two CPUs of one core from others. */
static void read_siblings(int cpu, char *buffer, size_t capacity)
{
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *file = fopen(path, "re");
    snprintf(buffer, capacity, "%d", cpu);
    if (file != NULL) {
        (void)!fgets(buffer, (int)capacity, file);
        fclose(file);
    }
}

bool bench_cpus(int out_cpus[2])
{
    cpu_set_t set;
    char first[64], other[64];
    int one = -1, two = -1;
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return false;
    }
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &set)) {
            continue;
        }
        if (one < 0) {
            one = cpu;
            read_siblings(cpu, first, sizeof first);
            continue;
        }
        two = two < 0 ? cpu : two; /* a sibling, unless a better CPU follows */
        read_siblings(cpu, other, sizeof other);
        if (strcmp(first, other) != 0) {
            two = cpu;
            break;
        }
    }
    out_cpus[0] = one;
    out_cpus[1] = two;
    return two >= 0;
}

static shoal_err stay_on(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu, &set);
    return sched_setaffinity(0, sizeof set, &set) == 0
               ? SHOAL_OK
               : shoal_fail(SHOAL_EOS, "cannot bind to CPU %d: %s", cpu, strerror(errno));
}

/* ---- pairs of processes ---- */

/* Sets the variable, or unsets it if spin is NULL. Returns a copy of its old value. */
static char *swap_spin(const char *spin)
{
    const char *now = getenv("SHOAL_SPIN_NS");
    char *was = now != NULL ? strdup(now) : NULL;
    if (spin != NULL) {
        setenv("SHOAL_SPIN_NS", spin, 1);
    } else {
        unsetenv("SHOAL_SPIN_NS");
    }
    return was;
}

shoal_err bench_pair(shoal_target target, shoal_value *args, const char *spin, bool apart, shoal_value **out_result)
{
    shoal_value *results[2] = {NULL, NULL};
    int cpus[2];
    if (apart && bench_cpus(cpus)) {
        args = shoal_map_set(args, "cpus", shoal_list(cpus[0], cpus[1]));
    }
    if (args == NULL) {
        return shoal_last_error();
    }
    char *was = spin != NULL ? swap_spin(spin) : NULL;
    shoal_err err = shoal_spawn_with(target, 2, args, &(shoal_process_options){.name = "bench"}, results);
    if (spin != NULL) {
        free(swap_spin(was));
        free(was);
    }
    shoal_value_destroy(results[1]);
    if (err == SHOAL_OK && results[0] == NULL) {
        return shoal_fail(SHOAL_ESTATE, "the measuring process returned no result");
    }
    if (err == SHOAL_OK) {
        *out_result = results[0];
    }
    return err;
}

shoal_err bench_enter(int rank, const shoal_value *args)
{
    const shoal_value *cpus = shoal_value_find(args, "cpus");
    shoal_semaphore *never;
    if (cpus == NULL) {
        return SHOAL_OK;
    }
    /* A process that may use only one CPU does not spin. A process finds that out at its first wait, so it waits once
     * before it is bound to its CPU: here each peer does have a separate CPU. */
    shoal_err err = shoal_semaphore_create(0, 0, &never);
    if (err != SHOAL_OK) {
        return err;
    }
    err = shoal_semaphore_wait(never, 1);
    shoal_release(never);
    int64_t cpu;
    err = err == SHOAL_ETIMEDOUT ? shoal_value_as_int(shoal_value_at(cpus, (size_t)rank), &cpu) : err;
    return err == SHOAL_OK ? stay_on((int)cpu) : err;
}

shoal_err bench_interleave(const bench_step *steps, size_t count_of_steps, void *context, int rank, uint64_t count,
                           double *out_medians)
{
    double seconds[BENCH_STEPS][BENCH_ROUNDS];
    for (int round = -1; round < BENCH_ROUNDS; round++) {
        for (size_t i = 0; i < count_of_steps; i++) {
            double begun = bench_now();
            shoal_err err = steps[i](context, rank, count);
            if (err != SHOAL_OK) {
                return err;
            }
            if (round >= 0) {
                seconds[i][round] = (bench_now() - begun) / (double)count;
            }
        }
    }
    for (size_t i = 0; i < count_of_steps; i++) {
        out_medians[i] = bench_median(seconds[i], BENCH_ROUNDS);
    }
    return SHOAL_OK;
}

shoal_err bench_interleave_return(const bench_step *steps, size_t count_of_steps, void *context, int rank,
                                  uint64_t count)
{
    double medians[BENCH_STEPS];
    shoal_err err = bench_interleave(steps, count_of_steps, context, rank, count, medians);
    if (err != SHOAL_OK || rank != 0) {
        return err;
    }
    shoal_value *list = shoal_value_list();
    for (size_t i = 0; i < count_of_steps; i++) {
        list = shoal_list_add(list, shoal_value_float(medians[i]));
    }
    return shoal_return(list);
}

double bench_result(const shoal_value *result, size_t i)
{
    double median;
    return shoal_value_as_float(shoal_value_at(result, i), &median) == SHOAL_OK ? median : -1;
}
