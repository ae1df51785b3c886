/* Products in 8-bit integers. */

#include "nmt_kernels.h"
#include "threads.h"
#include "vectors.h"

/* A tile of TILE_ROWS rows by PANEL_VECTORS vectors of outputs is summed in registers. */
#define TILE_ROWS 4
#if defined(__AVX512F__)
#define PANEL_VECTORS 4
#define VNNI "avx512vnni"
#define ADD_PRODUCTS "vpdpbusd %2, %1, %0"
#elif defined(__AVX2__)
#define PANEL_VECTORS 2
#if __GNUC__ >= 12 /* others do not know this name; Clang says that it is GCC 4 */
#define VNNI "avxvnni"
#define ADD_PRODUCTS "%{vex%} vpdpbusd %2, %1, %0"
#endif
#else
#define PANEL_VECTORS 0 /* nmt_int8_product is not supported */
#endif
#if defined(VNNI)
#define HAS_VNNI __builtin_cpu_supports(VNNI)
#else
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
#if defined(VNNI)
    if (vnni) {
        __asm__(ADD_PRODUCTS : "+v"(sums) : "v"(x), "v"(w));
        return sums;
    }
#endif
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

typedef struct {
    items outputs;
    int64_t rows, width;
    const uint8_t *x;
    const float *row_scales, *scales;
    const int8_t *matrix;
    const int32_t *shifts;
    float *out;
} product;

/* Multiply all rows by panels that no other thread has taken, until none is left. A panel stays in the cache. */
INLINE void multiply(int vnni, product *p) {
    int64_t first, end, width = p->width, outputs = p->outputs.count;
    while (take(&p->outputs, &first, &end)) {
        int64_t row = 0;
#define ROWS(N)                                                                                                        \
    for (; row + N <= p->rows; row += N)                                                                               \
        multiply_by_panel(vnni, N, width, outputs, p->x + row * width, p->row_scales + row, p->matrix + first * width, \
            p->shifts + first, p->scales + first, outputs - first, p->out + row * outputs + first);
        ROWS(TILE_ROWS)
        ROWS(1)
#undef ROWS
    }
}

static void multiply_in_pairs(void *shared) { multiply(0, shared); }

#if defined(VNNI)
__attribute__((target(VNNI))) static void multiply_by_vnni(void *shared) { multiply(1, shared); }
#else
#define multiply_by_vnni multiply_in_pairs
#endif

#endif

int32_t nmt_int8_panel(void) { return PANEL_OUTPUTS; }

int32_t nmt_int8_limit(void) { return HAS_VNNI ? 127 : PANEL_VECTORS ? 64 : 0; }

void nmt_int8_product(int64_t rows, int64_t width, int64_t outputs, const uint8_t *x, const float *row_scales,
    const int8_t *matrix, const int32_t *shifts, const float *scales, float *out, nmt_run_in_threads *parallel,
    int32_t threads) {
#if PANEL_VECTORS
    product shared = {{outputs, PANEL_OUTPUTS, 0}, rows, width, x, row_scales, scales, matrix, shifts, out};
    void (*multiply_panels)(void *) = HAS_VNNI ? multiply_by_vnni : multiply_in_pairs;
    in_threads(multiply_panels, &shared, rows * width * outputs, parallel, threads);
#else
    (void)rows, (void)width, (void)outputs, (void)x, (void)row_scales, (void)matrix, (void)shifts, (void)scales;
    (void)out, (void)parallel, (void)threads;
#endif
}
