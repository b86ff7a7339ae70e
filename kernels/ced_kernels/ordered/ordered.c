/* Ordered float32: every product and every sum is rounded, terms are added first to last.
 *
 * Compiled without contraction, so that nothing is fused. Vectors run across results, never across
 * the terms of one sum; hence any vector width gives the same bits.
 *
 * Letters: M rows, K inner dimension, N columns, T queries, H heads, D head dimension, P picks.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define COLUMNS 64 /* results side by side */
#define ROWS 4
#define KEYS 8
#define INLINE static inline __attribute__((always_inline))

INLINE void product_block(const float *x, const float *w, int64_t rows, int64_t k, int64_t n,
                          int64_t columns, float *out)
{
    float sums[ROWS][COLUMNS] __attribute__((aligned(64)));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            sums[r][c] = 0;
    for (int64_t i = 0; i < k; i++) {
        const float *weight = w + i * n;
        for (int64_t r = 0; r < rows; r++) {
            float value = x[r * k + i];
            for (int64_t c = 0; c < columns; c++)
                sums[r][c] += value * weight[c];
        }
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            out[r * n + c] = sums[r][c];
}

/* x [M, K], w [K, N] -> out [M, N]. */
void ced_ordered_product(const float *x, const float *w, int64_t m, int64_t k, int64_t n,
                         float *out, int threads)
{
    int64_t blocks = (n + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = block * COLUMNS, columns = n - first < COLUMNS ? n - first : COLUMNS;
        for (int64_t row = 0; row < m; row += ROWS) {
            int64_t rows = m - row < ROWS ? m - row : ROWS;
            const float *from = x + row * k;
            float *to = out + row * n + first;
            if (rows == ROWS && columns == COLUMNS)
                product_block(from, w + first, ROWS, k, n, COLUMNS, to);
            else if (rows == 1 && columns == COLUMNS)
                product_block(from, w + first, 1, k, n, COLUMNS, to);
            else
                product_block(from, w + first, rows, k, n, columns, to);
        }
    }
}

/* a, b [M, N] -> out [M]: sums of a * b over each row. */
void ced_ordered_row_dots(const float *a, const float *b, int64_t m, int64_t n, float *out)
{
    int64_t row = 0;
    for (; row + 8 <= m; row += 8) {
        /* Eight sums side by side hide the latency of each. */
        float sums[8] = {0};
        for (int64_t i = 0; i < n; i++)
            for (int r = 0; r < 8; r++)
                sums[r] += a[(row + r) * n + i] * b[(row + r) * n + i];
        for (int r = 0; r < 8; r++)
            out[row + r] = sums[r];
    }
    for (; row < m; row++) {
        float sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += a[row * n + i] * b[row * n + i];
        out[row] = sum;
    }
}

typedef struct {
    const float *q, *window, *rows, *sinks;
    const int32_t *seen_from, *seen_to;
    const int64_t *picks;
    int64_t t, heads, dim, n_picks;
    float scale;
} attend_t;

INLINE void score_keys(const float *turned, const float **keys, int64_t n_keys, int64_t heads,
                       int64_t dim, float scale, float *scores)
{
    for (int64_t j = 0; j < n_keys * heads; j++)
        scores[j] = 0;
    for (int64_t i = 0; i < dim; i++)
        for (int64_t j = 0; j < n_keys; j++) {
            float value = keys[j][i];
            for (int64_t h = 0; h < heads; h++)
                scores[j * heads + h] += turned[i * heads + h] * value;
        }
    for (int64_t j = 0; j < n_keys * heads; j++)
        scores[j] *= scale;
}

static void attend_query(const attend_t *a, int64_t t, const float **keys, float *turned,
                         float *scores, float *out)
{
    int64_t heads = a->heads, dim = a->dim, n_keys = 0;
    for (int64_t j = a->seen_from[t]; j < a->seen_to[t]; j++)
        keys[n_keys++] = a->window + j * dim;
    for (int64_t p = 0; p < a->n_picks; p++) {
        int64_t row = a->picks[t * a->n_picks + p];
        if (row >= 0)
            keys[n_keys++] = a->rows + row * dim;
    }
    const float *q = a->q + t * heads * dim;
    for (int64_t h = 0; h < heads; h++)
        for (int64_t i = 0; i < dim; i++)
            turned[i * heads + h] = q[h * dim + i];
    for (int64_t j = 0; j < n_keys; j += KEYS) {
        int64_t n = n_keys - j < KEYS ? n_keys - j : KEYS;
        score_keys(turned, keys + j, n, heads, dim, a->scale, scores + j * heads);
    }
    for (int64_t h = 0; h < heads; h++) {
        float largest = a->sinks[h], total = 0;
        for (int64_t j = 0; j < n_keys; j++)
            largest = scores[j * heads + h] > largest ? scores[j * heads + h] : largest;
        for (int64_t j = 0; j < n_keys; j++) {
            float weight = (float)exp((double)(scores[j * heads + h] - largest));
            scores[j * heads + h] = weight;
            total += weight;
        }
        total += (float)exp((double)(a->sinks[h] - largest));
        for (int64_t j = 0; j < n_keys; j++)
            scores[j * heads + h] /= total;
    }
    for (int64_t i = 0; i < heads * dim; i++)
        out[i] = 0;
    for (int64_t j = 0; j < n_keys; j++)
        for (int64_t h = 0; h < heads; h++) {
            float weight = scores[j * heads + h];
            for (int64_t i = 0; i < dim; i++)
                out[h * dim + i] += weight * keys[j][i];
        }
}

/* q [T, H, D], window [n, D], seen_from and seen_to [T], rows [R, D], picks [T, P], sinks [H]
 * -> out [T, H, D]; most_keys is the largest number of keys of a query. Returns 0, or -1 when
 * there is no memory. */
int64_t ced_ordered_attend(const float *q, const float *window, const int32_t *seen_from,
                           const int32_t *seen_to, const float *rows, const int64_t *picks,
                           const float *sinks, float scale, int64_t t, int64_t heads, int64_t dim,
                           int64_t n_picks, int64_t most_keys, float *out, int threads)
{
    attend_t a = {q,         window, rows, sinks, seen_from, seen_to, picks, t,
                  heads,     dim,    n_picks, scale};
    int64_t failed = 0;
#pragma omp parallel num_threads(threads)
    {
        float *turned = malloc(sizeof(float) * (heads * dim + most_keys * heads + 1));
        const float **keys = malloc(sizeof(float *) * (most_keys + 1));
        if (turned == NULL || keys == NULL) {
#pragma omp atomic write
            failed = 1;
        } else {
#pragma omp for schedule(dynamic)
            for (int64_t query = 0; query < t; query++)
                attend_query(&a, query, keys, turned, turned + heads * dim,
                             out + query * heads * dim);
        }
        free(turned);
        free(keys);
    }
    return -failed;
}
