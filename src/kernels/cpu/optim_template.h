/* Optimiser steps of one dtype. optim_fast.c includes it with T and NAME(x) defined. The options are constants where a
 * loop is inlined. Other processes may write the parameters at the same time, by intention: RACY. */

typedef struct NAME(sgd_numbers) {
    T lr, momentum, rest, decay;
    bool maximize, decays;
} NAME(sgd_numbers);

static inline __attribute__((always_inline)) RACY void NAME(sgd_loop)(int64_t n, NAME(sgd_numbers) c, bool momentum,
                                                                      bool first, bool nesterov, T *restrict param,
                                                                      T *restrict buffer, const T *restrict grad)
{
    for (int64_t i = 0; i < n; i++) {
        T p = param[i], g = c.maximize ? -grad[i] : grad[i];
        g = c.decays ? g + c.decay * p : g;
        if (momentum) {
            T b = first ? g : c.momentum * buffer[i] + c.rest * g;
            buffer[i] = b;
            g = nesterov ? g + c.momentum * b : b;
        }
        param[i] = p - c.lr * g;
    }
}

static RACY void NAME(sgd)(int64_t n, const sh_sgd_args *args, T *param, T *buffer, const T *grad)
{
    NAME(sgd_numbers) c = {.lr = (T)args->lr, .momentum = (T)args->momentum, .rest = (T)(1 - args->dampening)};
    c.decay = (T)args->weight_decay;
    c.decays = args->weight_decay != 0;
    c.maximize = args->maximize;
    if (args->momentum == 0) {
        NAME(sgd_loop)(n, c, false, false, false, param, buffer, grad);
    } else if (args->first) {
        NAME(sgd_loop)(n, c, true, true, args->nesterov, param, buffer, grad);
    } else if (args->nesterov) {
        NAME(sgd_loop)(n, c, true, false, true, param, buffer, grad);
    } else {
        NAME(sgd_loop)(n, c, true, false, false, param, buffer, grad);
    }
}

typedef struct NAME(adam_numbers) {
    T step, root, eps, beta1, rest1, beta2, rest2, shrink, decay;
    bool maximize, decays;
} NAME(adam_numbers);

static inline __attribute__((always_inline)) RACY void NAME(adam_loop)(int64_t n, NAME(adam_numbers) c, bool amsgrad,
                                                                       T *restrict param, T *restrict m, T *restrict v,
                                                                       T *restrict v_max, const T *restrict grad)
{
    for (int64_t i = 0; i < n; i++) {
        T p = param[i] * c.shrink, g = c.maximize ? -grad[i] : grad[i];
        g = c.decays ? g + c.decay * p : g;
        T first = c.beta1 * m[i] + c.rest1 * g, second = c.beta2 * v[i] + c.rest2 * g * g;
        m[i] = first;
        v[i] = second;
        if (amsgrad) {
            second = second > v_max[i] ? second : v_max[i];
            v_max[i] = second;
        }
        param[i] = p - c.step * (first / (SH_SQRT(second) / c.root + c.eps));
    }
}

static RACY void NAME(adam)(int64_t n, const sh_adam_args *args, T *param, T *m, T *v, T *v_max, const T *grad)
{
    NAME(adam_numbers) c = {.step = (T)(args->lr / args->bias1), .root = (T)sqrt(args->bias2), .eps = (T)args->eps};
    c.beta1 = (T)args->beta1;
    c.rest1 = (T)(1 - args->beta1);
    c.beta2 = (T)args->beta2;
    c.rest2 = (T)(1 - args->beta2);
    c.shrink = args->decoupled ? (T)(1 - args->lr * args->weight_decay) : 1;
    c.decay = (T)args->weight_decay;
    c.decays = !args->decoupled && args->weight_decay != 0;
    c.maximize = args->maximize;
    if (v_max) {
        NAME(adam_loop)(n, c, true, param, m, v, v_max, grad);
    } else {
        NAME(adam_loop)(n, c, false, param, m, v, v_max, grad);
    }
}

typedef struct NAME(rmsprop_numbers) {
    T lr, alpha, rest, eps, decay, momentum;
    bool maximize, decays;
} NAME(rmsprop_numbers);

static inline __attribute__((always_inline)) RACY void NAME(rmsprop_loop)(int64_t n, NAME(rmsprop_numbers) c,
                                                                          bool centered, bool momentum,
                                                                          T *restrict param, T *restrict v,
                                                                          T *restrict average, T *restrict buffer,
                                                                          const T *restrict grad)
{
    for (int64_t i = 0; i < n; i++) {
        T p = param[i], g = c.maximize ? -grad[i] : grad[i];
        g = c.decays ? g + c.decay * p : g;
        T square = c.alpha * v[i] + c.rest * g * g, variance = square;
        v[i] = square;
        if (centered) {
            T a = c.alpha * average[i] + c.rest * g;
            average[i] = a;
            variance = square - a * a;
        }
        T step = g / (SH_SQRT(variance) + c.eps);
        if (momentum) {
            step = c.momentum * buffer[i] + step;
            buffer[i] = step;
        }
        param[i] = p - c.lr * step;
    }
}

static RACY void NAME(rmsprop)(int64_t n, const sh_rmsprop_args *args, T *param, T *v, T *average, T *buffer,
                               const T *grad)
{
    NAME(rmsprop_numbers) c = {.lr = (T)args->lr, .alpha = (T)args->alpha, .rest = (T)(1 - args->alpha)};
    c.eps = (T)args->eps;
    c.decay = (T)args->weight_decay;
    c.decays = args->weight_decay != 0;
    c.momentum = (T)args->momentum;
    c.maximize = args->maximize;
    if (average && buffer) {
        NAME(rmsprop_loop)(n, c, true, true, param, v, average, buffer, grad);
    } else if (average) {
        NAME(rmsprop_loop)(n, c, true, false, param, v, average, buffer, grad);
    } else if (buffer) {
        NAME(rmsprop_loop)(n, c, false, true, param, v, average, buffer, grad);
    } else {
        NAME(rmsprop_loop)(n, c, false, false, param, v, average, buffer, grad);
    }
}

static RACY void NAME(scale)(int64_t n, T *x, T factor)
{
    for (int64_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}

/* Sums blocks in f64, so that each array is read in long pieces. */
static RACY void NAME(average)(int64_t n, T *out, const void *const *in, const double *weights, int32_t count)
{
    double sums[512];
    for (int64_t at = 0; at < n; at += 512) {
        int64_t end = n - at < 512 ? n - at : 512;
        memset(sums, 0, sizeof sums);
        for (int32_t j = 0; j < count; j++) {
            const T *x = (const T *)in[j] + at;
            double weight = weights[j];
            for (int64_t i = 0; i < end; i++) {
                sums[i] += weight * (double)x[i];
            }
        }
        for (int64_t i = 0; i < end; i++) {
            out[at + i] = (T)sums[i];
        }
    }
}
