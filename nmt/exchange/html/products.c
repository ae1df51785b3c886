/* Products of fp32 rows by a matrix in 8 bits, for WebAssembly with SIMD; products.js has the same in JavaScript.
 *
 * A matrix has a row of bytes for each output, and a scale by which these are multiplied. Nothing else is compiled into
 * the module: no C library, and no memory but what the page gives it.
 */

#include <stdint.h>
#include <wasm_simd128.h>

#define TILE 4 /* rows that are multiplied together, so that each weight is converted once for all of them */
#define STRIDE 16 /* weights that are converted together */

static inline float sum(v128_t x) {
    return (wasm_f32x4_extract_lane(x, 0) + wasm_f32x4_extract_lane(x, 2)) +
           (wasm_f32x4_extract_lane(x, 1) + wasm_f32x4_extract_lane(x, 3));
}

/* Multiply `together` rows, a compile-time constant, by the whole matrix. */
static inline __attribute__((always_inline)) void multiply_rows(
    int together, int width, int outputs, const float *x, const int8_t *matrix, const float *scales, float *out) {
    for (int output = 0; output < outputs; output++, matrix += width) {
        v128_t sums[TILE];
        for (int row = 0; row < together; row++) sums[row] = wasm_f32x4_splat(0.0f);
        int k = 0;
        for (; k + STRIDE <= width; k += STRIDE) {
            v128_t bytes = wasm_v128_load(matrix + k);
            v128_t low = wasm_i16x8_extend_low_i8x16(bytes), high = wasm_i16x8_extend_high_i8x16(bytes);
            v128_t weights[4] = {
                wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(low)),
                wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(low)),
                wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(high)),
                wasm_f32x4_convert_i32x4(wasm_i32x4_extend_high_i16x8(high)),
            };
            for (int row = 0; row < together; row++)
                for (int part = 0; part < 4; part++) {
                    v128_t of_row = wasm_v128_load(x + row * width + k + 4 * part);
                    sums[row] = wasm_f32x4_add(sums[row], wasm_f32x4_mul(of_row, weights[part]));
                }
        }
        for (int row = 0; row < together; row++) {
            float total = sum(sums[row]);
            for (int rest = k; rest < width; rest++) total += x[row * width + rest] * matrix[rest];
            out[row * outputs + output] = total * scales[output];
        }
    }
}

/* Store in `out` (rows, outputs) the products of x (rows, width) and a matrix (outputs, width) with `scales` (outputs).
 */
__attribute__((export_name("multiply"))) void multiply(
    int rows, int width, int outputs, const float *x, const int8_t *matrix, const float *scales, float *out) {
    int row = 0;
    for (; row + TILE <= rows; row += TILE)
        multiply_rows(TILE, width, outputs, x + row * width, matrix, scales, out + row * outputs);
    for (; row + 2 <= rows; row += 2)
        multiply_rows(2, width, outputs, x + row * width, matrix, scales, out + row * outputs);
    for (; row < rows; row++) multiply_rows(1, width, outputs, x + row * width, matrix, scales, out + row * outputs);
}
