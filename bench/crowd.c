/* Many processes in one world. For each number of processes it prints one JSON line: how long they take to start, how
 * many CPUs they use while all of them wait, how long a sweep takes, how long it takes until a killed party of a
 * barrier has broken it for all others, and how long until a tenth of them, killed at once, are recovered.
 *
 *     build/bench/crowd [processes]...        1000 2000 4000
 *
 * Each number is measured in a world of its own. 4,000 processes need 16 GiB of memory, and a pid_max and a limit of
 * processes (ulimit -u) above that number.
 */
#include <shoal/shoal.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE SHOAL_SECONDS(120)
#define SWEEPS 11
#define SETTLE_SECONDS 3 /* until all of them wait in their longest slices (src/sync/park.h) */
#define IDLE_SECONDS 5
#define VICTIM 5 /* of the barrier; every tenth is killed later */

#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        shoal_err err_ = (expression);                                                                                 \
        if (err_ != SHOAL_OK) {                                                                                        \
            return err_;                                                                                               \
        }                                                                                                              \
    } while (0)

typedef struct crowd {
    int count;
    shoal_process **processes;
    shoal_semaphore *up, *broken;
    shoal_event *meet, *end;
    shoal_barrier *barrier;
} crowd;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void pause_for(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&t, NULL);
}

/* A member waits for an event, then at a barrier that one party never reaches, then for another event. */
static shoal_err member(int rank, const shoal_value *args)
{
    shoal_semaphore *up = shoal_arg_semaphore(args, "up"), *broken = shoal_arg_semaphore(args, "broken");
    shoal_event *meet = shoal_arg_event(args, "meet"), *end = shoal_arg_event(args, "end");
    shoal_barrier *barrier = shoal_arg_barrier(args, "barrier");
    (void)rank;
    if (up == NULL || broken == NULL || meet == NULL || end == NULL || barrier == NULL) {
        return shoal_last_error();
    }
    TRY(shoal_semaphore_post(up, 1));
    TRY(shoal_event_wait(meet, SHOAL_FOREVER));
    shoal_err err = shoal_barrier_wait(barrier, SHOAL_FOREVER, NULL);
    if (err != SHOAL_EBROKEN) {
        return shoal_fail(SHOAL_ECORRUPT, "a barrier without all of its parties did not break");
    }
    TRY(shoal_semaphore_post(broken, 1));
    return shoal_event_wait(end, SHOAL_FOREVER);
}

static shoal_err start(crowd *c)
{
    for (int i = 0; i < c->count; i++) {
        shoal_value *args =
            shoal_map("up", c->up, "broken", c->broken, "meet", c->meet, "end", c->end, "barrier", c->barrier);
        TRY(shoal_process_start(member, args, &(shoal_process_options){.start = SHOAL_START_SPAWN, .rank = i},
                                &c->processes[i]));
    }
    for (int i = 0; i < c->count; i++) {
        TRY(shoal_semaphore_wait(c->up, PATIENCE));
    }
    return SHOAL_OK;
}

/* Returns the CPU time that all members have used so far, in seconds. */
static double cpu_time(const crowd *c)
{
    double sum = 0;
    for (int i = 0; i < c->count; i++) {
        clockid_t clock;
        struct timespec t;
        if (clock_getcpuclockid(shoal_process_pid(c->processes[i]), &clock) == 0 && clock_gettime(clock, &t) == 0) {
            sum += (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
        }
    }
    return sum;
}

static double idle_cpus(const crowd *c)
{
    pause_for(SETTLE_SECONDS);
    double before = cpu_time(c), begun = now();
    pause_for(IDLE_SECONDS);
    return (cpu_time(c) - before) / (now() - begun);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static shoal_err time_sweep(double *out_seconds)
{
    double times[SWEEPS];
    for (int i = 0; i < SWEEPS; i++) {
        double begun = now();
        TRY(shoal_world_sweep(NULL));
        times[i] = now() - begun;
    }
    qsort(times, SWEEPS, sizeof times[0], by_size);
    *out_seconds = times[SWEEPS / 2];
    return SHOAL_OK;
}

/* Kills one party while all others wait at the barrier. *out_first: until it is broken; *out_all: until all know. */
static shoal_err time_break(crowd *c, double *out_first, double *out_all)
{
    shoal_event_set(c->meet);
    for (double end = now() + 120; shoal_barrier_waiting(c->barrier) < (uint32_t)c->count && now() < end;) {
        pause_for(0.001);
    }
    pause_for(0.5);
    double begun = now();
    TRY(shoal_process_kill(c->processes[VICTIM]));
    while (!shoal_barrier_is_broken(c->barrier)) {
        pause_for(0.001);
    }
    *out_first = now() - begun;
    for (int i = 0; i < c->count - 1; i++) {
        TRY(shoal_semaphore_wait(c->broken, PATIENCE));
    }
    *out_all = now() - begun;
    return SHOAL_OK;
}

static shoal_err recovered_now(uint64_t *out_recovered)
{
    shoal_world_info info;
    TRY(shoal_world_info_get(&info));
    *out_recovered = info.recovered;
    return SHOAL_OK;
}

static shoal_err time_recovery(crowd *c, double *out_seconds)
{
    uint64_t before, recovered;
    TRY(recovered_now(&before));
    double begun = now();
    for (int i = 0; i < c->count / 10; i++) {
        TRY(shoal_process_kill(c->processes[i * 10]));
    }
    do {
        TRY(shoal_world_sweep(NULL));
        TRY(recovered_now(&recovered));
    } while (recovered - before < (uint64_t)c->count / 10);
    *out_seconds = now() - begun;
    return SHOAL_OK;
}

static shoal_err finish(crowd *c)
{
    double begun = now();
    shoal_event_set(c->end);
    for (int i = 0; i < c->count; i++) {
        shoal_status status;
        TRY(shoal_process_join(c->processes[i], PATIENCE, &status));
        if (status.end != (i % 10 == 0 || i == VICTIM ? SHOAL_PROCESS_KILLED : SHOAL_PROCESS_RETURNED)) {
            return shoal_fail(SHOAL_ECHILD, "%s", status.text);
        }
        shoal_process_destroy(c->processes[i]);
    }
    fprintf(stderr, "ended in %.2f s\n", now() - begun);
    shoal_audit audit;
    return shoal_world_audit(&audit);
}

static shoal_err measure(int count)
{
    crowd c = {.count = count, .processes = calloc((size_t)count, sizeof(shoal_process *))};
    double idle, sweep, first, all, recovery;
    if (c.processes == NULL) {
        return shoal_fail(SHOAL_ENOMEM, "no memory for %d handles", count);
    }
    TRY(shoal_semaphore_create(0, (uint32_t)count, &c.up));
    TRY(shoal_semaphore_create(0, (uint32_t)count, &c.broken));
    TRY(shoal_event_create(&c.meet));
    TRY(shoal_event_create(&c.end));
    TRY(shoal_barrier_create((uint32_t)count + 1, &c.barrier));
    double begun = now();
    TRY(start(&c));
    double up = now() - begun;
    idle = idle_cpus(&c);
    TRY(time_sweep(&sweep));
    TRY(time_break(&c, &first, &all));
    TRY(time_recovery(&c, &recovery));
    printf(
        "{\"processes\": %d, \"start_s\": %.2f, \"idle_cpus\": %.3f, \"sweep_ms\": %.2f, \"barrier_broken_ms\": %.0f, "
        "\"barrier_left_ms\": %.0f, \"recovery_s\": %.3f}\n",
        count, up, idle, sweep * 1e3, first * 1e3, all * 1e3, recovery);
    (void)fflush(stdout);
    return finish(&c);
}

/* A child without a handle in the caller, so that each number begins with a world that had no other processes. */
static shoal_err measure_apart(int count)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        shoal_err err = measure(count);
        if (err != SHOAL_OK) {
            (void)fprintf(stderr, "crowd: %d processes: %s\n", count, shoal_last_error_text());
        }
        exit(err == SHOAL_OK ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
        return shoal_fail(SHOAL_ECHILD, "the measurement of %d processes failed", count);
    }
    return SHOAL_OK;
}

int main(int argc, char **argv)
{
    struct rlimit fds;
    shoal_err err = shoal_init(&argc, &argv);
    if (getrlimit(RLIMIT_NOFILE, &fds) == 0) { /* a handle of a process is an fd */
        fds.rlim_cur = fds.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &fds);
    }
    static const int usual[] = {1000, 2000, 4000};
    for (int i = 0; i < 3 && argc == 1 && err == SHOAL_OK; i++) {
        err = measure_apart(usual[i]);
    }
    for (int i = 1; i < argc && err == SHOAL_OK; i++) {
        err = measure_apart(atoi(argv[i]));
    }
    if (err != SHOAL_OK) {
        (void)fprintf(stderr, "crowd: %s\n", shoal_last_error_text());
    }
    return err == SHOAL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
