/* The score of a step of fedavg-cnn that only tests (kernels/fedavg_cnn.h). */
#include "kernels/cuda/fedavg_cnn.cuh"

namespace
{

constexpr int THREADS = 512, CLASSES = 10;

/* One block per client. A thread adds every THREADS-th row; then the threads' sums are added in pairs, always in the
 * same order. */
__global__ void __launch_bounds__(THREADS) add_scores(const sh_fedavg_cnn_step s, const sh_fedavg_cnn_memory m)
{
    __shared__ double losses[THREADS], rights[THREADS];
    int t = threadIdx.x, c = blockIdx.x, rows = m.rows[c];
    const int64_t *order = s.order + c * s.order_stride + *s.state;
    double loss = 0, right = 0;
    for (int row = t; row < rows; row += THREADS) {
        const int64_t n = c * s.batch + row;
        const float *z = m.dz + n * CLASSES;
        int best = 0;
        float most = z[0];
#pragma unroll
        for (int k = 1; k < CLASSES; k++) {
            float other = z[k];
            best = other > most ? k : best;
            most = other > most ? other : most;
        }
        loss += m.losses[n];
        right += best == s.labels[order[row]];
    }
    losses[t] = loss, rights[t] = right;
    for (int d = THREADS / 2; d > 0; d /= 2) {
        __syncthreads();
        if (t < d) {
            losses[t] += losses[t + d], rights[t] += rights[t + d];
        }
    }
    if (t == 0) {
        s.score[2 * c] = losses[0], s.score[2 * c + 1] = rights[0];
    }
}

} // namespace

shoal_err sh_fedavg_cnn_score(sh_exec *exec, const sh_fedavg_cnn_step &s, const sh_fedavg_cnn_memory &m)
{
    add_scores<<<(unsigned)s.clients, THREADS, 0, sh_stream(exec)>>>(s, m);
    return sh_cuda_launched("fedavg_cnn score");
}
