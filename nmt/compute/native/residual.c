/* Dropout, residual sums and their layer normalisation in training, forward and backward; exponentials of logits. */

#include "dropout.h"
#include "nmt_kernels.h"
#include "threads.h"

#define AT_ONCE (1 << 14) /* elements that a thread takes */

typedef struct {
    items shared;
    int64_t width;
    const float *x, *z;
    int64_t seed;
    int32_t bound;
    float scale;
    const float *weight, *shift;
    float epsilon, *total, *norm, *moments;
    const float *sums, *of_rows, *total_grad, *norm_grad;
    float *x_grad, *z_grad, *partial_sums;
} residual;

/* Return scale * z where it is kept, else 0, for the elements from `i` on. */
INLINE vector dropped(const residual *p, const float *z, int64_t i) {
    return keep(load(z + i) * broadcast(p->scale), i, p->seed, p->bound);
}

void nmt_draw(int64_t size, int64_t seed, int32_t bound, int8_t *mask) {
    for (int64_t i = 0; i < size; i += LANES) {
        integers ones = kept(i, seed, bound) & 1;
        for (int j = 0; j < LANES; j++) mask[i + j] = (int8_t)ones[j];
    }
}

static void add_dropped(void *shared) {
    residual *p = shared;
    int64_t first, end;
    while (take(&p->shared, &first, &end))
        for (int64_t i = first; i < end; i += LANES) {
            vector total = dropped(p, p->z, i);
            if (p->x) total += load(p->x + i);
            store(p->total + i, total);
        }
}

void nmt_add_dropped(int64_t size, const float *x, const float *z, int64_t seed, int32_t bound, float scale, float *out,
    nmt_run_in_threads *parallel, int32_t threads) {
    residual p = {{size, AT_ONCE, 0}, 0, x, z, seed, bound, scale, .total = out};
    in_threads(add_dropped, &p, 4 * size, parallel, threads);
}

static void add_and_normalise(void *shared) {
    residual *p = shared;
    int64_t row, end;
    float count = (float)p->width;
    while (take(&p->shared, &row, &end))
        for (; row < end; row++) {
            vector sums = {0}, squares = {0};
            int64_t first = row * p->width, last = first + p->width;
            for (int64_t i = first; i < last; i += LANES) {
                vector t = load(p->x + i) + dropped(p, p->z, i);
                store(p->total + i, t);
                sums += t;
            }
            float mean = sum(sums) / count;
            for (int64_t i = first; i < last; i += LANES) {
                vector difference = load(p->total + i) - broadcast(mean);
                squares += difference * difference;
            }
            float inverse = inverse_root(sum(squares) / count + p->epsilon);
            for (int64_t i = 0; i < p->width; i += LANES)
                store(p->norm + first + i,
                    (load(p->total + first + i) - broadcast(mean)) * broadcast(inverse) * load(p->weight + i) +
                        load(p->shift + i));
            p->moments[2 * row] = mean, p->moments[2 * row + 1] = inverse;
        }
}

void nmt_residual(int64_t rows, int64_t width, const float *x, const float *z, int64_t seed, int32_t bound, float scale,
    const float *weight, const float *shift, float epsilon, float *total, float *norm, float *moments,
    nmt_run_in_threads *parallel, int32_t threads) {
    residual p = {{rows, AT_ONCE / width + 1, 0}, width, x, z, seed, bound, scale, weight, shift, epsilon,
        .total = total, .norm = norm, .moments = moments};
    in_threads(add_and_normalise, &p, 8 * rows * width, parallel, threads);
}

static void find_gradients(void *shared) {
    residual *p = shared;
    int64_t row, end;
    float count = (float)p->width;
    while (take(&p->shared, &row, &end)) {
        float *of_weight = p->partial_sums + row / NMT_ROWS_SUMMED * 2 * p->width, *of_shift = of_weight + p->width;
        for (int64_t i = 0; i < 2 * p->width; i++) of_weight[i] = 0.0f;
        for (; row < end; row++) {
            int64_t first = row * p->width;
            const float *norm_grad = p->norm_grad + first, *total = p->sums + first;
            vector mean = broadcast(p->of_rows[2 * row]), inverse = broadcast(p->of_rows[2 * row + 1]);
            vector sums = {0}, products = {0};
            for (int64_t i = 0; i < p->width; i += LANES) {
                vector grad = load(norm_grad + i), normal = (load(total + i) - mean) * inverse;
                store(of_weight + i, load(of_weight + i) + grad * normal);
                store(of_shift + i, load(of_shift + i) + grad);
                grad *= load(p->weight + i);
                sums += grad, products += grad * normal;
            }
            vector shared_part = broadcast(sum(sums) / count), along = broadcast(sum(products) / count);
            for (int64_t i = 0; i < p->width; i += LANES) {
                vector normal = (load(total + i) - mean) * inverse;
                vector grad = (load(norm_grad + i) * load(p->weight + i) - shared_part - normal * along) * inverse;
                if (p->total_grad) grad += load(p->total_grad + first + i);
                store(p->x_grad + first + i, grad);
                if (p->z_grad) store(p->z_grad + first + i, dropped(p, p->x_grad, first + i));
            }
        }
    }
}

void nmt_residual_gradients(int64_t rows, int64_t width, const float *total, const float *moments, const float *weight,
    const float *total_grad, const float *norm_grad, int64_t seed, int32_t bound, float scale, float *x_grad,
    float *z_grad, float *partial_sums, nmt_run_in_threads *parallel, int32_t threads) {
    residual p = {{rows, NMT_ROWS_SUMMED, 0}, width, .seed = seed, .bound = bound, .scale = scale, .weight = weight,
        .sums = total, .of_rows = moments, .total_grad = total_grad, .norm_grad = norm_grad, .x_grad = x_grad,
        .z_grad = z_grad, .partial_sums = partial_sums};
    in_threads(find_gradients, &p, 8 * rows * width, parallel, threads);
}

/* --- softmax ---------------------------------------------------------------------------------------------------- */

typedef struct {
    items shared;
    int64_t width;
    char *logits;
    float *maxima, *totals;
} exponentials;

/* `from` and `to` read and write numbers of `size` bytes; they are compile-time constants. */
INLINE void find_exponentials(exponentials *p, vector (*from)(const char *), void (*to)(char *, vector), int64_t size) {
    int64_t row, end, step = LANES * size, whole = p->width / LANES * step, rest = p->width % LANES * size;
    while (take(&p->shared, &row, &end))
        for (; row < end; row++) {
            char *x = p->logits + row * p->width * size;
            _Alignas(float) char last[LANES * sizeof(float)];
            to(last, broadcast(-__builtin_inff()));
            __builtin_memcpy(last, x + whole, (unsigned)rest);
            vector highest = from(last), totals = {0};
            for (int64_t i = 0; i < whole; i += step) highest = larger(from(x + i), highest);
            float maximum = largest(highest);
            for (int64_t i = 0; i < whole; i += step) {
                vector e = exponential(from(x + i) - broadcast(maximum));
                to(x + i, e);
                totals += e;
            }
            vector e = exponential(from(last) - broadcast(maximum));
            to(last, e);
            __builtin_memcpy(x + whole, last, (unsigned)rest);
            p->maxima[row] = maximum, p->totals[row] = sum(totals + e);
        }
}

INLINE vector from_fp32(const char *x) { return load((const float *)x); }

INLINE void to_fp32(char *x, vector values) { store((float *)x, values); }

static void find_in_fp32(void *shared) { find_exponentials(shared, from_fp32, to_fp32, 4); }

static void find_in_bf16(void *shared) { find_exponentials(shared, load_bf16, store_bf16, 2); }

void nmt_exponentials(int64_t rows, int64_t width, int32_t in_bf16, void *logits, float *maxima, float *totals,
    nmt_run_in_threads *parallel, int32_t threads) {
    exponentials p = {{rows, 16, 0}, width, logits, maxima, totals};
    in_threads(in_bf16 ? find_in_bf16 : find_in_fp32, &p, 8 * rows * width, parallel, threads);
}
