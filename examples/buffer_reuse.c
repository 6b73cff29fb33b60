/* Reuses a few buffers: a worker fills them, the parent reads them and sends them back. After the first round nothing
 * is allocated any more.
 *
 *     build/examples/buffer_reuse [messages]
 */
#include <shoal/shoal.h>

#include <stdio.h>
#include <stdlib.h>

#define BUFFERS 4
#define FLOATS 65536

static shoal_err fill(int rank, const shoal_value *args)
{
    shoal_queue *empty = shoal_arg_queue(args, "empty");
    shoal_queue *full = shoal_arg_queue(args, "full");
    (void)rank;
    for (int64_t n = 0;; n++) {
        shoal_tensor *t = NULL;
        shoal_err err = shoal_queue_get_tensor(empty, SHOAL_FOREVER, &t);
        if (err == SHOAL_ECLOSED) {
            return SHOAL_OK;
        }
        if (err == SHOAL_OK) {
            err = shoal_fill_(t, (double)n) ? shoal_queue_put_tensor(full, t, SHOAL_FOREVER) : shoal_last_error();
        }
        shoal_tensor_release(t);
        if (err != SHOAL_OK) {
            return err;
        }
    }
}

/* Receives `messages` filled buffers, adds up their first elements and sends each buffer back. */
static shoal_err consume(shoal_queue *empty, shoal_queue *full, int64_t messages, double *out_sum)
{
    shoal_err err = SHOAL_OK;
    for (int i = 0; i < BUFFERS && err == SHOAL_OK; i++) {
        shoal_tensor *t = shoal_empty_shared(SHOAL_F32, SHOAL_SHAPE(FLOATS)); /* in shared memory: never copied */
        err = t ? shoal_queue_put_tensor(empty, t, SHOAL_FOREVER) : shoal_last_error();
        shoal_tensor_release(t);
    }
    for (int64_t n = 0; n < messages && err == SHOAL_OK; n++) {
        shoal_tensor *t = NULL;
        err = shoal_queue_get_tensor(full, SHOAL_SECONDS(10), &t);
        if (err == SHOAL_OK) {
            *out_sum += *(const float *)shoal_tensor_data(t);
            err = shoal_queue_put_tensor(empty, t, SHOAL_FOREVER);
        }
        shoal_tensor_release(t);
    }
    shoal_queue_close(empty);
    return err;
}

int main(int argc, char **argv)
{
    shoal_queue *empty = NULL, *full = NULL;
    shoal_process *worker = NULL;
    double sum = 0;
    shoal_err err = shoal_init(&argc, &argv);
    int64_t messages = argc > 1 ? atoll(argv[1]) : 10000;
    if (err == SHOAL_OK) {
        err = shoal_queue_create(0, &empty);
    }
    if (err == SHOAL_OK) {
        err = shoal_queue_create(0, &full);
    }
    if (err == SHOAL_OK) {
        err = shoal_process_start(fill, shoal_map("empty", empty, "full", full), NULL, &worker);
    }
    if (err == SHOAL_OK) {
        err = consume(empty, full, messages, &sum);
    }
    if (err == SHOAL_OK) {
        err = shoal_process_join(worker, SHOAL_SECONDS(10), NULL);
    }
    if (err == SHOAL_OK) {
        printf("%lld messages through %d buffers, sum %.0f\n", (long long)messages, BUFFERS, sum);
    } else {
        fprintf(stderr, "%s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    shoal_process_destroy(worker);
    shoal_release(full);
    shoal_release(empty);
    return err != SHOAL_OK;
}
