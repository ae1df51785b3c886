/* All layers of a decoder's step, and the version of the library. */

#include "nmt_kernels.h"
#include "vectors.h"

int32_t nmt_kernels_version(void) { return NMT_KERNELS_VERSION; }

void nmt_decode(int64_t layers, int64_t count, const int64_t *which, int64_t beam, int64_t heads, int64_t key_width,
    int64_t value_width, int64_t width, int64_t inner_width, nmt_activation *activate, float epsilon,
    const nmt_layer_weights *weights, const nmt_layer_states *caches, const int64_t *newest, const int32_t *places,
    const int32_t *counts, int64_t room, const int64_t *lengths, float *x, float *y, float *scratch,
    nmt_run_in_threads *parallel, int32_t threads) {
    int64_t of_keys = heads * key_width, of_values = heads * value_width, projections = 2 * of_keys + of_values;
    float *z = scratch, *mixed = z + count * width, *projected = mixed + count * of_values;
    float *inner = projected + count * projections, *total = x == y ? 0 : x;
    float scale = inverse_root((float)key_width);
#define LINEAR(LAYER, INPUTS, OUTPUTS, FROM, BIAS, TO)                                                                 \
    nmt_product(count, INPUTS, OUTPUTS, FROM, w->LAYER.matrix, BIAS, TO, parallel, threads)
#define ADD_NORM(BIAS, INDEX)                                                                                          \
    nmt_add_norm(count, width, x, z, BIAS, w->norms[INDEX].weight, w->norms[INDEX].shift, epsilon, total, y)
    for (int64_t layer = 0; layer < layers; layer++) {
        const nmt_layer_weights *w = weights + layer;
        const nmt_layer_states *c = caches + layer;
        LINEAR(qkv, width, projections, y, w->qkv.bias, projected);
        nmt_attend_to_places(count, which, beam, heads, key_width, value_width, projected, newest, c->keys.first,
            c->keys.row, c->keys.head, c->keys.place, c->values.first, c->values.row, c->values.head, c->values.place,
            places, counts, room, scale, mixed);
        LINEAR(out, of_values, width, mixed, 0, z);
        ADD_NORM(w->out.bias, 0);
        LINEAR(query, width, of_keys, y, w->query.bias, projected);
        nmt_attend_to_rows(count, which, beam, heads, key_width, value_width, projected, c->memory_keys.first,
            c->memory_keys.row, c->memory_keys.head, c->memory_keys.place, c->memory_values.first, c->memory_values.row,
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
