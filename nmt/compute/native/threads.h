/* Work that threads share: each takes the next items until none are left, so results do not depend on their number. */

#ifndef THREADS_H
#define THREADS_H

#include "nmt_kernels.h"
#include "vectors.h"

typedef struct {
    int64_t count, at_once, next;
} items;

/* Take items; return whether any were left. */
INLINE int take(items *shared, int64_t *first, int64_t *end) {
    *first = __atomic_fetch_add(&shared->next, shared->at_once, __ATOMIC_RELAXED);
    *end = *first + shared->at_once < shared->count ? *first + shared->at_once : shared->count;
    return *first < shared->count;
}

/* Call a function with an argument, which holds items, in each thread. */
INLINE void in_threads(
    void (*function)(void *), void *argument, int64_t operations, nmt_run_in_threads *parallel, int32_t threads) {
    if (parallel && threads > 1 && operations >= NMT_SHARED_FROM) {
        parallel(function, argument, (unsigned)threads, 0);
    } else {
        function(argument);
    }
}

#endif
