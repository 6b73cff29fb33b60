/* Federated averaging (McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017).
 *
 * The rounds are those of rounds.h. In each, the job and every worker draw the same clients, by seed and round; client j of the draw is
 * of worker j mod workers, in order. A worker has one model and two rows of sums (flat_model.h), whatever the number of clients: for each
 * client in turn it copies the job's parameters, trains on that client's samples, and adds its model to the sums, times the number
 * of samples. When all have answered, the job adds the workers' sums up in the order of ranks.
 *
 * What a client begins with is given by seed, round and client, and the sums before it are kept until those after it are whole: a
 * worker that died is started again and repeats one client, and the result is the same to the bit. */
#ifndef SH_TRAIN_FEDAVG_H
#define SH_TRAIN_FEDAVG_H

#include "train/rounds.h"

/* A worker's sums of a round.
 *
 * done is round << 32 | clients of this worker that are in the sums; the sums are row clients % 2.
 *
 *   done of              means
 *   an earlier round     none of this round's is in the sums, both rows are free
 *   this round, n        row n % 2 has the first n, the other row is free
 *
 * Synchronisation: the worker of that rank writes; whoever has the rank after it, and the job, read.
 *   done   stored (release) when the row it names is whole; loaded (acquire) by the next of that rank, and by the job once the round is
 *          answered: who sees n sees the row.
 *   rows   the worker writes the row that done does not name. The job writes row n % 2 of the first rank, when the round is
 *          answered and nobody reads it any more.
 * death: while a client trains, or while its row is being written, done says n: that client is trained again. After the store it
 * says n + 1: the next one's turn. */
typedef struct sh_flat_shm {
    sh_a64 done;
    double rows[] __attribute__((aligned(SH_CACHE_LINE))); /* two, each of a row's length */
} sh_flat_shm;

/* Who is drawn in which round, and by whom they are trained. */
typedef struct sh_fedavg_plan {
    int64_t clients, drawn; /* in all, and in a round */
    int64_t local_epochs;   /* passes of a client over its samples in a round */
    uint64_t seed;
    int32_t workers;
} sh_fedavg_plan;

/* The plan, and who has which samples, the same for all rounds; written before the first worker starts, and only read then.
 * The samples of client i are numbers[ends[i - 1]] (the first: numbers[0]) to numbers[ends[i] - 1]; numbers follow the ends. */
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

/* The clients of a round: the first plan->drawn of out, which has room for all. */
void sh_fedavg_draw(const sh_fedavg_plan *plan, int64_t round, int64_t *out);

/* How many of them are of that rank. */
static inline int64_t sh_fedavg_turns(const sh_fedavg_plan *plan, int rank)
{
    return rank < plan->drawn ? (plan->drawn - rank + plan->workers - 1) / plan->workers : 0;
}

shoal_err sh_fedavg_work(int rank, const shoal_value *args);

#endif
