/* Trains the MNIST network in one process, like the well-known PyTorch example with its defaults.
 *
 *     build/examples/train_mnist [epochs [seed [batches of an epoch]]]
 */
#include <shoal/shoal.h>

#include <stdio.h>
#include <stdlib.h>

static shoal_err train(shoal_module *model, shoal_optimizer *sgd, shoal_loader *data, int64_t batches)
{
    shoal_err err = SHOAL_OK;
    shoal_module_train(model, true);
    for (shoal_batch b; err == SHOAL_OK && (err = shoal_loader_next(data, &b)) == SHOAL_OK && b.index < batches;) {
        shoal_optimizer_zero_grad(sgd);
        err = shoal_backward(shoal_nll_loss(shoal_module_forward(model, b.x), b.y));
        if (err == SHOAL_OK) {
            err = shoal_optimizer_step(sgd);
        }
    }
    return err == SHOAL_END ? SHOAL_OK : err;
}

static shoal_err test(shoal_module *model, shoal_loader *data, double *out_loss, double *out_right)
{
    double loss = 0, right = 0;
    int64_t seen = 0;
    shoal_err err = SHOAL_OK;
    shoal_module_train(model, false);
    shoal_no_grad_begin();
    for (shoal_batch b; err == SHOAL_OK && (err = shoal_loader_next(data, &b)) == SHOAL_OK; seen += b.count) {
        shoal_tensor *scores = shoal_module_forward(model, b.x);
        double l = 0, r = 0;
        err = shoal_item(shoal_nll_loss_with(scores, b.y, NULL, SHOAL_REDUCTION_SUM), &l);
        if (err == SHOAL_OK) {
            err = shoal_item(shoal_sum(shoal_eq(shoal_argmax(scores, 1, false), b.y), SHOAL_ALL_DIMS, false), &r);
        }
        loss += l;
        right += r;
    }
    shoal_no_grad_end();
    *out_loss = loss / (double)seen;
    *out_right = right / (double)seen;
    return err == SHOAL_END ? SHOAL_OK : err;
}

static shoal_err run(int epochs, uint64_t seed, int64_t batches)
{
    shoal_manual_seed(seed);
    shoal_module *model = shoal_model_create("mnist-cnn");
    shoal_optimizer *sgd = model ? shoal_sgd_create(model, .lr = 0.01, .momentum = 0.5) : NULL;
    shoal_dataset *train_set = sgd ? shoal_mnist(SHOAL_PART_TRAIN) : NULL,
                  *test_set = train_set ? shoal_mnist(SHOAL_PART_TEST) : NULL;
    shoal_loader *training =
        test_set ? shoal_loader_create(train_set, .batch = 64, .shuffle = true, .seed = seed) : NULL;
    shoal_loader *testing = training ? shoal_loader_create(test_set, .batch = 1000) : NULL;
    shoal_err err = testing ? SHOAL_OK : shoal_last_error();
    for (int epoch = 1; epoch <= epochs && err == SHOAL_OK; epoch++) {
        double loss = 0, right = 0;
        err = shoal_loader_seek(training, epoch, 0);
        if (err == SHOAL_OK) {
            err = train(model, sgd, training, batches);
        }
        if (err == SHOAL_OK) {
            err = test(model, testing, &loss, &right);
        }
        if (err == SHOAL_OK) {
            printf("epoch %d: test loss %.4f, accuracy %.2f %%\n", epoch, loss, right * 100);
            fflush(stdout);
        }
    }
    shoal_loader_destroy(testing);
    shoal_loader_destroy(training);
    shoal_dataset_release(test_set);
    shoal_dataset_release(train_set);
    shoal_optimizer_destroy(sgd);
    shoal_module_destroy(model);
    return err;
}

int main(int argc, char **argv)
{
    shoal_err err = shoal_init(&argc, &argv);
    if (err == SHOAL_OK) {
        err = run(argc > 1 ? atoi(argv[1]) : 10, argc > 2 ? strtoull(argv[2], NULL, 10) : 1,
                  argc > 3 ? atoll(argv[3]) : INT64_MAX);
    }
    if (err != SHOAL_OK) {
        fprintf(stderr, "%s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    return err != SHOAL_OK;
}
