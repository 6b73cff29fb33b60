/* Arguments for the rules test: what makes each, and what destroys it. A maker returns a new object each time, so that
 * a call may consume, change or break it. */
#include "rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAKER(name, type, ...)                                                                                         \
    static void *make_##name(void)                                                                                     \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }                                                                                                                  \
    extern const rules_maker rules_##name;                                                                             \
    const rules_maker rules_##name = {make_##name, rules_drop_##type};

#define CONSTANT(name, ...)                                                                                            \
    static void *make_##name(void)                                                                                     \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }                                                                                                                  \
    extern const rules_maker rules_##name;                                                                             \
    const rules_maker rules_##name = {make_##name, NULL};

#define DROP(type, call)                                                                                               \
    void rules_drop_##type(void *thing);                                                                               \
    void rules_drop_##type(void *thing)                                                                                \
    {                                                                                                                  \
        call(thing);                                                                                                   \
    }

/* ---- objects that an argument needs, which are dropped with it ---- */

#define PAIRS 512
static struct {
    void *one, *other;
    void (*drop)(void *);
} pairs[PAIRS];

static void *pair(void *one, void *other, void (*drop)(void *))
{
    for (size_t i = 0; i < PAIRS; i++) {
        if (pairs[i].other == NULL) {
            pairs[i].one = one;
            pairs[i].other = other;
            pairs[i].drop = drop;
            return one;
        }
    }
    abort();
}

void rules_drop_companions(const void *one)
{
    for (size_t i = 0; one != NULL && i < PAIRS; i++) {
        if (pairs[i].one == one && pairs[i].other != NULL) {
            void *other = pairs[i].other;
            pairs[i].other = NULL;
            pairs[i].drop(other);
        }
    }
}

/* ---- drops ---- */

DROP(barrier, shoal_barrier_release)
DROP(block, shoal_block_release)
DROP(capture, shoal_capture_destroy)
DROP(condition, shoal_condition_release)
DROP(dataset, shoal_dataset_release)
DROP(env, shoal_env_destroy)
DROP(event, shoal_event_release)
DROP(loader, shoal_loader_destroy)
DROP(lock, shoal_lock_release)
DROP(message, shoal_message_destroy)
DROP(module, shoal_module_destroy)
DROP(optimizer, shoal_optimizer_destroy)
DROP(pool, shoal_pool_destroy)
DROP(process, shoal_process_destroy)
DROP(queue, shoal_queue_release)
DROP(rlock, shoal_rlock_release)
DROP(semaphore, shoal_semaphore_release)
DROP(sparse, shoal_sparse_destroy)
DROP(tensor, shoal_tensor_release)
DROP(tensors, shoal_tensors_destroy)
DROP(memory, free)

void rules_drop_pipe(void *thing);
void rules_drop_pipe(void *thing)
{
    rules_drop_companions(thing);
    shoal_pipe_release(thing);
}

void rules_drop_value(void *thing);
void rules_drop_value(void *thing)
{
    shoal_value_destroy(thing);
    rules_drop_companions(thing);
}

void rules_drop_dlpack(void *thing);
void rules_drop_dlpack(void *thing)
{
    shoal_dlpack *pack = thing;
    if (pack != NULL) {
        pack->deleter(pack);
    }
}

void rules_drop_delivery(void *thing);
void rules_drop_delivery(void *thing)
{
    shoal_delivery *delivery = thing;
    if (delivery->queue != NULL) {
        (void)!shoal_delivery_done(delivery);
    }
}

static void drop_own_delivery(void *thing)
{
    rules_drop_delivery(thing);
    rules_drop_companions(thing);
    free(thing);
}

static void rules_drop_waitable(void *thing)
{
    shoal_queue_release(((shoal_waitable *)thing)->queue);
    free(thing);
}

/* ---- functions, texts, numbers ---- */

static shoal_err target(int rank, const shoal_value *args)
{
    (void)rank;
    (void)args;
    return SHOAL_OK;
}

static shoal_err task(const shoal_value *arg, shoal_value **out_result)
{
    (void)arg;
    *out_result = NULL;
    return SHOAL_OK;
}

static shoal_err transform(shoal_tensor *x, void *context)
{
    (void)x;
    (void)context;
    return SHOAL_OK;
}

static shoal_tensor *hook(shoal_tensor *grad, void *context)
{
    (void)context;
    return grad;
}

static bool check(void *context)
{
    (void)context;
    return false;
}

static void release(void *context)
{
    (void)context;
}

static bool each(const shoal_ps_entry *entry, void *context)
{
    (void)entry;
    (void)context;
    return false;
}

static void log_line(const char *line, void *context)
{
    (void)line;
    (void)context;
}

#pragma GCC diagnostic ignored "-Wpedantic" /* function pointers are passed as void * */
CONSTANT(target, return (void *)target;)
CONSTANT(task, return (void *)task;)
CONSTANT(transform, return (void *)transform;)
CONSTANT(hook, return (void *)hook;)
CONSTANT(check_function, return (void *)check;)
CONSTANT(release_function, return (void *)release;)
CONSTANT(each_function, return (void *)each;)
CONSTANT(hook_function, return (void *)log_line;)

#define TEXT(name, text) CONSTANT(name, static char t[] = text; return t;)
TEXT(text_0, "0")
TEXT(text_cartpole, "cartpole")
TEXT(text_logistic, "logistic")
TEXT(text_mnist, "mnist")
TEXT(text_momentum, "weight.momentum_buffer")
TEXT(text_sync, "sync")
TEXT(text_true, "true")
TEXT(text_weight, "weight")
TEXT(text_x, "x")
TEXT(text_y, "y")
TEXT(path_idx, "made.idx")
TEXT(path_npy, "made.npy")
TEXT(path_weights, "made.safetensors")
CONSTANT(path_mnist, static char path[5000]; const char *data = getenv("SHOAL_DATA");
         (void)snprintf(path, sizeof path, "%s/mnist", data != NULL ? data : ""); return path;)

/* zeros also stands for options that are all unset. */
CONSTANT(zeros, static _Alignas(64) char zeros[4096]; memset(zeros, 0, sizeof zeros); return zeros;)
CONSTANT(shape1, static int64_t n[] = {4}; return n;)
CONSTANT(stride1, static int64_t n[] = {1}; return n;)
CONSTANT(shape22, static int64_t n[] = {2, 2}; return n;)
CONSTANT(ones2, static int64_t n[] = {1, 1}; return n;)
CONSTANT(dims10, static int64_t n[] = {1, 0}; return n;)
CONSTANT(pool2d_options, static shoal_pool2d_options o = {.size = {2, 2}}; return &o;)
CONSTANT(process_options, static shoal_process_options o = {.start = SHOAL_START_FORK}; return &o;)
CONSTANT(pool_options, static shoal_pool_options o = {.workers = 1, .start = SHOAL_START_FORK}; return &o;)
CONSTANT(argv_true, static char name[] = "true"; static char *argv[] = {name, NULL}; return argv;)
MAKER(named, memory, return calloc(1, sizeof(shoal_named));)

/* ---- kinds that the program defines ---- */

static shoal_err fetch(void *state, const int64_t *numbers, int64_t count, shoal_tensor *x, shoal_tensor *y)
{
    (void)state;
    (void)numbers;
    (void)count;
    (void)x;
    (void)y;
    return SHOAL_OK;
}

static shoal_tensor *forward(shoal_module *self, shoal_tensor *x)
{
    (void)self;
    return x;
}

static shoal_err reset(shoal_env *self, float *observation)
{
    (void)self;
    *observation = 0;
    return SHOAL_OK;
}

static shoal_err step(shoal_env *self, int64_t action, float *observation, double *out_reward, bool *out_terminated)
{
    (void)self;
    (void)action;
    *observation = 0;
    *out_reward = 0;
    *out_terminated = true;
    return SHOAL_OK;
}

CONSTANT(dataset_type, static shoal_dataset_type t = {.name = "rules", .length = 2, .fetch = fetch}; return &t;)
CONSTANT(module_type, static shoal_module_type t = {.name = "rules", .forward = forward}; return &t;)
CONSTANT(env_type,
         static shoal_env_type t = {.name = "rules", .observation = 1, .actions = 2, .reset = reset, .step = step};
         return &t;)

/* ---- shared objects ---- */

#define CREATED(type, name, ...) MAKER(name, type, shoal_##type *made = NULL; (void)!__VA_ARGS__; return made;)

CREATED(barrier, barrier, shoal_barrier_create(1, &made))
CREATED(block, block, shoal_block_create(64, &made))
CREATED(block, block_pages, shoal_block_create(16384, &made))
CREATED(condition, condition, shoal_condition_create(&made))
CREATED(event, event, shoal_event_create(&made))
CREATED(lock, lock, shoal_lock_create(&made))
CREATED(message, message, shoal_message_create(64, &made))
CREATED(queue, queue, shoal_queue_create(4, &made))
CREATED(rlock, rlock, shoal_rlock_create(&made))
CREATED(semaphore, semaphore, shoal_semaphore_create(1, 10, &made))
MAKER(condition_locked, condition, void *made = make_condition(); (void)!shoal_condition_lock(made, SHOAL_NOW);
      return made;)
MAKER(event_set, event, void *made = make_event(); shoal_event_set(made); return made;)
MAKER(lock_locked, lock, void *made = make_lock(); (void)!shoal_lock_lock(made, SHOAL_NOW); return made;)
MAKER(rlock_locked, rlock, void *made = make_rlock(); (void)!shoal_rlock_lock(made, SHOAL_NOW); return made;)
MAKER(queue_text, queue, void *made = make_queue();
      (void)!shoal_queue_put(made, shoal_value_string("longer than what fits into an entry of the ring"), SHOAL_NOW);
      return made;)
MAKER(queue_bytes, queue, void *made = make_queue(); (void)!shoal_queue_put_bytes(made, make_zeros(), 100, SHOAL_NOW);
      return made;)
MAKER(queue_block, queue, void *made = make_queue(), *block = make_block();
      (void)!shoal_queue_put_block(made, block, SHOAL_NOW); shoal_block_release(block); return made;)
CREATED(queue, queue_acknowledged, shoal_queue_create_with(&(shoal_queue_options){.acknowledge = true}, &made))
MAKER(queue_delivery, queue, void *made = make_queue_acknowledged();
      (void)!shoal_queue_put(made, shoal_value_string("longer than what fits into an entry of the ring"), SHOAL_NOW);
      return made;)

static void *make_delivery(void)
{
    shoal_queue *queue = make_queue_delivery();
    shoal_delivery *made = calloc(1, sizeof *made);
    shoal_value *value = NULL;
    if (made != NULL && shoal_queue_get_delivery(queue, SHOAL_NOW, &value, made) == SHOAL_OK) {
        shoal_value_destroy(value);
    }
    return pair(made, queue, rules_drop_queue);
}

extern const rules_maker rules_delivery;
const rules_maker rules_delivery = {make_delivery, drop_own_delivery};

MAKER(waitable, waitable, shoal_waitable *made = calloc(1, sizeof *made); made->queue = make_queue_text(); return made;)

static void *make_pipe(void)
{
    shoal_pipe *a = NULL, *b = NULL;
    return shoal_pipe_create(true, &a, &b) == SHOAL_OK ? pair(a, b, rules_drop_pipe) : NULL;
}

static shoal_pipe *other_end(const void *end)
{
    for (size_t i = 0; i < PAIRS; i++) {
        if (pairs[i].one == end && pairs[i].other != NULL) {
            return pairs[i].other;
        }
    }
    return NULL;
}

extern const rules_maker rules_pipe;
const rules_maker rules_pipe = {make_pipe, rules_drop_pipe};

MAKER(pipe_text, pipe, void *made = make_pipe();
      (void)!shoal_pipe_send(other_end(made), shoal_value_string("longer than what fits into an entry"), SHOAL_NOW);
      return made;)
MAKER(pipe_bytes, pipe, void *made = make_pipe();
      (void)!shoal_pipe_send_bytes(other_end(made), make_zeros(), 100, SHOAL_NOW); return made;)

static shoal_pool *kept_pool;
static shoal_process *kept_process;

/* The worker of the kept pool has finished all its earlier tasks. */
static void *done(void *made)
{
    shoal_value *result = NULL;
    (void)!shoal_pool_apply(kept_pool, task, shoal_value_int(1), &result);
    shoal_value_destroy(result);
    return made;
}

/* A task continues to run after its handle is released. */
void rules_drop_future(void *thing);
void rules_drop_future(void *thing)
{
    shoal_future_destroy(thing);
    (void)done(NULL);
}

void rules_drop_iterator(void *thing);
void rules_drop_iterator(void *thing)
{
    shoal_iterator_destroy(thing);
    (void)done(NULL);
}

/* ---- processes: one pool and one process serve all calls except those that end them ---- */

/* Its worker runs, and waits for a task. */
MAKER(pool_own, pool, shoal_pool *made = NULL; shoal_value *result = NULL;
      (void)!shoal_pool_create(make_pool_options(), &made);
      (void)!shoal_pool_apply(made, task, shoal_value_int(1), &result); shoal_value_destroy(result); return made;)
MAKER(process_own, process, shoal_process *made = NULL;
      (void)!shoal_process_start(target, shoal_value_null(), make_process_options(), &made);
      (void)!shoal_process_join(made, SHOAL_SECONDS(10), NULL); return made;)

CONSTANT(pool, kept_pool = kept_pool != NULL ? kept_pool : make_pool_own(); return kept_pool;)
CONSTANT(process, kept_process = kept_process != NULL ? kept_process : make_process_own(); return kept_process;)
MAKER(future, future, shoal_future *made = NULL;
      (void)!shoal_pool_apply_async(make_pool(), task, shoal_value_int(1), &made); return done(made);)
MAKER(iterator, iterator, shoal_iterator *made = NULL;
      (void)!shoal_pool_imap(make_pool(), task, shoal_list(1), true, &made); return done(made);)

void rules_drop_kept(void)
{
    shoal_pool_destroy(kept_pool);
    shoal_process_destroy(kept_process);
    kept_pool = NULL;
    kept_process = NULL;
}

/* ---- tensors and objects made from them ---- */

MAKER(tensor, tensor, return shoal_ones(SHOAL_F32, SHOAL_SHAPE(2, 2));)
MAKER(row12, tensor, return shoal_ones(SHOAL_F32, SHOAL_SHAPE(1, 2));)
MAKER(scalar, tensor, return shoal_scalar(SHOAL_F32, 1);)
MAKER(vector1, tensor, return shoal_ones(SHOAL_F32, SHOAL_SHAPE(1));)
MAKER(vector2, tensor, return shoal_ones(SHOAL_F32, SHOAL_SHAPE(2));)
MAKER(vector8, tensor, return shoal_ones(SHOAL_F32, SHOAL_SHAPE(8));)
MAKER(gates, tensor, return shoal_ones(SHOAL_F32, SHOAL_SHAPE(8, 2));)
MAKER(image, tensor, return shoal_ones(SHOAL_F32, SHOAL_SHAPE(1, 1, 6, 6));)
MAKER(kernel, tensor, return shoal_ones(SHOAL_F32, SHOAL_SHAPE(1, 1, 3, 3));)
MAKER(classes, tensor, return shoal_zeros(SHOAL_I64, SHOAL_SHAPE(2));)
MAKER(class1, tensor, return shoal_zeros(SHOAL_I64, SHOAL_SHAPE(1));)
MAKER(index, tensor, return shoal_zeros(SHOAL_I64, SHOAL_SHAPE(2, 2));)
MAKER(coo_indices, tensor, return shoal_from_data(SHOAL_I64, (int64_t[]){0, 1}, SHOAL_SHAPE(1, 2));)
MAKER(starts, tensor, return shoal_from_data(SHOAL_I64, (int64_t[]){0, 1}, SHOAL_SHAPE(2));)
MAKER(mask, tensor, return shoal_ones(SHOAL_B8, SHOAL_SHAPE(2, 2));)
MAKER(leaf, tensor, void *made = make_tensor(); (void)!shoal_tensor_set_requires_grad(made, true); return made;)
MAKER(loss, tensor, size_t mark = shoal_scope_mark(); void *leaf = make_leaf();
      void *made = shoal_tensor_retain(shoal_sum(leaf, SHOAL_ALL_DIMS, false)); shoal_tensor_release(leaf);
      shoal_scope_release(mark); return made;)
MAKER(queue_tensor, queue, void *made = make_queue(), *t = make_tensor();
      (void)!shoal_queue_put_tensor(made, t, SHOAL_NOW); shoal_tensor_release(t); return made;)

static void rules_drop_tensor_array(void *thing)
{
    if (thing != NULL) {
        shoal_tensor_release(*(shoal_tensor **)thing);
    }
    free(thing);
}
MAKER(tensor_array, tensor_array, shoal_tensor **made = calloc(2, sizeof *made); *made = make_tensor(); return made;)

MAKER(module, module, return shoal_linear_create(2, 2, true);)
MAKER(sequential, module, return shoal_sequential(shoal_relu_create(), shoal_tanh_create());)
static void rules_drop_children(void *thing)
{
    shoal_module_destroy(*(shoal_module **)thing);
    rules_drop_companions(thing);
}
/* A call that consumes the children leaves the array, which is registered as its own companion. */
MAKER(children, children, shoal_module **made = calloc(1, sizeof *made); *made = shoal_relu_create();
      return pair(made, made, rules_drop_memory);)
MAKER(optimizer, optimizer, void *m = make_module(), *made = shoal_sgd_create((shoal_module *)m, .lr = 0.1);
      shoal_module_destroy(m); return made;)
MAKER(optimizer_momentum, optimizer, void *m = make_module();
      void *made = shoal_sgd_create((shoal_module *)m, .lr = 0.1, .momentum = 0.5); shoal_module_destroy(m);
      (void)!shoal_optimizer_prepare(made); return made;)
MAKER(dataset, dataset, void *x = make_tensor(), *y = make_classes(), *made = shoal_tensor_dataset(x, y);
      shoal_tensor_release(x); shoal_tensor_release(y); return made;)
MAKER(loader, loader, void *set = make_dataset(), *made = shoal_loader_create((shoal_dataset *)set, .batch = 1);
      shoal_dataset_release(set); return made;)
MAKER(env, env, return shoal_env_create("cartpole", 1);)
MAKER(env_begun, env, float o[4]; void *made = make_env(); (void)!shoal_env_reset(made, o); return made;)
MAKER(sparse, sparse, void *t = make_tensor(), *made = shoal_sparse_from_dense(t, SHOAL_LAYOUT_COO);
      shoal_tensor_release(t); return made;)
MAKER(tensors, tensors, void *t = make_tensor(); shoal_tensors *made = shoal_tensors_create();
      (void)!shoal_tensors_add(made, "x", t); (void)!shoal_tensors_set_text(made, "x", "text"); shoal_tensor_release(t);
      return made;)
MAKER(dlpack, dlpack, void *t = make_tensor(); shoal_dlpack *made = NULL; (void)!shoal_tensor_to_dlpack(t, 0, &made);
      shoal_tensor_release(t); return made;)

/* ---- values, alone and as the argument "x" ---- */

#define VALUE(name, expression)                                                                                        \
    MAKER(value_##name, value, return expression;)                                                                     \
    MAKER(args_##name, value, return shoal_map("x", (shoal_value *)make_value_##name());)

VALUE(bool, shoal_value_bool(true))
VALUE(int, shoal_value_int(1))
VALUE(uint, shoal_value_uint(UINT64_MAX))
VALUE(float, shoal_value_float(0.5))
VALUE(string, shoal_value_string("longer than what fits into an entry of the ring"))
VALUE(bytes, shoal_value_bytes(make_zeros(), 100))
VALUE(foreign, shoal_value_foreign(1, make_zeros(), 100))

#define OBJECT_VALUE(type)                                                                                             \
    static void *value_of_##type(void)                                                                                 \
    {                                                                                                                  \
        void *object = make_##type(), *made = shoal_value_##type(object);                                              \
        rules_drop_##type(object);                                                                                     \
        return made;                                                                                                   \
    }                                                                                                                  \
    VALUE(type, value_of_##type())

OBJECT_VALUE(barrier)
OBJECT_VALUE(block)
OBJECT_VALUE(condition)
OBJECT_VALUE(dataset)
OBJECT_VALUE(event)
OBJECT_VALUE(lock)
OBJECT_VALUE(module)
OBJECT_VALUE(pipe)
OBJECT_VALUE(queue)
OBJECT_VALUE(rlock)
OBJECT_VALUE(semaphore)
OBJECT_VALUE(sparse)
OBJECT_VALUE(tensor)

MAKER(value_list, value, return shoal_value_list();)
MAKER(value_map, value, return shoal_value_map();)
MAKER(value_packed, value, return shoal_value_packed("\x90", 1);) /* an empty list */
MAKER(value_list1, value, return shoal_list(1);)
MAKER(value_map1, value, return shoal_map("x", (shoal_value *)make_value_queue());)
MAKER(value_state_dict, value, void *m = make_module(), *made = shoal_module_state_dict(m); shoal_module_destroy(m);
      return made;)

/* ---- files ---- */

bool rules_write_files(void)
{
    static const unsigned char idx[] = {0, 0, 8, 1, 0, 0, 0, 2, 1, 2};
    FILE *f = fopen(make_path_idx(), "w");
    bool good = f != NULL && fwrite(idx, sizeof idx, 1, f) == 1;
    good = f != NULL && fclose(f) == 0 && good;
    void *t = make_tensor(), *m = make_module();
    good = shoal_npy_write(make_path_npy(), t) == SHOAL_OK && good;
    good = shoal_weights_write(make_path_weights(), m) == SHOAL_OK && good;
    shoal_tensor_release(t);
    shoal_module_destroy(m);
    return good;
}
