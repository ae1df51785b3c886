/* How hypotheses go on: log-probabilities, the best extensions, and which of them end. */

#include "nmt_kernels.h"
#include "vectors.h"

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

void nmt_log_softmax(int64_t rows, int64_t width, int64_t vocabulary, int64_t reserved, float *logits) {
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

#define SKIP_WIDTH (8 * LANES) /* log-probabilities skipped together if their maximum is too small */

void nmt_best_extensions(int64_t rows, int64_t beam, int64_t width, int64_t count, const float *log_probs,
    const float *alive, float *totals, int64_t *parents, int64_t *symbols) {
    for (int64_t row = 0; row < rows; row++, totals += count, parents += count, symbols += count) {
        for (int64_t i = 0; i < count; i++) totals[i] = -__builtin_inff(), parents[i] = symbols[i] = 0;
        for (int64_t k = 0; k < beam; k++, log_probs += width) {
            float so_far = alive[row * beam + k];
            if (so_far == -__builtin_inff()) continue;
            for (int64_t first = 0; first < width; first += SKIP_WIDTH) {
                int64_t end = first + SKIP_WIDTH < width ? first + SKIP_WIDTH : width, i = first;
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

void nmt_choose(int64_t rows, int64_t beam, int64_t count, int64_t vocabulary, int64_t end, int64_t n_best,
    const float *penalties, const int64_t *caps, const int64_t *positions, const float *totals, const int64_t *parents,
    const int64_t *symbols, int64_t *links, int64_t links_row, int64_t *next_parents, int64_t *next_symbols,
    float *alive, int64_t *ends, int64_t *ends_at, float *scores, uint8_t *done) {
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
