/* Row operations around the int8 products: quantise, norm, dequantise, residual, gate.
 *
 * Letters: T rows, D channels, F inner channels. Rows are independent and are shared out to threads
 * in fixed runs; each is worked on by one thread from start to end, so bits do not depend on T or
 * on the number of threads. `threads` 1 starts no parallel region.
 */
#include "kernels.h"
#include "vec.h"

/* y = x * (1 / sqrt(mean(x^2) + eps)) * weight. */
INLINE void norm_row(const float *x, const float *weight, float eps, int64_t n, float *y)
{
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(lanes_below(i, n), x + i);
        squares = _mm512_fmadd_ps(v, v, squares);
    }
    float inverse = 1 / sqrtf(sum16(squares) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * inverse * weight[i];
}

/* x [T, D] -> codes [T, D], scale [T]. */
void ced_quantize(const float *x, int64_t n_rows, int64_t n, int8_t *codes, float *scale,
                  int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < n_rows; t++)
        scale[t] = quantize_row(x + t * n, n, codes + t * n);
}

/* x [T, D], weight [D] -> codes [T, D], scale [T] of the RMS-normalised rows. */
void ced_norm_rows(const float *x, const float *weight, float eps, int64_t n_rows, int64_t n,
                   int8_t *codes, float *scale, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < n_rows; t++) {
        float y[n];
        norm_row(x + t * n, weight, eps, n, y);
        scale[t] = quantize_row(y, n, codes + t * n);
    }
}

/* product [T, D] int32 -> out [T, D] float32; with x [T, D] (may be out) added when not null. */
void ced_dequantize(const float *x, const int32_t *product, const float *channel_scale,
                    const float *row_scale, int64_t n_rows, int64_t n, float *out, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < n_rows; t++) {
        float y[n];
        if (!x) {
            dequantize_row(product + t * n, channel_scale, row_scale[t], n, out + t * n);
            continue;
        }
        dequantize_row(product + t * n, channel_scale, row_scale[t], n, y);
        for (int64_t i = 0; i < n; i++)
            out[t * n + i] = x[t * n + i] + y[i];
    }
}

/* out = x + product as float32, then codes and scale of its RMS-normalised rows. */
void ced_add_norm_rows(const float *x, const int32_t *product, const float *channel_scale,
                       const float *row_scale, const float *weight, float eps, int64_t n_rows,
                       int64_t n, float *out, int8_t *codes, float *scale, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < n_rows; t++) {
        float y[n];
        dequantize_row(product + t * n, channel_scale, row_scale[t], n, y);
        for (int64_t i = 0; i < n; i++)
            out[t * n + i] = x[t * n + i] + y[i];
        norm_row(out + t * n, weight, eps, n, y);
        scale[t] = quantize_row(y, n, codes + t * n);
    }
}

/* product [T, 2F] int32 of gate and up -> codes [T, F], scale [T] of silu(gate) * up. */
void ced_gate_rows(const int32_t *product, const float *channel_scale, const float *row_scale,
                   int64_t n_rows, int64_t n, int8_t *codes, float *scale, int threads)
{
    const __m512 one = _mm512_set1_ps(1), zero = _mm512_setzero_ps();
    /* 2^129 is infinite, so that silu of what is cut off is 0. */
    const __m512 limit = _mm512_set1_ps(129), minus_log2e = _mm512_set1_ps(-LOG2E);
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < n_rows; t++) {
        float y[2 * n];
        dequantize_row(product + t * 2 * n, channel_scale, row_scale[t], 2 * n, y);
        for (int64_t i = 0; i < n; i += 16) {
            __mmask16 lanes = lanes_below(i, n);
            __m512 gate = _mm512_maskz_loadu_ps(lanes, y + i);
            __m512 up = _mm512_maskz_loadu_ps(lanes, y + n + i);
            __m512 x = _mm512_mul_ps(gate, minus_log2e);
            x = _mm512_max_ps(_mm512_sub_ps(zero, limit), _mm512_min_ps(limit, x));
            __m512 silu = _mm512_div_ps(gate, _mm512_add_ps(one, exp2_16(x)));
            _mm512_mask_storeu_ps(y + i, lanes, _mm512_mul_ps(silu, up));
        }
        scale[t] = quantize_row(y, n, codes + t * n);
    }
}
