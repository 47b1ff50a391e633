/* Owns the small operations of a decoder layer on a CPU, each in one pass over its numbers.
 *
 * PyTorch computes the same in five to ten calls each (the fallback beside every caller says which), and a decode step of
 * one request makes 30 layers of them: the calls then cost as much as reading the weights. native.py compiles this file.
 *
 * This file is compiled twice: T is what is stored, float or bfloat16; all arithmetic is in float32. ROUND says where the
 * stored precision shows between two operations: at the same places as in vLLM's CPU backend.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef BFLOAT16
typedef uint16_t T;
static inline float load(T x) {
    uint32_t bits = (uint32_t)x << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline T store(float value) { /* to the nearest, ties to even; a NaN stays one */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? (T)0x7fc0 : (T)rounded;
}
#define NAME(name) name##_bfloat16
#else
typedef float T;
static inline float load(T x) { return x; }
static inline T store(float value) { return value; }
#define NAME(name) name##_float32
#endif
#define ROUND(value) load(store(value))

/* Below so many numbers a second thread costs more than it saves. */
#define WORTH_A_THREAD 16384

/* exp(x) = 2^n * 2^f with n whole and |f| <= 1/2; 2^f is its Taylor series. Relative error below 3e-7. Outside of
 * (-87, 88) it stays at the bound: a weight of e^-87 beside one of 1 is nothing. A NaN stays one, through y - n. */
static inline float fast_exp(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float y = x * 1.44269504f;
    float n = rintf(y), f = (y - n) * 0.693147181f;
    float power = 1.0f + f * (1.0f + f * (0.5f + f * (1.66666667e-1f + f * (4.16666667e-2f
                + f * (8.33333333e-3f + f * (1.38888889e-3f + f * 1.98412698e-4f))))));
    union { int32_t bits; float value; } scale = {((int32_t)n + 127) << 23};
    return power * scale.value;
}

/* residual += x; out = residual / sqrt(mean(residual^2) + eps) * weight. x, out: (rows, size); without a residual, x alone
 * is normalised. The sum is stored rounded, but normalised as it was before. */
void NAME(rms_norm)(T *out, const T *x, T *residual, const T *weight, int64_t rows, int64_t size, int64_t x_stride,
                    int64_t group, float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * size > WORTH_A_THREAD)
    for (int64_t row = 0; row < rows; row++) {
        const T *in = x + row / group * x_stride + row % group * size;
        float sum[size], squares = 0.0f;
        for (int64_t i = 0; i < size; i++)
            sum[i] = load(in[i]);
        if (residual)
            for (int64_t i = 0; i < size; i++) {
                sum[i] += load(residual[row * size + i]);
                residual[row * size + i] = store(sum[i]);
            }
        for (int64_t i = 0; i < size; i++)
            squares += sum[i] * sum[i];
        float scale = 1.0f / sqrtf(squares / size + eps);
        for (int64_t i = 0; i < size; i++)
            out[row * size + i] = store(ROUND(sum[i] * scale) * load(weight[i]));
    }
}

/* Rotate each pair (x[i], x[i + half]) of the heads of x by its token's angle i, in place. x: (tokens, heads, 2 * half),
 * tokens stride apart; cos, sin: (tokens, half). */
void NAME(rotate)(T *x, const T *cos, const T *sin, int64_t tokens, int64_t heads, int64_t half, int64_t stride,
                  int threads) {
#pragma omp parallel for num_threads(threads) if (tokens * heads * half > WORTH_A_THREAD)
    for (int64_t token = 0; token < tokens; token++)
        for (int64_t head = 0; head < heads; head++) {
            T *first = x + token * stride + head * 2 * half, *second = first + half;
            for (int64_t i = 0; i < half; i++) {
                float c = load(cos[token * half + i]), s = load(sin[token * half + i]);
                float a = load(first[i]), b = load(second[i]);
                first[i] = store(a * c - b * s);
                second[i] = store(b * c + a * s);
            }
        }
}

/* out = silu(gate) * up. gate_up: (rows, 2 * size), out: (rows, size). */
void NAME(silu_and_mul)(T *out, const T *gate_up, int64_t rows, int64_t size, int threads) {
#pragma omp parallel for num_threads(threads) if (rows * size > WORTH_A_THREAD)
    for (int64_t row = 0; row < rows; row++) {
        const T *gate = gate_up + row * 2 * size, *up = gate + size;
        for (int64_t i = 0; i < size; i++) {
            float g = load(gate[i]);
            out[row * size + i] = store(ROUND(g / (1.0f + fast_exp(-g))) * load(up[i]));
        }
    }
}

/* cache[slot of token] = key or value of token. A token's heads lie side by side: size numbers. */
void NAME(write_cache)(T *keys, T *values, const T *key, const T *value, const int64_t *slots, int64_t tokens,
                       int64_t size, int64_t key_stride, int64_t value_stride) {
    for (int64_t token = 0; token < tokens; token++) {
        memcpy(keys + slots[token] * size, key + token * key_stride, size * sizeof(T));
        memcpy(values + slots[token] * size, value + token * value_stride, size * sizeof(T));
    }
}

/* One query token of one request over its pages, for `kv_count` KV heads and the `group` of query heads of each.
 *     scores[h][t] = q[h] . key[t]       then softmax over t       then sums[h] = sum of scores[h][t] * value[t]
 * Each key and value is read once for its whole group, and only tokens from start to end are read: no gathering, no
 * padding. q, sums: (kv_count * group, dim); keys, values: (slots, kv_heads, dim) from the first KV head on, tokens step
 * apart. Inlined, so that dim is a constant. */
static inline __attribute__((always_inline)) void attend(float *restrict sums, const float *restrict q, const T *keys,
                                                         const T *values, float *restrict scores, const int32_t *blocks,
                                                         int64_t start, int64_t end, int64_t block_size, int64_t step,
                                                         int64_t kv_count, int64_t group, const int64_t dim) {
    int64_t count = end - start, heads = kv_count * group;
    for (int64_t t = 0; t < count; t++) {
        int64_t slot = (int64_t)blocks[(start + t) / block_size] * block_size + (start + t) % block_size;
        for (int64_t kv_head = 0, h = 0; kv_head < kv_count; kv_head++) {
            const T *key = keys + slot * step + kv_head * dim;
            for (int64_t end_of_group = h + group; h < end_of_group; h++) {
                float dot = 0.0f;
                for (int64_t i = 0; i < dim; i++)
                    dot += q[h * dim + i] * load(key[i]);
                scores[h * count + t] = dot;
            }
        }
    }
    for (int64_t h = 0; h < heads; h++) {
        float *row = scores + h * count, highest = row[0], total = 0.0f;
        for (int64_t t = 1; t < count; t++)
            highest = row[t] > highest ? row[t] : highest;
        for (int64_t t = 0; t < count; t++) {
            row[t] = fast_exp(row[t] - highest);
            total += row[t];
        }
        for (int64_t t = 0; t < count; t++)
            row[t] /= total;
    }
    for (int64_t t = 0; t < count; t++) {
        int64_t slot = (int64_t)blocks[(start + t) / block_size] * block_size + (start + t) % block_size;
        for (int64_t kv_head = 0, h = 0; kv_head < kv_count; kv_head++) {
            const T *value = values + slot * step + kv_head * dim;
            for (int64_t end_of_group = h + group; h < end_of_group; h++) {
                float weight = scores[h * count + t];
                for (int64_t i = 0; i < dim; i++)
                    sums[h * dim + i] += weight * load(value[i]);
            }
        }
    }
}

/* Attention of one query token per request. query, out: (requests, kv_heads * group, dim), the requests of query
 * query_stride apart; keys, values: (slots, kv_heads, dim); table: (requests, width) block ids. Request r sees its tokens
 * from first[r] to lengths[r]. A thread takes a whole request, so that it reads memory in one piece; or, where there are
 * few requests, one KV head of one. */
void NAME(paged_decode)(T *out, const T *query, const T *keys, const T *values, const int32_t *table, const int32_t *first,
                        const int32_t *lengths, int64_t requests, int64_t kv_heads, int64_t group, int64_t dim,
                        int64_t width, int64_t block_size, int64_t query_stride, int64_t longest, float scale,
                        int threads) {
    int64_t kv_count = requests < 2 * threads ? 1 : kv_heads, parts = kv_heads / kv_count, heads = kv_count * group;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (requests > 1 || longest > 512)
    for (int64_t piece = 0; piece < requests * parts; piece++) {
        int64_t request = piece / parts, kv_head = piece % parts;
        const int32_t *blocks = table + request * width;
        const T *in = query + request * query_stride + kv_head * heads * dim;
        const T *k = keys + kv_head * dim, *v = values + kv_head * dim;
        int64_t start = first[request], end = lengths[request], step = kv_heads * dim;
        float q[heads * dim], sums[heads * dim];
        float *scores = malloc(heads * (end - start) * sizeof(float)); /* too many for the stack of a thread */
        for (int64_t i = 0; i < heads * dim; i++) {
            q[i] = load(in[i]) * scale;
            sums[i] = 0.0f;
        }
        if (dim == 64)
            attend(sums, q, k, v, scores, blocks, start, end, block_size, step, kv_count, group, 64);
        else if (dim == 128)
            attend(sums, q, k, v, scores, blocks, start, end, block_size, step, kv_count, group, 128);
        else
            attend(sums, q, k, v, scores, blocks, start, end, block_size, step, kv_count, group, dim);
        for (int64_t i = 0; i < heads * dim; i++)
            out[(request * kv_heads + kv_head) * group * dim + i] = store(sums[i]);
        free(scores);
    }
}
