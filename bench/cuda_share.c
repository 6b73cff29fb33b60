/* Card tensors between processes: one back and forth, with and without work between; many small ones through three
 * processes; a late process that opens a world with 1 GiB of them. Checks every answer, then prints one JSON line for
 * each measurement: first without MPS, then, as <name>_mps, under a daemon of its own, where the machine has one. Needs
 * a card.
 *
 *     build/cuda/bench/cuda_share [trips]
 *     build/cuda/bench/cuda_share deaths [count] [--mps] [--user name]     (cuda_share_deaths.c)
 */
#include "bench/cuda_share.h"

#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 5
#define SMALL 100000
#define AHEAD 4096
#define LATE_TENSORS 64
#define LATE_FLOATS (INT64_C(4) << 20) /* 16 MiB */
#define BACK_SECONDS 10
#define UP_SECONDS 10 /* until a daemon of MPS is up */

static const char *suffix = ""; /* of the names of measurements */

double share_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

shoal_err share_wrong(const char *what)
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

shoal_err share_start(shoal_target target, int rank, shoal_value *args, shoal_process **out)
{
    return shoal_process_start(target, args, &(shoal_process_options){.start = SHOAL_START_SPAWN, .rank = rank}, out);
}

shoal_err share_finish(shoal_process *p)
{
    shoal_status status;
    shoal_err err = shoal_process_join(p, SHOAL_FOREVER, &status);
    if (err == SHOAL_OK && status.end != SHOAL_PROCESS_RETURNED) {
        err = shoal_fail(SHOAL_ESTATE, "%s", status.text);
    }
    shoal_process_destroy(p);
    return err;
}

shoal_err share_all_back(void)
{
    shoal_cuda_memory memory;
    double end = share_now() + BACK_SECONDS;
    do {
        TRY(shoal_world_sweep(NULL));
        (void)shoal_cuda_trim();
        TRY(shoal_cuda_memory_get(&memory));
    } while (memory.held > 0 && share_now() < end);
    if (memory.held > 0) {
        return shoal_fail(SHOAL_ECORRUPT, "cuda_share: %zu bytes of GPU memory did not come back", memory.held);
    }
    return SHOAL_OK;
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
            return share_wrong("another tensor came back");
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
    TRY(share_start(answer, work, shoal_map("there", there, "back", back), &p));
    TRY(trips(there, back, t, work, 200));
    double us[ROUNDS], last;
    for (int r = 0; r < ROUNDS; r++) {
        TRY(shoal_cuda_wait());
        double begin = share_now();
        TRY(trips(there, back, t, work, count));
        TRY(shoal_cuda_wait());
        us[r] = (share_now() - begin) / count * 1e6;
    }
    TRY(shoal_tensor_at(t, 1, (int64_t[]){(1 << 18) - 1}, &last));
    if (last != (work ? 2.0 * (200 + ROUNDS * count) : 0)) {
        return share_wrong("a step of the work was lost");
    }
    printf("{\"name\": \"cuda_share_%s%s\", \"unit\": \"us\", \"value\": %.2f, \"trips\": %d, \"MiB\": 1}\n",
           work ? "trip_work" : "trip_idle", suffix, median(us, ROUNDS), count);
    (void)fflush(stdout);
    shoal_queue_close(there);
    TRY(share_finish(p));
    shoal_tensor_release(t);
    shoal_release(there);
    shoal_release(back);
    return SHOAL_OK;
}

/* ---- many small ones through three processes ---- */

/* Each of the tensors has memory, a piece and a description of its own. The maker's stream copies a row of pinned
 * memory into it, all of whose elements are its number; the last process's stream copies it into another row, and the
 * host adds up what has come, at the end. A copy is the cheapest call of the driver that a tensor can have on each
 * side, so copies a second are the limit; it is measured before, in this process alone, and so are launches. Tensors
 * are put in groups: then one mark in the maker's stream serves a group. */
#define SMALL_DOUBLES 16
#define SMALL_GROUP 64
#define WARM 1024 /* more tensors, before the clock starts */

/* Returns pinned memory for all, a row a tensor, each with its number in all places. */
static shoal_tensor *pinned_rows(void)
{
    shoal_tensor *pinned = shoal_empty_pinned(SHOAL_F64, SHOAL_SHAPE(WARM + SMALL, SMALL_DOUBLES));
    double *place = pinned ? shoal_tensor_data(pinned) : NULL;
    for (int i = 0; place && i < (WARM + SMALL) * SMALL_DOUBLES; i++) {
        place[i] = i / SMALL_DOUBLES;
    }
    return pinned;
}

/* Makes tensors i to i + count - 1 on the card, then puts them. */
static shoal_err make_group(shoal_queue *first, shoal_tensor *pinned, int i, int count)
{
    shoal_tensor *group[SMALL_GROUP];
    for (int k = 0; k < count; k++) {
        group[k] = shoal_empty_on(SHOAL_CUDA, SHOAL_F64, SHOAL_SHAPE(SMALL_DOUBLES));
        TRY(group[k] ? shoal_tensor_copy_async(group[k], shoal_select(pinned, 0, i + k)) : shoal_last_error());
    }
    for (int k = 0; k < count; k++) {
        TRY(shoal_queue_put_tensor(first, group[k], PATIENCE));
        shoal_tensor_release(group[k]);
    }
    shoal_scope_release(0);
    return SHOAL_OK;
}

static shoal_err make_small(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *pinned = pinned_rows();
    if (!pinned) {
        return shoal_last_error();
    }
    for (int i = 0; i < WARM + SMALL; i += SMALL_GROUP) {
        int left = WARM + SMALL - i;
        TRY(make_group(shoal_arg_queue(args, "first"), pinned, i, left < SMALL_GROUP ? left : SMALL_GROUP));
    }
    shoal_value *v = NULL; /* what is lent stays here until it is back */
    TRY(shoal_queue_get(shoal_arg_queue(args, "done"), PATIENCE, &v));
    shoal_value_destroy(v);
    shoal_tensor_release(pinned);
    return share_all_back();
}

static shoal_err pass_small(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_queue *first = shoal_arg_queue(args, "first"), *second = shoal_arg_queue(args, "second");
    for (int i = 0; i < WARM + SMALL; i++) {
        shoal_tensor *t;
        TRY(shoal_queue_get_tensor(first, PATIENCE, &t));
        TRY(shoal_queue_give_tensor(second, t, PATIENCE));
    }
    return SHOAL_OK;
}

/* Copies tensors i to end - 1 into their rows. */
static shoal_err take_small(shoal_queue *second, shoal_tensor *pinned, int i, int end)
{
    for (; i < end; i++) {
        shoal_tensor *t;
        TRY(shoal_queue_get_tensor(second, PATIENCE, &t));
        TRY(shoal_tensor_copy_async(shoal_select(pinned, 0, i), t));
        shoal_tensor_release(t);
        shoal_scope_release(0);
    }
    return shoal_cuda_wait();
}

/* Prints how many launches and copies to the card this process alone can enqueue in a second. */
static shoal_err measure_limits(shoal_tensor *pinned)
{
    for (int copies = 0; copies < 2; copies++) {
        shoal_tensor *t = shoal_full_on(SHOAL_CUDA, SHOAL_F64, 0, SHOAL_SHAPE(SMALL_DOUBLES));
        TRY(t ? shoal_cuda_wait() : shoal_last_error());
        double begin = share_now(), last;
        for (int i = 0; i < SMALL; i++) {
            TRY(copies                    ? shoal_tensor_copy_async(t, shoal_select(pinned, 0, i))
                : shoal_add_scalar_(t, 1) ? SHOAL_OK
                                          : shoal_last_error());
            shoal_scope_release(0);
        }
        TRY(shoal_cuda_wait());
        double seconds = share_now() - begin;
        TRY(shoal_tensor_at(t, 1, (int64_t[]){SMALL_DOUBLES - 1}, &last));
        if (last != (copies ? SMALL - 1 : SMALL)) {
            return share_wrong("the limit was measured with wrong results");
        }
        printf("{\"name\": \"cuda_share_limit_%s%s\", \"unit\": \"1/s\", \"value\": %.0f, \"processes\": 1}\n",
               copies ? "copies" : "launches", suffix, SMALL / seconds);
        (void)fflush(stdout);
        shoal_tensor_release(t);
    }
    return SHOAL_OK;
}

static shoal_err check_sum(shoal_tensor *pinned)
{
    const double *rows = shoal_tensor_data(pinned);
    double sum = 0, wanted = 0;
    for (int i = 0; i < (WARM + SMALL) * SMALL_DOUBLES; i++) {
        sum += rows[i];
        wanted += i / SMALL_DOUBLES;
    }
    return sum == wanted ? SHOAL_OK : share_wrong("the sum of the small tensors is wrong");
}

static shoal_err measure_small(void)
{
    shoal_queue *first, *second, *done;
    shoal_process *maker, *messenger;
    shoal_tensor *pinned = pinned_rows();
    TRY(pinned ? measure_limits(pinned) : shoal_last_error());
    memset(shoal_tensor_data(pinned), 0, sizeof(double) * (WARM + SMALL) * SMALL_DOUBLES);
    TRY(shoal_queue_create(AHEAD, &first));
    TRY(shoal_queue_create(AHEAD, &second));
    TRY(shoal_queue_create(0, &done));
    shoal_value *args = shoal_value_keep(shoal_map("first", first, "second", second, "done", done));
    TRY(share_start(make_small, 0, args, &maker));
    TRY(share_start(pass_small, 1, args, &messenger));
    shoal_value_destroy(args);
    TRY(take_small(second, pinned, 0, WARM));
    double begin = share_now();
    TRY(take_small(second, pinned, WARM, WARM + SMALL));
    double seconds = share_now() - begin;
    TRY(check_sum(pinned));
    TRY(shoal_queue_put(done, shoal_value_int(1), PATIENCE));
    TRY(share_finish(messenger));
    TRY(share_finish(maker));
    printf("{\"name\": \"cuda_share_small%s\", \"unit\": \"1/s\", \"value\": %.0f, \"tensors\": %d, \"processes\": 3, "
           "\"group\": %d}\n",
           suffix, SMALL / seconds, SMALL, SMALL_GROUP);
    (void)fflush(stdout);
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
    suffix = rank ? "_mps" : "";
    shoal_tensor *warm = shoal_full_on(SHOAL_CUDA, SHOAL_F32, 1, SHOAL_SHAPE(4));
    double x, sum = 0;
    TRY(shoal_item(warm ? shoal_sum(warm, SHOAL_ALL_DIMS, false) : NULL, &x));
    shoal_value *all = NULL;
    TRY(shoal_queue_put(shoal_arg_queue(args, "ready"), shoal_value_int(1), PATIENCE));
    TRY(shoal_queue_get(shoal_arg_queue(args, "all"), PATIENCE, &all));
    double begin = share_now();
    for (size_t i = 0; i < LATE_TENSORS; i++) {
        shoal_tensor *t = shoal_value_as_tensor(shoal_value_at(all, i));
        if (!t) {
            return shoal_last_error();
        }
    }
    double ms = (share_now() - begin) * 1e3;
    for (size_t i = 0; i < LATE_TENSORS; i++) {
        TRY(shoal_tensor_at(shoal_value_as_tensor(shoal_value_at(all, i)), 1, (int64_t[]){LATE_FLOATS - 1}, &x));
        sum += x;
    }
    if (sum != LATE_TENSORS * (LATE_TENSORS - 1) / 2.0) {
        return share_wrong("a tensor of the world is wrong");
    }
    printf("{\"name\": \"cuda_share_late%s\", \"unit\": \"ms\", \"value\": %.3f, \"GiB\": 1, \"tensors\": %d}\n",
           suffix, ms, LATE_TENSORS);
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
    TRY(share_start(come_late, suffix[0] != 0, shoal_map("ready", ready, "all", queue), &p));
    TRY(shoal_cuda_wait());
    shoal_value *v = NULL;
    TRY(shoal_queue_get(ready, PATIENCE, &v));
    shoal_value_destroy(v);
    TRY(shoal_queue_put(queue, all, PATIENCE));
    TRY(share_finish(p));
    for (int i = 0; i < LATE_TENSORS; i++) {
        shoal_tensor_release(made[i]);
    }
    shoal_release(ready);
    shoal_release(queue);
    return SHOAL_OK;
}

/* ---- the program ---- */

static shoal_err measure(int rank, const shoal_value *args)
{
    int64_t count = 0;
    suffix = rank ? "_mps" : "";
    TRY(shoal_arg_int(args, "trips", &count));
    TRY(measure_trips(false, (int)count));
    TRY(measure_trips(true, count > 10 ? (int)count / 10 : (int)count));
    TRY(measure_small());
    return measure_late();
}

/* The first processes of MPS and of no MPS cannot be the same one. So this one does not open the card. */
static shoal_err speeds(int count, bool with_mps)
{
    shoal_process *p;
    TRY(share_start(measure, with_mps, shoal_map("trips", (int64_t)count), &p));
    return share_finish(p);
}

/* Waits for the end of its input, then ends the daemon and its servers, also if they answer nobody. */
static const char end_of_mps[] =
    "exec >/dev/null 2>&1; nvidia-cuda-mps-control -d; read -r end\n"
    "echo quit | timeout -s KILL 2 nvidia-cuda-mps-control\n"
    "for p in $(grep -lszx \"CUDA_MPS_PIPE_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY\" /proc/[0-9]*/environ | cut -d / -f 3)\n"
    "do case $(cat /proc/$p/comm) in nvidia-cuda-mps*) kill -KILL $p; esac; done\n"
    "rm -rf \"$CUDA_MPS_PIPE_DIRECTORY\"";

/* Starts a daemon of MPS, and makes the children of this process its clients. A shell ends it when this process closes
 * the pipe, or is killed. Returns NULL if there is none here. */
static FILE *begin_mps(void)
{
    char folder[] = "/tmp/shoal-bench-XXXXXX", control[64];
    if (system("command -v nvidia-cuda-mps-control >/dev/null") != 0 || !mkdtemp(folder)) {
        return NULL;
    }
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
    (void)setenv("CUDA_MPS_LOG_DIRECTORY", folder, 1);
    FILE *mps_control = popen(end_of_mps, "we");
    (void)snprintf(control, sizeof control, "%s/control", folder);
    for (double end = share_now() + UP_SECONDS; mps_control && access(control, F_OK) != 0 && share_now() < end;) {
        (void)usleep(1000);
    }
    return mps_control;
}

static shoal_err run(int argc, char **argv)
{
    bool kills = argc > 1 && strcmp(argv[1], "deaths") == 0, with_mps = false;
    int count = kills ? 200 : 20000;
    for (int i = 1 + kills; i < argc; i++) {
        with_mps |= strcmp(argv[i], "--mps") == 0;
        i += strcmp(argv[i], "--user") == 0;
        count = i < argc && atoi(argv[i]) > 0 ? atoi(argv[i]) : count;
    }
    int64_t before = 0, after = 0;
    TRY(kills ? share_in_use(&before) : speeds(count, false));
    FILE *mps = with_mps || !kills ? begin_mps() : NULL;
    if (!mps && (with_mps || !kills)) {
        printf("{\"name\": \"cuda_share_mps\", \"skipped\": \"nvidia-cuda-mps-control is not installed\"}\n");
        return SHOAL_OK;
    }
    shoal_err err = kills ? share_deaths(count, with_mps) : speeds(count, true);
    if (mps) {
        (void)pclose(mps);
        (void)unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    }
    if (err == SHOAL_OK && kills) {
        TRY(share_in_use_again(before, &after));
        printf("{\"name\": \"cuda_share_after_deaths\", \"mps\": %s, \"uid\": %d, \"MiB_before\": %lld, \"MiB_after\": "
               "%lld}\n",
               with_mps ? "true" : "false", (int)getuid(), (long long)before, (long long)after);
    }
    return err;
}

/* Becomes the user that --user names, before the world is made, whose memory then is that user's; a child is it
 * already.
 * Returns false after a sentence if this process may not. */
static bool become_user(int argc, char **argv)
{
    const char *name = NULL;
    for (int i = 1; i + 1 < argc; i++) {
        name = strcmp(argv[i], "--user") == 0 ? argv[i + 1] : name;
    }
    const struct passwd *user = name ? getpwnam(name) : NULL;
    if (!name || (user && getuid() == user->pw_uid)) {
        return true;
    }
    if (!user || setgroups(0, NULL) != 0 || setgid(user->pw_gid) != 0 || setuid(user->pw_uid) != 0) {
        printf("{\"name\": \"cuda_share_user\", \"skipped\": \"this process cannot become %s\"}\n", name);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (!become_user(argc, argv)) {
        return EXIT_SUCCESS;
    }
    shoal_err err = shoal_init(&argc, &argv);
    if (err == SHOAL_OK) {
        err = run(argc, argv);
    }
    if (err != SHOAL_OK) {
        (void)fprintf(stderr, "cuda_share: %s\n", shoal_last_error_text());
    }
    return err == SHOAL_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
