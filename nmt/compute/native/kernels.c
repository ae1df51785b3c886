/* The C kernels. setup.py compiles this file once for each instruction set into a shared library, which `__init__.py`
 * loads. The libraries are never imported as Python modules and do not need Python.h.
 *
 * Vectors use the vector extension of GCC and Clang and are as wide as the instruction set allows; they need only the
 * alignment of a float. Unless stated otherwise, numbers are fp32, and matrices are row-major without gaps.
 */

#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Increment this and VERSION in `__init__.py` whenever a function's behaviour or arguments change. */
#define NMT_KERNELS_VERSION 8

#if defined(_WIN32)
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4 /* SSE2 or NEON */
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

EXPORTED int32_t nmt_kernels_version(void) { return NMT_KERNELS_VERSION; }

INLINE vector load(const float *from) { return *(const vector *)from; }

INLINE void store(float *to, vector values) { *(vector *)to = values; }

INLINE void copy(int64_t width, const float *from, float *to) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) store(to + i, load(from + i));
    for (; i < width; i++) to[i] = from[i];
}

INLINE vector broadcast(float value) { return value - (vector){0}; }

#if defined(__clang__)
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (integers){__VA_ARGS__})
#endif

/* Swap neighbouring groups of 8, 4, 2 or 1 lanes, to reduce a vector in log2(LANES) steps. */
#if LANES == 16
#define EIGHTS(a) SHUFFLE(a, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define FOURS(a) SHUFFLE(a, a, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define TWOS(a) SHUFFLE(a, a, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define ONES(a) SHUFFLE(a, a, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif LANES == 8
#define FOURS(a) SHUFFLE(a, a, 4, 5, 6, 7, 0, 1, 2, 3)
#define TWOS(a) SHUFFLE(a, a, 2, 3, 0, 1, 6, 7, 4, 5)
#define ONES(a) SHUFFLE(a, a, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define TWOS(a) SHUFFLE(a, a, 2, 3, 0, 1)
#define ONES(a) SHUFFLE(a, a, 1, 0, 3, 2)
#endif

/* Return the larger of a and b in each lane; b if either is NaN. One instruction, where a comparison takes three. */
INLINE vector larger(vector a, vector b) {
#if defined(__AVX512F__)
    return (vector)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vector)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__x86_64__)
    return (vector)_mm_max_ps((__m128)a, (__m128)b);
#else
    integers first = a > b;
    return (vector)(((integers)a & first) | ((integers)b & ~first));
#endif
}

INLINE float sum(vector values) {
#if LANES > 8
    values += EIGHTS(values);
#endif
#if LANES > 4
    values += FOURS(values);
#endif
    values += TWOS(values);
    values += ONES(values);
    return values[0];
}

INLINE float largest(vector values) {
#if LANES > 8
    values = larger(values, EIGHTS(values));
#endif
#if LANES > 4
    values = larger(values, FOURS(values));
#endif
    values = larger(values, TWOS(values));
    values = larger(values, ONES(values));
    return values[0];
}

/* --- residual and layer normalisation ------------------------------------------------------------------------- */

/* Compute total = x + z + bias for one row; return the sum of `total`. */
INLINE float add_row(int64_t width, const float *x, const float *z, const float *bias, float *total) {
    vector sums = {0};
    float rest = 0.0f;
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vector t = load(x + i) + load(z + i);
        if (bias) t += load(bias + i);
        store(total + i, t);
        sums += t;
    }
    for (; i < width; i++) {
        float t = x[i] + z[i];
        if (bias) t += bias[i];
        total[i] = t;
        rest += t;
    }
    return sum(sums) + rest;
}

/* Return the sum of (x - mean)^2 over one row. */
INLINE float squares_of_row(int64_t width, const float *x, float mean) {
    vector sums = {0};
    float rest = 0.0f;
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        vector difference = load(x + i) - broadcast(mean);
        sums += difference * difference;
    }
    for (; i < width; i++) rest += (x[i] - mean) * (x[i] - mean);
    return sum(sums) + rest;
}

/* Compute out = (x - mean) * scale * weight + shift for one row. */
INLINE void scale_row(
    int64_t width, const float *x, float mean, float scale, const float *weight, const float *shift, float *out) {
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES)
        store(out + i, (load(x + i) - broadcast(mean)) * broadcast(scale) * load(weight + i) + load(shift + i));
    for (; i < width; i++) out[i] = (x[i] - mean) * scale * weight[i] + shift[i];
}

INLINE float inverse_root(float x) { return 1.0f / __builtin_sqrtf(x); }

/* Compute total = x + z + bias and norm = LayerNorm(total), both (rows, width). `bias` (width) may be null, and so may
 * `total` if only the norm is needed. `total` and `norm` may overwrite `x` or `z`, but must differ from each other. */
EXPORTED void nmt_add_norm(
    int64_t rows, int64_t width, const float *x, const float *z, const float *bias, const float *weight,
    const float *shift, float epsilon, float *total, float *norm) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t start = row * width;
        float *sums = total ? total + start : norm + start;
        float mean = add_row(width, x + start, z + start, bias, sums) / (float)width;
        float variance = squares_of_row(width, sums, mean) / (float)width;
        scale_row(width, sums, mean, inverse_root(variance + epsilon), weight, shift, norm + start);
    }
}

/* --- dot products ---------------------------------------------------------------------------------------------- */

/* Select the even or odd lanes, or groups of four lanes, of a and b. EVEN and ODD keep lanes in their group of four, so
 * each is one instruction. Adding EVEN to ODD halves the number of partial sums. */
#if LANES == 16
#define EVEN(a, b) SHUFFLE(a, b, 0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30)
#define ODD(a, b) SHUFFLE(a, b, 1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31)
#define EVEN_FOURS(a, b) SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define ODD_FOURS(a, b) SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
#elif LANES == 8
#define EVEN(a, b) SHUFFLE(a, b, 0, 2, 8, 10, 4, 6, 12, 14)
#define ODD(a, b) SHUFFLE(a, b, 1, 3, 9, 11, 5, 7, 13, 15)
#define EVEN_FOURS(a, b) SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define ODD_FOURS(a, b) SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#else
#define EVEN(a, b) SHUFFLE(a, b, 0, 2, 4, 6)
#define ODD(a, b) SHUFFLE(a, b, 1, 3, 5, 7)
#define EVEN_FOURS(a, b) (a)
#define ODD_FOURS(a, b) (b)
#endif

/* Return the horizontal sum of each of LANES vectors; `parts` is overwritten. */
INLINE vector sums(vector *parts) {
#pragma GCC unroll 8
    for (int i = 0; i < LANES / 2; i++) parts[i] = EVEN(parts[2 * i], parts[2 * i + 1]) + ODD(parts[2 * i], parts[2 * i + 1]);
#pragma GCC unroll 4
    for (int i = 0; i < LANES / 4; i++) parts[i] = EVEN(parts[2 * i], parts[2 * i + 1]) + ODD(parts[2 * i], parts[2 * i + 1]);
#if LANES > 4
#pragma GCC unroll 2
    for (int i = 0; i < LANES / 8; i++)
        parts[i] = EVEN_FOURS(parts[2 * i], parts[2 * i + 1]) + ODD_FOURS(parts[2 * i], parts[2 * i + 1]);
#endif
#if LANES > 8
    parts[0] = EVEN_FOURS(parts[0], parts[1]) + ODD_FOURS(parts[0], parts[1]);
#endif
    return parts[0];
}

/* Return e^x for x <= 0, by the polynomial of Cephes, within 2 ulp; return 0 below -87. */
INLINE vector exponential(vector x) {
    integers kept = x > broadcast(-87.0f);
    vector scaled = x * broadcast(1.44269504f) - broadcast(0.5f); /* so that truncation rounds to nearest */
    integers power = __builtin_convertvector(scaled, integers);
    vector n = __builtin_convertvector(power, vector);
    vector r = x - n * broadcast(0.693359375f) + n * broadcast(2.12194440e-4f);
    vector p = r * broadcast(1.9875691500e-4f) + broadcast(1.3981999507e-3f);
    p = p * r + broadcast(8.3334519073e-3f);
    p = p * r + broadcast(4.1665795894e-2f);
    p = p * r + broadcast(1.6666665459e-1f);
    p = p * r + broadcast(5.0000001201e-1f);
    p = p * r * r + r + broadcast(1.0f);
    return (vector)((integers)(p * (vector)((power + 127) << 23)) & kept);
}

/* Return the natural logarithm of x >= 1, by the polynomial of Cephes. */
INLINE float logarithm(float x) {
    union {
        float number;
        int32_t bits;
    } mantissa = {x};
    int32_t exponent = (mantissa.bits >> 23) - 126;
    mantissa.bits = (mantissa.bits & 0x007fffff) | 0x3f000000; /* 0.5 to 1 */
    float m = mantissa.number;
    if (m < 0.707106781f) exponent--, m += m;
    m -= 1.0f;
    float p = m * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    float e = (float)exponent;
    return m * m * m * p - e * 2.12194440e-4f - 0.5f * m * m + m + e * 0.693359375f;
}

/* --- attention of hypotheses ------------------------------------------------------------------------------------ */

/* Keys and values are indexed by row, head and place, with a stride for each; the numbers of a head are contiguous. */

#define GROUP 4 /* places per unrolled iteration */
#define MOST_HEADS 4 /* heads computed together */
#define MOST_VECTORS 8 /* vectors per head */

/* `hidden + LANES - n` is a bias of n zeros, then -inf: it hides later scores. */
static const float hidden[2 * LANES] = {[LANES... 2 * LANES - 1] = -__builtin_inff()};

/* Compute out = softmax(keys query * scale) values for one query and each of `heads` heads over `count` places: those
 * in `places`, or the first ones if it is null. Places are read up to a multiple of GROUP; the excess must be readable
 * but has no effect. The softmax is online (Milakov and Gimelshein 2018), LANES places at a time. Each stage processes
 * all heads, which gives the processor independent work. `heads` and `vectors` are compile-time constants; with
 * `vectors` 0, heads may have any width. */
INLINE void attend(
    int heads, int vectors, int64_t key_width, int64_t value_width, const float *queries, const float *keys,
    int64_t key_head, int64_t key_step, const float *values, int64_t value_head, int64_t value_step,
    const int32_t *places, int64_t count, float scale, float *out) {
    vector sums_of_values[MOST_HEADS][MOST_VECTORS], totals[MOST_HEADS], scores[MOST_HEADS];
    float highest[MOST_HEADS], weights[MOST_HEADS][LANES];
    for (int h = 0; h < heads; h++) {
        for (int i = 0; i < vectors; i++) sums_of_values[h][i] = (vector){0};
        highest[h] = -__builtin_inff(), totals[h] = (vector){0};
    }
    if (vectors == 0)
        for (int64_t i = 0; i < heads * value_width; i++) out[i] = 0.0f;
    for (int64_t first = 0; first < count; first += LANES) {
        int64_t block = count - first < LANES ? count - first : LANES;
        for (int h = 0; h < heads; h++) {
            const float *query = queries + h * key_width;
            vector products[LANES];
            float rests[LANES] = {0};
            for (int j = 0; j < LANES; j++) products[j] = (vector){0};
            for (int64_t group = 0; group < block; group += GROUP) {
#pragma GCC unroll 4
                for (int64_t j = group; j < group + GROUP; j++) {
                    const float *key = keys + h * key_head + (places ? places[first + j] : first + j) * key_step;
                    vector product = {0};
                    if (vectors > 0) {
                        for (int i = 0; i < vectors; i++) product += load(query + i * LANES) * load(key + i * LANES);
                    } else {
                        int64_t i = 0;
                        for (; i + LANES <= key_width; i += LANES) product += load(query + i) * load(key + i);
                        for (; i < key_width; i++) rests[j] += query[i] * key[i];
                    }
                    products[j] = product;
                }
            }
            scores[h] = sums(products);
            if (vectors == 0) scores[h] += load(rests);
        }
        for (int h = 0; h < heads; h++) {
            scores[h] = scores[h] * broadcast(scale) + load(hidden + LANES - block);
            float before = highest[h], own = largest(scores[h]);
            highest[h] = own > before ? own : before;
            if (first > 0 && own > before) {
                vector factor = exponential(broadcast(before - own));
                totals[h] *= factor;
                for (int i = 0; i < vectors; i++) sums_of_values[h][i] *= factor;
                if (vectors == 0)
                    for (int64_t i = 0; i < value_width; i++) out[h * value_width + i] *= factor[0];
            }
        }
        for (int h = 0; h < heads; h++) {
            scores[h] = exponential(scores[h] - broadcast(highest[h]));
            totals[h] += scores[h];
            store(weights[h], scores[h]);
        }
        for (int h = 0; h < heads; h++) {
            for (int64_t group = 0; group < block; group += GROUP) {
#pragma GCC unroll 4
                for (int64_t j = group; j < group + GROUP; j++) {
                    const float *value = values + h * value_head + (places ? places[first + j] : first + j) * value_step;
                    for (int i = 0; i < vectors; i++)
                        sums_of_values[h][i] += broadcast(weights[h][j]) * load(value + i * LANES);
                    if (vectors == 0)
                        for (int64_t i = 0; i < value_width; i++) out[h * value_width + i] += weights[h][j] * value[i];
                }
            }
        }
    }
    for (int h = 0; h < heads; h++) {
        float inverse = 1.0f / sum(totals[h]);
        for (int i = 0; i < vectors; i++)
            store(out + h * value_width + i * LANES, sums_of_values[h][i] * broadcast(inverse));
        if (vectors == 0)
            for (int64_t i = 0; i < value_width; i++) out[h * value_width + i] *= inverse;
    }
}

typedef void attention(
    int64_t, int64_t, const float *, const float *, int64_t, int64_t, const float *, int64_t, int64_t, const int32_t *,
    int64_t, float, float *);

#define ATTEND(NAME, HEADS, VECTORS, PLACES)                                                                          \
    static void NAME(                                                                                                 \
        int64_t key_width, int64_t value_width, const float *queries, const float *keys, int64_t key_head,            \
        int64_t key_step, const float *values, int64_t value_head, int64_t value_step, const int32_t *places,         \
        int64_t count, float scale, float *out) {                                                                     \
        (void)places;                                                                                                 \
        attend(HEADS, VECTORS, key_width, value_width, queries, keys, key_head, key_step, values, value_head,         \
               value_step, PLACES, count, scale, out);                                                                \
    }
#define ATTEND_TO_ROWS_AND_PLACES(HEADS, VECTORS)                                                                     \
    ATTEND(to_places_##HEADS##_##VECTORS, HEADS, VECTORS, places)                                                     \
    ATTEND(to_rows_##HEADS##_##VECTORS, HEADS, VECTORS, 0)

ATTEND_TO_ROWS_AND_PLACES(1, 0) /* any width */
ATTEND_TO_ROWS_AND_PLACES(1, 1)
ATTEND_TO_ROWS_AND_PLACES(1, 2)
ATTEND_TO_ROWS_AND_PLACES(1, 4)
ATTEND_TO_ROWS_AND_PLACES(1, 8)
ATTEND_TO_ROWS_AND_PLACES(4, 1)
ATTEND_TO_ROWS_AND_PLACES(4, 2)
ATTEND_TO_ROWS_AND_PLACES(4, 4)
ATTEND_TO_ROWS_AND_PLACES(4, 8)

static attention *const attention_to_places[2][5] = {
    {to_places_1_0, to_places_1_1, to_places_1_2, to_places_1_4, to_places_1_8},
    {to_places_1_0, to_places_4_1, to_places_4_2, to_places_4_4, to_places_4_8}};
static attention *const attention_to_rows[2][5] = {
    {to_rows_1_0, to_rows_1_1, to_rows_1_2, to_rows_1_4, to_rows_1_8},
    {to_rows_1_0, to_rows_4_1, to_rows_4_2, to_rows_4_4, to_rows_4_8}};

/* Return the second index into the tables above for heads of these widths; 0 is for any width. */
static int index_of_widths(int64_t key_width, int64_t value_width) {
    for (int index = 1; index <= 4; index++)
        if (key_width == value_width && key_width == LANES << (index - 1)) return index;
    return 0;
}

#define HIDDEN (-1e9f)

/* Replace hypotheses by those that `parents` (rows, beam) selects, and give each a place in `newest` (rows, beam): the
 * first ones that no hypothesis of the row attends to. `bias` (rows, beam, places) is 0 at visible places and HIDDEN
 * elsewhere; it has room for `beam` places beyond `extent`, all HIDDEN. Places whose step in `written` (rows, places)
 * is `forgotten` or earlier become hidden. `before` is scratch space (beam, extent). Return the new extent, the number
 * of places up to the last visible one. */
EXPORTED int64_t nmt_extend(
    int64_t rows, int64_t beam, int64_t extent, const int64_t *parents, float *bias, int64_t bias_row,
    int64_t bias_hypothesis, int64_t *written, int64_t written_row, int64_t forgotten, int64_t step, float *before,
    int64_t *newest) {
    int64_t seen = 0;
    for (int64_t row = 0; row < rows; row++, parents += beam, newest += beam, bias += bias_row, written += written_row) {
        for (int64_t k = 0; k < beam; k++) copy(extent, bias + parents[k] * bias_hypothesis, before + k * extent);
        for (int64_t k = 0; k < beam; k++) copy(extent, before + k * extent, bias + k * bias_hypothesis);
        int64_t placed = 0;
        for (int64_t place = 0; place < extent; place++) {
            int taken = 0;
            for (int64_t k = 0; k < beam; k++) {
                if (written[place] <= forgotten) bias[k * bias_hypothesis + place] = HIDDEN;
                taken |= bias[k * bias_hypothesis + place] == 0.0f;
            }
            if (taken && place >= seen) seen = place + 1;
            if (!taken && placed < beam) newest[placed++] = place;
        }
        for (int64_t place = extent; placed < beam; place++) newest[placed++] = place;
        if (newest[beam - 1] >= seen) seen = newest[beam - 1] + 1;
        for (int64_t k = 0; k < beam; k++) bias[k * bias_hypothesis + newest[k]] = 0.0f, written[newest[k]] = step;
    }
    return seen;
}

/* List the places that each hypothesis attends to, where the strided `bias` (rows, beam, extent) is 0, in `places`
 * (rows, beam, room), and their number in `counts` (rows, beam). Each list is padded with 0 to a multiple of GROUP, for
 * which `room` must suffice. */
EXPORTED void nmt_seen_places(
    int64_t rows, int64_t beam, int64_t extent, const float *bias, int64_t bias_row, int64_t bias_hypothesis,
    int64_t room, int32_t *places, int32_t *counts) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < beam; k++, places += room, counts++) {
            const float *of = bias + row * bias_row + k * bias_hypothesis;
            int32_t count = 0;
            for (int64_t place = 0; place < extent; place++) {
                places[count] = (int32_t)place;
                count += of[place] == 0.0f;
            }
            *counts = count;
            for (; count % GROUP; count++) places[count] = 0;
        }
}

/* Compute self-attention for the newest position of `count` hypotheses: the indices `which` into (rows, beam), or the
 * first ones if it is null. `projected` (count, heads * (2 * key_width + value_width)) holds queries, keys and values
 * side by side. Store the keys and values at the places `newest` (rows, beam), then attend to each hypothesis's first
 * `counts` (rows, beam) of `places` (rows, beam, room). `out` is (count, heads * value_width). */
EXPORTED void nmt_attend_to_places(
    int64_t count, const int64_t *which, int64_t beam, int64_t heads, int64_t key_width, int64_t value_width,
    const float *projected, const int64_t *newest, float *keys, int64_t key_row, int64_t key_head, int64_t key_place,
    float *values, int64_t value_row, int64_t value_head, int64_t value_place, const int32_t *places,
    const int32_t *counts, int64_t room, float scale, float *out) {
    int widths = index_of_widths(key_width, value_width), together = heads % 4 || !widths ? 1 : 4;
    attention *attend_to = attention_to_places[together == 4][widths];
    int64_t of_keys = heads * key_width, of_values = heads * value_width;
    for (int64_t index = 0; index < count; index++, projected += 2 * of_keys + of_values) {
        int64_t hypothesis = which ? which[index] : index, row = hypothesis / beam, place = newest[hypothesis];
        const float *new_keys = projected + of_keys, *new_values = new_keys + of_keys;
        float *of_row_keys = keys + row * key_row, *of_row_values = values + row * value_row;
        for (int64_t head = 0; head < heads; head++) {
            copy(key_width, new_keys + head * key_width, of_row_keys + head * key_head + place * key_place);
            copy(value_width, new_values + head * value_width, of_row_values + head * value_head + place * value_place);
        }
        for (int64_t head = 0; head < heads; head += together, out += together * value_width)
            attend_to(
                key_width, value_width, projected + head * key_width, of_row_keys + head * key_head, key_head,
                key_place, of_row_values + head * value_head, value_head, value_place, places + hypothesis * room,
                counts[hypothesis], scale, out);
    }
}

/* Compute the attention of `count` hypotheses, chosen by `which` as above, to the first `lengths` (rows) places of
 * their row. `queries` is (count, heads * key_width), `out` (count, heads * value_width). */
EXPORTED void nmt_attend_to_rows(
    int64_t count, const int64_t *which, int64_t beam, int64_t heads, int64_t key_width, int64_t value_width,
    const float *queries, const float *keys, int64_t key_row, int64_t key_head, int64_t key_place, const float *values,
    int64_t value_row, int64_t value_head, int64_t value_place, const int64_t *lengths, float scale, float *out) {
    int widths = index_of_widths(key_width, value_width), together = heads % 4 || !widths ? 1 : 4;
    attention *attend_to = attention_to_rows[together == 4][widths];
    for (int64_t index = 0; index < count; index++) {
        int64_t row = (which ? which[index] : index) / beam;
        for (int64_t head = 0; head < heads; head += together) {
            attend_to(
                key_width, value_width, queries, keys + row * key_row + head * key_head, key_head, key_place,
                values + row * value_row + head * value_head, value_head, value_place, 0, lengths[row], scale, out);
            queries += together * key_width, out += together * value_width;
        }
    }
}

/* In keys or values, copy the first `used` places of the `count` rows `from` to the rows `to`. A head's places must be
 * contiguous. */
EXPORTED void nmt_move_rows(
    int64_t count, const int64_t *from, const int64_t *to, int64_t heads, int64_t used, float *states, int64_t row,
    int64_t head, int64_t place) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t h = 0; h < heads; h++)
            copy(used * place, states + from[i] * row + h * head, states + to[i] * row + h * head);
}

/* --- feed-forward ----------------------------------------------------------------------------------------------- */

INLINE vector relu(vector x) { return larger(x, (vector){0}); }

INLINE vector magnitude(vector x) { return (vector)((integers)x & 0x7fffffff); }

/* Return x * sigmoid(x) as max(0, x) - |x| * sigmoid(-|x|), which does not overflow. */
INLINE vector silu(vector x) {
    vector e = exponential(-magnitude(x));
    return relu(x) - magnitude(x) * e / (e + broadcast(1.0f));
}

/* Return x * Phi(x) as max(0, x) - |x| * Phi(-|x|), where Phi is the normal distribution function by formula 7.1.26 of
 * Abramowitz and Stegun: within 1e-7. */
INLINE vector gelu(vector x) {
    vector a = magnitude(x), t = broadcast(1.0f) / (a * broadcast(0.231641888f) + broadcast(1.0f));
    vector p = t * broadcast(0.5307027145f) - broadcast(0.7265760135f);
    p = p * t + broadcast(0.7107068705f);
    p = p * t - broadcast(0.142248368f);
    p = p * t + broadcast(0.127414796f);
    return relu(x) - a * p * t * exponential(a * a * broadcast(-0.5f));
}

/* Compute x = activation(x + bias) in place (rows, width). The activation is a compile-time constant. */
INLINE void add_bias(vector (*activation)(vector), int64_t rows, int64_t width, float *x, const float *bias) {
    for (int64_t row = 0; row < rows; row++, x += width) {
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) store(x + i, activation(load(x + i) + load(bias + i)));
        for (; i < width; i++) x[i] = activation(broadcast(x[i] + bias[i]))[0];
    }
}

EXPORTED void nmt_add_bias_relu(int64_t rows, int64_t width, float *x, const float *bias) {
    add_bias(relu, rows, width, x, bias);
}

EXPORTED void nmt_add_bias_silu(int64_t rows, int64_t width, float *x, const float *bias) {
    add_bias(silu, rows, width, x, bias);
}

EXPORTED void nmt_add_bias_gelu(int64_t rows, int64_t width, float *x, const float *bias) {
    add_bias(gelu, rows, width, x, bias);
}

/* --- choosing extensions ---------------------------------------------------------------------------------------- */

/* Replace the first `vocabulary` logits of each row of `width` by their log softmax and the others by -inf. The first
 * `reserved` become -inf too, although they count in the sum. */
EXPORTED void nmt_log_softmax(int64_t rows, int64_t width, int64_t vocabulary, int64_t reserved, float *logits) {
    for (int64_t row = 0; row < rows; row++, logits += width) {
        for (int64_t i = vocabulary; i < width; i++) logits[i] = -__builtin_inff();
        int64_t whole = vocabulary / LANES * LANES;
        vector highest_of = broadcast(-__builtin_inff()), totals = {0};
        for (int64_t i = 0; i < whole; i += LANES) highest_of = larger(highest_of, load(logits + i));
        float highest = largest(highest_of);
        for (int64_t i = whole; i < vocabulary; i++) highest = logits[i] > highest ? logits[i] : highest;
        for (int64_t i = 0; i < whole; i += LANES) totals += exponential(load(logits + i) - broadcast(highest));
        float total = sum(totals);
        for (int64_t i = whole; i < vocabulary; i++) total += exponential(broadcast(logits[i] - highest))[0];
        float log_total = logarithm(total); /* not added to `highest`, which may be so large that the sum is inexact */
        for (int64_t i = 0; i < whole; i += LANES)
            store(logits + i, load(logits + i) - broadcast(highest) - broadcast(log_total));
        for (int64_t i = whole; i < vocabulary; i++) logits[i] = logits[i] - highest - log_total;
        for (int64_t i = 0; i < reserved; i++) logits[i] = -__builtin_inff();
    }
}

#define BLOCK (8 * LANES) /* log-probabilities skipped together if their maximum is too small */

/* Find each row's `count` largest of alive (rows, beam) + log_probs (rows, beam, width), in descending order: `totals`,
 * `parents` and `symbols`, each (rows, count). Ties go to the first. If fewer than `count` are above -inf, the
 * remaining totals are -inf, with parent and symbol 0. */
EXPORTED void nmt_best_extensions(
    int64_t rows, int64_t beam, int64_t width, int64_t count, const float *log_probs, const float *alive, float *totals,
    int64_t *parents, int64_t *symbols) {
    for (int64_t row = 0; row < rows; row++, totals += count, parents += count, symbols += count) {
        for (int64_t i = 0; i < count; i++) totals[i] = -__builtin_inff(), parents[i] = symbols[i] = 0;
        for (int64_t k = 0; k < beam; k++, log_probs += width) {
            float so_far = alive[row * beam + k];
            if (so_far == -__builtin_inff()) continue;
            for (int64_t first = 0; first < width; first += BLOCK) {
                int64_t end = first + BLOCK < width ? first + BLOCK : width, i = first;
                vector highest = broadcast(-__builtin_inff());
                for (; i + LANES <= end; i += LANES) highest = larger(highest, load(log_probs + i));
                float best = largest(highest);
                for (; i < end; i++) best = log_probs[i] > best ? log_probs[i] : best;
                if (!(best + so_far > totals[count - 1])) continue;
                for (i = first; i < end; i++) {
                    float total = log_probs[i] + so_far;
                    if (!(total > totals[count - 1])) continue;
                    int64_t at = count - 1;
                    for (; at > 0 && total > totals[at - 1]; at--)
                        totals[at] = totals[at - 1], parents[at] = parents[at - 1], symbols[at] = symbols[at - 1];
                    totals[at] = total, parents[at] = k, symbols[at] = i;
                }
            }
        }
    }
}

/* Divide each row's `count` candidates, best first, into those that end, with the symbol `end` or at the cap, and those
 * that stay alive. Of the first `beam`, those that end join the finished hypotheses if their scores are among the `beam`
 * best: `ends` are links, parent * vocabulary + symbol, `ends_at` their positions, all (rows, beam), best first. The
 * first `beam` others are the next `parents`, `symbols` and `alive` totals, -inf if too few or if they cannot beat the
 * `n_best`-th score; their links are stored in `links` (rows, positions, beam). `penalties` are by length; `done` says
 * whether no hypothesis of a row is alive. */
EXPORTED void nmt_choose(
    int64_t rows, int64_t beam, int64_t count, int64_t vocabulary, int64_t end, int64_t n_best, const float *penalties,
    const int64_t *caps, const int64_t *positions, const float *totals, const int64_t *parents, const int64_t *symbols,
    int64_t *links, int64_t links_row, int64_t *next_parents, int64_t *next_symbols, float *alive, int64_t *ends,
    int64_t *ends_at, float *scores, uint8_t *done) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t position = positions[row], length = position + 1, placed = 0, *new_links = links + position * beam;
        for (int64_t i = 0; i < count; i++) {
            int64_t link = parents[i] * vocabulary + symbols[i];
            if (symbols[i] != end && length != caps[row]) {
                if (placed == beam) continue;
                next_parents[placed] = parents[i], next_symbols[placed] = symbols[i];
                alive[placed] = totals[i], new_links[placed++] = link;
            } else if (i < beam && totals[i] / penalties[length] > scores[beam - 1]) {
                float score = totals[i] / penalties[length];
                int64_t at = beam - 1;
                for (; at > 0 && score > scores[at - 1]; at--)
                    scores[at] = scores[at - 1], ends[at] = ends[at - 1], ends_at[at] = ends_at[at - 1];
                scores[at] = score, ends[at] = link, ends_at[at] = position;
            }
        }
        for (; placed < beam; placed++) {
            next_parents[placed] = next_symbols[placed] = new_links[placed] = 0;
            alive[placed] = -__builtin_inff();
        }
        for (int64_t k = 0; k < beam; k++)
            if (alive[k] / penalties[caps[row]] <= scores[n_best - 1]) alive[k] = -__builtin_inff();
        done[row] = alive[0] == -__builtin_inff();
        totals += count, parents += count, symbols += count, links += links_row;
        next_parents += beam, next_symbols += beam, alive += beam, ends += beam, ends_at += beam, scores += beam;
    }
}

/* --- products in fp32 ---------------------------------------------------------------------------------------------- */

/* A tile of the result is summed in registers: TILE_ROWS rows by up to TILE_VECTORS vectors of outputs. A row's sums are
 * the same in any tile, so they do not depend on other rows. */
#define TILE_ROWS (LANES == 16 ? 8 : 4)
#define TILE_VECTORS 3
#define PANEL_OUTPUTS (TILE_VECTORS * LANES)

/* Return the number of vectors in the panel of outputs from `first` on; only the last panel may have fewer. */
INLINE int64_t panel_vectors(int64_t outputs, int64_t first) {
    int64_t vectors = (outputs - first + LANES - 1) / LANES;
    return vectors < TILE_VECTORS ? vectors : TILE_VECTORS;
}

/* Lay out `matrix` (outputs, width) as panels (width, outputs per panel), padded with zeros to whole vectors. Blocks of
 * LANES columns are copied at a time, which stay in the cache. */
EXPORTED void nmt_pack(int64_t outputs, int64_t width, const float *matrix, float *packed) {
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
INLINE void multiply_tile(
    int rows, int vectors, int64_t width, const float *x, const float *panel, const float *bias, float *out,
    int64_t stride) {
    vector sums[TILE_ROWS][TILE_VECTORS], weights[TILE_VECTORS];
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
INLINE void multiply_rows(
    int rows, int vectors, int64_t width, const float *x, const float *panel, const float *bias, int64_t count,
    float *out, int64_t stride) {
    if (count == vectors * LANES) {
        multiply_tile(rows, vectors, width, x, panel, bias, out, stride);
    } else { /* the last vector has fewer outputs */
        float tile[TILE_ROWS * PANEL_OUTPUTS];
        multiply_tile(rows, vectors, width, x, panel, bias, tile, PANEL_OUTPUTS);
        for (int r = 0; r < rows; r++) copy(count, tile + r * PANEL_OUTPUTS, out + r * stride);
    }
}

/* Multiply all rows by one panel, which stays in the cache. `vectors` is a compile-time constant. */
INLINE void multiply_panel(
    int vectors, int64_t rows, int64_t width, int64_t outputs, const float *x, const float *panel, const float *bias,
    int64_t count, float *out) {
#define ROWS(N)                                                                                                       \
    for (; row + N <= rows; row += N)                                                                                 \
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

/* Type of OpenMP's GOMP_parallel: call a function with an argument in each of a number of threads. */
typedef void run_in_threads(void (*function)(void *), void *argument, unsigned threads, unsigned flags);

#define SHARED_FROM (1 << 20) /* multiplications from which on threads share a product; waking them takes microseconds */

/* Compute out (rows, outputs) = x (rows, width) W' + bias, where `matrix` is W as nmt_pack lays it out and `bias`
 * (outputs) may be null. `parallel` may be null; otherwise it shares the panels of large products among `threads`. */
EXPORTED void nmt_product(
    int64_t rows, int64_t width, int64_t outputs, const float *x, const float *matrix, const float *bias, float *out,
    run_in_threads *parallel, int32_t threads) {
    product shared = {rows, width, outputs, 0, x, matrix, bias, out};
    if (parallel && threads > 1 && rows * width * outputs > SHARED_FROM) {
        parallel(multiply_panels, &shared, (unsigned)threads, 0);
    } else {
        multiply_panels(&shared);
    }
}

/* --- all layers of a decoder's step ------------------------------------------------------------------------------- */

typedef struct {
    const float *matrix, *bias; /* as for nmt_product */
} linear;

typedef struct {
    const float *weight, *shift;
} norm;

typedef struct {
    linear qkv, out, query, cross_out, inner, outer;
    norm norms[3]; /* after each sublayer */
} layer_weights;

typedef struct {
    float *first;
    int64_t row, head, place; /* strides */
} states;

typedef struct {
    states keys, values, memory_keys, memory_values;
} layer_states;

typedef void add_bias_and_activate(int64_t rows, int64_t width, float *x, const float *bias);

/* Compute the states of `count` hypotheses after all layers; the arguments of both attentions are as above. `x` (count,
 * width) is the residual stream and is overwritten; `y` (count, width) holds the first sublayer's inputs, then the
 * states. It is `x` itself if norms follow the sum. `scratch` has count * (width + heads * (2 * key_width + 2 *
 * value_width) + inner_width) numbers. */
EXPORTED void nmt_decode(
    int64_t layers, int64_t count, const int64_t *which, int64_t beam, int64_t heads, int64_t key_width,
    int64_t value_width, int64_t width, int64_t inner_width, add_bias_and_activate *activate, float epsilon,
    const layer_weights *weights, const layer_states *caches, const int64_t *newest, const int32_t *places,
    const int32_t *counts, int64_t room, const int64_t *lengths, float *x, float *y, float *scratch,
    run_in_threads *parallel, int32_t threads) {
    int64_t of_keys = heads * key_width, of_values = heads * value_width, projections = 2 * of_keys + of_values;
    float *z = scratch, *mixed = z + count * width, *projected = mixed + count * of_values;
    float *inner = projected + count * projections, *total = x == y ? 0 : x;
    float scale = inverse_root((float)key_width);
#define LINEAR(LAYER, INPUTS, OUTPUTS, FROM, BIAS, TO)                                                                \
    nmt_product(count, INPUTS, OUTPUTS, FROM, w->LAYER.matrix, BIAS, TO, parallel, threads)
#define ADD_NORM(BIAS, INDEX)                                                                                         \
    nmt_add_norm(count, width, x, z, BIAS, w->norms[INDEX].weight, w->norms[INDEX].shift, epsilon, total, y)
    for (int64_t layer = 0; layer < layers; layer++) {
        const layer_weights *w = weights + layer;
        const layer_states *c = caches + layer;
        LINEAR(qkv, width, projections, y, w->qkv.bias, projected);
        nmt_attend_to_places(
            count, which, beam, heads, key_width, value_width, projected, newest, c->keys.first, c->keys.row,
            c->keys.head, c->keys.place, c->values.first, c->values.row, c->values.head, c->values.place, places,
            counts, room, scale, mixed);
        LINEAR(out, of_values, width, mixed, 0, z);
        ADD_NORM(w->out.bias, 0);
        LINEAR(query, width, of_keys, y, w->query.bias, projected);
        nmt_attend_to_rows(
            count, which, beam, heads, key_width, value_width, projected, c->memory_keys.first, c->memory_keys.row,
            c->memory_keys.head, c->memory_keys.place, c->memory_values.first, c->memory_values.row,
            c->memory_values.head, c->memory_values.place, lengths, scale, mixed);
        LINEAR(cross_out, of_values, width, mixed, 0, z);
        ADD_NORM(w->cross_out.bias, 1);
        LINEAR(inner, width, inner_width, y, 0, inner);
        activate(count, inner_width, inner, w->inner.bias);
        LINEAR(outer, inner_width, width, inner, 0, z);
        ADD_NORM(w->outer.bias, 2);
    }
#undef LINEAR
#undef ADD_NORM
}

/* --- products in 8-bit integers ----------------------------------------------------------------------------------- */

typedef int32_t four_bytes __attribute__((aligned(1), may_alias));

/* Quantise each row of x (rows, width) to 8 bits: x = (quantised - 128) * scale, where the row's scale maps its largest
 * absolute value to 127. Truncating a positive number rounds to nearest, halves up. The maximum is taken over the bits
 * without the sign, which sort like absolute values, NaN last: a row with NaN or infinity gets a non-finite scale. */
EXPORTED void nmt_quantise_rows(
    int64_t rows, int64_t width, const float *restrict x, uint8_t *restrict quantised, float *scales) {
    for (int64_t row = 0; row < rows; row++, x += width, quantised += width) {
        integers best = {0};
        union {
            int32_t bits;
            float number;
        } most = {0}, one;
        int64_t i = 0;
        for (; i + LANES <= width; i += LANES) {
            integers size = (integers)load(x + i) & 0x7fffffff, more = size > best;
            best = (size & more) | (best & ~more);
        }
        for (int lane = 0; lane < LANES; lane++) most.bits = best[lane] > most.bits ? best[lane] : most.bits;
        for (; i < width; i++) {
            one.number = x[i], one.bits &= 0x7fffffff;
            most.bits = one.bits > most.bits ? one.bits : most.bits;
        }
        float scale = most.number / 127.0f;
        scales[row] = scale = scale < 1e-12f ? 1e-12f : scale;
        float inverse = 1.0f / scale;
        /* Compilers pack bytes better in a scalar loop than in one of vectors. */
        for (i = 0; i < width; i++) quantised[i] = (uint8_t)(int32_t)(x[i] * inverse + 128.5f);
    }
}

#if defined(__AVX512F__)
#define PANEL 4 /* vectors of outputs computed together; for four rows, the sums fit in registers */
#define HAS_VNNI __builtin_cpu_supports("avx512vnni")
#elif defined(__AVX2__)
#define PANEL 2
#define HAS_VNNI 0
#endif

#ifdef PANEL

/* Return sums + the products of unsigned x and signed w, four per lane. Compilers do not generate these instructions
 * from loops. Without VNNI, pairs are added in 16 bits, which is exact for |w| <= 64: 2 * 255 * 64 < 2**15. */
INLINE integers add_products(int vnni, integers sums, integers x, integers w) {
    if (vnni) {
        __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(x), "v"(w));
        return sums;
    }
    integers pairs, ones = (integers){0} + 0x00010001;
    __asm__("vpmaddubsw %2, %1, %0" : "=v"(pairs) : "v"(x), "v"(w));
    __asm__("vpmaddwd %1, %0, %0" : "+v"(pairs) : "v"(ones));
    return sums + pairs;
}

/* Multiply `together` rows, at most four and a compile-time constant, by one panel; store `count` outputs of each. */
INLINE void multiply_by_panel(
    int vnni, int together, int64_t width, int64_t outputs, const uint8_t *x, const float *row_scales,
    const int8_t *panel, const int32_t *shifts, const float *scales, int64_t count, float *out) {
    integers sums[4][PANEL];
    for (int r = 0; r < together; r++)
        for (int i = 0; i < PANEL; i++) sums[r][i] = *(const integers *)(shifts + i * LANES);
    for (int64_t k = 0; k < width; k += 4, panel += 4 * PANEL * LANES) {
        integers weights[PANEL];
        for (int i = 0; i < PANEL; i++) weights[i] = *(const integers *)(panel + 4 * i * LANES);
        for (int r = 0; r < together; r++) {
            integers four = (integers){0} + *(const four_bytes *)(x + r * width + k);
            for (int i = 0; i < PANEL; i++) sums[r][i] = add_products(vnni, sums[r][i], four, weights[i]);
        }
    }
    for (int r = 0; r < together; r++)
        for (int i = 0; i < PANEL; i++) {
            vector y = __builtin_convertvector(sums[r][i], vector) * load(scales + i * LANES);
            y *= broadcast(row_scales[r]);
            if ((i + 1) * LANES <= count) {
                store(out + r * outputs + i * LANES, y);
            } else {
                for (int64_t lane = 0; lane < count - i * LANES; lane++) out[r * outputs + i * LANES + lane] = y[lane];
            }
        }
}

/* Multiply all rows by one panel after another, so that a panel stays in the cache. */
INLINE void multiply(
    int vnni, int64_t rows, int64_t width, int64_t outputs, const uint8_t *x, const float *row_scales,
    const int8_t *matrix, const int32_t *shifts, const float *scales, float *out) {
    for (int64_t first = 0; first < outputs; first += PANEL * LANES) {
        const int8_t *panel = matrix + first * width;
        int64_t row = 0, count = outputs - first;
        for (; row + 4 <= rows; row += 4)
            multiply_by_panel(vnni, 4, width, outputs, x + row * width, row_scales + row, panel, shifts + first,
                              scales + first, count, out + row * outputs + first);
        for (; row < rows; row++)
            multiply_by_panel(vnni, 1, width, outputs, x + row * width, row_scales + row, panel, shifts + first,
                              scales + first, count, out + row * outputs + first);
    }
}

#if defined(__AVX512F__)
__attribute__((target("avx512vnni"))) static void multiply_by_vnni(
    int64_t rows, int64_t width, int64_t outputs, const uint8_t *x, const float *row_scales, const int8_t *matrix,
    const int32_t *shifts, const float *scales, float *out) {
    multiply(1, rows, width, outputs, x, row_scales, matrix, shifts, scales, out);
}
#endif

#else
#define PANEL 0
#define HAS_VNNI 0
#endif

/* Return the number of outputs per panel, or 0 if nmt_int8_product is not supported. */
EXPORTED int32_t nmt_int8_panel(void) { return PANEL * LANES; }

/* Return the largest absolute weight for which nmt_int8_product is exact, or 0 if it is not supported. */
EXPORTED int32_t nmt_int8_limit(void) { return HAS_VNNI ? 127 : PANEL ? 64 : 0; }

/* Compute out (rows, outputs) = row_scales (rows) * scales (outputs) * (shifts (outputs) + x (rows, width) W'), where
 * `width` is a multiple of 4. `matrix` holds W (outputs, width) as (panels, width / 4, outputs per panel, 4), padded
 * with zeros; `shifts` and `scales` are padded to the end of the last panel. */
EXPORTED void nmt_int8_product(
    int64_t rows, int64_t width, int64_t outputs, const uint8_t *x, const float *row_scales, const int8_t *matrix,
    const int32_t *shifts, const float *scales, float *out) {
#if defined(__AVX512F__)
    if (HAS_VNNI) {
        multiply_by_vnni(rows, width, outputs, x, row_scales, matrix, shifts, scales, out);
        return;
    }
#endif
#if PANEL
    multiply(0, rows, width, outputs, x, row_scales, matrix, shifts, scales, out);
#else
    (void)rows, (void)width, (void)outputs, (void)x, (void)row_scales, (void)matrix, (void)shifts, (void)scales, (void)out;
#endif
}
