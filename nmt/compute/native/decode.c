/* All layers of an encoder or of a decoder's step, whole steps of a search, and the version of the library. */

#include <stdlib.h>

#include "nmt_kernels.h"
#include "vectors.h"

int32_t nmt_kernels_version(void) { return NMT_KERNELS_VERSION; }

typedef struct {
    nmt_run_in_threads *parallel;
    int32_t threads;
    float *scratch; /* a number, and a quarter for each input, per row */
} multiplier;

/* Compute out = x W' + bias. */
static void multiply(const multiplier *by, const nmt_linear *linear, int64_t rows, int64_t width, int64_t outputs,
    const float *x, const float *bias, float *out) {
    if (!linear->shifts) {
        nmt_product(rows, width, outputs, x, linear->matrix, bias, out, by->parallel, by->threads);
        return;
    }
    float *scales = by->scratch;
    uint8_t *quantised = (uint8_t *)(scales + rows);
    nmt_quantise_rows(rows, width, x, quantised, scales);
    nmt_int8_product(rows, width, outputs, quantised, scales, linear->matrix, linear->shifts, linear->scales, out,
        by->parallel, by->threads);
    for (int64_t row = 0; bias && row < rows; row++)
        for (int64_t i = 0; i < outputs; i++) out[row * outputs + i] += bias[i];
}

/* Which positions attend to which: hypotheses to places of the cache and to their sources, or positions of sources to
 * all of their row if `caches` is null. The members are arguments of nmt_attend_to_places. */
typedef struct {
    const int64_t *which;
    int64_t beam;
    const nmt_layer_states *caches;
    const int64_t *newest;
    const int32_t *places, *counts;
    int64_t room;
    const int64_t *lengths;
} attended;

static void compute_layers(const nmt_stack *d, float epsilon, int64_t count, const attended *to, float *x, float *y,
    float *scratch, nmt_run_in_threads *parallel, int32_t threads) {
    int64_t heads = d->heads, key_width = d->key_width, value_width = d->value_width, width = d->width;
    int64_t of_keys = heads * key_width, of_values = heads * value_width, projections = 2 * of_keys + of_values;
    int64_t inner_width = d->inner_width, is_pre = d->first_norm.weight != 0, excess = 0;
    float *z = scratch, *mixed = z + count * width, *projected = mixed + count * of_values;
    if (!to->caches) excess = (NMT_PLACES_AT_ONCE - 1) * projections; /* read with the last positions */
    for (int64_t i = 0; i < excess; i++) projected[count * projections + i] = 0.0f;
    float *inner = projected + count * projections + excess, *total = is_pre ? x : 0;
    multiplier by = {parallel, threads, inner + count * inner_width};
    float scale = inverse_root((float)key_width);
#define LINEAR(LAYER, INPUTS, OUTPUTS, FROM, BIAS, TO) multiply(&by, &w->LAYER, count, INPUTS, OUTPUTS, FROM, BIAS, TO)
#define ADD_NORM(BIAS, INDEX)                                                                                          \
    nmt_add_norm(count, width, from, z, BIAS, w->norms[INDEX].weight, w->norms[INDEX].shift, epsilon, total, y)
    const float *from = is_pre ? x : y; /* the residual stream */
    if (is_pre) {
        nmt_add_norm(count, width, x, 0, 0, d->first_norm.weight, d->first_norm.shift, epsilon, 0, y);
    } else {
        copy(count * width, x, y);
    }
    for (int64_t layer = 0; layer < d->layers; layer++) {
        const nmt_layer_weights *w = d->weights + layer;
        LINEAR(qkv, width, projections, y, w->qkv.bias, projected);
        if (to->caches) {
            nmt_states keys = to->caches[layer].keys, values = to->caches[layer].values;
            nmt_attend_to_places(count, to->which, to->beam, heads, key_width, value_width, projected, to->newest,
                keys.first, keys.row, keys.head, keys.place, values.first, values.row, values.head, values.place,
                to->places, to->counts, to->room, scale, mixed);
        } else {
            nmt_attend_to_rows(count, 0, to->beam, heads, key_width, value_width, projected, projections,
                projected + of_keys, to->beam * projections, key_width, projections, projected + 2 * of_keys,
                to->beam * projections, value_width, projections, to->lengths, scale, mixed);
        }
        LINEAR(out, of_values, width, mixed, 0, z);
        ADD_NORM(w->out.bias, 0);
        if (to->caches) {
            nmt_states keys = to->caches[layer].memory_keys, values = to->caches[layer].memory_values;
            LINEAR(query, width, of_keys, y, w->query.bias, projected);
            nmt_attend_to_rows(count, to->which, to->beam, heads, key_width, value_width, projected, of_keys,
                keys.first, keys.row, keys.head, keys.place, values.first, values.row, values.head, values.place,
                to->lengths, scale, mixed);
            LINEAR(cross_out, of_values, width, mixed, 0, z);
            ADD_NORM(w->cross_out.bias, 1);
        }
        LINEAR(inner, width, inner_width, y, 0, inner);
        d->activate(count, inner_width, inner, w->inner.bias);
        LINEAR(outer, inner_width, width, inner, 0, z);
        ADD_NORM(w->outer.bias, 2);
    }
#undef LINEAR
#undef ADD_NORM
}

void nmt_decode(const nmt_stack *decoder, float epsilon, int64_t count, const int64_t *which, int64_t beam,
    const nmt_layer_states *caches, const int64_t *newest, const int32_t *places, const int32_t *counts, int64_t room,
    const int64_t *lengths, float *x, float *y, float *scratch, nmt_run_in_threads *parallel, int32_t threads) {
    attended to = {which, beam, caches, newest, places, counts, room, lengths};
    compute_layers(decoder, epsilon, count, &to, x, y, scratch, parallel, threads);
}

void nmt_encode(const nmt_stack *encoder, float epsilon, int64_t rows, int64_t longest, const int64_t *lengths,
    float *x, float *y, float *scratch, nmt_run_in_threads *parallel, int32_t threads) {
    attended to = {.beam = longest, .lengths = lengths};
    compute_layers(encoder, epsilon, rows * longest, &to, x, y, scratch, parallel, threads);
}

/* Compute the decoder's inputs x (count, width): scaled embeddings and the encodings of positions. */
static void embed(const nmt_stack *d, const nmt_beams *b, int64_t count, const int64_t *which, float *x) {
    float scale = __builtin_sqrtf((float)d->width);
    for (int64_t index = 0; index < count; index++, x += d->width) {
        const float *embedding = d->embedding + b->symbols[which[index]] * d->width;
        const float *encoding = b->encodings + b->positions[which[index] / b->beam] * d->width;
        for (int64_t i = 0; i < d->width; i++) x[i] = embedding[i] * scale;
        for (int64_t i = 0; i < d->width; i++) x[i] += encoding[i]; /* apart, so that both are rounded, as in PyTorch */
    }
}

/* Move the first rows of x (count, width) to the rows `which` of x (all, width), in ascending order; zero the others.
 */
static void spread(int64_t all, int64_t count, int64_t width, const int64_t *which, float *x) {
    for (int64_t row = all; row-- > 0;) {
        int is_one = count > 0 && which[count - 1] == row;
        if (is_one) count--;
        for (int64_t i = 0; i < width; i++) x[row * width + i] = is_one ? x[count * width + i] : 0.0f;
    }
}

static void forbid_padding(const nmt_shortlist *s, float *logits) {
    for (int64_t i = 0; i < s->outputs; i++)
        if (s->symbols[i] < 0) logits[i] = -__builtin_inff();
}

/* Find the best extensions of a row within its shortlist, as nmt_best_extensions does. `y` (beam, width) are states and
 * `shared` (beam, outputs) logits of the symbols that all rows have; `own` and `joint` are scratch space for logits of
 * the row's own symbols and of both. */
static void extend_in_shortlist(const multiplier *by, const nmt_stack *d, const nmt_beams *b, int64_t row,
    int64_t candidates, const float *y, const float *shared, float *own, float *joint, float *totals, int64_t *parents,
    int64_t *symbols) {
    const nmt_shortlist *all = b->shortlists, *s = all + 1 + row;
    int64_t first = s->is_whole ? 0 : all->outputs, width = first + s->outputs;
    multiply(by, &s->output, b->beam, d->width, s->outputs, y, s->output.bias, own);
    for (int64_t k = 0; k < b->beam; k++) {
        float *logits = joint + k * width;
        copy(first, shared + k * all->outputs, logits);
        if (first) forbid_padding(all, logits);
        copy(s->outputs, own + k * s->outputs, logits + first);
        forbid_padding(s, logits + first);
    }
    nmt_log_softmax(b->beam, width, width, b->end, joint);
    for (int64_t k = 0; b->positions[row] < b->least && k < b->beam; k++) joint[k * width + b->end] = -__builtin_inff();
    nmt_best_extensions(1, b->beam, width, candidates, joint, b->alive + row * b->beam, totals, parents, symbols);
    for (int64_t i = 0; i < candidates; i++)
        symbols[i] = symbols[i] < first ? all->symbols[symbols[i]] : s->symbols[symbols[i] - first];
}

#define LOGITS_AT_ONCE (1 << 20) /* 4 MB fit in a core's cache */

int64_t nmt_search(const nmt_stack *decoder, float epsilon, nmt_beams *beams, int64_t most,
    nmt_run_in_threads *parallel, int32_t threads) {
    const nmt_stack *d = decoder;
    nmt_beams *b = beams;
    int64_t rows = b->rows, beam = b->beam, all = rows * beam, width = d->width, taken = 0, is_done = 0;
    int64_t candidates = beam > 1 ? 2 * beam : 1, room = b->room + NMT_PLACES_AT_ONCE;
    const nmt_shortlist *lists = b->shortlists; /* of all rows, then of each */
    int64_t outputs = lists ? lists->outputs : d->outputs, most_own = 0;
    for (int64_t row = 0; lists && row < rows; row++)
        most_own = lists[1 + row].outputs > most_own ? lists[1 + row].outputs : most_own;
    int64_t at_once = LOGITS_AT_ONCE / (beam * outputs);
    at_once = at_once < 1 ? 1 : at_once < rows ? at_once : rows;
    int64_t of_step = 1 + 2 * width + d->heads * (2 * d->key_width + 3 * d->value_width) + 2 * d->inner_width;
#define BUFFERS(BUFFER)                                                                                                \
    BUFFER(int64_t, which, all)                                                                                        \
    BUFFER(int64_t, parents, rows *candidates)                                                                         \
    BUFFER(int64_t, symbols, rows *candidates)                                                                         \
    BUFFER(float, totals, rows *candidates)                                                                            \
    BUFFER(float, before, beam * b->room)                                                                              \
    BUFFER(int32_t, places, all *room)                                                                                 \
    BUFFER(int32_t, counts, all)                                                                                       \
    BUFFER(float, x, all *width)                                                                                       \
    BUFFER(float, y, all *width)                                                                                       \
    BUFFER(float, logits, at_once * beam * outputs)                                                                    \
    BUFFER(float, own, beam *most_own)                                                                                 \
    BUFFER(float, joint, beam *(outputs + most_own))                                                                   \
    BUFFER(float, scratch, all *of_step)
#define SIZE(TYPE, NAME, COUNT) +sizeof(TYPE) * (size_t)(COUNT)
#define PLACE(TYPE, NAME, COUNT)                                                                                       \
    TYPE *NAME = (TYPE *)memory;                                                                                       \
    memory += sizeof(TYPE) * (size_t)(COUNT);
    char *memory = malloc(1 BUFFERS(SIZE)), *whole = memory;
    if (!memory) return 0;
    BUFFERS(PLACE)
    multiplier by = {parallel, threads, scratch};
    for (; taken < most && !is_done && b->extent + beam <= b->room; taken++) {
        b->extent =
            nmt_extend(rows, beam, b->extent, b->parents, b->bias, b->bias_row, b->bias_hypothesis, before, b->newest);
        room = (b->extent + NMT_PLACES_AT_ONCE - 1) / NMT_PLACES_AT_ONCE * NMT_PLACES_AT_ONCE;
        nmt_seen_places(rows, beam, b->extent, b->bias, b->bias_row, b->bias_hypothesis, room, places, counts);
        int64_t count = 0;
        for (int64_t row = 0; row < rows; row++) b->positions[row]++;
        for (int64_t i = 0; i < all; i++)
            if (b->alive[i] != -__builtin_inff()) which[count++] = i;
        embed(d, b, count, which, x);
        nmt_decode(d, epsilon, count, which, beam, b->caches, b->newest, places, counts, room, b->lengths, x, y,
            scratch, parallel, threads);
        if (count < all) spread(all, count, width, which, y);
        for (int64_t first = 0; first < rows; first += at_once) {
            int64_t part = rows - first < at_once ? rows - first : at_once, at = first * beam, of = first * candidates;
            const nmt_linear *output = lists ? &lists->output : &d->output;
            multiply(&by, output, part * beam, width, outputs, y + at * width, output->bias, logits);
            for (int64_t row = first; lists && row < first + part; row++) {
                int64_t from = row * candidates;
                extend_in_shortlist(&by, d, b, row, candidates, y + row * beam * width,
                    logits + (row - first) * beam * outputs, own, joint, totals + from, parents + from, symbols + from);
            }
            if (lists) continue;
            nmt_log_softmax(part * beam, d->outputs, d->vocabulary, b->end, logits);
            for (int64_t i = 0; i < part * beam; i++)
                if (b->positions[(at + i) / beam] < b->least) logits[i * d->outputs + b->end] = -__builtin_inff();
            nmt_best_extensions(
                part, beam, d->outputs, candidates, logits, b->alive + at, totals + of, parents + of, symbols + of);
        }
        nmt_choose(rows, beam, candidates, d->vocabulary, b->end, b->n_best, b->penalties, b->caps, b->positions,
            totals, parents, symbols, b->links, b->links_row, b->parents, b->symbols, b->alive, b->ends, b->ends_at,
            b->scores, b->done);
        for (int64_t row = 0; row < rows; row++) is_done |= b->done[row];
    }
    free(whole);
    return taken;
}
