/* A pipeline that loses nothing: a reader, workers that are killed again and again, and a writer.
 *
 * The queue between reader and workers is acknowledged: it keeps an item until a worker says that the item is done. A
 * worker that is killed while it has an item may have sent the result already, so an item may arrive twice. The writer
 * identifies items by their numbers and drops the second result.
 *
 *     build/examples/pipeline [items [milliseconds between two kills, 0 for none [workers]]]
 */
#include <shoal/shoal.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WORKERS_MAX 64

static shoal_err read_items(int rank, const shoal_value *args)
{
    shoal_queue *work = shoal_arg_queue(args, "work");
    int64_t items = 0;
    shoal_err err = shoal_arg_int(args, "items", &items);
    (void)rank;
    for (int64_t i = 0; i < items && err == SHOAL_OK; i++) {
        err = shoal_queue_put(work, shoal_value_int(i), SHOAL_FOREVER);
    }
    shoal_queue_close(work); /* workers get SHOAL_ECLOSED when it is empty and all items are acknowledged */
    return err;
}

/* Some arithmetic that takes about a tenth of a millisecond. */
static int64_t compute(int64_t item)
{
    uint64_t x = (uint64_t)item + 1;
    for (int i = 0; i < 40000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
    }
    return (int64_t)(x >> 8);
}

static shoal_err work_on_items(int rank, const shoal_value *args)
{
    shoal_queue *work = shoal_arg_queue(args, "work"), *results = shoal_arg_queue(args, "results");
    shoal_value *value = NULL;
    shoal_delivery delivery;
    shoal_err err;
    (void)rank;
    while ((err = shoal_queue_get_delivery(work, SHOAL_FOREVER, &value, &delivery)) == SHOAL_OK) {
        int64_t item = 0;
        err = shoal_value_as_int(value, &item);
        shoal_value_destroy(value);
        if (err == SHOAL_OK) { /* first the result, then done: if killed in between, the item is delivered again */
            shoal_value *result =
                shoal_map("item", item, "result", compute(item), "deliveries", (int64_t)delivery.deliveries);
            err = shoal_queue_put(results, result, SHOAL_FOREVER);
        }
        if (err == SHOAL_OK) {
            err = shoal_delivery_done(&delivery);
        }
        if (err != SHOAL_OK) {
            return err;
        }
    }
    return err == SHOAL_ECLOSED ? SHOAL_OK : err;
}

typedef struct pipeline {
    shoal_queue *work, *results;
    shoal_process *reader, *workers[WORKERS_MAX];
    int worker_count, killed;
    int64_t items, arrived, twice;
    unsigned char *seen; /* for each item: how often it arrived */
    char named[200];     /* items that were delivered again */
    int64_t redelivered;
} pipeline;

/* Handles a result: the first result of each item counts. */
static shoal_err write_result(pipeline *p, const shoal_value *v)
{
    int64_t item = -1, result = 0, deliveries = 0;
    shoal_err err = shoal_arg_int(v, "item", &item);
    if (err == SHOAL_OK) {
        err = shoal_arg_int(v, "result", &result);
    }
    if (err == SHOAL_OK) {
        err = shoal_arg_int(v, "deliveries", &deliveries);
    }
    if (err != SHOAL_OK || item < 0 || item >= p->items || result != compute(item)) {
        return err != SHOAL_OK ? err : shoal_fail(SHOAL_ECORRUPT, "a wrong result for item %lld", (long long)item);
    }
    if (deliveries > 1) {
        size_t used = strlen(p->named);
        snprintf(p->named + used, sizeof p->named - used, " %lld", (long long)item);
        p->redelivered++;
    }
    p->arrived += p->seen[item] == 0;
    p->twice += p->seen[item] == 1;
    p->seen[item]++;
    return SHOAL_OK;
}

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static shoal_err start_worker(pipeline *p, int rank)
{
    shoal_process_options options = {.rank = rank};
    return shoal_process_start(work_on_items, shoal_map("work", p->work, "results", p->results), &options,
                               &p->workers[rank]);
}

/* Kills a worker and starts another in its place. */
static shoal_err kill_worker(pipeline *p, int rank)
{
    shoal_status status;
    shoal_err err = shoal_process_kill(p->workers[rank]);
    if (err == SHOAL_ESTATE) {
        return SHOAL_OK; /* it has exited, because the queue is closed and done */
    }
    if (err == SHOAL_OK) {
        err = shoal_process_join(p->workers[rank], SHOAL_SECONDS(30), &status);
    }
    if (err != SHOAL_OK || status.end != SHOAL_PROCESS_KILLED) {
        return err;
    }
    p->killed++;
    shoal_process_destroy(p->workers[rank]);
    p->workers[rank] = NULL;
    return start_worker(p, rank);
}

/* Receives results until every item has arrived and no item or result is left in the queues. */
static shoal_err write_results(pipeline *p, int64_t interval)
{
    int64_t kill_at = now() + interval;
    int victim = 0;
    shoal_err err = SHOAL_OK;
    while (err == SHOAL_OK) {
        shoal_value *v = NULL;
        err = shoal_queue_get(p->results, SHOAL_MS(5), &v);
        if (err == SHOAL_OK) {
            err = write_result(p, v);
            shoal_value_destroy(v);
        } else if (err == SHOAL_ETIMEDOUT) {
            err = SHOAL_OK;
            if (p->arrived == p->items && shoal_queue_size(p->work) == 0 && shoal_queue_size(p->results) == 0) {
                return SHOAL_OK;
            }
        }
        if (err == SHOAL_OK && interval > 0 && now() >= kill_at) {
            err = kill_worker(p, victim++ % p->worker_count);
            kill_at = now() + interval;
        }
    }
    return err;
}

static shoal_err run(pipeline *p, int64_t interval)
{
    shoal_err err = shoal_queue_create_with(&(shoal_queue_options){.bound = 256, .acknowledge = true}, &p->work);
    if (err == SHOAL_OK) {
        err = shoal_queue_create(0, &p->results);
    }
    if (err == SHOAL_OK) {
        err = shoal_process_start(read_items, shoal_map("work", p->work, "items", p->items), NULL, &p->reader);
    }
    for (int i = 0; i < p->worker_count && err == SHOAL_OK; i++) {
        err = start_worker(p, i);
    }
    if (err == SHOAL_OK) {
        err = write_results(p, interval);
    }
    for (int i = 0; i < p->worker_count && err == SHOAL_OK; i++) {
        err = shoal_process_join(p->workers[i], SHOAL_SECONDS(30), NULL);
    }
    return err;
}

int main(int argc, char **argv)
{
    pipeline p = {.items = 10000};
    shoal_err err = shoal_init(&argc, &argv);
    p.items = argc > 1 ? atoll(argv[1]) : p.items;
    int64_t interval = SHOAL_MS(argc > 2 ? atoll(argv[2]) : 50);
    p.worker_count = argc > 3 ? atoi(argv[3]) : 3;
    if (p.items < 1 || p.worker_count < 1 || p.worker_count > WORKERS_MAX) {
        fprintf(stderr, "usage: pipeline [items [milliseconds [workers]]]\n");
        return 2;
    }
    p.seen = calloc((size_t)p.items, 1);
    if (err == SHOAL_OK && p.seen != NULL) {
        err = run(&p, interval);
    }
    if (err == SHOAL_OK) {
        printf("%lld of %lld items arrived; %d workers were killed, %lld items delivered again, %lld arrived twice\n",
               (long long)p.arrived, (long long)p.items, p.killed, (long long)p.redelivered, (long long)p.twice);
        if (p.redelivered > 0) {
            printf("delivered again:%s%s\n", p.named, strlen(p.named) + 1 == sizeof p.named ? " ..." : "");
        }
    } else {
        fprintf(stderr, "%s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    for (int i = 0; i < p.worker_count; i++) {
        shoal_process_destroy(p.workers[i]);
    }
    shoal_process_destroy(p.reader);
    shoal_release(p.results);
    shoal_release(p.work);
    free(p.seen);
    return err != SHOAL_OK || p.arrived != p.items;
}
