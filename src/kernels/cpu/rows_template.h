/* Sums and extremes along a contiguous row, in enough lanes for vectors. Included with T and NAME(x) defined. A lane
 * adds at most 64 elements in T before it continues in f64. */

#define LANES 64
#define CHUNK (64 * LANES)

#define ROW_SUM(name, expression)                                                                                      \
    static inline double NAME(name)(const T *a, const T *b, int64_t n)                                                 \
    {                                                                                                                  \
        double total = 0;                                                                                              \
        (void)b;                                                                                                       \
        int64_t i = 0;                                                                                                 \
        while (n - i >= LANES) {                                                                                       \
            T s[LANES] = {0};                                                                                          \
            int64_t end = n - i > CHUNK ? i + CHUNK : i + (n - i) / LANES * LANES;                                     \
            for (; i < end; i += LANES) {                                                                              \
                for (int64_t l = i; l < i + LANES; l++) {                                                              \
                    s[l - i] += expression;                                                                            \
                }                                                                                                      \
            }                                                                                                          \
            for (int64_t l = 0; l < LANES; l++) {                                                                      \
                total += (double)s[l];                                                                                 \
            }                                                                                                          \
        }                                                                                                              \
        double rest[4] = {0};                                                                                          \
        for (int64_t l = i; l < n; l++) {                                                                              \
            rest[l & 3] += (double)(expression);                                                                       \
        }                                                                                                              \
        return total + (rest[0] + rest[1]) + (rest[2] + rest[3]);                                                      \
    }
ROW_SUM(row_sum, a[l])
ROW_SUM(row_sumsq, a[l] * a[l])
ROW_SUM(row_dot, a[l] * b[l])

/* NaN if any element is NaN: it compares false, so nothing replaces it. */
#define ROW_EXTREME(name, better)                                                                                      \
    static inline T NAME(name)(const T *a, int64_t n)                                                                  \
    {                                                                                                                  \
        T m[LANES];                                                                                                    \
        T best = a[0];                                                                                                 \
        int64_t i = 0;                                                                                                 \
        if (n >= LANES) {                                                                                              \
            for (int64_t l = 0; l < LANES; l++) {                                                                      \
                m[l] = a[l];                                                                                           \
            }                                                                                                          \
            for (i = LANES; i + LANES <= n; i += LANES) {                                                              \
                for (int64_t l = 0; l < LANES; l++) {                                                                  \
                    T x = a[i + l];                                                                                    \
                    m[l] = ((x better m[l]) | (x != x)) ? x : m[l];                                                    \
                }                                                                                                      \
            }                                                                                                          \
            for (int64_t l = 0; l < LANES; l++) {                                                                      \
                best = ((m[l] better best) | (m[l] != m[l])) ? m[l] : best;                                            \
            }                                                                                                          \
        }                                                                                                              \
        for (; i < n; i++) {                                                                                           \
            best = ((a[i] better best) | (a[i] != a[i])) ? a[i] : best;                                                \
        }                                                                                                              \
        return best;                                                                                                   \
    }
ROW_EXTREME(row_max, >)
ROW_EXTREME(row_min, <)

#undef ROW_SUM
#undef ROW_EXTREME
#undef LANES
#undef CHUNK
