// What C users write, in C++: shapes, options by name, sequential, list and map, references by type, arguments.
#include <shoal/shoal.h>

#include <cstdio>
#include <cstring>
#include <string>

static int wrong;

static void must(bool good, const char *what)
{
    if (!good) {
        std::fprintf(stderr, "%s: %s: %s\n", what, shoal_err_name(shoal_last_error()), shoal_last_error_text());
        wrong = 1;
    }
}
#define MUST(condition) must((condition), #condition)

static shoal_err square(int rank, const shoal_value *args)
{
    int64_t n = 0;
    uint64_t large = 0;
    double half = 0;
    bool yes = false;
    shoal_queue *answers = shoal_arg_queue(args, "answers");
    shoal_err err = shoal_arg_int(args, "n", &n);
    err = err == SHOAL_OK ? shoal_arg_uint(args, "large", &large) : err;
    err = err == SHOAL_OK ? shoal_arg_float(args, "half", &half) : err;
    err = err == SHOAL_OK ? shoal_arg_bool(args, "yes", &yes) : err;
    if (err == SHOAL_OK && (!yes || half != 0.5 || large != UINT64_MAX || !shoal_arg_module(args, "model") ||
                            shoal_dataset_length(shoal_arg_dataset(args, "data")) != 4)) {
        err = shoal_fail(SHOAL_ETYPE, "an argument arrived as another");
    }
    return err == SHOAL_OK ? shoal_queue_put(answers, shoal_list(rank, n * n, "text", shoal_map("a", 1)), SHOAL_FOREVER)
                           : err;
}

static void train()
{
    size_t features = 3; /* any integer makes a shape */
    shoal_tensor *x = shoal_ones(SHOAL_F32, SHOAL_SHAPE(4, features)), *y = shoal_zeros(SHOAL_I64, SHOAL_SHAPE(4));
    shoal_tensor *number = shoal_zeros(SHOAL_F32, SHOAL_SCALAR);
    MUST(shoal_tensor_ndim(x) == 2 && shoal_tensor_size(x, 1) == 3 && shoal_tensor_ndim(number) == 0);
    shoal_module *model = shoal_sequential(shoal_linear_create(3, 5, true), shoal_linear_create(5, 2, true));
    shoal_dataset *set = shoal_tensor_dataset(x, y);
#if __cplusplus >= 202002L
    shoal_loader *data = shoal_loader_create(set, .batch = 2, .shuffle = true);
    shoal_optimizer *sgd = shoal_sgd_create(model, .lr = 0.1);
#else
    shoal_loader_options options{};
    options.batch = 2;
    shoal_loader *data = shoal_loader_create(set, options);
    shoal_sgd_options by{};
    by.lr = 0.1;
    shoal_optimizer *sgd = shoal_sgd_create(model, by);
#endif
    MUST(model && data && sgd);
    shoal_batch b;
    int batches = 0;
    shoal_err err;
    while ((err = shoal_loader_next(data, &b)) == SHOAL_OK) {
        MUST(shoal_module_forward(model, b.x) != nullptr && b.count == 2);
        batches++;
    }
    MUST(err == SHOAL_END && batches == 2);
    shoal_queue *answers = nullptr;
    MUST(shoal_queue_create(0, &answers) == SHOAL_OK);
    MUST(shoal_spawn(square, 1,
                     shoal_map("answers", answers, "n", 7, "large", UINT64_MAX, "half", 0.5f, "yes", true, "model",
                               model, "data", set)) == SHOAL_OK);
    shoal_value *got = nullptr;
    int64_t n = 0;
    MUST(shoal_queue_get(answers, SHOAL_FOREVER, &got) == SHOAL_OK);
    MUST(shoal_value_as_int(shoal_value_at(got, 1), &n) == SHOAL_OK && n == 49);
    shoal_value_destroy(got);
    shoal_value *kept = shoal_value_keep(shoal_list(1, 2.5, "three"));
    MUST(shoal_queue_put(answers, kept, SHOAL_NOW) == SHOAL_OK && shoal_value_count(kept) == 3);
    shoal_value_destroy(kept);
    shoal_value *mixed = shoal_list(true, std::string("text"), std::string("long enough for the heap of a string"));
    MUST(shoal_value_type(shoal_value_at(mixed, 0)) == SHOAL_TYPE_BOOL);
    MUST(shoal_value_as_string(shoal_value_at(mixed, 1)) == std::string("text"));
    shoal_value_destroy(mixed);
    shoal_release(shoal_retain(answers));
    shoal_release(answers);
    shoal_optimizer_destroy(sgd);
    shoal_loader_destroy(data);
    shoal_release(set);
    shoal_module_destroy(model);
    shoal_release(number);
    shoal_release(x);
    shoal_release(y);
}

int main(int argc, char **argv)
{
    if (shoal_init(&argc, &argv) != SHOAL_OK) {
        return 1;
    }
    train();
    shoal_scope_release(0);
    std::puts(wrong ? "failed" : "good");
    return wrong;
}
