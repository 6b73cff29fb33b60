/* Small jobs of every method, with the option names of version 0.2. make.c and old_checkpoints.c run the same ones. */
#ifndef TESTS_TRAIN_JOBS_H
#define TESTS_TRAIN_JOBS_H

#include <shoal/shoal.h>

#include <stdlib.h>

#define SAMPLES 400
#define TESTS 60
#define INPUTS 6
#define CLASSES 3
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* The workers of these methods change the same parameters: two runs differ. */
static const struct {
    const char *name;
    shoal_train_options o;
    bool differs;
} jobs[] = {
    {.name = "serial", .o = {.method = SHOAL_METHOD_SERIAL, .batch = 1, .momentum = 0.9, .lr_decay = 0.5}},
    {.name = "sync", .o = {.method = SHOAL_METHOD_SYNC, .rounds = 3}},
    {.name = "gradients", .o = {.method = SHOAL_METHOD_SYNC, .average = SHOAL_AVERAGE_GRADIENTS}},
    {.name = "local", .o = {.method = SHOAL_METHOD_LOCAL, .steps = 5, .lr_decay = 0.5}},
    {.name = "fedavg",
     .o = {.method = SHOAL_METHOD_FEDAVG, .clients = 12, .fraction = 0.5, .local_epochs = 2, .lr = 0.1}},
    {.name = "shards",
     .o = {.method = SHOAL_METHOD_FEDAVG,
           .clients = 10,
           .fraction = 0.4,
           .local_epochs = 1,
           .split = SHOAL_SPLIT_SHARDS,
           .server_momentum = 0.5,
           .lr = 0.1}},
    {.name = "hogwild", .o = {.method = SHOAL_METHOD_HOGWILD, .shard = true, .epochs = 100}, .differs = true},
    {.name = "shared_state",
     .o = {.method = SHOAL_METHOD_HOGWILD, .shared_state = true, .epochs = 100},
     .differs = true},
    {.name = "a3c",
     .o = {.method = SHOAL_METHOD_A3C, .rollout = 10, .gamma = 0.98, .entropy = 0.02, .env_steps = 60000, .until = -1},
     .differs = true},
};

static inline shoal_dataset *samples_of(int64_t count, uint64_t seed)
{
    static float x[SAMPLES * INPUTS];
    static int64_t y[SAMPLES];
    for (int64_t i = 0; i < count * INPUTS; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        x[i] = (float)(seed >> 54) / 512 - 1;
    }
    for (int64_t i = 0; i < count; i++) {
        const float *row = x + i * INPUTS;
        y[i] = row[0] > row[1] ? (row[2] > 0 ? 0 : 1) : 2;
    }
    shoal_tensor *features = shoal_from_data(SHOAL_F32, x, SHOAL_SHAPE(count, INPUTS));
    shoal_tensor *labels = shoal_from_data(SHOAL_I64, y, SHOAL_SHAPE(count));
    shoal_dataset *set = shoal_tensor_dataset(features, labels);
    shoal_tensor_release(features);
    shoal_tensor_release(labels);
    return set;
}

static inline shoal_module *small_model(shoal_train_method method, uint64_t seed)
{
    shoal_manual_seed(seed);
    if (method == SHOAL_METHOD_A3C) {
        return shoal_actor_critic_create(4, 2, 3);
    }
    return shoal_sequential_create(
        5, (shoal_module *const[]){shoal_linear_create(INPUTS, 8, true), shoal_relu_create(), shoal_dropout_create(0.1),
                                   shoal_linear_create(8, CLASSES, true), shoal_log_softmax_create(1)});
}

/* Returns the options of a job, without its files. The plain kernels give the same bits on every CPU. */
static inline shoal_train_options job_of(size_t i, shoal_module *module, shoal_dataset *train, shoal_dataset *test)
{
    shoal_train_options o = jobs[i].o;
    o.module = module;
    o.seed = 7;
    o.workers = o.method == SHOAL_METHOD_SERIAL ? 1 : 3;
    if (o.method != SHOAL_METHOD_A3C) {
        o.train_set = train;
        o.test_set = test;
        o.batch = o.batch != 0 ? o.batch : 4;
        o.lr = o.lr != 0 ? o.lr : 0.05;
        o.epochs = o.epochs != 0 ? o.epochs : 6;
    }
    return o;
}

#endif
