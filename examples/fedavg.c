/* Federated averaging. Rank 0 is the server; the other ranks take turns as its clients. State dicts travel through two
 * queues. In each round some clients get the common parameters, train them on samples that only they have, and send
 * them back. The common parameters become the mean of the results, weighted by the number of samples.
 *
 *     build/examples/fedavg [workers [rounds [local epochs]]]
 */
#include <shoal/shoal.h>

#include <stdio.h>
#include <stdlib.h>

enum { CLIENTS = 100, DRAWN = 10, BATCH = 10 };
#define MODEL "mlp"

/* Trains as one client. Each call makes a new model, because the queue sends its memory, not a copy. */
static shoal_err train(const shoal_value *task, shoal_dataset *samples, int64_t epochs, shoal_queue *results)
{
    shoal_module *model = shoal_model_create(MODEL);
    shoal_optimizer *sgd = shoal_sgd_create(model, .lr = 0.05);
    shoal_loader *data = shoal_loader_create(samples, .batch = BATCH, .shuffle = true);
    shoal_err err = sgd && data ? shoal_module_load_state_dict(model, task) : shoal_last_error();
    for (int64_t epoch = 0; err == SHOAL_OK && epoch < epochs; epoch++) {
        for (shoal_batch b; err == SHOAL_OK && (err = shoal_loader_next(data, &b)) == SHOAL_OK;) {
            shoal_optimizer_zero_grad(sgd);
            err = shoal_backward(shoal_nll_loss(shoal_module_forward(model, b.x), b.y));
            err = err == SHOAL_OK ? shoal_optimizer_step(sgd) : err;
        }
        err = err == SHOAL_END ? SHOAL_OK : err;
    }
    if (err == SHOAL_OK) {
        shoal_value *result = shoal_list(shoal_dataset_length(samples), shoal_module_state_dict(model));
        err = shoal_queue_put(results, result, SHOAL_FOREVER);
    }
    shoal_loader_destroy(data);
    shoal_optimizer_destroy(sgd);
    shoal_module_destroy(model); /* the queue holds its memory */
    return err;
}

static shoal_err work(const shoal_value *args, shoal_queue *tasks, shoal_queue *results)
{
    shoal_dataset *all = shoal_mnist(SHOAL_PART_TRAIN), *parts[CLIENTS] = {NULL};
    int64_t epochs = 0;
    shoal_err err = all ? shoal_split_iid(all, CLIENTS, 1, parts) : shoal_last_error();
    err = err == SHOAL_OK ? shoal_arg_int(args, "epochs", &epochs) : err;
    for (shoal_value *task; err == SHOAL_OK && (err = shoal_queue_get(tasks, SHOAL_FOREVER, &task)) == SHOAL_OK;) {
        uint64_t client = 0;
        err = shoal_value_as_uint(shoal_value_at(task, 0), &client);
        err = err == SHOAL_OK ? train(shoal_value_at(task, 1), parts[client % CLIENTS], epochs, results) : err;
        shoal_value_destroy(task);
    }
    for (int i = 0; i < CLIENTS; i++) {
        shoal_dataset_release(parts[i]);
    }
    shoal_dataset_release(all);
    return err == SHOAL_ECLOSED ? SHOAL_OK : err; /* no more rounds */
}

/* common = Σ samples / all samples · parameters. Nobody reads it now, because all clients have answered. */
static shoal_err average(shoal_module *common, shoal_value *const *results)
{
    double all = 0, samples[DRAWN];
    bool good = true;
    for (int i = 0; i < DRAWN && good; i++) {
        good = shoal_value_as_float(shoal_value_at(results[i], 0), &samples[i]) == SHOAL_OK;
        all += good ? samples[i] : 0;
    }
    for (shoal_named it = {0}; good && shoal_module_next(common, &it) == SHOAL_OK;) {
        shoal_zero_(it.tensor);
        for (int i = 0; i < DRAWN && good; i++) {
            shoal_tensor *theirs = shoal_value_as_tensor(shoal_value_find(shoal_value_at(results[i], 1), it.name));
            good = shoal_add_scaled_(it.tensor, theirs, samples[i] / all) != NULL;
        }
    }
    return good ? SHOAL_OK : shoal_last_error();
}

static shoal_err one_round(shoal_module *common, shoal_queue *tasks, shoal_queue *results)
{
    shoal_value *got[DRAWN] = {NULL};
    shoal_tensor *order = shoal_randperm(CLIENTS);
    shoal_err err = order ? SHOAL_OK : shoal_last_error();
    for (int i = 0; i < DRAWN && err == SHOAL_OK; i++) {
        int64_t client = ((const int64_t *)shoal_tensor_data(order))[i];
        err = shoal_queue_put(tasks, shoal_list(client, shoal_module_state_dict(common)), SHOAL_FOREVER);
    }
    for (int i = 0; i < DRAWN && err == SHOAL_OK; i++) {
        err = shoal_queue_get(results, SHOAL_FOREVER, &got[i]);
    }
    shoal_no_grad_begin();
    err = err == SHOAL_OK ? average(common, got) : err;
    shoal_no_grad_end();
    for (int i = 0; i < DRAWN; i++) {
        shoal_value_destroy(got[i]);
    }
    shoal_tensor_release(order);
    return err;
}

static shoal_err member(int rank, const shoal_value *args)
{
    shoal_queue *tasks = shoal_arg_queue(args, "tasks");
    shoal_queue *results = shoal_arg_queue(args, "results");
    int64_t rounds = 0;
    if (rank > 0) {
        return work(args, tasks, results);
    }
    shoal_manual_seed(1);
    shoal_module *common = shoal_model_create(MODEL);
    shoal_dataset *testing = shoal_mnist(SHOAL_PART_TEST);
    shoal_err err = common && testing ? shoal_arg_int(args, "rounds", &rounds) : shoal_last_error();
    for (int64_t i = 0; err == SHOAL_OK && i < rounds; i++) {
        double loss, accuracy;
        err = one_round(common, tasks, results);
        err = err == SHOAL_OK ? shoal_evaluate(common, testing, &loss, &accuracy) : err;
        if (err == SHOAL_OK) {
            printf("round %lld: test loss %.4f, accuracy %.2f %%\n", (long long)i + 1, loss, accuracy * 100);
        }
    }
    shoal_queue_close(tasks);
    shoal_dataset_release(testing);
    shoal_module_destroy(common);
    return err;
}

int main(int argc, char **argv)
{
    shoal_queue *tasks = NULL, *results = NULL;
    shoal_err err = shoal_init(&argc, &argv);
    int64_t rounds = argc > 2 ? atoll(argv[2]) : 10, epochs = argc > 3 ? atoll(argv[3]) : 5;
    err = err == SHOAL_OK ? shoal_queue_create(0, &tasks) : err;
    err = err == SHOAL_OK ? shoal_queue_create(0, &results) : err;
    if (err == SHOAL_OK) { /* if one process fails, the others are ended */
        err = shoal_spawn(member, 1 + (argc > 1 ? atoi(argv[1]) : 4),
                          shoal_map("tasks", tasks, "results", results, "rounds", rounds, "epochs", epochs));
    }
    if (err != SHOAL_OK) {
        fprintf(stderr, "%s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    shoal_release(tasks);
    shoal_release(results);
    return err != SHOAL_OK;
}
