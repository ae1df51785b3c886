/* The C kernels for processors with AVX2 and FMA; setup.py gives the compiler's options. */
#define MODULE_INIT PyInit__avx2
#include "kernels.c"
