/* The LSTM cell with vectors. */
#include "kernels/cpu/element.h"
#include "kernels/cpu/loop.h"
#include "kernels/cpu/math_fast.h"
#include "kernels/isa.h"
#include "kernels/rnn.h"

/* If an output is also an input, they are the same elements in the same places, so no iteration depends on another. */
#define EACH SH_INDEPENDENT for (int64_t j = 0; j < hidden; j++)

#define LSTM(name, T)                                                                                                  \
    static void name(int64_t hidden, T *h, T *c, T *acts, const T *gates, const T *c_prev)                             \
    {                                                                                                                  \
        EACH                                                                                                           \
        {                                                                                                              \
            T i = SH_SIGMOID(gates[j]), f = SH_SIGMOID(gates[j + hidden]);                                             \
            T g = SH_TANH(gates[j + 2 * hidden]), o = SH_SIGMOID(gates[j + 3 * hidden]);                               \
            T next = f * c_prev[j] + i * g;                                                                            \
            c[j] = next;                                                                                               \
            h[j] = o * SH_TANH(next);                                                                                  \
            acts[j] = i;                                                                                               \
            acts[j + hidden] = f;                                                                                      \
            acts[j + 2 * hidden] = g;                                                                                  \
            acts[j + 3 * hidden] = o;                                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_backward(int64_t hidden, T *dgates, T *dc_prev, const T *dh, const T *dc, const T *acts,        \
                                const T *c, const T *c_prev)                                                           \
    {                                                                                                                  \
        EACH                                                                                                           \
        {                                                                                                              \
            T i = acts[j], f = acts[j + hidden], g = acts[j + 2 * hidden], o = acts[j + 3 * hidden];                   \
            T t = SH_TANH(c[j]), gh = dh[j], before = c_prev[j];                                                       \
            T gc = (dc ? dc[j] : 0) + gh * o * (1 - t * t);                                                            \
            dc_prev[j] = gc * f;                                                                                       \
            dgates[j] = gc * g * i * (1 - i);                                                                          \
            dgates[j + hidden] = gc * before * f * (1 - f);                                                            \
            dgates[j + 2 * hidden] = gc * i * (1 - g * g);                                                             \
            dgates[j + 3 * hidden] = gh * t * o * (1 - o);                                                             \
        }                                                                                                              \
    }
LSTM(lstm_f32, float)
LSTM(lstm_f64, double)

static shoal_err lstm(sh_exec *exec, const sh_lstm_shape *s, void *h, void *c, void *acts, const void *gates,
                      const void *c_prev)
{
    (void)exec;
    shoal_err err = sh_element_check_float("lstm", s->dtype);
    int64_t hidden = s->hidden;
    for (int64_t r = 0; !err && r < s->n; r++) {
        int64_t at = r * hidden, wide = 4 * at;
        if (s->dtype == SHOAL_F32) {
            lstm_f32(hidden, (float *)h + at, (float *)c + at, (float *)acts + wide, (const float *)gates + wide,
                     (const float *)c_prev + at);
        } else {
            lstm_f64(hidden, (double *)h + at, (double *)c + at, (double *)acts + wide, (const double *)gates + wide,
                     (const double *)c_prev + at);
        }
    }
    return err;
}

static shoal_err lstm_backward(sh_exec *exec, const sh_lstm_shape *s, void *dgates, void *dc_prev, const void *dh,
                               const void *dc, const void *acts, const void *c, const void *c_prev)
{
    (void)exec;
    shoal_err err = sh_element_check_float("lstm", s->dtype);
    int64_t hidden = s->hidden;
    for (int64_t r = 0; !err && r < s->n; r++) {
        int64_t at = r * hidden, wide = 4 * at;
        if (s->dtype == SHOAL_F32) {
            lstm_f32_backward(hidden, (float *)dgates + wide, (float *)dc_prev + at, (const float *)dh + at,
                              dc ? (const float *)dc + at : NULL, (const float *)acts + wide, (const float *)c + at,
                              (const float *)c_prev + at);
        } else {
            lstm_f64_backward(hidden, (double *)dgates + wide, (double *)dc_prev + at, (const double *)dh + at,
                              dc ? (const double *)dc + at : NULL, (const double *)acts + wide, (const double *)c + at,
                              (const double *)c_prev + at);
        }
    }
    return err;
}

const sh_rnn_kernels SH_ISA_NAME(sh_rnn_kernels) = {.lstm = lstm, .lstm_backward = lstm_backward};
