/* Periodic averaging: each worker trains a separate model on the whole data set, in a different order. After a number
 * of steps it puts its state dict on a queue and continues with the mean of all models, which one more process computes
 * and tests.
 *
 *     build/examples/periodic_sync [workers [means [steps between two means]]]
 */
#include <shoal/shoal.h>

#include <stdio.h>
#include <stdlib.h>

#define MOST_WORKERS 64

/* The queues carry handles, not bytes: the averager reads this worker's parameters while the worker waits, and the
 * worker copies the mean from the averager's memory. */
static shoal_err exchange(int rank, shoal_module *model, shoal_queue *states, shoal_queue *means)
{
    shoal_value *mean = NULL;
    shoal_err err =
        shoal_queue_put(states, shoal_map("rank", rank, "state", shoal_module_state_dict(model)), SHOAL_FOREVER);
    err = err == SHOAL_OK ? shoal_queue_get(means, SHOAL_FOREVER, &mean) : err;
    err = err == SHOAL_OK ? shoal_module_load_state_dict(model, mean) : err;
    shoal_value_destroy(mean);
    return err;
}

static shoal_err train(int rank, const shoal_value *args, shoal_module *model, shoal_queue *states)
{
    shoal_queue *means = shoal_value_as_queue(shoal_value_at(shoal_value_find(args, "means"), (size_t)rank));
    int64_t every = 0, rounds = 0;
    shoal_loader *data = shoal_loader_create(shoal_arg_dataset(args, "training"), .batch = 64, .shuffle = true,
                                             .seed = (uint64_t)rank + 1);
    shoal_optimizer *sgd = shoal_sgd_create(model, .lr = 0.01, .momentum = 0.5);
    shoal_err err = data && sgd ? shoal_arg_int(args, "every", &every) : shoal_last_error();
    err = err == SHOAL_OK ? shoal_arg_int(args, "rounds", &rounds) : err;
    shoal_batch b;

    shoal_manual_seed((uint64_t)rank + 1);
    for (int64_t step = 1; step <= every * rounds && err == SHOAL_OK; step++) {
        err = shoal_loader_next(data, &b);
        err = err == SHOAL_END ? shoal_loader_next(data, &b) : err; /* the next epoch */
        if (err != SHOAL_OK) {
            break;
        }
        shoal_optimizer_zero_grad(sgd);
        err = shoal_backward(shoal_nll_loss(shoal_module_forward(model, b.x), b.y));
        err = err == SHOAL_OK ? shoal_optimizer_step(sgd) : err;
        err = err == SHOAL_OK && step % every == 0 ? exchange(rank, model, states, means) : err;
    }
    shoal_optimizer_destroy(sgd);
    shoal_loader_destroy(data);
    return err;
}

/* mean = the mean of n state dicts, added in the order of ranks, so that the result is bit-identical every time. */
static shoal_err average(shoal_module *mean, shoal_value *const *states, size_t n)
{
    bool good = true;
    shoal_no_grad_begin();
    for (shoal_named it = {0}; good && shoal_module_next(mean, &it) == SHOAL_OK;) {
        good = shoal_zero_(it.tensor) != NULL;
        for (size_t i = 0; i < n && good; i++) {
            shoal_tensor *t = shoal_value_as_tensor(shoal_value_find(shoal_value_find(states[i], "state"), it.name));
            good = shoal_add_scaled_(it.tensor, t, 1.0 / (double)n) != NULL;
        }
    }
    shoal_no_grad_end();
    return good ? SHOAL_OK : shoal_last_error();
}

/* Computes one mean. The mean changes only after all workers have sent their next state dict, so all have copied the
 * last mean. */
static shoal_err answer(shoal_module *mean, shoal_queue *states, const shoal_value *means)
{
    shoal_value *by_rank[MOST_WORKERS] = {0};
    size_t n = shoal_value_count(means);
    shoal_err err = SHOAL_OK;
    for (size_t i = 0; i < n && err == SHOAL_OK; i++) {
        shoal_value *message = NULL;
        uint64_t rank = 0;
        err = shoal_queue_get(states, SHOAL_FOREVER, &message);
        err = err == SHOAL_OK ? shoal_arg_uint(message, "rank", &rank) : err;
        if (err == SHOAL_OK && rank < n) {
            by_rank[rank] = message;
        }
    }
    err = err == SHOAL_OK ? average(mean, by_rank, n) : err;
    for (size_t i = 0; i < n; i++) {
        shoal_value_destroy(by_rank[i]);
    }
    for (size_t i = 0; i < n && err == SHOAL_OK; i++) {
        shoal_value *state = shoal_module_state_dict(mean);
        err = shoal_queue_put(shoal_value_as_queue(shoal_value_at(means, i)), state, SHOAL_FOREVER);
    }
    return err;
}

static shoal_err serve(const shoal_value *args, shoal_module *mean, shoal_queue *states)
{
    int64_t rounds = 0;
    shoal_dataset *set = shoal_arg_dataset(args, "testing");
    shoal_err err = set ? shoal_arg_int(args, "rounds", &rounds) : shoal_last_error();
    for (int64_t round = 1; round <= rounds && err == SHOAL_OK; round++) {
        double loss = 0, accuracy = 0;
        err = answer(mean, states, shoal_value_find(args, "means"));
        err = err == SHOAL_OK ? shoal_evaluate(mean, set, &loss, &accuracy) : err; /* while the workers continue */
        if (err == SHOAL_OK) {
            printf("mean %lld: test loss %.4f, accuracy %.2f %%\n", (long long)round, loss, accuracy * 100);
            fflush(stdout);
        }
    }
    return err;
}

static shoal_err work(int rank, const shoal_value *args)
{
    shoal_queue *states = shoal_arg_queue(args, "states");
    shoal_manual_seed(1); /* all start with the same parameters */
    shoal_module *model = shoal_model_create("mnist-cnn");
    int64_t workers = (int64_t)shoal_value_count(shoal_value_find(args, "means"));
    shoal_err err = !model           ? shoal_last_error()
                    : rank < workers ? train(rank, args, model, states)
                                     : serve(args, model, states);
    shoal_module_destroy(model);
    return err;
}

static shoal_err run(int workers, int64_t rounds, int64_t every)
{
    shoal_queue *states = NULL;
    shoal_value *means = shoal_value_list();
    shoal_dataset *training = shoal_mnist(SHOAL_PART_TRAIN), *testing = shoal_mnist(SHOAL_PART_TEST);
    shoal_err err = shoal_queue_create(0, &states);
    for (int i = 0; i < workers && err == SHOAL_OK; i++) {
        shoal_queue *to_rank = NULL;
        err = shoal_queue_create(0, &to_rank);
        means = shoal_list_add(means, shoal_value_of(to_rank));
        shoal_release(to_rank);
    }
    shoal_value *args = shoal_map("states", states, "means", means, "training", training, "testing", testing, "rounds",
                                  rounds, "every", every);
    err = err == SHOAL_OK && args == NULL ? shoal_last_error() : err;
    err = err == SHOAL_OK ? shoal_spawn(work, workers + 1, args) : err;
    shoal_release(states);
    shoal_dataset_release(testing);
    shoal_dataset_release(training);
    return err;
}

int main(int argc, char **argv)
{
    shoal_err err = shoal_init(&argc, &argv);
    int workers = argc > 1 ? atoi(argv[1]) : 4;
    int64_t rounds = argc > 2 ? atoll(argv[2]) : 30, every = argc > 3 ? atoll(argv[3]) : 100;
    if (err == SHOAL_OK) {
        err = workers < 1 || workers > MOST_WORKERS || rounds < 1 || every < 1
                  ? shoal_fail(SHOAL_EINVAL, "needs 1 to %d workers, at least one mean and one step", MOST_WORKERS)
                  : run(workers, rounds, every);
    }
    if (err != SHOAL_OK) {
        fprintf(stderr, "%s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    return err != SHOAL_OK;
}
