/* Attention of many query rows (a tile, a replay) over int8 keys and values.
 *
 * Keys are packed once per call and shared by the G query heads of their key head. A thread takes
 * BLOCK query rows at a time: all their scores, one exact maximum, exponentials, then values. Each
 * output channel is one chain of fmadd in key order (masked keys add 0), so its bits depend on the
 * keys that the row sees, in order, and on nothing else: not on threads, nor on the rows beside it.
 */
#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#endif

#include "attend.h"

#define BLOCK 24    /* query rows of one work item: their scores stay in the second cache */
#define VALUES 128  /* value rows converted to float32 at a time: 32 KB at D = 64 */

typedef struct {
    uint8_t *packed;           /* [H, N, D], N padded to STEP in every span */
    float *k_scale, *v_scale;  /* [H, N] */
    int64_t n;                 /* N */
    float *scores;             /* [BLOCK, stride] of this thread */
    int64_t stride;            /* N + 16: rows a power of two apart would share a cache set */
} scratch_t;

static int64_t padded(const span_t *span)
{
    return (span->n + STEP - 1) / STEP * STEP;
}

static int64_t shared_floats(int64_t n_kv, int64_t n)
{
    return n_kv * n * 2;
}

/* Bytes of scratch that ced_attend_tile needs. */
int64_t ced_attend_tile_scratch(const span_t *spans, int64_t n_spans, int64_t n_kv, int64_t dim,
                                int threads)
{
    int64_t n = 0;
    for (int64_t s = 0; s < n_spans; s++)
        n += padded(spans + s);
    return n_kv * n * dim + 4 * (shared_floats(n_kv, n) + threads * BLOCK * (n + 16)) + 64;
}

/* out[r] += sum over keys j of p[r, j] v[j], one chain per channel. */
INLINE void add_values(const int rows, const int vectors, const float *p, int64_t stride,
                       const float *v, int64_t n, float *out)
{
    __m512 sums[6][MAX_VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            sums[r][c] = _mm512_loadu_ps(out + (r * vectors + c) * 16);
    for (int64_t j = 0; j < n; j++) {
        __m512 value[MAX_VECTORS];
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            value[c] = _mm512_loadu_ps(v + (j * vectors + c) * 16);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m512 weight = _mm512_set1_ps(p[r * stride + j]);
#pragma GCC unroll 8
            for (int c = 0; c < vectors; c++)
                sums[r][c] = _mm512_fmadd_ps(weight, value[c], sums[r][c]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            _mm512_storeu_ps(out + (r * vectors + c) * 16, sums[r][c]);
}

static void add_block(int vectors, const float *p, int64_t stride, const float *v, int64_t n,
                      float *out)
{
    for (int r = 0; r < BLOCK; r += 6) {
        const float *weights = p + r * stride;
        float *to = out + r * vectors * 16;
        switch (vectors) {
        case 1: add_values(6, 1, weights, stride, v, n, to); break;
        case 2: add_values(6, 2, weights, stride, v, n, to); break;
        case 3: add_values(6, 3, weights, stride, v, n, to); break;
        case 4: add_values(6, 4, weights, stride, v, n, to); break;
        default:
            for (int i = 0; i < 6; i += 3) {
                const float *three = weights + i * stride;
                float *rows = to + i * vectors * 16;
                switch (vectors) {
                case 5: add_values(3, 5, three, stride, v, n, rows); break;
                case 6: add_values(3, 6, three, stride, v, n, rows); break;
                case 7: add_values(3, 7, three, stride, v, n, rows); break;
                default: add_values(3, 8, three, stride, v, n, rows); break;
                }
            }
        }
    }
}

/* n value rows as float32 [n, vectors * 16], channels past D zero. */
static void convert_values(const int8_t *v, int64_t n, int64_t dim, int vectors, float *out)
{
    for (int64_t j = 0; j < n; j++)
        for (int c = 0; c < vectors; c++) {
            __m128i codes = _mm_maskz_loadu_epi8(lanes_below(16 * c, dim), v + j * dim + 16 * c);
            _mm512_storeu_ps(out + (j * vectors + c) * 16, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)));
        }
}

/* Query rows first .. first + n - 1 of key head `head` (row r is query head r / T at query r % T). */
static void attend_block(const int8_t *q, const float *q_scale, const span_t *spans,
                         int64_t n_spans, int64_t head, int64_t group, int64_t n_queries,
                         int64_t dim, float scale, int64_t first, int64_t n, const scratch_t *s,
                         int64_t n_kv, float *out)
{
    const int vectors = (int)((dim + 15) / 16);
    int8_t rows[BLOCK * MAX_DIM] __attribute__((aligned(64))) = {0};
    int32_t start[BLOCK] = {0}, from[BLOCK] = {0}, to[BLOCK] = {0};
    float row_scale[BLOCK] = {0}, most[BLOCK * 16], values[VALUES * MAX_DIM], sums[BLOCK * MAX_DIM] = {0};
    int64_t base = head * group * n_queries + first;
    memcpy(rows, q + base * dim, n * dim);
    for (int64_t r = 0; r < n; r++) {
        start[r] = row_start(rows + r * dim, dim);
        row_scale[r] = q_scale[base + r] * scale;
    }
    for (int64_t i = 0; i < BLOCK * 16; i++)
        most[i] = -INFINITY;
    int64_t offset = 0;
    for (int64_t i = 0; i < n_spans; offset += padded(spans + i), i++) {
        const span_t *span = spans + i;
        int64_t all_from = 0, all_to = span->n, any_from = span->n, any_to = 0;
        for (int64_t r = 0; r < n; r++) {
            int64_t t = (first + r) % n_queries;
            from[r] = span->from ? span->from[t] : 0;
            to[r] = span->to && span->to[t] < span->n ? span->to[t] : (int32_t)span->n;
            all_from = from[r] > all_from ? from[r] : all_from;
            all_to = to[r] < all_to ? to[r] : all_to;
            any_from = from[r] < any_from ? from[r] : any_from;
            any_to = to[r] > any_to ? to[r] : any_to;
        }
        for (int64_t j = 0; j < padded(span); j += STEP) {
            int64_t at = head * s->n + offset + j;
            if (j >= any_to || j + STEP <= any_from) {
                for (int64_t r = 0; r < BLOCK; r++)
                    for (int64_t k = 0; k < STEP; k++)
                        s->scores[r * s->stride + offset + j + k] = -INFINITY;
                continue;
            }
            int whole = j >= all_from && j + STEP <= all_to;
            for (int r = 0; r < BLOCK; r += 6) {
                float *scores = s->scores + r * s->stride + offset + j;
                if (whole)
                    score_step(6, 0, rows + r * dim, start + r, row_scale + r, dim, s->packed + at * dim,
                               s->k_scale + at, from + r, to + r, j, scores, s->stride, most + 16 * r);
                else
                    score_step(6, 1, rows + r * dim, start + r, row_scale + r, dim, s->packed + at * dim,
                               s->k_scale + at, from + r, to + r, j, scores, s->stride, most + 16 * r);
            }
        }
    }
    float total[BLOCK];
    for (int64_t r = 0; r < BLOCK; r++) {
        float top = _mm512_reduce_max_ps(_mm512_loadu_ps(most + 16 * r));
        total[r] = sum16(weigh_scores(s->scores + r * s->stride, s->v_scale + head * s->n, s->n, top));
    }
    offset = 0;
    for (int64_t i = 0; i < n_spans; offset += padded(spans + i), i++)
        for (int64_t j = 0; j < spans[i].n; j += VALUES) {
            int64_t left = spans[i].n - j < VALUES ? spans[i].n - j : VALUES;
            convert_values(spans[i].v + (head * spans[i].stride + j) * dim, left, dim, vectors, values);
            add_block(vectors, s->scores + offset + j, s->stride, values, left, sums);
        }
    for (int64_t r = 0; r < n; r++) {
        int64_t t = (first + r) % n_queries, g = (first + r) / n_queries;
        float inverse = total[r] == 0 ? 0 : 1 / total[r];
        float *row = out + (t * n_kv * group + head * group + g) * dim;
        for (int64_t d = 0; d < dim; d++)
            row[d] = sums[r * vectors * 16 + d] * inverse;
    }
}

/* q [Hq, T, D], q_scale [Hq, T] -> out [T, Hq * D] = softmax(q K^T * scale) V over all spans. A
 * query that sees no key gives 0. */
void ced_attend_tile(const int8_t *q, const float *q_scale, const span_t *spans, int64_t n_spans,
                     int64_t n_kv, int64_t group, int64_t n_queries, int64_t dim, float scale,
                     float *out, void *memory, int threads)
{
    int64_t n = 0;
    for (int64_t s = 0; s < n_spans; s++)
        n += padded(spans + s);
    float *floats = (float *)(((uintptr_t)memory + 63) / 64 * 64);
    float *scores = floats + shared_floats(n_kv, n);
    scratch_t base = {(uint8_t *)(scores + threads * BLOCK * (n + 16)), floats, floats + n_kv * n, n, scores,
                      n + 16};
    int64_t blocks = (group * n_queries + BLOCK - 1) / BLOCK;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int64_t offset = 0;
        for (int64_t i = 0; i < n_spans; offset += padded(spans + i), i++) {
            int64_t steps = padded(spans + i) / STEP;
#pragma omp for schedule(static) nowait
            for (int64_t k = 0; k < n_kv * steps; k++) {
                int64_t head = k / steps, j = k % steps * STEP, at = head * n + offset + j;
                pack_step(spans + i, head, j, dim, base.packed + at * dim, base.k_scale + at, base.v_scale + at);
            }
        }
        scratch_t own = base;
        own.scores += omp_get_thread_num() * BLOCK * base.stride;
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t k = 0; k < n_kv * blocks; k++) {
            int64_t head = k / blocks, first = k % blocks * BLOCK, left = group * n_queries - first;
            attend_block(q, q_scale, spans, n_spans, head, group, n_queries, dim, scale, first,
                         left < BLOCK ? left : BLOCK, &own, n_kv, out);
        }
    }
}
