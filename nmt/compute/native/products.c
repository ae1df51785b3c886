/* Matrix products in fp32, of few rows and a matrix that is laid out once. */

#include "nmt_kernels.h"
#include "threads.h"
#include "tiles.h"

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

typedef struct {
    items outputs;
    int64_t rows, width;
    const float *x, *matrix, *bias;
    float *out;
} product;

/* Compute panels that no other thread has taken, until none is left. */
static void multiply_panels(void *shared) {
    product *p = shared;
    int64_t first, end, outputs = p->outputs.count;
    while (take(&p->outputs, &first, &end)) {
        float bias[PANEL_OUTPUTS] = {0};
        if (p->bias) copy(end - first, p->bias + first, bias);
        const float *panel = p->matrix + first * p->width;
#define PANEL(VECTORS)                                                                                                 \
    multiply_panel(VECTORS, p->rows, p->width, p->x, p->width, 1, panel, VECTORS *LANES, bias, 0, end - first,         \
        p->out + first, outputs)
        switch (panel_vectors(outputs, first)) {
        case 1: PANEL(1); break;
        case 2: PANEL(2); break;
        default: PANEL(3);
        }
#undef PANEL
    }
}

void nmt_product(int64_t rows, int64_t width, int64_t outputs, const float *x, const float *matrix, const float *bias,
    float *out, nmt_run_in_threads *parallel, int32_t threads) {
    product shared = {{outputs, PANEL_OUTPUTS, 0}, rows, width, x, matrix, bias, out};
    in_threads(multiply_panels, &shared, rows * width * outputs, parallel, threads);
}
