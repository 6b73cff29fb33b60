/* Tests of indexing: fast against reference on random indices, known values, and indices out of range. */
#include "kernels/kernels_test.h"

static const shoal_dtype all[] = {SHOAL_F32,  SHOAL_F64, SHOAL_I64, SHOAL_I32,
                                  SHOAL_BF16, SHOAL_F16, SHOAL_U8,  SHOAL_B8};

static void *any_elements(shoal_dtype dtype, int64_t n, uint64_t *seed)
{
    void *data = malloc((size_t)(n + 1) * shoal_dtype_size(dtype));
    for (int64_t i = 0; i < n; i++) {
        put_any(dtype, data, i, seed, 5);
    }
    return data;
}

START_TEST(rows_agree)
{
    for (uint64_t seed = 0; seed < (uint64_t)sh_repeats(1000); seed++) {
        uint64_t state = seed;
        sh_index_shape s = {.dtype = all[seed % 8], .outer = below(&state, 3), .rows = 1 + below(&state, 9)};
        s.inner = below(&state, 60);
        s.count = below(&state, 20);
        int64_t table_n = s.outer * s.rows * s.inner, in_n = s.outer * s.count * s.inner;
        int64_t *index = malloc((size_t)(s.count + 1) * sizeof *index);
        for (int64_t i = 0; i < s.count; i++) {
            index[i] = below(&state, s.rows);
        }
        void *table = any_elements(s.dtype, table_n, &state), *in = any_elements(s.dtype, in_n, &state);
        void *wanted = copied(s.dtype, in, in_n), *sums = copied(s.dtype, table, table_n);
        shoal_err adds = reference()->index->add(&(sh_exec){0}, &s, sums, in, index);
        ck_assert_int_eq(adds == SHOAL_OK, seed % 8 < 4);
        ck_assert_ok(reference()->index->select(&(sh_exec){0}, &s, wanted, table, index));
        FOR_FAST(k)
        {
            void *got = copied(s.dtype, in, in_n), *added = copied(s.dtype, table, table_n);
            ck_assert_ok(k->index->select(&(sh_exec){0}, &s, got, table, index));
            assert_close(s.dtype, got, wanted, in_n, 0, 1, "select", seed);
            ck_assert_int_eq(k->index->add(&(sh_exec){0}, &s, added, in, index), adds);
            assert_close(s.dtype, added, sums, table_n, 0, 1, "add", seed);
            free(got);
            free(added);
        }
        free(index);
        free(table);
        free(in);
        free(wanted);
        free(sums);
    }
}
END_TEST

typedef shoal_err (*move)(sh_exec *, int32_t, const sh_view *, const sh_view *, const sh_view *);

static move move_of(const sh_kernels *k, int which)
{
    return which == 0 ? k->index->gather : which == 1 ? k->index->scatter : k->index->scatter_add;
}

START_TEST(gather_and_scatter_agree)
{
    for (uint64_t seed = 0; seed < (uint64_t)sh_repeats(1000); seed++) {
        uint64_t state = seed;
        int which = (int)(seed % 3);
        shoal_dtype dtype = all[seed / 3 % (which == 2 ? 4 : 8)];
        int64_t shape[SH_MAX_DIMS], wide[SH_MAX_DIMS];
        int32_t ndim = 0;
        while (ndim == 0) {
            ndim = any_shape(&state, shape);
        }
        int32_t dim = (int32_t)below(&state, ndim);
        for (int32_t d = 0; d < ndim; d++) {
            wide[d] = d == dim ? 1 + below(&state, 9) : shape[d] + below(&state, 2);
        }
        block index = block_make(SHOAL_I64, ndim, shape, true, &state, 1),
              narrow = block_make(dtype, ndim, shape, false, &state, 2);
        block broad = block_make(dtype, ndim, wide, false, &state, 2);
        for (int64_t i = 0; i < index.elements; i++) {
            ((int64_t *)index.view.data)[i] = below(&state, wide[dim]);
        }
        block *out = which == 0 ? &narrow : &broad, *in = which == 0 ? &broad : &narrow, wanted = block_copy(out);
        ck_assert_ok(move_of(reference(), which)(&(sh_exec){0}, dim, &wanted.view, &in->view, &index.view));
        FOR_FAST(k)
        {
            block got = block_copy(out);
            ck_assert_ok(move_of(k, which)(&(sh_exec){0}, dim, &got.view, &in->view, &index.view));
            assert_close(dtype, got.view.data, wanted.view.data, wanted.elements, 0, 1, "gather or scatter", seed);
            block_free(&got);
        }
        block_free(&index);
        block_free(&narrow);
        block_free(&broad);
        block_free(&wanted);
    }
}
END_TEST

START_TEST(known_values)
{
    FOR_ALL(k)
    {
        float table[] = {1, 2, 3, 4, 5, 6}, out[6], add[] = {10, 20, 30, 40, 50, 60};
        int64_t index[] = {2, 0, 2};
        sh_index_shape s = {.dtype = SHOAL_F32, .outer = 1, .rows = 3, .inner = 2, .count = 3};
        ck_assert_ok(k->index->select(&(sh_exec){0}, &s, out, table, index));
        ck_assert_mem_eq(out, ((float[]){5, 6, 1, 2, 5, 6}), sizeof out);
        ck_assert_ok(k->index->add(&(sh_exec){0}, &s, table, add, index));
        ck_assert_mem_eq(table, ((float[]){31, 42, 3, 4, 65, 86}), sizeof table);
        int64_t columns[] = {1, 0, 0, 0, 1, 1}, hot[6];
        sh_view a = matrix(table, 3, 2, SHOAL_F32), to = matrix(out, 3, 2, SHOAL_F32),
                at = matrix(columns, 3, 2, SHOAL_I64);
        ck_assert_ok(k->index->gather(&(sh_exec){0}, 1, &to, &a, &at));
        ck_assert_mem_eq(out, ((float[]){42, 31, 3, 3, 86, 86}), sizeof out);
        ck_assert_ok(k->index->scatter(&(sh_exec){0}, 1, &a, &to, &at));
        ck_assert_mem_eq(table, ((float[]){31, 42, 3, 4, 65, 86}), sizeof table);
        ck_assert_ok(k->index->scatter_add(&(sh_exec){0}, 1, &a, &to, &at));
        ck_assert_mem_eq(table, ((float[]){62, 84, 9, 4, 65, 258}), sizeof table);
        ck_assert_ok(k->index->one_hot(&(sh_exec){0}, SHOAL_I64, hot, index, 2, 3));
        ck_assert_mem_eq(hot, ((int64_t[]){0, 0, 1, 1, 0, 0}), sizeof hot);
        ck_assert_err(k->index->one_hot(&(sh_exec){0}, SHOAL_F16, hot, index, 2, 3), SHOAL_EINVAL);
    }
}
END_TEST

START_TEST(an_index_out_of_range_is_named_and_nothing_written)
{
    FOR_ALL(k)
    {
        float table[] = {1, 2, 3}, out[] = {7, 7, 7};
        for (int i = 0; i < 2; i++) {
            int64_t index[] = {0, 1, i ? -1 : 3};
            sh_index_shape s = {.dtype = SHOAL_F32, .outer = 1, .rows = 3, .inner = 1, .count = 3};
            sh_view a = matrix(table, 1, 3, SHOAL_F32), to = matrix(out, 1, 3, SHOAL_F32),
                    at = matrix(index, 1, 3, SHOAL_I64);
            if (is_card(k)) {
                ck_assert_ok(k->index->select(&(sh_exec){0}, &s, out, table, index));
                ck_assert(out[0] == 1 && out[1] == 2 && out[2] == 0);
                ck_assert_ok(k->index->gather(&(sh_exec){0}, 1, &to, &a, &at));
                ck_assert(out[0] == 1 && out[1] == 2 && out[2] == 0);
                out[2] = 7;
                ck_assert_ok(k->index->scatter(&(sh_exec){0}, 1, &to, &a, &at));
                ck_assert(out[0] == 1 && out[1] == 2 && out[2] == 7);
                ck_assert_ok(k->index->scatter_add(&(sh_exec){0}, 1, &to, &a, &at));
                ck_assert_ok(k->index->add(&(sh_exec){0}, &s, out, table, index));
                ck_assert(out[0] == 3 && out[1] == 6 && out[2] == 7);
                continue;
            }
            ck_assert_err(k->index->select(&(sh_exec){0}, &s, out, table, index), SHOAL_EINVAL);
            ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), i ? "index -1" : "index 3"));
            ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "bound is 3"));
            ck_assert_err(k->index->add(&(sh_exec){0}, &s, out, table, index), SHOAL_EINVAL);
            ck_assert_err(k->index->gather(&(sh_exec){0}, 1, &to, &a, &at), SHOAL_EINVAL);
            ck_assert_err(k->index->scatter(&(sh_exec){0}, 1, &to, &a, &at), SHOAL_EINVAL);
            ck_assert_err(k->index->scatter_add(&(sh_exec){0}, 1, &to, &a, &at), SHOAL_EINVAL);
            ck_assert_err(k->index->one_hot(&(sh_exec){0}, SHOAL_F32, out, index, 3, 1), SHOAL_EINVAL);
            ck_assert(out[0] == 7 && out[1] == 7 && out[2] == 7);
        }
    }
}
END_TEST

KERNELS_SUITE("index", rows_agree, gather_and_scatter_agree, known_values,
              an_index_out_of_range_is_named_and_nothing_written)
