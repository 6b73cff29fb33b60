/* The job's side of federated averaging: splits the samples among clients, draws clients, and combines the workers'
 * sums. */
#include "train/methods/fedavg.h"
#include "train/model/flat_model.h"
#include "train/model/reduce.h"

#include "base/error.h"
#include "data/dataset.h"
#include "kernels/random.h"

#include <shoal/share.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "fedavg-cnn"
#define ROUNDS 20
#define BATCH 10
#define LR 0.1
#define CLIENTS 100
#define FRACTION 0.1
#define LOCAL_EPOCHS 5
#define SHARDS_EACH 2 /* of the split by label */

#define LOCAL_EPOCHS_MOST INT64_C(1000000)
#define CLIENTS_MOST INT64_C(1000000000)

typedef struct fedavg {
    sh_fedavg_plan plan;
    shoal_block *parts_block;
    const sh_parts_shm *parts;
    shoal_block **sums; /* of each rank, an sh_flat_shm */
    int64_t length;     /* of a row */
    shoal_tensor
        *velocity; /* f64, a row; NULL: no server momentum. Besides the parameters, the only state between rounds. */
    int64_t *drawn;
    const double **rows; /* of the ranks that have clients */
} fedavg;

static fedavg *own_of(const sh_job *job)
{
    return sh_rounds_own(job);
}

/* ---- options ---- */

static void defaults(shoal_train_options *o)
{
    o->model = o->model != NULL ? o->model : MODEL;
    int64_t *rounds = &o->fedavg.rounds;
    *rounds = *rounds != 0 ? *rounds : o->rounds != 0 ? o->rounds : o->epochs != 0 ? o->epochs : ROUNDS;
    o->rounds = o->rounds != 0 ? o->rounds : *rounds;
    o->epochs = o->epochs != 0 ? o->epochs : *rounds;
    o->batch = o->batch != 0 ? o->batch : BATCH;
    o->lr = o->lr != 0 ? o->lr : LR;
    o->momentum = o->momentum != 0 ? o->momentum : -1;
    o->fedavg.clients = o->fedavg.clients != 0 ? o->fedavg.clients : CLIENTS;
    o->fedavg.fraction = o->fedavg.fraction != 0 ? o->fedavg.fraction : FRACTION;
    o->fedavg.local_epochs = o->fedavg.local_epochs != 0 ? o->fedavg.local_epochs : LOCAL_EPOCHS;
}

static shoal_err check(const shoal_train_options *o)
{
    if (o->fedavg.rounds != o->epochs || o->rounds != o->epochs) {
        return sh_fail(SHOAL_EINVAL, "%lld epochs and %lld rounds were given, but in fedavg they are the same",
                       (long long)o->epochs, (long long)(o->rounds != o->epochs ? o->rounds : o->fedavg.rounds));
    }
    if (o->fedavg.clients < 1 || o->fedavg.clients > CLIENTS_MOST) {
        return sh_fail(SHOAL_EINVAL, "%lld clients; the range is 1 to %lld, and at most one for each sample",
                       (long long)o->fedavg.clients, (long long)CLIENTS_MOST);
    }
    if (!(o->fedavg.fraction > 0 && o->fedavg.fraction <= 1)) {
        return sh_fail(SHOAL_EINVAL, "the fraction of clients is %g; it must be above 0 and at most 1",
                       o->fedavg.fraction);
    }
    if (o->fedavg.local_epochs < 1 || o->fedavg.local_epochs > LOCAL_EPOCHS_MOST) {
        return sh_fail(SHOAL_EINVAL, "%lld local epochs; the range is 1 to %lld", (long long)o->fedavg.local_epochs,
                       (long long)LOCAL_EPOCHS_MOST);
    }
    if (o->fedavg.split != SHOAL_SPLIT_IID && o->fedavg.split != SHOAL_SPLIT_SHARDS) {
        return sh_fail(SHOAL_EINVAL, "unknown split %d", (int)o->fedavg.split);
    }
    if (!(o->fedavg.server_momentum >= 0 && o->fedavg.server_momentum < 1)) {
        return sh_fail(SHOAL_EINVAL, "the server momentum is %g; it must be at least 0 and below 1",
                       o->fedavg.server_momentum);
    }
    return SHOAL_OK;
}

/* ---- drawing ---- */

void sh_fedavg_draw(const sh_fedavg_plan *plan, int64_t round, int64_t *out)
{
    sh_random_key key = {.seed = plan->seed, .stream = sh_stream(SH_STREAM_CLIENTS, (uint64_t)round)};
    sh_random_permutation(key, out, plan->clients);
}

/* Returns the number of samples of a round's clients. */
static int64_t samples_of_round(const sh_job *job, int64_t round)
{
    const fedavg *f = own_of(job);
    int64_t samples = 0, count;
    sh_fedavg_draw(&f->plan, round, f->drawn);
    for (int64_t i = 0; i < f->plan.drawn; i++) {
        sh_part(f->parts, f->drawn[i], &count);
        samples += count;
    }
    return samples;
}

/* Counts the images of all rounds. The draws are known before the first round; if all clients have the same number of
 * samples, it needs no draws. */
static int64_t count_images(const sh_job *job)
{
    const sh_fedavg_plan *s = &own_of(job)->plan;
    int64_t samples = own_of(job)->parts->samples, epochs = job->o.epochs, images = 0;
    if (samples % s->clients == 0 && job->o.fedavg.split == SHOAL_SPLIT_IID) {
        return epochs * s->local_epochs * s->drawn * (samples / s->clients);
    }
    for (int64_t round = 0; round < epochs; round++) {
        images += samples_of_round(job, round) * s->local_epochs;
    }
    return images;
}

/* ---- opening and closing ---- */

static shoal_err reduce(sh_job *job, int64_t round);

static shoal_err split(const sh_job *job, sh_split *out_split)
{
    int64_t length = shoal_dataset_length(job->train_set),
            each = job->o.fedavg.split == SHOAL_SPLIT_SHARDS ? SHARDS_EACH : 1;
    if (job->o.fedavg.clients > length / each) {
        return sh_fail(SHOAL_EINVAL, "%lld clients, but the set has %lld samples%s", (long long)job->o.fedavg.clients,
                       (long long)length, each > 1 ? ", and each needs two" : "");
    }
    return each > 1 ? sh_split_label(job->train_set, job->o.fedavg.clients, each, job->o.seed, out_split)
                    : sh_split_iid(job->train_set, job->o.fedavg.clients, job->o.seed, out_split);
}

static shoal_err open_parts(sh_job *job, fedavg *f)
{
    size_t clients = (size_t)job->o.fedavg.clients, samples = (size_t)shoal_dataset_length(job->train_set);
    sh_split s = {NULL, NULL};
    f->drawn = malloc(clients * sizeof *f->drawn);
    if (f->drawn == NULL) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu clients", clients);
    }
    SH_TRY(split(job, &s));
    shoal_err err = shoal_block_create(sizeof(sh_parts_shm) + (clients + samples) * sizeof(int64_t), &f->parts_block);
    if (err == SHOAL_OK) {
        sh_parts_shm *parts = shoal_block_data(f->parts_block);
        parts->plan = f->plan;
        parts->samples = (int64_t)samples;
        memcpy(parts->ends, s.ends, clients * sizeof(int64_t));
        memcpy(parts->ends + clients, s.numbers, samples * sizeof(int64_t));
        f->parts = parts;
    }
    sh_split_fini(&s);
    return err;
}

static shoal_err open_sums(sh_job *job, fedavg *f)
{
    SH_TRY(sh_flat_length(job->model, &f->length));
    size_t size = sizeof(sh_flat_shm) + 2 * (size_t)f->length * sizeof(double);
    for (int i = 0; i < job->o.workers; i++) {
        SH_TRY(shoal_block_create(size, &f->sums[i]));
        sh_flat_shm *sums = shoal_block_data(f->sums[i]);
        sh_store_relaxed(&sums->done, 0); /* no worker runs yet */
    }
    if (job->o.fedavg.server_momentum > 0) {
        f->velocity = shoal_zeros(SHOAL_F64, SHOAL_SHAPE(f->length));
        return f->velocity ? SHOAL_OK : shoal_last_error();
    }
    return SHOAL_OK;
}

static shoal_err fedavg_open(sh_job *job)
{
    size_t n = (size_t)job->o.workers;
    int64_t drawn = llround(job->o.fedavg.fraction * (double)job->o.fedavg.clients);
    fedavg *f = calloc(1, sizeof *f);
    shoal_err err = f ? sh_rounds_open_with(job, 0, SH_ROUNDS_ANEW, f, reduce) : SHOAL_ENOMEM;
    if (sh_rounds_own(job) == NULL) { /* there was not even memory for the state that close starts from */
        free(f);
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu workers", n);
    }
    f->plan = (sh_fedavg_plan){.clients = job->o.fedavg.clients,
                               .drawn = drawn > 1 ? drawn : 1,
                               .local_epochs = job->o.fedavg.local_epochs,
                               .seed = job->o.seed,
                               .workers = job->o.workers};
    f->sums = calloc(n, sizeof(shoal_block *));
    f->rows = calloc(n, sizeof *f->rows);
    if (err == SHOAL_OK && (f->sums == NULL || f->rows == NULL)) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu workers", n);
    }
    SH_TRY(err);
    SH_TRY(open_parts(job, f));
    job->images_total = count_images(job);
    return open_sums(job, f);
}

static void fedavg_close(sh_job *job)
{
    fedavg *f = own_of(job);
    sh_rounds_close(job);
    for (int i = 0; f != NULL && f->sums != NULL && i < job->o.workers; i++) {
        shoal_release(f->sums[i]);
    }
    if (f != NULL) {
        shoal_release(f->parts_block);
        shoal_tensor_release(f->velocity);
        free(f->sums);
        free(f->rows);
        free(f->drawn);
        free(f);
    }
}

/* ---- rounds ---- */

static shoal_value *arguments(sh_job *job, int rank)
{
    const fedavg *f = own_of(job);
    shoal_value *map = sh_rounds_arguments(job, rank);
    map = shoal_map_set(map, "parts", shoal_value_of(f->parts_block));
    return shoal_map_set(map, "sums", shoal_value_of(f->sums[rank]));
}

/* Returns the finished sums of a rank, with all its clients of the round. */
static shoal_err row_of(const sh_job *job, int64_t round, int rank, double **out_row)
{
    const fedavg *f = own_of(job);
    sh_flat_shm *sums = shoal_block_data(f->sums[rank]);
    int64_t turns = sh_fedavg_turns(&f->plan, rank);
    if (sh_load_acquire(&sums->done) != sh_position(round, turns)) {
        return sh_fail(SHOAL_ESTATE, "worker %d answered round %lld before its clients were done", rank,
                       (long long)round);
    }
    *out_row = sums->rows + turns % 2 * f->length;
    return SHOAL_OK;
}

/* death: only of the job, which ends all its workers too. */
static shoal_err reduce(sh_job *job, int64_t round)
{
    fedavg *f = own_of(job);
    double *first = NULL, *row = NULL;
    int count = 0;
    for (; count < job->o.workers && count < f->plan.drawn; count++) {
        SH_TRY(row_of(job, round, count, &row));
        f->rows[count] = row;
        first = count == 0 ? row : first;
    }
    SH_TRY(sh_reducer_here.add(first, f->rows, count, f->length));
    sh_flat_apply(job->model, first, (double)samples_of_round(job, round),
                  f->velocity ? shoal_tensor_data(f->velocity) : NULL, job->o.fedavg.server_momentum);
    return SHOAL_OK;
}

/* ---- checkpoints ---- */

static shoal_err pass_settings(const sh_job *job, sh_checkpoint *c)
{
    SH_TRY(sh_checkpoint_setting_whole(c, "clients", job->o.fedavg.clients));
    SH_TRY(sh_checkpoint_setting_whole(c, "clients_in_round", own_of(job)->plan.drawn));
    SH_TRY(sh_checkpoint_setting_whole(c, "local_epochs", job->o.fedavg.local_epochs));
    SH_TRY(sh_checkpoint_setting(c, "split", job->o.fedavg.split == SHOAL_SPLIT_IID ? "iid" : "shards"));
    SH_TRY(sh_checkpoint_setting_number(c, "server_momentum", job->o.fedavg.server_momentum));
    return sh_checkpoint_note_number(c, "fraction", job->o.fedavg.fraction);
}

/* Sets how many images the workers trained on in the finished rounds. */
static void place_images(sh_job *job)
{
    const fedavg *f = own_of(job);
    const sh_fedavg_plan *s = &f->plan;
    job->images_before = 0;
    for (int rank = 0; rank < s->workers; rank++) {
        sh_racy_store(&job->board->workers[rank].images, 0);
    }
    for (int64_t round = 0; round < job->result.epochs; round++) {
        sh_fedavg_draw(s, round, f->drawn);
        for (int64_t i = 0, count; i < s->drawn; i++) {
            sh_a64 *images = &job->board->workers[i % s->workers].images;
            sh_part(f->parts, f->drawn[i], &count);
            sh_racy_store(images, sh_racy_load(images) + (uint64_t)(count * s->local_epochs));
            job->images_before += count * s->local_epochs;
        }
    }
}

/* A round in progress at the time of writing has changed nothing yet: the parameters and the velocity are those of the
 * last finished round. */
static shoal_err checkpoint(sh_job *job, sh_checkpoint *c)
{
    SH_TRY(pass_settings(job, c));
    SH_TRY(sh_rounds_checkpoint(job, c));
    if (own_of(job)->velocity != NULL) {
        SH_TRY(sh_checkpoint_tensor(c, "server_velocity", own_of(job)->velocity));
    }
    if (!c->writing) {
        place_images(job);
    }
    return SHOAL_OK;
}

const sh_method sh_method_fedavg = {.name = "fedavg",
                                    .target = sh_fedavg_work,
                                    .defaults = defaults,
                                    .check = check,
                                    .open = fedavg_open,
                                    .close = fedavg_close,
                                    .model = sh_rounds_model,
                                    .arguments = arguments,
                                    .task = sh_rounds_task,
                                    .hear = sh_rounds_hear,
                                    .run = sh_rounds_run,
                                    .checkpoint = checkpoint};
