/* Processes that are killed while they share card tensors. Three parts, each with many processes at a time:
 *
 *     finished    a maker is killed right after it put a tensor whose work is done; whoever receives it starts two
 *                 seconds later: it must be whole
 *     unfinished  a maker is killed with most of its work outstanding: the receiver gets the error, or the tensor whole
 *     consumers   processes are killed that hold tensors of a living maker: its memory comes back
 *
 * After each part the card's used memory must be what it was, and once more when MPS has ended. This process does not
 * open the card: its children find the memory in the world alone. Prints one JSON line for each part. */
#include "bench/cuda_share.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

#define WAVE 20 /* makers, or consumers, at a time */
#define RECEIVERS 4
#define TENSORS_EACH (WAVE / RECEIVERS)
#define FEW 20 /* deaths, in the second and the third part */
#define PAUSE 2
#define FLOATS (INT64_C(1) << 18)
#define LONG_FLOATS (INT64_C(1) << 24) /* the card needs 20 us or more for a launch, this process 5 */
#define WORK 3000                      /* launches: a tenth of a second is not done when it is killed */
#define BACK_TRIES 20
#define SERVER_MIB 16 /* an MPS server keeps a little more after its first clients; a granule has at least 32 */

/* ---- processes ---- */

/* Makes a tensor whose elements all have its rank, puts it, and is killed: with the work done, or with most of it
 * outstanding. */
static shoal_err make_and_die(int rank, const shoal_value *args)
{
    int64_t unfinished = 0;
    TRY(shoal_arg_int(args, "unfinished", &unfinished));
    shoal_tensor *t =
        shoal_full_on(SHOAL_CUDA, SHOAL_F32, unfinished ? 0 : rank, SHOAL_SHAPE(unfinished ? LONG_FLOATS : FLOATS));
    TRY(t ? shoal_cuda_wait() : shoal_last_error());
    for (int i = 0; unfinished && i < WORK; i++) {
        TRY(shoal_add_scalar_(t, 1) ? SHOAL_OK : shoal_last_error());
    }
    TRY(shoal_queue_put_tensor(shoal_arg_queue(args, "queue"), t, PATIENCE));
    (void)raise(SIGKILL);
    return SHOAL_OK;
}

/* Returns SHOAL_OK if a tensor came whole, or SHOAL_ELOST if its work was lost. */
static shoal_err check_one(shoal_queue *queue, bool unfinished)
{
    shoal_tensor *t = NULL;
    double low = -1, high = -2;
    TRY(shoal_queue_get_tensor(queue, PATIENCE, &t));
    shoal_tensor *least = shoal_min(t, SHOAL_ALL_DIMS, false), *most = shoal_max(t, SHOAL_ALL_DIMS, false);
    shoal_err err = least && most ? shoal_cuda_wait() : shoal_last_error();
    if (err == SHOAL_OK) {
        err = shoal_item(least, &low);
    }
    if (err == SHOAL_OK) {
        err = shoal_item(most, &high);
    }
    if (err == SHOAL_OK && (low != high || (unfinished && low != WORK))) {
        err = share_wrong("a tensor of a dead process came, and not whole");
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
    for (int i = 0; i < TENSORS_EACH; i++) {
        shoal_err err = check_one(shoal_arg_queue(args, "queue"), unfinished != 0);
        bool lost = err == SHOAL_ELOST && unfinished;
        TRY(lost ? SHOAL_OK : err);
        TRY(shoal_queue_put(shoal_arg_queue(args, "told"), shoal_value_int(lost), PATIENCE));
    }
    return SHOAL_OK;
}

/* Lends tensors, and waits until all are back. */
static shoal_err make_and_wait(int rank, const shoal_value *args)
{
    (void)rank;
    for (int i = 0; i < WAVE; i++) {
        shoal_tensor *t = shoal_full_on(SHOAL_CUDA, SHOAL_F32, i, SHOAL_SHAPE(FLOATS));
        TRY(t ? shoal_queue_put_tensor(shoal_arg_queue(args, "queue"), t, PATIENCE) : shoal_last_error());
        shoal_tensor_release(t);
    }
    shoal_value *v = NULL;
    TRY(shoal_queue_get(shoal_arg_queue(args, "told"), SHOAL_FOREVER, &v));
    shoal_value_destroy(v);
    return share_all_back();
}

/* Is killed with a tensor, on which it has work. */
static shoal_err take_and_die(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_tensor *t = NULL;
    TRY(shoal_queue_get_tensor(shoal_arg_queue(args, "queue"), PATIENCE, &t));
    for (int i = 0; i < 10; i++) {
        TRY(shoal_add_scalar_(t, 1) ? SHOAL_OK : shoal_last_error());
    }
    (void)raise(SIGKILL);
    return SHOAL_OK;
}

/* Says how many MiB of the card are in use, by all processes. It is one of them. */
static shoal_err weigh(int rank, const shoal_value *args)
{
    (void)rank;
    shoal_cuda_memory memory;
    TRY(shoal_cuda_memory_get(&memory));
    return shoal_queue_put(shoal_arg_queue(args, "told"), shoal_value_int((memory.total - memory.free) >> 20),
                           PATIENCE);
}

/* ---- parts ---- */

static shoal_err get_int(shoal_queue *queue, int64_t *out)
{
    shoal_value *v = NULL;
    TRY(shoal_queue_get(queue, PATIENCE, &v));
    shoal_err err = shoal_value_as_int(v, out);
    shoal_value_destroy(v);
    return err;
}

shoal_err share_in_use(int64_t *out_mib)
{
    shoal_queue *told;
    shoal_process *p;
    TRY(shoal_world_sweep(NULL));
    TRY(shoal_queue_create(0, &told));
    TRY(share_start(weigh, 0, shoal_map("told", told), &p));
    TRY(share_finish(p));
    shoal_err err = get_int(told, out_mib);
    shoal_release(told);
    return err;
}

shoal_err share_in_use_again(int64_t before, int64_t *out_mib)
{
    for (int i = 0; i < BACK_TRIES; i++) {
        TRY(share_in_use(out_mib));
        if (*out_mib <= before) {
            return SHOAL_OK;
        }
    }
    return shoal_fail(SHOAL_ECORRUPT, "cuda_share: the GPU's used memory was %lld MiB and is %lld MiB",
                      (long long)before, (long long)*out_mib);
}

static shoal_err start_all(shoal_target target, const shoal_value *args, int count, shoal_process **all)
{
    for (int i = 0; i < count; i++) {
        TRY(share_start(target, i, shoal_value_copy(args), &all[i]));
    }
    return SHOAL_OK;
}

static shoal_err end_all(shoal_process **all, int count, shoal_end end)
{
    for (int i = 0; i < count; i++) {
        shoal_status status;
        TRY(shoal_process_join(all[i], SHOAL_SECONDS(120), &status));
        if (status.end != end) {
            return shoal_fail(SHOAL_ESTATE, "%s", status.text);
        }
        shoal_process_destroy(all[i]);
    }
    return SHOAL_OK;
}

static void sleep_until(double time)
{
    double left = time - share_now();
    struct timespec pause = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
    if (left > 0) {
        (void)nanosleep(&pause, NULL);
    }
}

/* One wave of makers is killed while the receivers of the last one start: two seconds after its deaths, or at once. */
static shoal_err makers_die(bool unfinished, int count, int *out_whole, int *out_lost)
{
    shoal_queue *told;
    shoal_process *makers[WAVE], *receivers[RECEIVERS];
    shoal_value *args = NULL, *last = NULL;
    double since = 0;
    TRY(shoal_queue_create(0, &told));
    for (int n = 0; n < count || last; n += WAVE) {
        shoal_queue *queue = NULL;
        if (n < count) {
            TRY(shoal_queue_create(0, &queue));
            args = shoal_value_keep(shoal_map("queue", queue, "told", told, "unfinished", (int64_t)unfinished));
            shoal_release(queue);
            TRY(start_all(make_and_die, args, WAVE, makers));
        }
        if (last) {
            sleep_until(since + (unfinished ? 0 : PAUSE));
            TRY(start_all(receive_late, last, RECEIVERS, receivers));
        }
        TRY(n < count ? end_all(makers, WAVE, SHOAL_PROCESS_KILLED) : SHOAL_OK);
        since = share_now();
        for (int i = 0; last && i < WAVE; i++) {
            int64_t lost = 0;
            TRY(get_int(told, &lost));
            *(lost ? out_lost : out_whole) += 1;
        }
        TRY(last ? end_all(receivers, RECEIVERS, SHOAL_PROCESS_RETURNED) : SHOAL_OK);
        shoal_value_destroy(last);
        last = args;
        args = NULL;
    }
    shoal_release(told);
    return SHOAL_OK;
}

static shoal_err consumers_die(int count)
{
    shoal_process *maker, *consumers[WAVE];
    for (int n = 0; n < count; n += WAVE) {
        shoal_queue *queue, *told;
        TRY(shoal_queue_create(0, &queue));
        TRY(shoal_queue_create(0, &told));
        shoal_value *args = shoal_value_keep(shoal_map("queue", queue, "told", told));
        TRY(share_start(make_and_wait, 0, shoal_value_copy(args), &maker));
        TRY(start_all(take_and_die, args, WAVE, consumers));
        TRY(end_all(consumers, WAVE, SHOAL_PROCESS_KILLED));
        TRY(shoal_queue_put(told, shoal_value_int(1), PATIENCE));
        TRY(share_finish(maker));
        shoal_value_destroy(args);
        shoal_release(queue);
        shoal_release(told);
    }
    return SHOAL_OK;
}

static int waves_of(int count)
{
    return (count + WAVE - 1) / WAVE * WAVE;
}

shoal_err share_deaths(int count, bool with_mps)
{
    static const char *const names[] = {"killed_finished", "killed_unfinished", "killed_consumers"};
    int64_t before, after;
    TRY(share_in_use(&before));
    TRY(share_in_use(&before)); /* the first one may have started a server of MPS */
    for (int part = 0; part < 3; part++) {
        int deaths = waves_of(part == 0 || count < FEW ? count : FEW), whole = 0, lost = 0;
        double begin = share_now();
        TRY(part < 2 ? makers_die(part == 1, deaths, &whole, &lost) : consumers_die(deaths));
        double seconds = share_now() - begin;
        TRY(share_in_use_again(before + (with_mps ? SERVER_MIB : 0), &after));
        printf("{\"name\": \"cuda_share_%s\", \"deaths\": %d, \"whole\": %d, \"lost\": %d, \"seconds\": %.1f, "
               "\"MiB_before\": %lld, \"MiB_after\": %lld}\n",
               names[part], deaths, whole, lost, seconds, (long long)before, (long long)after);
        (void)fflush(stdout);
    }
    return SHOAL_OK;
}
