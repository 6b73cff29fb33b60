/* Federated averaging (McMahan et al., "Communication-efficient learning of deep networks from decentralized data",
 * 2017).
 *
 * The rounds are those of rounds.h. In each, the job and every worker draw the same clients, by seed and round. Worker
 * j mod workers trains client j of the draw, in order. A worker has one model and two rows of sums (flat_model.h),
 * whatever the number of clients. For each client in turn it copies the job's parameters, trains on that client's
 * samples, and adds its model, times the number of samples, to the sums. When all have answered, the job adds up the
 * workers' sums in the order of ranks.
 *
 * Seed, round and client determine what a client begins with, and the sums before it are kept until those after it are
 * complete. So a worker that died is restarted and repeats one client, and the result is bit-identical. */
#ifndef SH_TRAIN_FEDAVG_H
#define SH_TRAIN_FEDAVG_H

#include "train/methods/rounds.h"

/* A worker's sums of a round.
 *
 * done is round << 32 | number of this worker's clients in the sums; the sums are row clients % 2.
 *
 *   done of              means
 *   an earlier round     no client of this round is in the sums, both rows are free
 *   this round, n        row n % 2 has the first n clients, the other row is free
 *
 * Synchronisation: the worker of that rank writes; the next process of that rank, and the job, read.
 *   done   stored (release) when the row it names is complete; loaded (acquire) by the next of that rank, and by the
 *          job once the round is answered: a process that sees n sees the row.
 *   rows   the worker writes the row that done does not name. The job writes row n % 2 of the first rank, when the
 *          round is answered and no process reads it any more.
 * death: while a client trains, or while its row is being written, done says n: that client is trained again. After the
 * store it says n + 1: the next client follows. */
typedef struct sh_flat_shm {
    sh_a64 done;
    double rows[] __attribute__((aligned(SH_CACHE_LINE))); /* two, each of a row's length */
} sh_flat_shm;

/* Determines which clients each round draws, and which worker trains them. */
typedef struct sh_fedavg_plan {
    int64_t clients, drawn; /* in total, and in a round */
    int64_t local_epochs;   /* passes of a client over its samples in a round */
    uint64_t seed;
    int32_t workers;
} sh_fedavg_plan;

/* The plan, and each client's samples, the same for all rounds; written before the first worker starts, and read-only
 * then. The samples of client i are numbers[ends[i - 1]] (for the first, numbers[0]) to numbers[ends[i] - 1]; the
 * numbers are stored behind the ends. */
typedef struct sh_parts_shm {
    sh_fedavg_plan plan;
    int64_t samples;
    int64_t ends[];
} sh_parts_shm;

static inline const int64_t *sh_part(const sh_parts_shm *parts, int64_t client, int64_t *out_count)
{
    int64_t first = client > 0 ? parts->ends[client - 1] : 0;
    *out_count = parts->ends[client] - first;
    return parts->ends + parts->plan.clients + first;
}

/* Draws the clients of a round: the first plan->drawn elements of out, which has room for all clients. */
void sh_fedavg_draw(const sh_fedavg_plan *plan, int64_t round, int64_t *out);

/* Returns how many of them the worker of that rank trains. */
static inline int64_t sh_fedavg_turns(const sh_fedavg_plan *plan, int rank)
{
    return rank < plan->drawn ? (plan->drawn - rank + plan->workers - 1) / plan->workers : 0;
}

shoal_err sh_fedavg_work(int rank, const shoal_value *args);

#endif
