#include "train/methods/gradients.h"
#include "train/model/clone.h"
#include "train/model/reduce.h"
#include "train/model/state.h"

#include "base/error.h"

#include <shoal/autograd.h>
#include <shoal/ops.h>

#include <stdlib.h>

struct sh_gradients {
    int count;
    shoal_module **of;  /* of each worker */
    shoal_module *mean; /* their mean */
    shoal_module *next; /* takes the steps; a copy, so that the job's model, which workers get, has no gradients */
    shoal_optimizer *sgd;
    shoal_value *state;  /* the momentum of sgd */
    shoal_module **from; /* the workers that have samples of a batch, with their weights */
    double *weights;
};

/* Makes the values of mean the gradients of next. */
static shoal_err tie(sh_gradients *g)
{
    for (shoal_named it = {0}; shoal_module_next(g->next, &it) == SHOAL_OK;) {
        if (shoal_tensor_requires_grad(it.tensor)) {
            shoal_tensor *grad = shoal_detach(shoal_module_get(g->mean, it.name));
            SH_TRY(grad ? shoal_tensor_set_grad(it.tensor, grad) : shoal_last_error());
        }
    }
    return SHOAL_OK;
}

static shoal_err fill(sh_gradients *g, sh_job *job)
{
    size_t n = (size_t)g->count;
    g->of = calloc(n, sizeof *g->of);
    g->from = calloc(n, sizeof *g->from);
    g->weights = calloc(n, sizeof *g->weights);
    if (g->of == NULL || g->from == NULL || g->weights == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for the gradients of %zu workers", n);
    }
    for (int i = 0; i < g->count; i++) {
        g->of[i] = sh_clone_module(job->model);
        if (g->of[i] == NULL) {
            return shoal_last_error();
        }
    }
    g->mean = sh_clone_module(job->model);
    g->next = g->mean ? sh_clone_module(job->model) : NULL;
    g->sgd = g->next ? shoal_sgd_create(g->next, .lr = job->o.lr, .momentum = job->o.momentum) : NULL;
    g->state = sh_state_zeros(g->sgd);
    if (g->state == NULL) {
        return shoal_last_error();
    }
    SH_TRY(sh_state_adopt(g->sgd, g->state));
    size_t mark = shoal_scope_mark();
    shoal_err err = tie(g);
    shoal_scope_release(mark);
    return err;
}

shoal_err sh_gradients_open(sh_job *job, sh_gradients **out_gradients)
{
    sh_gradients *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for gradients");
    }
    g->count = job->o.workers;
    *out_gradients = g; /* even if it is half made: the caller closes it */
    return fill(g, job);
}

void sh_gradients_close(sh_gradients *g)
{
    if (g == NULL) {
        return;
    }
    for (int i = 0; g->of != NULL && i < g->count; i++) {
        shoal_module_destroy(g->of[i]);
    }
    shoal_optimizer_destroy(g->sgd);
    shoal_value_destroy(g->state);
    shoal_module_destroy(g->mean);
    shoal_module_destroy(g->next);
    free(g->of);
    free(g->from);
    free(g->weights);
    free(g);
}

shoal_module *sh_gradients_of(const sh_gradients *g, int rank)
{
    return g->of[rank];
}

shoal_err sh_gradients_checkpoint(sh_gradients *g, sh_checkpoint *c)
{
    return sh_checkpoint_map(c, "momentum", g->state);
}

/* Collects the workers that had samples. Returns how many. */
static int weigh(sh_gradients *g, const sh_job *job, int64_t batch)
{
    int64_t length = shoal_dataset_length(job->train_set), all = 0;
    int n = 0;
    for (int i = 0; i < g->count; i++) {
        int64_t samples = sh_shard_samples(&job->settings, length, i, batch);
        if (samples > 0) {
            g->from[n] = g->of[i];
            g->weights[n++] = (double)samples;
            all += samples;
        }
    }
    for (int i = 0; i < n; i++) {
        g->weights[i] /= (double)all;
    }
    return n;
}

static shoal_err copy_buffers(shoal_module *to, shoal_module *from)
{
    for (shoal_named it = {0}; shoal_module_next(from, &it) == SHOAL_OK;) {
        if (!shoal_tensor_requires_grad(it.tensor) && !shoal_copy_(shoal_module_get(to, it.name), it.tensor)) {
            return shoal_last_error();
        }
    }
    return SHOAL_OK;
}

/* Takes the step by the mean of n gradients. */
static shoal_err step(sh_gradients *g, sh_job *job, int n)
{
    SH_TRY(sh_reducer_here.sum(g->mean, g->from, g->weights, n));
    SH_TRY(shoal_module_copy(g->next, job->model));
    SH_TRY(shoal_optimizer_step(g->sgd));
    SH_TRY(copy_buffers(g->next, g->mean));
    return shoal_module_copy(job->model, g->next);
}

shoal_err sh_gradients_step(sh_gradients *g, sh_job *job, int64_t round, int64_t rounds)
{
    size_t mark = shoal_scope_mark();
    int n = weigh(g, job, round % rounds);
    shoal_no_grad_begin();
    shoal_optimizer_set_lr(g->sgd, sh_settings_lr(&job->settings, round / rounds));
    shoal_err err = n > 0 ? step(g, job, n) : SHOAL_OK;
    shoal_no_grad_end();
    shoal_scope_release(mark);
    return err;
}
