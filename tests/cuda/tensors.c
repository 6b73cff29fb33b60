/* What works on a tensor of the CPU works on one of a device whose memory the host cannot read: files, text, numbers,
 * gradients, modules, optimisers. The device is tests/harness/far_device.h, or the card with SHOAL_TEST_CARD. */
#include "autograd/op.h"
#include "device/cuda.h"
#include "nn/module.h"
#include "tests/harness/cuda_mirror.h"
#include "tests/harness/far_device.h"
#include "tests/harness/runner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const sh_device *there(void)
{
    const sh_device *card = sh_mirror_device();
    return card ? card : sh_far_device();
}

/* The scope owns both. */
static shoal_tensor *counted(shoal_dtype dtype, int64_t rows, int64_t columns)
{
    shoal_tensor *t =
        shoal_reshape(shoal_scoped(shoal_arange(dtype, 0, (double)(rows * columns), 1)), SHOAL_SHAPE(rows, columns));
    ck_assert_ptr_nonnull(t);
    return t;
}

static shoal_tensor *moved(shoal_tensor *t)
{
    shoal_tensor *far = sh_op_to_device(t, there());
    ck_assert_msg(far != NULL, "%s", shoal_last_error_text());
    ck_assert_ptr_eq(sh_tensor_device_of(far), there());
    return far;
}

static double item(shoal_tensor *t)
{
    double x = 0;
    ck_assert_ok(shoal_item(t, &x));
    return x;
}

START_TEST(elements_go_there_and_back)
{
    for (int dtype = 0; dtype < SHOAL_DTYPES; dtype++) {
        shoal_tensor *t = counted((shoal_dtype)dtype, 3, 5), *far = moved(t);
        ck_assert(shoal_tensor_equal(t, far));
        ck_assert(shoal_tensor_equal(moved(shoal_transpose(t, 0, 1)), shoal_transpose(far, 0, 1)));
        ck_assert_ptr_eq(sh_op_to_device(far, there()), far);
        shoal_tensor *back = sh_op_to_device(shoal_slice(far, 1, 1, 5, 2), &sh_device_cpu);
        ck_assert(shoal_tensor_equal(back, shoal_slice(t, 1, 1, 5, 2)));
        ck_assert_ptr_null(shoal_tensor_data(far));
        ck_assert_ptr_nonnull(shoal_tensor_data(back));
    }
    shoal_scope_release(0);
}
END_TEST

START_TEST(copy_in_place_goes_between_devices)
{
    shoal_tensor *t = counted(SHOAL_F32, 3, 4), *far = moved(shoal_scoped(shoal_zeros(SHOAL_F64, SHOAL_SHAPE(3, 4))));
    ck_assert_ptr_nonnull(shoal_copy_(far, t)); /* another dtype */
    ck_assert(shoal_tensor_close(far, t, 0, 0));
    ck_assert_ptr_nonnull(shoal_copy_(shoal_transpose(far, 0, 1), shoal_select(t, 1, 2))); /* rows repeated, no order */
    double x;
    ck_assert_ok(shoal_tensor_at(far, 2, (int64_t[]){1, 3}, &x));
    ck_assert(x == 6);
    ck_assert_ptr_nonnull(shoal_copy_(shoal_select(t, 0, 0), shoal_select(far, 0, 1)));
    ck_assert_ok(shoal_tensor_at(t, 2, (int64_t[]){0, 2}, &x));
    ck_assert(x == 6);
    shoal_scope_release(0);
}
END_TEST

START_TEST(gradients_flow_across)
{
    shoal_tensor *x = shoal_full(SHOAL_F32, 3, SHOAL_SHAPE(2, 2)), *w = shoal_tensor_retain(moved(x));
    ck_assert_ok(shoal_tensor_set_requires_grad(x, true));
    ck_assert_ok(shoal_tensor_set_requires_grad(w, true));
    shoal_tensor *far = shoal_mul(moved(x), w), *out = shoal_clone(sh_op_to_device(far, &sh_device_cpu));
    ck_assert_ok(shoal_backward(shoal_sum(shoal_square(out), SHOAL_ALL_DIMS, false)));
    ck_assert_ptr_eq(sh_tensor_device_of(shoal_tensor_grad(x)), &sh_device_cpu);
    ck_assert_ptr_eq(sh_tensor_device_of(shoal_tensor_grad(w)), there());
    ck_assert(item(shoal_mean(shoal_tensor_grad(x), SHOAL_ALL_DIMS, false)) == 54); /* 2 · 9 · 3 */
    ck_assert(item(shoal_mean(shoal_tensor_grad(w), SHOAL_ALL_DIMS, false)) == 54);
    /* a copy in place into a tensor over there */
    shoal_tensor *to = moved(shoal_scoped(shoal_zeros(SHOAL_F32, SHOAL_SHAPE(2, 2))));
    shoal_zero_(shoal_tensor_grad(x));
    ck_assert_ok(shoal_backward(shoal_sum(shoal_copy_(shoal_clone(to), x), SHOAL_ALL_DIMS, false)));
    ck_assert(item(shoal_sum(shoal_tensor_grad(x), SHOAL_ALL_DIMS, false)) == 4);
    shoal_tensor_release(x);
    shoal_tensor_release(w);
    shoal_scope_release(0);
}
END_TEST

START_TEST(numbers_and_text)
{
    shoal_tensor *t = counted(SHOAL_F32, 2, 3), *far = moved(t);
    char near_text[200], far_text[200];
    size_t length = shoal_tensor_format(t, near_text, sizeof near_text);
    (void)snprintf(near_text + length, sizeof near_text - length, ", %s", there()->name);
    (void)shoal_tensor_format(far, far_text, sizeof far_text);
    ck_assert_str_eq(near_text, far_text);
    ck_assert(item(shoal_select(shoal_select(far, 0, 1), 0, 2)) == 5);
    float column[2];
    ck_assert_ok(shoal_tensor_read(shoal_select(far, 1, 1), column, sizeof column));
    ck_assert(column[0] == 1 && column[1] == 4);
    ck_assert(shoal_tensor_close(shoal_mul_scalar(far, 2), shoal_add(t, t), 0, 0));
    shoal_tensor *like = shoal_zeros_like(far);
    ck_assert_ptr_eq(sh_tensor_device_of(like), there());
    shoal_tensor_release(like);
    shoal_scope_release(0);
}
END_TEST

/* The same seed gives the same numbers on both devices. */
START_TEST(random_fills)
{
    for (int kind = 0; kind < 4; kind++) {
        shoal_tensor *made[2];
        for (int side = 0; side < 2; side++) {
            shoal_tensor *t = shoal_scoped(shoal_zeros(kind == 3 ? SHOAL_I32 : SHOAL_F32, SHOAL_SHAPE(5, 7)));
            t = side ? moved(t) : t;
            shoal_manual_seed(3);
            made[side] = kind == 0   ? shoal_uniform_(t, -1, 1)
                         : kind == 1 ? shoal_normal_(t, 0, 1)
                         : kind == 2 ? shoal_bernoulli_(shoal_transpose(t, 0, 1), 0.5)
                                     : shoal_randint_(t, 3, 90);
            ck_assert_ptr_nonnull(made[side]);
        }
        ck_assert(kind == 1 ? shoal_tensor_close(made[0], made[1], 1e-5, 1e-6) : shoal_tensor_equal(made[0], made[1]));
    }
    shoal_scope_release(0);
}
END_TEST

static void in_folder(char path[80], const char *name)
{
    static char folder[] = "/tmp/shoal-far-XXXXXX";
    static bool made;
    made = made || mkdtemp(folder);
    ck_assert(made);
    (void)snprintf(path, 80, "%s%s%s", folder, *name ? "/" : "", name);
}

START_TEST(files)
{
    char weights[80], npy[80], folder[80];
    in_folder(weights, "w.safetensors");
    in_folder(npy, "t.npy");
    in_folder(folder, "");
    shoal_module *m = shoal_linear_create(4, 3, true), *other = shoal_linear_create(4, 3, true);
    ck_assert_ok(sh_module_to(m, there()));
    ck_assert_ok(shoal_weights_write(weights, m));
    ck_assert_ok(shoal_weights_read(weights, other));
    ck_assert(shoal_tensor_equal(shoal_module_get(m, "weight"), shoal_module_get(other, "weight")));
    ck_assert_ptr_nonnull(shoal_module_get(m, "bias"));
    shoal_no_grad_begin();
    ck_assert_ptr_nonnull(shoal_fill_(shoal_module_get(m, "weight"), 1));
    shoal_no_grad_end();
    ck_assert_ok(shoal_weights_read(weights, m));
    ck_assert_ptr_eq(sh_tensor_device_of(shoal_module_get(m, "weight")), there());
    ck_assert(shoal_tensor_equal(shoal_module_get(m, "weight"), shoal_module_get(other, "weight")));
    shoal_tensor *t = counted(SHOAL_I64, 3, 4);
    ck_assert_ok(shoal_npy_write(npy, shoal_transpose(moved(t), 0, 1)));
    shoal_tensor *read = shoal_npy_read(npy);
    ck_assert(shoal_tensor_equal(read, shoal_transpose(t, 0, 1)));
    shoal_tensor_release(read);
    shoal_module_destroy(m);
    shoal_module_destroy(other);
    shoal_scope_release(0);
    ck_assert(unlink(weights) == 0 && unlink(npy) == 0 && rmdir(folder) == 0);
}
END_TEST

START_TEST(dlpack_names_the_device)
{
    shoal_tensor *far = moved(counted(SHOAL_F32, 3, 4));
    shoal_dlpack *pack;
    ck_assert_ok(shoal_tensor_to_dlpack(shoal_select(far, 1, 2), 0, &pack));
    if (there() == &sh_device_cuda) {
        ck_assert_int_eq(pack->tensor.device.type, SHOAL_DLPACK_CUDA);
    }
    ck_assert_ptr_eq(pack->tensor.data, far->storage->data);
    ck_assert_err(sh_storage_move(far->storage, &sh_device_cpu), SHOAL_ESTATE); /* its address is lent */
    pack->deleter(pack);
    ck_assert_ok(sh_storage_move(far->storage, &sh_device_cpu));
    shoal_scope_release(0);
}
END_TEST

START_TEST(sparse_tensors)
{
    shoal_tensor *t = counted(SHOAL_F32, 3, 4), *far = moved(t);
    for (int layout = SHOAL_LAYOUT_COO; layout <= SHOAL_LAYOUT_CSR; layout++) {
        shoal_sparse *s = shoal_sparse_from_dense(far, (shoal_layout)layout);
        ck_assert_msg(s != NULL, "%s", shoal_last_error_text());
        ck_assert_ptr_eq(sh_tensor_device_of(shoal_sparse_values(s)), there());
        shoal_tensor *dense = shoal_sparse_to_dense(s);
        ck_assert_ptr_eq(sh_tensor_device_of(dense), there());
        ck_assert(shoal_tensor_equal(dense, t));
        shoal_tensor_release(dense);
        shoal_sparse_destroy(s);
    }
    shoal_scope_release(0);
}
END_TEST

/* One step of a model from the same start on both devices. Returns the loss. */
static double step(shoal_module *m, shoal_optimizer *o, const sh_device *device)
{
    shoal_manual_seed(5);
    shoal_tensor *x = shoal_uniform_(shoal_scoped(shoal_empty(SHOAL_F32, SHOAL_SHAPE(4, 1, 28, 28))), 0, 1);
    shoal_tensor *y = shoal_scoped(shoal_from_data(SHOAL_I64, (int64_t[]){1, 9, 0, 4}, SHOAL_SHAPE(4)));
    shoal_tensor *out = shoal_module_forward(m, sh_op_to_device(x, device));
    shoal_tensor *loss = shoal_nll_loss(out, sh_op_to_device(y, device));
    ck_assert_msg(loss != NULL, "%s", shoal_last_error_text());
    double number = item(loss);
    shoal_module_zero_grad(m);
    ck_assert_ok(shoal_backward(loss));
    ck_assert_ok(shoal_clip_grad_norm(m, 1, NULL));
    ck_assert_ok(shoal_optimizer_step(o));
    shoal_scope_release(0);
    return number;
}

static shoal_optimizer *optimizer_of(shoal_module *m, int kind)
{
    return kind == 0   ? shoal_sgd_create_with(m, &(shoal_sgd_options){.lr = 0.1, .momentum = 0.9})
           : kind == 1 ? shoal_adam_create_with(m, &(shoal_adam_options){.lr = 0.01})
                       : shoal_rmsprop_create_with(m, &(shoal_rmsprop_options){.lr = 0.01});
}

/* The module moves in the middle: its optimiser was made before, and goes on with its state. */
START_TEST(every_model_trains_over_there)
{
    const char *name = shoal_model_names()[_i];
    shoal_manual_seed(1);
    shoal_module *near = shoal_model_create(name), *far = shoal_model_create(name);
    ck_assert_ok(shoal_module_copy(far, near));
    shoal_optimizer *a = optimizer_of(near, _i % 3), *b = optimizer_of(far, _i % 3);
    for (int i = 0; i < 4; i++) {
        if (i == 2) {
            ck_assert_ok(sh_module_to(far, there()));
        }
        double wanted = step(near, a, &sh_device_cpu), got = step(far, b, i < 2 ? &sh_device_cpu : there());
        ck_assert_msg(fabs(got - wanted) < 2e-3 * (1 + fabs(wanted)), "%s, step %d: %.9g, not %.9g", name, i, got,
                      wanted);
    }
    ck_assert_ok(sh_module_to(far, &sh_device_cpu));
    ck_assert(fabs(step(far, b, &sh_device_cpu) - step(near, a, &sh_device_cpu)) < 1e-2);
    shoal_optimizer_destroy(a);
    shoal_optimizer_destroy(b);
    shoal_module_destroy(near);
    shoal_module_destroy(far);
}
END_TEST

START_TEST(parameters_that_share_memory_still_do)
{
    shoal_module *m = shoal_sequential(shoal_linear_create(3, 3, false), shoal_relu_create());
    shoal_tensor *w = shoal_module_get(m, "0.weight");
    shoal_tensor *view = shoal_tensor_retain(shoal_detach(w));
    ck_assert_ok(shoal_tensor_share(w));
    uint64_t id = shoal_tensor_storage_id(w);
    ck_assert_ok(sh_module_to(m, there()));
    ck_assert_ptr_eq(sh_tensor_device_of(view), there());
    ck_assert(shoal_tensor_storage_id(w) != id);
    ck_assert_ptr_nonnull(shoal_fill_(view, 7));
    ck_assert(item(shoal_max(w, SHOAL_ALL_DIMS, false)) == 7);
    shoal_tensor_release(view);
    shoal_module_destroy(m);
    shoal_scope_release(0);
}
END_TEST

START_TEST(mixed_devices_are_refused)
{
    shoal_tensor *t = counted(SHOAL_F32, 2, 2), *far = moved(t);
    ck_assert_ptr_null(shoal_matmul(t, far));
    ck_assert_int_eq(shoal_last_error(), SHOAL_EINVAL);
    char wanted[100];
    (void)snprintf(wanted, sizeof wanted, "matmul: the tensors are on different devices, cpu and %s", there()->name);
    ck_assert_str_eq(shoal_last_error_text(), wanted);
    ck_assert_err(shoal_tensor_set_grad(t, far), SHOAL_EINVAL);
    ck_assert_ptr_null(shoal_tensor_dataset(far, far));
    ck_assert_ok(shoal_tensor_set_requires_grad(t, true));
    ck_assert_err(shoal_backward_with(shoal_square(t), far, false), SHOAL_EINVAL);
    ck_assert_err(shoal_tensor_copy_async(far, t), SHOAL_EINVAL);
    shoal_scope_release(0);
}
END_TEST

static shoal_tensor *pinned(int64_t count)
{
    sh_shape s;
    ck_assert_ok(sh_shape_init(&s, SHOAL_F32, SHOAL_SHAPE(count)));
    sh_storage *storage = sh_storage_create_pinned(there(), (size_t)count * sizeof(float));
    ck_assert_ptr_nonnull(storage);
    shoal_tensor *t = sh_tensor_over(storage, &s);
    sh_storage_release(storage);
    return t;
}

START_TEST(pinned_tensors_are_copied_later)
{
    shoal_tensor *from = pinned(1000), *to = pinned(1000), *far = moved(from);
    for (int i = 0; i < 1000; i++) {
        ((float *)shoal_tensor_data(from))[i] = (float)i;
    }
    ck_assert_ok(shoal_tensor_copy_async(far, from));
    ck_assert_ok(shoal_tensor_copy_async(to, shoal_mul_scalar(far, 2)));
    ck_assert_ok(there()->wait());
    for (int i = 0; i < 1000; i++) {
        ck_assert(((float *)shoal_tensor_data(to))[i] == (float)(2 * i));
    }
    ck_assert_err(shoal_tensor_copy_async(far, shoal_narrow(from, 0, 1, 2)), SHOAL_EINVAL);
    ck_assert_ok(shoal_tensor_share(from)); /* moves to the heap */
    ck_assert(((float *)shoal_tensor_data(from))[999] == 999);
    ck_assert_err(shoal_tensor_copy_async(far, from), SHOAL_EINVAL);
    shoal_tensor_release(from);
    shoal_tensor_release(to);
    shoal_scope_release(0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("cuda/tensors");
    TCase *tc = tcase_create("tensors");
    tcase_set_timeout(tc, SH_TEST_SECONDS);
    tcase_add_checked_fixture(tc, sh_leaks_begin, sh_leaks_end);
    const TTest *const tests[] = {
        elements_go_there_and_back,
        copy_in_place_goes_between_devices,
        gradients_flow_across,
        numbers_and_text,
        random_fills,
        files,
        dlpack_names_the_device,
        sparse_tensors,
        mixed_devices_are_refused,
        pinned_tensors_are_copied_later,
        parameters_that_share_memory_still_do,
    };
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        tcase_add_test(tc, tests[i]);
    }
    int models = 0;
    while (shoal_model_names()[models]) {
        models++;
    }
    tcase_add_loop_test(tc, every_model_trains_over_there, 0, models);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
