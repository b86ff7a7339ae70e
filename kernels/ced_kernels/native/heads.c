/* From an int32 product to attention's rows: dequantise, rotate, quantise, write into the cache.
 *
 * Letters: T rows, Hq query heads, H key heads, D head dimension, C rows of cache capacity. A row
 * of the product is [Hq queries | H keys | H values], each D channels; Hq may be 0.
 */
#include "kernels.h"
#include "vec.h"

/* Half-split rotation: channel i turns with channel i + D/2 (Su et al. 2021, section 3.4.2). */
INLINE void rotate_row(const float *x, const float *cos, const float *sin, int64_t dim, float *y)
{
    int64_t half = dim / 2;
    for (int64_t i = 0; i < half; i++) {
        y[i] = x[i] * cos[i] + -x[i + half] * sin[i];
        y[i + half] = x[i + half] * cos[i + half] + x[i] * sin[i + half];
    }
}

/* product [T, (Hq + 2H) D], cos and sin [T, D] -> q_codes [Hq, T, D], q_scale [Hq, T] float32, and
 * rows first .. first + T - 1 of kv_codes [2, H, C, D], kv_scale [2, H, C] float16 (none for a null
 * kv_codes). */
void ced_split_heads(const int32_t *product, const float *channel_scale, const float *row_scale,
                     const float *cos, const float *sin, int64_t n_rows, int64_t n_q,
                     int64_t n_kv, int64_t dim, int8_t *q_codes, float *q_scale, int8_t *kv_codes,
                     uint16_t *kv_scale, int64_t capacity, int64_t first, int threads)
{
    int64_t width = (n_q + 2 * n_kv) * dim;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t t = 0; t < n_rows; t++) {
        float x[width], turned[dim];
        dequantize_row(product + t * width, channel_scale, row_scale[t], width, x);
        for (int64_t h = 0; h < n_q; h++) {
            rotate_row(x + h * dim, cos + t * dim, sin + t * dim, dim, turned);
            q_scale[h * n_rows + t] =
                quantize_row(turned, dim, q_codes + (h * n_rows + t) * dim);
        }
        if (!kv_codes)
            continue;
        for (int64_t h = 0; h < 2 * n_kv; h++) {
            const float *value = x + (n_q + h) * dim;
            if (h < n_kv) {
                rotate_row(value, cos + t * dim, sin + t * dim, dim, turned);
                value = turned;
            }
            int64_t row = h * capacity + first + t;
            kv_scale[row] = quantize_row_half(value, dim, kv_codes + row * dim);
        }
    }
}
