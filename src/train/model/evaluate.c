/* shoal_evaluate, shoal_evaluate_classes: test a model. */
#include "train/model/evaluate.h"

#include "base/error.h"

#include <shoal/autograd.h>
#include <shoal/ops.h>
#include <shoal/train.h>

#include <stdlib.h>
#include <string.h>

int64_t sh_evaluate_batches(const shoal_dataset *set)
{
    return (shoal_dataset_length(set) + SH_EVALUATE_BATCH - 1) / SH_EVALUATE_BATCH;
}

/* Fetches a batch into the first rows of e->full; rows are those. */
static shoal_err fetch(sh_evaluator *e, int64_t batch, sh_batch *rows)
{
    int64_t numbers[SH_EVALUATE_BATCH], first = batch * SH_EVALUATE_BATCH, left = shoal_dataset_length(e->set) - first;
    int64_t count = left < SH_EVALUATE_BATCH ? left : SH_EVALUATE_BATCH;
    if (e->full.x == NULL) {
        SH_TRY(sh_batch_create(&e->full, e->set, SH_EVALUATE_BATCH, shoal_empty));
    }
    for (int64_t i = 0; i < count; i++) {
        numbers[i] = first + i;
    }
    SH_TRY(sh_batch_rows(rows, &e->full, count));
    return sh_fetch_into(e->set, numbers, count, rows);
}

static shoal_tensor *sent(const sh_evaluator *e, shoal_tensor *t)
{
    return shoal_tensor_retain(shoal_to_device(t, e->device));
}

/* Fetches a batch and copies it to the model's device. On failure, copies may hold a part. */
static shoal_err send_batch(sh_evaluator *e, int64_t batch, sh_batch *copies)
{
    sh_batch here = {NULL, NULL};
    shoal_err err = fetch(e, batch, &here);
    if (err == SHOAL_OK) {
        copies->x = sent(e, here.x);
        copies->y = copies->x ? sent(e, here.y) : NULL;
        err = copies->y ? SHOAL_OK : shoal_last_error();
    }
    sh_batch_release(&here);
    return err;
}

/* fetch for a model on a GPU, where a batch stays after it was tested once. */
static shoal_err fetch_to_gpu(sh_evaluator *e, int64_t batch, sh_batch *rows)
{
    e->kept = e->kept ? e->kept : calloc((size_t)sh_evaluate_batches(e->set), sizeof *e->kept);
    if (e->kept == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a test set on the GPU");
    }
    sh_batch *kept = &e->kept[batch];
    shoal_err err = kept->y != NULL ? SHOAL_OK : send_batch(e, batch, kept);
    if (err != SHOAL_OK) {
        sh_batch_release(kept);
        return err;
    }
    *rows = (sh_batch){.x = shoal_tensor_retain(kept->x), .y = shoal_tensor_retain(kept->y)};
    return SHOAL_OK;
}

static shoal_err count_confusion(const sh_evaluator *e, shoal_tensor *labels, shoal_tensor *predicted)
{
    int64_t is[SH_EVALUATE_BATCH], said[SH_EVALUATE_BATCH], count = shoal_tensor_count(labels);
    SH_TRY(shoal_tensor_read(shoal_to_dtype(labels, SHOAL_I64), is, (size_t)count * sizeof *is));
    SH_TRY(shoal_tensor_read(predicted, said, (size_t)count * sizeof *said));
    for (int64_t i = 0; i < count; i++) {
        if (is[i] < 0 || is[i] >= e->classes || said[i] >= e->classes) {
            return sh_fail(SHOAL_EINVAL, "a class is not from 0 to %lld", (long long)e->classes - 1);
        }
        e->confusion[is[i] * e->classes + said[i]]++;
    }
    return SHOAL_OK;
}

static shoal_err score(const sh_evaluator *e, shoal_module *module, const sh_batch *rows, sh_batch *out_sums)
{
    shoal_tensor *scores = shoal_module_forward(module, rows->x);
    shoal_tensor *loss = shoal_nll_loss_with(scores, rows->y, NULL, SHOAL_REDUCTION_SUM);
    shoal_tensor *predicted = shoal_argmax(scores, 1, false);
    shoal_tensor *right = shoal_sum(shoal_eq(predicted, rows->y), SHOAL_ALL_DIMS, false);
    if (loss == NULL || right == NULL) {
        return shoal_last_error();
    }
    if (e->confusion != NULL) {
        SH_TRY(count_confusion(e, rows->y, predicted));
    }
    *out_sums = (sh_batch){.x = shoal_tensor_retain(loss), .y = shoal_tensor_retain(right)};
    return SHOAL_OK;
}

shoal_err sh_evaluate_start(sh_evaluator *e, shoal_module *module, int64_t batch, sh_batch *out_sums)
{
    size_t mark = shoal_scope_mark();
    bool training = shoal_module_training(module);
    sh_batch rows = {NULL, NULL};
    shoal_module_train(module, false);
    shoal_no_grad_begin();
    shoal_err err = e->device == SHOAL_CPU ? fetch(e, batch, &rows) : fetch_to_gpu(e, batch, &rows);
    if (err == SHOAL_OK) {
        err = score(e, module, &rows, out_sums);
    }
    shoal_no_grad_end();
    shoal_module_train(module, training);
    shoal_scope_release(mark);
    sh_batch_release(&rows);
    return err;
}

shoal_err sh_evaluate_read(const sh_batch *sums, sh_score *out_score)
{
    sh_score s = {0, 0};
    SH_TRY(shoal_item(sums->x, &s.loss));
    SH_TRY(shoal_item(sums->y, &s.right));
    *out_score = s;
    return SHOAL_OK;
}

shoal_err sh_evaluate_batch(sh_evaluator *e, shoal_module *module, int64_t batch, sh_score *out_score)
{
    sh_batch sums = {NULL, NULL};
    shoal_err err = sh_evaluate_start(e, module, batch, &sums);
    if (err == SHOAL_OK) {
        err = sh_evaluate_read(&sums, out_score);
    }
    sh_batch_release(&sums);
    return err;
}

void sh_evaluator_fini(sh_evaluator *e)
{
    sh_batch_release(&e->full);
    for (int64_t i = 0; e->kept != NULL && i < sh_evaluate_batches(e->set); i++) {
        sh_batch_release(&e->kept[i]);
    }
    free(e->kept);
}

static shoal_device device_of(const shoal_module *module)
{
    shoal_named first = {0};
    return shoal_module_next(module, &first) == SHOAL_OK ? shoal_tensor_device(first.tensor) : SHOAL_CPU;
}

static shoal_err sum_batches(sh_evaluator *e, shoal_module *module, sh_score *out_sum)
{
    *out_sum = (sh_score){0, 0};
    for (int64_t batch = 0; batch < sh_evaluate_batches(e->set); batch++) {
        sh_score s;
        SH_TRY(sh_evaluate_batch(e, module, batch, &s));
        if (e->kept != NULL) { /* each batch is tested only once here */
            sh_batch_release(&e->kept[batch]);
        }
        out_sum->loss += s.loss;
        out_sum->right += s.right;
    }
    return SHOAL_OK;
}

/* Tests a model on all batches; e says what is counted. */
static shoal_err evaluate(sh_evaluator *e, shoal_module *module, double *out_loss, double *out_accuracy)
{
    double count = (double)shoal_dataset_length(e->set);
    if (count == 0) {
        return sh_fail(SHOAL_EINVAL, "shoal_evaluate: the set has no samples");
    }
    sh_score sum;
    shoal_err err = sum_batches(e, module, &sum);
    sh_evaluator_fini(e);
    SH_TRY(err);
    if (out_loss != NULL) {
        *out_loss = sum.loss / count;
    }
    if (out_accuracy != NULL) {
        *out_accuracy = sum.right / count;
    }
    return SHOAL_OK;
}

shoal_err shoal_evaluate(shoal_module *module, shoal_dataset *set, double *out_loss, double *out_accuracy)
{
    SH_NEED(module);
    SH_NEED(set);
    sh_evaluator e = {.set = set, .device = device_of(module)};
    return evaluate(&e, module, out_loss, out_accuracy);
}

shoal_err shoal_evaluate_classes(shoal_module *module, shoal_dataset *set, int classes, int64_t *out_confusion,
                                 double *out_loss, double *out_accuracy)
{
    SH_NEED(module);
    SH_NEED(set);
    SH_NEED(out_confusion);
    if (classes < 1) {
        return sh_fail(SHOAL_EINVAL, "shoal_evaluate_classes: %d classes", classes);
    }
    size_t row = (size_t)classes * sizeof *out_confusion;
    sh_evaluator e = {
        .set = set, .device = device_of(module), .classes = classes, .confusion = calloc((size_t)classes, row)};
    shoal_err err = e.confusion != NULL ? evaluate(&e, module, out_loss, out_accuracy)
                                        : sh_fail(SHOAL_ENOMEM, "no memory for the counts of %d classes", classes);
    if (err == SHOAL_OK) {
        memcpy(out_confusion, e.confusion, (size_t)classes * row);
    }
    free(e.confusion);
    return err;
}
