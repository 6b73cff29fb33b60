/* The CUDA twin of cpu/rnn_reference.c; the contract is kernels/rnn.h. */
#include "kernels/cuda/launch.cuh"

extern "C" const sh_rnn_kernels sh_rnn_kernels_cuda = {nullptr, nullptr};
