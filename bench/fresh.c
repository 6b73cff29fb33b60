/* 64 MiB of fresh data: copied from a warm private buffer into a block, and sent back and forth. */
#include "bench/bench.h"

#include <stdlib.h>
#include <string.h>

#define SIZE (UINT64_C(64) << 20)
#define WORDS (SIZE / sizeof(uint64_t))

typedef struct fresh {
    shoal_queue *there, *back;
    uint64_t *source, *copy; /* of rank 0 */
    uint64_t round;
} fresh;

static uint64_t word_at(uint64_t round, uint64_t i)
{
    return round * UINT64_C(0x9e3779b97f4a7c15) + i;
}

/* The limit; only rank 0 works. */
static shoal_err copy(void *context, int rank, uint64_t count)
{
    fresh *f = context;
    for (uint64_t i = 0; rank == 0 && i < count; i++) {
        memcpy(f->copy, f->source, SIZE);
        __asm__ volatile("" ::"r"(f->copy) : "memory");
    }
    return SHOAL_OK;
}

/* Checks all of it in the first round, later its ends. */
static bool is_right(const uint64_t *words, uint64_t round)
{
    if (round > 0) {
        return words[0] == word_at(round, 0) && words[WORDS - 1] == word_at(round, WORDS - 1);
    }
    for (uint64_t i = 0; i < WORDS; i++) {
        if (words[i] != word_at(round, i)) {
            return false;
        }
    }
    return true;
}

static shoal_err round_trip(fresh *f)
{
    shoal_block *block, *same = NULL;
    f->source[0] = word_at(f->round, 0);
    f->source[WORDS - 1] = word_at(f->round, WORDS - 1);
    shoal_err err = shoal_block_create(SIZE, &block);
    if (err != SHOAL_OK) {
        return err;
    }
    memcpy(shoal_block_data(block), f->source, SIZE);
    err = shoal_queue_put_block(f->there, block, BENCH_PATIENCE);
    if (err == SHOAL_OK) {
        err = shoal_queue_get_block(f->back, BENCH_PATIENCE, &same);
    }
    if (err == SHOAL_OK && same != block) {
        err = shoal_fail(SHOAL_ECORRUPT, "a different block came back");
    }
    shoal_release(same);
    shoal_release(block);
    f->round++;
    return err;
}

static shoal_err send_back(fresh *f)
{
    shoal_block *block;
    shoal_err err = shoal_queue_get_block(f->there, BENCH_PATIENCE, &block);
    if (err != SHOAL_OK) {
        return err;
    }
    if (shoal_block_size(block) != SIZE || !is_right(shoal_block_data(block), f->round)) {
        err = shoal_fail(SHOAL_ECORRUPT, "64 MiB arrived with wrong bytes");
    }
    if (err == SHOAL_OK) {
        err = shoal_queue_put_block(f->back, block, BENCH_PATIENCE);
    }
    shoal_release(block);
    f->round++;
    return err;
}

static shoal_err hand_over(void *context, int rank, uint64_t count)
{
    shoal_err err = SHOAL_OK;
    for (uint64_t i = 0; i < count && err == SHOAL_OK; i++) {
        err = rank == 0 ? round_trip(context) : send_back(context);
    }
    return err;
}

static shoal_err run(int rank, const shoal_value *args)
{
    static const bench_step steps[] = {copy, hand_over};
    fresh f = {.there = shoal_arg_queue(args, "there"), .back = shoal_arg_queue(args, "back")};
    if (f.there == NULL || f.back == NULL) {
        return shoal_last_error();
    }
    shoal_err err = bench_enter(rank, args);
    if (err == SHOAL_OK && rank == 0) {
        f.source = malloc(SIZE);
        f.copy = malloc(SIZE);
        if (f.source == NULL || f.copy == NULL) {
            err = shoal_fail(SHOAL_ENOMEM, "no memory for two buffers of 64 MiB");
        }
        for (uint64_t i = 0; err == SHOAL_OK && i < WORDS; i++) {
            f.source[i] = word_at(0, i);
        }
    }
    if (err == SHOAL_OK) {
        err = bench_interleave_return(steps, 2, &f, rank, 1);
    }
    free(f.copy);
    free(f.source);
    return err;
}

shoal_err bench_fresh(bench_report *report)
{
    shoal_queue *there = NULL, *back = NULL;
    shoal_value *result = NULL;
    shoal_err err = shoal_queue_create(0, &there);
    if (err == SHOAL_OK) {
        err = shoal_queue_create(0, &back);
    }
    if (err == SHOAL_OK) {
        err = bench_pair(run, shoal_map("there", there, "back", back), NULL, true, &result);
    }
    shoal_release(back);
    shoal_release(there);
    if (err != SHOAL_OK) {
        return err;
    }
    double limit = bench_result(result, 0) * 1e3;
    err = bench_tell_limit(report, BENCH_MEMCPY, limit);
    if (err == SHOAL_OK) {
        err = bench_tell(report, &(bench_line){.name = "fresh_64mib_round_trip",
                                               .unit = "ms",
                                               .value = bench_result(result, 1) * 1e3,
                                               .limit_name = bench_limit_name(BENCH_MEMCPY),
                                               .limit = limit,
                                               .wanted = BENCH_AT_MOST,
                                               .target = 2 * limit});
    }
    shoal_value_destroy(result);
    return err;
}
