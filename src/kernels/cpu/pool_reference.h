/* Reference pooling for one element type. pool_reference.c includes it once for each type, so it has no guard; T is the
 * type, and NAME(x) makes names. */

static void NAME(max_forward)(const sh_pool2d *p, const T *x, T *y, int32_t *winner)
{
    const int64_t out_h = sh_pool2d_out_h(p), out_w = sh_pool2d_out_w(p);
    for (int64_t plane = 0; plane < p->n * p->c; plane++, x += p->in_h * p->in_w) {
        for (int64_t i = 0; i < out_h; i++) {
            for (int64_t j = 0; j < out_w; j++) {
                const window win = window_of(p, i, j);
                int64_t best = win.top * p->in_w + win.left;
                for (int64_t h = win.top; h < win.bottom; h++) {
                    for (int64_t v = win.left; v < win.right; v++) {
                        const int64_t at = h * p->in_w + v;
                        if (x[at] > x[best] || isnan(x[at])) {
                            best = at;
                        }
                    }
                }
                *y++ = x[best];
                *winner++ = (int32_t)best;
            }
        }
    }
}

static void NAME(max_backward)(const sh_pool2d *p, const T *grad_y, const int32_t *winner, T *grad_x)
{
    const int64_t plane_y = sh_pool2d_out_h(p) * sh_pool2d_out_w(p), plane_x = p->in_h * p->in_w;
    memset(grad_x, 0, sizeof(T) * (size_t)(p->n * p->c * plane_x));
    for (int64_t plane = 0; plane < p->n * p->c; plane++, grad_x += plane_x) {
        for (int64_t k = 0; k < plane_y; k++) {
            grad_x[*winner++] += *grad_y++;
        }
    }
}

static void NAME(avg_forward)(const sh_pool2d *p, const T *x, T *y)
{
    const int64_t out_h = sh_pool2d_out_h(p), out_w = sh_pool2d_out_w(p);
    for (int64_t plane = 0; plane < p->n * p->c; plane++, x += p->in_h * p->in_w) {
        for (int64_t i = 0; i < out_h; i++) {
            for (int64_t j = 0; j < out_w; j++) {
                const window win = window_of(p, i, j);
                T sum = 0;
                for (int64_t h = win.top; h < win.bottom; h++) {
                    for (int64_t v = win.left; v < win.right; v++) {
                        sum += x[h * p->in_w + v];
                    }
                }
                *y++ = sum / (T)win.count;
            }
        }
    }
}

static void NAME(avg_backward)(const sh_pool2d *p, const T *grad_y, T *grad_x)
{
    const int64_t out_h = sh_pool2d_out_h(p), out_w = sh_pool2d_out_w(p);
    memset(grad_x, 0, sizeof(T) * (size_t)(p->n * p->c * p->in_h * p->in_w));
    for (int64_t plane = 0; plane < p->n * p->c; plane++, grad_x += p->in_h * p->in_w) {
        for (int64_t i = 0; i < out_h; i++) {
            for (int64_t j = 0; j < out_w; j++) {
                const window win = window_of(p, i, j);
                const T g = *grad_y++ / (T)win.count;
                for (int64_t h = win.top; h < win.bottom; h++) {
                    for (int64_t v = win.left; v < win.right; v++) {
                        grad_x[h * p->in_w + v] += g;
                    }
                }
            }
        }
    }
}
