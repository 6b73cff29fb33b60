/* Tests of the optimiser steps: fast against reference over several steps, with all options;
 * and values computed by hand. */
#include "kernels/kernels_test.h"
#include "tests/harness/optim_all.h"

#define STEPS 5

typedef struct state {
    void *param, *s1, *s2, *s3;
} state;

typedef enum method { SGD, ADAM, RMSPROP, RULES } method;

/* The bits of form turn the options on. */
static shoal_err step(const sh_kernels *k, method rule, int form, int t, shoal_dtype dtype, int64_t n, state *s,
                      const void *grad)
{
    sh_exec exec = {0};
    double decay = form & 1 ? 0.1 : 0;
    bool maximize = form & 2;
    sh_sgd_args sgd = {
        .lr = 0.1, .momentum = form & 4 ? 0.9 : 0, .dampening = form & 8 ? 0.3 : 0, .weight_decay = decay};
    sgd.nesterov = form & 4 && form & 16;
    sgd.maximize = maximize;
    sgd.first = t == 0;
    sh_adam_args adam = {
        .lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = decay, .maximize = maximize};
    adam.decoupled = form & 4;
    adam.bias1 = 1 - pow(0.9, t + 1);
    adam.bias2 = 1 - pow(0.999, t + 1);
    sh_rmsprop_args rms = {
        .lr = 0.1, .alpha = 0.9, .eps = 1e-3, .weight_decay = decay, .momentum = 0.5, .maximize = maximize};
    switch (rule) {
    case SGD: return k->optim->sgd(&exec, dtype, n, &sgd, s->param, form & 4 ? s->s1 : NULL, grad);
    case ADAM: return k->optim->adam(&exec, dtype, n, &adam, s->param, s->s1, s->s2, form & 8 ? s->s3 : NULL, grad);
    case RMSPROP:
        return k->optim->rmsprop(&exec, dtype, n, &rms, s->param, s->s1, form & 4 ? s->s2 : NULL,
                                 form & 8 ? s->s3 : NULL, grad);
    case RULES: break;
    }
    return SHOAL_EINVAL;
}

static state state_make(shoal_dtype dtype, const void *param, int64_t n)
{
    size_t size = (size_t)(n + 1) * shoal_dtype_size(dtype);
    return (state){copied(dtype, param, n), calloc(1, size), calloc(1, size), calloc(1, size)};
}

static void state_free(state *s)
{
    free(s->param);
    free(s->s1);
    free(s->s2);
    free(s->s3);
}

static void compare(method rule, int form, shoal_dtype dtype, int64_t n)
{
    uint64_t seed = (uint64_t)form * 100 + (uint64_t)n;
    void *param = numbers(dtype, n, &seed, 1), *grads[STEPS];
    state wanted = state_make(dtype, param, n);
    for (int t = 0; t < STEPS; t++) {
        grads[t] = numbers(dtype, n, &seed, 1);
        ck_assert_ok(step(reference(), rule, form, t, dtype, n, &wanted, grads[t]));
    }
    FOR_FAST(k)
    {
        state got = state_make(dtype, param, n);
        for (int t = 0; t < STEPS; t++) {
            ck_assert_ok(step(k, rule, form, t, dtype, n, &got, grads[t]));
        }
        char what[64];
        (void)snprintf(what, sizeof what, "%s rule %d form %d", k->name, (int)rule, form);
        double tolerance = dtype == SHOAL_F32 ? 1e-5 : 1e-12;
        assert_close(dtype, got.param, wanted.param, n, tolerance, 0.1, what, seed);
        assert_close(dtype, got.s1, wanted.s1, n, tolerance, 0.1, what, seed);
        assert_close(dtype, got.s2, wanted.s2, n, tolerance, 0.1, what, seed);
        assert_close(dtype, got.s3, wanted.s3, n, tolerance, 10, what, seed);
        state_free(&got);
    }
    for (int t = 0; t < STEPS; t++) {
        free(grads[t]);
    }
    free(param);
    state_free(&wanted);
}

/* Each form with each size; on a GPU each form with every fifth, beginning with another one than the form before. */
START_TEST(steps_agree)
{
    const int every = every_on_card(5);
    for (int rule = 0; rule < RULES; rule++) {
        for (int form = 0; form < 32; form += sh_every(5)) {
            int at = form;
            for (int64_t n = 0; n < 140; n += (1 + n / 3) * sh_every(6)) {
                if (at++ % every == 0) {
                    compare((method)rule, form, SHOAL_F32, n);
                    compare((method)rule, form, SHOAL_F64, n);
                }
            }
        }
    }
    ck_assert_err(step(sh_kernels_cpu(), SGD, 0, 0, SHOAL_I32, 0, &(state){0}, NULL), SHOAL_EINVAL);
}
END_TEST

/* One parameter of value 1 with gradient 0.5, by hand. */
START_TEST(known_values)
{
    FOR_ALL(k)
    {
        sh_exec exec = {0};
        double p = 1, b = 77, g = 0.5, m = 0, s = 0;
        sh_sgd_args sgd = {.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.2, .first = true};
        ck_assert_ok(k->optim->sgd(&exec, SHOAL_F64, 1, &sgd, &p, &b, &g));
        ck_assert_double_le(fabs(b - 0.7), 1e-15); /* the first step does not dampen */
        ck_assert_double_le(fabs(p - 0.93), 1e-15);
        sgd.first = false;
        ck_assert_ok(k->optim->sgd(&exec, SHOAL_F64, 1, &sgd, &p, &b, &g));
        ck_assert_double_le(fabs(b - (0.63 + 0.5 * 0.686)), 1e-15);
        p = 1;
        sh_adam_args adam = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .eps = 0, .bias1 = 0.1, .bias2 = 0.01};
        ck_assert_ok(k->optim->adam(&exec, SHOAL_F64, 1, &adam, &p, &m, &s, NULL, &g));
        ck_assert_double_le(fabs(p - 0.9), 1e-14); /* the first step is lr, for any gradient */
        adam.decoupled = true;
        adam.weight_decay = 0.5;
        p = 1, m = 0, s = 0;
        ck_assert_ok(k->optim->adam(&exec, SHOAL_F64, 1, &adam, &p, &m, &s, NULL, &g));
        ck_assert_double_le(fabs(p - 0.85), 1e-14);
        p = 1, s = 0;
        sh_rmsprop_args rms = {.lr = 0.1, .alpha = 0.75, .eps = 0};
        ck_assert_ok(k->optim->rmsprop(&exec, SHOAL_F64, 1, &rms, &p, &s, NULL, NULL, &g));
        ck_assert_double_le(fabs(p - 0.8), 1e-14); /* g / sqrt(g² / 4) = 2 */
    }
}
END_TEST

/* Without weight decay the gradient has no part of the parameter, not even of an infinite one. Wanted is what two
 * steps of PyTorch give. */
START_TEST(infinite_parameters_and_gradients)
{
    enum { N = 5 };
    static const float start[N] = {INFINITY, -INFINITY, INFINITY, INFINITY, 1};
    static const float grads[N] = {1, 1, INFINITY, -INFINITY, INFINITY};
    static const float wanted[RULES][N] = {[SGD] = {INFINITY, -INFINITY, NAN, INFINITY, -INFINITY},
                                           [ADAM] = {INFINITY, -INFINITY, NAN, NAN, NAN},
                                           [RMSPROP] = {INFINITY, -INFINITY, NAN, NAN, NAN}};
    FOR_ALL(k)
    {
        for (int form = 0; form < 2; form++) { /* the second with all state */
            for (int rule = 0; rule < RULES; rule++) {
                state s = state_make(SHOAL_F32, start, N);
                for (int t = 0; t < 2; t++) {
                    ck_assert_ok(step(k, (method)rule, form * (rule == ADAM ? 8 : 12), t, SHOAL_F32, N, &s, grads));
                }
                assert_close(SHOAL_F32, s.param, wanted[rule], N, 0, 1, k->name, (uint64_t)rule);
                state_free(&s);
            }
        }
    }
}
END_TEST

START_TEST(clip_scale_and_average)
{
    FOR_ALL(k)
    {
        sh_exec exec = {0};
        float x[1000], y[1000], sumsq = 16;
        for (int i = 0; i < 1000; i++) {
            x[i] = (float)i;
            y[i] = 1;
        }
        ck_assert_ok(k->optim->clip(&exec, SHOAL_F32, 1000, x, &sumsq, 8)); /* the norm is 4, so nothing changes */
        ck_assert(x[999] == 999);
        ck_assert_ok(k->optim->clip(&exec, SHOAL_F32, 1000, x, &sumsq, 2));
        ck_assert_double_le(fabs(x[999] - 499.5), 1e-3);
        ck_assert_ok(k->optim->scale(&exec, SHOAL_F32, 1000, x, 2));
        const void *in[] = {x, y};
        ck_assert_ok(k->optim->average(&exec, SHOAL_F32, 1000, y, in, (double[]){0.25, 0.75}, 2));
        for (int i = 0; i < 1000; i++) {
            ck_assert_double_le(fabs(y[i] - (0.25 * i + 0.75)), 1e-3);
        }
        ck_assert_ok(k->optim->average(&exec, SHOAL_F32, 1000, y, NULL, NULL, 0));
        ck_assert(y[0] == 0 && y[999] == 0);
    }
}
END_TEST

/* More inputs than one launch of a GPU takes; the output is one of them. */
START_TEST(averages_of_many_inputs_agree)
{
    enum { INPUTS = 100, LENGTH = 37 };
    static float x[INPUTS][LENGTH];
    double weights[INPUTS];
    const void *in[INPUTS];
    uint64_t seed = 11;
    for (int i = 0; i < INPUTS; i++) {
        for (int k = 0; k < LENGTH; k++) {
            x[i][k] = (float)unit(&seed);
        }
        in[i] = x[i];
        weights[i] = unit(&seed);
    }
    float wanted[LENGTH], before[LENGTH];
    memcpy(before, x[3], sizeof before);
    ck_assert_ok(reference()->optim->average(&(sh_exec){0}, SHOAL_F32, LENGTH, wanted, in, weights, INPUTS));
    FOR_FAST(k)
    {
        ck_assert_ok(k->optim->average(&(sh_exec){0}, SHOAL_F32, LENGTH, x[3], in, weights, INPUTS));
        assert_close(SHOAL_F32, x[3], wanted, LENGTH, 1e-6, 0.1, k->name, seed);
        memcpy(x[3], before, sizeof before);
    }
}
END_TEST

/* ---- several parameters at once, where a device has it ---- */

#define MANY 70 /* more than one launch takes */

typedef struct many {
    sh_optim_part parts[MANY];
    float steps[MANY];
    state states[MANY];
    void *grads[MANY];
} many;

/* Sizes from 0 to several thousand; each parameter is at another step. */
static void many_make(many *m, shoal_dtype dtype, method rule, int form, uint64_t seed)
{
    for (int i = 0; i < MANY; i++) {
        int64_t n = i % 9 == 8 ? 3000 + i : i * i % 200;
        void *start = numbers(dtype, n, &seed, 1);
        m->states[i] = state_make(dtype, start, n);
        m->grads[i] = numbers(dtype, n, &seed, 1);
        m->steps[i] = (float)(i % 3);
        const state *s = &m->states[i];
        m->parts[i] = (sh_optim_part){.n = n, .param = s->param, .grad = m->grads[i], .step = &m->steps[i]};
        void *const own[3] = {rule == SGD && !(form & 4) ? NULL : s->s1, rule == RMSPROP && !(form & 4) ? NULL : s->s2,
                              form & 8 ? s->s3 : NULL};
        for (int k = 0; k < (rule == SGD ? 1 : 3); k++) {
            m->parts[i].state[k] = own[k];
        }
        free(start);
    }
}

static void many_free(many *m)
{
    for (int i = 0; i < MANY; i++) {
        state_free(&m->states[i]);
        free(m->grads[i]);
    }
}

static shoal_err step_all(const sh_kernels *k, method rule, int form, shoal_dtype dtype, many *m)
{
    sh_exec exec = {0};
    float *steps[MANY];
    for (int i = 0; i < MANY; i++) {
        steps[i] = &m->steps[i];
    }
    ck_assert_ok(k->optim->count_steps(&exec, steps, MANY));
    sh_sgd_args sgd = {.lr = 0.1, .momentum = form & 4 ? 0.9 : 0, .dampening = form & 8 ? 0.3 : 0};
    sh_adam_args adam = {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    adam.decoupled = form & 4;
    sh_rmsprop_args rms = {.lr = 0.1, .alpha = 0.9, .eps = 1e-3, .momentum = 0.5};
    sgd.weight_decay = adam.weight_decay = rms.weight_decay = form & 1 ? 0.1 : 0;
    switch (rule) {
    case SGD: return k->optim->sgd_all(&exec, dtype, &sgd, m->parts, MANY);
    case ADAM: return k->optim->adam_all(&exec, dtype, &adam, m->parts, MANY);
    case RMSPROP: return k->optim->rmsprop_all(&exec, dtype, &rms, m->parts, MANY);
    case RULES: break;
    }
    return SHOAL_EINVAL;
}

static void compare_many(const sh_kernels *k, method rule, int form, shoal_dtype dtype)
{
    static many got, wanted;
    many_make(&got, dtype, rule, form, 7);
    many_make(&wanted, dtype, rule, form, 7);
    for (int t = 0; t < 2; t++) {
        ck_assert_ok(step_all(k, rule, form, dtype, &got));
        ck_assert_ok(step_all(reference_with_all(), rule, form, dtype, &wanted));
    }
    double tolerance = dtype == SHOAL_F32 ? 1e-5 : 1e-12;
    for (int i = 0; i < MANY; i++) {
        int64_t n = got.parts[i].n;
        ck_assert(got.steps[i] == (float)(i % 3 + 2));
        assert_close(dtype, got.states[i].param, wanted.states[i].param, n, tolerance, 0.1, "param", (uint64_t)i);
        assert_close(dtype, got.states[i].s1, wanted.states[i].s1, n, tolerance, 0.1, "first state", (uint64_t)i);
        assert_close(dtype, got.states[i].s2, wanted.states[i].s2, n, tolerance, 0.1, "second state", (uint64_t)i);
        assert_close(dtype, got.states[i].s3, wanted.states[i].s3, n, tolerance, 10, "third state", (uint64_t)i);
    }
    many_free(&got);
    many_free(&wanted);
}

static void compare_clip(const sh_kernels *k, shoal_dtype dtype)
{
    static many got, wanted;
    many_make(&got, dtype, SGD, 0, 8);
    many_make(&wanted, dtype, SGD, 0, 8);
    sh_exec exec = {0};
    double sum = 0, again = 0, exact = 0;
    ck_assert_ok(k->optim->sumsq_all(&exec, dtype, got.parts, MANY, &sum));
    ck_assert_ok(k->optim->sumsq_all(&exec, dtype, got.parts, MANY, &again));
    ck_assert_ok(reference_with_all()->optim->sumsq_all(&exec, dtype, wanted.parts, MANY, &exact));
    ck_assert(sum == again);
    ck_assert_double_le(distance(sum, exact, 1), 1e-13);
    ck_assert_ok(k->optim->clip_all(&exec, dtype, got.parts, MANY, &(double){NAN}, 1)); /* changes nothing */
    ck_assert_ok(k->optim->clip_all(&exec, dtype, got.parts, MANY, &exact, 1e9));       /* nor does this */
    ck_assert_ok(k->optim->clip_all(&exec, dtype, got.parts, MANY, &exact, 2));
    ck_assert_ok(reference_with_all()->optim->clip_all(&exec, dtype, wanted.parts, MANY, &exact, 2));
    for (int i = 0; i < MANY; i++) {
        assert_close(dtype, got.states[i].param, wanted.states[i].param, got.parts[i].n, tolerance_of(dtype), 0.1,
                     "clip", (uint64_t)i);
    }
    many_free(&got);
    many_free(&wanted);
}

START_TEST(steps_of_many_parameters_agree)
{
    FOR_FAST(k)
    {
        if (!k->optim->sgd_all) {
            continue;
        }
        for (int rule = 0; rule < RULES; rule++) {
            /* every third has each option on and off with both types */
            for (int form = 0; form < 16; form += sh_every(5) * every_on_card(3)) {
                compare_many(k, (method)rule, form, form & 2 ? SHOAL_F64 : SHOAL_F32);
            }
        }
        compare_clip(k, SHOAL_F32);
        compare_clip(k, SHOAL_F64);
        sh_exec exec = {0};
        ck_assert_err(k->optim->sgd_all(&exec, SHOAL_I32, &(sh_sgd_args){0}, &(sh_optim_part){0}, 1), SHOAL_EINVAL);
    }
}
END_TEST

KERNELS_SUITE("optim", steps_agree, known_values, infinite_parameters_and_gradients, clip_scale_and_average,
              averages_of_many_inputs_agree, steps_of_many_parameters_agree)
