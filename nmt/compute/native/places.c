/* Places of the cache: which ones hypotheses attend to, and rows that move. */

#include "nmt_kernels.h"
#include "vectors.h"

int64_t nmt_extend(int64_t rows, int64_t beam, int64_t extent, const int64_t *parents, float *bias, int64_t bias_row,
    int64_t bias_hypothesis, float *before, int64_t *newest) {
    int64_t seen = 0;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t k = 0; k < beam; k++) copy(extent, bias + parents[k] * bias_hypothesis, before + k * extent);
        for (int64_t k = 0; k < beam; k++) copy(extent, before + k * extent, bias + k * bias_hypothesis);
        int64_t placed = 0;
        for (int64_t place = 0; place < extent; place++) {
            int taken = 0;
            for (int64_t k = 0; k < beam; k++) taken |= bias[k * bias_hypothesis + place] == 0.0f;
            if (taken && place >= seen) seen = place + 1;
            if (!taken && placed < beam) newest[placed++] = place;
        }
        for (int64_t place = extent; placed < beam; place++) newest[placed++] = place;
        if (newest[beam - 1] >= seen) seen = newest[beam - 1] + 1;
        for (int64_t k = 0; k < beam; k++) bias[k * bias_hypothesis + newest[k]] = 0.0f;
        parents += beam, newest += beam, bias += bias_row;
    }
    return seen;
}

void nmt_seen_places(int64_t rows, int64_t beam, int64_t extent, const float *bias, int64_t bias_row,
    int64_t bias_hypothesis, int64_t room, int32_t *places, int32_t *counts) {
    for (int64_t row = 0; row < rows; row++)
        for (int64_t k = 0; k < beam; k++, places += room, counts++) {
            const float *of = bias + row * bias_row + k * bias_hypothesis;
            int32_t count = 0;
            for (int64_t place = 0; place < extent; place++) {
                places[count] = (int32_t)place;
                count += of[place] == 0.0f;
            }
            *counts = count;
            for (; count % NMT_PLACES_AT_ONCE; count++) places[count] = 0;
        }
}

void nmt_move_rows(int64_t count, const int64_t *from, const int64_t *to, int64_t heads, int64_t used, float *states,
    int64_t row, int64_t head, int64_t place) {
    for (int64_t i = 0; i < count; i++)
        for (int64_t h = 0; h < heads; h++)
            copy(used * place, states + from[i] * row + h * head, states + to[i] * row + h * head);
}
