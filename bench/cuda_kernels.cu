/* Measures the convolutions and matrix products of libshoal_cuda on the layers of two small networks, and the whole
 * step of fedavg-cnn with each of its launches.
 *
 * usage: cuda_kernels [part of a name [unchecked]]
 *
 * Checks each kernel against the CPU's reference first, unless told not to. Then prints one JSON line for each case:
 * microseconds of one call among many in a CUDA graph, GFLOP/s of the dense arithmetic (backward skips what has no
 * gradient, so its value may exceed the peak), and the share of the card's FMA peak, which is measured first. The data
 * stay in the card's L2 cache, as they do in a training step. */
#include "bench/cuda_bench.cuh"

#include <cuda.h>
#include <cxxabi.h>

#include <string>

namespace
{

bool checked = true;

template <typename F> F driver(const char *name)
{
    void *found = nullptr;
    cudaDriverEntryPointQueryResult status;
    must(cudaGetDriverEntryPointByVersion(name, &found, 12030, cudaEnableDefault, &status), name);
    return (F)found;
}

/* Prints the microseconds of each launch of `work`, alone and repeated. The driver is asked for them: the launches are
 * those of another library. */
void tell_launches(const char *name, const std::function<void()> &work)
{
    static const auto params_of =
        driver<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v2 *)>("cuGraphKernelNodeGetParams");
    static const auto add =
        driver<CUresult (*)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS_v2 *)>(
            "cuGraphAddKernelNode");
    static const auto name_of = driver<CUresult (*)(const char **, CUfunction)>("cuFuncGetName");
    cudaGraph_t graph = captured(work, 1);
    size_t count = 0;
    must(cudaGraphGetNodes(graph, nullptr, &count), "nodes");
    std::vector<cudaGraphNode_t> nodes(count);
    must(cudaGraphGetNodes(graph, nodes.data(), &count), "nodes");
    printf("{\"name\":\"%s\",\"launches\":[", name);
    for (size_t i = 0; i < count; i++) {
        CUDA_KERNEL_NODE_PARAMS_v2 params = {};
        const char *kernel = "?";
        cudaGraph_t many;
        must((cudaError_t)params_of(nodes[i], &params), "launch");
        must((cudaError_t)name_of(&kernel, params.func), "name");
        must(cudaGraphCreate(&many, 0), "graph");
        CUgraphNode last = nullptr;
        for (int k = 0; k < REPEATS; k++) {
            CUgraphNode node;
            must((cudaError_t)add(&node, many, k > 0 ? &last : nullptr, k > 0 ? 1 : 0, &params), "add");
            last = node;
        }
        char *readable = abi::__cxa_demangle(kernel, nullptr, nullptr, nullptr);
        std::string label = readable ? readable : kernel;
        free(readable);
        const size_t begin = label.find("(anonymous namespace)::");
        label = begin == std::string::npos ? label : label.substr(begin + strlen("(anonymous namespace)::"));
        label = label.substr(0, label.find('('));
        printf("%s[\"%s\",%.2f]", i > 0 ? "," : "", label.c_str(), replay(many) * 1e6);
        (void)cudaGraphDestroy(many);
    }
    printf("]}\n");
    (void)cudaGraphDestroy(graph);
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

/* ---- a step of fedavg-cnn for several clients ---- */

void bench_fedavg(int clients, int64_t batch, bool tf32, sh_exec *exec, const sh_fedavg_cnn_kernels *k)
{
    const int64_t sizes[SH_FEDAVG_CNN_TENSORS] = {800, 32, 51200, 64, 512 * 3136, 512, 5120, 10};
    const int64_t images = 1000, steps = 4 * REPEATS * ROUNDS;
    int64_t stride = 0, at[SH_FEDAVG_CNN_TENSORS];
    for (int t = 0; t < SH_FEDAVG_CNN_TENSORS; t++) {
        at[t] = stride;
        stride += (sizes[t] + 63) / 64 * 64;
    }
    both<float> params(clients * stride), loss(1);
    both<uint8_t> pixels(images * 784), labels(images), scratch(k->scratch_size(batch, clients));
    both<int64_t> order(steps * batch), counts(clients), state(1);
    for (float &f : params.host) {
        f *= 0.02F;
    }
    for (size_t i = 0; i < pixels.host.size(); i++) {
        pixels.host[i] = (uint8_t)(i * 2654435761U >> 13);
    }
    for (size_t i = 0; i < labels.host.size(); i++) {
        labels.host[i] = (uint8_t)(i * 7 % 10);
    }
    for (size_t i = 0; i < order.host.size(); i++) {
        order.host[i] = (int64_t)(i * 7919 % images);
    }
    for (int64_t &n : counts.host) {
        n = steps * batch;
    }
    state.host[0] = 0, loss.host[0] = 0;
    params.to_card(), pixels.to_card(), labels.to_card(), order.to_card(), counts.to_card();
    state.to_card(), loss.to_card();
    sh_fedavg_cnn_step s = {};
    for (int t = 0; t < SH_FEDAVG_CNN_TENSORS; t++) {
        s.param[t] = params.card + at[t];
    }
    s.stride = stride, s.clients = clients, s.pixels = pixels.card, s.labels = labels.card;
    s.order = order.card, s.order_stride = 0, s.counts = counts.card, s.scale = 1 / 255.0F, s.batch = batch;
    s.state = state.card, s.loss = loss.card, s.lr = 1e-4F, s.tf32 = tf32;
    char name[64];
    (void)snprintf(name, sizeof name, "fedavg_fused_%dx%lld%s", clients, (long long)batch, tf32 ? "_tf32" : "");
    const auto work = [&] { must(k->step(exec, &s, scratch.card), name); };
    const double seconds = measure(work);
    if (!std::isfinite(loss.from_card()[0])) {
        printf("{\"name\":\"%s\",\"wrong\":\"loss\"}\n", name);
    }
    printf("{\"name\":\"%s\",\"us\":%.2f,\"images_per_s\":%.0f}\n", name, seconds * 1e6,
           (double)(clients * batch) / seconds);
    tell_launches(name, work);
    (void)fflush(stdout);
}

} // namespace

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";
    checked = argc < 3 || strcmp(argv[2], "unchecked") != 0;
    const sh_kernels *kernels = open_card();
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
    static const int shapes[][2] = {{1, 10}, {1, 50}, {5, 10}, {10, 10}, {10, 50}};
    for (int i = 0; kernels->fedavg_cnn && strstr("fedavg_fused", part) && i < 10; i++) {
        bench_fedavg(shapes[i / 2][0], shapes[i / 2][1], i % 2 == 1, &exec, kernels->fedavg_cnn);
    }
    return 0;
}
