/* Activations of the feed-forward layer. */

#include "nmt_kernels.h"
#include "vectors.h"

INLINE vector relu(vector x) { return larger(x, (vector){0}); }

INLINE vector magnitude(vector x) { return (vector)((integers)x & 0x7fffffff); }

/* Return x * sigmoid(x) as max(0, x) - |x| * sigmoid(-|x|), which does not overflow. */
INLINE vector silu(vector x) {
    vector e = exponential(-magnitude(x));
    return relu(x) - magnitude(x) * e / (e + broadcast(1.0f));
}

/* Return x * Phi(x) as max(0, x) - |x| * Phi(-|x|), where Phi is the normal distribution function by formula 7.1.26 of
 * Abramowitz and Stegun: within 1e-7. */
INLINE vector gelu(vector x) {
    vector a = magnitude(x), t = broadcast(1.0f) / (a * broadcast(0.231641888f) + broadcast(1.0f));
    vector p = t * broadcast(0.5307027145f) - broadcast(0.7265760135f);
    p = p * t + broadcast(0.7107068705f);
    p = p * t - broadcast(0.142248368f);
    p = p * t + broadcast(0.127414796f);
    return relu(x) - a * p * t * exponential(a * a * broadcast(-0.5f));
}

/* Compute x = activation(x + bias) in place (rows, width). The activation is a compile-time constant. */
INLINE void add_bias(vector (*activation)(vector), int64_t rows, int64_t width, float *x, const float *bias) {
    for (int64_t row = 0; row < rows; row++, x += width) {
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) store(x + i, activation(load(x + i) + load(bias + i)));
        for (; i < width; i++) x[i] = activation(broadcast(x[i] + bias[i]))[0];
    }
}

void nmt_add_bias_relu(int64_t rows, int64_t width, float *x, const float *bias) {
    add_bias(relu, rows, width, x, bias);
}

void nmt_add_bias_silu(int64_t rows, int64_t width, float *x, const float *bias) {
    add_bias(silu, rows, width, x, bias);
}

void nmt_add_bias_gelu(int64_t rows, int64_t width, float *x, const float *bias) {
    add_bias(gelu, rows, width, x, bias);
}
