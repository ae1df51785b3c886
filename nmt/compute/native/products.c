/* Matrix products in fp32, of few rows and a matrix that is laid out once. */

#include "nmt_kernels.h"
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
#define PANEL(VECTORS)                                                                                                 \
    multiply_panel(VECTORS, p->rows, p->width, p->x, p->width, 1, panel, VECTORS *LANES, bias, 0, count,               \
        p->out + first, p->outputs)
        switch (panel_vectors(p->outputs, first)) {
        case 1: PANEL(1); break;
        case 2: PANEL(2); break;
        default: PANEL(3);
        }
#undef PANEL
    }
}

void nmt_product(int64_t rows, int64_t width, int64_t outputs, const float *x, const float *matrix, const float *bias,
    float *out, nmt_run_in_threads *parallel, int32_t threads) {
    product shared = {rows, width, outputs, 0, x, matrix, bias, out};
    if (parallel && threads > 1 && rows * width * outputs > NMT_SHARED_FROM) {
        parallel(multiply_panels, &shared, (unsigned)threads, 0);
    } else {
        multiply_panels(&shared);
    }
}
