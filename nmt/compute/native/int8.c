/* Products in 8-bit integers. */

#include "nmt_kernels.h"
#include "vectors.h"

/* A tile of TILE_ROWS rows by PANEL_VECTORS vectors of outputs is summed in registers. */
#define TILE_ROWS 4
#if defined(__AVX512F__)
#define PANEL_VECTORS 4
#define HAS_VNNI __builtin_cpu_supports("avx512vnni")
#elif defined(__AVX2__)
#define PANEL_VECTORS 2
#define HAS_VNNI 0
#else
#define PANEL_VECTORS 0 /* nmt_int8_product is not supported */
#define HAS_VNNI 0
#endif
#define PANEL_OUTPUTS (PANEL_VECTORS * LANES)

typedef int32_t four_bytes __attribute__((aligned(1), may_alias));

/* Truncating a positive number rounds to nearest, halves up. The maximum is taken over the bits without the sign, which
 * sort like absolute values, NaN last. */
void nmt_quantise_rows(
    int64_t rows, int64_t width, const float *restrict x, uint8_t *restrict quantised, float *scales) {
    for (int64_t row = 0; row < rows; row++, x += width, quantised += width) {
        integers best = {0};
        union {
            int32_t bits;
            float number;
        } most = {0}, one;
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            integers size = (integers)load(x + i) & 0x7fffffff, more = size > best;
            best = (size & more) | (best & ~more);
        }
        for (int lane = 0; lane < LANES; lane++) most.bits = best[lane] > most.bits ? best[lane] : most.bits;
        for (; i < width; i++) {
            one.number = x[i], one.bits &= 0x7fffffff;
            most.bits = one.bits > most.bits ? one.bits : most.bits;
        }
        float scale = most.number / 127.0f;
        scales[row] = scale = scale < 1e-12f ? 1e-12f : scale;
        float inverse = 1.0f / scale;
        /* Infinity and NaN are not converted to integers: C leaves their result undefined. */
        int64_t converted = most.bits < 0x7f800000 ? width : 0;
        /* Compilers pack bytes better in a scalar loop than in one of vectors. */
        for (i = 0; i < converted; i++) quantised[i] = (uint8_t)(int32_t)(x[i] * inverse + 128.5f);
        for (; i < width; i++) quantised[i] = 128;
    }
}

#if PANEL_VECTORS

/* Return sums + the products of unsigned x and signed w, four per lane. Compilers do not generate these instructions
 * from loops. Without VNNI, pairs are added in 16 bits, which is exact for |w| <= 64: 2 * 255 * 64 < 2**15. */
INLINE integers add_products(int vnni, integers sums, integers x, integers w) {
    if (vnni) {
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(x), "v"(w));
        return sums;
    }
    integers pairs, ones = (integers){0} + 0x00010001;
    __asm__("vpmaddubsw %2, %1, %0" : "=v"(pairs) : "v"(x), "v"(w));
    __asm__("vpmaddwd %1, %0, %0" : "+v"(pairs) : "v"(ones));
    return sums + pairs;
}

/* Multiply `together` rows, a compile-time constant, by one panel; store `count` outputs of each. */
INLINE void multiply_by_panel(int vnni, int together, int64_t width, int64_t outputs, const uint8_t *x,
    const float *row_scales, const int8_t *panel, const int32_t *shifts, const float *scales, int64_t count,
    float *out) {
    integers sums[TILE_ROWS][PANEL_VECTORS];
    for (int r = 0; r < together; r++)
        for (int i = 0; i < PANEL_VECTORS; i++) sums[r][i] = *(const integers *)(shifts + i * LANES);
    for (int64_t k = 0; k < width; k += 4, panel += 4 * PANEL_OUTPUTS) {
        integers weights[PANEL_VECTORS];
        for (int i = 0; i < PANEL_VECTORS; i++) weights[i] = *(const integers *)(panel + 4 * i * LANES);
        for (int r = 0; r < together; r++) {
            integers four = (integers){0} + *(const four_bytes *)(x + r * width + k);
            for (int i = 0; i < PANEL_VECTORS; i++) sums[r][i] = add_products(vnni, sums[r][i], four, weights[i]);
        }
    }
    for (int r = 0; r < together; r++)
        for (int i = 0; i < PANEL_VECTORS; i++) {
            vector y = __builtin_convertvector(sums[r][i], vector) * load(scales + i * LANES);
            y *= broadcast(row_scales[r]);
            if ((i + 1) * LANES <= count) {
                store(out + r * outputs + i * LANES, y);
            } else {
                for (int64_t lane = 0; lane < count - i * LANES; lane++) out[r * outputs + i * LANES + lane] = y[lane];
            }
        }
}

/* Multiply all rows by one panel after another, so that a panel stays in the cache. */
INLINE void multiply(int vnni, int64_t rows, int64_t width, int64_t outputs, const uint8_t *x, const float *row_scales,
    const int8_t *matrix, const int32_t *shifts, const float *scales, float *out) {
    for (int64_t first = 0; first < outputs; first += PANEL_OUTPUTS) {
        const int8_t *panel = matrix + first * width;
        int64_t row = 0, count = outputs - first;
        for (; row + TILE_ROWS <= rows; row += TILE_ROWS)
            multiply_by_panel(vnni, TILE_ROWS, width, outputs, x + row * width, row_scales + row, panel, shifts + first,
                scales + first, count, out + row * outputs + first);
        for (; row < rows; row++)
            multiply_by_panel(vnni, 1, width, outputs, x + row * width, row_scales + row, panel, shifts + first,
                scales + first, count, out + row * outputs + first);
    }
}

#if defined(__AVX512F__)
__attribute__((target("avx512vnni"))) static void multiply_by_vnni(int64_t rows, int64_t width, int64_t outputs,
    const uint8_t *x, const float *row_scales, const int8_t *matrix, const int32_t *shifts, const float *scales,
    float *out) {
    multiply(1, rows, width, outputs, x, row_scales, matrix, shifts, scales, out);
}
#endif

#endif

int32_t nmt_int8_panel(void) { return PANEL_OUTPUTS; }

int32_t nmt_int8_limit(void) { return HAS_VNNI ? 127 : PANEL_VECTORS ? 64 : 0; }

void nmt_int8_product(int64_t rows, int64_t width, int64_t outputs, const uint8_t *x, const float *row_scales,
    const int8_t *matrix, const int32_t *shifts, const float *scales, float *out) {
#if defined(__AVX512F__)
    if (HAS_VNNI) {
        multiply_by_vnni(rows, width, outputs, x, row_scales, matrix, shifts, scales, out);
        return;
    }
#endif
#if PANEL_VECTORS
    multiply(0, rows, width, outputs, x, row_scales, matrix, shifts, scales, out);
#else
    (void)rows, (void)width, (void)outputs, (void)x, (void)row_scales;
    (void)matrix, (void)shifts, (void)scales, (void)out;
#endif
}
