/* Operations on tensors: arithmetic, reductions, products, convolution, losses.
 *
 * An op returns a new tensor that belongs to this thread's scope (tensor.h), or NULL on failure. If an argument is
 * NULL, it returns NULL and does not change the last error. An argument that may be NULL, such as a bias, is the
 * exception: check it yourself if the call that made it can fail. Shapes broadcast as in NumPy. Both operands must have
 * the same device and the same dtype, except that a tensor without dims takes the dtype of the other. Ops on floats
 * carry gradients wherever the derivative exists. No op blocks, except shoal_to_device and shoal_copy_ between devices.
 * An op may run in any thread; tensor.h has the rules for tensors that several threads use. Where a comment has no list
 * of errors, an op fails with SHOAL_EINVAL (shapes or arguments do not fit), SHOAL_ETYPE (dtypes do not fit; bf16 and
 * f16 have no arithmetic, convert them with shoal_to_dtype), SHOAL_ESTATE (gradients, see below) and SHOAL_ENOMEM.
 *
 * In place. An op whose name ends in _ changes its first argument and returns it. Outside of no_grad it fails with
 * SHOAL_ESTATE for a leaf that needs a gradient, and for a view of a tensor that needs one. An op in place saves a
 * copy of what its own backward needs. If it changes what the backward of another op needs, that backward fails.
 * After a recorded change in place, ops with gradients refuse other views of the same memory, and its base, because
 * their gradients would lack the change. So to fill a buffer row by row with gradients, use shoal_cat or shoal_stack.
 *
 * Numbers. Integers wrap around. A number given as a double to a tensor of integers must be whole and in the dtype's
 * range (else SHOAL_ETYPE: convert the tensor with shoal_to_dtype first); add_scalar and mul_scalar on u8 accept -255
 * to 255. For the same reason a float tensor without dims cannot be combined with an integer tensor. Every bool byte
 * other than 0 is true.
 *
 * NaN, infinities and overflow behave as in PyTorch on a CPU, in gradients too, except:
 *   prod                the gradient over a row with a zero is 0 where PyTorch has NaN
 *   pow_scalar          +-0.5 follows pow
 *   bce_with_logits     an infinite logit costs 0 or infinity, where PyTorch has NaN; a mean divides the gradient
 *                       before it multiplies it, so the gradient of the target overflows later
 *   cross_entropy       a row with the target -100 has the gradient 0, even if its logits are NaN or all -infinity,
 *                       where PyTorch has NaN
 *   sigmoid, gelu,      results near 0 keep their digits, where PyTorch rounds them to 0: sigmoid(-89), gelu(-9),
 *   bce_with_logits     the loss of the logit -20; gelu of infinity is infinity, where some versions have NaN
 */
#ifndef SHOAL_OPS_H
#define SHOAL_OPS_H

#include <shoal/reduction.h>
#include <shoal/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Compute a function of each element of a tensor. abs, sign, square, neg and relu also take integers. The result
 * belongs to the scope; NULL on failure. Errors: SHOAL_ETYPE if the dtype does not fit; SHOAL_ENOMEM. */
shoal_tensor *shoal_neg(shoal_tensor *a);                      /* -a */
shoal_tensor *shoal_abs(shoal_tensor *a);                      /* |a| */
shoal_tensor *shoal_sign(shoal_tensor *a);                     /* -1, 0 or 1 */
shoal_tensor *shoal_square(shoal_tensor *a);                   /* a * a */
shoal_tensor *shoal_sqrt(shoal_tensor *a);                     /* the square root */
shoal_tensor *shoal_rsqrt(shoal_tensor *a);                    /* 1 / sqrt(a) */
shoal_tensor *shoal_reciprocal(shoal_tensor *a);               /* 1 / a */
shoal_tensor *shoal_exp(shoal_tensor *a);                      /* e to the power of a */
shoal_tensor *shoal_log(shoal_tensor *a);                      /* the natural logarithm */
shoal_tensor *shoal_sin(shoal_tensor *a);                      /* the sine of a in radians */
shoal_tensor *shoal_cos(shoal_tensor *a);                      /* the cosine of a in radians */
shoal_tensor *shoal_sigmoid(shoal_tensor *a);                  /* 1 / (1 + exp(-a)) */
shoal_tensor *shoal_tanh(shoal_tensor *a);                     /* the hyperbolic tangent */
shoal_tensor *shoal_relu(shoal_tensor *a);                     /* max(a, 0) */
shoal_tensor *shoal_leaky_relu(shoal_tensor *a, double slope); /* a if a > 0, else slope * a */
shoal_tensor *shoal_gelu(shoal_tensor *a);                     /* a * Phi(a), the exact form */

/* Limits each element to low <= x <= high. A bound of NaN makes every element NaN. For integers the bounds must be
 * whole or infinite; a bound beyond the dtype's range means the end of the range. The result belongs to the scope;
 * NULL on failure. Errors: SHOAL_EINVAL if low > high; SHOAL_ETYPE; SHOAL_ENOMEM. */
shoal_tensor *shoal_clamp(shoal_tensor *a, double low, double high);

/* Negates a bool tensor. The result belongs to the scope; NULL on failure. Errors: SHOAL_ETYPE if it is not a bool
 * tensor; SHOAL_ENOMEM. */
shoal_tensor *shoal_logical_not(shoal_tensor *a);

/* Combine two tensors element by element, with broadcasting. Division of integers truncates toward zero. The result
 * belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if the shapes do not broadcast, or if an integer is
 * divided by zero; SHOAL_ETYPE if the dtypes differ; SHOAL_ENOMEM. */
shoal_tensor *shoal_add(shoal_tensor *a, shoal_tensor *b);     /* a + b */
shoal_tensor *shoal_sub(shoal_tensor *a, shoal_tensor *b);     /* a - b */
shoal_tensor *shoal_mul(shoal_tensor *a, shoal_tensor *b);     /* a * b */
shoal_tensor *shoal_div(shoal_tensor *a, shoal_tensor *b);     /* a / b */
shoal_tensor *shoal_pow(shoal_tensor *a, shoal_tensor *b);     /* a to the power of b */
shoal_tensor *shoal_maximum(shoal_tensor *a, shoal_tensor *b); /* the larger one */
shoal_tensor *shoal_minimum(shoal_tensor *a, shoal_tensor *b); /* the smaller one */

/* Combine each element of a tensor with a number. The result belongs to the scope; NULL on failure. Errors:
 * SHOAL_ETYPE if the tensor has integers and s is not one in range; SHOAL_ENOMEM. */
shoal_tensor *shoal_add_scalar(shoal_tensor *a, double s); /* a + s */
shoal_tensor *shoal_mul_scalar(shoal_tensor *a, double s); /* a * s */
shoal_tensor *shoal_pow_scalar(shoal_tensor *a, double s); /* a to the power of s */

/* Compare two tensors element by element, with broadcasting. logical_and and logical_or need bool tensors. The result
 * is a bool tensor that belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if the shapes do not broadcast;
 * SHOAL_ETYPE if the dtypes do not fit; SHOAL_ENOMEM. */
shoal_tensor *shoal_eq(shoal_tensor *a, shoal_tensor *b);          /* a == b */
shoal_tensor *shoal_ne(shoal_tensor *a, shoal_tensor *b);          /* a != b */
shoal_tensor *shoal_lt(shoal_tensor *a, shoal_tensor *b);          /* a < b */
shoal_tensor *shoal_le(shoal_tensor *a, shoal_tensor *b);          /* a <= b */
shoal_tensor *shoal_gt(shoal_tensor *a, shoal_tensor *b);          /* a > b */
shoal_tensor *shoal_ge(shoal_tensor *a, shoal_tensor *b);          /* a >= b */
shoal_tensor *shoal_logical_and(shoal_tensor *a, shoal_tensor *b); /* a and b */
shoal_tensor *shoal_logical_or(shoal_tensor *a, shoal_tensor *b);  /* a or b */

/* Chooses elements by a bool tensor: from a where condition is true, from b elsewhere, with broadcasting. The result
 * belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if the shapes do not broadcast; SHOAL_ETYPE;
 * SHOAL_ENOMEM. */
shoal_tensor *shoal_where(shoal_tensor *condition, shoal_tensor *a, shoal_tensor *b);

/* Replaces elements by a value where a bool tensor is true. The result is a new tensor that belongs to the scope;
 * NULL on failure. Errors: SHOAL_EINVAL if the mask does not broadcast; SHOAL_ETYPE; SHOAL_ENOMEM. */
shoal_tensor *shoal_masked_fill(shoal_tensor *a, shoal_tensor *mask, double value);

/* Change a tensor in place, and return it; NULL on failure. copy_ converts dtypes and copies between devices. b and
 * from broadcast to the shape of a. The caller's reference to a does not change. Errors: SHOAL_ESTATE if a is a leaf
 * that needs a gradient, or a view of a tensor that needs one, outside of no_grad; SHOAL_EINVAL if the shapes do not
 * fit; SHOAL_ETYPE; SHOAL_ENOMEM. */
shoal_tensor *shoal_fill_(shoal_tensor *a, double value);                        /* a = value */
shoal_tensor *shoal_zero_(shoal_tensor *a);                                      /* a = 0 */
shoal_tensor *shoal_copy_(shoal_tensor *a, shoal_tensor *from);                  /* a = from */
shoal_tensor *shoal_add_(shoal_tensor *a, shoal_tensor *b);                      /* a += b */
shoal_tensor *shoal_sub_(shoal_tensor *a, shoal_tensor *b);                      /* a -= b */
shoal_tensor *shoal_mul_(shoal_tensor *a, shoal_tensor *b);                      /* a *= b */
shoal_tensor *shoal_div_(shoal_tensor *a, shoal_tensor *b);                      /* a /= b */
shoal_tensor *shoal_add_scaled_(shoal_tensor *a, shoal_tensor *b, double scale); /* a += scale * b */
shoal_tensor *shoal_add_scalar_(shoal_tensor *a, double s);                      /* a += s */
shoal_tensor *shoal_mul_scalar_(shoal_tensor *a, double s);                      /* a *= s */
shoal_tensor *shoal_clamp_(shoal_tensor *a, double low, double high);            /* like shoal_clamp */
shoal_tensor *shoal_relu_(shoal_tensor *a);                                      /* a = max(a, 0) */

/* Begins to copy a tensor to or from a GPU, and returns before the copy is done. One of the two tensors must be
 * pinned (shoal_empty_pinned); both must be contiguous and have the same dtype and shape. Later calls that use the
 * tensor on the GPU see the copy. The caller must keep both tensors, and must not use the elements of the pinned one,
 * until shoal_cuda_wait returns. Can be captured. Does not block. Errors: SHOAL_EINVAL if the tensors do not fit;
 * SHOAL_ESTATE if one needs a gradient; SHOAL_ECUDA; SHOAL_EFORK. */
SHOAL_MUST_USE shoal_err shoal_tensor_copy_async(shoal_tensor *a, shoal_tensor *from);

/* Copy a tensor. shoal_clone always copies; shoal_contiguous if the tensor is not contiguous, shoal_to_dtype if the
 * dtype differs, shoal_to_device if the device differs. Otherwise they return the same tensor, with the owner that it
 * has. A copy belongs to the scope and carries gradients, even to another device; NULL on failure.
 *
 * How shoal_to_dtype and shoal_copy_ convert: a float becomes an i64 or i32 towards zero; beyond the range it becomes
 * the end of the range, and NaN becomes 0. To u8 the low 8 bits of that i64 are taken. An integer becomes a smaller one
 * by its low bits. A number becomes a float by rounding to nearest, ties to even. All but 0 is true as a bool, NaN too.
 *
 * shoal_to_device blocks until the elements are copied; shoal_copy_ does if the tensors are on different devices.
 * Errors: SHOAL_EINVAL if there is no such dtype or device; SHOAL_ENOMEM; for a GPU those of shoal_empty_on. */
shoal_tensor *shoal_clone(shoal_tensor *a);
shoal_tensor *shoal_contiguous(shoal_tensor *a);
shoal_tensor *shoal_to_dtype(shoal_tensor *a, shoal_dtype dtype);
shoal_tensor *shoal_to_device(shoal_tensor *a, shoal_device device);

/* Reduce a tensor over one dim, or over all dims with SHOAL_ALL_DIMS. If keep is true, the dim stays, with size 1. A
 * dim may count from the end. The results of argmax and argmin are i64 indices: of the first one, if several elements
 * are the largest or smallest, and with SHOAL_ALL_DIMS counted in row-major order. NaN counts as both the largest and
 * the smallest. Sums of integers and bools are i64. max and min return only the values. mean needs floats. The result
 * belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if the dim does not exist or has no elements where one is
 * needed; SHOAL_ETYPE; SHOAL_ENOMEM. */
#define SHOAL_ALL_DIMS INT32_MAX
shoal_tensor *shoal_sum(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_mean(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_prod(shoal_tensor *a, int dim, bool keep); /* the product */
shoal_tensor *shoal_max(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_min(shoal_tensor *a, int dim, bool keep);
shoal_tensor *shoal_argmax(shoal_tensor *a, int dim, bool keep);    /* the index of the maximum */
shoal_tensor *shoal_argmin(shoal_tensor *a, int dim, bool keep);    /* the index of the minimum */
shoal_tensor *shoal_any(shoal_tensor *a, int dim, bool keep);       /* whether any element is true */
shoal_tensor *shoal_all(shoal_tensor *a, int dim, bool keep);       /* whether all elements are true */
shoal_tensor *shoal_logsumexp(shoal_tensor *a, int dim, bool keep); /* log(sum(exp(a))) */

/* Returns the 2-norm of all elements of a tensor of floats, as a tensor without dims. It belongs to the scope; NULL
 * on failure. Errors: SHOAL_ETYPE; SHOAL_ENOMEM. */
shoal_tensor *shoal_norm(shoal_tensor *a);

/* Multiplies two matrices, or batches of matrices with leading dims that broadcast: [..., m, k] and [..., k, n] give
 * [..., m, n]. A vector is refused: make it a matrix first (shoal_unsqueeze). Both are f32, f64, i64 or i32. The result
 * belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if the shapes do not fit; SHOAL_ETYPE, for u8 and bool
 * too; SHOAL_ENOMEM. */
shoal_tensor *shoal_matmul(shoal_tensor *a, shoal_tensor *b);

/* Compute x times the transpose of w, plus b; linear_relu also applies relu, in one pass. x is [..., in], w [out,
 * in], b [out] or NULL. The result [..., out] belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if shapes
 * or dtypes do not fit; SHOAL_ENOMEM. */
shoal_tensor *shoal_linear(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b);
shoal_tensor *shoal_linear_relu(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b);

/* Join count tensors along an existing dim (cat) or a new one (stack). cat leaves out tensors [0] among tensors of more
 * dims. The result belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if shapes or dtypes do not fit or count
 * is 0; SHOAL_ENOMEM. */
shoal_tensor *shoal_cat(shoal_tensor *const *parts, size_t count, int dim);
shoal_tensor *shoal_stack(shoal_tensor *const *parts, size_t count, int dim);

/* Read or add elements by index, as in PyTorch. index_select takes whole slices along a dim. gather takes one element
 * along a dim for each index. scatter_add returns a copy of a with source added at the indices; it needs f32, f64, i64
 * or i32, and uses the beginning of a source that is larger than the index. embedding takes rows of weight. one_hot
 * makes a tensor with a new last dim of size classes. Indices are i64 or i32. The result belongs to the scope; NULL on
 * failure. Errors: SHOAL_EINVAL if an index is out of range (the text has the index and the bound) or the shapes do not
 * fit; SHOAL_ETYPE; SHOAL_ENOMEM. */
shoal_tensor *shoal_index_select(shoal_tensor *a, int dim, shoal_tensor *index);
shoal_tensor *shoal_gather(shoal_tensor *a, int dim, shoal_tensor *index);
shoal_tensor *shoal_scatter_add(shoal_tensor *a, int dim, shoal_tensor *index, shoal_tensor *source);
shoal_tensor *shoal_embedding(shoal_tensor *weight, shoal_tensor *index);
shoal_tensor *shoal_one_hot(shoal_tensor *index, int64_t classes);

/* Options of a convolution, for height and width. Zero means the default: stride 1, no padding, dilation 1, groups 1.
 */
typedef struct shoal_conv2d_options {
    int64_t stride[2];
    int64_t padding[2];
    int64_t dilation[2];
    int64_t groups;
} shoal_conv2d_options;

/* Options of a pooling, for height and width. size is required. Zero means the default: a stride of size, no padding.
 */
typedef struct shoal_pool2d_options {
    int64_t size[2];
    int64_t stride[2];
    int64_t padding[2];
} shoal_pool2d_options;

/* Computes a convolution of x [N, C, H, W] with w [out, C / groups, h, w]. b [out] and options may be NULL. The
 * result belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if shapes or dtypes do not fit; SHOAL_ENOMEM. */
shoal_tensor *shoal_conv2d(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b, const shoal_conv2d_options *options);

/* Reduce windows of x [N, C, H, W] to their maximum or their mean. The windows are size elements high and wide, and
 * lie side by side: shoal_max_pool2d(x, 2). The calls with options, which must not be NULL, can have other windows. The
 * result belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if shapes or dtypes do not fit; SHOAL_ENOMEM. */
shoal_tensor *shoal_max_pool2d(shoal_tensor *x, int64_t size);
shoal_tensor *shoal_avg_pool2d(shoal_tensor *x, int64_t size);
shoal_tensor *shoal_max_pool2d_with(shoal_tensor *x, const shoal_pool2d_options *options);
shoal_tensor *shoal_avg_pool2d_with(shoal_tensor *x, const shoal_pool2d_options *options);

/* Computes convolution, dropout, pooling and relu in one pass: relu(max_pool2d(dropout2d(conv2d(x, w, b), p), 2)),
 * with stride 1 and the given padding. With p = 0 there is no dropout. b may be NULL. Its backward visits only the
 * elements that the pooling chose. The result belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if shapes
 * or dtypes do not fit; SHOAL_ENOMEM. */
shoal_tensor *shoal_conv2d_pool_relu(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b, int64_t padding, double p);

/* Compute softmax, or its logarithm, along a dim. The result belongs to the scope; NULL on failure. Errors:
 * SHOAL_EINVAL if the dim does not exist; SHOAL_ETYPE if it is not a tensor of floats; SHOAL_ENOMEM. */
shoal_tensor *shoal_softmax(shoal_tensor *a, int dim);
shoal_tensor *shoal_log_softmax(shoal_tensor *a, int dim);

/* Compute the loss of a classifier. nll_loss takes log-probabilities x [N, C, ...], cross_entropy takes logits. target
 * [N, ...] has i64 or i32 classes; targets of -100 are skipped. weight [C], for nll_loss_with, weighs the classes and
 * may be NULL. Without _with the losses are averaged. The result belongs to the scope; NULL on failure. Errors:
 * SHOAL_EINVAL if the shapes do not fit or a class is out of range; SHOAL_ETYPE; SHOAL_ENOMEM. */
shoal_tensor *shoal_nll_loss(shoal_tensor *x, shoal_tensor *target);
shoal_tensor *shoal_cross_entropy(shoal_tensor *x, shoal_tensor *target);
shoal_tensor *shoal_nll_loss_with(shoal_tensor *x, shoal_tensor *target, shoal_tensor *weight,
                                  shoal_reduction reduction);
shoal_tensor *shoal_cross_entropy_with(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction);

/* Compute the loss between x and a target of the same shape, f32 or f64: squared difference (mse), absolute
 * difference (l1), squared for small and absolute for large differences (smooth_l1), or binary cross entropy of
 * logits. The result belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if shapes or dtypes differ;
 * SHOAL_ENOMEM. */
shoal_tensor *shoal_mse_loss(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction);
shoal_tensor *shoal_l1_loss(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction);
shoal_tensor *shoal_smooth_l1_loss(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction);
shoal_tensor *shoal_bce_with_logits(shoal_tensor *x, shoal_tensor *target, shoal_reduction reduction);

/* Apply dropout. Elements (dropout) or whole channels of [N, C, ...] (dropout2d) become 0 with probability p, and the
 * others are scaled by 1 / (1 - p). With p = 0 they return x itself; with p = 1 zeros, with zero gradients. They use
 * this thread's random generator. The result belongs to the scope; NULL on failure. Errors: SHOAL_EINVAL if p is not
 * a probability; SHOAL_ETYPE; SHOAL_ENOMEM. */
shoal_tensor *shoal_dropout(shoal_tensor *x, double p);
shoal_tensor *shoal_dropout2d(shoal_tensor *x, double p);

/* Computes layer normalisation. x is normalised over its last normalized_dims dims to mean 0 and variance 1,
 * multiplied by weight, and bias is added. weight and bias have the shape of those dims and may be NULL. The result
 * belongs to the scope; NULL on failure. Errors:
 *  SHOAL_EINVAL if shapes or dtypes do not fit; SHOAL_ENOMEM. */
shoal_tensor *shoal_layer_norm(shoal_tensor *x, shoal_tensor *weight, shoal_tensor *bias, int normalized_dims,
                               double eps);

/* Computes one step of an LSTM. x is [N, in], h and c [N, H], w_ih [4H, in], w_hh [4H, H], b_ih and b_hh [4H] or
 * NULL, with the gates in the order i, f, g, o. The new h and c belong to the scope. Errors: SHOAL_EINVAL if shapes
 * or dtypes do not fit; SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err shoal_lstm_cell(shoal_tensor *x, shoal_tensor *h, shoal_tensor *c, shoal_tensor *w_ih,
                                         shoal_tensor *w_hh, shoal_tensor *b_ih, shoal_tensor *b_hh,
                                         shoal_tensor **out_h, shoal_tensor **out_c);

#ifdef __cplusplus
}
#endif

#define SHOAL_OPS_READ_H
#include <shoal/compat.h>

#endif
