/* A whole layer for one row: the steps of a decoded token in one call.
 *
 * The same functions in the same order as the steps called one by one, hence the same bits; what it
 * saves is the way back and forth between them, which costs a third of a token at short contexts.
 *
 * Letters: D hidden, Hq query heads, H key heads, d head dimension, F inner channels.
 */
#include "kernels.h"

/* int8 weight [N, K] with a scale per output channel. */
typedef struct {
    const int8_t *codes;
    const float *scale;
} matrix_t;

typedef struct {
    const float *attention_norm, *ffn_norm;
    matrix_t qkv, output, gate_up, down;
    int64_t hidden, n_q, n_kv, dim, inner;
    float eps, scale;
} layer_t;

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t widest(const layer_t *layer)
{
    int64_t heads = (layer->n_q + 2 * layer->n_kv) * layer->dim;
    return larger(larger(heads, 2 * layer->inner), layer->hidden);
}

/* Bytes of scratch that ced_layer_row needs. */
int64_t ced_layer_row_scratch(const layer_t *layer, const span_t *spans, int64_t n_spans)
{
    int64_t width = widest(layer);
    return (2 * width + 2 * layer->n_q + 32) * 4 + 2 * width + 64 +
           ced_attend_row_scratch(spans, n_spans, layer->n_q);
}

/* x [D] -> out [D]: attention to `spans` and the feed-forward. The row's own keys and values go
 * into row `first` of kv_codes [2, H, C, d], kv_scale [2, H, C], which spans may hold; nowhere for
 * null. cos and sin [d]. `threads` share the products, `key_threads` the keys. */
void ced_layer_row(const layer_t *layer, const float *x, const float *cos, const float *sin,
                   int8_t *kv_codes, uint16_t *kv_scale, int64_t capacity, int64_t first,
                   const span_t *spans, int64_t n_spans, float *out, void *memory, int threads,
                   int key_threads)
{
    int64_t hidden = layer->hidden, n_q = layer->n_q, n_kv = layer->n_kv, dim = layer->dim;
    int64_t inner = layer->inner, width = widest(layer);
    float *floats = (float *)(((uintptr_t)memory + 63) / 64 * 64);
    int32_t *product = (int32_t *)floats;
    float *attended = floats + width, *q_scale = attended + width, *row_scale = q_scale + n_q;
    int8_t *codes = (int8_t *)(row_scale + 16), *q_codes = codes + width;
    void *parts = (void *)(((uintptr_t)(q_codes + width) + 63) / 64 * 64);

    ced_norm_rows(x, layer->attention_norm, layer->eps, 1, hidden, codes, row_scale, 1);
    ced_product_row(codes, layer->qkv.codes, (n_q + 2 * n_kv) * dim, hidden, product, threads);
    ced_split_heads(product, layer->qkv.scale, row_scale, cos, sin, 1, n_q, n_kv, dim, q_codes,
                    q_scale, kv_codes, kv_scale, capacity, first, 1);
    ced_attend_row(q_codes, q_scale, spans, n_spans, n_kv, n_q / n_kv, dim, layer->scale, attended,
                   parts, key_threads);
    ced_quantize(attended, 1, n_q * dim, codes, row_scale, 1);
    ced_product_row(codes, layer->output.codes, hidden, n_q * dim, product, threads);
    ced_add_norm_rows(x, product, layer->output.scale, row_scale, layer->ffn_norm, layer->eps, 1,
                      hidden, out, codes, row_scale, 1);
    ced_product_row(codes, layer->gate_up.codes, 2 * inner, hidden, product, threads);
    ced_gate_rows(product, layer->gate_up.scale, row_scale, 1, inner, codes, row_scale, 1);
    ced_product_row(codes, layer->down.codes, hidden, inner, product, threads);
    ced_dequantize(out, product, layer->down.scale, row_scale, 1, hidden, out, 1);
}
