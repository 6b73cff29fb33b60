/* Synchronous training: the well-known example, done right. Each process has a contiguous part of the data set and a
 * separate model. In each round it copies the common parameters, trains once over its part and waits for the others;
 * then the common parameters become the mean. For a given number of workers the result is bit-identical.
 *
 *     build/examples/sync_sgd [workers [rounds [learning rate [batches of a round]]]]
 */
#include <shoal/shoal.h>

#include <stdio.h>
#include <stdlib.h>

#define MOST_WORKERS 64

/* Trains a copy, not the common parameters themselves, so no process sees what others learn in this round. Momentum
 * restarts with each copy. */
static shoal_err pass(shoal_module *own, shoal_module *common, shoal_loader *data, double lr, int64_t batches)
{
    shoal_optimizer *sgd = shoal_sgd_create(own, .lr = lr, .momentum = 0.5);
    shoal_err err = sgd ? shoal_module_copy(own, common) : shoal_last_error();
    for (shoal_batch b; err == SHOAL_OK && (err = shoal_loader_next(data, &b)) == SHOAL_OK && b.index < batches;) {
        shoal_optimizer_zero_grad(sgd);
        err = shoal_backward(shoal_nll_loss(shoal_module_forward(own, b.x), b.y));
        err = err == SHOAL_OK ? shoal_optimizer_step(sgd) : err;
    }
    shoal_optimizer_destroy(sgd);
    return err == SHOAL_END ? SHOAL_OK : err;
}

/* Adds in the order of ranks, whichever process finished first, because sums of floats depend on the order. */
static shoal_err average(shoal_module *common, const shoal_value *models)
{
    size_t n = shoal_value_count(models);
    bool good = true;
    shoal_no_grad_begin();
    for (shoal_named it = {0}; good && shoal_module_next(common, &it) == SHOAL_OK;) {
        good = shoal_zero_(it.tensor) != NULL;
        for (size_t i = 0; good && i < n; i++) {
            shoal_module *own = shoal_value_as_module(shoal_value_at(models, i));
            good = shoal_add_scaled_(it.tensor, shoal_module_get(own, it.name), 1.0 / (double)n) != NULL;
        }
    }
    shoal_no_grad_end();
    return good ? SHOAL_OK : shoal_last_error();
}

static shoal_err average_and_test(shoal_module *common, const shoal_value *args, int64_t round)
{
    double loss = 0, accuracy = 0;
    shoal_dataset *testing = shoal_arg_dataset(args, "testing");
    shoal_err err = testing ? average(common, shoal_value_find(args, "models")) : shoal_last_error();
    err = err == SHOAL_OK ? shoal_evaluate(common, testing, &loss, &accuracy) : err;
    if (err == SHOAL_OK) {
        printf("round %lld: test loss %.4f, accuracy %.2f %%\n", (long long)round + 1, loss, accuracy * 100);
        fflush(stdout);
    }
    return err;
}

static shoal_err train(int rank, const shoal_value *args)
{
    int64_t rounds = 0, batches = 0;
    double lr = 0;
    shoal_module *common = shoal_arg_module(args, "common");
    shoal_module *own = shoal_value_as_module(shoal_value_at(shoal_value_find(args, "models"), (size_t)rank));
    shoal_barrier *barrier = shoal_arg_barrier(args, "barrier");
    shoal_dataset *part = shoal_value_as_dataset(shoal_value_at(shoal_value_find(args, "parts"), (size_t)rank));
    shoal_loader *data = shoal_loader_create(part, .batch = 64, .shuffle = true, .seed = (uint64_t)rank + 1);
    shoal_err err = common && own && barrier && data ? shoal_arg_int(args, "rounds", &rounds) : shoal_last_error();
    err = err == SHOAL_OK ? shoal_arg_int(args, "batches", &batches) : err;
    err = err == SHOAL_OK ? shoal_arg_float(args, "lr", &lr) : err;

    shoal_manual_seed((uint64_t)rank + 1);
    for (int64_t round = 0; err == SHOAL_OK && round < rounds; round++) {
        err = shoal_loader_seek(data, round, 0);
        err = err == SHOAL_OK ? pass(own, common, data, lr, batches) : err;
        err = err == SHOAL_OK ? shoal_barrier_wait(barrier, SHOAL_FOREVER, NULL) : err; /* breaks if one is killed */
        err = err == SHOAL_OK && rank == 0 ? average_and_test(common, args, round) : err;
        err = err == SHOAL_OK ? shoal_barrier_wait(barrier, SHOAL_FOREVER, NULL) : err; /* the mean is complete */
    }
    shoal_loader_destroy(data);
    return err;
}

/* Makes a model and a part of the data set for each rank, in shared memory,
 * so that every process can access all of them. */
static shoal_err run(int workers, int64_t rounds, double lr, int64_t batches)
{
    shoal_dataset *training = shoal_mnist(SHOAL_PART_TRAIN), *testing = shoal_mnist(SHOAL_PART_TEST),
                  *part[MOST_WORKERS] = {0};
    shoal_value *models = shoal_value_list(), *parts = shoal_value_list();
    shoal_barrier *barrier = NULL;
    shoal_manual_seed(1);
    shoal_module *common = shoal_model_create("mnist-cnn");
    shoal_err err = training ? shoal_split_shard(training, workers, part) : shoal_last_error();
    for (int i = 0; i < workers; i++) {
        shoal_module *own = shoal_model_create("mnist-cnn");
        models = shoal_list_add(models, shoal_value_module(own));
        parts = shoal_list_add(parts, shoal_value_dataset(part[i]));
        shoal_dataset_release(part[i]);
        shoal_module_destroy(own);
    }
    err = err == SHOAL_OK ? shoal_barrier_create((uint32_t)workers, &barrier) : err;
    shoal_value *args = shoal_map("common", common, "models", models, "parts", parts, "testing", testing, "barrier",
                                  barrier, "rounds", rounds, "batches", batches, "lr", lr);
    if (err == SHOAL_OK) {
        err = args ? shoal_spawn(train, workers, args) : shoal_last_error();
    }
    shoal_release(barrier);
    shoal_module_destroy(common);
    shoal_dataset_release(testing);
    shoal_dataset_release(training);
    return err;
}

int main(int argc, char **argv)
{
    shoal_err err = shoal_init(&argc, &argv);
    int workers = argc > 1 ? atoi(argv[1]) : 4;
    if (err == SHOAL_OK) {
        err = workers < 1 || workers > MOST_WORKERS
                  ? shoal_fail(SHOAL_EINVAL, "%s workers; the number must be from 1 to %d", argv[1], MOST_WORKERS)
                  : run(workers, argc > 2 ? atoll(argv[2]) : 12, argc > 3 ? atof(argv[3]) : 0.01,
                        argc > 4 ? atoll(argv[4]) : INT64_MAX);
    }
    if (err != SHOAL_OK) {
        fprintf(stderr, "%s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    return err != SHOAL_OK;
}
