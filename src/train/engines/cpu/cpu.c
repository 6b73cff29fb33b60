/* The CPU's engine: trains a module in place, op by op, with the loss nll_loss and SGD. */
#include "train/engines/engine.h"
#include "train/model/flat_model.h"
#include "train/model/state.h"

#include "base/error.h"

#include <shoal/autograd.h>
#include <shoal/ops.h>
#include <shoal/share.h>

typedef struct cpu {
    sh_engine base;
    shoal_optimizer *sgd;
    shoal_value *state; /* the tensors in which sgd keeps its state; NULL: its own */
    sh_engine_run run;
    int64_t at; /* the next batch of the run */
    sh_evaluator evaluator;
    const shoal_module *common; /* of the round */
    double weight;              /* of the client that the parameters are of */
} cpu;

static shoal_optimizer *new_sgd(const sh_engine_settings *settings, shoal_module *module)
{
    return shoal_sgd_create(module, .lr = settings->lr, .momentum = settings->momentum);
}

static shoal_err cpu_open(sh_engine *e)
{
    cpu *c = (cpu *)e;
    c->evaluator = (sh_evaluator){.set = e->test_set, .device = SHOAL_CPU};
    c->sgd = new_sgd(&e->settings, e->module);
    return c->sgd != NULL ? SHOAL_OK : shoal_last_error();
}

static void cpu_close(sh_engine *e)
{
    cpu *c = (cpu *)e;
    sh_evaluator_fini(&c->evaluator);
    shoal_optimizer_destroy(c->sgd);
    shoal_value_destroy(c->state);
}

static shoal_err load(sh_engine *e, const shoal_module *from)
{
    return from != e->module ? shoal_module_copy(e->module, from) : SHOAL_OK;
}

static shoal_err store(sh_engine *e, shoal_module *to)
{
    return to != e->module ? shoal_module_copy(to, e->module) : SHOAL_OK;
}

/* ---- state ---- */

static shoal_err copy_state(const shoal_value *to, const shoal_value *from)
{
    for (size_t i = 0; i < shoal_value_count(to); i++) {
        shoal_tensor *t = shoal_value_as_tensor(shoal_value_at(to, i));
        const shoal_value *old = shoal_value_find(from, shoal_value_key_at(to, i));
        if (shoal_copy_(t, shoal_value_as_tensor(old)) == NULL) {
            return shoal_last_error();
        }
    }
    return SHOAL_OK;
}

/* Begins with an optimiser that has taken no step. */
static shoal_err clear_state(cpu *c)
{
    shoal_value_destroy(c->state);
    c->state = NULL;
    shoal_optimizer_destroy(c->sgd);
    c->sgd = new_sgd(&c->base.settings, c->base.module);
    return c->sgd != NULL ? SHOAL_OK : shoal_last_error();
}

static shoal_err load_state(sh_engine *e, const shoal_value *from)
{
    cpu *c = (cpu *)e;
    if (from == NULL) {
        return clear_state(c);
    }
    if (c->state == NULL) {
        c->state = sh_state_zeros(c->sgd);
        if (c->state == NULL) {
            return shoal_last_error();
        }
        SH_TRY(sh_state_adopt(c->sgd, c->state));
    }
    return copy_state(c->state, from);
}

static shoal_err store_state(sh_engine *e, const shoal_value *to)
{
    return copy_state(to, ((cpu *)e)->state);
}

static shoal_err adopt_state(sh_engine *e, const shoal_value *state)
{
    return sh_state_adopt(((cpu *)e)->sgd, state);
}

/* ---- batches ---- */

static shoal_err begin(sh_engine *e, const sh_engine_run *run)
{
    cpu *c = (cpu *)e;
    c->run = *run;
    c->at = run->first;
    shoal_optimizer_set_lr(c->sgd, run->lr);
    shoal_manual_seed(run->seed);
    return shoal_loader_seek(e->loader, run->pass, run->first);
}

static shoal_err step(const cpu *c, const shoal_batch *b, double *out_loss)
{
    shoal_optimizer_zero_grad(c->sgd);
    shoal_tensor *loss = shoal_nll_loss(shoal_module_forward(c->base.module, b->x), b->y);
    SH_TRY(shoal_backward(loss));
    if (!c->run.gradient) {
        SH_TRY(shoal_optimizer_step(c->sgd));
    }
    return shoal_item(loss, out_loss);
}

/* One step: its worker looks at the board after each. */
static shoal_err run_one(sh_engine *e, sh_engine_done *out_done)
{
    cpu *c = (cpu *)e;
    shoal_batch b;
    double loss = 0;
    *out_done = (sh_engine_done){.batch = c->at};
    if (c->at >= c->run.last) {
        return SHOAL_OK;
    }
    SH_TRY(shoal_loader_next(e->loader, &b));
    SH_TRY(step(c, &b, &loss));
    c->at++;
    *out_done = (sh_engine_done){.steps = 1, .batch = c->at, .samples = b.count, .loss = loss};
    return SHOAL_OK;
}

static shoal_err copy_gradients(shoal_module *to, shoal_module *from)
{
    for (shoal_named it = {0}; shoal_module_next(from, &it) == SHOAL_OK;) {
        shoal_tensor *there = shoal_module_get(to, it.name);
        const bool trained = shoal_tensor_requires_grad(it.tensor);
        shoal_tensor *grad = trained ? shoal_tensor_grad(it.tensor) : it.tensor;
        if ((grad != NULL ? shoal_copy_(there, grad) : shoal_fill_(there, 0)) == NULL) {
            return shoal_last_error();
        }
    }
    return SHOAL_OK;
}

static shoal_err store_gradient(sh_engine *e, shoal_module *to)
{
    size_t mark = shoal_scope_mark();
    shoal_no_grad_begin();
    shoal_err err = copy_gradients(to, e->module);
    shoal_no_grad_end();
    shoal_scope_release(mark);
    return err;
}

/* ---- clients: there is no sum but the row that is stored, so each client is stored ---- */

static shoal_err begin_round(sh_engine *e, const shoal_module *common)
{
    ((cpu *)e)->common = common;
    return SHOAL_OK;
}

static shoal_err begin_client(sh_engine *e)
{
    SH_TRY(load(e, ((cpu *)e)->common));
    return clear_state((cpu *)e);
}

static shoal_err end_client(sh_engine *e, double weight)
{
    ((cpu *)e)->weight = weight;
    return SHOAL_OK;
}

static shoal_err store_sum(sh_engine *e, const double *before, double *out)
{
    sh_flat_add(out, before, e->module, ((cpu *)e)->weight);
    return SHOAL_OK;
}

/* ---- tests ---- */

static shoal_err test(sh_engine *e, shoal_module *module, const int64_t *batches, int64_t count, sh_score *out_scores)
{
    for (int64_t i = 0; i < count; i++) {
        SH_TRY(
            sh_evaluate_batch(&((cpu *)e)->evaluator, module != NULL ? module : e->module, batches[i], &out_scores[i]));
    }
    return SHOAL_OK;
}

const sh_engine_type sh_engine_cpu = {
    .name = "cpu",
    .round_factor = 1,
    .size = sizeof(cpu),
    .open = cpu_open,
    .close = cpu_close,
    .load = load,
    .store = store,
    .new_state = sh_engine_new_sgd_state,
    .load_state = load_state,
    .store_state = store_state,
    .adopt_state = adopt_state,
    .begin = begin,
    .run = run_one,
    .store_gradient = store_gradient,
    .clients_in_sum = 1,
    .begin_round = begin_round,
    .begin_client = begin_client,
    .end_client = end_client,
    .store_sum = store_sum,
    .test = test,
};
