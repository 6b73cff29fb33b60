/* The reference convolution for one element type. conv2d_reference.c includes it once for each type, so it has no
 * guard; T is the type, and NAME(x) makes names. */

/* Returns bias[o] + the sum of the formula at one output, without rounding between the terms. */
static double NAME(at)(const sh_conv2d *c, const T *x, const T *w, const T *bias, int64_t n, int64_t o, int64_t i,
                       int64_t j)
{
    const int64_t group_c = c->in_c / c->groups;
    const int64_t first = o / (c->out_c / c->groups) * group_c;
    double sum = bias ? (double)bias[o] : 0;
    for (int64_t k = 0; k < group_c; k++) {
        for (int64_t a = 0; a < c->kernel_h; a++) {
            for (int64_t b = 0; b < c->kernel_w; b++) {
                const int64_t h = i * c->stride_h - c->pad_h + a * c->dilation_h;
                const int64_t v = j * c->stride_w - c->pad_w + b * c->dilation_w;
                if (inside(c, h, v)) {
                    sum += (double)w[((o * group_c + k) * c->kernel_h + a) * c->kernel_w + b] *
                           (double)x[((n * c->in_c + first + k) * c->in_h + h) * c->in_w + v];
                }
            }
        }
    }
    return sum;
}

/* Adds what the gradient g of one output contributes to all gradients: to grad_x unless it is NULL, and to the sums. */
static void NAME(spread)(const sh_conv2d *c, T g, const T *x, const T *w, int64_t n, int64_t o, int64_t i, int64_t j,
                         T *grad_x, const sums *s)
{
    s->bias[o] += (double)g;
    const int64_t group_c = c->in_c / c->groups;
    const int64_t first = o / (c->out_c / c->groups) * group_c;
    for (int64_t k = 0; k < group_c; k++) {
        for (int64_t a = 0; a < c->kernel_h; a++) {
            for (int64_t b = 0; b < c->kernel_w; b++) {
                const int64_t h = i * c->stride_h - c->pad_h + a * c->dilation_h;
                const int64_t v = j * c->stride_w - c->pad_w + b * c->dilation_w;
                if (!inside(c, h, v)) {
                    continue;
                }
                const int64_t at_w = ((o * group_c + k) * c->kernel_h + a) * c->kernel_w + b;
                const int64_t at_x = ((n * c->in_c + first + k) * c->in_h + h) * c->in_w + v;
                if (s->w) {
                    s->w[at_w] += (double)g * (double)x[at_x];
                }
                if (grad_x) {
                    grad_x[at_x] += g * w[at_w];
                }
            }
        }
    }
}

static void NAME(forward)(const sh_conv2d *c, const T *x, const T *w, const T *bias, T *y)
{
    const int64_t out_h = sh_conv2d_out_h(c), out_w = sh_conv2d_out_w(c);
    for (int64_t n = 0; n < c->n; n++) {
        for (int64_t o = 0; o < c->out_c; o++) {
            for (int64_t i = 0; i < out_h; i++) {
                for (int64_t j = 0; j < out_w; j++) {
                    *y++ = (T)NAME(at)(c, x, w, bias, n, o, i, j);
                }
            }
        }
    }
}

/* Adds the sums to the gradients that are wanted. */
static void NAME(add_sums)(const sh_conv2d *c, const sums *s, T *grad_w, T *grad_bias)
{
    for (int64_t k = 0; grad_w && k < weights_of(c); k++) {
        grad_w[k] = (T)((double)grad_w[k] + s->w[k]);
    }
    for (int64_t o = 0; grad_bias && o < c->out_c; o++) {
        grad_bias[o] = (T)((double)grad_bias[o] + s->bias[o]);
    }
}

static void NAME(backward)(const sh_conv2d *c, const sums *s, const T *grad_y, const T *x, const T *w, T *grad_x,
                           T *grad_w, T *grad_bias)
{
    const int64_t out_h = sh_conv2d_out_h(c), out_w = sh_conv2d_out_w(c);
    if (grad_x) {
        memset(grad_x, 0, sizeof(T) * (size_t)(c->n * c->in_c * c->in_h * c->in_w));
    }
    for (int64_t n = 0; n < c->n; n++) {
        for (int64_t o = 0; o < c->out_c; o++) {
            for (int64_t i = 0; i < out_h; i++) {
                for (int64_t j = 0; j < out_w; j++) {
                    NAME(spread)(c, *grad_y++, x, w, n, o, i, j, grad_x, s);
                }
            }
        }
    }
    NAME(add_sums)(c, s, grad_w, grad_bias);
}

/* The output is the first maximum of the four. NaN is greater than all numbers, and the last NaN wins. */
static void NAME(pool_one)(const T v[4], T *y, uint8_t *winner)
{
    int best = 0;
    for (int k = 1; k < 4; k++) {
        if (v[k] > v[best] || isnan(v[k])) {
            best = k;
        }
    }
    const bool dead = v[best] <= 0;
    *y = dead ? 0 : v[best];
    *winner = (uint8_t)(dead ? SH_WINNER_DEAD : best);
}

static void NAME(pool_relu_forward)(const sh_conv2d *c, const T *x, const T *w, const T *bias, const T *drop, T *y,
                                    uint8_t *winner)
{
    const int64_t pooled_h = sh_conv2d_out_h(c) / 2, pooled_w = sh_conv2d_out_w(c) / 2;
    for (int64_t n = 0; n < c->n; n++) {
        for (int64_t o = 0; o < c->out_c; o++) {
            const T m = drop ? drop[n * c->out_c + o] : 1;
            for (int64_t i = 0; i < pooled_h; i++) {
                for (int64_t j = 0; j < pooled_w; j++) {
                    T v[4] = {0};
                    for (int k = 0; k < 4 && m != 0; k++) {
                        v[k] = (T)NAME(at)(c, x, w, bias, n, o, 2 * i + k / 2, 2 * j + k % 2) * m;
                    }
                    NAME(pool_one)(v, y++, winner++);
                }
            }
        }
    }
}

static void NAME(pool_relu_backward)(const sh_conv2d *c, const sums *s, const T *grad_y, const T *x, const T *w,
                                     const T *drop, const uint8_t *winner, T *grad_x, T *grad_w, T *grad_bias)
{
    const int64_t pooled_h = sh_conv2d_out_h(c) / 2, pooled_w = sh_conv2d_out_w(c) / 2;
    if (grad_x) {
        memset(grad_x, 0, sizeof(T) * (size_t)(c->n * c->in_c * c->in_h * c->in_w));
    }
    for (int64_t n = 0; n < c->n; n++) {
        for (int64_t o = 0; o < c->out_c; o++) {
            const T m = drop ? drop[n * c->out_c + o] : 1;
            for (int64_t i = 0; i < pooled_h; i++) {
                for (int64_t j = 0; j < pooled_w; j++, winner++, grad_y++) {
                    if (*winner == SH_WINNER_DEAD || m == 0) {
                        continue;
                    }
                    NAME(spread)
                    (c, *grad_y * m, x, w, n, o, 2 * i + *winner / 2, 2 * j + *winner % 2, grad_x, s);
                }
            }
        }
    }
    NAME(add_sums)(c, s, grad_w, grad_bias);
}
