/* Sends tensors through a queue: the consumer reads the producer's memory, without a copy.
 *
 *     build/examples/tensor_queue
 */
#include <shoal/shoal.h>

#include <stdio.h>

#define COUNT 5

static shoal_err produce(int rank, const shoal_value *args)
{
    shoal_queue *queue = shoal_arg_queue(args, "queue");
    (void)rank;
    for (int i = 0; i < COUNT; i++) {
        shoal_tensor *t = shoal_full(SHOAL_F32, i, SHOAL_SHAPE(256, 1024));
        shoal_err err = shoal_queue_put_tensor(queue, t, SHOAL_FOREVER); /* moves to shared memory; a handle is sent */
        shoal_tensor_release(t);
        if (err != SHOAL_OK) {
            return err;
        }
    }
    return SHOAL_OK; /* the queue keeps what was put: this process may end before anybody reads it */
}

int main(int argc, char **argv)
{
    shoal_queue *queue = NULL;
    shoal_process *producer = NULL;
    shoal_err err = shoal_init(&argc, &argv);
    if (err == SHOAL_OK) {
        err = shoal_queue_create(0, &queue);
    }
    if (err == SHOAL_OK) {
        err = shoal_process_start(produce, shoal_map("queue", queue), NULL, &producer);
    }
    for (int i = 0; i < COUNT && err == SHOAL_OK; i++) {
        shoal_tensor *t = NULL;
        err = shoal_queue_get_tensor(queue, SHOAL_SECONDS(10), &t);
        double mean = 0;
        err = err == SHOAL_OK ? shoal_item(shoal_mean(t, SHOAL_ALL_DIMS, false), &mean) : err;
        if (err == SHOAL_OK) {
            printf("got %lld floats, mean %g, shared: %s\n", (long long)shoal_tensor_count(t), mean,
                   shoal_tensor_is_shared(t) ? "yes" : "no");
        }
        shoal_scope_release(0);
        shoal_tensor_release(t);
    }
    if (err == SHOAL_OK) {
        err = shoal_process_join(producer, SHOAL_SECONDS(10), NULL);
    }
    shoal_process_destroy(producer);
    shoal_release(queue);
    if (err != SHOAL_OK) {
        fprintf(stderr, "%s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    return err != SHOAL_OK;
}
