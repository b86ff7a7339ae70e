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

/* One call. */
typedef struct {
    const int8_t *q;
    const float *q_scale;
    const span_t *spans;
    int64_t n_spans, n_kv, group, n_queries, dim;
    int64_t n;                 /* N: keys of all spans, each padded to STEP */
    uint8_t *packed;           /* [H, N, D] */
    float *k_scale, *v_scale;  /* [H, N] */
    int64_t stride;            /* of scores: N + 16, as a power of two would share a cache set */
    float scale, *out;
} call_t;

/* Query rows first .. first + n - 1 of key head `head`; row r is query head r / T, query r % T. */
typedef struct {
    int64_t head, first, n;
    int8_t q[BLOCK * MAX_DIM];
    int32_t start[BLOCK], from[BLOCK], to[BLOCK];
    float scale[BLOCK], most[BLOCK * 16];
    float *scores;  /* [BLOCK, stride] of this thread */
} block_t;

static int64_t padded(const span_t *span)
{
    return (span->n + STEP - 1) / STEP * STEP;
}

static int64_t all_keys(const span_t *spans, int64_t n_spans)
{
    int64_t n = 0;
    for (int64_t s = 0; s < n_spans; s++)
        n += padded(spans + s);
    return n;
}

/* Bytes of scratch that ced_attend_tile needs. */
int64_t ced_attend_tile_scratch(const span_t *spans, int64_t n_spans, int64_t n_kv, int64_t dim,
                                int threads)
{
    int64_t n = all_keys(spans, n_spans);
    return n_kv * n * dim + 4 * (2 * n_kv * n + threads * BLOCK * (n + 16)) + 64;
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
            __m512 values = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
            _mm512_storeu_ps(out + (j * vectors + c) * 16, values);
        }
}

/* Every row's scores over the keys of one span, which begin at `offset`. */
static void score_span(const call_t *call, block_t *block, const span_t *span, int64_t offset)
{
    int64_t dim = call->dim, all_from = 0, all_to = span->n, any_from = span->n, any_to = 0;
    for (int64_t r = 0; r < block->n; r++) {
        int64_t t = (block->first + r) % call->n_queries;
        int32_t from = span->from ? span->from[t] : 0;
        int32_t to = span->to && span->to[t] < span->n ? span->to[t] : (int32_t)span->n;
        all_from = from > all_from ? from : all_from;
        all_to = to < all_to ? to : all_to;
        any_from = from < any_from ? from : any_from;
        any_to = to > any_to ? to : any_to;
        block->from[r] = from;
        block->to[r] = to;
    }
    for (int64_t j = 0; j < padded(span); j += STEP) {
        int64_t at = block->head * call->n + offset + j;
        float *scores = block->scores + offset + j;
        if (j >= any_to || j + STEP <= any_from) {
            for (int64_t r = 0; r < BLOCK; r++)
                for (int64_t k = 0; k < STEP; k++)
                    scores[r * call->stride + k] = -INFINITY;
            continue;
        }
        int whole = j >= all_from && j + STEP <= all_to;
        for (int r = 0; r < BLOCK; r += 6) {
            const int8_t *q = block->q + r * dim;
            const int32_t *start = block->start + r, *from = block->from + r, *to = block->to + r;
            const uint8_t *keys = call->packed + at * dim;
            const float *q_scale = block->scale + r, *k_scale = call->k_scale + at;
            float *row = scores + r * call->stride, *most = block->most + 16 * r;
            if (whole)
                score_step(6, 0, q, start, q_scale, dim, keys, k_scale, from, to, j, row,
                           call->stride, most);
            else
                score_step(6, 1, q, start, q_scale, dim, keys, k_scale, from, to, j, row,
                           call->stride, most);
        }
    }
}

static void attend_block(const call_t *call, int64_t head, int64_t first, int64_t n, float *scores)
{
    const int64_t dim = call->dim, rows = call->group * call->n_queries;
    const int vectors = (int)((dim + 15) / 16);
    block_t block = {.head = head, .first = first, .n = n, .scores = scores};
    float values[VALUES * MAX_DIM], sums[BLOCK * MAX_DIM] = {0}, total[BLOCK];
    memcpy(block.q, call->q + (head * rows + first) * dim, n * dim);
    for (int64_t r = 0; r < n; r++) {
        block.start[r] = row_start(block.q + r * dim, dim);
        block.scale[r] = call->q_scale[head * rows + first + r] * call->scale;
    }
    for (int64_t i = 0; i < BLOCK * 16; i++)
        block.most[i] = -INFINITY;
    for (int64_t i = 0, offset = 0; i < call->n_spans; offset += padded(call->spans + i), i++)
        score_span(call, &block, call->spans + i, offset);
    for (int64_t r = 0; r < BLOCK; r++) {
        float most = _mm512_reduce_max_ps(_mm512_loadu_ps(block.most + 16 * r));
        const float *v_scale = call->v_scale + head * call->n;
        total[r] = sum16(weigh_scores(scores + r * call->stride, v_scale, call->n, most));
    }
    for (int64_t i = 0, offset = 0; i < call->n_spans; offset += padded(call->spans + i), i++) {
        const span_t *span = call->spans + i;
        for (int64_t j = 0; j < span->n; j += VALUES) {
            int64_t left = span->n - j < VALUES ? span->n - j : VALUES;
            const int8_t *v = span->v + (head * span->stride + j) * dim;
            convert_values(v, left, dim, vectors, values);
            add_block(vectors, scores + offset + j, call->stride, values, left, sums);
        }
    }
    for (int64_t r = 0; r < n; r++) {
        int64_t t = (first + r) % call->n_queries, g = (first + r) / call->n_queries;
        float inverse = total[r] == 0 ? 0 : 1 / total[r];
        float *row = call->out + ((t * call->n_kv + head) * call->group + g) * dim;
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
    int64_t n = all_keys(spans, n_spans), rows = group * n_queries;
    int64_t blocks = (rows + BLOCK - 1) / BLOCK;
    float *floats = (float *)(((uintptr_t)memory + 63) / 64 * 64);
    float *scores = floats + 2 * n_kv * n;
    uint8_t *packed = (uint8_t *)(scores + threads * BLOCK * (n + 16));
    const call_t call = {q, q_scale, spans, n_spans, n_kv, group, n_queries, dim, n, packed,
                         floats, floats + n_kv * n, n + 16, scale, out};
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        for (int64_t i = 0, offset = 0; i < n_spans; offset += padded(spans + i), i++) {
            int64_t steps = padded(spans + i) / STEP;
#pragma omp for schedule(static) nowait
            for (int64_t k = 0; k < n_kv * steps; k++) {
                int64_t head = k / steps, j = k % steps * STEP, at = head * n + offset + j;
                pack_step(spans + i, head, j, dim, packed + at * dim, call.k_scale + at,
                          call.v_scale + at);
            }
        }
        float *own = scores + omp_get_thread_num() * BLOCK * call.stride;
#pragma omp barrier
#pragma omp for schedule(static)
        for (int64_t k = 0; k < n_kv * blocks; k++) {
            int64_t first = k % blocks * BLOCK, left = rows - first;
            attend_block(&call, k / blocks, first, left < BLOCK ? left : BLOCK, own);
        }
    }
}
