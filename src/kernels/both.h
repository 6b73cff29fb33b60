/* SH_BOTH marks an inline function that is compiled for the host and, where nvcc compiles it, for a card. */
#ifndef SH_KERNELS_BOTH_H
#define SH_KERNELS_BOTH_H

#ifdef __CUDACC__
#define SH_BOTH __host__ __device__
#else
#define SH_BOTH
#endif

#endif
