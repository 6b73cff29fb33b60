/* One source, one object for each instruction set: files named *_fast.c are compiled with -DSH_ISA=avx2 and with
 * -DSH_ISA=avx512, and everything in them that others see is named through SH_ISA_NAME.
 * *_reference.c is compiled once, as plain C: what the fast ones are compared with, and what other machines run. */
#ifndef SH_KERNELS_ISA_H
#define SH_KERNELS_ISA_H

#define SH_ISA_JOIN_(name, isa) name##_##isa
#define SH_ISA_JOIN(name, isa) SH_ISA_JOIN_(name, isa)
#define SH_ISA_NAME(name) SH_ISA_JOIN(name, SH_ISA)

#endif
