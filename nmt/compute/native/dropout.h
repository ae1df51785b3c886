/* Dropout masks, drawn where they are used: element i is kept or not by a hash of i and a seed, so that a mask need not
 * be stored and depends on no thread. `cpu_training.draw_kept` draws the same. */

#ifndef DROPOUT_H
#define DROPOUT_H

#include "nmt_kernels.h"
#include "vectors.h"

#if LANES == 16
#define COUNTING {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#elif LANES == 8
#define COUNTING {0, 1, 2, 3, 4, 5, 6, 7}
#else
#define COUNTING {0, 1, 2, 3}
#endif

/* Return -1 for each of LANES elements from `index` on that is kept, else 0. */
INLINE integers kept(int64_t index, int64_t seed, int32_t bound) {
    naturals x = (naturals)COUNTING + ((uint32_t)index + (uint32_t)seed);
    x = (x ^ (x >> 16)) * 0x21f0aaad;
    x = (x ^ (x >> 15) ^ (uint32_t)(seed >> 32)) * 0xd35a2d97;
    return (integers)(x ^ (x >> 15)) >= bound;
}

/* Return x where an element is kept, else 0. A mask with the bound NMT_ALL_KEPT drops nothing. */
INLINE vector keep(vector x, int64_t index, int64_t seed, int32_t bound) {
    return bound == NMT_ALL_KEPT ? x : (vector)((integers)x & kept(index, seed, bound));
}

#endif
