/* A·Bᵀ with both operands contiguous along k, as the transposed product Cᵀ = B·Aᵀ. Included by matmul_template.h.
 *
 * This is what a linear layer with a few samples computes. B, the weight, is the large operand; it is read in place and
 * its elements are broadcast. A is packed instead, so that a vector holds one element of each of its rows. The tiles of
 * Cᵀ are transposed back in registers.
 *
 * If there are fewer rows than lanes, each row gets a piece of 2, 4 or 8 lanes, which hold consecutive elements along
 * k. A piece of B is then repeated through a vector, and the lanes of each piece are added up at the end. The m rows
 * are divided into bands:
 *
 *     lanes          0    1    2    3    4    5    6    7
 *     piece 1        r0   r1   r2   r3   r4   r5   r6   r7      times b[p] everywhere
 *     piece 2        r0   r0   r1   r1   r2   r2   r3   r3      times b[p] b[p+1] b[p] b[p+1] …
 *     piece 4        r0   r0   r0   r0   r1   r1   r1   r1      times b[p] … b[p+3] b[p] … b[p+3] */

#define TURNED_COLUMNS 48 /* columns of C at a time: a multiple of BLOCK and of the rows of every tile */

typedef struct NAME(band) {
    int rows;    /* rows of A; the lanes beyond them are zeros */
    int vectors; /* vectors of VL lanes */
    int shift;   /* a piece has 1 << shift lanes */
} NAME(band);
#define band NAME(band)
#define MOST_SHIFT (__builtin_ctz(MOST_PIECE / sizeof(T)))

/* Chooses the next band of the left rows. Two or three vectors are best: then each loaded piece of B serves several
 * multiplications. The largest piece that allows this wastes the fewest lanes. If it still wastes a sixth, a band of
 * fewer rows comes first. */
static band NAME(next_band)(int64_t left)
{
    if (left >= 2 * VL) {
        int vectors = left / VL < WIDTH ? (int)(left / VL) : WIDTH;
        return (band){vectors * VL, vectors, 0};
    }
    int wanted = (int)left, shift = MOST_SHIFT;
    while (wanted << shift > 3 * VL) {
        shift--;
    }
    int vectors = ((wanted << shift) + VL - 1) / VL, rows = vectors * VL >> shift;
    if (wanted > 8 && (rows - wanted) * 6 >= rows) {
        if (vectors > 2) {
            vectors--;
        } else {
            shift++;
            vectors = 3;
        }
        rows = vectors * VL >> shift;
    }
    return (band){wanted < rows ? wanted : rows, vectors, shift};
}

/* Returns the number of elements of a packed band: [steps along k][lanes]. */
static inline int64_t NAME(band_size)(band d, int64_t k)
{
    return ((k + (1 << d.shift) - 1) >> d.shift) * d.vectors * VL;
}

/* ---- packing of A: [steps][lanes] ---- */

/* Packs pieces of 8 bytes by squares. Returns the number of rows packed. The remainder of k is not packed. */
static int64_t NAME(pack_squares)(T *to, int64_t lanes, const T *a, int64_t a_row, int64_t rows, int64_t k)
{
    const int64_t piece = 8 / (int64_t)sizeof(T);
    for (int64_t p = 0; p + 4 * piece <= k; p += 4 * piece, to += 4 * lanes) {
        for (int64_t i = 0; i + 4 <= rows; i += 4) {
            __m256d turned[4];
            turn_8(turned, a + i * a_row + p, a_row * (int64_t)sizeof(T));
#pragma GCC unroll 4
            for (int t = 0; t < 4; t++) {
                memcpy(to + t * lanes + i * piece, &turned[t], sizeof turned[t]);
            }
        }
    }
    return rows / 4 * 4;
}

/* Packs rows first to rows - 1 from element p on, piece by piece. */
static inline __attribute__((always_inline)) void NAME(pack_pieces)(const int64_t piece, T *to, int64_t lanes,
                                                                    const T *a, int64_t a_row, int64_t first,
                                                                    int64_t rows, int64_t p, int64_t k)
{
    if (first >= rows) {
        return;
    }
    for (to += p / piece * lanes; p < k; p += piece, to += lanes) {
        for (int64_t i = first; i < rows; i++) {
            const T *from = a + i * a_row + p;
            if (p + piece <= k) {
                memcpy(to + i * piece, from, (size_t)piece * sizeof(T));
            } else {
                for (int64_t t = 0; t < piece; t++) {
                    to[i * piece + t] = p + t < k ? from[t] : 0;
                }
            }
        }
    }
}

static void NAME(pack_band)(T *to, band d, const T *a, int64_t a_row, int64_t k)
{
    int64_t lanes = d.vectors * VL, done = 0;
    if (d.shift == 0) {
        NAME(pack_b)(to, lanes, a, 1, a_row, k, d.rows);
        return;
    }
    if (d.rows << d.shift < lanes) {
        memset(to, 0, (size_t)NAME(band_size)(d, k) * sizeof(T));
    }
    if (sizeof(T) << d.shift == 8) {
        done = NAME(pack_squares)(to, lanes, a, a_row, d.rows, k);
        NAME(pack_pieces)(2, to, lanes, a, a_row, 0, done, k / 8 * 8, k);
    }
    switch (d.shift) {
    case 1: NAME(pack_pieces)(2, to, lanes, a, a_row, done, d.rows, 0, k); break;
    case 2: NAME(pack_pieces)(4, to, lanes, a, a_row, done, d.rows, 0, k); break;
    default: NAME(pack_pieces)(8, to, lanes, a, a_row, done, d.rows, 0, k); break;
    }
}

/* ---- tiles of Cᵀ ---- */

static inline __attribute__((always_inline)) vec NAME(repeat)(const int bytes, const T *p)
{
#if MOST_PIECE >= 32
    if (bytes == 32) {
        return (vec)repeat_32(p);
    }
#endif
    return bytes == 16 ? (vec)repeat_16(p) : (vec)repeat_8(p);
}

/* Multiplies mr columns of B, which are rows of Cᵀ, by nv vectors of A; = or, with add, +=.
 * Does not access B beyond k. */
static inline __attribute__((always_inline)) void NAME(pieces)(const int mr, const int nv, const int bytes, int64_t k,
                                                               const T *b, int64_t b_col, const T *a, T *to, bool add)
{
    const int64_t piece = bytes / (int64_t)sizeof(T);
    vec sum[8][4], row[4];
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            sum[i][v] = add ? NAME(load)(to + (i * nv + v) * VL) : (vec){0};
        }
    }
    for (; k >= piece; k -= piece, a += nv * VL, b += piece) {
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            row[v] = NAME(load)(a + v * VL);
        }
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            vec x = NAME(repeat)(bytes, b + i * b_col);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) {
                sum[i][v] += row[v] * x;
            }
        }
    }
    if (k > 0) {
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            row[v] = NAME(load)(a + v * VL);
        }
#pragma GCC unroll 8
        for (int i = 0; i < mr; i++) {
            T last[8] = {0};
            for (int64_t t = 0; t < k; t++) {
                last[t] = b[i * b_col + t];
            }
            vec x = NAME(repeat)(bytes, last);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++) {
                sum[i][v] += row[v] * x;
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < mr; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            NAME(store)(to + (i * nv + v) * VL, sum[i][v]);
        }
    }
}

typedef void (*NAME(pieces_fn))(int64_t k, const T *b, int64_t b_col, const T *a, T *to, bool add);

/* Tiles of PIECES_MOST(nv), 4, 2 and 1 columns. */
#define PIECES(mr, nv, bytes)                                                                                          \
    static void NAME(pieces_##mr##_##nv##_##bytes)(int64_t k, const T *b, int64_t b_col, const T *a, T *to, bool add)  \
    {                                                                                                                  \
        NAME(pieces)(mr, nv, bytes, k, b, b_col, a, to, add);                                                          \
    }
#define PIECES_OF(most, nv, bytes) PIECES(most, nv, bytes) PIECES(2, nv, bytes) PIECES(1, nv, bytes)
#define ROW_OF_PIECES(most, nv, bytes)                                                                                 \
    {                                                                                                                  \
        NAME(pieces_1_##nv##_##bytes), NAME(pieces_2_##nv##_##bytes), NAME(pieces_4_##nv##_##bytes),                   \
            NAME(pieces_##most##_##nv##_##bytes)                                                                       \
    }
#ifdef __AVX512F__
#define PIECES_MOST(nv) ((nv) == 4 ? 6 : 8)
#define ALL_PIECES(bytes)                                                                                              \
    PIECES_OF(8, 1, bytes)                                                                                             \
    PIECES(4, 1, bytes)                                                                                                \
    PIECES_OF(8, 2, bytes)                                                                                             \
    PIECES(4, 2, bytes)                                                                                                \
    PIECES_OF(8, 3, bytes)                                                                                             \
    PIECES(4, 3, bytes)                                                                                                \
    PIECES_OF(6, 4, bytes)                                                                                             \
    PIECES(4, 4, bytes)
#define TABLE_OF_PIECES(bytes)                                                                                         \
    {                                                                                                                  \
        ROW_OF_PIECES(8, 1, bytes), ROW_OF_PIECES(8, 2, bytes), ROW_OF_PIECES(8, 3, bytes), ROW_OF_PIECES(6, 4, bytes) \
    }
#else
#define PIECES_MOST(nv) ((nv) == 1 ? 8 : (nv) == 2 ? 6 : 4)
#define ALL_PIECES(bytes)                                                                                              \
    PIECES_OF(8, 1, bytes)                                                                                             \
    PIECES(4, 1, bytes)                                                                                                \
    PIECES_OF(6, 2, bytes)                                                                                             \
    PIECES(4, 2, bytes)                                                                                                \
    PIECES_OF(4, 3, bytes)
#define TABLE_OF_PIECES(bytes)                                                                                         \
    {                                                                                                                  \
        ROW_OF_PIECES(8, 1, bytes), ROW_OF_PIECES(6, 2, bytes), ROW_OF_PIECES(4, 3, bytes)                             \
    }
#endif
ALL_PIECES(8)
ALL_PIECES(16)
#if MOST_PIECE >= 32
ALL_PIECES(32)
#endif
static const NAME(pieces_fn) NAME(pieces_table)[][4][4] = {
    TABLE_OF_PIECES(8),
    TABLE_OF_PIECES(16),
#if MOST_PIECE >= 32
    TABLE_OF_PIECES(32),
#endif
};

/* Multiplies n columns of B, from b on, by a band of A. Writes rows of Cᵀ. */
static void NAME(turned_tiles)(band d, int64_t k, const T *b, int64_t b_col, int64_t n, const T *a, T *to, bool add)
{
    int64_t lanes = d.vectors * VL;
    if (d.shift > 0) {
        const NAME(pieces_fn) *tiles = NAME(pieces_table)[(sizeof(T) << d.shift) / 16][d.vectors - 1];
        for (int64_t j = 0, columns; j < n; j += columns) {
            int64_t left = n - j, most = PIECES_MOST(d.vectors);
            columns = left >= most ? most : left >= 4 ? 4 : left >= 2 ? 2 : 1;
            tiles[columns == most ? 3 : columns / 2](k, b + j * b_col, b_col, a, to + j * lanes, add);
        }
        return;
    }
    int64_t most = d.vectors == WIDTH ? ROWS_WIDE : 8;
    rows_of_b rows = {.at = a, .last = a + (k - 1) * lanes, .step = lanes};
    for (int64_t j = 0; j < n; j += most) {
        int64_t columns = n - j < most ? n - j : most;
        finish f = {.c = to + j * lanes, .c_row = lanes, .alpha = 1, .accumulate = add, .n = lanes};
        NAME(tiles)[d.vectors - 1][columns - 1](k, b + j * b_col, b_col, 1, &rows, &f);
    }
}

/* ---- back into C ---- */

/* Stores count rows of sums in rows of C, BLOCK columns from c on.
 * Each step is a pass over all of them, as in finish_tile. */
static inline __attribute__((always_inline)) void NAME(finish_square)(const finish *f, T *c, const T *bias,
                                                                      const int count, NAME(square) x[NAME(BLOCK)])
{
    typedef T loose __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
    typedef __typeof__(x[0] < x[0]) bits;
    const int64_t c_row = f->c_row;
    const bool accumulate = f->accumulate, relu = f->relu;
    if (f->alpha != 1) {
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            x[r] *= f->alpha;
        }
    }
    if (bias) {
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            x[r] += (NAME(square)) * (const loose *)bias;
        }
    }
    if (accumulate) {
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            x[r] += (NAME(square)) * (const loose *)(c + r * c_row);
        }
    }
    if (relu) {
#pragma GCC unroll 8
        for (int r = 0; r < count; r++) {
            x[r] = (NAME(square))(~(x[r] < (NAME(square)){0}) & (bits)x[r]); /* NaN stays NaN */
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < count; r++) {
        *(loose *)(c + r * c_row) = (loose)x[r];
    }
}

/* The same at the edges of C: rows x n, less than a square. */
static __attribute__((noinline)) void NAME(finish_edge)(const finish *f, T *c, const T *bias, int64_t rows, int64_t n,
                                                        const T x[NAME(BLOCK)][NAME(BLOCK)])
{
    for (int64_t r = 0; r < rows; r++, c += f->c_row) {
        for (int64_t j = 0; j < n; j++) {
            T y = x[r][j] * f->alpha;
            y += bias ? bias[j] : 0;
            y += f->accumulate ? c[j] : 0;
            c[j] = f->relu && y < 0 ? 0 : y;
        }
    }
}

/* Transposes the rows of a band of this piece back into C, from row and column on, n columns. finish is not copied: a
 * load of data that was just stored in smaller parts waits for them. */
static inline __attribute__((always_inline)) void NAME(turn_pieces)(const int piece, const finish *f, band d,
                                                                    const T *sums, int64_t row, int64_t column,
                                                                    int64_t n)
{
    const int block = NAME(BLOCK), most = block / piece;
    const int64_t lanes = d.vectors * VL;
    for (int64_t j = 0; j < n; j += block) {
        const T *bias = f->bias ? f->bias + column + j : NULL;
        for (int64_t i = 0; i < d.rows; i += most) {
            NAME(square) x[NAME(BLOCK)];
            NAME(turn)(x, sums + j * lanes + i * piece, lanes);
#pragma GCC unroll 3
            for (int half = block / 2; half >= most; half /= 2) {
#pragma GCC unroll 4
                for (int r = 0; r < half; r++) {
                    x[r] = x[2 * r] + x[2 * r + 1];
                }
            }
            T *c = f->c + (row + i) * f->c_row + column + j;
            if (n - j >= block && d.rows - i >= most) {
                NAME(finish_square)(f, c, bias, most, x);
                continue;
            }
            T rows[NAME(BLOCK)][NAME(BLOCK)];
#pragma GCC unroll 8
            for (int r = 0; r < most; r++) {
                memcpy(rows[r], &x[r], sizeof rows[r]);
            }
            int64_t height = d.rows - i < most ? d.rows - i : most, width = n - j < block ? n - j : block;
            NAME(finish_edge)(f, c, bias, height, width, rows);
        }
    }
}

static void NAME(turn_back)(const finish *f, band d, const T *sums, int64_t row, int64_t column, int64_t n)
{
    switch (d.shift) {
    case 0: NAME(turn_pieces)(1, f, d, sums, row, column, n); break;
    case 1: NAME(turn_pieces)(2, f, d, sums, row, column, n); break;
    case 2: NAME(turn_pieces)(4, f, d, sums, row, column, n); break;
#if MOST_PIECE >= 32
    case 3: NAME(turn_pieces)(NAME(BLOCK), f, d, sums, row, column, n); break;
#endif
    }
}

/* ---- the whole product ---- */

/* Returns the number of scratch elements: all of A, packed, and TURNED_COLUMNS rows of Cᵀ. */
static int64_t NAME(turned_scratch)(const sh_matmul_args *g)
{
    int64_t elements = 0;
    for (int64_t i = 0; i < g->m;) {
        band d = NAME(next_band)(g->m - i);
        elements += NAME(band_size)(d, g->k) + TURNED_COLUMNS * d.vectors * VL;
        i += d.rows;
    }
    return elements;
}

/* Multiplies columns j to j + n - 1 of B by all bands of A, for k elements from p on: sums holds rows of Cᵀ. */
static void NAME(turned_bands)(const sh_matmul_args *g, const T *packed, const T *b, int64_t n, int64_t p, int64_t k,
                               T *sums)
{
    for (int64_t i = 0; i < g->m;) {
        band d = NAME(next_band)(g->m - i);
        int64_t lanes = d.vectors * VL;
        NAME(turned_tiles)(d, k, b + p, g->b_col, n, packed + (p >> d.shift) * lanes, sums, p > 0);
        packed += NAME(band_size)(d, g->k);
        sums += TURNED_COLUMNS * lanes;
        i += d.rows;
    }
}

static void NAME(by_turning)(const sh_matmul_args *g, T *scratch, const T *a, const T *b, const finish *f)
{
    /* Divide k into parts that stay in the L1 cache, each a whole number of pieces. */
    int64_t parts = g->k > 512 ? (g->k + 383) / 384 : 1, most = parts == 1 ? g->k : (g->k / parts + 8) / 8 * 8;
    T *sums = scratch;
    for (int64_t i = 0; i < g->m;) {
        band d = NAME(next_band)(g->m - i);
        NAME(pack_band)(sums, d, a + i * g->a_row, g->a_row, g->k);
        sums += NAME(band_size)(d, g->k);
        i += d.rows;
    }
    for (int64_t j = 0; j < g->n; j += TURNED_COLUMNS) {
        int64_t n = g->n - j < TURNED_COLUMNS ? g->n - j : TURNED_COLUMNS;
        for (int64_t p = 0; p < g->k; p += most) {
            NAME(turned_bands)(g, scratch, b + j * g->b_col, n, p, g->k - p < most ? g->k - p : most, sums);
        }
        const T *from = sums;
        for (int64_t i = 0; i < g->m;) {
            band d = NAME(next_band)(g->m - i);
            NAME(turn_back)(f, d, from, i, j, n);
            from += TURNED_COLUMNS * d.vectors * VL;
            i += d.rows;
        }
    }
}

#undef TURNED_COLUMNS
#undef band
#undef MOST_SHIFT
#undef PIECES
#undef PIECES_OF
#undef ROW_OF_PIECES
#undef PIECES_MOST
#undef ALL_PIECES
#undef TABLE_OF_PIECES
