/* Tests. The model fedavg-cnn on images of bytes is tested by the forward half of its steps (kernels/fedavg_cnn.h): op
 * by op, a test took an eighth of a round of fedavg. */
#include "train/engines/cuda/steps_fedavg_cnn.h"

#include "base/error.h"
#include "data/dataset.h"

#include <stdlib.h>

typedef struct sh_gpu_tests {
    shoal_tensor *pixels, *labels, *scratch;
    shoal_tensor *order;  /* i64 [samples]: 0, 1, 2 ... */
    shoal_tensor *counts; /* i64 [batches] samples in each */
    shoal_tensor *at;     /* i64 [1]: 0 */
    shoal_tensor *scores; /* f64 [batches, 2] */
    double *host;         /* the same */
} sh_gpu_tests;

void sh_gpu_tests_close(sh_gpu_tests *t)
{
    if (t == NULL) {
        return;
    }
    shoal_tensor *all[] = {t->pixels, t->labels, t->scratch, t->order, t->counts, t->at, t->scores};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        shoal_tensor_release(all[i]);
    }
    free(t->host);
    free(t);
}

/* Makes a tensor on the GPU with the numbers that `number` gives. */
static shoal_tensor *numbers(const sh_gpu *g, int64_t count, int64_t length, int64_t (*number)(int64_t, int64_t))
{
    shoal_tensor *t = sh_gpu_make(g, SHOAL_I64, SHOAL_SHAPE(count));
    int64_t *host = t ? malloc((size_t)count * sizeof *host) : NULL;
    for (int64_t i = 0; host != NULL && i < count; i++) {
        host[i] = number(i, length);
    }
    shoal_err err = host ? g->device->write(sh_tensor_ptr(t), host, (size_t)count * sizeof *host)
                         : (t ? sh_fail(SHOAL_ENOMEM, "no memory for the tests on the GPU") : SHOAL_ENOMEM);
    free(host);
    if (err != SHOAL_OK) {
        shoal_tensor_release(t);
        t = NULL;
    }
    return t;
}

static int64_t own_number(int64_t i, int64_t length)
{
    (void)length;
    return i;
}

static int64_t count_of_batch(int64_t batch, int64_t length)
{
    int64_t left = length - batch * SH_EVALUATE_BATCH;
    return left < SH_EVALUATE_BATCH ? left : SH_EVALUATE_BATCH;
}

static shoal_err open_tests(sh_gpu *g, const sh_byte_images *images)
{
    shoal_dataset *set = g->base.test_set;
    int64_t length = shoal_dataset_length(set), batches = sh_evaluate_batches(set);
    int64_t size = (int64_t)g->device->kernels()->fedavg_cnn->scratch_size(SH_EVALUATE_BATCH, 1);
    sh_gpu_tests *t = calloc(1, sizeof *t);
    if (t == NULL || (t->host = calloc((size_t)batches, 2 * sizeof *t->host)) == NULL) {
        sh_gpu_tests_close(t);
        return sh_fail(SHOAL_ENOMEM, "no memory for the tests on the GPU");
    }
    t->pixels = sh_gpu_upload(g, images->pixels);
    t->labels = t->pixels ? sh_gpu_upload(g, images->labels) : NULL;
    t->scratch = t->labels ? sh_gpu_make(g, SHOAL_U8, SHOAL_SHAPE(size)) : NULL;
    t->order = t->scratch ? numbers(g, length, length, own_number) : NULL;
    t->counts = t->order ? numbers(g, batches, length, count_of_batch) : NULL;
    t->at = t->counts ? numbers(g, 1, length, own_number) : NULL;
    t->scores = t->at ? sh_gpu_make(g, SHOAL_F64, SHOAL_SHAPE(batches, 2)) : NULL;
    if (t->scores == NULL) {
        sh_cleanup_begin();
        sh_gpu_tests_close(t);
        sh_cleanup_end();
        return shoal_last_error();
    }
    g->tests = t;
    return SHOAL_OK;
}

/* Enqueues the test of a batch. */
static shoal_err start(const sh_gpu *g, const sh_byte_images *images, int64_t batch)
{
    const sh_gpu_tests *t = g->tests;
    sh_fedavg_cnn_step step = {.stride = g->offsets[g->count],
                               .clients = 1,
                               .pixels = sh_tensor_ptr(t->pixels),
                               .labels = sh_tensor_ptr(t->labels),
                               .order = (const int64_t *)sh_tensor_ptr(t->order) + batch * SH_EVALUATE_BATCH,
                               .counts = (const int64_t *)sh_tensor_ptr(t->counts) + batch,
                               .scale = images->scale,
                               .shift = images->shift,
                               .batch = SH_EVALUATE_BATCH,
                               .state = sh_tensor_ptr(t->at),
                               .loss = &sh_gpu_progress_of(g)->loss,
                               .tf32 = g->base.settings.tf32,
                               .score = (double *)sh_tensor_ptr(t->scores) + 2 * batch};
    for (size_t i = 0; i < g->count; i++) {
        step.param[i] = sh_gpu_at(g, g->params, i);
    }
    return g->device->kernels()->fedavg_cnn->step(g->exec, &step, sh_tensor_ptr(t->scratch));
}

static shoal_err test_by_kernels(sh_gpu *g, const sh_byte_images *images, const int64_t *batches, int64_t count,
                                 sh_score *out_scores)
{
    if (g->tests == NULL) {
        SH_TRY(open_tests(g, images));
    }
    for (int64_t i = 0; i < count; i++) {
        SH_TRY(start(g, images, batches[i]));
    }
    const double *host = g->tests->host;
    SH_TRY(g->device->read(g->tests->host, sh_tensor_ptr(g->tests->scores), /* waits for all of them */
                           (size_t)g->tests->scores->count * sizeof *host));
    for (int64_t i = 0; i < count; i++) {
        out_scores[i] = (sh_score){.loss = host[2 * batches[i]], .right = host[2 * batches[i] + 1]};
    }
    return SHOAL_OK;
}

/* All batches are started before the first score is read, so that the GPU does not wait in between. */
static shoal_err test_by_ops(sh_gpu *g, const int64_t *batches, int64_t count, sh_score *out_scores)
{
    sh_batch *sums = calloc((size_t)count + 1, sizeof *sums);
    shoal_err err = sums ? SHOAL_OK : sh_fail(SHOAL_ENOMEM, "no memory to test %lld batches", (long long)count);
    for (int64_t i = 0; i < count && err == SHOAL_OK; i++) {
        err = sh_evaluate_start(&g->evaluator, g->module, batches[i], &sums[i]);
    }
    for (int64_t i = 0; i < count && sums != NULL; i++) {
        if (err == SHOAL_OK) {
            err = sh_evaluate_read(&sums[i], &out_scores[i]);
        }
        sh_batch_release(&sums[i]);
    }
    free(sums);
    return err;
}

shoal_err sh_gpu_test(sh_engine *e, shoal_module *module, const int64_t *batches, int64_t count, sh_score *out_scores)
{
    sh_gpu *g = (sh_gpu *)e;
    sh_byte_images images;
    if (module != NULL) {
        SH_TRY(sh_gpu_load(e, module));
        g->has_common = true; /* the next round need not load it again */
    }
    return g->plan == &sh_gpu_plan_fedavg_cnn && sh_dataset_bytes(e->test_set, &images)
               ? test_by_kernels(g, &images, batches, count, out_scores)
               : test_by_ops(g, batches, count, out_scores);
}
