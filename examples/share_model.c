/* One model, several processes: each trains the parent's parameters, without a lock, on data that it generates; the
 * parent prints the parameters that they found.
 *
 *     build/examples/share_model [workers]
 */
#include <shoal/shoal.h>

#include <stdio.h>
#include <stdlib.h>

#define STEPS 200

/* y = 3 a - 2 b + 1, the function that the model should learn. */
static shoal_tensor *truth(shoal_tensor *x)
{
    shoal_tensor *a = shoal_narrow(x, 1, 0, 1), *b = shoal_narrow(x, 1, 1, 1);
    return shoal_add_scalar(shoal_sub(shoal_mul_scalar(a, 3), shoal_mul_scalar(b, 2)), 1);
}

static shoal_err train(int rank, const shoal_value *args)
{
    shoal_module *model = shoal_arg_module(args, "model"); /* the parent's parameters, not a copy */
    shoal_optimizer *sgd = shoal_sgd_create(model, .lr = 0.02);
    shoal_tensor *x = shoal_empty(SHOAL_F32, SHOAL_SHAPE(32, 2));
    shoal_err err = model && sgd && x ? SHOAL_OK : shoal_last_error();
    shoal_manual_seed((uint64_t)rank + 1);
    for (int i = 0; i < STEPS && err == SHOAL_OK; i++) {
        size_t mark = shoal_scope_mark();
        shoal_normal_(x, 0, 1);
        shoal_optimizer_zero_grad(sgd);
        err = shoal_backward(shoal_mse_loss(shoal_module_forward(model, x), truth(x), SHOAL_REDUCTION_MEAN));
        if (err == SHOAL_OK) {
            err = shoal_optimizer_step(sgd); /* updates the shared parameters */
        }
        shoal_scope_release(mark);
    }
    shoal_tensor_release(x);
    shoal_optimizer_destroy(sgd);
    return err;
}

int main(int argc, char **argv)
{
    shoal_err err = shoal_init(&argc, &argv);
    int workers = argc > 1 ? atoi(argv[1]) : 4;
    shoal_module *model = err == SHOAL_OK ? shoal_linear_create(2, 1, true) : NULL;
    err = model ? shoal_module_share(model) : shoal_last_error();
    if (err == SHOAL_OK) {
        err = shoal_spawn(train, workers, shoal_map("model", model));
    }
    if (err == SHOAL_OK) {
        const float *w = shoal_tensor_data(shoal_module_get(model, "weight"));
        const float *b = shoal_tensor_data(shoal_module_get(model, "bias"));
        printf("y = %.2f a + %.2f b + %.2f after %d workers\n", w[0], w[1], b[0], workers);
    } else {
        fprintf(stderr, "%s: %s\n", shoal_err_name(err), shoal_last_error_text());
    }
    shoal_module_destroy(model);
    return err != SHOAL_OK;
}
