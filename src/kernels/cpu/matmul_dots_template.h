/* A·Bᵀ with both operands contiguous along k, by dot products: vectors along k, no packing.
 * Included by matmul_template.h. */

/* Shared by all tiles of one product. */
typedef struct NAME(dots_job) {
    const T *a, *b;
    int64_t a_row, b_col, k;
    const finish *f;
} NAME(dots_job);
#define dots_job NAME(dots_job)

/* Stores four adjacent sums in a row of C from column j on.
 * Uses narrow vectors, because masks of wide ones are slow. */
static inline void NAME(finish_four)(const finish *f, T *c, int64_t j, NAME(four) x)
{
    typedef T loose __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));
    typedef __typeof__((NAME(four)){0} < (NAME(four)){0}) bits;
    x *= f->alpha;
    if (f->bias) {
        x += (NAME(four)) * (const loose *)(f->bias + j);
    }
    if (f->accumulate) {
        x += (NAME(four)) * (const loose *)(c + j);
    }
    if (f->relu) {
        x = (NAME(four))(~(x < (NAME(four)){0}) & (bits)x); /* NaN stays NaN */
    }
    *(loose *)(c + j) = (loose)x;
}

static inline void NAME(finish_one)(const finish *f, T *c, int64_t j, T x)
{
    x *= f->alpha;
    x += f->bias ? f->bias[j] : 0;
    x += f->accumulate ? c[j] : 0;
    c[j] = f->relu && x < 0 ? 0 : x;
}

/* One step along k, by a whole vector or by the last part elements of a row, for mr rows of A and nr columns of B. */
static inline __attribute__((always_inline)) void NAME(dots_step)(const int mr, const int nr, vec sum[6][8], const T *a,
                                                                  int64_t a_row, const T *b, int64_t b_col,
                                                                  int64_t part)
{
    vec row[6];
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++) {
        row[i] = part == VL ? NAME(load)(a + i * a_row) : (vec)NAME(load_part)(a + i * a_row, part);
    }
#pragma GCC unroll 8
    for (int j = 0; j < nr; j++) {
        vec column = part == VL ? NAME(load)(b + j * b_col) : (vec)NAME(load_part)(b + j * b_col, part);
        if (mr > 1) {
            __asm__("" : "+v"(column)); /* load it once, not again for each multiplication */
        }
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++) {
            sum[i][j] += row[i] * column;
        }
    }
}

/* Computes rows i to i + mr - 1 and columns j to j + nr - 1 of C. */
static inline __attribute__((always_inline)) void NAME(dots)(const int mr, const int nr, const dots_job *d, int64_t i0,
                                                             int64_t j0)
{
    vec sum[6][8];
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < nr; j++) {
            sum[i][j] = (vec){0};
        }
    }
    const T *a = d->a + i0 * d->a_row, *b = d->b + j0 * d->b_col;
    int64_t p = 0;
    for (; p + VL <= d->k; p += VL) {
        NAME(dots_step)(mr, nr, sum, a + p, d->a_row, b + p, d->b_col, VL);
    }
    if (p < d->k) {
        NAME(dots_step)(mr, nr, sum, a + p, d->a_row, b + p, d->b_col, d->k - p);
    }
    const finish *f = d->f;
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++) {
        T *c = f->c + (i0 + i) * f->c_row;
        if (nr % 4 == 0) {
#pragma GCC unroll 2
            for (int j = 0; j < nr; j += 4) {
                NAME(finish_four)(f, c, j0 + j, (NAME(four))NAME(add_up_4)(&sum[i][j]));
            }
        } else {
#pragma GCC unroll 3
            for (int j = 0; j < nr; j++) {
                NAME(finish_one)(f, c, j0 + j, NAME(add_up)(sum[i][j]));
            }
        }
    }
}

typedef void (*NAME(dots_fn))(const dots_job *d, int64_t i, int64_t j);

#define DOTS(mr, nr)                                                                                                   \
    static void NAME(dots_##mr##_##nr)(const dots_job *d, int64_t i, int64_t j)                                        \
    {                                                                                                                  \
        NAME(dots)(mr, nr, d, i, j);                                                                                   \
    }
#define DOTS_OF(nr) DOTS(1, nr) DOTS(2, nr) DOTS(3, nr) DOTS(4, nr) DOTS(5, nr) DOTS(6, nr)
DOTS_OF(1)
DOTS_OF(2)
DOTS_OF(3)
DOTS_OF(4)
DOTS(1, 8)
DOTS(2, 8)
DOTS(3, 8)
#define ROW_OF_DOTS(nr)                                                                                                \
    {                                                                                                                  \
        NAME(dots_1_##nr), NAME(dots_2_##nr), NAME(dots_3_##nr), NAME(dots_4_##nr), NAME(dots_5_##nr),                 \
            NAME(dots_6_##nr)                                                                                          \
    }
static const NAME(dots_fn) NAME(dots_table)[8][6] = {
    ROW_OF_DOTS(1),
    ROW_OF_DOTS(2),
    ROW_OF_DOTS(3),
    ROW_OF_DOTS(4),
    [7] = {NAME(dots_1_8), NAME(dots_2_8), NAME(dots_3_8)},
};

static void NAME(by_dots)(const sh_matmul_args *g, const T *a, const T *b, const finish *f)
{
    dots_job d = {.a = a, .b = b, .a_row = g->a_row, .b_col = g->b_col, .k = g->k, .f = f};
    /* Blocks of nearly equal height; the first ones have one row more. Divisions would cost as much as a short tile. */
    int64_t blocks = (g->m + DOT_ROWS - 1) / DOT_ROWS, least = blocks == 1 ? g->m : g->m / blocks;
    int64_t larger = g->m - blocks * least, wide = DOT_COLUMNS(least + (larger > 0));
    for (int64_t j = 0, columns; j < g->n; j += columns) {
        int64_t left = g->n - j;
        columns = left >= wide ? wide : left > 4 ? 4 : left;
        for (int64_t i = 0, block = 0; block < blocks; block++) {
            int64_t rows = least + (block < larger);
            NAME(dots_table)[columns - 1][rows - 1](&d, i, j);
            i += rows;
        }
    }
}

#undef dots_job
#undef DOTS
#undef DOTS_OF
#undef ROW_OF_DOTS
