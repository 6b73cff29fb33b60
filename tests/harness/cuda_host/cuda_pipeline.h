/* Copies into shared memory that a card makes beside its work. On the host they are made as late as they may be: when
 * the thread waits for them. So a kernel that does not wait, or lets the others read before it has waited, computes
 * something else. */
#ifndef TESTING_CUDA_HOST_CUDA_PIPELINE_H
#define TESTING_CUDA_HOST_CUDA_PIPELINE_H

#include "tests/harness/cuda_host/fibers.h"

#define __pipeline_memcpy_async(to, from, size) sh_fiber_copy_later(to, from, size)
#define __pipeline_commit() sh_fiber_copies_end()
#define __pipeline_wait_prior(groups) sh_fiber_copy_now(groups)

#endif
