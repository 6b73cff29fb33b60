/* Kernels with faults, which the host must notice (faults.cu). */
#ifndef TESTING_CUDA_HOST_FAULTS_H
#define TESTING_CUDA_HOST_FAULTS_H

#include <cuda_pipeline.h>
#include <cuda_runtime.h>

enum fault_kind { FAULT_RACE, FAULT_BARRIER, FAULT_LANE, FAULT_COPY, FAULT_SIZE, FAULTS };

/* Runs a kernel of 96 threads. numbers[t] is t. Without its fault, out[t] becomes (t + 1) % 96. */
void run_fault(fault_kind kind, bool fault, const int *numbers, int *out);

#endif
