/* The exact int8 product of one row with a weight: what a decode step does, bound by memory.
 *
 * Letters: K channels in, N channels out. Weights are shifted to unsigned on the way, so that
 * sum (w + 128) x = w.x + 128 sum(x). Integer sums are exact, so the result is that of every other
 * exact product.
 */
#include "kernels.h"
#include "vec.h"

#define OUTPUTS 8          /* weight rows read side by side */
#define AHEAD 4096         /* bytes between the weights in use and those asked for */
#define PARALLEL (1 << 17) /* weight bytes below which a second thread costs more than it helps */

INLINE void product_outputs(const int outputs, const int8_t *x, int32_t start, const int8_t *weight,
                            int64_t n, int32_t *out)
{
    const __m512i shift = _mm512_set1_epi8((char)0x80);
    __m512i sums[OUTPUTS];
#pragma GCC unroll 8
    for (int r = 0; r < outputs; r++)
        sums[r] = _mm512_setzero_si512();
    for (int64_t i = 0; i < n; i += 64) {
        __mmask64 bytes = n - i >= 64 ? ~0ull : (1ull << (n - i)) - 1;
        __m512i row = _mm512_maskz_loadu_epi8(bytes, x + i);
#pragma GCC unroll 8
        for (int r = 0; r < outputs; r++) {
            const int8_t *w = weight + r * n + i;
            _mm_prefetch((const char *)w + AHEAD, _MM_HINT_T0);
            __m512i codes = _mm512_xor_si512(_mm512_maskz_loadu_epi8(bytes, w), shift);
            sums[r] = _mm512_dpbusd_epi32(sums[r], codes, row);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < outputs; r++)
        out[r] = start + _mm512_reduce_add_epi32(sums[r]);
}

/* x [K], weight [N, K] int8 -> out [N] int32 = weight x. */
void ced_product_row(const int8_t *x, const int8_t *weight, int64_t n_out, int64_t n, int32_t *out,
                     int threads)
{
    int32_t start = 0;
    for (int64_t i = 0; i < n; i++)
        start -= 128 * x[i];
    int64_t runs = n_out / OUTPUTS;
    int parallel = threads > 1 && n_out * n >= PARALLEL;
#pragma omp parallel for num_threads(threads) schedule(static) if (parallel)
    for (int64_t k = 0; k < runs; k++)
        product_outputs(OUTPUTS, x, start, weight + k * OUTPUTS * n, n, out + k * OUTPUTS);
    for (int64_t k = runs * OUTPUTS; k < n_out; k++)
        product_outputs(1, x, start, weight + k * n, n, out + k);
}
