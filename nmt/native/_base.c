/* The C kernels for any processor; setup.py gives the compiler's options. */
#define MODULE_INIT PyInit__base
#include "kernels.c"
