/* The table of all kernels of one device. */
#ifndef SH_KERNELS_KERNELS_H
#define SH_KERNELS_KERNELS_H

#include "kernels/conv2d.h"
#include "kernels/elementwise.h"
#include "kernels/fedavg_cnn.h"
#include "kernels/index.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/optim.h"
#include "kernels/pool.h"
#include "kernels/random.h"
#include "kernels/reduce.h"
#include "kernels/rnn.h"
#include "kernels/small_cnn.h"
#include "kernels/softmax.h"
#include "kernels/step.h"

typedef struct sh_kernels {
    const char *name; /* "reference", "avx2", "avx512" */
    const sh_elementwise_kernels *elementwise;
    const sh_reduce_kernels *reduce;
    const sh_matmul_kernels *matmul;
    const sh_softmax_kernels *softmax;
    const sh_norm_kernels *norm;
    const sh_index_kernels *index;
    const sh_rnn_kernels *rnn;
    const sh_random_kernels *random;
    const sh_optim_kernels *optim;
    const sh_conv_kernels *conv;
    const sh_pooling_kernels *pool;
    const sh_small_cnn_kernels *small_cnn;   /* NULL: this device has none */
    const sh_step_kernels *step;             /* NULL: this device has none */
    const sh_fedavg_cnn_kernels *fedavg_cnn; /* NULL: this device has none */
} sh_kernels;

/* Returns the best kernels that this CPU can run, chosen at the first call. SHOAL_CPU=plain, avx2 or avx512 limits the
 * choice; other values are ignored. May be called from any thread. */
const sh_kernels *sh_kernels_cpu(void);

/* Returns the kernels of that name, or NULL if they do not exist or this CPU cannot run them.
 * For tests and benchmarks. */
const sh_kernels *sh_kernels_find(const char *name);

#endif
