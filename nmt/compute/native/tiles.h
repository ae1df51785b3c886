/* Tiles of products in fp32, which are summed in registers. */

#ifndef TILES_H
#define TILES_H

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

/* Compute one tile, start + x panel: whole vectors of `out`, whose rows are `stride` apart, as those of `start` are
 * `start_row`. x[r * x_row + k * x_step] is factor k of row r; its weights begin at panel + k * panel_step. `rows` and
 * `vectors` are compile-time constants. */
INLINE void multiply_tile(int rows, int vectors, int64_t width, const float *x, int64_t x_row, int64_t x_step,
    const float *panel, int64_t panel_step, const float *start, int64_t start_row, float *out, int64_t stride) {
    vector sums[TILE_ROWS][PANEL_VECTORS], weights[PANEL_VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int i = 0; i < vectors; i++) sums[r][i] = load(start + r * start_row + i * LANES);
    for (int64_t k = 0; k < width; k++, panel += panel_step) {
#pragma GCC unroll 3
        for (int i = 0; i < vectors; i++) weights[i] = load(panel + i * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            vector factor = broadcast(x[r * x_row + k * x_step]);
#pragma GCC unroll 3
            for (int i = 0; i < vectors; i++) sums[r][i] += factor * weights[i];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 3
        for (int i = 0; i < vectors; i++) store(out + r * stride + i * LANES, sums[r][i]);
}

/* Compute the first `count` outputs of the first `used` rows of one tile. */
INLINE void multiply_rows(int rows, int vectors, int64_t used, int64_t width, const float *x, int64_t x_row,
    int64_t x_step, const float *panel, int64_t panel_step, const float *start, int64_t start_row, int64_t count,
    float *out, int64_t stride) {
    if (count == vectors * LANES && used == rows) {
        multiply_tile(rows, vectors, width, x, x_row, x_step, panel, panel_step, start, start_row, out, stride);
    } else { /* the last vector has fewer outputs, or the last rows are padding */
        float tile[TILE_ROWS * PANEL_OUTPUTS] = {0};
        for (int r = 0; r < used; r++) copy(count, start + r * start_row, tile + r * PANEL_OUTPUTS);
        multiply_tile(
            rows, vectors, width, x, x_row, x_step, panel, panel_step, tile, PANEL_OUTPUTS, tile, PANEL_OUTPUTS);
        for (int r = 0; r < used; r++) copy(count, tile + r * PANEL_OUTPUTS, out + r * stride);
    }
}

/* Multiply all rows of x by one panel, which stays in the cache. `vectors` is a compile-time constant. */
INLINE void multiply_panel(int vectors, int64_t rows, int64_t width, const float *x, int64_t x_row, int64_t x_step,
    const float *panel, int64_t panel_step, const float *start, int64_t start_row, int64_t count, float *out,
    int64_t stride) {
#define ROWS(N)                                                                                                        \
    for (; row + N <= rows; row += N)                                                                                  \
        multiply_rows(N, vectors, N, width, x + row * x_row, x_row, x_step, panel, panel_step,                         \
            start + row * start_row, start_row, count, out + row * stride, stride);
    int64_t row = 0;
    ROWS(TILE_ROWS)
    ROWS(4)
    ROWS(2)
    ROWS(1)
#undef ROWS
}

#endif
