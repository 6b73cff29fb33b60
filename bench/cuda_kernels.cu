/* Measures the convolutions and matrix products of libshoal_cuda on the layers of two small networks.
 *
 * usage: cuda_kernels [part of a name [unchecked]]
 *
 * Checks each kernel against the CPU's reference first, unless told not to. Then prints one JSON line for each case: microseconds of one
 * call among many in a CUDA graph, GFLOP/s of the dense arithmetic (backward skips what has no gradient, so its value
 * may exceed the peak), and the share of the card's FMA peak, which is measured first. The data stay in the card's L2
 * cache, as they do in a training step. */
#include "kernels/cuda/library.h"

#include <cuda_runtime.h>

#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

namespace
{

constexpr int REPEATS = 20, ROUNDS = 21; /* calls in a graph; graphs of which the median counts */
constexpr size_t SCRATCH = (size_t)256 << 20;

void *scratch_room;
cudaStream_t stream;
double peak; /* FLOP/s */
bool checked = true;

void must(cudaError_t result, const char *what)
{
    if (result != cudaSuccess) {
        (void)fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(result));
        exit(1);
    }
}

void must(shoal_err err, const char *what)
{
    if (err != SHOAL_OK) {
        (void)fprintf(stderr, "%s failed\n", what);
        exit(1);
    }
}

shoal_err host_fail(shoal_err err, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    (void)vfprintf(stderr, format, list);
    va_end(list);
    (void)fputc('\n', stderr);
    return err;
}

shoal_err host_result(const char *what, int result)
{
    must((cudaError_t)result, what);
    return SHOAL_OK;
}

void *host_scratch(sh_exec *exec, size_t size)
{
    (void)exec;
    return size <= SCRATCH ? scratch_room : nullptr;
}

/* ---- time ---- */

/* Seconds of one call of `work`, which enqueues on the stream. */
double measure(const std::function<void()> &work)
{
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    cudaEvent_t begin, end;
    work();
    must(cudaStreamSynchronize(stream), "warm-up");
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < REPEATS; i++) {
        work();
    }
    must(cudaStreamEndCapture(stream, &graph), "capture");
    must(cudaGraphInstantiate(&ready, graph, 0), "instantiate");
    must(cudaEventCreate(&begin), "event");
    must(cudaEventCreate(&end), "event");
    std::vector<float> times;
    for (int i = 0; i < ROUNDS + 3; i++) {
        float ms;
        must(cudaEventRecord(begin, stream), "record");
        must(cudaGraphLaunch(ready, stream), "launch");
        must(cudaEventRecord(end, stream), "record");
        must(cudaStreamSynchronize(stream), "replay");
        must(cudaEventElapsedTime(&ms, begin, end), "time");
        if (i >= 3) {
            times.push_back(ms);
        }
    }
    (void)cudaGraphExecDestroy(ready);
    (void)cudaGraphDestroy(graph);
    qsort(times.data(), times.size(), sizeof(float), [](const void *a, const void *b) {
        return *(const float *)a < *(const float *)b ? -1 : *(const float *)a > *(const float *)b;
    });
    return times[times.size() / 2] * 1e-3 / REPEATS;
}

void tell(const char *name, double seconds, double flops)
{
    printf("{\"name\":\"%s\",\"us\":%.2f,\"gflops\":%.0f,\"of_fma_peak\":%.3f}\n", name, seconds * 1e6,
           flops / seconds * 1e-9, peak > 0 ? flops / seconds / peak : 0);
    (void)fflush(stdout);
}

__global__ void fma_chains(float *out, int steps)
{
    float sum[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        sum[i] = (float)(threadIdx.x + i);
    }
    for (int s = 0; s < steps; s++) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            sum[i] = fmaf(sum[i], 0.5F, 0.25F);
        }
    }
    float all = 0;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        all += sum[i];
    }
    if (all == 12345.0F) {
        *out = all;
    }
}

__global__ void nothing()
{
}

void limits()
{
    const int blocks = 1056, threads = 256, steps = 4096;
    const double seconds = measure([=] { fma_chains<<<blocks, threads, 0, stream>>>((float *)scratch_room, steps); });
    peak = 2.0 * 16 * blocks * threads * steps / seconds;
    tell("limit_fma", seconds, 2.0 * 16 * blocks * threads * steps);
    tell("limit_empty_kernel", measure([=] { nothing<<<1, 32, 0, stream>>>(); }), 0);
}

/* ---- data ---- */

uint64_t seed = 1;

float real()
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)(int32_t)(seed >> 40) * 0x1p-23F - 1;
}

/* The same bytes on the host and on the card. */
template <typename T> struct both {
    std::vector<T> host;
    T *card = nullptr;

    explicit both(size_t count) : host(count)
    {
        must(cudaMalloc(&card, count * sizeof(T) + 16), "cudaMalloc");
        for (T &v : host) {
            v = (T)real();
        }
        to_card();
    }
    both(const both &) = delete;
    ~both()
    {
        (void)cudaFree(card);
    }
    void to_card()
    {
        must(cudaMemcpy(card, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
    }
    std::vector<T> from_card() const
    {
        std::vector<T> v(host.size());
        must(cudaMemcpy(v.data(), card, v.size() * sizeof(T), cudaMemcpyDeviceToHost), "copy");
        return v;
    }
};

/* Compares by the norm of the difference; ends the program if it is too large. */
void check(const char *name, const char *what, const std::vector<float> &got, const std::vector<float> &wanted)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < got.size(); i++) {
        difference += ((double)got[i] - wanted[i]) * ((double)got[i] - wanted[i]);
        size += (double)wanted[i] * wanted[i];
    }
    if (!(sqrt(difference) <= 5e-6 * sqrt(size))) {
        printf("{\"name\":\"%s\",\"wrong\":\"%s\",\"difference\":%.3g}\n", name, what, sqrt(difference / size));
        (void)fflush(stdout);
    }
}

/* ---- the fused block ---- */

struct layer {
    const char *name;
    int64_t n, in_c, size, out_c, pad;
    bool drop, grad_x;
};

const layer layers[] = {
    {"mnist_conv1_b64", 64, 1, 28, 10, 0, false, false},  {"mnist_conv2_b64", 64, 10, 12, 20, 0, true, true},
    {"mnist_conv2_b300", 300, 10, 12, 20, 0, true, true}, {"fedavg_conv1_b10", 10, 1, 28, 32, 2, false, false},
    {"fedavg_conv2_b10", 10, 32, 14, 64, 2, false, true}, {"fedavg_conv1_b50", 50, 1, 28, 32, 2, false, false},
    {"fedavg_conv2_b50", 50, 32, 14, 64, 2, false, true}, {"lenet_conv2_b64", 64, 6, 14, 16, 0, false, true},
};

struct block {
    const layer &l;
    sh_conv2d c;
    int64_t weights;
    both<float> x, w, bias, drop, y, grad_y, grad_x, grad_w, grad_bias;
    both<uint8_t> winner;

    static int64_t pooled(const layer &l)
    {
        return (l.size + 2 * l.pad - 4) / 2;
    }
    explicit block(const layer &l)
        : l(l), c{SHOAL_F32, l.n, l.in_c, l.size, l.size, l.out_c, 5, 5, 1, 1, l.pad, l.pad, 1, 1, 1},
          weights(l.out_c * l.in_c * 25), x(l.n * l.in_c * l.size * l.size), w(weights), bias(l.out_c),
          drop(l.n * l.out_c), y(l.n * l.out_c * pooled(l) * pooled(l)), grad_y(y.host.size()), grad_x(x.host.size()),
          grad_w(weights), grad_bias(l.out_c), winner(y.host.size())
    {
        for (float &f : drop.host) {
            f = f < 0 ? 0.0F : 2.0F;
        }
        drop.to_card();
    }
    const float *drop_or_null(const both<float> &d, bool card) const
    {
        return !l.drop ? nullptr : card ? d.card : d.host.data();
    }
    void forward(sh_exec *exec, const sh_conv_kernels *k) const
    {
        must(k->pool_relu_forward(exec, &c, x.card, w.card, bias.card, drop_or_null(drop, true), y.card, winner.card),
             l.name);
    }
    void backward(sh_exec *exec, const sh_conv_kernels *k, bool for_x = true, bool for_w = true) const
    {
        must(k->pool_relu_backward(exec, &c, grad_y.card, x.card, w.card, drop_or_null(drop, true), winner.card,
                                   l.grad_x && for_x ? grad_x.card : nullptr, for_w ? grad_w.card : nullptr,
                                   for_w ? grad_bias.card : nullptr),
             l.name);
    }
    double flops() const
    {
        return 2.0 * (double)l.n * (double)weights * 4 * (double)(pooled(l) * pooled(l));
    }
};

void check_block(block &b, sh_exec *exec, const sh_conv_kernels *k)
{
    sh_exec host = {};
    const sh_conv_kernels *reference = &sh_conv_kernels_reference;
    must(cudaMemset(b.y.card, 0xff, b.y.host.size() * sizeof(float)), "poison");
    must(cudaMemset(b.grad_x.card, 0xff, b.grad_x.host.size() * sizeof(float)), "poison");
    b.forward(exec, k);
    (void)reference->pool_relu_forward(&host, &b.c, b.x.host.data(), b.w.host.data(), b.bias.host.data(),
                                       b.drop_or_null(b.drop, false), b.y.host.data(), b.winner.host.data());
    check(b.l.name, "y", b.y.from_card(), b.y.host);
    b.winner.to_card(); /* near ties may be decided either way */
    b.backward(exec, k);
    (void)reference->pool_relu_backward(&host, &b.c, b.grad_y.host.data(), b.x.host.data(), b.w.host.data(),
                                        b.drop_or_null(b.drop, false), b.winner.host.data(),
                                        b.l.grad_x ? b.grad_x.host.data() : nullptr, b.grad_w.host.data(),
                                        b.grad_bias.host.data());
    if (b.l.grad_x) {
        check(b.l.name, "grad_x", b.grad_x.from_card(), b.grad_x.host);
    }
    check(b.l.name, "grad_w", b.grad_w.from_card(), b.grad_w.host);
    check(b.l.name, "grad_bias", b.grad_bias.from_card(), b.grad_bias.host);
}

void bench_block(const layer &l, sh_exec *exec, const sh_conv_kernels *k)
{
    char name[64];
    block b(l);
    if (checked) {
        check_block(b, exec, k);
    }
    (void)snprintf(name, sizeof name, "%s_forward", l.name);
    tell(name, measure([&] { b.forward(exec, k); }), b.flops());
    (void)snprintf(name, sizeof name, "%s_backward", l.name);
    tell(name, measure([&] { b.backward(exec, k); }), b.flops() * (l.grad_x ? 2 : 1));
    if (l.grad_x) {
        (void)snprintf(name, sizeof name, "%s_grad_x", l.name);
        tell(name, measure([&] { b.backward(exec, k, true, false); }), b.flops());
        (void)snprintf(name, sizeof name, "%s_grad_w", l.name);
        tell(name, measure([&] { b.backward(exec, k, false, true); }), b.flops());
    }
}

/* ---- matrix products ---- */

struct product {
    const char *name;
    int64_t m, n, k;
    bool a_turned, b_turned; /* stored as [k, m], as [n, k] */
    bool bias, relu, accumulate;
};

const product products[] = {
    {"mnist_fc1_b64", 64, 50, 320, false, true, true, true, false},
    {"mnist_fc1_dx_b64", 64, 320, 50, false, false, false, false, false},
    {"mnist_fc1_dw_b64", 50, 320, 64, true, false, false, false, false},
    {"mnist_fc2_b64", 64, 10, 50, false, true, true, false, false},
    {"mnist_fc2_dx_b64", 64, 50, 10, false, false, false, false, false},
    {"mnist_fc2_dw_b64", 10, 50, 64, true, false, false, false, false},
    {"fedavg_fc1_b10", 10, 512, 3136, false, true, true, true, false},
    {"fedavg_fc1_dx_b10", 10, 3136, 512, false, false, false, false, false},
    {"fedavg_fc1_dw_b10", 512, 3136, 10, true, false, false, false, false},
    {"fedavg_fc2_b10", 10, 10, 512, false, true, true, false, false},
    {"fedavg_fc2_dx_b10", 10, 512, 10, false, false, false, false, false},
    {"fedavg_fc2_dw_b10", 10, 512, 10, true, false, false, false, false},
    {"fedavg_fc1_b50", 50, 512, 3136, false, true, true, true, false},
    {"fedavg_fc1_dx_b50", 50, 3136, 512, false, false, false, false, false},
    {"fedavg_fc1_dw_b50", 512, 3136, 50, true, false, false, false, false},
    {"fedavg_fc2_b50", 50, 10, 512, false, true, true, false, false},
    {"fedavg_fc2_dx_b50", 50, 512, 10, false, false, false, false, false},
    {"fedavg_fc2_dw_b50", 10, 512, 50, true, false, false, false, false},
    {"square_1024", 1024, 1024, 1024, false, false, false, false, false},
};

struct matrices {
    both<float> a, b, c, bias;
    sh_matmul_args args;

    explicit matrices(const product &p)
        : a(p.m * p.k), b(p.k * p.n), c(p.m * p.n), bias(p.n), args{SHOAL_F32,
                                                                    1,
                                                                    p.m,
                                                                    p.n,
                                                                    p.k,
                                                                    a.card,
                                                                    p.a_turned ? 1 : p.k,
                                                                    p.a_turned ? p.m : 1,
                                                                    0,
                                                                    b.card,
                                                                    p.b_turned ? 1 : p.n,
                                                                    p.b_turned ? p.k : 1,
                                                                    0,
                                                                    c.card,
                                                                    p.n,
                                                                    0,
                                                                    p.bias ? bias.card : nullptr,
                                                                    1,
                                                                    p.accumulate,
                                                                    p.relu}
    {
    }
};

void bench_product(const product &p, sh_exec *exec, const sh_matmul_kernels *k)
{
    sh_exec host = {};
    matrices m(p);
    must(k->matmul(exec, &m.args), p.name);
    if (checked) {
        sh_matmul_args args = m.args;
        args.a = m.a.host.data(), args.b = m.b.host.data(), args.c = m.c.host.data();
        args.bias = p.bias ? m.bias.host.data() : nullptr;
        (void)sh_matmul_kernels_reference.matmul(&host, &args);
        check(p.name, "c", m.c.from_card(), m.c.host);
    }
    tell(p.name, measure([&] { must(k->matmul(exec, &m.args), p.name); }), 2.0 * (double)(p.m * p.n * p.k));
}

/* ---- all convolutions and products of a step, one after another ---- */

void bench_step(const char *name, int64_t batch, const char *prefix, sh_exec *exec, const sh_kernels *kernels)
{
    std::vector<block *> blocks;
    std::vector<matrices *> all;
    double flops = 0;
    char end[16];
    (void)snprintf(end, sizeof end, "_b%lld", (long long)batch);
    for (const layer &l : layers) {
        if (strncmp(l.name, prefix, strlen(prefix)) == 0 && strstr(l.name, end) && l.n == batch) {
            blocks.push_back(new block(l));
            flops += blocks.back()->flops() * (l.grad_x ? 3 : 2);
        }
    }
    for (const product &p : products) {
        if (strncmp(p.name, prefix, strlen(prefix)) == 0 && strstr(p.name, end)) {
            all.push_back(new matrices(p));
            flops += 2.0 * (double)(p.m * p.n * p.k);
        }
    }
    const double seconds = measure([&] {
        for (const block *b : blocks) {
            b->forward(exec, kernels->conv);
        }
        for (const matrices *m : all) {
            must(kernels->matmul->matmul(exec, &m->args), name);
        }
        for (size_t i = blocks.size(); i-- > 0;) {
            blocks[i]->backward(exec, kernels->conv);
        }
    });
    tell(name, seconds, flops);
    printf("{\"name\":\"%s\",\"images_per_s\":%.0f}\n", name, (double)batch / seconds);
    for (block *b : blocks) {
        delete b;
    }
    for (matrices *m : all) {
        delete m;
    }
}

} // namespace

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";
    checked = argc < 3 || strcmp(argv[2], "unchecked") != 0;
    const sh_cuda_host host = {host_fail, host_result, host_scratch};
    must(cudaMalloc(&scratch_room, SCRATCH), "cudaMalloc");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    const sh_kernels *kernels = sh_cuda_library_open(&host)->kernels;
    sh_exec exec = {};
    exec.stream = stream;
    limits();
    for (const layer &l : layers) {
        if (strstr(l.name, part)) {
            bench_block(l, &exec, kernels->conv);
        }
    }
    for (const product &p : products) {
        if (strstr(p.name, part)) {
            bench_product(p, &exec, kernels->matmul);
        }
    }
    bench_step("mnist_step_b64", 64, "mnist", &exec, kernels);
    bench_step("fedavg_step_b10", 10, "fedavg", &exec, kernels);
    bench_step("fedavg_step_b50", 50, "fedavg", &exec, kernels);
    return 0;
}
