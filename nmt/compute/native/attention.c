/* Attention of hypotheses, to places of the cache and to sources. */

#include "nmt_kernels.h"
#include "vectors.h"

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
    for (int i = 0; i < LANES / 2; i++)
        parts[i] = EVEN(parts[2 * i], parts[2 * i + 1]) + ODD(parts[2 * i], parts[2 * i + 1]);
#pragma GCC unroll 4
    for (int i = 0; i < LANES / 4; i++)
        parts[i] = EVEN(parts[2 * i], parts[2 * i + 1]) + ODD(parts[2 * i], parts[2 * i + 1]);
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

#define MOST_HEADS 4 /* heads computed together */
#define MOST_VECTORS 8 /* vectors per head */

/* `hidden + LANES - n` is a bias of n zeros, then -inf: it hides later scores. */
static const float hidden[2 * LANES] = {[LANES... 2 * LANES - 1] = -__builtin_inff()};

/* Compute out = softmax(keys query * scale) values for one query and each of `heads` heads over `count` places: those
 * in `places`, or the first ones if it is null. The softmax is online (Milakov and Gimelshein 2018), LANES places at a
 * time. Each stage processes all heads, which gives the processor independent work. `heads` and `vectors` are
 * compile-time constants; with `vectors` 0, heads may have any width. */
INLINE void attend(int heads, int vectors, int64_t key_width, int64_t value_width, const float *queries,
    const float *keys, int64_t key_head, int64_t key_step, const float *values, int64_t value_head, int64_t value_step,
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
        int64_t filled = count - first < LANES ? count - first : LANES;
        for (int h = 0; h < heads; h++) {
            const float *query = queries + h * key_width;
            vector products[LANES];
            float rests[LANES] = {0};
            for (int j = 0; j < LANES; j++) products[j] = (vector){0};
            for (int64_t group = 0; group < filled; group += NMT_PLACES_AT_ONCE) {
#pragma GCC unroll 4
                for (int64_t j = group; j < group + NMT_PLACES_AT_ONCE; j++) {
                    int64_t place = places ? places[first + j] : first + j;
                    const float *key = keys + h * key_head + place * key_step;
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
            scores[h] = scores[h] * broadcast(scale) + load(hidden + LANES - filled);
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
            for (int64_t group = 0; group < filled; group += NMT_PLACES_AT_ONCE) {
#pragma GCC unroll 4
                for (int64_t j = group; j < group + NMT_PLACES_AT_ONCE; j++) {
                    int64_t place = places ? places[first + j] : first + j;
                    const float *value = values + h * value_head + place * value_step;
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

typedef void attention(int64_t, int64_t, const float *, const float *, int64_t, int64_t, const float *, int64_t,
    int64_t, const int32_t *, int64_t, float, float *);

#define ATTEND(NAME, HEADS, VECTORS, PLACES)                                                                           \
    static void NAME(int64_t key_width, int64_t value_width, const float *queries, const float *keys,                  \
        int64_t key_head, int64_t key_step, const float *values, int64_t value_head, int64_t value_step,               \
        const int32_t *places, int64_t count, float scale, float *out) {                                               \
        (void)places;                                                                                                  \
        attend(HEADS, VECTORS, key_width, value_width, queries, keys, key_head, key_step, values, value_head,          \
            value_step, PLACES, count, scale, out);                                                                    \
    }
#define ATTEND_TO_ROWS_AND_PLACES(HEADS, VECTORS)                                                                      \
    ATTEND(to_places_##HEADS##_##VECTORS, HEADS, VECTORS, places)                                                      \
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
static attention *const attention_to_rows[2][5] = {{to_rows_1_0, to_rows_1_1, to_rows_1_2, to_rows_1_4, to_rows_1_8},
    {to_rows_1_0, to_rows_4_1, to_rows_4_2, to_rows_4_4, to_rows_4_8}};

/* Return the second index into the tables above for heads of these widths; 0 is for any width. */
static int index_of_widths(int64_t key_width, int64_t value_width) {
    for (int index = 1; index <= 4; index++)
        if (key_width == value_width && key_width == LANES << (index - 1)) return index;
    return 0;
}

void nmt_attend_to_places(int64_t count, const int64_t *which, int64_t beam, int64_t heads, int64_t key_width,
    int64_t value_width, const float *projected, const int64_t *newest, float *keys, int64_t key_row, int64_t key_head,
    int64_t key_place, float *values, int64_t value_row, int64_t value_head, int64_t value_place, const int32_t *places,
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
            attend_to(key_width, value_width, projected + head * key_width, of_row_keys + head * key_head, key_head,
                key_place, of_row_values + head * value_head, value_head, value_place, places + hypothesis * room,
                counts[hypothesis], scale, out);
    }
}

void nmt_attend_to_rows(int64_t count, const int64_t *which, int64_t beam, int64_t heads, int64_t key_width,
    int64_t value_width, const float *queries, int64_t query_step, const float *keys, int64_t key_row, int64_t key_head,
    int64_t key_place, const float *values, int64_t value_row, int64_t value_head, int64_t value_place,
    const int64_t *lengths, float scale, float *out) {
    int widths = index_of_widths(key_width, value_width), together = heads % 4 || !widths ? 1 : 4;
    attention *attend_to = attention_to_rows[together == 4][widths];
    for (int64_t index = 0; index < count; index++, queries += query_step) {
        int64_t row = (which ? which[index] : index) / beam;
        for (int64_t head = 0; head < heads; head += together) {
            attend_to(key_width, value_width, queries + head * key_width, keys + row * key_row + head * key_head,
                key_head, key_place, values + row * value_row + head * value_head, value_head, value_place, 0,
                lengths[row], scale, out);
            out += together * value_width;
        }
    }
}
