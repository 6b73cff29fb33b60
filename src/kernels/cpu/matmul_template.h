/* Matrix products of one dtype: included by matmul_fast.c once for f32 and once for f64, with T and NAME(x) defined.
 *
 * C is made in tiles of up to TILE_ROWS rows and up to WIDTH vectors, held in registers while k runs: an element of A is
 * broadcast, a row of a panel of B is loaded. A is read where it lies, in any strides, unless it is large and transposed; B is read where
 * it lies when its columns are contiguous and the panel is full, else packed into panels [k][width], filled up with zeros.
 *
 * For A·Bᵀ with both contiguous along k and few rows or columns, nothing is packed: tiles of dot products, vectors along k. That
 * is what linear of few samples is. For more rows B is transposed into its panels by squares that fit into registers. */

#define VL (VECTOR_BYTES / (int)sizeof(T)) /* elements of a vector */
#define PANEL (WIDTH * VL)
typedef T NAME(four) __attribute__((vector_size(4 * sizeof(T))));
typedef T NAME(vec) __attribute__((vector_size(VECTOR_BYTES)));
typedef T NAME(loose) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T)), may_alias));
#define vec NAME(vec)

static inline vec NAME(load)(const T *p)
{
    return (vec) * (const NAME(loose) *)p;
}

static inline void NAME(store)(T *p, vec x)
{
    *(NAME(loose) *)p = (NAME(loose))x;
}

/* What becomes of a tile of sums. */
typedef struct NAME(finish) {
    T *c;
    int64_t c_row;
    const T *bias; /* NULL: none, or not yet */
    T alpha;
    bool accumulate, relu;
    int64_t n; /* columns that are there */
} NAME(finish);
#define finish NAME(finish)

/* Whether the sums are stored, or added to what is there, and nothing else. */
static inline bool NAME(is_plain)(const finish *f)
{
    return f->alpha == 1 && !f->bias && !f->relu;
}

static inline vec NAME(load_edge)(const T *p, int64_t n)
{
    return n >= VL ? NAME(load)(p) : (vec)NAME(load_part)(p, n);
}

static inline void NAME(store_edge)(T *p, vec x, int64_t n)
{
    if (n >= VL) {
        NAME(store)(p, x);
    } else {
        NAME(store_part)(p, x, n);
    }
}

/* rows of sums, step apart and whole vectors, go to C. */
static __attribute__((noinline)) void NAME(finish_rows)(const finish *f, int64_t rows, const T *sums, int64_t step)
{
    typedef __typeof__((vec){0} < (vec){0}) bits;
    for (int64_t i = 0; i < rows; i++) {
        const T *sum = sums + i * step;
        T *c = f->c + i * f->c_row;
        for (int64_t j = 0; j < f->n; j += VL) {
            int64_t left = f->n - j;
            vec x = NAME(load)(sum + j) * f->alpha;
            if (f->bias) {
                x += NAME(load_edge)(f->bias + j, left);
            }
            if (f->accumulate) {
                x += NAME(load_edge)(c + j, left);
            }
            if (f->relu) {
                x = (vec)(~(x < (vec){0}) & (bits)x); /* NaN stays */
            }
            NAME(store_edge)(c + j, x, left);
        }
    }
}

/* The rows of a panel of B: step apart, but for the last one, which may stand elsewhere. */
typedef struct NAME(rows) {
    const T *at, *last;
    int64_t step;
} NAME(rows);
#define rows_of_b NAME(rows)

/* A tile of mr rows and nv vectors: both are constants where it is expanded, so the sums stay in registers. */
static inline __attribute__((always_inline)) void NAME(tile)(const int mr, const int nv, int64_t k, const T *a,
                                                             int64_t a_row, int64_t a_col, const rows_of_b *b,
                                                             const finish *f)
{
    vec sum[8][4];
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            sum[i][v] = (vec){0};
        }
    }
    const T *next = b->at, *last = b->last;
    int64_t b_row = b->step;
    for (int64_t p = 0; p < k; p++) {
        const T *at = p + 1 < k ? next : last;
        vec row[4];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            row[v] = NAME(load)(at + v * VL);
        }
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            T x = a[i * a_row];
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) {
                sum[i][v] += x * row[v];
            }
        }
        a += a_col;
        next += b_row;
    }
    if (!NAME(is_plain)(f)) {
        T sums[8 * PANEL] __attribute__((aligned(VECTOR_BYTES)));
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) {
                NAME(store)(sums + i * PANEL + v * VL, sum[i][v]);
            }
        }
        NAME(finish_rows)(f, mr, sums, PANEL);
        return;
    }
    int64_t left = f->n - (nv - 1) * VL; /* of the last vector */
    if (f->accumulate) {
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) {
                const T *c = f->c + i * f->c_row + v * VL;
                sum[i][v] += v < nv - 1 ? NAME(load)(c) : NAME(load_edge)(c, left);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            NAME(store_edge)(f->c + i * f->c_row + v * VL, sum[i][v], v < nv - 1 ? VL : left);
        }
    }
}

typedef void (*NAME(tile_fn))(int64_t k, const T *a, int64_t a_row, int64_t a_col, const rows_of_b *b, const finish *f);

#define TILE(mr, nv)                                                                                                   \
    static void NAME(tile_##mr##_##nv)(int64_t k, const T *a, int64_t a_row, int64_t a_col, const rows_of_b *b,        \
                                       const finish *f)                                                                \
    {                                                                                                                  \
        NAME(tile)(mr, nv, k, a, a_row, a_col, b, f);                                                                  \
    }
#define TILES(nv) TILE(1, nv) TILE(2, nv) TILE(3, nv) TILE(4, nv) TILE(5, nv) TILE(6, nv) TILE(7, nv) TILE(8, nv)
#define ROW_OF_TILES(nv)                                                                                               \
    {                                                                                                                  \
        NAME(tile_1_##nv), NAME(tile_2_##nv), NAME(tile_3_##nv), NAME(tile_4_##nv), NAME(tile_5_##nv),                 \
            NAME(tile_6_##nv), NAME(tile_7_##nv), NAME(tile_8_##nv)                                                    \
    }
TILES(1)
TILES(2)
#if WIDTH == 4
TILES(3)
TILE(1, 4)
TILE(2, 4)
TILE(3, 4)
TILE(4, 4)
TILE(5, 4)
TILE(6, 4)
#endif

static const NAME(tile_fn) NAME(tiles)[WIDTH][8] = {
    ROW_OF_TILES(1),
    ROW_OF_TILES(2),
#if WIDTH == 4
    ROW_OF_TILES(3),
    {NAME(tile_1_4), NAME(tile_2_4), NAME(tile_3_4), NAME(tile_4_4), NAME(tile_5_4), NAME(tile_6_4)},
#endif
};

/* One panel of B, for all rows m of A. */
static void NAME(panel)(int64_t m, int64_t k, const T *a, int64_t a_row, int64_t a_col, const rows_of_b *b, finish f)
{
    int nv = (int)((f.n + VL - 1) / VL);
    int64_t most = nv == WIDTH ? ROWS_WIDE : 8, blocks = (m + most - 1) / most;
    for (int64_t i = 0, block = 0; block < blocks; block++) {
        int64_t rows = m / blocks + (block < m % blocks);
        NAME(tile_fn) tile = NAME(tiles)[nv - 1][rows - 1];
        tile(k, a + i * a_row, a_row, a_col, b, &f);
        f.c += rows * f.c_row;
        i += rows;
    }
}

/* to[k][width] = columns of B that are contiguous along k, squares first; what squares do not cover one by one. */
static void NAME(pack_columns)(T *to, int64_t width, const T *b, int64_t b_col, int64_t k, int64_t n)
{
    int64_t columns = n / NAME(BLOCK) * NAME(BLOCK), rows = k / NAME(BLOCK) * NAME(BLOCK);
    for (int64_t j = 0; j < columns; j += NAME(BLOCK)) {
        for (int64_t p = 0; p < rows; p += NAME(BLOCK)) {
            NAME(transpose)(to + p * width + j, width, b + j * b_col + p, b_col);
        }
    }
    for (int64_t j = 0; j < n; j++) {
        for (int64_t p = j < columns ? rows : 0; p < k; p++) {
            to[p * width + j] = b[j * b_col + p];
        }
    }
}

/* to[k][width] = columns of B; the columns from n on are zeros. */
static void NAME(pack_b)(T *to, int64_t width, const T *b, int64_t b_row, int64_t b_col, int64_t k, int64_t n)
{
    if (b_col == 1) {
        for (int64_t p = 0; p < k; p++, to += width) {
            memcpy(to, b + p * b_row, (size_t)n * sizeof(T));
            memset(to + n, 0, (size_t)(width - n) * sizeof(T));
        }
        return;
    }
    if (n < width) {
        memset(to, 0, (size_t)(k * width) * sizeof(T));
    }
    if (b_row == 1) {
        NAME(pack_columns)(to, width, b, b_col, k, n);
        return;
    }
    for (int64_t p0 = 0; p0 < k; p0 += 16) { /* a cache line of each column, before the next */
        int64_t end = p0 + 16 < k ? p0 + 16 : k;
        for (int64_t j = 0; j < n; j++) {
            const T *from = b + j * b_col;
            for (int64_t p = p0; p < end; p++) {
                to[p * width + j] = from[p * b_row];
            }
        }
    }
}

/* A block of A as [k][m]: rows next to each other. */
static void NAME(pack_a)(T *to, const T *a, int64_t a_row, int64_t a_col, int64_t m, int64_t k)
{
    for (int64_t p = 0; p < k; p++) {
        if (a_row == 1) {
            memcpy(to + p * m, a + p * a_col, (size_t)m * sizeof(T));
            continue;
        }
        for (int64_t i = 0; i < m; i++) {
            to[p * m + i] = a[i * a_row + p * a_col];
        }
    }
}

/* How one product is cut. */
typedef struct NAME(cut) {
    int64_t kc, nc, mc;
    bool pack_b, pack_a;
} NAME(cut);

static NAME(cut) NAME(choose)(const sh_matmul_args *g)
{
    NAME(cut) cut = {.kc = g->k, .nc = g->n, .mc = g->m};
    if (g->k > 512) {
        int64_t parts = (g->k + 383) / 384;
        cut.kc = (g->k + parts - 1) / parts;
    }
    /* Columns that are not contiguous; or many rows of A, for which many pages of B would be visited again and again. */
    cut.pack_b = g->b_col != 1 || (g->m > 192 && g->k > 48 && g->b_row > 256);
    cut.pack_a = g->a_col != 1 && g->n >= 192 && g->k > 48 && g->m > 16;
    if (cut.pack_b) {
        int64_t panels = (int64_t)1 << 19;
        panels /= (cut.kc + 1) * PANEL * (int64_t)sizeof(T);
        cut.nc = PANEL * (g->m <= 96 || panels < 1 ? 1 : panels);
    }
    if (g->k <= 64 && g->k * cut.nc * (int64_t)sizeof(T) <= 1 << 20) {
        cut.mc = ROWS_WIDE; /* C is the greatest: write it row after row */
    } else if (cut.pack_a || g->m > 240) {
        cut.mc = 96;
    }
    return cut;
}

/* Columns and products of C that go through the caches together, for all rows; b points to the first of B. */
typedef struct NAME(slab) {
    const T *b;
    int64_t kc, nc;
    int64_t tail, tail_width; /* columns of a last panel that is not full, and whole vectors for them */
    bool tail_direct;         /* it is read where it lies, but for its last row, which is copied */
    T *packed;
} NAME(slab);
#define slab NAME(slab)

/* A vector that reaches beyond the end of a row reads the next one, which does no harm; only the last row has none. */
static void NAME(slab_init)(slab *s, const sh_matmul_args *g, bool pack)
{
    s->tail = s->nc % PANEL;
    s->tail_width = (s->tail + VL - 1) / VL * VL;
    s->tail_direct = !pack && s->kc > 0 && g->b_row + s->tail >= s->tail_width && g->b_row >= s->tail;
    for (int64_t j = 0; pack && j < s->nc; j += PANEL) {
        int64_t n = s->nc - j < PANEL ? s->nc - j : PANEL, width = n < PANEL ? s->tail_width : PANEL;
        NAME(pack_b)(s->packed + j * s->kc, width, s->b + j * g->b_col, g->b_row, g->b_col, s->kc, n);
    }
    if (!pack && s->tail % VL != 0) {
        int64_t rows = s->tail_direct ? 1 : s->kc;
        NAME(pack_b)
        (s->packed, s->tail_width, s->b + (s->kc - rows) * g->b_row + s->nc - s->tail, g->b_row, 1, rows, s->tail);
    }
}

static rows_of_b NAME(slab_panel)(const slab *s, const sh_matmul_args *g, bool pack, int64_t j)
{
    int64_t n = s->nc - j < PANEL ? s->nc - j : PANEL;
    rows_of_b rows = {.at = pack ? s->packed + j * s->kc : s->packed, .step = n < PANEL ? s->tail_width : PANEL};
    if (!pack && (n % VL == 0 || s->tail_direct)) {
        rows.at = s->b + j;
        rows.step = g->b_row;
    }
    rows.last = !pack && n % VL != 0 && s->tail_direct ? s->packed : rows.at + (s->kc - 1) * rows.step;
    return rows;
}

static void NAME(block)(const sh_matmul_args *g, const NAME(cut) * cut, const slab *s, T *packed_a, const T *a,
                        finish f)
{
    for (int64_t i = 0; i < g->m; i += cut->mc) {
        int64_t m = g->m - i < cut->mc ? g->m - i : cut->mc, a_row = g->a_row, a_col = g->a_col;
        const T *rows = a + i * a_row;
        if (cut->pack_a) {
            NAME(pack_a)(packed_a, rows, a_row, a_col, m, s->kc);
            rows = packed_a;
            a_row = 1;
            a_col = m;
        }
        for (int64_t j = 0; j < s->nc; j += PANEL) {
            rows_of_b panel = NAME(slab_panel)(s, g, cut->pack_b, j);
            finish here = f;
            here.c += i * f.c_row + j;
            here.bias = f.bias ? f.bias + j : NULL;
            here.n = s->nc - j < PANEL ? s->nc - j : PANEL;
            NAME(panel)(m, s->kc, rows, a_row, a_col, &panel, here);
        }
    }
}

/* ---- dot products ---- */

/* Four sums next to each other go to row i of C, from column j on: narrow vectors, because masks of wide ones are slow. */
static inline void NAME(finish_four)(const finish *f, int64_t i, int64_t j, NAME(four) x)
{
    typedef T loose __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));
    typedef __typeof__((NAME(four)){0} < (NAME(four)){0}) bits;
    T *c = f->c + i * f->c_row + j;
    x *= f->alpha;
    if (f->bias) {
        x += (NAME(four)) * (const loose *)(f->bias + j);
    }
    if (f->accumulate) {
        x += (NAME(four)) * (const loose *)c;
    }
    if (f->relu) {
        x = (NAME(four))(~(x < (NAME(four)){0}) & (bits)x); /* NaN stays */
    }
    *(loose *)c = (loose)x;
}

/* One step along k, of a whole vector or of the last part elements of a row: mr rows of A, nr columns of B. */
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
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++) {
            sum[i][j] += row[i] * column;
        }
    }
}

static inline __attribute__((always_inline)) void NAME(dots)(const int mr, const int nr, int64_t k, const T *a,
                                                             int64_t a_row, const T *b, int64_t b_col, const finish *f)
{
    vec sum[6][8];
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < nr; j++) {
            sum[i][j] = (vec){0};
        }
    }
    int64_t p = 0;
    for (; p + VL <= k; p += VL) {
        NAME(dots_step)(mr, nr, sum, a + p, a_row, b + p, b_col, VL);
    }
    if (p < k) {
        NAME(dots_step)(mr, nr, sum, a + p, a_row, b + p, b_col, k - p);
    }
    if (nr % 4 == 0) {
#pragma GCC unroll 6
        for (int i = 0; i < mr; i++) {
#pragma GCC unroll 2
            for (int j = 0; j < nr; j += 4) {
                NAME(finish_four)(f, i, j, (NAME(four))NAME(add_up_4)(&sum[i][j]));
            }
        }
        return;
    }
    T sums[6 * VL];
#pragma GCC unroll 6
    for (int i = 0; i < mr; i++) {
#pragma GCC unroll 3
        for (int j = 0; j < nr; j++) {
            sums[i * VL + j] = NAME(add_up)(sum[i][j]);
        }
    }
    NAME(finish_rows)(f, mr, sums, VL);
}

typedef void (*NAME(dots_fn))(int64_t k, const T *a, int64_t a_row, const T *b, int64_t b_col, const finish *f);

#define DOTS(mr, nr)                                                                                                   \
    static void NAME(dots_##mr##_##nr)(int64_t k, const T *a, int64_t a_row, const T *b, int64_t b_col,                \
                                       const finish *f)                                                                \
    {                                                                                                                  \
        NAME(dots)(mr, nr, k, a, a_row, b, b_col, f);                                                                  \
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

static void NAME(by_dots)(const sh_matmul_args *g, const T *a, const T *b, finish f)
{
    int64_t blocks = (g->m + DOT_ROWS - 1) / DOT_ROWS, wide = DOT_COLUMNS((g->m + blocks - 1) / blocks);
    for (int64_t j = 0, columns; j < g->n; j += columns) {
        int64_t left = g->n - j;
        columns = left >= wide ? wide : left > 4 ? 4 : left;
        for (int64_t i = 0, block = 0; block < blocks; block++) {
            int64_t rows = g->m / blocks + (block < g->m % blocks);
            finish here = f;
            here.c += i * f.c_row + j;
            here.bias = f.bias ? f.bias + j : NULL;
            here.n = columns;
            NAME(dots_fn) dots = NAME(dots_table)[columns - 1][rows - 1];
            dots(g->k, a + i * g->a_row, g->a_row, b + j * g->b_col, g->b_col, &here);
            i += rows;
        }
    }
}

/* ---- the whole ---- */

static void NAME(by_panels)(const sh_matmul_args *g, const NAME(cut) * cut, T *scratch, const T *a, const T *b,
                            finish whole)
{
    for (int64_t j = 0; j < g->n; j += cut->nc) {
        int64_t p = 0;
        do { /* once for k = 0 too */
            slab s = {.b = b + p * g->b_row + j * g->b_col, .packed = scratch + cut->mc * cut->kc};
            s.kc = g->k - p < cut->kc ? g->k - p : cut->kc;
            s.nc = g->n - j < cut->nc ? g->n - j : cut->nc;
            NAME(slab_init)(&s, g, cut->pack_b);
            bool last = p + s.kc >= g->k;
            finish f = whole;
            f.c += j;
            f.bias = last && whole.bias ? whole.bias + j : NULL;
            f.relu = last && whole.relu;
            f.accumulate = whole.accumulate || p > 0;
            NAME(block)(g, cut, &s, scratch, a + p * g->a_col, f);
            p += s.kc;
        } while (p < g->k);
    }
}

static shoal_err NAME(matmul)(sh_exec *exec, const sh_matmul_args *g)
{
    NAME(cut) cut = NAME(choose)(g);
    bool dots = g->a_col == 1 && g->b_row == 1 && (g->n <= 4 || g->m <= DOT_FEW(g->k));
    T *scratch = NULL;
    if (!dots) {
        int64_t columns = cut.pack_b ? cut.nc : PANEL;
        scratch = sh_exec_scratch(exec, (size_t)((cut.mc + columns) * (cut.kc + 1)) * sizeof(T));
        if (!scratch) {
            return SHOAL_ENOMEM;
        }
    }
    for (int64_t z = 0; z < g->batch; z++) {
        const T *a = (const T *)g->a + z * g->a_batch, *b = (const T *)g->b + z * g->b_batch;
        finish f = {.c = (T *)g->c + z * g->c_batch, .c_row = g->c_row, .bias = g->bias, .alpha = (T)g->alpha};
        f.accumulate = g->accumulate;
        f.relu = g->relu;
        if (dots) {
            NAME(by_dots)(g, a, b, f);
        } else {
            NAME(by_panels)(g, &cut, scratch, a, b, f);
        }
    }
    return SHOAL_OK;
}

#undef VL
#undef PANEL
#undef vec
#undef finish
#undef rows_of_b
#undef slab
#undef TILE
#undef TILES
#undef ROW_OF_TILES
#undef DOTS
#undef DOTS_OF
#undef ROW_OF_DOTS
