/* Vector helpers that every kernel shares: exp, reductions, and the quantisation of one row.
 *
 * Float sums run in 16 lanes (element i in lane i mod 16) that are added in one fixed tree, so a
 * row's bits depend on its values and length alone. Compiled with -ffp-contract=off: what is fused
 * is written as fmadd. Tails use masks; nothing past a row's end is read or written.
 */
#ifndef CED_VEC_H
#define CED_VEC_H

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LARGEST_HALF 65504.0f

/* Lanes i .. i + 15 that lie below n. */
INLINE __mmask16 lanes_below(int64_t i, int64_t n)
{
    return n - i >= 16 ? 0xFFFF : (__mmask16)((1u << (n - i)) - 1);
}

#define LOG2E 1.44269504f

/* 2^x: n = round(x), 2^(x - n) by a polynomial of degree 5 with the least relative error on
 * [-0.5, 0.5] among those that are 1 at 0 (9.1e-8, in float32 1.6e-7), scaled by 2^n. Infinite from
 * 128 on; NaN for infinite or NaN x. */
INLINE __m512 exp2_16(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_sub_ps(x, n);
    __m512 y = _mm512_set1_ps(1.326472731e-3f);
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(9.671512991e-3f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.550733581e-2f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(2.402224243e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(6.931470037e-1f));
    y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(y, n);
}

/* Sum of 16 lanes, lane i with i + 8, then + 4, + 2, + 1. */
INLINE float sum16(__m512 x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

INLINE float half_round(float x)
{
    return _cvtsh_ss(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
}

/* Largest |x|. Magnitudes are compared as integers, so that a NaN is the largest and is seen. */
INLINE float row_amax(const float *x, int64_t n)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i most = _mm512_setzero_si512();
    for (int64_t i = 0; i < n; i += 16) {
        __m512i bits = _mm512_castps_si512(_mm512_maskz_loadu_ps(lanes_below(i, n), x + i));
        most = _mm512_max_epu32(most, _mm512_and_si512(bits, magnitude));
    }
    uint32_t bits = _mm512_reduce_max_epu32(most);
    float amax;
    memcpy(&amax, &bits, sizeof amax);
    return amax;
}

/* codes = clamp(round(x / scale)), ties to even; all 0 for scales whose inverse is infinite. */
INLINE void row_codes(const float *x, int64_t n, float scale, int8_t *codes)
{
    const __m512 inverse = _mm512_set1_ps(scale >= FLT_MIN ? 1 / scale : 0);
    const __m512 top = _mm512_set1_ps(127), bottom = _mm512_set1_ps(-127);
    for (int64_t i = 0; i < n; i += 16) {
        __mmask16 lanes = lanes_below(i, n);
        __m512 y = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), inverse);
        /* The value is the second operand, so that a NaN passes through to code 0. */
        y = _mm512_max_ps(bottom, _mm512_min_ps(top, y));
        __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(y));
        /* Masked byte stores are slow on some CPUs; only a tail needs one. */
        if (lanes == 0xFFFF)
            _mm_storeu_si128((__m128i *)(codes + i), bytes);
        else
            _mm_mask_storeu_epi8(codes + i, lanes, bytes);
    }
}

/* A row as codes with a float32 scale. */
INLINE float quantize_row(const float *x, int64_t n, int8_t *codes)
{
    float scale = row_amax(x, n) / 127;
    row_codes(x, n, scale, codes);
    return scale;
}

/* A row as codes with a float16 scale, rounded before the codes are taken. */
INLINE uint16_t quantize_row_half(const float *x, int64_t n, int8_t *codes)
{
    float scale = row_amax(x, n) / 127;
    scale = scale > LARGEST_HALF ? LARGEST_HALF : scale;
    row_codes(x, n, half_round(scale), codes);
    return _cvtss_sh(scale, _MM_FROUND_TO_NEAREST_INT);
}

/* out[i] = (product[i] * channel_scale[i]) * row_scale: an int32 product as float32. */
INLINE void dequantize_row(const int32_t *product, const float *channel_scale, float row_scale,
                           int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)product[i] * channel_scale[i] * row_scale;
}

#endif
