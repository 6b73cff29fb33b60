/* The LSTM cell as defined, in f64. */
#include "kernels/rnn.h"

#include "kernels/cpu/element.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static shoal_err lstm(sh_exec *exec, const sh_lstm_shape *s, void *h, void *c, void *acts, const void *gates,
                      const void *c_prev)
{
    (void)exec;
    shoal_dtype dtype = s->dtype;
    int64_t hidden = s->hidden;
    shoal_err err = sh_element_check_float("lstm", dtype);
    for (int64_t at = 0; !err && at < s->n * hidden; at++) {
        int64_t base = at / hidden * 4 * hidden + at % hidden;
        double i = sigmoid(sh_get(dtype, gates, base)), f = sigmoid(sh_get(dtype, gates, base + hidden));
        double g = tanh(sh_get(dtype, gates, base + 2 * hidden)), o = sigmoid(sh_get(dtype, gates, base + 3 * hidden));
        double next = f * sh_get(dtype, c_prev, at) + i * g;
        sh_element_put(dtype, c, at, next);
        sh_element_put(dtype, h, at, o * tanh(next));
        sh_element_put(dtype, acts, base, i);
        sh_element_put(dtype, acts, base + hidden, f);
        sh_element_put(dtype, acts, base + 2 * hidden, g);
        sh_element_put(dtype, acts, base + 3 * hidden, o);
    }
    return err;
}

static shoal_err lstm_backward(sh_exec *exec, const sh_lstm_shape *s, void *dgates, void *dc_prev, const void *dh,
                               const void *dc, const void *acts, const void *c, const void *c_prev)
{
    (void)exec;
    shoal_dtype dtype = s->dtype;
    int64_t hidden = s->hidden;
    shoal_err err = sh_element_check_float("lstm", dtype);
    for (int64_t at = 0; !err && at < s->n * hidden; at++) {
        int64_t base = at / hidden * 4 * hidden + at % hidden;
        double i = sh_get(dtype, acts, base), f = sh_get(dtype, acts, base + hidden);
        double g = sh_get(dtype, acts, base + 2 * hidden), o = sh_get(dtype, acts, base + 3 * hidden);
        double t = tanh(sh_get(dtype, c, at)), gh = sh_get(dtype, dh, at), before = sh_get(dtype, c_prev, at);
        double gc = (dc ? sh_get(dtype, dc, at) : 0) + gh * o * (1 - t * t);
        sh_element_put(dtype, dc_prev, at, gc * f);
        sh_element_put(dtype, dgates, base, gc * g * i * (1 - i));
        sh_element_put(dtype, dgates, base + hidden, gc * before * f * (1 - f));
        sh_element_put(dtype, dgates, base + 2 * hidden, gc * i * (1 - g * g));
        sh_element_put(dtype, dgates, base + 3 * hidden, gh * t * o * (1 - o));
    }
    return err;
}

const sh_rnn_kernels sh_rnn_kernels_reference = {.lstm = lstm, .lstm_backward = lstm_backward};
