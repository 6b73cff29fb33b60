/* What the benchmarks of kernels on a card share. A program includes it in one file. */
#ifndef SH_BENCH_CUDA_BENCH_CUH
#define SH_BENCH_CUDA_BENCH_CUH

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
double peak; /* FLOP/s; 0 until it is measured */

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

/* Seconds of one of the REPEATS calls in the graph: the median of several replays. */
double replay(cudaGraph_t graph)
{
    cudaGraphExec_t ready;
    cudaEvent_t begin, end;
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
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    qsort(times.data(), times.size(), sizeof(float), [](const void *a, const void *b) {
        return *(const float *)a < *(const float *)b ? -1 : *(const float *)a > *(const float *)b;
    });
    return times[times.size() / 2] * 1e-3 / REPEATS;
}

/* The graph of so many calls of `work`, which enqueues on the stream. */
cudaGraph_t captured(const std::function<void()> &work, int calls)
{
    cudaGraph_t graph;
    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; i++) {
        work();
    }
    must(cudaStreamEndCapture(stream, &graph), "capture");
    return graph;
}

/* Seconds of one call of `work`. */
double measure(const std::function<void()> &work)
{
    work();
    must(cudaStreamSynchronize(stream), "warm-up");
    cudaGraph_t graph = captured(work, REPEATS);
    const double seconds = replay(graph);
    (void)cudaGraphDestroy(graph);
    return seconds;
}

void tell(const char *name, double seconds, double flops)
{
    printf("{\"name\":\"%s\",\"us\":%.2f,\"gflops\":%.0f,\"of_fma_peak\":%.3f}\n", name, seconds * 1e6,
           flops / seconds * 1e-9, peak > 0 ? flops / seconds / peak : 0);
    (void)fflush(stdout);
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

/* Gives libshoal_cuda its host, and makes the stream. */
const sh_kernels *open_card()
{
    static const sh_cuda_host host = {host_fail, host_result, host_scratch};
    must(cudaMalloc(&scratch_room, SCRATCH), "cudaMalloc");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    return sh_cuda_library_open(&host)->kernels;
}

} // namespace

#endif
