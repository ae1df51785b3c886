/* Residual and layer normalisation. */

#include "nmt_kernels.h"
#include "vectors.h"

/* Compute total = x + z + bias for one row; return the sum of `total`. `z` and `bias` may be null. */
INLINE float add_row(int64_t width, const float *x, const float *z, const float *bias, float *total) {
    vector sums = {0};
    float rest = 0.0f;
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vector t = load(x + i);
        if (z) t += load(z + i);
        if (bias) t += load(bias + i);
        store(total + i, t);
        sums += t;
    }
    for (; i < width; i++) {
        float t = z ? x[i] + z[i] : x[i];
        if (bias) t += bias[i];
        total[i] = t;
        rest += t;
    }
    return sum(sums) + rest;
}

/* Return the sum of (x - mean)^2 over one row. */
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

/* Compute out = (x - mean) * scale * weight + shift for one row. */
INLINE void scale_row(
    int64_t width, const float *x, float mean, float scale, const float *weight, const float *shift, float *out) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES)
        store(out + i, (load(x + i) - broadcast(mean)) * broadcast(scale) * load(weight + i) + load(shift + i));
    for (; i < width; i++) out[i] = (x[i] - mean) * scale * weight[i] + shift[i];
}

void nmt_add_norm(int64_t rows, int64_t width, const float *x, const float *z, const float *bias, const float *weight,
    const float *shift, float epsilon, float *total, float *norm) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t start = row * width;
        float *sums = total ? total + start : norm + start;
        float mean = add_row(width, x + start, z ? z + start : 0, bias, sums) / (float)width;
        float variance = squares_of_row(width, sums, mean) / (float)width;
        scale_row(width, sums, mean, inverse_root(variance + epsilon), weight, shift, norm + start);
    }
}
