/* The plain version of a step of fedavg-cnn, for tests: one client after another, by the CPU's kernels. The contract is
 * kernels/fedavg_cnn.h. */
#include "base/error.h"
#include "kernels/kernels.h"

#include <string.h>

enum {
    PIXELS = 784,
    CHANNELS1 = 32,
    PLANE1 = 14 * 14,
    CHANNELS2 = 64,
    PLANE2 = 7 * 7,
    X1 = CHANNELS1 * PLANE1,
    X2 = CHANNELS2 * PLANE2,
    HIDDEN = 512,
    CLASSES = 10,
};

static const int64_t sizes[SH_FEDAVG_CNN_TENSORS] = {CHANNELS1 * 25, CHANNELS1, CHANNELS2 *CHANNELS1 * 25, CHANNELS2,
                                                     HIDDEN *X2,     HIDDEN,    CLASSES *HIDDEN,           CLASSES};

/* Memory of one client's step. */
typedef struct memory {
    float *x, *x1, *x2, *h, *z; /* [rows, each]: the input, and the outputs of the layers; z: log-probabilities */
    float *dx1, *dx2, *dh, *dz; /* their gradients */
    float *grad[SH_FEDAVG_CNN_TENSORS];
    int64_t *targets;
    uint8_t *winners1, *winners2;
    float *loss, *total;
} memory;

/* Hands out pieces of memory, or only counts them if base is NULL. */
typedef struct pieces {
    char *base;
    size_t used;
} pieces;

static void *piece(pieces *p, size_t size)
{
    void *at = p->base ? p->base + p->used : NULL;
    p->used += (size + 255) / 256 * 256;
    return at;
}

static memory lay_out(pieces *p, int64_t batch)
{
    size_t rows = (size_t)batch, f = sizeof(float);
    memory m = {.x = piece(p, rows * PIXELS * f),
                .x1 = piece(p, rows * X1 * f),
                .x2 = piece(p, rows * X2 * f),
                .h = piece(p, rows * HIDDEN * f),
                .z = piece(p, rows * CLASSES * f),
                .dx1 = piece(p, rows * X1 * f),
                .dx2 = piece(p, rows * X2 * f),
                .dh = piece(p, rows * HIDDEN * f),
                .dz = piece(p, rows * CLASSES * f),
                .targets = piece(p, rows * sizeof(int64_t)),
                .winners1 = piece(p, rows * X1),
                .winners2 = piece(p, rows * X2),
                .loss = piece(p, f),
                .total = piece(p, f)};
    for (int t = 0; t < SH_FEDAVG_CNN_TENSORS; t++) {
        m.grad[t] = piece(p, (size_t)sizes[t] * f);
    }
    return m;
}

static size_t scratch_size(int64_t batch, int clients)
{
    (void)clients;
    pieces p = {NULL, 0};
    (void)lay_out(&p, batch);
    return p.used;
}

static sh_conv2d convolution(int64_t rows, int64_t in_c, int64_t side, int64_t out_c)
{
    return (sh_conv2d){.dtype = SHOAL_F32,
                       .n = rows,
                       .in_c = in_c,
                       .in_h = side,
                       .in_w = side,
                       .out_c = out_c,
                       .kernel_h = 5,
                       .kernel_w = 5,
                       .stride_h = 1,
                       .stride_w = 1,
                       .pad_h = 2,
                       .pad_w = 2,
                       .dilation_h = 1,
                       .dilation_w = 1,
                       .groups = 1,
                       .overwrite = true};
}

static sh_nll_args losses(int64_t rows, const int64_t *targets)
{
    return (sh_nll_args){.shape = {.dtype = SHOAL_F32, .outer = rows, .n = CLASSES, .inner = 1},
                         .reduction = SHOAL_REDUCTION_MEAN,
                         .target = targets,
                         .ignore_index = -100};
}

static void take(const sh_fedavg_cnn_step *s, int c, int64_t rows, const memory *m)
{
    const int64_t *order = s->order + c * s->order_stride + *s->state;
    for (int64_t i = 0; i < rows; i++) {
        m->targets[i] = s->labels[order[i]];
        for (int64_t k = 0; k < PIXELS; k++) {
            float product = (float)s->pixels[order[i] * PIXELS + k] * s->scale;
            m->x[i * PIXELS + k] = product + s->shift;
        }
    }
}

/* c [m, n] = a b, where a and b are contiguous [m, k] and [k, n], or transposed. */
static sh_matmul_args product(int64_t m, int64_t n, int64_t k, const float *a, bool a_turned, const float *b,
                              bool b_turned, float *c)
{
    return (sh_matmul_args){.dtype = SHOAL_F32,
                            .batch = 1,
                            .m = m,
                            .n = n,
                            .k = k,
                            .a = a,
                            .a_row = a_turned ? 1 : k,
                            .a_col = a_turned ? m : 1,
                            .b = b,
                            .b_row = b_turned ? 1 : n,
                            .b_col = b_turned ? k : 1,
                            .c = c,
                            .c_row = n,
                            .alpha = 1};
}

static shoal_err forward(sh_exec *exec, int64_t rows, float *const *param, const memory *m)
{
    const sh_kernels *k = sh_kernels_cpu();
    sh_conv2d conv1 = convolution(rows, 1, 28, CHANNELS1), conv2 = convolution(rows, CHANNELS1, 14, CHANNELS2);
    SH_TRY(k->conv->pool_relu_forward(exec, &conv1, m->x, param[0], param[1], NULL, m->x1, m->winners1));
    SH_TRY(k->conv->pool_relu_forward(exec, &conv2, m->x1, param[2], param[3], NULL, m->x2, m->winners2));
    sh_matmul_args fc1 = product(rows, HIDDEN, X2, m->x2, false, param[4], true, m->h);
    fc1.bias = param[5];
    fc1.relu = true;
    SH_TRY(k->matmul->matmul(exec, &fc1));
    sh_matmul_args fc2 = product(rows, CLASSES, HIDDEN, m->h, false, param[6], true, m->z);
    fc2.bias = param[7];
    SH_TRY(k->matmul->matmul(exec, &fc2));
    sh_nll_args nll = losses(rows, m->targets);
    return k->softmax->cross_entropy(exec, &nll, m->loss, m->total, m->z, m->z);
}

/* The gradients of a linear layer: of its weight and bias, and of its input unless dx is NULL. */
static shoal_err linear_backward(sh_exec *exec, int64_t rows, int64_t in, int64_t out, const float *x, const float *w,
                                 const float *dy, float *dw, float *db, float *dx)
{
    const sh_matmul_kernels *k = sh_kernels_cpu()->matmul;
    sh_matmul_args of_w = product(out, in, rows, dy, true, x, false, dw);
    sh_matmul_args of_x = product(rows, in, out, dy, false, w, false, dx);
    SH_TRY(k->matmul(exec, &of_w));
    memset(db, 0, (size_t)out * sizeof *db);
    for (int64_t i = 0; i < rows * out; i++) {
        db[i % out] += dy[i];
    }
    return k->matmul(exec, &of_x);
}

static shoal_err backward(sh_exec *exec, int64_t rows, float *const *param, const memory *m)
{
    const sh_kernels *k = sh_kernels_cpu();
    sh_conv2d conv1 = convolution(rows, 1, 28, CHANNELS1), conv2 = convolution(rows, CHANNELS1, 14, CHANNELS2);
    sh_nll_args nll = losses(rows, m->targets);
    const float one = 1;
    SH_TRY(k->softmax->cross_entropy_backward(exec, &nll, m->dz, &one, m->total, m->z));
    SH_TRY(linear_backward(exec, rows, HIDDEN, CLASSES, m->h, param[6], m->dz, m->grad[6], m->grad[7], m->dh));
    for (int64_t i = 0; i < rows * HIDDEN; i++) {
        m->dh[i] = m->h[i] > 0 ? m->dh[i] : 0;
    }
    SH_TRY(linear_backward(exec, rows, X2, HIDDEN, m->x2, param[4], m->dh, m->grad[4], m->grad[5], m->dx2));
    SH_TRY(k->conv->pool_relu_backward(exec, &conv2, m->dx2, m->x1, param[2], NULL, m->winners2, m->dx1, m->grad[2],
                                       m->grad[3]));
    return k->conv->pool_relu_backward(exec, &conv1, m->dx1, m->x, param[0], NULL, m->winners1, NULL, m->grad[0],
                                       m->grad[1]);
}

/* Updates the parameters of client c with its gradients, or keeps the gradients. */
static void change(const sh_fedavg_cnn_step *s, int c, const memory *m)
{
    for (int t = 0; t < SH_FEDAVG_CNN_TENSORS; t++) {
        if (s->grad[t] != NULL) {
            memcpy(s->grad[t] + c * s->stride, m->grad[t], (size_t)sizes[t] * sizeof(float));
            continue;
        }
        float *param = s->param[t] + c * s->stride;
        float *momentum = s->momentum[t] ? s->momentum[t] + c * s->stride : NULL;
        for (int64_t i = 0; i < sizes[t]; i++) {
            float gradient = m->grad[t][i];
            if (momentum != NULL) {
                gradient += s->momentum_factor * momentum[i];
                momentum[i] = gradient;
            }
            param[i] -= s->lr * gradient;
        }
    }
}

static void keep_score(const sh_fedavg_cnn_step *s, int c, int64_t rows, const memory *m)
{
    double loss = 0, right = 0;
    for (int64_t i = 0; i < rows; i++) {
        const float *z = m->z + i * CLASSES;
        int best = 0;
        for (int k = 1; k < CLASSES; k++) {
            best = z[k] > z[best] ? k : best;
        }
        loss -= (double)z[m->targets[i]];
        right += best == m->targets[i];
    }
    s->score[2 * c] = loss;
    s->score[2 * c + 1] = right;
}

static shoal_err step(sh_exec *exec, const sh_fedavg_cnn_step *s, void *scratch)
{
    pieces p = {scratch, 0};
    memory m = lay_out(&p, s->batch);
    float sum = 0;
    int having_rows = 0;
    shoal_err err = SHOAL_OK;
    for (int c = 0; c < s->clients && err == SHOAL_OK; c++) {
        int64_t left = s->counts[c] - *s->state, rows = left < s->batch ? left : s->batch;
        float *param[SH_FEDAVG_CNN_TENSORS];
        if (rows <= 0) {
            if (s->score != NULL) {
                keep_score(s, c, 0, &m);
            }
            continue;
        }
        for (int t = 0; t < SH_FEDAVG_CNN_TENSORS; t++) {
            param[t] = s->param[t] + c * s->stride;
        }
        take(s, c, rows, &m);
        err = forward(exec, rows, param, &m);
        if (s->score != NULL) {
            keep_score(s, c, rows, &m);
            continue;
        }
        if (err == SHOAL_OK) {
            err = backward(exec, rows, param, &m);
        }
        if (err == SHOAL_OK) {
            change(s, c, &m);
            sum += *m.loss;
            having_rows++;
        }
    }
    if (s->score != NULL) {
        return err;
    }
    *s->loss += having_rows > 0 ? sum / (float)having_rows : 0;
    *s->state += s->batch;
    return err;
}

const sh_fedavg_cnn_kernels sh_fedavg_cnn_kernels_reference = {.scratch_size = scratch_size, .step = step};
