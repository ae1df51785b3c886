/* The body of the C kernels. Each file that includes it is compiled for one instruction set and becomes one shared
 * library, which `loading.py` opens. The libraries are never imported as Python modules and do not need Python.h.
 *
 * Vectors are those of GCC and Clang, as wide as the instruction set allows. All numbers are fp32; matrices are stored
 * row by row without gaps; pointers need no alignment beyond that of a float.
 */

#include <stdint.h>

/* Increase it, and VERSION in loading.py, whenever the behaviour or the arguments of a function change. */
#define NMT_KERNELS_VERSION 1

#if defined(_WIN32)
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
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

/* setuptools expects an extension module to have this function; as a module, the library would be empty. */
EXPORTED void *MODULE_INIT(void) { return 0; }

EXPORTED int32_t nmt_kernels_version(void) { return NMT_KERNELS_VERSION; }

INLINE vector load(const float *from) { return *(const vector *)from; }

INLINE void store(float *to, vector values) { *(vector *)to = values; }

INLINE vector broadcast(float value) { return value - (vector){0}; }

INLINE float sum(vector values) {
    float lanes[LANES];
    store(lanes, values);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

/* --- residual and layer normalisation ------------------------------------------------------------------------- */

/* total = x + z + bias, of one row; returns the sum of total. */
INLINE float add_row(int64_t width, const float *x, const float *z, const float *bias, float *total) {
    vector sums = {0};
    float rest = 0.0f;
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vector t = load(x + i) + load(z + i);
        if (bias) t += load(bias + i);
        store(total + i, t);
        sums += t;
    }
    for (; i < width; i++) {
        float t = x[i] + z[i];
        if (bias) t += bias[i];
        total[i] = t;
        rest += t;
    }
    return sum(sums) + rest;
}

/* The sum of the squares of x - mean, of one row. */
INLINE float squares_of_row(int64_t width, const float *x, float mean) {
    vector sums = {0};
    float rest = 0.0f;
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vector difference = load(x + i) - broadcast(mean);
        sums += difference * difference;
    }
    for (; i < width; i++) rest += (x[i] - mean) * (x[i] - mean);
    return sum(sums) + rest;
}

/* out = (x - mean) * scale * weight + shift, of one row. */
INLINE void scale_row(
    int64_t width, const float *x, float mean, float scale, const float *weight, const float *shift, float *out) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES)
        store(out + i, (load(x + i) - broadcast(mean)) * broadcast(scale) * load(weight + i) + load(shift + i));
    for (; i < width; i++) out[i] = (x[i] - mean) * scale * weight[i] + shift[i];
}

INLINE float inverse_root(float x) { return 1.0f / __builtin_sqrtf(x); }

/* total = x + z + bias and norm = LayerNorm(total), both (rows, width). `bias` (width) may be null, and `total` may be
 * null if only the norm is wanted. `total` and `norm` may be `x` or `z`, but not the same. */
EXPORTED void nmt_add_norm(
    int64_t rows, int64_t width, const float *x, const float *z, const float *bias, const float *weight,
    const float *shift, float epsilon, float *total, float *norm) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t start = row * width;
        float *sums = total ? total + start : norm + start;
        float mean = add_row(width, x + start, z + start, bias, sums) / (float)width;
        float variance = squares_of_row(width, sums, mean) / (float)width;
        scale_row(width, sums, mean, inverse_root(variance + epsilon), weight, shift, norm + start);
    }
}
