/* The list of all ops, as a macro: SH_OPS(X) expands X(name) for every sh_op_<name>. */
#ifndef SH_AUTOGRAD_OP_LIST_H
#define SH_AUTOGRAD_OP_LIST_H

/* clang-format off */
#define SH_OPS_ELEMENTWISE(X)                                                                                          \
    X(abs)                                                                                                             \
    X(square) X(sqrt) X(rsqrt) X(reciprocal) X(exp) X(log) X(sin) X(cos) X(sigmoid) X(tanh) X(relu) X(gelu) X(neg)     \
        X(sign) X(logical_not) X(add_scalar) X(mul_scalar) X(pow_scalar) X(leaky_relu) X(clamp)
#define SH_OPS_BINARY(X)                                                                                               \
    X(add)                                                                                                             \
    X(sub) X(add_scaled) X(mul) X(div) X(pow) X(maximum) X(minimum) X(eq) X(ne) X(lt) X(le) X(gt) X(ge) X(logical_and) \
        X(logical_or) X(where)
#define SH_OPS_VIEW(X) X(view) X(permute) X(expand) X(slice) X(as_strided)
#define SH_OPS_COPY(X) X(clone) X(to) X(tensor_to) X(copy) X(fill)
#define SH_OPS_REDUCE(X) X(sum) X(mean) X(prod) X(max) X(min) X(argmax) X(argmin) X(any) X(all) X(logsumexp) X(norm)
#define SH_OPS_MATRIX(X) X(matmul) X(linear)
#define SH_OPS_INDEX(X) X(cat) X(index_select) X(gather) X(scatter_add) X(one_hot)
#define SH_OPS_CONV(X) X(conv2d) X(conv2d_pool_relu) X(max_pool2d) X(avg_pool2d)
#define SH_OPS_SOFTMAX(X) X(softmax) X(log_softmax) X(nll_loss) X(cross_entropy)
#define SH_OPS_LOSS(X) X(mse_loss) X(l1_loss) X(smooth_l1_loss) X(bce_with_logits)
#define SH_OPS_LAYER(X) X(dropout) X(dropout2d) X(layer_norm) X(lstm_cell)

#define SH_OPS(X)                                                                                                      \
    SH_OPS_ELEMENTWISE(X)                                                                                              \
    SH_OPS_BINARY(X)                                                                                                   \
    SH_OPS_VIEW(X)                                                                                                     \
    SH_OPS_COPY(X)                                                                                                     \
    SH_OPS_REDUCE(X)                                                                                                   \
    SH_OPS_MATRIX(X)                                                                                                   \
    SH_OPS_INDEX(X)                                                                                                    \
    SH_OPS_CONV(X)                                                                                                     \
    SH_OPS_SOFTMAX(X)                                                                                                  \
    SH_OPS_LOSS(X)                                                                                                     \
    SH_OPS_LAYER(X)

/* clang-format on */

#endif
