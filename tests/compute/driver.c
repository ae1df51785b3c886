/* Call every C kernel with odd sizes, empty inputs, null options, NaN and infinity, in buffers of exactly the size that
 * nmt_kernels.h promises, and compare with plain loops. `make sanitize` compiles it with the kernels under the
 * sanitizers of addresses and of undefined behaviour. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nmt_kernels.h"

/* --- buffers and comparisons ------------------------------------------------------------------------------------ */

static void *kept[9000];
static int kept_count;

static void *keep(int64_t bytes) { return kept[kept_count++] = malloc((size_t)bytes); }

static void release(void) {
    while (kept_count) free(kept[--kept_count]);
}

static uint32_t state = 1;

static int64_t below(int64_t limit) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % limit;
}

static float *filled(int64_t count, float value) {
    float *x = keep(count * 4);
    for (int64_t i = 0; i < count; i++) x[i] = value;
    return x;
}

/* Return random numbers from -scale to scale; if it is not finite, from -1 to 1, and `scale` among them. */
static float *floats(int64_t count, float scale) {
    float *x = keep(count * 4);
    for (int64_t i = 0; i < count; i++) {
        float number = (float)below(2001) / 1000 - 1;
        x[i] = isfinite(scale) ? scale * number : below(3) ? number : scale;
    }
    return x;
}

static int64_t *indices(int64_t count, int64_t limit) {
    int64_t *x = keep(count * 8);
    for (int64_t i = 0; i < count; i++) x[i] = below(limit);
    return x;
}

static float *copied(int64_t count, const float *x) { return memcpy(filled(count, 0), x, (size_t)count * 4); }

static void expect(int holds, const char *what, int64_t first, int64_t second) {
    if (holds) return;
    fprintf(stderr, "%s: wrong for %lld, %lld\n", what, (long long)first, (long long)second);
    exit(1);
}

static int close_to(double found, double expected) {
    return fabs(found - expected) <= 2e-5 * (1 + fabs(expected)) || (isnan(found) && isnan(expected));
}

#define EACH(INDEX, ARRAY) for (size_t INDEX = 0; INDEX < sizeof(ARRAY) / sizeof(*ARRAY); INDEX++)

/* --- each file of kernels --------------------------------------------------------------------------------------- */

static void check_norm(int64_t rows, int64_t width, int given, float scale) {
    int64_t size = rows * width;
    const float *x = floats(size, scale), *z = floats(size, 1), *weight = floats(width, 1), *shift = floats(width, 1);
    const float *bias = given ? floats(width, 1) : 0;
    float *total = given ? filled(size, 0) : 0, *norm = filled(size, 0);
    nmt_add_norm(rows, width, x, z, bias, weight, shift, 1e-6f, total, norm);
    for (int64_t i = 0; i < size && isfinite(scale); i++) {
        double mean = 0, squares = 0;
        for (int64_t j = i / width * width; j < (i / width + 1) * width; j++)
            mean += ((double)x[j] + z[j] + (bias ? bias[j % width] : 0)) / (double)width;
        for (int64_t j = i / width * width; j < (i / width + 1) * width; j++)
            squares += pow((double)x[j] + z[j] + (bias ? bias[j % width] : 0) - mean, 2);
        double sum = (double)x[i] + z[i] + (bias ? bias[i % width] : 0);
        double normal = (sum - mean) / sqrt(squares / (double)width + 1e-6);
        if (total) expect(close_to(total[i], sum), "total of nmt_add_norm", rows, width);
        expect(fabs(norm[i] - (normal * weight[i % width] + shift[i % width])) < 1e-3, "nmt_add_norm", rows, width);
    }
}

static double relu(double x) { return x > 0 ? x : 0; }
static double silu(double x) { return x / (1 + exp(-x)); }
static double gelu(double x) { return x * 0.5 * erfc(-x * sqrt(0.5)); }

static void check_activations(int64_t rows, int64_t width, float scale) {
    nmt_activation *const found[] = {nmt_add_bias_relu, nmt_add_bias_silu, nmt_add_bias_gelu};
    double (*const expected[])(double) = {relu, silu, gelu};
    for (int a = 0; a < 3; a++) {
        const float *x = floats(rows * width, scale), *bias = floats(width, 1);
        float *y = copied(rows * width, x);
        found[a](rows, width, y, bias);
        for (int64_t i = 0; i < rows * width && isfinite(scale); i++)
            expect(close_to(y[i], expected[a]((double)x[i] + bias[i % width])), "activation", a, width);
    }
}

/* Stands for GOMP_parallel: the threads follow each other. */
static void run_in_turn(void (*function)(void *), void *argument, unsigned threads, unsigned flags) {
    (void)flags;
    for (unsigned i = 0; i < threads; i++) function(argument);
}

static const float *packed(int64_t outputs, int64_t width, const float *matrix) {
    float *to = filled((outputs + 15) / 16 * 16 * width, 0);
    nmt_pack(outputs, width, matrix, to);
    return to;
}

static void check_product(int64_t rows, int64_t width, int64_t outputs, const float *bias, float scale) {
    const float *x = floats(rows * width, scale), *matrix = floats(outputs * width, 1);
    float *out = filled(rows * outputs, 0);
    nmt_product(rows, width, outputs, x, packed(outputs, width, matrix), bias, out, bias ? run_in_turn : 0, 3);
    for (int64_t i = 0; i < rows * outputs; i++) {
        double sum = bias ? bias[i % outputs] : 0;
        for (int64_t k = 0; k < width; k++) sum += (double)x[i / outputs * width + k] * matrix[i % outputs * width + k];
        expect(close_to(out[i] / scale, sum / scale) || !isfinite(scale), "nmt_product", rows, outputs);
    }
}

static void check_places(int64_t rows, int64_t beam, int64_t extent) {
    int64_t room = extent + beam, listed = (room + NMT_PLACES_AT_ONCE - 1) / NMT_PLACES_AT_ONCE * NMT_PLACES_AT_ONCE;
    float *bias = filled(rows * beam * room, 0), *before = filled(beam * extent, 0);
    int64_t *newest = indices(rows * beam, 1);
    for (int64_t i = 0; i < rows * beam * room; i++) bias[i] = i % room < extent && below(3) == 0 ? 0 : -1e9f;
    int64_t seen = nmt_extend(rows, beam, extent, indices(rows * beam, beam), bias, beam * room, room, before, newest);
    expect(seen <= room && (rows == 0 || seen > 0), "nmt_extend", beam, extent);
    int32_t *places = keep(rows * beam * listed * 4), *counts = keep(rows * beam * 4);
    nmt_seen_places(rows, beam, room, bias, beam * room, room, listed, places, counts);
    for (int64_t i = 0; i < rows * beam; i++) {
        int64_t own = newest[i], count = 0;
        expect(bias[i * room + own] == 0, "newest of nmt_extend", beam, own);
        for (int64_t place = 0; place < room; place++)
            if (bias[i * room + place] == 0) expect(places[i * listed + count++] == place, "places", beam, place);
        expect(count == counts[i], "counts of nmt_seen_places", beam, extent);
        for (; count % NMT_PLACES_AT_ONCE; count++)
            expect(places[i * listed + count] == 0, "padding of places", beam, extent);
    }
}

/* Compare one head's output with softmax(keys query * scale) values over `count` places, all of them or `places`. */
static void expect_attention(const float *query, const float *keys, int64_t key_width, const float *values,
    int64_t value_width, const int32_t *places, int64_t count, double scale, const float *out) {
    double total = 0, *scores = keep(count * 8);
    for (int64_t i = 0; i < count; i++) {
        scores[i] = 0;
        for (int64_t k = 0; k < key_width; k++)
            scores[i] += scale * query[k] * keys[(places ? places[i] : i) * key_width + k];
        total += scores[i] = exp(scores[i]);
    }
    for (int64_t k = 0; k < value_width && count > 0; k++) {
        double expected = 0;
        for (int64_t i = 0; i < count; i++)
            expected += scores[i] / total * values[(places ? places[i] : i) * value_width + k];
        expect(close_to(out[k], expected), "attention", key_width, count);
    }
}

enum { ROWS = 2, BEAM = 2 };

/* Hypothesis k of a row sees places 0 to count - 2, and its newest, count - 1 + k. */
static void check_attention_to_places(
    int64_t heads, int64_t key_width, int64_t value_width, int64_t count, const int64_t *which, float scale) {
    int64_t extent = count + BEAM, room = (count + NMT_PLACES_AT_ONCE - 1) / NMT_PLACES_AT_ONCE * NMT_PLACES_AT_ONCE,
            chosen = which ? 3 : 4;
    int64_t key_head = extent * key_width, value_head = extent * value_width, *newest = indices(ROWS * BEAM, 1);
    int64_t of_keys = heads * key_width, projections = 2 * of_keys + heads * value_width;
    float *keys = floats(ROWS * heads * key_head, scale), *values = floats(ROWS * heads * value_head, 1);
    int32_t *places = keep(ROWS * BEAM * room * 4), *counts = keep(ROWS * BEAM * 4);
    for (int64_t i = 0; i < ROWS * BEAM; i++) {
        newest[i] = (count > 0 ? count - 1 : 0) + i % BEAM, counts[i] = (int32_t)count;
        for (int64_t j = 0; j < room; j++)
            places[i * room + j] = (int32_t)(j < count - 1 ? j : j == count - 1 ? newest[i] : 0);
    }
    const float *projected = floats(chosen * projections, 1);
    float *out = filled(chosen * heads * value_width, 0);
    nmt_attend_to_places(chosen, which, BEAM, heads, key_width, value_width, projected, newest, keys, heads * key_head,
        key_head, key_width, values, heads * value_head, value_head, value_width, places, counts, room, 0.5f, out);
    for (int64_t i = 0; i < chosen; i++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t hypothesis = which ? which[i] : i, head = hypothesis / BEAM * heads + h;
            const float *given = projected + i * projections, *own = keys + head * key_head;
            expect(memcmp(own + newest[hypothesis] * key_width, given + of_keys + h * key_width,
                       (size_t)key_width * 4) == 0,
                "keys", heads, key_width);
            expect_attention(given + h * key_width, own, key_width, values + head * value_head, value_width,
                places + hypothesis * room, isfinite(scale) ? count : 0, 0.5, out + (i * heads + h) * value_width);
        }
    int64_t from[] = {1}, to[] = {0};
    nmt_move_rows(1, from, to, heads, extent, keys, heads * key_head, key_head, key_width);
    expect(memcmp(keys, keys + heads * key_head, (size_t)(heads * key_head) * 4) == 0, "nmt_move_rows", heads, extent);
}

static void check_attention_to_rows(
    int64_t heads, int64_t key_width, int64_t value_width, int64_t count, const int64_t *which, float scale) {
    int64_t room = (count + NMT_PLACES_AT_ONCE - 1) / NMT_PLACES_AT_ONCE * NMT_PLACES_AT_ONCE, chosen = which ? 3 : 4,
            lengths[] = {count, count};
    int64_t key_head = room * key_width, value_head = room * value_width;
    const float *keys = floats(ROWS * heads * key_head, scale), *values = floats(ROWS * heads * value_head, 1);
    const float *queries = floats(chosen * heads * key_width, 1);
    float *out = filled(chosen * heads * value_width, 0);
    nmt_attend_to_rows(chosen, which, BEAM, heads, key_width, value_width, queries, heads * key_width, keys,
        heads * key_head, key_head, key_width, values, heads * value_head, value_head, value_width, lengths, 0.5f, out);
    for (int64_t i = 0; i < chosen * heads; i++) {
        int64_t head = (which ? which[i / heads] : i / heads) / BEAM * heads + i % heads;
        expect_attention(queries + i * key_width, keys + head * key_head, key_width, values + head * value_head,
            value_width, 0, isfinite(scale) ? count : 0, 0.5, out + i * value_width);
    }
}

static void check_log_softmax(int64_t rows, int64_t vocabulary, int64_t beyond, float scale) {
    int64_t width = vocabulary + beyond;
    const float *x = floats(rows * width, scale);
    float *found = copied(rows * width, x);
    nmt_log_softmax(rows, width, vocabulary, 1, found);
    for (int64_t i = 0; i < rows * width && isfinite(scale); i++) {
        double total = 0;
        for (int64_t j = 0; j < vocabulary; j++) total += exp((double)x[i / width * width + j]);
        int hidden = i % width == 0 || i % width >= vocabulary;
        expect(hidden ? isinf(found[i]) : close_to(found[i], x[i] - log(total)), "nmt_log_softmax", vocabulary, i);
    }
}

/* The best totals, of which every third ends, are the candidates of nmt_choose. */
static void check_choice(int64_t rows, int64_t beam, int64_t width, int64_t count, float scale) {
    const float *log_probs = floats(rows * beam * width, scale), *alive = floats(rows * beam, 1);
    float *totals = filled(rows * count, 0), *next = filled(rows * beam, 0), *scores = filled(rows * beam, -INFINITY);
    int64_t *parents = indices(rows * count, 1), *symbols = indices(rows * count, 1),
            *links = indices(rows * 3 * beam, 1);
    nmt_best_extensions(rows, beam, width, count, log_probs, alive, totals, parents, symbols);
    for (int64_t i = 0; i < rows * count && isfinite(scale); i++) {
        int64_t better = 0, row = i / count;
        for (int64_t j = 0; j < beam * width; j++)
            better += log_probs[row * beam * width + j] + alive[row * beam + j / width] > totals[i];
        expect(i % count < beam * width ? better <= i % count : isinf(totals[i]), "nmt_best_extensions", width, i);
        float own = log_probs[(row * beam + parents[i]) * width + symbols[i]] + alive[row * beam + parents[i]];
        expect(own == totals[i] || isinf(totals[i]), "parents and symbols", width, i);
        symbols[i] = i % 3 ? symbols[i] : width;
    }
    int64_t *caps = indices(rows, 1), *next_parents = indices(rows * beam, 1), *next_symbols = indices(rows * beam, 1);
    for (int64_t row = 0; row < rows; row++) caps[row] = 3;
    uint8_t *done = keep(rows);
    nmt_choose(rows, beam, count, width + 1, width, 1, filled(4, 1), caps, indices(rows, 3), totals, parents, symbols,
        links, 3 * beam, next_parents, next_symbols, next, indices(rows * beam, 1), indices(rows * beam, 1), scores,
        done);
    for (int64_t i = 0; i < rows * beam; i++)
        expect(next_parents[i] < beam && next_symbols[i] < width && done[i / beam] < 2, "nmt_choose", beam, i);
}

/* Return a layer of random weights: in fp32, or in 8-bit integers, whose `panels` are laid out at random. */
static nmt_linear linear(int64_t width, int64_t outputs, int has_bias, int64_t panel) {
    const float *bias = has_bias ? floats(outputs, 1) : 0;
    if (!panel) return (nmt_linear){packed(outputs, width, floats(outputs * width, 1)), bias, 0, 0};
    int64_t all = (outputs + panel - 1) / panel * panel;
    int8_t *matrix = keep(all * width);
    int32_t *shifts = keep(all * 4);
    memset(shifts, 0, (size_t)all * 4);
    for (int64_t i = 0; i < all * width; i++) {
        int64_t output = i / width / panel * panel + i / 4 % panel;
        matrix[i] = (int8_t)(output < outputs ? below(2 * nmt_int8_limit() + 1) - nmt_int8_limit() : 0);
        shifts[output] -= 128 * matrix[i];
    }
    return (nmt_linear){matrix, bias, shifts, filled(all, 0.01f)};
}

static void check_int8(int64_t rows, int64_t width, int64_t outputs, float scale) {
    const float *x = floats(rows * width, scale);
    float *row_scales = filled(rows, 0);
    uint8_t *quantised = keep(rows * width);
    nmt_quantise_rows(rows, width, x, quantised, row_scales);
    for (int64_t i = 0; i < rows * width; i++) {
        double error = (quantised[i] - 128) * (double)row_scales[i / width] - x[i];
        expect(fabs(error) <= 0.501 * row_scales[i / width] || !isfinite(scale), "nmt_quantise_rows", rows, width);
    }
    int64_t panel = nmt_int8_panel();
    if (panel == 0 || width % 4) return;
    nmt_linear layer = linear(width, outputs, 0, panel);
    const int8_t *matrix = layer.matrix;
    float *out = filled(rows * outputs, 0);
    nmt_int8_product(
        rows, width, outputs, quantised, row_scales, matrix, layer.shifts, layer.scales, out, run_in_turn, 2);
    for (int64_t i = 0; i < rows * outputs && isfinite(scale); i++) {
        int64_t output = i % outputs, sum = layer.shifts[output];
        for (int64_t k = 0; k < width; k++)
            sum += quantised[i / outputs * width + k] *
                   matrix[output / panel * panel * width + (k / 4 * panel + output % panel) * 4 + k % 4];
        expect(close_to(out[i], (double)sum * layer.scales[output] * row_scales[i / outputs]), "nmt_int8_product",
            width, i);
    }
}

static nmt_states places_of(int64_t heads, int64_t places, int64_t width) {
    return (nmt_states){floats(ROWS * heads * places * width, 1), heads * places * width, places * width, width};
}

#define VOCABULARY 30

static nmt_stack *decoder(
    int64_t heads, int64_t key_width, int64_t value_width, int is_pre, int has_bias, int64_t panel) {
    int64_t width = 8, inner = 12, of_keys = heads * key_width, of_values = heads * value_width;
    nmt_stack *d = keep(sizeof(nmt_stack) + 2 * sizeof(nmt_layer_weights));
    nmt_norm norm = {floats(width, 1), floats(width, 1)};
    *d = (nmt_stack){2, heads, key_width, value_width, width, inner, nmt_add_bias_gelu, is_pre ? norm : (nmt_norm){0},
        floats(VOCABULARY * width, 1), VOCABULARY, VOCABULARY + 3, linear(width, VOCABULARY + 3, has_bias, panel)};
    for (int layer = 0; layer < 2; layer++)
        d->weights[layer] = (nmt_layer_weights){linear(width, 2 * of_keys + of_values, has_bias, panel),
            linear(of_values, width, has_bias, panel), linear(width, of_keys, has_bias, panel),
            linear(of_values, width, has_bias, panel), linear(width, inner, 1, panel),
            linear(inner, width, has_bias, panel), {norm, norm, norm}};
    return d;
}

/* The states of hypotheses are those that each of them has alone; sanitizers may change how sums are rounded. */
static void check_decode(const nmt_stack *d, nmt_run_in_threads *parallel) {
    int64_t heads = d->heads, width = d->width, lengths[] = {1, 3};
    nmt_layer_states caches[2];
    for (int layer = 0; layer < 2; layer++)
        caches[layer] = (nmt_layer_states){places_of(heads, 5, d->key_width), places_of(heads, 5, d->value_width),
            places_of(heads, 4, d->key_width), places_of(heads, 4, d->value_width)};
    int64_t newest[] = {1, 2, 1, 2}, which[] = {0, 1, 2, 3};
    int32_t places[] = {0, 1, 0, 0, 0, 2, 0, 0, 0, 1, 3, 4, 2, 3, 4, 0}, counts[] = {2, 2, 4, 3};
    const float *x = floats(4 * width, 1);
    float *states[2];
    for (int alone = 0; alone < 2; alone++) {
        float *inputs = copied(4 * width, x), *y = states[alone] = filled(4 * width, NAN);
        for (int64_t i = 0; i < (alone ? 4 : 1); i++) {
            int64_t count = alone ? 1 : 4;
            int64_t numbers = 1 + 2 * width + heads * (2 * d->key_width + 3 * d->value_width) + 2 * d->inner_width;
            nmt_decode(d, 1e-6f, count, alone ? which + i : 0, BEAM, caches, newest, places, counts, 4, lengths,
                inputs + i * width, y + i * width, floats(count * numbers, NAN), parallel, 2);
        }
    }
    for (int64_t i = 0; i < 4 * width; i++)
        expect(isfinite(states[0][i]) && close_to(states[1][i], states[0][i]), "nmt_decode", d->key_width, i);
}

/* The states of sources are those that each of them has alone, without padding. */
static void check_encode(const nmt_stack *d, nmt_run_in_threads *parallel) {
    int64_t lengths[] = {1, 3}, width = d->width, projections = d->heads * (2 * d->key_width + d->value_width);
    int64_t numbers = 1 + 2 * width + projections + d->heads * 2 * d->value_width + 2 * d->inner_width;
    const float *x = floats(ROWS * 3 * width, 1);
    float *together = filled(ROWS * 3 * width, NAN);
    nmt_encode(d, 1e-6f, ROWS, 3, lengths, copied(ROWS * 3 * width, x), together,
        floats(ROWS * 3 * numbers + 3 * projections, NAN), parallel, 2);
    for (int64_t row = 0; row < ROWS; row++) {
        int64_t count = lengths[row] * width, first = row * 3 * width;
        float *alone = filled(count, NAN);
        nmt_encode(d, 1e-6f, 1, lengths[row], lengths + row, copied(count, x + first), alone,
            floats(lengths[row] * numbers + 3 * projections, NAN), parallel, 2);
        for (int64_t i = 0; i < count; i++)
            expect(isfinite(alone[i]) && close_to(together[first + i], alone[i]), "nmt_encode", row, i);
    }
}

/* Return `size` symbols from the first one on, the last of which is padding, and their layer. */
static nmt_shortlist shortlist(int64_t width, int64_t first, int64_t size, int64_t panel) {
    int64_t *symbols = keep(size * 8);
    for (int64_t i = 0; i < size; i++) symbols[i] = i < size - 1 ? first + i : -1;
    return (nmt_shortlist){linear(width, size, 1, panel), size, symbols, 0};
}

/* A search ends at its caps, or when its buffers are full. `lists` may be null; the first row's has symbols below 15.
 */
static void check_search(const nmt_stack *d, int64_t room, nmt_run_in_threads *parallel, const nmt_shortlist *lists) {
    int64_t lengths[] = {1, 3}, caps[] = {5, 6}, positions[] = {-1, -1}, heads = d->heads, end = 3;
    float *bias = filled(ROWS * BEAM * room, -1e9f), *alive = filled(ROWS * BEAM, -INFINITY);
    uint8_t *done = keep(ROWS);
    nmt_beams *b = keep(sizeof(nmt_beams) + 2 * sizeof(nmt_layer_states));
    alive[0] = alive[BEAM] = 0;
    *b = (nmt_beams){ROWS, BEAM, 1, 0, room, bias, BEAM * room, room, indices(ROWS * BEAM, 1), positions, lengths,
        indices(ROWS * BEAM, 1), indices(ROWS * BEAM, 1), alive, indices(ROWS * BEAM, 1), indices(ROWS * BEAM, 1),
        filled(ROWS * BEAM, -INFINITY), caps, indices(ROWS * 6 * BEAM, 1), 6 * BEAM, filled(7, 1), done,
        floats(6 * d->width, 1), end, 4, lists};
    for (int layer = 0; layer < 2; layer++)
        b->caches[layer] =
            (nmt_layer_states){places_of(heads, room, d->key_width), places_of(heads, room, d->value_width),
                places_of(heads, 4, d->key_width), places_of(heads, 4, d->value_width)};
    int64_t taken = nmt_search(d, 1e-6f, b, 6, parallel, 2);
    expect(taken == 5 || (taken >= room / BEAM && b->extent + BEAM > room), "steps of nmt_search", room, taken);
    expect(positions[0] == taken - 1 && b->extent <= room, "nmt_search", room, b->extent);
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t k = 0; k < BEAM; k++) {
            int64_t symbol = b->symbols[row * BEAM + k];
            expect(isinf(alive[row * BEAM + k]) || (symbol > end && symbol < (lists && !row ? 15 : VOCABULARY)),
                "a symbol", row, symbol);
        }
}

/* --- training --------------------------------------------------------------------------------------------------- */

/* Return whether an element is kept, by the formula of dropout.h. */
static int is_kept(int64_t index, int64_t seed, int32_t bound) {
    uint32_t x = (uint32_t)index + (uint32_t)seed;
    x = (x ^ x >> 16) * 0x21f0aaadu;
    x = (x ^ x >> 15 ^ (uint32_t)(seed >> 32)) * 0xd35a2d97u;
    return (int32_t)(x ^ x >> 15) >= bound;
}

enum { BOUND = -(1 << 30) };
static const int64_t seed = -0x123456789abcdef;

/* With each layout of both matrices, with and without what finishes a product. */
static void check_multiply(int64_t rows, int64_t width, int64_t outputs, float scale) {
    for (int kind = 0; kind < 8; kind++) {
        int turn_a = kind & 1, turn_b = kind & 2, finishes = kind & 4;
        const float *a = floats(rows * width, scale), *b = floats(width * outputs, 1), *bias = floats(outputs, 1);
        const float *gate = turn_a ? floats(rows * outputs, 1) : 0;
        float *out = filled(rows * outputs, 1), *sums = turn_a ? filled(rows, 1) : 0;
        nmt_finish finish = {gate, seed, BOUND};
        nmt_multiply(rows, width, outputs, a, turn_a ? 1 : width, turn_a ? rows : 1, b, turn_b ? 1 : outputs,
            turn_b ? width : 1, 0.5f, bias, !finishes, finishes ? &finish : 0, sums, out,
            turn_a ? filled(NMT_STRIPS, NAN) : 0, run_in_turn, 2);
        for (int64_t i = 0; i < rows * outputs && isfinite(scale); i++) {
            int64_t row = i / outputs, output = i % outputs;
            double sum = finishes ? bias[output] : 1;
            for (int64_t k = 0; k < width; k++)
                sum += 0.5 * a[turn_a ? k * rows + row : row * width + k] *
                       b[turn_b ? output * width + k : k * outputs + output];
            if (finishes && !(gate ? gate[i] > 0 : is_kept(i, seed, BOUND) && sum > 0)) sum = 0;
            expect(close_to(out[i] / scale, sum / scale), "nmt_multiply", kind, width);
        }
        for (int64_t row = 0; turn_a && outputs > 0 && isfinite(scale) && row < rows; row++) {
            double sum = 1;
            for (int64_t k = 0; k < width; k++) sum += a[k * rows + row];
            expect(close_to(sums[row] / scale / 8, sum / scale / 8), "sums of nmt_multiply", rows, width);
        }
    }
}

/* Gradients are compared by the Python tests; here they must be finite, and stay in their buffers. */
static void check_residual(int64_t rows, int64_t width, float scale) {
    int64_t size = rows * width, parts = (rows + NMT_ROWS_SUMMED - 1) / NMT_ROWS_SUMMED;
    const float *x = floats(size, scale), *z = floats(size, 1), *weight = floats(width, 1), *shift = floats(width, 1);
    float *total = filled(size, 0), *norm = filled(size, 0), *moments = filled(2 * rows, 0), *sum = filled(size, 0);
    nmt_add_dropped(size, x, z, seed, BOUND, 2, sum, run_in_turn, 2);
    nmt_residual(rows, width, x, z, seed, BOUND, 2, weight, shift, 1e-6f, total, norm, moments, run_in_turn, 2);
    float *x_grad = filled(size, 0), *z_grad = filled(size, 0), *sums = filled(parts * 2 * width, NAN);
    nmt_residual_gradients(rows, width, total, moments, weight, isfinite(scale) ? x : 0, z, seed, BOUND, 2, x_grad,
        z_grad, sums, run_in_turn, 2);
    int8_t *mask = keep(size);
    nmt_draw(size, seed, BOUND, mask);
    for (int64_t i = 0; i < size && isfinite(scale); i++) {
        expect(mask[i] == is_kept(i, seed, BOUND), "nmt_draw", rows, width);
        expect(close_to(sum[i], x[i] + (is_kept(i, seed, BOUND) ? 2.0 * z[i] : 0)), "nmt_add_dropped", rows, width);
        expect(sum[i] == total[i] && isfinite(norm[i]), "nmt_residual", rows, width);
        double expected = is_kept(i, seed, BOUND) ? 2.0 * x_grad[i] : 0;
        expect(isfinite(x_grad[i]) && close_to(z_grad[i], expected), "nmt_residual_gradients", rows, width);
    }
    for (int64_t i = 0; i < parts * 2 * width && isfinite(scale); i++)
        expect(isfinite(sums[i]), "partial sums", rows, width);
    float *logits = copied(size, x), *maxima = filled(rows, 0), *totals = filled(rows, 0);
    nmt_exponentials(rows, width, 0, logits, maxima, totals, run_in_turn, 2);
    for (int64_t i = 0; i < size && isfinite(scale); i++)
        expect(close_to(logits[i], exp((double)x[i] - maxima[i / width])), "nmt_exponentials", rows, width);
    uint16_t *rounded = (uint16_t *)filled((size + 1) / 2, 0);
    for (int64_t i = 0; i < size; i++) memcpy(rounded + i, (const char *)(x + i) + 2, 2);
    nmt_exponentials(rows, width, 1, rounded, maxima, totals, run_in_turn, 2);
    for (int64_t i = 0; i < size && isfinite(scale); i++)
        expect(rounded[i] <= 0x3f80, "nmt_exponentials in bf16", rows, width); /* at most 1 */
}

static void check_short_attention(int64_t heads, int64_t width, int64_t queries, int64_t keys, float scale) {
    int64_t batch = 2, all = heads * width, room = (keys + 15) / 16 * 16, causal = queries == keys;
    const float *q = floats(batch * queries * all, scale), *kv = floats(batch * keys * 2 * all, 1);
    uint8_t *visible = keep(batch * keys);
    for (int64_t i = 0; i < batch * keys; i++) visible[i] = (uint8_t)(i % keys == 0 || i % 3);
    float *weights = filled(batch * heads * queries * room, NAN), *out = filled(batch * queries * all, 0);
    nmt_short_attention a = {batch, heads, queries, keys, width, all, 2 * all, q, kv, kv + all, causal ? 0 : visible,
        causal, 0, NMT_ALL_KEPT, 1, 0.05f, weights};
    nmt_attend(&a, out, run_in_turn, 2);
    for (int64_t i = 0; i < batch * queries * heads && isfinite(scale); i++) {
        int64_t sentence = i / heads / queries, count = causal ? i / heads % queries + 1 : keys, seen = 0;
        int32_t *places = keep(keys * 4);
        for (int64_t j = 0; j < count; j++)
            if (causal || visible[sentence * keys + j]) places[seen++] = (int32_t)(2 * j * heads);
        const float *key = kv + sentence * keys * 2 * all + i % heads * width;
        expect_attention(q + i * width, key, width, key + all, width, places, seen, 0.05f, out + i * width);
    }
    float *q_grad = filled(batch * queries * all, NAN), *kv_grad = filled(batch * keys * 2 * all, NAN);
    a.seed = seed, a.bound = BOUND;
    nmt_attend_gradients(&a, out, q_grad, kv_grad, kv_grad + all, run_in_turn, 2);
    for (int64_t i = 0; i < batch * queries * all && isfinite(scale); i++)
        expect(isfinite(q_grad[i]), "gradients of queries", queries, keys);
    for (int64_t i = 0; i < batch * keys * 2 * all && isfinite(scale); i++)
        expect(isfinite(kv_grad[i]), "gradients of keys and values", queries, keys);
}

int main(void) {
    static const float scales[] = {1, 30, NAN, INFINITY};
    static const int64_t all_rows[] = {0, 1, 5}, all_outputs[] = {0, 1, 16, 33, 50, 100}, all_heads[] = {3, 8};
    static const int64_t widths[] = {1, 3, 4, 8, 15, 16, 17, 32, 33, 64, 70, 128}, some[] = {1, 2, 3};
    expect(nmt_kernels_version() == NMT_KERNELS_VERSION, "version", nmt_kernels_version(), NMT_KERNELS_VERSION);
    EACH (r, all_rows)
        EACH (w, widths)
            EACH (s, scales) {
                int64_t rows = all_rows[r], width = widths[w], beam = 1 + width % 3;
                check_norm(rows, width, s % 2, scales[s]);
                check_activations(rows, width, scales[s]);
                check_log_softmax(rows, width, width % 4, scales[s]);
                check_choice(rows, beam, width, 4, scales[s]);
                check_places(rows, beam, width - 1);
                EACH (o, all_outputs) {
                    check_product(rows, width, all_outputs[o], s % 2 ? floats(all_outputs[o], 1) : 0, scales[s]);
                    check_int8(rows, width, all_outputs[o], scales[s]);
                }
                release();
            }
    check_product(9, 0, 20, 0, 1);
    check_product(9, 300, 400, floats(400, 1), 1); /* in threads */
    EACH (h, all_heads)
        EACH (w, widths) {
            int64_t heads = all_heads[h], width = widths[w];
            EACH (c, widths)
                EACH (s, scales) {
                    int64_t count = widths[c] - 1;
                    const int64_t *which = s % 2 ? some : 0;
                    check_attention_to_places(heads, width, width, count, which, scales[s]);
                    check_attention_to_places(heads, width, 5, count, which, scales[s]);
                    check_attention_to_rows(heads, width, width, count, which, scales[s]);
                    check_attention_to_rows(heads, 5, width, count, which, scales[s]);
                    release();
                }
            for (int64_t panel = width % 4 ? 0 : nmt_int8_panel();; panel = 0) {
                nmt_stack *d = decoder(heads, width, width, w % 2, h % 2, panel);
                check_decode(d, h % 2 ? run_in_turn : 0);
                check_encode(d, h % 2 ? run_in_turn : 0);
                check_search(d, 4, 0, 0);
                check_search(d, 16, h % 2 ? run_in_turn : 0, 0);
                nmt_shortlist lists[] = {shortlist(d->width, 0, 12, panel), shortlist(d->width, 11, 5, panel),
                    shortlist(d->width, 0, VOCABULARY + 1, panel)};
                lists[2].is_whole = 1;
                check_search(d, 16, 0, lists);
                release();
                if (panel == 0) break;
            }
        }
    EACH (r, all_rows)
        EACH (w, widths)
            EACH (s, scales) {
                EACH (o, all_outputs) check_multiply(all_rows[r], widths[w], all_outputs[o], scales[s]);
                check_residual(all_rows[r], 16 * widths[w], scales[s]);
                release();
            }
    check_multiply(1030, 1100, 20, 1); /* in parts */
    release();
    EACH (w, widths)
        EACH (s, scales) {
            check_short_attention(3, 16, widths[w], widths[w], scales[s]);
            check_short_attention(1, 128, 70, widths[w], scales[s]);
            check_short_attention(2, 64, widths[w], NMT_MOST_KEYS, scales[s]);
            release();
        }
    return 0;
}
