/* Matrix products of one dtype. matmul_fast.c includes it for f32 and for f64, with T and NAME(x) defined.
 *
 * C is computed in tiles of up to TILE_ROWS rows and up to WIDTH vectors, which stay in registers while k runs: an
 * element of A is broadcast, a row of a panel of B is loaded. A is read in place, with any strides, unless it is large
 * and transposed. B is read in place if its rows are contiguous and the panel is full; otherwise it is packed into
 * panels [k][width], padded with zeros.
 *
 * Linear layers compute A·Bᵀ with both contiguous along k, where B is the weight as modules store it. Packing B would
 * be expensive if A has few rows. So products of very few rows or columns use dot products (matmul_dots_template.h),
 * and those of some more rows use the transposed product, which packs A instead (matmul_turned_template.h). For many
 * rows, B is transposed into its panels in squares that fit into registers. */

#define VL (VECTOR_BYTES / (int)sizeof(T)) /* elements in a vector */
#define PANEL (WIDTH * VL)
typedef T NAME(four) __attribute__((vector_size(4 * sizeof(T))));
typedef T NAME(vec) __attribute__((vector_size(VECTOR_BYTES)));
typedef T NAME(loose) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(T)), may_alias));
typedef T NAME(square) __attribute__((vector_size(32))); /* a row of a square that is transposed in registers */
#define vec NAME(vec)

static inline vec NAME(load)(const T *p)
{
    return (vec) * (const NAME(loose) *)p;
}

static inline void NAME(store)(T *p, vec x)
{
    *(NAME(loose) *)p = (NAME(loose))x;
}

/* What to do with a finished tile of sums. */
typedef struct NAME(finish) {
    T *c;
    int64_t c_row;
    const T *bias; /* NULL if there is none, or if it comes later */
    T alpha;
    bool accumulate, relu;
    int64_t n; /* columns that exist */
} NAME(finish);
#define finish NAME(finish)

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

typedef __typeof__((vec){0} < (vec){0}) NAME(bits);

static inline vec NAME(cut_off)(vec x)
{
    return (vec)(~(x < (vec){0}) & (NAME(bits))x); /* NaN stays NaN */
}

/* The rows of a panel of B. They are step apart, except the last one, which may be elsewhere. */
typedef struct NAME(rows) {
    const T *at, *last;
    int64_t step;
} NAME(rows);
#define rows_of_b NAME(rows)

/* Stores a tile of sums from registers in C. Each step is a pass over all sums;
 * most products need none of the steps. */
static inline __attribute__((always_inline)) void NAME(finish_tile)(const int mr, const int nv, vec sum[8][4],
                                                                    const finish *f)
{
    int64_t left = f->n - (nv - 1) * VL; /* columns in the last vector */
#define EACH_SUM(work)                                                                                                 \
    _Pragma("GCC unroll 8") for (int i = 0; i < mr; i++)                                                               \
    {                                                                                                                  \
        _Pragma("GCC unroll 4") for (int v = 0; v < nv; v++)                                                           \
        {                                                                                                              \
            T *c = f->c + i * f->c_row + v * VL;                                                                       \
            int64_t n = v < nv - 1 ? VL : left;                                                                        \
            (void)c, (void)n;                                                                                          \
            work;                                                                                                      \
        }                                                                                                              \
    }
    if (f->alpha != 1) {
        EACH_SUM(sum[i][v] *= f->alpha)
    }
    if (f->bias) {
        vec bias[4];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            bias[v] = NAME(load_edge)(f->bias + v * VL, v < nv - 1 ? VL : left);
        }
        EACH_SUM(sum[i][v] += bias[v])
    }
    if (f->accumulate) {
        EACH_SUM(sum[i][v] += NAME(load_edge)(c, n))
    }
    if (f->relu) {
        EACH_SUM(sum[i][v] = NAME(cut_off)(sum[i][v]))
    }
    EACH_SUM(NAME(store_edge)(c, sum[i][v], n))
#undef EACH_SUM
}

/* Computes a tile of mr rows and nv vectors. Both are constants where this is inlined,
 * so the sums stay in registers. */
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
    NAME(finish_tile)(mr, nv, sum, f);
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

/* Multiplies all m rows of A with one panel of B. */
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

/* to[k][width] = columns of B that are contiguous along k:
 * whole squares first, then the remaining elements one by one. */
static void NAME(pack_columns)(T *to, int64_t width, const T *b, int64_t b_col, int64_t k, int64_t n)
{
    int64_t columns = n / NAME(BLOCK) * NAME(BLOCK), rows = k / NAME(BLOCK) * NAME(BLOCK);
    for (int64_t j = 0; j < columns; j += NAME(BLOCK)) {
        for (int64_t p = 0; p < rows; p += NAME(BLOCK)) {
            NAME(square) turned[NAME(BLOCK)];
            NAME(turn)(turned, b + j * b_col + p, b_col);
#pragma GCC unroll 8
            for (int i = 0; i < NAME(BLOCK); i++) {
                memcpy(to + (p + i) * width + j, &turned[i], sizeof turned[i]);
            }
        }
    }
    for (int64_t j = 0; j < n; j++) {
        for (int64_t p = j < columns ? rows : 0; p < k; p++) {
            to[p * width + j] = b[j * b_col + p];
        }
    }
}

/* to[k][width] = columns of B; columns from n on are zeros. */
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
    for (int64_t p0 = 0; p0 < k; p0 += 16) { /* one cache line of each column, then the next */
        int64_t end = p0 + 16 < k ? p0 + 16 : k;
        for (int64_t j = 0; j < n; j++) {
            const T *from = b + j * b_col;
            for (int64_t p = p0; p < end; p++) {
                to[p * width + j] = from[p * b_row];
            }
        }
    }
}

/* to = a block of A as [k][m]: the rows of A side by side. */
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

/* How one product is divided into blocks. */
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
    /* Pack if the column stride is not 1, or if A has so many rows that many pages of B
     * would be visited again and again. */
    cut.pack_b = g->b_col != 1 || (g->m > 192 && g->k > 48 && g->b_row > 256);
    cut.pack_a = g->a_col != 1 && g->n >= 192 && g->k > 48 && g->m > 16;
    if (cut.pack_b) {
        int64_t panels = (int64_t)1 << 19;
        panels /= (cut.kc + 1) * PANEL * (int64_t)sizeof(T);
        cut.nc = PANEL * (g->m <= 96 || panels < 1 ? 1 : panels);
    }
    if (g->k <= 64 && g->k * cut.nc * (int64_t)sizeof(T) <= 1 << 20) {
        cut.mc = ROWS_WIDE; /* C is the largest matrix: write it row by row */
    } else if (cut.pack_a || g->m > 240) {
        cut.mc = 96;
    }
    return cut;
}

/* The columns and the part of k that go through the caches together, for all rows.
 * b points to the first element of B. */
typedef struct NAME(slab) {
    const T *b;
    int64_t kc, nc;
    int64_t tail, tail_width; /* columns of a last panel that is not full, and the same rounded up to whole vectors */
    bool tail_direct;         /* the last panel is read in place, except its last row, which is copied */
    T *packed;
} NAME(slab);
#define slab NAME(slab)

/* A vector that extends beyond the end of a row reads into the next row, which is harmless;
 * only the last row has none. */
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

#include "kernels/cpu/matmul_dots_template.h"
#include "kernels/cpu/matmul_turned_template.h"

/* ---- the whole product ---- */

static void NAME(by_panels)(const sh_matmul_args *g, const NAME(cut) * cut, T *scratch, const T *a, const T *b,
                            finish whole)
{
    for (int64_t j = 0; j < g->n; j += cut->nc) {
        int64_t p = 0;
        do { /* runs once even if k is 0 */
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

typedef enum NAME(way) {
    NAME(BY_PANELS),
    NAME(BY_DOTS),
    NAME(BY_TURNING),
} NAME(way);

/* All algorithms multiply equally often. They differ in the extra work: dot products add up a vector for each element
 * of C, the transposed product packs A and transposes Cᵀ, panels of a transposed B pack B. Dot products also lose if k
 * is so long that the columns of a tile leave the cache before its next rows come. */
static NAME(way) NAME(choose_way)(const sh_matmul_args *g)
{
    if (g->a_col != 1 || g->b_row != 1 || g->k == 0) {
        return NAME(BY_PANELS);
    }
    bool few_columns = g->n <= 4 || DOT_NARROW(g->n, g->k);
    if (few_columns || g->m == 1 || (g->m <= DOT_FEW(g->k) && g->k <= 1024)) {
        return NAME(BY_DOTS);
    }
    int64_t lanes = g->m > 2 * VL ? g->m : 2 * VL, packed = g->m * g->k;
    bool turn = TURN_COST(packed + lanes * g->n) <= g->n * g->k && packed * (int64_t)sizeof(T) <= 1 << 20;
    return turn ? NAME(BY_TURNING) : NAME(BY_PANELS);
}

static shoal_err NAME(matmul)(sh_exec *exec, const sh_matmul_args *g)
{
    NAME(way) way = NAME(choose_way)(g);
    NAME(cut) cut = {0};
    int64_t elements = 0;
    if (way == NAME(BY_PANELS)) {
        cut = NAME(choose)(g);
        elements = (cut.mc + (cut.pack_b ? cut.nc : PANEL)) * (cut.kc + 1);
    } else if (way == NAME(BY_TURNING)) {
        elements = NAME(turned_scratch)(g);
    }
    T *scratch = elements ? sh_exec_scratch(exec, (size_t)elements * sizeof(T)) : NULL;
    if (elements && !scratch) {
        return SHOAL_ENOMEM;
    }
    for (int64_t z = 0; z < g->batch; z++) {
        const T *a = (const T *)g->a + z * g->a_batch, *b = (const T *)g->b + z * g->b_batch;
        finish f = {.c = (T *)g->c + z * g->c_batch, .c_row = g->c_row, .bias = g->bias, .alpha = (T)g->alpha};
        f.accumulate = g->accumulate;
        f.relu = g->relu;
        switch (way) {
        case NAME(BY_PANELS): NAME(by_panels)(g, &cut, scratch, a, b, f); break;
        case NAME(BY_DOTS): NAME(by_dots)(g, a, b, &f); break;
        case NAME(BY_TURNING): NAME(by_turning)(g, scratch, a, b, &f); break;
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
