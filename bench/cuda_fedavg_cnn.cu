/* Measures conv2 in the step of fedavg-cnn on a card (kernels/cuda/fedavg_cnn.cuh).
 *
 * usage: cuda_fedavg_cnn
 *
 * Compares each launch with sums in f64 first and prints the norm of the difference, as a share of that of the result.
 * Then prints one JSON line for each case: microseconds of one call among many in a CUDA graph, and GFLOP/s of the
 * dense arithmetic. The limit is what the tensor cores give to a kernel that does nothing but multiply: in TF32, and
 * with the three products that f32 takes. */
#include "bench/cuda_bench.cuh"

#include "kernels/cuda/fedavg_cnn_conv2.cuh"

namespace
{

template <int PRODUCTS> __global__ void multiply_only(float *out, int steps)
{
    uint32_t a[4] = {threadIdx.x, 1, 2, 3}, b[2] = {threadIdx.x, 5};
    float sum[8][4] = {};
    for (int s = 0; s < steps; s++) {
#pragma unroll
        for (int i = 0; i < 8 * PRODUCTS; i++) {
            sh_tf32_mma(sum[i % 8], a, b);
        }
    }
    float all = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        all += sum[i / 4][i % 4];
    }
    if (all == 12345.0F) {
        *out = all;
    }
}

void limits()
{
    const int blocks = 264, threads = 256, steps = 256;
    const double flops = 2.0 * 1024 * 8 * steps * blocks * threads / 32;
    tell("limit_tf32", measure([=] { multiply_only<1><<<blocks, threads, 0, stream>>>((float *)scratch_room, steps); }),
         flops);
    tell("limit_f32", measure([=] { multiply_only<3><<<blocks, threads, 0, stream>>>((float *)scratch_room, steps); }),
         flops);
}

/* The arrays of conv2 for some clients. */
struct conv2 {
    int clients, batch, parts;
    int64_t n;
    both<float> weights, bias, x1, x2, dx2, dx1, parts2, own;
    both<uint8_t> winners;
    sh_fedavg_cnn_step step = {};
    sh_fedavg_cnn_memory memory = {};

    conv2(int clients, int batch)
        : clients(clients), batch(batch), parts(sh_fedavg_cnn_conv2_parts(batch, clients)), n((int64_t)clients * batch),
          weights((size_t)clients * SH_W2), bias((size_t)clients * SH_W2), x1(n * 324 * 32), x2(n * 3136),
          dx2(n * 3136), dx1(n * 196 * 32), parts2((size_t)clients * parts * (SH_W2 + 64)),
          own(sh_fedavg_cnn_conv2_size(batch, clients) / sizeof(float)), winners(n * 3136)
    {
        for (int64_t i = 0; i < n * 324; i++) {
            const int64_t row = i / 18 % 18, column = i % 18;
            const bool border = row < 2 || row > 15 || column < 2 || column > 15;
            for (float *v = &x1.host[i * 32]; v < &x1.host[i * 32] + 32; v++) {
                *v = border || *v < 0 ? 0 : *v;
            }
        }
        x1.to_card();
        step.param[2] = weights.card, step.param[3] = bias.card, step.stride = SH_W2;
        step.clients = clients, step.batch = batch;
        memory.x1 = x1.card, memory.x2 = x2.card, memory.winners2 = winners.card, memory.dx2 = dx2.card;
        memory.dx1 = dx1.card, memory.parts2 = parts2.card, memory.parts2_count = parts, memory.conv2 = own.card;
    }
    double flops() const
    {
        return 2.0 * (double)n * 196 * SH_W2;
    }
};

/* The norm of the difference of got and wanted as a share of that of wanted. got is longer, and begins at `from`. */
double distance(const std::vector<float> &got, int64_t from, const std::vector<double> &wanted)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < wanted.size(); i++) {
        difference += (got[from + i] - wanted[i]) * (got[from + i] - wanted[i]);
        size += wanted[i] * wanted[i];
    }
    return sqrt(difference / size);
}

/* x2 of one client. */
std::vector<double> output_of(const conv2 &c, int client)
{
    std::vector<double> y((size_t)c.batch * 3136), turned(SH_W2); /* turned: [tap][in][out] */
    for (int i = 0; i < SH_W2; i++) {
        turned[(i % 25 * 32 + i / 25 % 32) * 64 + i / 800] = c.weights.host[(size_t)client * SH_W2 + i];
    }
    for (int64_t at = 0; at < (int64_t)c.batch * 49; at++) {
        double best[64];
        for (int place = 0; place < 4; place++) {
            const int64_t row = at % 49 / 7 * 2 + place / 2, column = at % 7 * 2 + place % 2;
            double sum[64];
            for (int o = 0; o < 64; o++) {
                sum[o] = c.bias.host[(size_t)client * SH_W2 + o];
            }
            for (int tap = 0; tap < 25; tap++) {
                const int64_t pixel = ((client * c.batch + at / 49) * 18 + row + tap / 5) * 18 + column + tap % 5;
                for (int k = 0; k < 32; k++) {
                    const double x = c.x1.host[pixel * 32 + k], *const w = &turned[(tap * 32 + k) * 64];
                    for (int o = 0; x != 0 && o < 64; o++) {
                        sum[o] += x * w[o];
                    }
                }
            }
            for (int o = 0; o < 64; o++) {
                best[o] = place == 0 || sum[o] > best[o] ? sum[o] : best[o];
            }
        }
        for (int o = 0; o < 64; o++) {
            y[(at / 49 * 64 + o) * 49 + at % 49] = best[o] > 0 ? best[o] : 0;
        }
    }
    return y;
}

/* dx1, and the gradient of weight and bias, of one client. The gradient goes where the card's winners are. */
void gradients_of(const conv2 &c, const std::vector<uint8_t> &winners, int client, std::vector<double> *dx,
                  std::vector<double> *dw)
{
    std::vector<double> padded((size_t)c.batch * 324 * 32), by_tap(SH_W2); /* by_tap: [out][tap][in] */
    dx->assign((size_t)c.batch * 196 * 32, 0);
    dw->assign(SH_W2 + 64, 0);
    for (int64_t i = 0; i < (int64_t)c.batch * 3136; i++) {
        const int64_t image = i / 3136, o = i / 49 % 64, winner = winners[client * c.batch * INT64_C(3136) + i];
        const double g = c.dx2.host[client * c.batch * INT64_C(3136) + i];
        if (winner == SH_CLOSED) {
            continue;
        }
        (*dw)[SH_W2 + o] += g;
        for (int tap = 0; tap < 25; tap++) {
            const int64_t row = i % 49 / 7 * 2 + winner / 2 + tap / 5, column = i % 7 * 2 + winner % 2 + tap % 5;
            const int64_t pixel = (image * 18 + row) * 18 + column;
            const float *const x = &c.x1.host[(client * c.batch * INT64_C(324) + pixel) * 32];
            const float *const w = &c.weights.host[(size_t)client * SH_W2 + o * 800 + tap];
            for (int k = 0; k < 32; k++) {
                padded[pixel * 32 + k] += g * w[k * 25];
                by_tap[(o * 25 + tap) * 32 + k] += g * x[k];
            }
        }
    }
    for (size_t i = 0; i < dx->size(); i++) {
        const size_t pixel = i / 32, row = pixel / 14 % 14 + 2, column = pixel % 14 + 2;
        (*dx)[i] = padded[((pixel / 196 * 18 + row) * 18 + column) * 32 + i % 32];
    }
    for (int i = 0; i < SH_W2; i++) {
        (*dw)[i] = by_tap[(i / 800 * 25 + i % 25) * 32 + i / 25 % 32];
    }
}

/* Checks the last client, whose parts and images come last. */
void check(conv2 &c, sh_exec *exec, const char *name)
{
    const int client = c.clients - 1;
    must(cudaMemset(c.x2.card, 0xff, c.x2.host.size() * sizeof(float)), "poison");
    must(cudaMemset(c.dx1.card, 0xff, c.dx1.host.size() * sizeof(float)), "poison");
    must(cudaMemset(c.parts2.card, 0xff, c.parts2.host.size() * sizeof(float)), "poison");
    must(sh_fedavg_cnn_conv2(exec, c.step, c.memory), name);
    must(sh_fedavg_cnn_conv2_backward(exec, c.step, c.memory), name);
    must(cudaStreamSynchronize(stream), name);
    std::vector<double> dx, dw;
    gradients_of(c, c.winners.from_card(), client, &dx, &dw);
    const std::vector<float> parts = c.parts2.from_card();
    std::vector<float> sum(SH_W2 + 64, 0);
    for (size_t i = 0; i < (SH_W2 + 64) * (size_t)c.parts; i++) {
        sum[i % (SH_W2 + 64)] += parts[(size_t)client * c.parts * (SH_W2 + 64) + i];
    }
    const double limit = c.step.tf32 ? 1e-3 : 1e-6;
    const double of_x2 = distance(c.x2.from_card(), client * c.batch * INT64_C(3136), output_of(c, client));
    const double of_dx1 = distance(c.dx1.from_card(), client * c.batch * INT64_C(196) * 32, dx),
                 of_dw = distance(sum, 0, dw);
    printf("{\"name\":\"%s\",\"right\":%s,\"x2\":%.2g,\"dx1\":%.2g,\"dw\":%.2g}\n", name,
           of_x2 < limit && of_dx1 < limit && of_dw < limit ? "true" : "false", of_x2, of_dx1, of_dw);
}

void bench(int clients, int batch, sh_exec *exec)
{
    const struct {
        const char *name;
        shoal_err (*run)(sh_exec *, const sh_fedavg_cnn_step &, const sh_fedavg_cnn_memory &);
        int products; /* of the dense arithmetic */
    } cases[] = {{"forward", sh_fedavg_cnn_conv2, 1},          {"backward", sh_fedavg_cnn_conv2_backward, 2},
                 {"order_weights", sh_conv2_order_weights, 0}, {"output", sh_conv2_output, 1},
                 {"dx", sh_conv2_input_gradient, 1},           {"dw", sh_conv2_weights_gradient, 1}};
    conv2 c(clients, batch);
    for (int tf32 = 0; tf32 < 2; tf32++) {
        char name[64];
        c.step.tf32 = tf32 == 1;
        (void)snprintf(name, sizeof name, "conv2_%dx%d_%s", clients, batch, tf32 ? "tf32" : "f32");
        check(c, exec, name);
        for (const auto &one : cases) {
            (void)snprintf(name, sizeof name, "conv2_%dx%d_%s_%s", clients, batch, tf32 ? "tf32" : "f32", one.name);
            tell(name, measure([&] { must(one.run(exec, c.step, c.memory), name); }), c.flops() * one.products);
        }
    }
}

} // namespace

int main()
{
    sh_exec exec = {};
    (void)open_card();
    exec.stream = stream;
    limits();
    bench(1, 10, &exec);
    bench(1, 50, &exec);
    bench(10, 10, &exec);
    bench(10, 50, &exec);
    return 0;
}
