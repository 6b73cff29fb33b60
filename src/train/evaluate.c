/* shoal_evaluate: tests a model. */
#include "base/error.h"

#include <shoal/autograd.h>
#include <shoal/ops.h>
#include <shoal/train.h>

#define BATCH 500

static shoal_err test(shoal_module *module, shoal_loader *loader, double *out_loss, double *out_right)
{
    shoal_err err;
    shoal_batch b;
    while ((err = shoal_loader_next(loader, &b)) == SHOAL_OK) {
        shoal_tensor *scores = shoal_module_forward(module, b.x);
        shoal_tensor *loss = shoal_nll_loss_with(scores, b.y, NULL, SHOAL_SUM);
        shoal_tensor *right = shoal_sum(shoal_eq(shoal_argmax(scores, 1, false), b.y), SHOAL_ALL, false);
        double l = 0, r = 0;
        err = loss == NULL || right == NULL ? shoal_last_error() : shoal_item(loss, &l);
        err = err == SHOAL_OK ? shoal_item(right, &r) : err;
        if (err != SHOAL_OK) {
            return err;
        }
        *out_loss += l;
        *out_right += r;
    }
    return err == SHOAL_END ? SHOAL_OK : err;
}

shoal_err shoal_evaluate(shoal_module *module, shoal_dataset *set, double *out_loss, double *out_accuracy)
{
    SH_NEED(module);
    SH_NEED(set);
    if (shoal_dataset_length(set) == 0) {
        return sh_fail(SHOAL_EINVAL, "shoal_evaluate: the set has no samples");
    }
    shoal_loader *loader = shoal_loader_create(set, .batch = BATCH);
    if (loader == NULL) {
        return shoal_last_error();
    }
    bool training = shoal_module_training(module);
    double loss = 0, right = 0, count = (double)shoal_dataset_length(set);
    shoal_module_train(module, false);
    shoal_no_grad_begin();
    shoal_err err = test(module, loader, &loss, &right);
    shoal_no_grad_end();
    shoal_module_train(module, training);
    shoal_loader_destroy(loader);
    if (err == SHOAL_OK && out_loss != NULL) {
        *out_loss = loss / count;
    }
    if (err == SHOAL_OK && out_accuracy != NULL) {
        *out_accuracy = right / count;
    }
    return err;
}
