/* A worker's state on the card: its parameters and momentum, the data set, the order of an epoch, and the steps.
 *
 * The job never opens the card. What its methods share and keep (the common model, a worker's model, momentum) stays in
 * the world's heap, as on the CPU. A worker copies it to the card when a round begins and back when it ends, so a death
 * or a lost context loses no more than on the CPU. hogwild is the exception: its parameters are on the card, shared by
 * handle (sh_card_share).
 *
 * All parameters are in one tensor, and so is the momentum: one copy moves them. The worker enqueues some
 * milliseconds of steps at a time without waiting. Then it reads how far the card is, writes that to the board, and checks
 * whether to stop. */
#ifndef SH_TRAIN_CARD_H
#define SH_TRAIN_CARD_H

#include "train/worker.h"

typedef struct sh_card sh_card;

/* Opens the card for a worker whose model and set are open. Errors: those of sh_device_get; SHOAL_ETYPE if the model
 * cannot be trained there. close accepts NULL. */
shoal_err sh_card_open(sh_worker *w);
void sh_card_close(sh_card *card);

/* take copies a module of this architecture to the card, give copies the card's parameters to it. */
shoal_err sh_card_take(sh_card *card, const shoal_module *from);
shoal_err sh_card_give(sh_card *card, shoal_module *to);

/* take for a test of the common parameters between two rounds: the next round need not copy them again. */
shoal_err sh_card_take_common(sh_card *card, const shoal_module *common);

/* The same for the momentum, a map as sh_state_zeros makes it; NULL: zeros. give_gradient is for a worker that has
 * computed a gradient and taken no step. */
shoal_err sh_card_take_momentum(sh_card *card, const shoal_value *from);
shoal_err sh_card_give_momentum(sh_card *card, const shoal_value *to);
shoal_err sh_card_give_gradient(sh_card *card, shoal_module *to);

/* Sums of models, for fedavg (card_sums.c). begin keeps the common parameters on the card and zeroes the sums. client
 * starts the worker's model from the common parameters, without momentum. add adds it, times weight. give writes the sums
 * to a row of flat_model.h. */
shoal_err sh_card_sums_begin(sh_card *card, const shoal_module *common);
shoal_err sh_card_sums_client(sh_card *card);
shoal_err sh_card_sums_add(sh_card *card, double weight);
shoal_err sh_card_sums_give(sh_card *card, const shoal_module *model, double *row);

/* Clients of fedavg side by side (card_clients.c), in the same launches, for a model that the card can train so. */
typedef struct sh_card_client {
    int64_t number;
    const int64_t *samples;
    int64_t count;
} sh_card_client;

/* Makes room for up to `wanted` clients of up to `samples` samples each. Returns how many are trained side by side; 0: this
 * model is trained one client after another. */
shoal_err sh_card_clients_open(sh_worker *w, int64_t wanted, int64_t samples, int *out_room);

/* Trains clients of a round from the common parameters, each in its own order and without momentum from before, and adds
 * their models in turn, each times its number of samples, to the sums. At most as many as there is room for. Ends early if
 * the job stops. */
shoal_err sh_card_clients_train(sh_worker *w, int64_t round, const sh_card_client *clients, int count);

/* Hogwild: share returns a value with the parameters on the card, which stay where they are; adopt replaces this worker's
 * parameters by those that another worker has shared. */
shoal_value *sh_card_share(sh_card *card);
shoal_err sh_card_adopt(sh_worker *w, const shoal_value *shared);

/* Returns the module whose parameters are those on the card. */
shoal_module *sh_card_module(const sh_card *card);

/* Tests the parameters on the card by kernels that the model has for this: this rank's batches of the test set
 * (evaluate.h). out_scores has room for the scores of all. *out_done is false if there are no such kernels. */
shoal_err sh_card_score(sh_worker *w, sh_score *out_scores, bool *out_done);

/* Trains on batches first to last - 1 of an epoch, which it has, or until the job stops. seed: of dropout. */
shoal_err sh_card_run(sh_worker *w, int64_t epoch, int64_t first, int64_t last, uint64_t seed, bool change);

#endif
