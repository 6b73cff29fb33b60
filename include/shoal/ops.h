/* Arithmetic on tensors. Results belong to the scope (tensor.h). Shapes broadcast as NumPy's do; both operands need
 * the same dtype, except that a 0-d tensor takes the other's, and the same device. Every op on floats carries gradients
 * where mathematics has them. Arithmetic on bf16 and f16 is SHOAL_ETYPE: convert with shoal_to.
 *
 * Names that end in _ change their first argument in place and return it. In place is refused for a leaf that needs a
 * gradient, and for a view of something that needs one (SHOAL_ESTATE), outside no_grad. An op in place keeps a copy of what its own
 * backward needs; changing what another op's backward still needs makes that backward fail. After a change in place that was recorded,
 * other views of the same memory, the base too, are refused by ops that carry gradients: theirs would lack the change. So a buffer that
 * is filled row by row, with gradients, is made with shoal_cat or shoal_stack instead.
 *
 * Integers wrap around. Numbers given as double must be whole and in the dtype's range where the tensor is of integers
 * (SHOAL_ETYPE: convert with shoal_to first); for u8, add_scalar and mul_scalar take -255 to 255. A 0-d tensor of floats does
 * not meet integers, for the same reason. Of a bool every byte but 0 is true. NaN and infinities are as in PyTorch, gradients
 * too, except that prod of a row with a zero has 0 where PyTorch has NaN, and pow_scalar with ±0.5 follows pow.
 */
#ifndef SHOAL_OPS_H
#define SHOAL_OPS_H

#include <shoal/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Elementwise, of one tensor. */
shoal_tensor *shoal_neg(shoal_tensor *a);
shoal_tensor *shoal_abs(shoal_tensor *a);
shoal_tensor *shoal_sign(shoal_tensor *a);
shoal_tensor *shoal_square(shoal_tensor *a);
shoal_tensor *shoal_sqrt(shoal_tensor *a);
shoal_tensor *shoal_rsqrt(shoal_tensor *a);
shoal_tensor *shoal_reciprocal(shoal_tensor *a);
shoal_tensor *shoal_exp(shoal_tensor *a);
shoal_tensor *shoal_log(shoal_tensor *a);
shoal_tensor *shoal_sin(shoal_tensor *a);
shoal_tensor *shoal_cos(shoal_tensor *a);
shoal_tensor *shoal_sigmoid(shoal_tensor *a);
shoal_tensor *shoal_tanh(shoal_tensor *a);
shoal_tensor *shoal_relu(shoal_tensor *a);
shoal_tensor *shoal_leaky_relu(shoal_tensor *a, double slope);
shoal_tensor *shoal_gelu(shoal_tensor *a);
/* Limits each element to low <= x <= high. SHOAL_EINVAL when low > high. A bound of NaN makes all NaN. For integers bounds are whole or infinite; what is beyond the
 * dtype's range means its end. */
shoal_tensor *shoal_clamp(shoal_tensor *a, double low, double high);
shoal_tensor *shoal_logical_not(shoal_tensor *a);

/* Elementwise, of two tensors, or of a tensor and a number. */
shoal_tensor *shoal_add(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_sub(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_mul(shoal_tensor *a, shoal_tensor *b);
/* Division. Quotients of integers are cut towards zero; a zero among their divisors is SHOAL_EINVAL. */
shoal_tensor *shoal_div(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_pow(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_maximum(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_minimum(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_add_scalar(shoal_tensor *a, double s);
shoal_tensor *shoal_mul_scalar(shoal_tensor *a, double s);
shoal_tensor *shoal_pow_scalar(shoal_tensor *a, double s);

/* Comparisons, which give bool, and choices by them. */
shoal_tensor *shoal_eq(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_ne(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_lt(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_le(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_gt(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_ge(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_logical_and(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_logical_or(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_where(shoal_tensor *condition, shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_masked_fill(shoal_tensor *a, shoal_tensor *mask, double value);

/* Arithmetic in place: the result is written into `a`, which is returned. */
shoal_tensor *shoal_fill_(shoal_tensor *a, double value);
shoal_tensor *shoal_zero_(shoal_tensor *a);
shoal_tensor *shoal_copy_(shoal_tensor *a, shoal_tensor *from); /* converts and broadcasts */
shoal_tensor *shoal_add_(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_sub_(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_mul_(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_div_(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_add_scaled_(shoal_tensor *a, shoal_tensor *b, double scale); /* a += scale * b */
shoal_tensor *shoal_add_scalar_(shoal_tensor *a, double s);
shoal_tensor *shoal_mul_scalar_(shoal_tensor *a, double s);
shoal_tensor *shoal_clamp_(shoal_tensor *a, double low, double high);
shoal_tensor *shoal_relu_(shoal_tensor *a);

/* Copies of a tensor. shoal_to and shoal_to_device give the same tensor when nothing changes. */
shoal_tensor *shoal_clone(shoal_tensor *a);
shoal_tensor *shoal_contiguous(shoal_tensor *a);
shoal_tensor *shoal_to(shoal_tensor *a, shoal_dtype dtype);
shoal_tensor *shoal_to_device(shoal_tensor *a, shoal_device device);

/* Reductions over one dim, or over all with SHOAL_ALL. keep leaves the dim with size 1. The results of argmax and argmin are
 * i64, and so are sums of integers and bools. Along a dim, max and min give values only. Only floats have a mean. */
#define SHOAL_ALL INT32_MAX
shoal_tensor *shoal_sum(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_mean(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_prod(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_max(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_min(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_argmax(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_argmin(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_any(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_all(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_logsumexp(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_norm(shoal_tensor *a); /* the 2-norm of all elements */

/* Matrix products of 2-d tensors, or of batches of them with broadcast leading dims. linear: x · wᵀ + b, x [..., in], w [out, in], b may be
 * NULL. */
shoal_tensor *shoal_matmul(shoal_tensor *a, shoal_tensor *b);
shoal_tensor *shoal_linear(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b);
shoal_tensor *shoal_linear_relu(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b); /* relu(linear), in one pass */

/* Joining and indexing. Indices are i64 or i32; one out of range is SHOAL_EINVAL with the index and the bound. */
shoal_tensor *shoal_cat(shoal_tensor *const *parts, size_t count, int dim);
shoal_tensor *shoal_stack(shoal_tensor *const *parts, size_t count, int dim);
shoal_tensor *shoal_index_select(shoal_tensor *a, int dim, shoal_tensor *index);
shoal_tensor *shoal_gather(shoal_tensor *a, int dim, shoal_tensor *index);
shoal_tensor *shoal_scatter_add(shoal_tensor *a, int dim, shoal_tensor *index, shoal_tensor *source);
shoal_tensor *shoal_embedding(shoal_tensor *weight, shoal_tensor *index);
shoal_tensor *shoal_one_hot(shoal_tensor *index, int64_t classes);

/* Convolution and pooling over [N, C, H, W]. Zero means the default: stride 1 (a pool's: its size), dilation 1,
 * groups 1. b and a convolution's options may be NULL; a pool's may not, because it needs a size. */
typedef struct shoal_conv2d_options {
    int64_t stride[2];
    int64_t padding[2];
    int64_t dilation[2];
    int64_t groups;
} shoal_conv2d_options;

typedef struct shoal_pool2d_options {
    int64_t size[2];
    int64_t stride[2];
    int64_t padding[2];
} shoal_pool2d_options;

shoal_tensor *shoal_conv2d(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b, const shoal_conv2d_options *options);
shoal_tensor *shoal_max_pool2d(shoal_tensor *x, const shoal_pool2d_options *options);
shoal_tensor *shoal_avg_pool2d(shoal_tensor *x, const shoal_pool2d_options *options);

/* Convolution, dropout, pooling and relu in one pass: relu(max_pool2d(dropout2d(conv2d(x, w, b), p), 2)), stride 1, padding as given; p 0: no dropout. Backward
 * looks only at the winners of the pool. */
shoal_tensor *shoal_conv2d_pool_relu(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b, int64_t padding, double p);

/* Softmax along a dim. */
shoal_tensor *shoal_softmax(shoal_tensor *a, int dim);
shoal_tensor *shoal_log_softmax(shoal_tensor *a, int dim);

/* Losses for training. weight, of the classes, may be NULL. Targets are i64 classes [N] for nll_loss (x: log-probabilities [N, C]) and cross_entropy (x: logits); tensors of
 * x's shape for the others. The first two skip targets of -100. */
typedef enum shoal_reduction {
    SHOAL_MEAN,
    SHOAL_SUM,
    SHOAL_NONE,
} shoal_reduction;

shoal_tensor *shoal_nll_loss(shoal_tensor *x, shoal_tensor *target);
shoal_tensor *shoal_cross_entropy(shoal_tensor *x, shoal_tensor *target);
shoal_tensor *shoal_nll_loss_with(shoal_tensor *x, shoal_tensor *target, shoal_tensor *weight,
                                  shoal_reduction reduction);
shoal_tensor *shoal_cross_entropy_with(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction);
shoal_tensor *shoal_mse_loss(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction);
shoal_tensor *shoal_l1_loss(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction);
shoal_tensor *shoal_smooth_l1_loss(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction);
shoal_tensor *shoal_bce_with_logits(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction);

/* Dropout of elements or channels. Zeroes elements (dropout) or whole channels [N, C, …] (dropout2d) with probability p and scales the rest by
 * 1 / (1 - p); gives x itself when p is 0, and zeros, with zero gradients, when it is 1. The thread's generator is used. */
shoal_tensor *shoal_dropout(shoal_tensor *x, double p);
shoal_tensor *shoal_dropout2d(shoal_tensor *x, double p);

/* Layer normalisation over the last dims of x that weight has; weight and bias may be NULL. */
shoal_tensor *shoal_layer_norm(shoal_tensor *x, shoal_tensor *weight, shoal_tensor *bias, int normalized_dims,
                               double eps);

/* One step of an LSTM: x [N, in], h and c [N, H], w_ih [4H, in], w_hh [4H, H], biases [4H] or NULL, gates in the order i f g o.
 * Writes the new h and c, which belong to the scope. */
SHOAL_MUST_USE shoal_err shoal_lstm_cell(shoal_tensor *x, shoal_tensor *h, shoal_tensor *c, shoal_tensor *w_ih,
                                         shoal_tensor *w_hh, shoal_tensor *b_ih, shoal_tensor *b_hh,
                                         shoal_tensor **out_h, shoal_tensor **out_c);

#ifdef __cplusplus
}
#endif
#endif
