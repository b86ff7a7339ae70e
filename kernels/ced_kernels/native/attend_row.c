/* Attention of one query row (a decode step) over int8 keys and values.
 *
 * The keys are cut into units of UNIT keys per key head; a unit is packed, scored and summed by one
 * thread, with a maximum of its own, and the units of a head are joined in order. Units depend on
 * the spans alone, so the bits do not depend on the number of threads.
 */
#include "attend.h"

#define UNIT 512
#define GROUP 6  /* query heads of a unit; more heads of one key head make more units */

/* What a unit leaves: per query head its maximum, its sum, and D weighted values. */
#define PART (2 + MAX_DIM)

static int64_t units_of(const span_t *spans, int64_t n_spans)
{
    int64_t units = 0;
    for (int64_t s = 0; s < n_spans; s++)
        units += (spans[s].n + UNIT - 1) / UNIT;
    return units;
}

/* Bytes of scratch that ced_attend_row needs. */
int64_t ced_attend_row_scratch(const span_t *spans, int64_t n_spans, int64_t n_heads)
{
    return n_heads * units_of(spans, n_spans) * PART * (int64_t)sizeof(float);
}

/* n bytes from p on are asked for: the other half of the cache is read soon, from main memory. */
INLINE void ask_for(const int8_t *p, int64_t n)
{
    for (int64_t i = 0; i < n; i += 64)
        _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

INLINE void weigh(const int rows, const int vectors, const float *p, const int8_t *v, int64_t n,
                  int64_t dim, const int8_t *next, float *parts)
{
    __m512 sums[GROUP][MAX_VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            sums[r][c] = _mm512_setzero_ps();
    for (int64_t j = 0; j < n; j++) {
        ask_for(next + j * dim, dim);
        __m512 value[MAX_VECTORS];
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++) {
            __m128i codes = _mm_maskz_loadu_epi8(lanes_below(16 * c, dim), v + j * dim + 16 * c);
            value[c] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
        }
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m512 weight = _mm512_set1_ps(p[r * UNIT + j]);
#pragma GCC unroll 8
            for (int c = 0; c < vectors; c++)
                sums[r][c] = _mm512_fmadd_ps(weight, value[c], sums[r][c]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int c = 0; c < vectors; c++)
            _mm512_storeu_ps(parts + r * MAX_DIM + 16 * c, sums[r][c]);
}

static void weigh_all(int rows, int vectors, const float *p, const int8_t *v, int64_t n,
                      int64_t dim, const int8_t *next, float *parts)
{
    /* Three rows at a time: the values of one key are converted once for a group of three. */
    for (int r = 0; r < rows; r += 3) {
        const float *weights = p + r * UNIT;
        float *to = parts + r * MAX_DIM;
        switch (vectors) {
        case 1: weigh(3, 1, weights, v, n, dim, next, to); break;
        case 2: weigh(3, 2, weights, v, n, dim, next, to); break;
        case 3: weigh(3, 3, weights, v, n, dim, next, to); break;
        case 4: weigh(3, 4, weights, v, n, dim, next, to); break;
        case 5: weigh(3, 5, weights, v, n, dim, next, to); break;
        case 6: weigh(3, 6, weights, v, n, dim, next, to); break;
        case 7: weigh(3, 7, weights, v, n, dim, next, to); break;
        default: weigh(3, 8, weights, v, n, dim, next, to); break;
        }
    }
}

/* Keys j .. j + UNIT - 1 of a span for query heads first .. first + rows - 1 of key head `head`;
 * part [rows, PART], a query head's parts being `step` floats apart. */
static void attend_unit(const int8_t *q, const float *q_scale, const span_t *span, int64_t head,
                        int64_t j, int64_t first, int rows, int64_t dim, float scale, float *part,
                        int64_t step)
{
    int8_t queries[GROUP * MAX_DIM] = {0};
    int32_t start[GROUP] = {0}, from[GROUP] = {0}, to[GROUP] = {0};
    float row_scale[GROUP] = {0}, most[GROUP * 16], scores[GROUP * UNIT], v_scale[UNIT];
    float sums[GROUP * MAX_DIM], k_scale[STEP];
    uint8_t packed[STEP * MAX_DIM];
    int64_t n = span->n - j < UNIT ? span->n - j : UNIT, padded = (n + STEP - 1) / STEP * STEP;
    memcpy(queries, q + first * dim, rows * dim);
    for (int r = 0; r < rows; r++) {
        start[r] = row_start(queries + r * dim, dim);
        row_scale[r] = q_scale[first + r] * scale;
        from[r] = span->from ? span->from[0] : 0;
        to[r] = span->to && span->to[0] < span->n ? span->to[0] : (int32_t)span->n;
    }
    for (int i = 0; i < GROUP * 16; i++)
        most[i] = -INFINITY;
    const int8_t *values = span->v + (head * span->stride + j) * dim;
    for (int64_t i = 0; i < padded; i += STEP) {
        ask_for(values + i * dim, STEP * dim);
        pack_step(span, head, j + i, dim, packed, k_scale, v_scale + i);
        for (int r = 0; r < rows; r += 3)
            score_step(3, 1, queries + r * dim, start + r, row_scale + r, dim, packed, k_scale,
                       from + r, to + r, j + i, scores + r * UNIT + i, UNIT, most + 16 * r);
    }
    for (int r = 0; r < (rows + 2) / 3 * 3; r++) {
        float top = _mm512_reduce_max_ps(_mm512_loadu_ps(most + 16 * r));
        float total = sum16(weigh_scores(scores + r * UNIT, v_scale, padded, top));
        if (r < rows) {
            part[r * step] = top;
            part[r * step + 1] = total;
        }
    }
    weigh_all(rows, (int)((dim + 15) / 16), scores, values, n, dim,
              span->k + (head * span->stride + j + UNIT) * dim, sums);
    for (int r = 0; r < rows; r++)
        memcpy(part + r * step + 2, sums + r * MAX_DIM, dim * sizeof(float));
}

/* Units of one query head -> out [D]: each is scaled from its own maximum to the head's. */
static void join(const float *parts, int64_t units, int64_t dim, float *out)
{
    float top = -INFINITY, total = 0, sums[MAX_DIM] = {0};
    for (int64_t u = 0; u < units; u++)
        top = parts[u * PART] > top ? parts[u * PART] : top;
    for (int64_t u = 0; u < units; u++) {
        const float *part = parts + u * PART;
        if (part[0] == -INFINITY && part[1] == 0)
            continue;
        __mmask16 kept;
        float weight = _mm512_cvtss_f32(weights(exponent(_mm512_set1_ps(part[0]), top), &kept));
        total += part[1] * weight;
        for (int64_t d = 0; d < dim; d++)
            sums[d] += part[2 + d] * weight;
    }
    for (int64_t d = 0; d < dim; d++)
        out[d] = total == 0 ? 0 : sums[d] / total;
}

/* q [Hq, 1, D], q_scale [Hq, 1] -> out [Hq * D]; arguments as ced_attend_tile with one query. */
void ced_attend_row(const int8_t *q, const float *q_scale, const span_t *spans, int64_t n_spans,
                    int64_t n_kv, int64_t group, int64_t dim, float scale, float *out, void *memory,
                    int threads)
{
    float *parts = memory;
    int64_t units = units_of(spans, n_spans), groups = (group + GROUP - 1) / GROUP;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < n_kv * groups * units; k++) {
        int64_t head = k / units / groups, g = k / units % groups * GROUP, unit = k % units;
        int64_t first = head * group + g, s = 0, j = unit * UNIT;
        for (; j >= spans[s].n; s++)
            j -= (spans[s].n + UNIT - 1) / UNIT * UNIT;
        int rows = (int)(group - g < GROUP ? group - g : GROUP);
        attend_unit(q, q_scale, spans + s, head, j, first, rows, dim, scale,
                    parts + (first * units + unit) * PART, units * PART);
    }
    for (int64_t h = 0; h < n_kv * group; h++)
        join(parts + h * units * PART, units, dim, out + h * dim);
}
