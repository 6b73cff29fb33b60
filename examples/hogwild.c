/* Hogwild: the well-known PyTorch example in C. Each process trains the parent's parameters, without a lock, on the
 * whole data set in a different order; the parent tests the result.
 *
 *     build/examples/hogwild [workers [epochs [batches of an epoch]]]
 */
#include <shoal/shoal.h>

#include <stdio.h>
#include <stdlib.h>

static shoal_err train(int rank, const shoal_value *args)
{
    int64_t epochs = 0, batches = 0;
    shoal_module *model = shoal_arg_module(args, "model"); /* the parent's parameters, not a copy */
    shoal_dataset *set = shoal_arg_dataset(args, "data");  /* the parent's memory, too */
    shoal_loader *data = shoal_loader_create(set, .batch = 64, .shuffle = true, .seed = (uint64_t)rank + 1);
    shoal_optimizer *sgd = shoal_sgd_create(model, .lr = 0.01, .momentum = 0.5);
    shoal_err err = data && sgd ? shoal_arg_int(args, "epochs", &epochs) : shoal_last_error();
    err = err == SHOAL_OK ? shoal_arg_int(args, "batches", &batches) : err;

    shoal_manual_seed((uint64_t)rank + 1);
    for (int64_t epoch = 0; epoch < epochs && err == SHOAL_OK; epoch++) {
        err = shoal_loader_seek(data, epoch, 0);
        for (shoal_batch b; err == SHOAL_OK && (err = shoal_loader_next(data, &b)) == SHOAL_OK && b.index < batches;) {
            shoal_optimizer_zero_grad(sgd);
            err = shoal_backward(shoal_nll_loss(shoal_module_forward(model, b.x), b.y));
            if (err == SHOAL_OK) {
                err = shoal_optimizer_step(sgd); /* updates the shared parameters */
            }
        }
        err = err == SHOAL_END ? SHOAL_OK : err;
    }
    shoal_optimizer_destroy(sgd);
    shoal_loader_destroy(data);
    return err;
}

static shoal_err run(int workers, int64_t epochs, int64_t batches)
{
    double loss = 0, accuracy = 0;
    shoal_manual_seed(1);
    shoal_module *model = shoal_model_create("mnist-cnn");
    shoal_dataset *training = shoal_mnist(SHOAL_PART_TRAIN), *testing = shoal_mnist(SHOAL_PART_TEST);
    shoal_err err = model && training && testing ? shoal_module_share(model) : shoal_last_error();
    if (err == SHOAL_OK) {
        err = shoal_spawn(train, workers,
                          shoal_map("model", model, "data", training, "epochs", epochs, "batches", batches));
    }
    if (err == SHOAL_OK) {
        err = shoal_evaluate(model, testing, &loss, &accuracy);
    }
    if (err == SHOAL_OK) {
        printf("%d workers: test loss %.4f, accuracy %.2f %%\n", workers, loss, accuracy * 100);
    }
    shoal_dataset_release(testing);
    shoal_dataset_release(training);
    shoal_module_destroy(model);
    return err;
}

int main(int argc, char **argv)
{
    shoal_err err = shoal_init(&argc, &argv); /* a spawned child runs its function here and does not return */
    if (err == SHOAL_OK) {
        err = run(argc > 1 ? atoi(argv[1]) : 4, argc > 2 ? atoll(argv[2]) : 10, argc > 3 ? atoll(argv[3]) : INT64_MAX);
    }
    if (err != SHOAL_OK) {
        fprintf(stderr, "%s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    return err != SHOAL_OK;
}
