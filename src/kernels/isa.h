/* Names for code that is compiled once for each instruction set. The build compiles every *_fast.c with -DSH_ISA=avx2
 * and again with -DSH_ISA=avx512; these files name everything they export through SH_ISA_NAME. *_reference.c is plain C
 * and is compiled once: the tests compare the fast kernels with it, and other machines run it. */
#ifndef SH_KERNELS_ISA_H
#define SH_KERNELS_ISA_H

#define SH_ISA_JOIN_(name, isa) name##_##isa
#define SH_ISA_JOIN(name, isa) SH_ISA_JOIN_(name, isa)
#define SH_ISA_NAME(name) SH_ISA_JOIN(name, SH_ISA)

#endif
