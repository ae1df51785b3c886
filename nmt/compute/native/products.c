/* Matrix products in fp32, of few rows and a matrix that is laid out once. */

#include "nmt_kernels.h"
#include "vectors.h"

/* A tile of the result is summed in registers: TILE_ROWS rows by up to PANEL_VECTORS vectors of outputs. A row's sums
 * are the same in any tile, so they do not depend on other rows. */
#define TILE_ROWS (LANES == 16 ? 8 : 4)
#define PANEL_VECTORS 3
#define PANEL_OUTPUTS (PANEL_VECTORS * LANES)

/* Return the number of vectors in the panel of outputs from `first` on; only the last panel may have fewer. */
INLINE int64_t panel_vectors(int64_t outputs, int64_t first) {
    int64_t vectors = (outputs - first + LANES - 1) / LANES;
    return vectors < PANEL_VECTORS ? vectors : PANEL_VECTORS;
}

/* The layout is panels (width, outputs per panel), padded with zeros to whole vectors. LANES columns are copied at a
 * time, which stay in the cache. */
void nmt_pack(int64_t outputs, int64_t width, const float *matrix, float *packed) {
    for (int64_t first = 0; first < outputs; first += PANEL_OUTPUTS) {
        int64_t across = panel_vectors(outputs, first) * LANES;
        float *panel = packed + first * width;
        for (int64_t start = 0; start < width; start += LANES) {
            int64_t end = start + LANES < width ? start + LANES : width;
            for (int64_t i = 0; i < across; i++)
                for (int64_t k = start; k < end; k++)
                    panel[k * across + i] = first + i < outputs ? matrix[(first + i) * width + k] : 0.0f;
        }
    }
}

/* Compute one tile: whole vectors of `out`, whose rows are `stride` apart. `rows` and `vectors` are compile-time
 * constants; `bias` has a value for each lane. */
INLINE void multiply_tile(int rows, int vectors, int64_t width, const float *x, const float *panel, const float *bias,
    float *out, int64_t stride) {
    vector sums[TILE_ROWS][PANEL_VECTORS], weights[PANEL_VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int i = 0; i < vectors; i++) sums[r][i] = load(bias + i * LANES);
    for (int64_t k = 0; k < width; k++, panel += vectors * LANES) {
#pragma GCC unroll 3
        for (int i = 0; i < vectors; i++) weights[i] = load(panel + i * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vector factor = broadcast(x[r * width + k]);
#pragma GCC unroll 3
            for (int i = 0; i < vectors; i++) sums[r][i] += factor * weights[i];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int i = 0; i < vectors; i++) store(out + r * stride + i * LANES, sums[r][i]);
}

/* Compute the first `count` outputs of one tile. */
INLINE void multiply_rows(int rows, int vectors, int64_t width, const float *x, const float *panel, const float *bias,
    int64_t count, float *out, int64_t stride) {
    if (count == vectors * LANES) {
        multiply_tile(rows, vectors, width, x, panel, bias, out, stride);
    } else { /* the last vector has fewer outputs */
        float tile[TILE_ROWS * PANEL_OUTPUTS];
        multiply_tile(rows, vectors, width, x, panel, bias, tile, PANEL_OUTPUTS);
        for (int r = 0; r < rows; r++) copy(count, tile + r * PANEL_OUTPUTS, out + r * stride);
    }
}

/* Multiply all rows by one panel, which stays in the cache. `vectors` is a compile-time constant. */
INLINE void multiply_panel(int vectors, int64_t rows, int64_t width, int64_t outputs, const float *x,
    const float *panel, const float *bias, int64_t count, float *out) {
#define ROWS(N)                                                                                                        \
    for (; row + N <= rows; row += N)                                                                                  \
        multiply_rows(N, vectors, width, x + row * width, panel, bias, count, out + row * outputs, outputs);
    int64_t row = 0;
    ROWS(TILE_ROWS)
    ROWS(4)
    ROWS(2)
    ROWS(1)
#undef ROWS
}

typedef struct {
    int64_t rows, width, outputs, next; /* `next`: the first output that no thread computes yet */
    const float *x, *matrix, *bias;
    float *out;
} product;

/* Compute panels that no other thread has taken, until none is left. */
static void multiply_panels(void *shared) {
    product *p = shared;
    for (;;) {
        int64_t first = __atomic_fetch_add(&p->next, PANEL_OUTPUTS, __ATOMIC_RELAXED), count = p->outputs - first;
        if (count <= 0) return;
        if (count > PANEL_OUTPUTS) count = PANEL_OUTPUTS;
        float bias[PANEL_OUTPUTS] = {0};
        if (p->bias) copy(count, p->bias + first, bias);
        const float *panel = p->matrix + first * p->width;
        switch (panel_vectors(p->outputs, first)) {
        case 1: multiply_panel(1, p->rows, p->width, p->outputs, p->x, panel, bias, count, p->out + first); break;
        case 2: multiply_panel(2, p->rows, p->width, p->outputs, p->x, panel, bias, count, p->out + first); break;
        default: multiply_panel(3, p->rows, p->width, p->outputs, p->x, panel, bias, count, p->out + first);
        }
    }
}

/* Multiplications from which on threads share a product; waking them takes microseconds. */
#define SHARED_FROM (1 << 20)

void nmt_product(int64_t rows, int64_t width, int64_t outputs, const float *x, const float *matrix, const float *bias,
    float *out, nmt_run_in_threads *parallel, int32_t threads) {
    product shared = {rows, width, outputs, 0, x, matrix, bias, out};
    if (parallel && threads > 1 && rows * width * outputs > SHARED_FROM) {
        parallel(multiply_panels, &shared, (unsigned)threads, 0);
    } else {
        multiply_panels(&shared);
    }
}
