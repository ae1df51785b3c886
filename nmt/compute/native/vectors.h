/* Vectors of fp32 numbers and what is computed with them.
 *
 * They use the vector extension of GCC and Clang and are as wide as the instruction set allows; they need only the
 * alignment of a float. */

#ifndef VECTORS_H
#define VECTORS_H

#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4 /* SSE2 or NEON */
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint32_t naturals __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE vector load(const float *from) { return *(const vector *)from; }

INLINE void store(float *to, vector values) { *(vector *)to = values; }

/* Numbers in bf16 are the upper halves of fp32 numbers. */
typedef uint16_t halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

INLINE vector load_bf16(const char *from) {
    return (vector)(__builtin_convertvector(*(const halves *)from, naturals) << 16);
}

/* Round to the nearest number, and of two to the even one; not for NaN. */
INLINE void store_bf16(char *to, vector values) {
    naturals bits = (naturals)values;
    *(halves *)to = __builtin_convertvector((bits + 0x7fff + (bits >> 16 & 1)) >> 16, halves);
}

INLINE void copy(int64_t width, const float *from, float *to) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) store(to + i, load(from + i));
    for (; i < width; i++) to[i] = from[i];
}

INLINE vector broadcast(float value) { return value - (vector){0}; }

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (integers){__VA_ARGS__})
#endif

/* Swap neighbouring groups of 8, 4, 2 or 1 lanes, to reduce a vector in log2(LANES) steps. */
#if LANES == 16
#define EIGHTS(a) SHUFFLE(a, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define FOURS(a) SHUFFLE(a, a, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define TWOS(a) SHUFFLE(a, a, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define ONES(a) SHUFFLE(a, a, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif LANES == 8
#define FOURS(a) SHUFFLE(a, a, 4, 5, 6, 7, 0, 1, 2, 3)
#define TWOS(a) SHUFFLE(a, a, 2, 3, 0, 1, 6, 7, 4, 5)
#define ONES(a) SHUFFLE(a, a, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define TWOS(a) SHUFFLE(a, a, 2, 3, 0, 1)
#define ONES(a) SHUFFLE(a, a, 1, 0, 3, 2)
#endif

/* Interleave the first or the last halves of a and b. */
#if LANES == 16
#define FIRST_HALVES(a, b) SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define LAST_HALVES(a, b) SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif LANES == 8
#define FIRST_HALVES(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define LAST_HALVES(a, b) SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define FIRST_HALVES(a, b) SHUFFLE(a, b, 0, 4, 1, 5)
#define LAST_HALVES(a, b) SHUFFLE(a, b, 2, 6, 3, 7)
#endif

/* Transpose LANES vectors of LANES numbers in place. */
INLINE void transpose(vector *rows) {
    for (int stage = 1; stage < LANES; stage *= 2) {
        vector mixed[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            mixed[2 * i] = FIRST_HALVES(rows[i], rows[i + LANES / 2]);
            mixed[2 * i + 1] = LAST_HALVES(rows[i], rows[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) rows[i] = mixed[i];
    }
}

/* Return the larger of a and b in each lane; b if either is NaN. One instruction, where a comparison takes three. */
INLINE vector larger(vector a, vector b) {
#if defined(__AVX512F__)
    return (vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vector)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
    return (vector)_mm_max_ps((__m128)a, (__m128)b);
#else
    integers first = a > b;
    return (vector)(((integers)a & first) | ((integers)b & ~first));
#endif
}

/* Return the integer part of each lane, and any number for NaN and for what is beyond 32 bits. C defines no conversion
 * of these; the processor's does, and takes one instruction. */
INLINE integers truncated(vector x) {
#if defined(__AVX512F__)
    return (integers)_mm512_cvttps_epi32((__m512)x);
#elif defined(__AVX2__)
    return (integers)_mm256_cvttps_epi32((__m256)x);
#elif defined(__x86_64__)
    return (integers)_mm_cvttps_epi32((__m128)x);
#else
    integers fits = (x > broadcast(-0x1p31f)) & (x < broadcast(0x1p31f));
    return __builtin_convertvector((vector)((integers)x & fits), integers);
#endif
}

INLINE float sum(vector values) {
#if LANES > 8
    values += EIGHTS(values);
#endif
#if LANES > 4
    values += FOURS(values);
#endif
    values += TWOS(values);
    values += ONES(values);
    return values[0];
}

INLINE float largest(vector values) {
#if LANES > 8
    values = larger(values, EIGHTS(values));
#endif
#if LANES > 4
    values = larger(values, FOURS(values));
#endif
    values = larger(values, TWOS(values));
    values = larger(values, ONES(values));
    return values[0];
}

INLINE float inverse_root(float x) { return 1.0f / __builtin_sqrtf(x); }

/* Return e^x for x <= 0, by the polynomial of Cephes, within 2 ulp; return 0 below -87 and for NaN. */
INLINE vector exponential(vector x) {
    integers kept = x > broadcast(-87.0f);
    vector scaled = x * broadcast(1.44269504f) - broadcast(0.5f); /* so that truncation rounds to nearest */
    integers power = truncated(scaled);
    vector n = __builtin_convertvector(power, vector);
    vector r = x - n * broadcast(0.693359375f) + n * broadcast(2.12194440e-4f);
    vector p = r * broadcast(1.9875691500e-4f) + broadcast(1.3981999507e-3f);
    p = p * r + broadcast(8.3334519073e-3f);
    p = p * r + broadcast(4.1665795894e-2f);
    p = p * r + broadcast(1.6666665459e-1f);
    p = p * r + broadcast(5.0000001201e-1f);
    p = p * r * r + r + broadcast(1.0f);
    return (vector)((integers)(p * (vector)(((naturals)power + 127) << 23)) & kept);
}

#endif
