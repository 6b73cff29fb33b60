/* Messages per second, one way: eight bytes and block handles from one process to another, and from four to four. */
#include "bench/bench.h"

#define COUNT 10000
#define BOUND 1024
#define BLOCKS 64
#define BLOCK_SIZE 1024
#define SIDES 4
#define MANY_COUNT 250000 /* from each of the four producers */
#define MANY_ROUNDS 7

typedef struct flow {
    shoal_queue *small, *handles;
    shoal_barrier *start;
    shoal_block *blocks[BLOCKS]; /* of rank 1 */
    uint64_t sent, received;
} flow;

static shoal_err begin_together(shoal_barrier *start)
{
    uint32_t index;
    return shoal_barrier_wait(start, BENCH_PATIENCE, &index);
}

/* Rank 0 consumes, so that it measures until the last message has arrived. */
static shoal_err small_flow(void *context, int rank, uint64_t count)
{
    flow *f = context;
    shoal_err err = begin_together(f->start);
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        uint64_t n = 0;
        size_t size;
        if (rank == 1) {
            err = shoal_queue_put_bytes(f->small, &f->sent, sizeof f->sent, BENCH_PATIENCE);
            f->sent++;
            continue;
        }
        err = shoal_queue_get_bytes(f->small, &n, sizeof n, BENCH_PATIENCE, &size);
        if (err == SHOAL_OK && n != f->received++) {
            err = shoal_fail(SHOAL_ECORRUPT, "message %llu arrived instead of %llu", (unsigned long long)n,
                             (unsigned long long)f->received - 1);
        }
    }
    return err;
}

static shoal_err take_handle(flow *f, uint64_t i)
{
    shoal_block *block;
    shoal_err err = shoal_queue_get_block(f->handles, BENCH_PATIENCE, &block);
    if (err == SHOAL_OK) {
        uint64_t number = *(const uint64_t *)shoal_block_data(block);
        if (number != i % BLOCKS) {
            err = shoal_fail(SHOAL_ECORRUPT, "block %llu arrived instead of %llu", (unsigned long long)number,
                             (unsigned long long)i % BLOCKS);
        }
        shoal_release(block);
    }
    return err;
}

static shoal_err handle_flow(void *context, int rank, uint64_t count)
{
    flow *f = context;
    shoal_err err = begin_together(f->start);
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        err = rank == 1 ? shoal_queue_put_block(f->handles, f->blocks[i % BLOCKS], BENCH_PATIENCE) : take_handle(f, i);
    }
    return err;
}

static shoal_err make_blocks(flow *f)
{
    shoal_err err = SHOAL_OK;
    for (uint64_t i = 0; i < BLOCKS && err == SHOAL_OK; i++) {
        err = shoal_block_create(BLOCK_SIZE, &f->blocks[i]);
        if (err == SHOAL_OK) {
            *(uint64_t *)shoal_block_data(f->blocks[i]) = i;
        }
    }
    return err;
}

static shoal_err one_to_one(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {small_flow, handle_flow};
    flow f = {.small = shoal_arg_queue(args, "small"),
              .handles = shoal_arg_queue(args, "handles"),
              .start = shoal_arg_barrier(args, "start")};
    if (f.small == NULL || f.handles == NULL || f.start == NULL) {
        return shoal_last_error();
    }
    shoal_err err = rank == 1 ? make_blocks(&f) : SHOAL_OK;
    if (err == SHOAL_OK) {
        err = bench_enter(rank, args);
    }
    return err == SHOAL_OK ? bench_interleave_return(steps, 2, &f, rank, COUNT) : err;
}

/* ---- four producers, four consumers ---- */

/* A message: its producer and its sequence number. */
static uint64_t message_of(int producer, uint64_t n)
{
    return (uint64_t)producer << 32 | n;
}

static shoal_err consume(shoal_queue *queue, uint64_t last[SIDES], uint64_t *out_sum)
{
    uint64_t m;
    size_t size;
    shoal_err err = shoal_queue_get_bytes(queue, &m, sizeof m, BENCH_PATIENCE, &size);
    if (err != SHOAL_OK) {
        return err;
    }
    uint64_t producer = m >> 32, n = m & UINT32_MAX;
    if (size != sizeof m || producer >= SIDES || n <= last[producer]) {
        return shoal_fail(SHOAL_ECORRUPT, "message %llu of producer %llu is out of order", (unsigned long long)n,
                          (unsigned long long)producer);
    }
    last[producer] = n;
    *out_sum += n;
    return SHOAL_OK;
}

/* When each rank began and ended its part of a round. With more processes than CPUs they do not all run at once, so a
 * round lasts from the first start to the last end. */
typedef struct times {
    double begun[2 * SIDES], ended[2 * SIDES];
} times;

static double round_seconds(const times *t)
{
    double begun = t->begun[0], ended = t->ended[0];
    for (int i = 1; i < 2 * SIDES; i++) {
        begun = t->begun[i] < begun ? t->begun[i] : begun;
        ended = t->ended[i] > ended ? t->ended[i] : ended;
    }
    return ended - begun;
}

typedef struct many {
    shoal_queue *queue;
    shoal_barrier *start;
    times *times;
    uint64_t last[SIDES], sent, sum;
} many;

static shoal_err many_round(many *m, int rank)
{
    shoal_err err = begin_together(m->start);
    m->times->begun[rank] = bench_now();
    for (uint64_t i = 0; i < MANY_COUNT && err == SHOAL_OK; i++) {
        if (rank < SIDES) {
            uint64_t message = message_of(rank, ++m->sent);
            err = shoal_queue_put_bytes(m->queue, &message, sizeof message, BENCH_PATIENCE);
        } else {
            err = consume(m->queue, m->last, &m->sum);
        }
    }
    m->times->ended[rank] = bench_now();
    return err == SHOAL_OK ? begin_together(m->start) : err;
}

/* Ranks 0 to 3 produce, ranks 4 to 7 consume as many each. Producers return the median of the seconds, consumers the
 * sum of the messages they got. */
static shoal_err many_to_many(int rank, const shoal_value *args)
{
    shoal_block *page = shoal_arg_block(args, "times");
    many m = {.queue = shoal_arg_queue(args, "queue"), .start = shoal_arg_barrier(args, "start")};
    double seconds[MANY_ROUNDS];
    if (m.queue == NULL || m.start == NULL || page == NULL) {
        return shoal_last_error();
    }
    m.times = shoal_block_data(page);
    for (int round = -1; round < MANY_ROUNDS; round++) {
        shoal_err err = many_round(&m, rank);
        if (err != SHOAL_OK) {
            return err;
        }
        if (round >= 0) {
            seconds[round] = round_seconds(m.times);
        }
        err = begin_together(m.start); /* so that nobody writes the next times while these are read */
        if (err != SHOAL_OK) {
            return err;
        }
    }
    return shoal_return(rank < SIDES ? shoal_value_float(bench_median(seconds, MANY_ROUNDS))
                                     : shoal_value_int((int64_t)m.sum));
}

/* Returns the producers' median, if the consumers got what the producers sent. */
static shoal_err judge_many(shoal_value *const *results, double *out_seconds)
{
    int64_t each = (int64_t)(MANY_ROUNDS + 1) * MANY_COUNT, sum = 0;
    shoal_err err = shoal_value_as_float(results[0], out_seconds);
    for (int i = SIDES; i < 2 * SIDES && err == SHOAL_OK; i++) {
        int64_t part = 0;
        err = shoal_value_as_int(results[i], &part);
        sum += part;
    }
    return err != SHOAL_OK ? err
           : sum == SIDES * (each * (each + 1) / 2)
               ? SHOAL_OK
               : shoal_fail(SHOAL_ECORRUPT, "what four consumers got does not add up to what four producers sent");
}

static shoal_err run_many(double *out_seconds)
{
    shoal_value *results[2 * SIDES] = {NULL};
    shoal_queue *queue = NULL;
    shoal_barrier *start = NULL;
    shoal_block *page = NULL;
    shoal_err err = shoal_queue_create(BOUND, &queue);
    if (err == SHOAL_OK) {
        err = shoal_barrier_create(2 * SIDES, &start);
    }
    if (err == SHOAL_OK) {
        err = shoal_block_create(sizeof(times), &page);
    }
    if (err == SHOAL_OK) {
        err = shoal_spawn_with(many_to_many, 2 * SIDES, shoal_map("queue", queue, "start", start, "times", page),
                               &(shoal_process_options){.name = "bench"}, results);
    }
    if (err == SHOAL_OK) {
        err = judge_many(results, out_seconds);
    }
    for (int i = 0; i < 2 * SIDES; i++) {
        shoal_value_destroy(results[i]);
    }
    shoal_release(page);
    shoal_release(start);
    shoal_release(queue);
    return err;
}

static shoal_err run_one(shoal_value **out_result)
{
    shoal_queue *small = NULL, *handles = NULL;
    shoal_barrier *start = NULL;
    shoal_err err = shoal_queue_create(BOUND, &small);
    if (err == SHOAL_OK) {
        err = shoal_queue_create(BOUND, &handles);
    }
    if (err == SHOAL_OK) {
        err = shoal_barrier_create(2, &start);
    }
    if (err == SHOAL_OK) {
        err = bench_pair(one_to_one, shoal_map("small", small, "handles", handles, "start", start), NULL, true,
                         out_result);
    }
    shoal_release(start);
    shoal_release(handles);
    shoal_release(small);
    return err;
}

static shoal_err tell_rate(bench_report *report, const char *name, double rate, double target)
{
    return bench_tell(report, &(bench_line){.name = name,
                                            .unit = "1/s",
                                            .value = rate,
                                            .wanted = target > 0 ? BENCH_AT_LEAST : BENCH_ANY,
                                            .target = target});
}

shoal_err bench_flow(bench_report *report)
{
    shoal_value *result;
    double seconds = 0;
    shoal_err err = run_one(&result);
    if (err != SHOAL_OK) {
        return err;
    }
    err = tell_rate(report, "queue_small_per_second", 1 / bench_result(result, 0), 5e6);
    if (err == SHOAL_OK) {
        err = tell_rate(report, "queue_handles_per_second", 1 / bench_result(result, 1), 1e6);
    }
    shoal_value_destroy(result);
    if (err == SHOAL_OK) {
        err = run_many(&seconds);
    }
    return err == SHOAL_OK ? tell_rate(report, "queue_4x4_per_second", SIDES * MANY_COUNT / seconds, 0) : err;
}
