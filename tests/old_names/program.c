/* A program with every name of version 0.2 that has another name now. It compiles as C and as C++. */
#include <shoal/shoal.h>

#include <stdio.h>

static int wrong;

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "wrong: %s (last error: %s)\n", what, shoal_last_error_text());
        wrong = 1;
    }
}
#define MUST(condition) must((condition), #condition)

static bool see_tensor(const shoal_card_tensor *tensor, void *context)
{
    (void)context;
    return tensor->card != NULL;
}

static bool see_process(const shoal_ps_entry *entry, void *context)
{
    (void)context;
    return entry->card_held >= entry->card_used;
}

static shoal_err fail(int rank, const shoal_value *args)
{
    (void)args;
    return rank == 0 ? SHOAL_OK : shoal_fail(SHOAL_ECARD, "no card");
}

static void check_values(void)
{
    shoal_value *v =
        shoal_map("none", shoal_value_null(), "yes", shoal_value_bool(true), "n", 1, "large",
                  shoal_value_uint(UINT64_MAX), "half", 0.5, "text", "abc", "bytes", shoal_value_bytes("abc", 3),
                  "list", shoal_list(1, 2), "other", shoal_value_foreign(1, "abc", 3));
    const shoal_type types[] = {SHOAL_NULL,   SHOAL_BOOL,  SHOAL_INT,  SHOAL_UINT,   SHOAL_FLOAT,
                                SHOAL_STRING, SHOAL_BYTES, SHOAL_LIST, SHOAL_FOREIGN};
    MUST(shoal_value_type(v) == SHOAL_MAP && SHOAL_OBJECT != SHOAL_MAP);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        MUST(shoal_value_type(shoal_value_at(v, i)) == types[i]);
    }
    shoal_value_destroy(v);
}

static void check_ops(void)
{
    shoal_pool2d_options two = {{2, 2}, {0, 0}, {0, 0}};
    const shoal_pool2d_options *fixed = &two;
    shoal_tensor *x = shoal_ones(SHOAL_F32, SHOAL_SHAPE(1, 1, 4, 4)),
                 *y = shoal_zeros(SHOAL_F32, SHOAL_SHAPE(1, 1, 4, 4));
    MUST(shoal_tensor_size(shoal_max_pool2d(x, &two), 3) == 2);
    MUST(shoal_tensor_size(shoal_avg_pool2d(x, fixed), 3) == 2);
    MUST(shoal_tensor_size(shoal_max_pool2d(x, 2), 3) == 2); /* the new form */
    MUST(shoal_tensor_size(shoal_avg_pool2d(x, two.size[0]), 3) == 2);
    MUST(shoal_tensor_dtype(shoal_to(x, SHOAL_I64)) == SHOAL_I64);
    MUST(shoal_tensor_to(x, SHOAL_CPU) == x);
    MUST(shoal_copy_later_(x, y) == SHOAL_EINVAL); /* neither is pinned */
    MUST(shoal_tensor_ndim(shoal_sum(x, SHOAL_ALL, false)) == 0);
    MUST(shoal_tensor_ndim(shoal_mse_loss(x, y, SHOAL_NONE)) == 4);
    MUST(shoal_tensor_ndim(shoal_mse_loss(x, y, SHOAL_MEAN)) == 0 && shoal_mse_loss(x, y, SHOAL_SUM));
    shoal_tensor *flat = shoal_reshape(x, SHOAL_SHAPE(4, 4));
    shoal_sparse *coo = shoal_sparse_from_dense(flat, SHOAL_COO), *csr = shoal_sparse_from_dense(flat, SHOAL_CSR);
    MUST(shoal_sparse_layout(coo) == SHOAL_COO && shoal_sparse_layout(csr) == SHOAL_CSR);
    shoal_sparse_destroy(coo);
    shoal_sparse_destroy(csr);
    shoal_tensor_release(x);
    shoal_tensor_release(y);
    shoal_scope_release(0);
}

/* Without a GPU the calls fail; they must be the calls that they were. */
static void check_gpu(void)
{
    shoal_card_info info;
    shoal_card_memory memory;
    void *stream = NULL;
    int count = 0;
    shoal_err err = shoal_card_count(&count);
    MUST((err == SHOAL_OK) == (shoal_card_info_get(0, &info) == SHOAL_OK));
    MUST((err == SHOAL_OK) == (shoal_card_memory_get(&memory) == SHOAL_OK));
    MUST((err == SHOAL_OK) == (shoal_card_stream(&stream) == SHOAL_OK));
    MUST((err == SHOAL_OK) == (shoal_card_follow_stream(stream) == SHOAL_OK));
    MUST((err == SHOAL_OK) == (shoal_card_precede_stream(stream) == SHOAL_OK));
    MUST(shoal_card_wait() == SHOAL_OK);
    (void)shoal_card_trim();
    MUST(shoal_card_tensors_list(see_tensor, NULL) == SHOAL_OK);
    MUST(shoal_card_tensors_list_of("x", see_tensor, NULL) == SHOAL_ESTATE); /* this process is in a world */
    MUST(shoal_world_list(see_process, NULL) == SHOAL_OK);
    shoal_train_options job = {};
    job.card_share = 50;
    MUST(shoal_train_check(&job) == SHOAL_EINVAL); /* needs a GPU */
}

static void check_processes(void)
{
    shoal_process_options options = {};
    shoal_process *p;
    shoal_status status;
    for (int rank = 0; rank < 2; rank++) {
        options.rank = rank;
        MUST(shoal_process_start(fail, shoal_value_null(), &options, &p) == SHOAL_OK);
        MUST(shoal_process_join(p, SHOAL_FOREVER, &status) == SHOAL_OK);
        MUST(status.end == (rank == 0 ? SHOAL_RETURNED : SHOAL_FAILED) && status.end != SHOAL_RUNNING);
        MUST(rank == 0 || status.err == SHOAL_ECARD);
        shoal_process_destroy(p);
    }
    MUST(SHOAL_EXITED != SHOAL_KILLED);
}

int main(int argc, char **argv)
{
    if (shoal_init(&argc, &argv) != SHOAL_OK) {
        fprintf(stderr, "shoal_init: %s\n", shoal_last_error_text());
        return 1;
    }
    check_values();
    check_ops();
    check_gpu();
    check_processes();
    MUST(SHOAL_TRAIN != SHOAL_TEST);
    puts(wrong ? "wrong" : "good");
    return wrong;
}
