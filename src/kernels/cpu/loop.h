/* Goes before a loop whose iterations do not depend on each other, although its output may be one of its inputs (the
 * same elements, not shifted). Without it the compiler would check for overlap at run time and then run the scalar
 * loop. */
#ifndef SH_KERNELS_CPU_LOOP_H
#define SH_KERNELS_CPU_LOOP_H

#ifdef __clang__
#define SH_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define SH_INDEPENDENT _Pragma("GCC ivdep")
#endif

#endif
