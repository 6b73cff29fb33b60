/* Before a loop: no iteration depends on another. For loops whose output may be one of their inputs, lying on it exactly; without
 * it the compiler would ask at run time whether they overlap, and go on one by one if so. */
#ifndef SH_KERNELS_CPU_LOOP_H
#define SH_KERNELS_CPU_LOOP_H

#ifdef __clang__
#define SH_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define SH_INDEPENDENT _Pragma("GCC ivdep")
#endif

#endif
