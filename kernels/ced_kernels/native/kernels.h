/* What the files of the library call of each other: one row's steps of a layer.
 *
 * Arguments are described where the functions are defined. Python lays out `span_t` in calls.py.
 */
#ifndef CED_KERNELS_H
#define CED_KERNELS_H

#include <stdint.h>

/* A run of key rows. Query t sees keys from[t] .. to[t] - 1, all n where from is null. `stride` is
 * the number of rows from one head to the next. */
typedef struct {
    const int8_t *k, *v;
    const uint16_t *k_scale, *v_scale;
    int64_t stride, n;
    const int32_t *from, *to;
} span_t;

void ced_product_row(const int8_t *x, const int8_t *weight, int64_t n_out, int64_t n, int32_t *out,
                     int threads);
void ced_quantize(const float *x, int64_t n_rows, int64_t n, int8_t *codes, float *scale,
                  int threads);
void ced_norm_rows(const float *x, const float *weight, float eps, int64_t n_rows, int64_t n,
                   int8_t *codes, float *scale, int threads);
void ced_dequantize(const float *x, const int32_t *product, const float *channel_scale,
                    const float *row_scale, int64_t n_rows, int64_t n, float *out, int threads);
void ced_add_norm_rows(const float *x, const int32_t *product, const float *channel_scale,
                       const float *row_scale, const float *weight, float eps, int64_t n_rows,
                       int64_t n, float *out, int8_t *codes, float *scale, int threads);
void ced_gate_rows(const int32_t *product, const float *channel_scale, const float *row_scale,
                   int64_t n_rows, int64_t n, int8_t *codes, float *scale, int threads);
void ced_split_heads(const int32_t *product, const float *channel_scale, const float *row_scale,
                     const float *cos, const float *sin, int64_t n_rows, int64_t n_q,
                     int64_t n_kv, int64_t dim, int8_t *q_codes, float *q_scale, int8_t *kv_codes,
                     uint16_t *kv_scale, int64_t capacity, int64_t first, int threads);
int64_t ced_attend_row_scratch(const span_t *spans, int64_t n_spans, int64_t n_heads);
void ced_attend_row(const int8_t *q, const float *q_scale, const span_t *spans, int64_t n_spans,
                    int64_t n_kv, int64_t group, int64_t dim, float scale, float *out, void *memory,
                    int threads);

#endif
