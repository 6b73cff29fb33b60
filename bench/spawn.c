/* Processes: four are started and joined, and the memory of one that waits. */
#include "bench/bench.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES 4
#define WORKERS 5 /* idle workers that are measured, one after the other */

extern char **environ;

static shoal_err give_rank(int rank, const shoal_value *args)
{
    int64_t base;
    shoal_err err = shoal_value_as_int(args, &base);
    return err == SHOAL_OK ? shoal_return(shoal_value_int(base + rank)) : err;
}

static shoal_err do_nothing(int rank, const shoal_value *args)
{
    (void)rank, (void)args;
    return SHOAL_OK;
}

static shoal_err check_ranks(void)
{
    shoal_value *results[PROCESSES] = {NULL};
    shoal_err err = shoal_spawn_with(give_rank, PROCESSES, shoal_value_int(100), NULL, results);
    for (int i = 0; i < PROCESSES; i++) {
        int64_t got = -1;
        err = err == SHOAL_OK ? shoal_value_as_int(results[i], &got) : err;
        if (err == SHOAL_OK && got != 100 + i) {
            err = shoal_fail(SHOAL_ECORRUPT, "rank %d returned a wrong result", i);
        }
        shoal_value_destroy(results[i]);
    }
    return err;
}

static shoal_err spawn_and_join(void *context, int rank, uint64_t count)
{
    shoal_err err = SHOAL_OK;
    (void)context, (void)rank;
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        err = shoal_spawn(do_nothing, PROCESSES, shoal_value_null());
    }
    return err;
}

/* The limit: the C library starts a program that does nothing. */
static shoal_err posix_spawn_and_wait(void *context, int rank, uint64_t count)
{
    static char name[] = "true";
    char *const arguments[] = {name, NULL};
    (void)context, (void)rank;
    for (uint64_t i = 0; i < count; i++) {
        pid_t children[PROCESSES];
        int failed = 0, started = 0;
        while (started < PROCESSES && failed == 0) {
            failed = posix_spawn(&children[started], "/bin/true", NULL, NULL, arguments, environ);
            started += failed == 0;
        }
        for (int n = 0; n < started; n++) {
            while (waitpid(children[n], NULL, 0) < 0 && errno == EINTR) {
            }
        }
        if (failed != 0) {
            return shoal_fail(SHOAL_EOS, "starting /bin/true: %s", strerror(failed));
        }
    }
    return SHOAL_OK;
}

static shoal_err report_spawn(bench_report *report)
{
    static const bench_step steps[] = {posix_spawn_and_wait, spawn_and_join};
    double medians[2];
    shoal_err err = check_ranks();
    if (err == SHOAL_OK) {
        err = bench_interleave(steps, 2, NULL, 0, 1, medians);
    }
    if (err == SHOAL_OK) {
        err = bench_tell_limit(report, BENCH_POSIX_SPAWN, medians[0] * 1e3);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    return bench_tell(report, &(bench_line){.name = "spawn_join_4",
                                            .unit = "ms",
                                            .value = medians[1] * 1e3,
                                            .limit_name = bench_limit_name(BENCH_POSIX_SPAWN),
                                            .limit = medians[0] * 1e3,
                                            .wanted = BENCH_AT_MOST,
                                            .target = 10});
}

/* ---- the memory of an idle worker ---- */

shoal_err bench_idle(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_event *up = shoal_arg_event(args, "up");
    shoal_event *end = shoal_arg_event(args, "end");
    if (up == NULL || end == NULL) {
        return shoal_last_error();
    }
    shoal_event_set(up);
    return shoal_event_wait(end, BENCH_PATIENCE);
}

static shoal_err read_pss(int32_t pid, double *out_kib)
{
    char path[64], line[160];
    unsigned long kib;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL) {
        found = sscanf(line, "Pss: %lu kB", &kib) == 1;
    }
    if (file != NULL) {
        fclose(file);
    }
    if (!found) {
        return shoal_fail(SHOAL_EOS, "%s does not contain the PSS", path);
    }
    *out_kib = (double)kib;
    return SHOAL_OK;
}

static shoal_err look_at_worker(shoal_target target, const shoal_value *args, double *out_kib)
{
    shoal_event *up = NULL, *end = NULL;
    shoal_process *worker = NULL;
    shoal_status status;
    shoal_err err = shoal_event_create(&up);
    if (err == SHOAL_OK) {
        err = shoal_event_create(&end);
    }
    if (err == SHOAL_OK) {
        shoal_value *all =
            shoal_map_set(shoal_map_set(shoal_value_copy(args), "up", shoal_value_of(up)), "end", shoal_value_of(end));
        err = all ? shoal_process_start(target, all, &(shoal_process_options){.name = "idle"}, &worker)
                  : shoal_last_error();
    }
    if (err == SHOAL_OK) {
        err = shoal_event_wait(up, BENCH_PATIENCE);
    }
    if (err == SHOAL_OK) {
        err = read_pss(shoal_process_pid(worker), out_kib);
        shoal_event_set(end);
    }
    if (err == SHOAL_OK) {
        err = shoal_process_join(worker, BENCH_PATIENCE, &status);
    }
    if (err == SHOAL_OK && status.end != SHOAL_PROCESS_RETURNED) {
        err = shoal_fail(SHOAL_ECHILD, "the idle worker: %s", status.text);
    }
    shoal_process_destroy(worker);
    shoal_release(end);
    shoal_release(up);
    return err;
}

shoal_err bench_worker_pss(bench_report *report, const char *name, double most, shoal_target target, shoal_value *args)
{
    double kib[WORKERS];
    shoal_err err = args ? SHOAL_OK : shoal_last_error();
    for (int i = 0; i < WORKERS && err == SHOAL_OK; i++) {
        err = look_at_worker(target, args, &kib[i]);
    }
    shoal_value_destroy(args);
    if (err != SHOAL_OK) {
        return err;
    }
    return bench_tell(
        report,
        &(bench_line){
            .name = name, .unit = "KiB", .value = bench_median(kib, WORKERS), .wanted = BENCH_AT_MOST, .target = most});
}

shoal_err bench_spawn(bench_report *report)
{
    shoal_err err = report_spawn(report);
    return err == SHOAL_OK ? bench_worker_pss(report, "worker_pss", 3072, bench_idle, shoal_value_map()) : err;
}
