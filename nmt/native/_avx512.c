/* The C kernels for processors with AVX-512 F, BW, DQ and VL; setup.py gives the compiler's options. */
#define MODULE_INIT PyInit__avx512
#include "kernels.c"
