/* Convolution and pooling over [N, C, H, W]. Kernels need contiguous tensors,
 * so the public functions make them contiguous. */
#include "autograd/op.h"

#include "base/error.h"

#include <string.h>

/* The limit for window sizes, strides, pads and dilations. Larger values are mistakes and would overflow. */
#define GREATEST ((int64_t)1 << 30)

static int64_t given_or(int64_t value, int64_t otherwise)
{
    return value != 0 ? value : otherwise;
}

/* ---- conv2d: in = x, w, b; a.i = stride, padding and dilation of h and w each, groups ---- */

enum {
    STRIDE = 0,
    PADDING = 2,
    DILATION = 4,
    GROUPS = 6,
};

static sh_conv2d conv_of(const shoal_tensor *x, const shoal_tensor *w, const sh_attrs *a)
{
    return (sh_conv2d){
        .dtype = x->dtype,
        .n = x->shape[0],
        .in_c = x->shape[1],
        .in_h = x->shape[2],
        .in_w = x->shape[3],
        .out_c = w->shape[0],
        .kernel_h = w->shape[2],
        .kernel_w = w->shape[3],
        .stride_h = a->i[STRIDE],
        .stride_w = a->i[STRIDE + 1],
        .pad_h = a->i[PADDING],
        .pad_w = a->i[PADDING + 1],
        .dilation_h = a->i[DILATION],
        .dilation_w = a->i[DILATION + 1],
        .groups = a->i[GROUPS],
    };
}

static shoal_err check_conv_options(const sh_call *c)
{
    for (int side = 0; side < 2; side++) {
        int64_t stride = c->a.i[STRIDE + side], pad = c->a.i[PADDING + side], dilation = c->a.i[DILATION + side];
        if (stride < 1 || stride > GREATEST || pad < 0 || pad > GREATEST || dilation < 1 || dilation > GREATEST) {
            return sh_fail(SHOAL_EINVAL, "%s: stride %lld, padding %lld, dilation %lld", c->op->name, (long long)stride,
                           (long long)pad, (long long)dilation);
        }
    }
    return SHOAL_OK;
}

/* Checks that the sizes of x, w and b match. Only the batch may be empty. */
static bool conv_fits(const sh_call *c)
{
    const shoal_tensor *x = c->in[0], *w = c->in[1], *b = c->in[2];
    if (!sh_dtype_is_wide_float(x->dtype) || w->dtype != x->dtype || x->ndim != 4 || w->ndim != 4 || w->count == 0) {
        return false;
    }
    int64_t groups = c->a.i[GROUPS];
    bool good = groups >= 1 && x->shape[1] % groups == 0 && w->shape[0] % groups == 0 &&
                w->shape[1] == x->shape[1] / groups && x->shape[2] > 0 && x->shape[3] > 0;
    return good && (!b || (b->dtype == x->dtype && b->ndim == 1 && b->shape[0] == w->shape[0]));
}

static shoal_err conv_refuse(const sh_call *c, const char *why)
{
    sh_text tx, tw, tb;
    return sh_fail(SHOAL_EINVAL, "%s: x %s, w %s, b %s, groups %lld: %s", c->op->name, sh_tensor_text(&tx, c->in[0]),
                   sh_tensor_text(&tw, c->in[1]), c->in[2] ? sh_tensor_text(&tb, c->in[2]) : "none",
                   (long long)c->a.i[GROUPS], why);
}

/* Checks the inputs and returns the output's height and width. */
static shoal_err check_conv(const sh_call *c, int64_t *out_h, int64_t *out_w)
{
    SH_TRY(check_conv_options(c));
    if (!conv_fits(c)) {
        return conv_refuse(c, "x must be [N, C, H, W], w [O, C/groups, KH, KW], b [O], all f32 or all f64");
    }
    sh_conv2d conv = conv_of(c->in[0], c->in[1], &c->a);
    if (conv.in_h + 2 * conv.pad_h < conv.dilation_h * (conv.kernel_h - 1) + 1 ||
        conv.in_w + 2 * conv.pad_w < conv.dilation_w * (conv.kernel_w - 1) + 1) {
        return conv_refuse(c, "the kernel is larger than the padded image");
    }
    *out_h = sh_conv2d_out_h(&conv);
    *out_w = sh_conv2d_out_w(&conv);
    return SHOAL_OK;
}

static shoal_err conv2d_shape(sh_call *c)
{
    int64_t h = 0, w = 0;
    SH_TRY(check_conv(c, &h, &w));
    return sh_shape_init(&c->shape[0], c->in[0]->dtype, SHOAL_SHAPE(c->in[0]->shape[0], c->in[1]->shape[0], h, w));
}

static void *ptr_or_null(const shoal_tensor *t)
{
    return t ? sh_tensor_ptr(t) : NULL;
}

static shoal_err save_x_w(sh_call *c)
{
    SH_TRY(sh_call_save_in(c, 0));
    return sh_call_save_in(c, 1);
}

static shoal_err conv2d_forward(sh_call *c)
{
    sh_conv2d conv = conv_of(c->in[0], c->in[1], &c->a);
    SH_TRY(save_x_w(c));
    return c->kernels->conv->forward(c->exec, &conv, sh_tensor_ptr(c->in[0]), sh_tensor_ptr(c->in[1]),
                                     ptr_or_null(c->in[2]), sh_tensor_ptr(c->out[0]));
}

/* Where the kernels write: they overwrite x's gradient, and those of w and b or add to both. NULL if no gradient is
 * needed. */
typedef struct conv_grads {
    shoal_tensor *x, *w, *b;
    bool overwrite;
} conv_grads;

static shoal_err conv_targets(sh_back *b, conv_grads *out)
{
    *out = (conv_grads){0};
    if (sh_back_needs(b, 0) && !(out->x = sh_scope_add(sh_tensor_new_like(sh_back_saved(b, 0))))) {
        return shoal_last_error();
    }
    bool add_w = false, add_b = false;
    if (sh_back_needs(b, 1) && !(out->w = sh_back_target(b, 1, &add_w))) {
        return shoal_last_error();
    }
    if (sh_back_needs(b, 2) && !(out->b = sh_back_target(b, 2, &add_b))) {
        return shoal_last_error();
    }
    out->overwrite = !add_w && !add_b;
    SH_TRY(out->w && add_b && !add_w ? sh_tensor_fill(out->w, 0) : SHOAL_OK);
    return out->b && add_w && !add_b ? sh_tensor_fill(out->b, 0) : SHOAL_OK;
}

static shoal_err conv_give(sh_back *b, const conv_grads *d)
{
    SH_TRY(d->x ? sh_back_give(b, 0, d->x) : SHOAL_OK);
    if (d->w) {
        SH_TRY(sh_back_give(b, 1, d->w));
    }
    return d->b ? sh_back_give(b, 2, d->b) : SHOAL_OK;
}

static shoal_err conv2d_backward(sh_back *b)
{
    shoal_tensor *x = sh_back_saved(b, 0), *w = sh_back_saved(b, 1), *g = shoal_contiguous(sh_back_grad(b, 0));
    conv_grads d;
    SH_TRY(g ? conv_targets(b, &d) : shoal_last_error());
    sh_conv2d conv = conv_of(x, w, sh_back_attrs(b));
    conv.overwrite = d.overwrite;
    SH_TRY(sh_back_kernels(b)->conv->backward(sh_back_exec(b), &conv, sh_tensor_ptr(g), sh_tensor_ptr(x),
                                              sh_tensor_ptr(w), ptr_or_null(d.x), ptr_or_null(d.w), ptr_or_null(d.b)));
    return conv_give(b, &d);
}

const sh_op sh_op_conv2d = {"conv2d", SH_OP_COMPUTES, conv2d_shape, conv2d_forward, conv2d_backward};

shoal_tensor *shoal_conv2d(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b, const shoal_conv2d_options *options)
{
    SH_NEED_TENSOR_OR_NULL(x);
    SH_NEED_TENSOR_OR_NULL(w);
    if (!sh_contiguous_if_given(__func__, &b)) {
        return NULL;
    }
    shoal_conv2d_options o = options ? *options : (shoal_conv2d_options){0};
    return sh_run(&sh_op_conv2d,
                  &(sh_call){.in = {shoal_contiguous(x), shoal_contiguous(w), b},
                             .in_count = 3,
                             .a.i = {given_or(o.stride[0], 1), given_or(o.stride[1], 1), o.padding[0], o.padding[1],
                                     given_or(o.dilation[0], 1), given_or(o.dilation[1], 1), given_or(o.groups, 1)}},
                  2);
}

/* ---- conv2d_pool_relu: in = x, w, b; a.i as for conv2d, a.d = p. Saved: x, w, winners and factors (p > 0) ---- */

static shoal_err pool_relu_shape(sh_call *c)
{
    int64_t h = 0, w = 0;
    if (!(c->a.d[0] >= 0 && c->a.d[0] <= 1)) {
        return sh_fail(SHOAL_EINVAL, "%s: p is %g, not in [0, 1]", c->op->name, c->a.d[0]);
    }
    SH_TRY(check_conv(c, &h, &w));
    if (h < 2 || w < 2) {
        return conv_refuse(c, "the output of the convolution is smaller than a 2x2 window");
    }
    return sh_shape_init(&c->shape[0], c->in[0]->dtype,
                         SHOAL_SHAPE(c->in[0]->shape[0], c->in[1]->shape[0], h / 2, w / 2));
}

/* Returns the factor of each channel of each image: 0, or 1 / (1 - p). */
static shoal_tensor *draw_channels(sh_call *c, int64_t n, int64_t channels, double p)
{
    shoal_tensor *drop = sh_call_scratch(c, c->out[0]->dtype, SHOAL_SHAPE(n, channels));
    sh_random_key key = sh_generator_take(drop ? sh_random_blocks(SHOAL_F32, drop->count) : 0);
    return drop && c->kernels->random->bernoulli(c->exec, key, drop->dtype, sh_tensor_ptr(drop), drop->count, 1 - p,
                                                 1 / (1 - p)) == SHOAL_OK
               ? drop
               : NULL;
}

static shoal_err pool_relu_forward(sh_call *c)
{
    const shoal_tensor *y = c->out[0];
    sh_conv2d conv = conv_of(c->in[0], c->in[1], &c->a);
    SH_TRY(save_x_w(c));
    shoal_tensor *winner = sh_call_scratch(c, SHOAL_U8, y->ndim, y->shape), *drop = NULL;
    if (winner && c->a.d[0] > 0) {
        drop = draw_channels(c, y->shape[0], y->shape[1], c->a.d[0]);
    }
    if (!winner || (c->a.d[0] > 0 && !drop)) {
        return shoal_last_error();
    }
    return c->kernels->conv->pool_relu_forward(c->exec, &conv, sh_tensor_ptr(c->in[0]), sh_tensor_ptr(c->in[1]),
                                               ptr_or_null(c->in[2]), ptr_or_null(drop), sh_tensor_ptr(y),
                                               sh_tensor_ptr(winner));
}

static shoal_err pool_relu_backward(sh_back *b)
{
    shoal_tensor *x = sh_back_saved(b, 0), *w = sh_back_saved(b, 1), *winner = sh_back_saved(b, 2);
    shoal_tensor *drop = sh_back_attrs(b)->d[0] > 0 ? sh_back_saved(b, 3) : NULL;
    shoal_tensor *g = shoal_contiguous(sh_back_grad(b, 0));
    conv_grads d;
    SH_TRY(g ? conv_targets(b, &d) : shoal_last_error());
    sh_conv2d conv = conv_of(x, w, sh_back_attrs(b));
    conv.overwrite = d.overwrite;
    SH_TRY(sh_back_kernels(b)->conv->pool_relu_backward(sh_back_exec(b), &conv, sh_tensor_ptr(g), sh_tensor_ptr(x),
                                                        sh_tensor_ptr(w), ptr_or_null(drop), sh_tensor_ptr(winner),
                                                        ptr_or_null(d.x), ptr_or_null(d.w), ptr_or_null(d.b)));
    return conv_give(b, &d);
}

const sh_op sh_op_conv2d_pool_relu = {"conv2d_pool_relu", SH_OP_COMPUTES, pool_relu_shape, pool_relu_forward,
                                      pool_relu_backward};

shoal_tensor *shoal_conv2d_pool_relu(shoal_tensor *x, shoal_tensor *w, shoal_tensor *b, int64_t padding, double p)
{
    SH_NEED_TENSOR_OR_NULL(x);
    SH_NEED_TENSOR_OR_NULL(w);
    if (!sh_contiguous_if_given(__func__, &b)) {
        return NULL;
    }
    return sh_run(&sh_op_conv2d_pool_relu,
                  &(sh_call){.in = {shoal_contiguous(x), shoal_contiguous(w), b},
                             .in_count = 3,
                             .a.i = {1, 1, padding, padding, 1, 1, 1},
                             .a.d = {p}},
                  2);
}

/* ---- pools: in = x; a.i = size, stride and padding of h and w each ---- */

static sh_pool2d pool_of(shoal_dtype dtype, const int64_t *shape, const sh_attrs *a)
{
    return (sh_pool2d){
        .dtype = dtype,
        .n = shape[0],
        .c = shape[1],
        .in_h = shape[2],
        .in_w = shape[3],
        .kernel_h = a->i[0],
        .kernel_w = a->i[1],
        .stride_h = a->i[2],
        .stride_w = a->i[3],
        .pad_h = a->i[4],
        .pad_w = a->i[5],
    };
}

static shoal_err pool_shape(sh_call *c)
{
    const shoal_tensor *x = c->in[0];
    sh_text text;
    if (!sh_dtype_is_wide_float(x->dtype) || x->ndim != 4) {
        return sh_fail(SHOAL_EINVAL, "%s of %s: x must be [N, C, H, W], f32 or f64", c->op->name,
                       sh_tensor_text(&text, x));
    }
    for (int side = 0; side < 2; side++) {
        int64_t size = c->a.i[side], stride = c->a.i[2 + side], pad = c->a.i[4 + side];
        bool good = size >= 1 && size <= GREATEST && stride >= 1 && stride <= GREATEST && pad >= 0 && pad <= size / 2;
        if (!good || x->shape[2 + side] < 1 || x->shape[2 + side] + 2 * pad < size) {
            return sh_fail(SHOAL_EINVAL, "%s of %s: size %lld, stride %lld, padding %lld (at most half of the size)",
                           c->op->name, sh_tensor_text(&text, x), (long long)size, (long long)stride, (long long)pad);
        }
    }
    sh_pool2d pool = pool_of(x->dtype, x->shape, &c->a);
    return sh_shape_init(&c->shape[0], x->dtype,
                         SHOAL_SHAPE(pool.n, pool.c, sh_pool2d_out_h(&pool), sh_pool2d_out_w(&pool)));
}

static shoal_err max_pool2d_forward(sh_call *c)
{
    sh_pool2d pool = pool_of(c->in[0]->dtype, c->in[0]->shape, &c->a);
    shoal_tensor *winner = sh_call_scratch(c, SHOAL_I32, c->out[0]->ndim, c->out[0]->shape);
    return winner ? c->kernels->pool->max_forward(c->exec, &pool, sh_tensor_ptr(c->in[0]), sh_tensor_ptr(c->out[0]),
                                                  sh_tensor_ptr(winner))
                  : shoal_last_error();
}

/* Returns the arrived gradient as a contiguous tensor, a tensor for the gradient of x, and the pool. */
static shoal_err pool_back(sh_back *b, sh_pool2d *pool, shoal_tensor **g, shoal_tensor **dx)
{
    sh_shape s;
    sh_back_shape(b, 0, &s);
    SH_TRY(sh_shape_init(&s, s.dtype, s.ndim, s.shape));
    *pool = pool_of(s.dtype, s.shape, sh_back_attrs(b));
    *g = shoal_contiguous(sh_back_grad(b, 0));
    *dx = *g ? sh_scope_add(sh_tensor_new(sh_tensor_device_of(*g), &s)) : NULL;
    return *dx ? SHOAL_OK : shoal_last_error();
}

static shoal_err max_pool2d_backward(sh_back *b)
{
    sh_pool2d pool;
    shoal_tensor *g, *dx;
    SH_TRY(pool_back(b, &pool, &g, &dx));
    SH_TRY(sh_back_kernels(b)->pool->max_backward(sh_back_exec(b), &pool, sh_tensor_ptr(g),
                                                  sh_tensor_ptr(sh_back_saved(b, 0)), sh_tensor_ptr(dx)));
    return sh_back_give(b, 0, dx);
}

const sh_op sh_op_max_pool2d = {"max_pool2d", SH_OP_COMPUTES, pool_shape, max_pool2d_forward, max_pool2d_backward};

static shoal_err avg_pool2d_forward(sh_call *c)
{
    sh_pool2d pool = pool_of(c->in[0]->dtype, c->in[0]->shape, &c->a);
    return c->kernels->pool->avg_forward(c->exec, &pool, sh_tensor_ptr(c->in[0]), sh_tensor_ptr(c->out[0]));
}

static shoal_err avg_pool2d_backward(sh_back *b)
{
    sh_pool2d pool;
    shoal_tensor *g, *dx;
    SH_TRY(pool_back(b, &pool, &g, &dx));
    SH_TRY(sh_back_kernels(b)->pool->avg_backward(sh_back_exec(b), &pool, sh_tensor_ptr(g), sh_tensor_ptr(dx)));
    return sh_back_give(b, 0, dx);
}

const sh_op sh_op_avg_pool2d = {"avg_pool2d", SH_OP_COMPUTES, pool_shape, avg_pool2d_forward, avg_pool2d_backward};

static shoal_tensor *run_pool(const sh_op *op, shoal_tensor *x, const shoal_pool2d_options *o)
{
    return sh_run(op,
                  &(sh_call){.in = {shoal_contiguous(x)},
                             .in_count = 1,
                             .a.i = {o->size[0], o->size[1], given_or(o->stride[0], o->size[0]),
                                     given_or(o->stride[1], o->size[1]), o->padding[0], o->padding[1]}},
                  1);
}

shoal_tensor *shoal_max_pool2d(shoal_tensor *x, int64_t size)
{
    SH_NEED_TENSOR_OR_NULL(x);
    return run_pool(&sh_op_max_pool2d, x, &(shoal_pool2d_options){.size = {size, size}});
}

shoal_tensor *shoal_avg_pool2d(shoal_tensor *x, int64_t size)
{
    SH_NEED_TENSOR_OR_NULL(x);
    return run_pool(&sh_op_avg_pool2d, x, &(shoal_pool2d_options){.size = {size, size}});
}

shoal_tensor *shoal_max_pool2d_with(shoal_tensor *x, const shoal_pool2d_options *options)
{
    SH_NEED_TENSOR_OR_NULL(x);
    SH_GIVEN_OR_NULL(options);
    return run_pool(&sh_op_max_pool2d, x, options);
}

shoal_tensor *shoal_avg_pool2d_with(shoal_tensor *x, const shoal_pool2d_options *options)
{
    SH_NEED_TENSOR_OR_NULL(x);
    SH_GIVEN_OR_NULL(options);
    return run_pool(&sh_op_avg_pool2d, x, options);
}
