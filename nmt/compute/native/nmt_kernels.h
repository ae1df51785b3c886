/* The C kernels: every function that Python calls, with its contract. setup.py compiles the sources once for each
 * instruction set into a shared library. `header.py` reads the version, the constants, the structures and the argument
 * types here, so keep to int32_t, int64_t, float, pointers and structures before. The libraries are never imported as
 * Python modules and do not need Python.h.
 *
 * Unless stated otherwise, numbers are fp32, matrices are row-major without gaps, sizes may be 0, and buffers that are
 * written overlap no others. Strides count numbers, not bytes. */

#ifndef NMT_KERNELS_H
#define NMT_KERNELS_H

#include <stdint.h>

/* Increment this whenever a function's behaviour or arguments change: libraries of other versions are ignored. */
#define NMT_KERNELS_VERSION 12

#if defined(_WIN32)
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

EXPORTED int32_t nmt_kernels_version(void);

/* --- norm.c: residual and layer normalisation ------------------------------------------------------------------- */

/* Compute total = x + z + bias and norm = LayerNorm(total), both (rows, width). `z` and `bias` (width) may be null, and
 * so may `total` if only the norm is needed. `total` and `norm` may overwrite `x` or `z`, but must differ from each
 * other. */
EXPORTED void nmt_add_norm(int64_t rows, int64_t width, const float *x, const float *z, const float *bias,
    const float *weight, const float *shift, float epsilon, float *total, float *norm);

/* --- activations.c ---------------------------------------------------------------------------------------------- */

/* Compute x = activation(x + bias) in place (rows, width). */
typedef void nmt_activation(int64_t rows, int64_t width, float *x, const float *bias);

EXPORTED void nmt_add_bias_relu(int64_t rows, int64_t width, float *x, const float *bias);
EXPORTED void nmt_add_bias_silu(int64_t rows, int64_t width, float *x, const float *bias);
EXPORTED void nmt_add_bias_gelu(int64_t rows, int64_t width, float *x, const float *bias);

/* --- places.c: which places of the cache hypotheses attend to --------------------------------------------------- */

/* Lists of places are padded, and places read, up to a multiple of this. */
#define NMT_PLACES_AT_ONCE 4

/* Replace hypotheses by those that `parents` (rows, beam) selects, and give each a place in `newest` (rows, beam): the
 * first ones that no hypothesis of the row attends to. `bias` (rows, beam, places) is 0 at visible places and -1e9
 * elsewhere; it has room for `beam` places beyond `extent`, all -1e9. The newest places become visible. `before` is
 * scratch space (beam, extent). Return the new extent, the number of places up to the last visible one. */
EXPORTED int64_t nmt_extend(int64_t rows, int64_t beam, int64_t extent, const int64_t *parents, float *bias,
    int64_t bias_row, int64_t bias_hypothesis, float *before, int64_t *newest);

/* List the places that each hypothesis attends to, where the strided `bias` (rows, beam, extent) is 0, in `places`
 * (rows, beam, room), and their number in `counts` (rows, beam). Each list is padded with 0 to a multiple of
 * NMT_PLACES_AT_ONCE, so `room` is the extent rounded up to one; what follows in `places` is arbitrary. */
EXPORTED void nmt_seen_places(int64_t rows, int64_t beam, int64_t extent, const float *bias, int64_t bias_row,
    int64_t bias_hypothesis, int64_t room, int32_t *places, int32_t *counts);

/* In keys or values, copy the first `used` places of the `count` rows `from` to the rows `to`, none of which is in
 * `from`. A head's places must be contiguous. */
EXPORTED void nmt_move_rows(int64_t count, const int64_t *from, const int64_t *to, int64_t heads, int64_t used,
    float *states, int64_t row, int64_t head, int64_t place);

/* --- attention.c ------------------------------------------------------------------------------------------------ */

/* Keys and values are indexed by row, head and place, with a stride for each; the numbers of a head are contiguous.
 * Places are read up to a multiple of NMT_PLACES_AT_ONCE; the excess has no effect, but must be readable and finite. */

/* Compute self-attention for the newest position of `count` hypotheses: the indices `which` into (rows, beam), or the
 * first ones if it is null. `projected` (count, heads * (2 * key_width + value_width)) holds queries, keys and values
 * side by side. Store the keys and values at the places `newest` (rows, beam), then attend to each hypothesis's first
 * `counts` (rows, beam) of `places` (rows, beam, room). `out` is (count, heads * value_width). */
EXPORTED void nmt_attend_to_places(int64_t count, const int64_t *which, int64_t beam, int64_t heads, int64_t key_width,
    int64_t value_width, const float *projected, const int64_t *newest, float *keys, int64_t key_row, int64_t key_head,
    int64_t key_place, float *values, int64_t value_row, int64_t value_head, int64_t value_place, const int32_t *places,
    const int32_t *counts, int64_t room, float scale, float *out);

/* Compute the attention of `count` hypotheses, chosen by `which` as above, to the first `lengths` (rows) places of
 * their row. `queries` is (count, heads * key_width), whose rows are `query_step` apart, `out` (count, heads *
 * value_width). */
EXPORTED void nmt_attend_to_rows(int64_t count, const int64_t *which, int64_t beam, int64_t heads, int64_t key_width,
    int64_t value_width, const float *queries, int64_t query_step, const float *keys, int64_t key_row, int64_t key_head,
    int64_t key_place, const float *values, int64_t value_row, int64_t value_head, int64_t value_place,
    const int64_t *lengths, float scale, float *out);

/* --- choosing.c: how hypotheses go on --------------------------------------------------------------------------- */

/* Replace the first `vocabulary` logits of each row of `width` by their log softmax and the others by -inf. The first
 * `reserved` become -inf too, although they count in the sum. */
EXPORTED void nmt_log_softmax(int64_t rows, int64_t width, int64_t vocabulary, int64_t reserved, float *logits);

/* Find each row's `count` largest of alive (rows, beam) + log_probs (rows, beam, width), in descending order: `totals`,
 * `parents` and `symbols`, each (rows, count). Ties go to the first. If fewer than `count` are above -inf, the
 * remaining totals are -inf, with parent and symbol 0. `count` is at least 1. */
EXPORTED void nmt_best_extensions(int64_t rows, int64_t beam, int64_t width, int64_t count, const float *log_probs,
    const float *alive, float *totals, int64_t *parents, int64_t *symbols);

/* Divide each row's `count` candidates, best first, into those that end, with the symbol `end` or at the cap, and those
 * that stay alive. Of the first `beam`, those that end join the finished hypotheses if their scores are among the
 * `beam` best: `ends` are links, parent * vocabulary + symbol, `ends_at` their positions, all (rows, beam), best first.
 * The first `beam` others are the next `parents`, `symbols` and `alive` totals, -inf if too few or if they cannot beat
 * the `n_best`-th score; their links are stored in `links` (rows, positions, beam), whose rows are `links_row` apart.
 * `penalties` are by length, up to the largest of `caps` (rows); `positions` are (rows); `done` (rows) says whether no
 * hypothesis of a row is alive. */
EXPORTED void nmt_choose(int64_t rows, int64_t beam, int64_t count, int64_t vocabulary, int64_t end, int64_t n_best,
    const float *penalties, const int64_t *caps, const int64_t *positions, const float *totals, const int64_t *parents,
    const int64_t *symbols, int64_t *links, int64_t links_row, int64_t *next_parents, int64_t *next_symbols,
    float *alive, int64_t *ends, int64_t *ends_at, float *scores, uint8_t *done);

/* --- products.c: products in fp32 ------------------------------------------------------------------------------- */

/* Type of OpenMP's GOMP_parallel: call a function with an argument in each of a number of threads. */
typedef void nmt_run_in_threads(void (*function)(void *), void *argument, unsigned threads, unsigned flags);

/* Multiplications from which on threads share a product; waking them takes microseconds. */
#define NMT_SHARED_FROM (1 << 20)

/* Lay out `matrix` (outputs, width) for nmt_product in `packed`, whose outputs are padded to a multiple of 16. */
EXPORTED void nmt_pack(int64_t outputs, int64_t width, const float *matrix, float *packed);

/* Compute out (rows, outputs) = x (rows, width) W' + bias, where `matrix` is W as nmt_pack lays it out and `bias`
 * (outputs) may be null. A row's result depends on no other row. `parallel` may be null; otherwise it shares large
 * products among `threads`, which does not change the result. */
EXPORTED void nmt_product(int64_t rows, int64_t width, int64_t outputs, const float *x, const float *matrix,
    const float *bias, float *out, nmt_run_in_threads *parallel, int32_t threads);

/* --- multiply.c: products of training ----------------------------------------------------------------------------- */

/* A dropout mask is drawn from a seed: each element is kept if the hash of its index, 32 bits with a sign, is at least
 * `bound`. With this bound, all are. */
#define NMT_ALL_KEPT INT32_MIN

/* What happens to each result of a product: it becomes 0 where `gate`, which has the shape of the result, is not
 * positive. If `gate` is null, it becomes 0 if it is negative or not kept. */
typedef struct {
    const float *gate;
    int64_t seed;
    int32_t bound;
} nmt_finish;

#define NMT_STRIPS (1 << 20)

/* Compute out (rows, outputs) = scale * a (rows, width) b (width, outputs) + bias, or add to it if `adds` is not 0.
 * Strides are those of a's rows and columns, one of which is 1, and of b's, one of which is 1. `bias` (outputs) and
 * `finish` may be null. If a's columns are not adjacent, `strips` is scratch space of NMT_STRIPS numbers, and the sum
 * of each row of a is added to `sums` (rows) unless that is null. Threads are as for nmt_product. */
EXPORTED void nmt_multiply(int64_t rows, int64_t width, int64_t outputs, const float *a, int64_t a_row, int64_t a_step,
    const float *b, int64_t b_step, int64_t b_output, float scale, const float *bias, int32_t adds,
    const nmt_finish *finish, float *sums, float *out, float *strips, nmt_run_in_threads *parallel, int32_t threads);

/* --- residual.c: dropout, residual sums, their norms, and softmax in training
 * ---------------------------------------------- */

/* Widths and sizes are multiples of 16. Masks are as above; what is kept is multiplied by `scale`. */

/* Store the first `size` elements of a mask: 1 if kept, else 0. */
EXPORTED void nmt_draw(int64_t size, int64_t seed, int32_t bound, int8_t *mask);

/* Compute out = x + dropout(z), where x may be null. */
EXPORTED void nmt_add_dropped(int64_t size, const float *x, const float *z, int64_t seed, int32_t bound, float scale,
    float *out, nmt_run_in_threads *parallel, int32_t threads);

/* Compute total = x + dropout(z) and norm = LayerNorm(total), all (rows, width), and each row's mean and inverse
 * standard deviation in `moments` (rows, 2). */
EXPORTED void nmt_residual(int64_t rows, int64_t width, const float *x, const float *z, int64_t seed, int32_t bound,
    float scale, const float *weight, const float *shift, float epsilon, float *total, float *norm, float *moments,
    nmt_run_in_threads *parallel, int32_t threads);

#define NMT_ROWS_SUMMED 128 /* rows whose gradients of weight and shift are added to one partial sum */

/* Compute the gradients of nmt_residual from those of `total`, which may be null, and of `norm`: of x, of z unless
 * `z_grad` is null, and of weight and shift as partial sums (rows / NMT_ROWS_SUMMED, rounded up; 2; width). */
EXPORTED void nmt_residual_gradients(int64_t rows, int64_t width, const float *total, const float *moments,
    const float *weight, const float *total_grad, const float *norm_grad, int64_t seed, int32_t bound, float scale,
    float *x_grad, float *z_grad, float *partial_sums, nmt_run_in_threads *parallel, int32_t threads);

/* Replace each row of logits (rows, width), in fp32 or bf16, by e^(logit - maximum), whose sum before rounding is the
 * row's `total`. */
EXPORTED void nmt_exponentials(int64_t rows, int64_t width, int32_t in_bf16, void *logits, float *maxima, float *totals,
    nmt_run_in_threads *parallel, int32_t threads);

/* --- short_attention.c: attention in training -------------------------------------------------------------------- */

#define NMT_MOST_KEYS 256
#define NMT_MOST_WIDTH 128

/* Queries (batch, queries) and keys and values (batch, keys) of one position, `heads` of `width` numbers, are adjacent;
 * positions are `query_row` and `key_row` apart. `keys` is at most NMT_MOST_KEYS, `width` at most NMT_MOST_WIDTH and a
 * multiple of 16. Keys are hidden where `visible` (batch, keys) is 0, unless it is null, or if `causal` is not 0, after
 * the query's own position. Each query sees a key. Rows of `weights` (batch, heads, queries, keys rounded up to a
 * multiple of 16) are weights before dropout, whose mask is as above, for the indices of `weights`. */
typedef struct {
    int64_t batch, heads, queries, keys, width, query_row, key_row;
    const float *query, *key, *value;
    const uint8_t *visible;
    int64_t causal, seed;
    int32_t bound;
    float kept_scale, scale;
    float *weights;
} nmt_short_attention;

/* Compute attention (batch, queries, heads * width) and its weights. */
EXPORTED void nmt_attend(
    const nmt_short_attention *attention, float *out, nmt_run_in_threads *parallel, int32_t threads);

/* Compute the gradients of queries, keys and values, with the strides of these, from `grad`, that of `out`. */
EXPORTED void nmt_attend_gradients(const nmt_short_attention *attention, const float *grad, float *query_grad,
    float *key_grad, float *value_grad, nmt_run_in_threads *parallel, int32_t threads);

/* --- int8.c: products in 8-bit integers ------------------------------------------------------------------------- */

/* Quantise each row of x (rows, width) to 8 bits: x = (quantised - 128) * scale, where the row's scale in `scales`
 * (rows) maps its largest absolute value to 127; halves are rounded up. A row with NaN or infinity gets a non-finite
 * scale, and 128 for each number. */
EXPORTED void nmt_quantise_rows(int64_t rows, int64_t width, const float *x, uint8_t *quantised, float *scales);

/* Return the number of outputs per panel, or 0 if nmt_int8_product is not supported. */
EXPORTED int32_t nmt_int8_panel(void);

/* Return the largest absolute weight for which nmt_int8_product is exact, or 0 if it is not supported. */
EXPORTED int32_t nmt_int8_limit(void);

/* Compute out (rows, outputs) = row_scales (rows) * scales (outputs) * (shifts (outputs) + x (rows, width) W'), where
 * `width` is a multiple of 4. `matrix` holds W (outputs, width) as (panels, width / 4, outputs per panel, 4), padded
 * with zeros and aligned to 4 bytes; `shifts` and `scales` are padded to the end of the last panel. `parallel` and
 * `threads` are as for nmt_product. */
EXPORTED void nmt_int8_product(int64_t rows, int64_t width, int64_t outputs, const uint8_t *x, const float *row_scales,
    const int8_t *matrix, const int32_t *shifts, const float *scales, float *out, nmt_run_in_threads *parallel,
    int32_t threads);

/* --- decode.c: layers, and whole searches -----------------------------------------------------------------------
 */

typedef struct {
    const void *matrix; /* as nmt_pack lays it out; or of 8-bit integers, if `shifts` is not null */
    const float *bias;
    const int32_t *shifts; /* as for nmt_int8_product, like `scales` */
    const float *scales;
} nmt_linear;

typedef struct {
    const float *weight, *shift; /* as for nmt_add_norm */
} nmt_norm;

typedef struct {
    nmt_linear qkv, out, query, cross_out, inner, outer;
    nmt_norm norms[3]; /* after each sublayer */
} nmt_layer_weights;

typedef struct {
    int64_t layers, heads, key_width, value_width, width, inner_width;
    nmt_activation *activate;
    nmt_norm first_norm; /* before the first sublayer; null if norms follow the sums */
    const float *embedding; /* (vocabulary, width) */
    int64_t vocabulary, outputs;
    nmt_linear output; /* (outputs, width), at least `vocabulary` */
    nmt_layer_weights weights[]; /* (layers); biases may be null, but for those of `inner` */
} nmt_stack; /* of an encoder: without `query`, `cross_out`, `norms[1]`, and all that is about symbols */

typedef struct {
    float *first;
    int64_t row, head, place; /* strides */
} nmt_states;

typedef struct {
    nmt_states keys, values, memory_keys, memory_values;
} nmt_layer_states;

/* Compute the states of `count` hypotheses after all layers; the arguments of both attentions are as above. `x` (count,
 * width) are the inputs, and may be overwritten; `y` (count, width) receives the states. `scratch` has count * (1 + 2 *
 * width + heads * (2 * key_width + 3 * value_width) + 2 * inner_width) numbers. */
EXPORTED void nmt_decode(const nmt_stack *decoder, float epsilon, int64_t count, const int64_t *which, int64_t beam,
    const nmt_layer_states *caches, const int64_t *newest, const int32_t *places, const int32_t *counts, int64_t room,
    const int64_t *lengths, float *x, float *y, float *scratch, nmt_run_in_threads *parallel, int32_t threads);

/* Compute the states of sources of these `lengths` (rows) after all layers: `x` and `y` are (rows, longest, width).
 * `scratch` has rows * longest times as many numbers as that of nmt_decode has per hypothesis, and 3 * heads * (2 *
 * key_width + value_width) more. */
EXPORTED void nmt_encode(const nmt_stack *encoder, float epsilon, int64_t rows, int64_t longest, const int64_t *lengths,
    float *x, float *y, float *scratch, nmt_run_in_threads *parallel, int32_t threads);

/* Symbols of which alone logits are computed. */
typedef struct {
    nmt_linear output; /* (outputs, width) */
    int64_t outputs; /* a multiple of 16 */
    const int64_t *symbols; /* (outputs), -1 in padding */
    int64_t is_whole; /* of a row: whether those of all rows are among them */
} nmt_shortlist;

typedef struct {
    int64_t rows, beam, n_best;
    int64_t extent, room; /* places in use, and places that `bias` and all caches have */
    float *bias; /* as for nmt_extend, like the next three */
    int64_t bias_row, bias_hypothesis, *newest;
    int64_t *positions; /* (rows), of the symbols that are newest */
    const int64_t *lengths; /* (rows), of the sources */
    int64_t *parents, *symbols; /* (rows, beam) */
    float *alive; /* as for nmt_choose, like the next eight */
    int64_t *ends, *ends_at;
    float *scores;
    const int64_t *caps;
    int64_t *links, links_row;
    const float *penalties;
    uint8_t *done;
    const float *encodings; /* (positions, width) */
    int64_t end, least; /* the symbol that ends an output, and the least number of others before it */
    const nmt_shortlist *shortlists; /* (1 + rows): of all rows, from symbol 0 to `end` and on, and of each; or null */
    nmt_layer_states caches[]; /* (layers) */
} nmt_beams;

/* Take steps of a beam search until a row is done, `most` are taken or `room` has fewer than `beam` places left.
 * Symbols below `end` are never chosen. Return the number of steps; 0 if there was no memory for the first one. */
EXPORTED int64_t nmt_search(const nmt_stack *decoder, float epsilon, nmt_beams *beams, int64_t most,
    nmt_run_in_threads *parallel, int32_t threads);

#endif
