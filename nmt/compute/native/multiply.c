/* Products in fp32 of any two matrices, for training. */

#include "dropout.h"
#include "nmt_kernels.h"
#include "threads.h"
#include "tiles.h"

#define DEPTH 1024 /* terms that are summed at a time: a panel of this depth fits in the second-level cache */
#define STRIP_ROWS 1024 /* most rows of a transposed `a` that are laid out at a time */
#define ROWS_TOGETHER (8 * TILE_ROWS) /* a thread lays them out in one pass */
#define AHEAD 16 /* terms that are fetched ahead then; processors do not foresee long strides */

typedef struct {
    int64_t rows, width, outputs;
    const float *a;
    int64_t a_row, a_step;
    const float *b;
    int64_t b_step, b_output;
    float scale;
    const float *start; /* `out`, or the bias or null before the first terms */
    int64_t start_row;
    const nmt_finish *finish; /* null before the last terms */
    float *out, *strips, *sums;
    int64_t index; /* of the first element of `out` in the whole result */
    int64_t share_rows;
    items shared; /* rows to lay out, then shares */
} multiplication;

/* Lay out a transposed `a` as strips (width, TILE_ROWS), padded with zeros, and add its terms to `sums`. */
static void pack_strips(void *shared) {
    multiplication *p = shared;
    int64_t first, end;
    while (take(&p->shared, &first, &end)) {
        int64_t count = end - first;
        float row[ROWS_TOGETHER] = {0}, sums[ROWS_TOGETHER] = {0};
        for (int64_t k = 0; k < p->width; k++) {
            const float *from = p->a + first + k * p->a_step;
            if (k + AHEAD < p->width)
                for (int64_t r = 0; r < count; r += 16) __builtin_prefetch(from + AHEAD * p->a_step + r);
            if (count < ROWS_TOGETHER) copy(count, from, row), from = row;
            for (int r = 0; r < ROWS_TOGETHER; r++) sums[r] += from[r];
            for (int64_t r = 0; r < count; r += TILE_ROWS)
                __builtin_memcpy(
                    p->strips + (first + r) * p->width + k * TILE_ROWS, from + r, TILE_ROWS * sizeof *from);
        }
        for (int64_t r = 0; r < count && p->sums; r++) p->sums[first + r] += sums[r];
    }
}

/* Lay out `depth` terms of b for `count` outputs, times `scale`, as (depth, whole vectors of outputs). */
static void pack_panel(
    int64_t depth, int64_t count, const float *b, int64_t b_step, int64_t b_output, float scale, float *panel) {
    int64_t across = (count + LANES - 1) / LANES * LANES, k = 0;
    if (b_output != 1) {
        for (; k + LANES <= depth; k += LANES) {
            for (int64_t i = 0; i < across; i += LANES) {
                vector block[LANES];
                for (int j = 0; j < LANES; j++) {
                    block[j] = (vector){0};
                    if (i + j < count) block[j] = load(b + (i + j) * b_output + k) * broadcast(scale);
                }
                transpose(block);
                for (int j = 0; j < LANES; j++) store(panel + (k + j) * across + i, block[j]);
            }
        }
    }
    for (; k < depth; k++) {
        int64_t i = 0;
        if (b_output == 1)
            for (; i + LANES <= count; i += LANES)
                store(panel + k * across + i, load(b + k * b_step + i) * broadcast(scale));
        for (; i < across; i++) panel[k * across + i] = i < count ? b[k * b_step + i * b_output] * scale : 0.0f;
    }
}

/* Multiply `rows` rows from `row` on by a panel of terms from `k` on. `vectors` is a compile-time constant. */
INLINE void multiply_share(int vectors, const multiplication *p, int64_t row, int64_t rows, int64_t k, int64_t depth,
    const float *panel, const float *start, int64_t start_row, int64_t count, float *out) {
    if (!p->strips) {
        multiply_panel(vectors, rows, depth, p->a + row * p->a_row + k, p->a_row, 1, panel, vectors * LANES, start,
            start_row, count, out, p->outputs);
        return;
    }
    for (int64_t r = 0; r < rows; r += TILE_ROWS)
        multiply_rows(TILE_ROWS, vectors, rows - r < TILE_ROWS ? rows - r : TILE_ROWS, depth,
            p->strips + (row + r) * p->width + k * TILE_ROWS, 1, TILE_ROWS, panel, vectors * LANES,
            start + r * start_row, start_row, count, out + r * p->outputs, p->outputs);
}

/* Return results from `index` on, rectified and dropped, or 0 where `gates` are not positive. */
INLINE vector finished(const nmt_finish *f, int64_t index, vector x, vector gates) {
    if (f->gate) return (vector)((integers)x & ~(gates <= (vector){0}));
    return keep(larger((vector){0}, x), index, f->seed, f->bound); /* NaN stays */
}

/* Finish `count` outputs of each row. */
static void finish_rows(const nmt_finish *f, int64_t rows, int64_t count, int64_t stride, int64_t index, float *out) {
    for (int64_t row = 0; row < rows; row++, out += stride, index += stride) {
        const float *gates = f->gate ? f->gate + index : out;
        int64_t i = 0;
        for (; i + LANES <= count; i += LANES) store(out + i, finished(f, index + i, load(out + i), load(gates + i)));
        float last[LANES] = {0}, last_gates[LANES] = {0};
        copy(count - i, out + i, last);
        copy(count - i, gates + i, last_gates);
        store(last, finished(f, index + i, load(last), load(last_gates)));
        copy(count - i, last, out + i);
    }
}

/* Compute shares, panels of outputs for some of the rows, that no other thread has taken, until none is left. */
static void multiply_shares(void *shared) {
    multiplication *p = shared;
    int64_t panels = (p->outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS, share, end;
    while (take(&p->shared, &share, &end)) {
        int64_t first = share % panels * PANEL_OUTPUTS, count = p->outputs - first;
        int64_t row = share / panels * p->share_rows, rows = p->rows - row;
        if (rows > p->share_rows) rows = p->share_rows;
        if (count > PANEL_OUTPUTS) count = PANEL_OUTPUTS;
        float panel[DEPTH * PANEL_OUTPUTS], zeros[PANEL_OUTPUTS] = {0};
        float *out = p->out + row * p->outputs + first;
        if (p->start && !p->start_row) copy(count, p->start + first, zeros);
        const float *start = p->start_row ? out : zeros;
        int64_t start_row = p->start_row;
        for (int64_t k = 0; k < p->width || k == 0; k += DEPTH, start = out, start_row = p->outputs) {
            int64_t depth = p->width - k < DEPTH ? p->width - k : DEPTH;
            pack_panel(
                depth, count, p->b + k * p->b_step + first * p->b_output, p->b_step, p->b_output, p->scale, panel);
            switch (panel_vectors(p->outputs, first)) {
            case 1: multiply_share(1, p, row, rows, k, depth, panel, start, start_row, count, out); break;
            case 2: multiply_share(2, p, row, rows, k, depth, panel, start, start_row, count, out); break;
            default: multiply_share(3, p, row, rows, k, depth, panel, start, start_row, count, out);
            }
        }
        if (p->finish) finish_rows(p->finish, rows, count, p->outputs, p->index + row * p->outputs + first, out);
    }
}

void nmt_multiply(int64_t rows, int64_t width, int64_t outputs, const float *a, int64_t a_row, int64_t a_step,
    const float *b, int64_t b_step, int64_t b_output, float scale, const float *bias, int32_t adds,
    const nmt_finish *finish, float *sums, float *out, float *strips, nmt_run_in_threads *parallel, int32_t threads) {
    if (rows == 0 || outputs == 0) return;
    int64_t at_once = rows, terms = width > 0 ? width : 1;
    int64_t operations = rows * width * outputs, panels = (outputs + PANEL_OUTPUTS - 1) / PANEL_OUTPUTS;
    if (strips) {
        at_once = rows < STRIP_ROWS ? rows : STRIP_ROWS;
        terms = NMT_STRIPS / ((at_once + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS) / DEPTH * DEPTH;
    }
    for (int64_t row = 0; row < rows; row += at_once)
        for (int64_t k = 0; k < width || k == 0; k += terms) {
            multiplication p = {rows - row < at_once ? rows - row : at_once, width - k < terms ? width - k : terms,
                outputs, a + row * a_row + k * a_step, a_row, a_step, b + k * b_step, b_step, b_output, scale, bias, 0,
                k + terms < width ? 0 : finish, out + row * outputs, strips, sums ? sums + row : 0, row * outputs, 0,
                {0}};
            if (adds || k > 0) p.start = p.out, p.start_row = outputs;
            if (strips) {
                p.shared = (items){p.rows, ROWS_TOGETHER, 0};
                in_threads(pack_strips, &p, operations, parallel, threads);
            }
            int64_t parts = threads > 1 ? 4 * threads / panels + 1 : 1; /* a few shares for each thread */
            p.share_rows = ((p.rows - 1) / parts / TILE_ROWS + 1) * TILE_ROWS;
            p.shared = (items){(p.rows + p.share_rows - 1) / p.share_rows * panels, 1, 0};
            in_threads(multiply_shares, &p, operations, parallel, threads);
        }
}
