/* A table of kernels that passes every call on with other pointers: a template, included by the file that says where
 * the memory of a call is for the kernels behind it (cuda_mirror.c copies it to a card, far_device.c finds it). That
 * file defines before:
 *
 *     typedef struct passage passage;              one call; starts as {0}
 *     passage_add(p, data, size, written)          the call uses these bytes; NULL is ignored
 *     passage_open(p)                              all are known: make them reachable
 *     passage_at(p, data)                          where the kernel finds them; NULL stays NULL
 *     passage_close(p, err)                        the kernel returned err; returns what the caller gets
 *     passage_kernels(), passage_exec(exec)        the kernels behind, and their exec
 *
 * The sizes of all arrays follow from the contracts (kernels/<group>.h). */
#ifndef TESTING_PASSED_KERNELS_H
#define TESTING_PASSED_KERNELS_H

#include "kernels/kernels.h"

#define PASS(call) passage_close(&p, passage_open(&p) == SHOAL_OK ? (call) : shoal_last_error())
#define BEHIND(group) passage_kernels()->group
#define AT(data) passage_at(&p, data)
#define VIEW(v) ((sh_view[]){view_at(&p, v)})
#define EXEC passage_exec(exec)

static void add_array(passage *p, const void *data, shoal_dtype dtype, int64_t n, bool written)
{
    passage_add(p, data, (size_t)(n > 0 ? n : 0) * shoal_dtype_size(dtype), written);
}

/* From the first element of a view to its last, with the gaps between. */
static void add_view(passage *p, const sh_view *v, bool written)
{
    int64_t last = 0;
    for (int32_t d = 0; d < v->ndim; d++) {
        last += (v->shape[d] - 1) * v->strides[d];
    }
    add_array(p, v->data, v->dtype, sh_view_count(v) > 0 ? last + 1 : 0, written);
}

static sh_view view_at(const passage *p, const sh_view *v)
{
    sh_view moved = *v;
    moved.data = passage_at(p, v->data);
    return moved;
}

#include "tests/harness/passed_elements.h"
#include "tests/harness/passed_layers.h"

static const sh_kernels passed_kernels = {
    .name = "passed",
    .elementwise = &(const sh_elementwise_kernels){.unary = pass_unary,
                                                   .scalar = pass_scalar,
                                                   .binary = pass_binary,
                                                   .grad = pass_grad,
                                                   .where = pass_where,
                                                   .axpy = pass_axpy,
                                                   .fill = pass_fill,
                                                   .copy = pass_copy},
    .reduce = &(const sh_reduce_kernels){.reduce = pass_reduce, .logsumexp = pass_logsumexp},
    .matmul = &(const sh_matmul_kernels){.matmul = pass_matmul},
    .softmax = &(const sh_softmax_kernels){.forward = pass_softmax,
                                           .backward = pass_softmax_backward,
                                           .nll = pass_nll,
                                           .nll_backward = pass_nll_backward,
                                           .cross_entropy = pass_cross_entropy,
                                           .cross_entropy_backward = pass_cross_entropy_backward},
    .norm = &(const sh_norm_kernels){.layer_norm = pass_layer_norm, .layer_norm_backward = pass_layer_norm_backward},
    .index = &(const sh_index_kernels){.select = pass_select,
                                       .add = pass_add,
                                       .gather = pass_gather,
                                       .scatter = pass_scatter,
                                       .scatter_add = pass_scatter_add,
                                       .one_hot = pass_one_hot},
    .rnn = &(const sh_rnn_kernels){.lstm = pass_lstm, .lstm_backward = pass_lstm_backward},
    .random = &(const sh_random_kernels){.uniform = pass_uniform,
                                         .normal = pass_normal,
                                         .bernoulli = pass_bernoulli,
                                         .integers = pass_integers,
                                         .dropout = pass_dropout,
                                         .dropout_backward = pass_dropout_backward},
    .optim = &(const sh_optim_kernels){.sgd = pass_sgd,
                                       .adam = pass_adam,
                                       .rmsprop = pass_rmsprop,
                                       .scale = pass_scale,
                                       .clip = pass_clip,
                                       .average = pass_average,
                                       .sgd_all = pass_sgd_all,
                                       .adam_all = pass_adam_all,
                                       .rmsprop_all = pass_rmsprop_all,
                                       .count_steps = pass_count_steps,
                                       .sumsq_all = pass_sumsq_all,
                                       .clip_all = pass_clip_all},
    .conv = &(const sh_conv_kernels){.forward = pass_conv,
                                     .backward = pass_conv_backward,
                                     .pool_relu_forward = pass_pool_relu,
                                     .pool_relu_backward = pass_pool_relu_backward},
    .pool = &(const sh_pooling_kernels){.max_forward = pass_max_pool,
                                        .max_backward = pass_max_pool_backward,
                                        .avg_forward = pass_avg_pool,
                                        .avg_backward = pass_avg_pool_backward},
};

#endif
