/* Layers, losses and optimisers passed on; a part of passed_kernels.h, which includes it. */
#ifndef TESTING_PASSED_LAYERS_H
#define TESTING_PASSED_LAYERS_H

/* ---- softmax ---- */

static int64_t softmax_count(const sh_softmax_shape *s)
{
    return s->outer * s->n * s->inner;
}

static shoal_err pass_softmax(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *s, void *y, const void *x)
{
    passage p = {0};
    add_array(&p, y, s->dtype, softmax_count(s), true);
    add_array(&p, x, s->dtype, softmax_count(s), false);
    return PASS(BEHIND(softmax)->forward(EXEC, op, s, AT(y), AT(x)));
}

static shoal_err pass_softmax_backward(sh_exec *exec, sh_softmax_op op, const sh_softmax_shape *s, void *dx,
                                       const void *dy, const void *y)
{
    passage p = {0};
    add_array(&p, dx, s->dtype, softmax_count(s), true);
    add_array(&p, dy, s->dtype, softmax_count(s), false);
    add_array(&p, y, s->dtype, softmax_count(s), false);
    return PASS(BEHIND(softmax)->backward(EXEC, op, s, AT(dx), AT(dy), AT(y)));
}

/* The targets, the weights, and the losses and their total, which are outputs or inputs. */
static void add_nll(passage *p, const sh_nll_args *a, const void *loss, const void *total, bool written)
{
    int64_t targets = a->shape.outer * a->shape.inner;
    add_array(p, a->target, SHOAL_I64, targets, false);
    add_array(p, a->weight, a->shape.dtype, a->shape.n, false);
    add_array(p, loss, a->shape.dtype, a->reduction == SHOAL_REDUCTION_NONE ? targets : 1, written);
    add_array(p, total, a->shape.dtype, 1, written);
}

static const sh_nll_args *nll_at(const passage *p, const sh_nll_args *from, sh_nll_args *to)
{
    *to = *from;
    to->target = passage_at(p, from->target);
    to->weight = passage_at(p, from->weight);
    return to;
}
#define NLL(args) nll_at(&p, args, &(sh_nll_args){0})

static shoal_err pass_nll(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, const void *log_probs)
{
    passage p = {0};
    add_nll(&p, args, loss, total, true);
    add_array(&p, log_probs, args->shape.dtype, softmax_count(&args->shape), false);
    return PASS(BEHIND(softmax)->nll(EXEC, NLL(args), AT(loss), AT(total), AT(log_probs)));
}

static shoal_err pass_nll_backward(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss,
                                   const void *total)
{
    passage p = {0};
    add_nll(&p, args, dloss, total, false);
    add_array(&p, dx, args->shape.dtype, softmax_count(&args->shape), true);
    return PASS(BEHIND(softmax)->nll_backward(EXEC, NLL(args), AT(dx), AT(dloss), AT(total)));
}

static shoal_err pass_cross_entropy(sh_exec *exec, const sh_nll_args *args, void *loss, void *total, void *log_probs,
                                    const void *x)
{
    passage p = {0};
    add_nll(&p, args, loss, total, true);
    add_array(&p, log_probs, args->shape.dtype, softmax_count(&args->shape), true);
    add_array(&p, x, args->shape.dtype, softmax_count(&args->shape), false);
    return PASS(BEHIND(softmax)->cross_entropy(EXEC, NLL(args), AT(loss), AT(total), AT(log_probs), AT(x)));
}

static shoal_err pass_cross_entropy_backward(sh_exec *exec, const sh_nll_args *args, void *dx, const void *dloss,
                                             const void *total, const void *log_probs)
{
    passage p = {0};
    add_nll(&p, args, dloss, total, false);
    add_array(&p, dx, args->shape.dtype, softmax_count(&args->shape), true);
    add_array(&p, log_probs, args->shape.dtype, softmax_count(&args->shape), false);
    return PASS(BEHIND(softmax)->cross_entropy_backward(EXEC, NLL(args), AT(dx), AT(dloss), AT(total), AT(log_probs)));
}

/* ---- norm, rnn ---- */

static shoal_err pass_layer_norm(sh_exec *exec, const sh_norm_shape *s, double eps, void *y, void *mean, void *rstd,
                                 const void *x, const void *gamma, const void *beta)
{
    passage p = {0};
    add_array(&p, y, s->dtype, s->rows * s->n, true);
    add_array(&p, mean, s->dtype, s->rows, true);
    add_array(&p, rstd, s->dtype, s->rows, true);
    add_array(&p, x, s->dtype, s->rows * s->n, false);
    add_array(&p, gamma, s->dtype, s->n, false);
    add_array(&p, beta, s->dtype, s->n, false);
    return PASS(BEHIND(norm)->layer_norm(EXEC, s, eps, AT(y), AT(mean), AT(rstd), AT(x), AT(gamma), AT(beta)));
}

static shoal_err pass_layer_norm_backward(sh_exec *exec, const sh_norm_shape *s, void *dx, void *dgamma, void *dbeta,
                                          const void *dy, const void *x, const void *gamma, const void *mean,
                                          const void *rstd)
{
    passage p = {0};
    add_array(&p, dx, s->dtype, s->rows * s->n, true);
    add_array(&p, dgamma, s->dtype, s->n, true);
    add_array(&p, dbeta, s->dtype, s->n, true);
    add_array(&p, dy, s->dtype, s->rows * s->n, false);
    add_array(&p, x, s->dtype, s->rows * s->n, false);
    add_array(&p, gamma, s->dtype, s->n, false);
    add_array(&p, mean, s->dtype, s->rows, false);
    add_array(&p, rstd, s->dtype, s->rows, false);
    return PASS(BEHIND(norm)->layer_norm_backward(EXEC, s, AT(dx), AT(dgamma), AT(dbeta), AT(dy), AT(x), AT(gamma),
                                                  AT(mean), AT(rstd)));
}

static shoal_err pass_lstm(sh_exec *exec, const sh_lstm_shape *s, void *h, void *c, void *acts, const void *gates,
                           const void *c_prev)
{
    passage p = {0};
    int64_t n = s->n * s->hidden;
    add_array(&p, h, s->dtype, n, true);
    add_array(&p, c, s->dtype, n, true);
    add_array(&p, acts, s->dtype, 4 * n, true);
    add_array(&p, gates, s->dtype, 4 * n, false);
    add_array(&p, c_prev, s->dtype, n, false);
    return PASS(BEHIND(rnn)->lstm(EXEC, s, AT(h), AT(c), AT(acts), AT(gates), AT(c_prev)));
}

static shoal_err pass_lstm_backward(sh_exec *exec, const sh_lstm_shape *s, void *dgates, void *dc_prev, const void *dh,
                                    const void *dc, const void *acts, const void *c, const void *c_prev)
{
    passage p = {0};
    int64_t n = s->n * s->hidden;
    add_array(&p, dgates, s->dtype, 4 * n, true);
    add_array(&p, dc_prev, s->dtype, n, true);
    add_array(&p, dh, s->dtype, n, false);
    add_array(&p, dc, s->dtype, n, false);
    add_array(&p, acts, s->dtype, 4 * n, false);
    add_array(&p, c, s->dtype, n, false);
    add_array(&p, c_prev, s->dtype, n, false);
    return PASS(
        BEHIND(rnn)->lstm_backward(EXEC, s, AT(dgates), AT(dc_prev), AT(dh), AT(dc), AT(acts), AT(c), AT(c_prev)));
}

/* ---- optim ---- */

static shoal_err pass_sgd(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_sgd_args *args, void *param,
                          void *buffer, const void *grad)
{
    passage p = {0};
    add_array(&p, param, dtype, n, true);
    add_array(&p, buffer, dtype, n, true);
    add_array(&p, grad, dtype, n, false);
    return PASS(BEHIND(optim)->sgd(EXEC, dtype, n, args, AT(param), AT(buffer), AT(grad)));
}

static shoal_err pass_adam(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_adam_args *args, void *param, void *m,
                           void *v, void *v_max, const void *grad)
{
    passage p = {0};
    add_array(&p, param, dtype, n, true);
    add_array(&p, m, dtype, n, true);
    add_array(&p, v, dtype, n, true);
    add_array(&p, v_max, dtype, n, true);
    add_array(&p, grad, dtype, n, false);
    return PASS(BEHIND(optim)->adam(EXEC, dtype, n, args, AT(param), AT(m), AT(v), AT(v_max), AT(grad)));
}

static shoal_err pass_rmsprop(sh_exec *exec, shoal_dtype dtype, int64_t n, const sh_rmsprop_args *args, void *param,
                              void *v, void *average, void *buffer, const void *grad)
{
    passage p = {0};
    add_array(&p, param, dtype, n, true);
    add_array(&p, v, dtype, n, true);
    add_array(&p, average, dtype, n, true);
    add_array(&p, buffer, dtype, n, true);
    add_array(&p, grad, dtype, n, false);
    return PASS(BEHIND(optim)->rmsprop(EXEC, dtype, n, args, AT(param), AT(v), AT(average), AT(buffer), AT(grad)));
}

static shoal_err pass_scale(sh_exec *exec, shoal_dtype dtype, int64_t n, void *x, double factor)
{
    passage p = {0};
    add_array(&p, x, dtype, n, true);
    return PASS(BEHIND(optim)->scale(EXEC, dtype, n, AT(x), factor));
}

static shoal_err pass_clip(sh_exec *exec, shoal_dtype dtype, int64_t n, void *x, const void *sumsq, double max_norm)
{
    passage p = {0};
    add_array(&p, x, dtype, n, true);
    add_array(&p, sumsq, dtype, 1, false);
    return PASS(BEHIND(optim)->clip(EXEC, dtype, n, AT(x), AT(sumsq), max_norm));
}

#define MOST_AVERAGED 128

static const void *const *all_at(const passage *p, const void *const *in, int32_t count, const void **moved)
{
    for (int32_t i = 0; i < count && i < MOST_AVERAGED; i++) {
        moved[i] = passage_at(p, in[i]);
    }
    return moved;
}

static shoal_err pass_average(sh_exec *exec, shoal_dtype dtype, int64_t n, void *out, const void *const *in,
                              const double *weights, int32_t count)
{
    passage p = {0};
    add_array(&p, out, dtype, n, true);
    for (int32_t i = 0; i < count && i < MOST_AVERAGED; i++) {
        add_array(&p, in[i], dtype, n, false);
    }
    const void *moved[MOST_AVERAGED];
    return PASS(BEHIND(optim)->average(EXEC, dtype, n, AT(out), all_at(&p, in, count, moved), weights, count));
}

#define MOST_PARTS 80

static void add_parts(passage *p, shoal_dtype dtype, const sh_optim_part *parts, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        add_array(p, parts[i].param, dtype, parts[i].n, true);
        add_array(p, parts[i].grad, dtype, parts[i].n, false);
        for (int s = 0; s < 3; s++) {
            add_array(p, parts[i].state[s], dtype, parts[i].n, true);
        }
        add_array(p, parts[i].step, SHOAL_F32, 1, false);
    }
}

static const sh_optim_part *parts_at(const passage *p, const sh_optim_part *parts, int32_t count, sh_optim_part *moved)
{
    for (int32_t i = 0; i < count && i < MOST_PARTS; i++) {
        moved[i] = parts[i];
        moved[i].param = passage_at(p, parts[i].param);
        moved[i].grad = passage_at(p, parts[i].grad);
        for (int s = 0; s < 3; s++) {
            moved[i].state[s] = passage_at(p, parts[i].state[s]);
        }
        moved[i].step = passage_at(p, parts[i].step);
    }
    return moved;
}

#define PARTS parts_at(&p, parts, count, (sh_optim_part[MOST_PARTS]){{0}})

static shoal_err pass_sgd_all(sh_exec *exec, shoal_dtype dtype, const sh_sgd_args *args, const sh_optim_part *parts,
                              int32_t count)
{
    passage p = {0};
    add_parts(&p, dtype, parts, count);
    return PASS(BEHIND(optim)->sgd_all(EXEC, dtype, args, PARTS, count));
}

static shoal_err pass_adam_all(sh_exec *exec, shoal_dtype dtype, const sh_adam_args *args, const sh_optim_part *parts,
                               int32_t count)
{
    passage p = {0};
    add_parts(&p, dtype, parts, count);
    return PASS(BEHIND(optim)->adam_all(EXEC, dtype, args, PARTS, count));
}

static shoal_err pass_rmsprop_all(sh_exec *exec, shoal_dtype dtype, const sh_rmsprop_args *args,
                                  const sh_optim_part *parts, int32_t count)
{
    passage p = {0};
    add_parts(&p, dtype, parts, count);
    return PASS(BEHIND(optim)->rmsprop_all(EXEC, dtype, args, PARTS, count));
}

static float *const *steps_at(const passage *p, float *const *steps, int32_t count, float **moved)
{
    for (int32_t i = 0; i < count && i < MOST_PARTS; i++) {
        moved[i] = passage_at(p, steps[i]);
    }
    return moved;
}

static shoal_err pass_count_steps(sh_exec *exec, float *const *steps, int32_t count)
{
    passage p = {0};
    for (int32_t i = 0; i < count; i++) {
        add_array(&p, steps[i], SHOAL_F32, 1, true);
    }
    return PASS(BEHIND(optim)->count_steps(EXEC, steps_at(&p, steps, count, (float *[MOST_PARTS]){0}), count));
}

static shoal_err pass_sumsq_all(sh_exec *exec, shoal_dtype dtype, const sh_optim_part *parts, int32_t count,
                                double *sumsq)
{
    passage p = {0};
    add_parts(&p, dtype, parts, count);
    add_array(&p, sumsq, SHOAL_F64, 1, true);
    return PASS(BEHIND(optim)->sumsq_all(EXEC, dtype, PARTS, count, AT(sumsq)));
}

static shoal_err pass_clip_all(sh_exec *exec, shoal_dtype dtype, const sh_optim_part *parts, int32_t count,
                               const double *sumsq, double max_norm)
{
    passage p = {0};
    add_parts(&p, dtype, parts, count);
    add_array(&p, sumsq, SHOAL_F64, 1, false);
    return PASS(BEHIND(optim)->clip_all(EXEC, dtype, PARTS, count, AT(sumsq), max_norm));
}

/* ---- conv, pool ---- */

typedef struct conv_sizes {
    int64_t x, w, y, pooled;
} conv_sizes;

static conv_sizes conv_count(const sh_conv2d *c)
{
    int64_t h = sh_conv2d_out_h(c), w = sh_conv2d_out_w(c), planes = c->n * c->out_c;
    return (conv_sizes){.x = c->n * c->in_c * c->in_h * c->in_w,
                        .w = c->out_c * (c->in_c / c->groups) * c->kernel_h * c->kernel_w,
                        .y = planes * h * w,
                        .pooled = planes * (h / 2) * (w / 2)};
}

static void add_conv(passage *p, const sh_conv2d *c, const void *x, const void *w, const void *bias)
{
    conv_sizes n = conv_count(c);
    add_array(p, x, c->dtype, n.x, false);
    add_array(p, w, c->dtype, n.w, false);
    add_array(p, bias, c->dtype, c->out_c, false);
}

static void add_conv_grads(passage *p, const sh_conv2d *c, const void *x, const void *w, const void *bias)
{
    conv_sizes n = conv_count(c);
    add_array(p, x, c->dtype, n.x, true);
    add_array(p, w, c->dtype, n.w, true);
    add_array(p, bias, c->dtype, c->out_c, true);
}

static shoal_err pass_conv(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias, void *y)
{
    passage p = {0};
    add_conv(&p, c, x, w, bias);
    add_array(&p, y, c->dtype, conv_count(c).y, true);
    return PASS(BEHIND(conv)->forward(EXEC, c, AT(x), AT(w), AT(bias), AT(y)));
}

static shoal_err pass_conv_backward(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x, const void *w,
                                    void *grad_x, void *grad_w, void *grad_bias)
{
    passage p = {0};
    add_conv(&p, c, x, w, NULL);
    add_array(&p, grad_y, c->dtype, conv_count(c).y, false);
    add_conv_grads(&p, c, grad_x, grad_w, grad_bias);
    return PASS(BEHIND(conv)->backward(EXEC, c, AT(grad_y), AT(x), AT(w), AT(grad_x), AT(grad_w), AT(grad_bias)));
}

static shoal_err pass_pool_relu(sh_exec *exec, const sh_conv2d *c, const void *x, const void *w, const void *bias,
                                const void *drop, void *y, uint8_t *winner)
{
    passage p = {0};
    add_conv(&p, c, x, w, bias);
    add_array(&p, drop, c->dtype, c->n * c->out_c, false);
    add_array(&p, y, c->dtype, conv_count(c).pooled, true);
    add_array(&p, winner, SHOAL_U8, conv_count(c).pooled, true);
    return PASS(BEHIND(conv)->pool_relu_forward(EXEC, c, AT(x), AT(w), AT(bias), AT(drop), AT(y), AT(winner)));
}

static shoal_err pass_pool_relu_backward(sh_exec *exec, const sh_conv2d *c, const void *grad_y, const void *x,
                                         const void *w, const void *drop, const uint8_t *winner, void *grad_x,
                                         void *grad_w, void *grad_bias)
{
    passage p = {0};
    add_conv(&p, c, x, w, NULL);
    add_array(&p, grad_y, c->dtype, conv_count(c).pooled, false);
    add_array(&p, drop, c->dtype, c->n * c->out_c, false);
    add_array(&p, winner, SHOAL_U8, conv_count(c).pooled, false);
    add_conv_grads(&p, c, grad_x, grad_w, grad_bias);
    return PASS(BEHIND(conv)->pool_relu_backward(EXEC, c, AT(grad_y), AT(x), AT(w), AT(drop), AT(winner), AT(grad_x),
                                                 AT(grad_w), AT(grad_bias)));
}

static int64_t pool_in(const sh_pool2d *q)
{
    return q->n * q->c * q->in_h * q->in_w;
}

static int64_t pool_out(const sh_pool2d *q)
{
    return q->n * q->c * sh_pool2d_out_h(q) * sh_pool2d_out_w(q);
}

static shoal_err pass_max_pool(sh_exec *exec, const sh_pool2d *q, const void *x, void *y, int32_t *winner)
{
    passage p = {0};
    add_array(&p, x, q->dtype, pool_in(q), false);
    add_array(&p, y, q->dtype, pool_out(q), true);
    add_array(&p, winner, SHOAL_I32, pool_out(q), true);
    return PASS(BEHIND(pool)->max_forward(EXEC, q, AT(x), AT(y), AT(winner)));
}

static shoal_err pass_max_pool_backward(sh_exec *exec, const sh_pool2d *q, const void *grad_y, const int32_t *winner,
                                        void *grad_x)
{
    passage p = {0};
    add_array(&p, grad_y, q->dtype, pool_out(q), false);
    add_array(&p, winner, SHOAL_I32, pool_out(q), false);
    add_array(&p, grad_x, q->dtype, pool_in(q), true);
    return PASS(BEHIND(pool)->max_backward(EXEC, q, AT(grad_y), AT(winner), AT(grad_x)));
}

static shoal_err pass_avg_pool(sh_exec *exec, const sh_pool2d *q, const void *x, void *y)
{
    passage p = {0};
    add_array(&p, x, q->dtype, pool_in(q), false);
    add_array(&p, y, q->dtype, pool_out(q), true);
    return PASS(BEHIND(pool)->avg_forward(EXEC, q, AT(x), AT(y)));
}

static shoal_err pass_avg_pool_backward(sh_exec *exec, const sh_pool2d *q, const void *grad_y, void *grad_x)
{
    passage p = {0};
    add_array(&p, grad_y, q->dtype, pool_out(q), false);
    add_array(&p, grad_x, q->dtype, pool_in(q), true);
    return PASS(BEHIND(pool)->avg_backward(EXEC, q, AT(grad_y), AT(grad_x)));
}

#endif
