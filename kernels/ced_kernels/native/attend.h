/* Pieces of attention over int8 rows that the tile and the row kernel share.
 *
 * Keys are packed 16 at a time: vector d holds bytes 4d .. 4d + 3 of 16 keys, shifted to unsigned,
 * so that one vpdpbusd adds four channels of 16 keys: sum (k + 128) q = k.q + 128 sum(q), of which
 * the second part is taken off by the accumulator's start. Products are exact.
 */
#ifndef CED_ATTEND_H
#define CED_ATTEND_H

#include "kernels.h"
#include "vec.h"

#define STEP 64       /* keys of one score step: 4 packed vectors */
#define MAX_DIM 128   /* largest head dimension */
#define MAX_VECTORS (MAX_DIM / 16)

/* sum += keys (unsigned bytes) times query (signed bytes), four products a lane. As assembly, since
 * GCC 12 copies the accumulator of the intrinsic in every round of a loop. */
INLINE void add_products(__m512i *sum, __m512i keys, __m512i query)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(keys), "v"(query));
}

/* 16 rows of 16 dwords, transposed in place. */
INLINE void transpose16(__m512i r[16])
{
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
    }
}

/* n <= 16 key rows [n, D] -> packed [D/4, 16, 4] unsigned; missing rows are 128 (a zero key). */
INLINE void pack_keys(const int8_t *k, int64_t n, int64_t dim, uint8_t *packed)
{
    const __m512i shift = _mm512_set1_epi8((char)0x80);
    for (int64_t d = 0; d < dim; d += 64) {
        int64_t width = dim - d < 64 ? dim - d : 64;
        __mmask64 bytes = width == 64 ? ~0ull : (1ull << width) - 1;
        __m512i r[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) {
            __m512i row = _mm512_maskz_loadu_epi8(i < n ? bytes : 0, k + i * dim + d);
            r[i] = _mm512_xor_si512(row, shift);
        }
        transpose16(r);
        for (int64_t i = 0; i < width / 4; i++)
            _mm512_storeu_si512(packed + (d / 4 + i) * 64, r[i]);
    }
}

/* STEP keys of a span from key j on, packed, with both scales as float32 (0 past the end). */
INLINE void pack_step(const span_t *span, int64_t head, int64_t j, int64_t dim, uint8_t *packed,
                      float *k_scale, float *v_scale)
{
    int64_t row = head * span->stride + j;
    for (int64_t i = 0; i < STEP; i += 16) {
        int64_t left = span->n - j - i;
        left = left < 0 ? 0 : left > 16 ? 16 : left;
        __mmask16 lanes = (__mmask16)((1u << left) - 1);
        pack_keys(span->k + (row + i) * dim, left, dim, packed + i * dim);
        __m256i of_keys = _mm256_maskz_loadu_epi16(lanes, span->k_scale + row + i);
        __m256i of_values = _mm256_maskz_loadu_epi16(lanes, span->v_scale + row + i);
        _mm512_storeu_ps(k_scale + i, _mm512_cvtph_ps(of_keys));
        _mm512_storeu_ps(v_scale + i, _mm512_cvtph_ps(of_values));
    }
}

/* One query row's start: -128 sum(q). */
INLINE int32_t row_start(const int8_t *q, int64_t dim)
{
    int32_t sum = 0;
    for (int64_t i = 0; i < dim; i++)
        sum += q[i];
    return -128 * sum;
}

/* `rows` query rows times STEP packed keys, as scores (product * k_scale) * q_scale, where query
 * row r sees lanes from[r] .. to[r] - 1 of the step and all others are -inf. Rows of q are `dim`
 * bytes apart, rows of scores `stride` floats. `most` [rows, 16] collects lane maxima. */
INLINE void score_step(const int rows, const int masked, const int8_t *q, const int32_t *start,
                       const float *q_scale, int64_t dim, const uint8_t *packed,
                       const float *k_scale, const int32_t *from, const int32_t *to, int64_t j,
                       float *scores, int64_t stride, float *most)
{
    __m512i sums[6][4];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
            sums[r][c] = _mm512_set1_epi32(start[r]);
    for (int64_t d = 0; d < dim / 4; d++) {
        __m512i keys[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
            keys[c] = _mm512_loadu_si512(packed + c * 16 * dim + d * 64);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, q + r * dim + 4 * d, 4);
            __m512i query = _mm512_set1_epi32(four);
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++)
                add_products(&sums[r][c], keys[c], query);
        }
    }
    const __m512i index = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 nothing = _mm512_set1_ps(-INFINITY);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        __m512 largest = _mm512_loadu_ps(most + 16 * r);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            __m512 s = _mm512_cvtepi32_ps(sums[r][c]);
            s = _mm512_mul_ps(s, _mm512_loadu_ps(k_scale + 16 * c));
            s = _mm512_mul_ps(s, _mm512_set1_ps(q_scale[r]));
            if (masked) {
                __m512i key = _mm512_add_epi32(index, _mm512_set1_epi32((int32_t)j + 16 * c));
                __mmask16 seen = _mm512_cmpge_epi32_mask(key, _mm512_set1_epi32(from[r])) &
                                 _mm512_cmplt_epi32_mask(key, _mm512_set1_epi32(to[r]));
                s = _mm512_mask_mov_ps(nothing, seen, s);
            }
            _mm512_storeu_ps(scores + r * stride + 16 * c, s);
            largest = _mm512_max_ps(largest, s);
        }
        _mm512_storeu_ps(most + 16 * r, largest);
    }
}

/* The number whose power of two a score's weight is: (score - most) log2 e. The rounding of most
 * log2 e is common to all weights of a row and goes out with their sum. */
INLINE __m512 exponent(__m512 score, float most)
{
    /* A row that sees nothing has most -inf; its exponents are then -inf too. */
    float top = most == -INFINITY ? 0 : most * LOG2E;
    return _mm512_fmsub_ps(score, _mm512_set1_ps(LOG2E), _mm512_set1_ps(top));
}

/* Weights of exponents, with 0 for what float32 holds no more (hence for -inf); `kept` says where
 * they are not 0. NaN stays NaN. */
INLINE __m512 weights(__m512 exponent, __mmask16 *kept)
{
    *kept = _mm512_cmp_ps_mask(exponent, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    return _mm512_maskz_mov_ps(*kept, exp2_16(exponent));
}

/* Scores [n] of one row become, in place, weights times v_scale; returns the lane sums of the
 * weights. n is a multiple of 16. A score of -inf gives 0 whatever its scale holds. */
INLINE __m512 weigh_scores(float *scores, const float *v_scale, int64_t n, float most)
{
    __m512 sums = _mm512_setzero_ps();
    for (int64_t j = 0; j < n; j += 16) {
        __mmask16 kept;
        __m512 weight = weights(exponent(_mm512_loadu_ps(scores + j), most), &kept);
        sums = _mm512_add_ps(sums, weight);
        __m512 scaled = _mm512_maskz_mul_ps(kept, weight, _mm512_loadu_ps(v_scale + j));
        _mm512_storeu_ps(scores + j, scaled);
    }
    return sums;
}

#endif
