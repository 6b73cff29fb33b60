/* The C half of c_and_python.py. Takes requests from a queue until one is null, and answers each through another queue.
 * A request is a dict of Python: {"do": "sum", "numbers": [1, 2.5]}. */
#include <shoal/binding.h>
#include <shoal/shoal.h>
#include <stdio.h>
#include <string.h>

/* Returns the sum of a list of numbers. */
static shoal_err sum(const shoal_value *request, double *out_sum)
{
    const shoal_value *numbers = shoal_value_find(request, "numbers");
    double total = 0, number = 0;
    shoal_err err = numbers != NULL ? SHOAL_OK : shoal_last_error();
    for (size_t i = 0; err == SHOAL_OK && i < shoal_value_count(numbers); i++) {
        err = shoal_value_as_float(shoal_value_at(numbers, i), &number);
        total += number;
    }
    *out_sum = total;
    return err;
}

/* Doubles the elements of a tensor. It is the memory of the Python process, not a copy. */
static shoal_err twice(const shoal_value *request, double *out_count)
{
    shoal_tensor *tensor = shoal_arg_tensor(request, "tensor");
    if (tensor == NULL) {
        return shoal_last_error();
    }
    float *elements = shoal_tensor_data(tensor);
    for (int64_t i = 0; i < shoal_tensor_count(tensor); i++) {
        elements[i] *= 2;
    }
    *out_count = (double)shoal_tensor_count(tensor);
    return SHOAL_OK;
}

/* Counts up under a lock, while the Python process does the same. */
static shoal_err count(const shoal_value *request, double *out_times)
{
    shoal_lock *lock = shoal_arg_lock(request, "lock");
    shoal_tensor *counter = shoal_arg_tensor(request, "counter");
    int64_t times = 0;
    shoal_err err = lock != NULL && counter != NULL ? shoal_arg_int(request, "times", &times) : shoal_last_error();
    for (int64_t i = 0; err == SHOAL_OK && i < times; i++) {
        err = shoal_lock_lock(lock, SHOAL_FOREVER);
        if (err == SHOAL_OK) {
            *(int64_t *)shoal_tensor_data(counter) += 1;
            err = shoal_lock_unlock(lock);
        }
    }
    *out_times = (double)times;
    return err;
}

static shoal_err answer(const shoal_value *request, shoal_queue *back)
{
    static const struct {
        const char *name;
        shoal_err (*run)(const shoal_value *, double *);
    } works[] = {{"sum", sum}, {"double", twice}, {"count", count}};
    const char *name = shoal_arg_string(request, "do");
    double result = 0;
    shoal_err err = name != NULL ? SHOAL_EINVAL : shoal_last_error();
    for (size_t i = 0; name != NULL && i < sizeof works / sizeof *works; i++) {
        if (strcmp(name, works[i].name) == 0) {
            err = works[i].run(request, &result);
        }
    }
    return err == SHOAL_OK ? shoal_queue_put(back, shoal_map("done", name, "result", result), SHOAL_FOREVER) : err;
}

int main(void)
{
    const shoal_value *args;
    shoal_value *request = NULL;
    shoal_err err = shoal_child_begin(NULL, &args);
    shoal_queue *there = err == SHOAL_OK ? shoal_arg_queue(args, "there") : NULL;
    shoal_queue *back = there != NULL ? shoal_arg_queue(args, "back") : NULL;
    if (back == NULL) {
        fprintf(stderr, "c_worker: %s\n", shoal_last_error_text());
        return 1;
    }
    int ended = 0;
    while (err == SHOAL_OK && !ended) {
        err = shoal_queue_get(there, SHOAL_FOREVER, &request);
        if (err == SHOAL_OK) {
            ended = shoal_value_type(request) == SHOAL_TYPE_NULL;
            err = ended ? SHOAL_OK : answer(request, back);
            shoal_value_destroy(request);
        }
    }
    if (err != SHOAL_OK) {
        fprintf(stderr, "c_worker: %s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    return err != SHOAL_OK;
}
