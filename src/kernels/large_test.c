/* Tests of sizes beyond what a GPU's kernels can count in 32 bits or put into one direction of a grid. On a GPU only:
 * they need several GiB, and a moment. */
#include "kernels/kernels_test.h"

/* Returns the GPU, or NULL where the test runs without one. */
static const sh_device *the_card(void)
{
    const sh_device *device = sh_mirror_device();
    if (device == NULL || device == sh_far_device() || sh_is_short()) {
        printf("not tested: large sizes\n");
        return NULL;
    }
    return device;
}

static void *taken(const sh_device *device, size_t size)
{
    void *p = device->alloc(size);
    ck_assert_msg(p != NULL, "%s", shoal_last_error_text());
    return p;
}

static int64_t number_at(const sh_device *device, const void *at)
{
    int64_t x;
    ck_assert_ok(device->read(&x, at, sizeof x));
    return x;
}

static uint8_t byte_at(const sh_device *device, const void *at)
{
    uint8_t x;
    ck_assert_ok(device->read(&x, at, sizeof x));
    return x;
}

/* Reduces a view of u8 to one number. */
static int64_t reduced(const sh_device *device, sh_reduce_op op, const sh_view *a)
{
    sh_view out = {.data = taken(device, sizeof(int64_t)), .ndim = a->ndim, .dtype = SHOAL_I64};
    for (int32_t d = 0; d < a->ndim; d++) {
        out.shape[d] = out.strides[d] = 1;
    }
    ck_assert_ok(device->kernels()->reduce->reduce(device->exec(), op, &out, a));
    int64_t x = number_at(device, out.data);
    device->free(out.data, sizeof(int64_t));
    return x;
}

START_TEST(an_array_of_more_than_2_to_31_elements)
{
    const sh_device *device = the_card();
    if (device == NULL) {
        return;
    }
    const int64_t n = (INT64_C(1) << 31) + 77;
    uint8_t *from = taken(device, (size_t)n), *to = taken(device, (size_t)n), nine = 9;
    const sh_elementwise_kernels *k = device->kernels()->elementwise;
    sh_view a = {.data = from, .shape = {n}, .strides = {1}, .ndim = 1, .dtype = SHOAL_U8}, b = a;
    b.data = to;
    ck_assert_ok(k->fill(device->exec(), &a, sh_scalar_int(1)));
    ck_assert_ok(device->write(from + n - 2, &nine, 1));
    ck_assert_ok(k->copy(device->exec(), &b, &a));
    ck_assert_ok(k->binary(device->exec(), SH_BINARY_ADD, &b, &b, &a));
    ck_assert_int_eq(reduced(device, SH_REDUCE_SUM, &b), 2 * (n + 8));
    ck_assert_int_eq(reduced(device, SH_REDUCE_ARGMAX, &b), n - 2);
    ck_assert_int_eq(byte_at(device, to + n - 1), 2);
    device->free(from, (size_t)n);
    device->free(to, (size_t)n);
}
END_TEST

/* Rows with a gap between them, so that they cannot be taken as one; each is beyond what one launch counts. */
START_TEST(rows_of_more_than_2_to_30_elements)
{
    const sh_device *device = the_card();
    if (device == NULL) {
        return;
    }
    const int64_t length = (INT64_C(1) << 30) + 48, apart = length + 16;
    uint8_t *data = taken(device, (size_t)(2 * apart));
    const sh_elementwise_kernels *k = device->kernels()->elementwise;
    sh_view all = {.data = data, .shape = {2 * apart}, .strides = {1}, .ndim = 1, .dtype = SHOAL_U8};
    sh_view rows = {.data = data, .shape = {2, length}, .strides = {apart, 1}, .ndim = 2, .dtype = SHOAL_U8};
    ck_assert_ok(k->fill(device->exec(), &all, sh_scalar_int(0)));
    ck_assert_ok(k->fill(device->exec(), &rows, sh_scalar_int(1)));
    ck_assert_int_eq(reduced(device, SH_REDUCE_SUM, &all), 2 * length);
    ck_assert_int_eq(reduced(device, SH_REDUCE_SUM, &rows), 2 * length);
    ck_assert_int_eq(byte_at(device, data + length), 0);
    ck_assert_int_eq(byte_at(device, data + apart + length - 1), 1);
    device->free(data, (size_t)(2 * apart));
}
END_TEST

/* More columns than a grid has blocks for. */
START_TEST(adding_by_index_to_nine_million_columns)
{
    const sh_device *device = the_card();
    if (device == NULL) {
        return;
    }
    const int64_t columns = 9 << 20;
    const int64_t index[] = {1, 0, 1};
    const sh_index_shape s = {.dtype = SHOAL_I32, .outer = columns, .rows = 2, .inner = 1, .count = 3};
    size_t table_size = (size_t)columns * 2 * sizeof(int32_t), in_size = (size_t)columns * 3 * sizeof(int32_t);
    int32_t *table = malloc(table_size), *in = malloc(in_size);
    for (int64_t i = 0; i < 3 * columns; i++) {
        in[i] = (int32_t)i;
    }
    memset(table, 0, table_size);
    void *there[] = {taken(device, table_size), taken(device, in_size), taken(device, sizeof index)};
    ck_assert_ok(device->write(there[0], table, table_size));
    ck_assert_ok(device->write(there[1], in, in_size));
    ck_assert_ok(device->write(there[2], index, sizeof index));
    ck_assert_ok(device->kernels()->index->add(device->exec(), &s, there[0], there[1], there[2]));
    ck_assert_ok(device->read(table, there[0], table_size));
    for (int64_t o = 0; o < columns; o++) {
        if (table[2 * o] != in[3 * o + 1] || table[2 * o + 1] != in[3 * o] + in[3 * o + 2]) {
            ck_abort_msg("column %lld: %d and %d", (long long)o, table[2 * o], table[2 * o + 1]);
        }
    }
    device->free(there[0], table_size);
    device->free(there[1], in_size);
    device->free(there[2], sizeof index);
    free(table);
    free(in);
}
END_TEST

/* A model of zeros gives every class the same probability. */
START_TEST(a_batch_of_70000_images)
{
    const sh_device *device = the_card();
    if (device == NULL || device->kernels()->fedavg_cnn == NULL) {
        return;
    }
    static const int64_t sizes[SH_FEDAVG_CNN_TENSORS] = {800, 32, 51200, 64, 512 * 3136, 512, 5120, 10};
    const int64_t batch = 70000;
    const sh_fedavg_cnn_kernels *k = device->kernels()->fedavg_cnn;
    struct {
        int64_t state, counts;
        double score[2];
        float loss;
        uint8_t labels[16];
    } host = {.counts = batch, .labels = {0, 3}}, *there = taken(device, sizeof host);
    size_t scratch_size = k->scratch_size(batch, 1), order_size = (size_t)batch * sizeof(int64_t);
    sh_fedavg_cnn_step s = {.clients = 1, .batch = batch, .state = &there->state, .counts = &there->counts};
    for (int t = 0; t < SH_FEDAVG_CNN_TENSORS; t++) {
        s.stride += (sizes[t] + 63) / 64 * 64;
    }
    size_t param_size = (size_t)s.stride * sizeof(float), pixels_size = 2 * 784;
    void *scratch = taken(device, scratch_size), *params = taken(device, param_size);
    void *pixels = taken(device, pixels_size), *order = taken(device, order_size);
    int64_t *zeros = calloc((size_t)s.stride, sizeof *zeros);
    ck_assert_ok(device->write(params, zeros, param_size));
    ck_assert_ok(device->write(pixels, zeros, pixels_size));
    for (int64_t i = 0; i < batch; i++) {
        zeros[i] = i % 2;
    }
    ck_assert_ok(device->write(order, zeros, order_size));
    ck_assert_ok(device->write(there, &host, sizeof host));
    float *param = params;
    for (int t = 0; t < SH_FEDAVG_CNN_TENSORS; param += (sizes[t] + 63) / 64 * 64, t++) {
        s.param[t] = param;
    }
    s.pixels = pixels;
    s.order = order;
    s.labels = there->labels;
    s.loss = &there->loss;
    s.score = there->score;
    ck_assert_ok(k->step(device->exec(), &s, scratch)); /* tests */
    s.score = NULL;
    ck_assert_ok(k->step(device->exec(), &s, scratch)); /* trains, with a learning rate of 0 */
    ck_assert_ok(device->read(&host, there, sizeof host));
    ck_assert_double_eq_tol(host.score[0], (double)batch * log(10), 1);
    ck_assert_double_eq(host.score[1], (double)batch / 2); /* the first class is right for half of them */
    ck_assert_float_eq_tol(host.loss, (float)log(10), 1e-3F);
    ck_assert_int_eq(host.state, batch);
    free(zeros);
    device->free(scratch, scratch_size);
    device->free(params, param_size);
    device->free(pixels, pixels_size);
    device->free(order, order_size);
    device->free(there, sizeof host);
}
END_TEST

KERNELS_SUITE("large", an_array_of_more_than_2_to_31_elements, rows_of_more_than_2_to_30_elements,
              adding_by_index_to_nine_million_columns, a_batch_of_70000_images)
