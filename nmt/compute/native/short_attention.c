/* Attention of short sentences in training, forward and backward, one head of one sentence after another. */

#include "dropout.h"
#include "nmt_kernels.h"
#include "threads.h"
#include "tiles.h"

#define QUERIES 64 /* queries whose gradients are computed at a time */

static const float zeros[PANEL_OUTPUTS];

/* Compute out = x b, or add to it: x[r * x_row + k * x_step], rows of b `b_row` apart, `outputs` whole vectors. */
INLINE void small_product(int64_t rows, int64_t width, int64_t outputs, const float *x, int64_t x_row, int64_t x_step,
    const float *b, int64_t b_row, int adds, float *out, int64_t stride) {
    for (int64_t first = 0; first < outputs;) {
        int64_t vectors = (outputs - first) / LANES;
        vectors = vectors == 4 ? 2 : vectors > PANEL_VECTORS ? PANEL_VECTORS : vectors;
        const float *start = adds ? out + first : zeros;
        int64_t start_row = adds ? stride : 0;
#define PANEL(VECTORS)                                                                                                 \
    multiply_panel(VECTORS, rows, width, x, x_row, x_step, b + first, b_row, start, start_row, VECTORS * LANES,        \
        out + first, stride)
        switch (vectors) {
        case 1: PANEL(1); break;
        case 2: PANEL(2); break;
        default: PANEL(3);
        }
#undef PANEL
        first += vectors * LANES;
    }
}

/* Products whose x has adjacent columns, or adjacent rows. */
static void of_rows(int64_t rows, int64_t width, int64_t outputs, const float *x, int64_t x_row, const float *b,
    int64_t b_row, float *out, int64_t stride) {
    small_product(rows, width, outputs, x, x_row, 1, b, b_row, 0, out, stride);
}

static void of_columns(int64_t rows, int64_t width, int64_t outputs, const float *x, int64_t x_step, const float *b,
    int64_t b_row, float *out, int64_t stride) {
    small_product(rows, width, outputs, x, 1, x_step, b, b_row, 1, out, stride);
}

INLINE int64_t whole(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

/* Transpose `count` rows of `width` numbers to (width, NMT_MOST_KEYS), padded with zeros to whole vectors. */
static void transpose_rows(int64_t count, int64_t width, const float *rows, int64_t stride, float *to) {
    for (int64_t first = 0; first < count; first += LANES)
        for (int64_t i = 0; i < width; i += LANES) {
            vector block[LANES];
            for (int j = 0; j < LANES; j++) {
                block[j] = (vector){0};
                if (first + j < count) block[j] = load(rows + (first + j) * stride + i);
            }
            transpose(block);
            for (int j = 0; j < LANES; j++) store(to + (i + j) * NMT_MOST_KEYS + first, block[j]);
        }
}

typedef struct {
    items shared;
    const nmt_short_attention *a;
    const float *grad;
    float *out, *query_grad, *key_grad, *value_grad;
} call;

/* One head of one sentence. */
typedef struct {
    int64_t queries, keys, index; /* offsets of its first query and key, and index of its first weight */
    int64_t seen, room; /* number of keys up to the last visible one, and of weights for each query */
    float bias[NMT_MOST_KEYS]; /* 0 for visible keys, else -inf */
} head;

static void find_head(const nmt_short_attention *a, int64_t number, head *found) {
    int64_t sentence = number / a->heads, of_head = number % a->heads * a->width;
    found->queries = sentence * a->queries * a->query_row + of_head;
    found->keys = sentence * a->keys * a->key_row + of_head;
    found->room = (a->keys + 15) / 16 * 16;
    found->index = number * a->queries * found->room;
    found->seen = 0;
    for (int64_t j = 0; j < found->room; j++) {
        int visible = j < a->keys && (!a->visible || a->visible[sentence * a->keys + j]);
        found->bias[j] = visible ? 0.0f : -__builtin_inff();
        if (visible) found->seen = j + 1;
    }
}

/* Return the number of keys that any of the queries before `query` sees. */
INLINE int64_t seen_before(const nmt_short_attention *a, const head *h, int64_t query) {
    return a->causal && query < h->seen ? query : h->seen;
}

/* Replace `keys` scores by their softmax, of which later keys have 0 if `own` is the query's position. */
INLINE void softmax(int64_t keys, int64_t all, float scale, const float *bias, int64_t own, float *scores) {
    vector highest = broadcast(-__builtin_inff()), totals = {0};
    for (int64_t j = 0; j < keys; j += LANES) {
        vector score = load(scores + j) * broadcast(scale) + load(bias + j);
        integers later = (integers)COUNTING + (int32_t)j > (int32_t)own;
        score = (vector)(((integers)score & ~later) | ((integers)broadcast(-__builtin_inff()) & later));
        store(scores + j, score);
        highest = larger(score, highest);
    }
    highest = broadcast(largest(highest));
    for (int64_t j = 0; j < keys; j += LANES) {
        vector weight = exponential(load(scores + j) - highest);
        store(scores + j, weight);
        totals += weight;
    }
    vector inverse = broadcast(1.0f / sum(totals));
    for (int64_t j = 0; j < keys; j += LANES) store(scores + j, load(scores + j) * inverse);
    for (int64_t j = whole(keys); j < all; j += LANES) store(scores + j, (vector){0});
}

static void attend_heads(void *shared) {
    call *p = shared;
    const nmt_short_attention *a = p->a;
    int64_t number, end, stride = a->heads * a->width;
    float keys[NMT_MOST_WIDTH * NMT_MOST_KEYS], left[TILE_ROWS * NMT_MOST_KEYS];
    head h;
    while (take(&p->shared, &number, &end)) {
        find_head(a, number, &h);
        transpose_rows(h.seen, a->width, a->key + h.keys, a->key_row, keys);
        for (int64_t first = 0; first < a->queries; first += TILE_ROWS) {
            int64_t count = a->queries - first < TILE_ROWS ? a->queries - first : TILE_ROWS;
            int64_t seen = seen_before(a, &h, first + count);
            float *weights = a->weights + h.index + first * h.room;
            of_rows(count, a->width, whole(seen), a->query + h.queries + first * a->query_row, a->query_row, keys,
                NMT_MOST_KEYS, weights, h.room);
            for (int64_t i = 0; i < count; i++) {
                float *row = weights + i * h.room;
                softmax(seen, h.room, a->scale, h.bias, a->causal ? first + i : a->keys, row);
                for (int64_t j = 0; j < seen; j += LANES)
                    store(left + i * NMT_MOST_KEYS + j, keep(load(row + j) * broadcast(a->kept_scale),
                                                            h.index + (first + i) * h.room + j, a->seed, a->bound));
            }
            of_rows(count, seen, a->width, left, NMT_MOST_KEYS, a->value + h.keys, a->key_row,
                p->out + number / a->heads * a->queries * stride + number % a->heads * a->width + first * stride,
                stride);
        }
    }
}

/* For `count` queries from `first` on, replace products of gradients and values by the gradients of the scores, and
 * compute the weights that are left after dropout. */
static void find_score_gradients(const nmt_short_attention *a, const head *h, int64_t first, int64_t count,
    int64_t seen, float *grads, float *left) {
    for (int64_t i = 0; i < count; i++, grads += NMT_MOST_KEYS, left += NMT_MOST_KEYS) {
        int64_t index = h->index + (first + i) * h->room;
        vector totals = {0};
        for (int64_t j = 0; j < seen; j += LANES) {
            vector weight = load(a->weights + index + j), factor = broadcast(a->kept_scale);
            vector grad = keep(load(grads + j) * factor, index + j, a->seed, a->bound) * weight;
            store(left + j, keep(weight * factor, index + j, a->seed, a->bound));
            store(grads + j, grad);
            totals += grad;
        }
        vector total = broadcast(sum(totals));
        for (int64_t j = 0; j < seen; j += LANES)
            store(grads + j, (load(grads + j) - load(a->weights + index + j) * total) * broadcast(a->scale));
    }
}

static void find_gradients(void *shared) {
    call *p = shared;
    const nmt_short_attention *a = p->a;
    int64_t number, end, stride = a->heads * a->width;
    float values[NMT_MOST_WIDTH * NMT_MOST_KEYS], grads[QUERIES * NMT_MOST_KEYS], left[QUERIES * NMT_MOST_KEYS];
    head h;
    while (take(&p->shared, &number, &end)) {
        find_head(a, number, &h);
        transpose_rows(h.seen, a->width, a->value + h.keys, a->key_row, values);
        for (int64_t j = 0; j < a->keys; j++)
            for (int64_t i = 0; i < a->width; i++)
                p->key_grad[h.keys + j * a->key_row + i] = p->value_grad[h.keys + j * a->key_row + i] = 0.0f;
        for (int64_t first = 0; first < a->queries; first += QUERIES) {
            int64_t count = a->queries - first < QUERIES ? a->queries - first : QUERIES;
            int64_t seen = seen_before(a, &h, first + count), query = h.queries + first * a->query_row;
            const float *grad =
                p->grad + number / a->heads * a->queries * stride + number % a->heads * a->width + first * stride;
            of_rows(count, a->width, whole(seen), grad, stride, values, NMT_MOST_KEYS, grads, NMT_MOST_KEYS);
            find_score_gradients(a, &h, first, count, seen, grads, left);
            of_rows(count, seen, a->width, grads, NMT_MOST_KEYS, a->key + h.keys, a->key_row, p->query_grad + query,
                a->query_row);
            of_columns(seen, count, a->width, grads, NMT_MOST_KEYS, a->query + query, a->query_row,
                p->key_grad + h.keys, a->key_row);
            of_columns(seen, count, a->width, left, NMT_MOST_KEYS, grad, stride, p->value_grad + h.keys, a->key_row);
        }
    }
}

/* Return the number of multiplications in one of the products of all heads. */
static int64_t operations(const nmt_short_attention *a) {
    return a->batch * a->heads * a->queries * a->keys * a->width;
}

void nmt_attend(const nmt_short_attention *attention, float *out, nmt_run_in_threads *parallel, int32_t threads) {
    call p = {{attention->batch * attention->heads, 1, 0}, attention, 0, out, 0, 0, 0};
    in_threads(attend_heads, &p, operations(attention), parallel, threads);
}

void nmt_attend_gradients(const nmt_short_attention *attention, const float *grad, float *query_grad, float *key_grad,
    float *value_grad, nmt_run_in_threads *parallel, int32_t threads) {
    call p = {{attention->batch * attention->heads, 1, 0}, attention, grad, 0, query_grad, key_grad, value_grad};
    in_threads(find_gradients, &p, operations(attention), parallel, threads);
}
