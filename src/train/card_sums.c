/* Sums of models on the card, for fedavg: the common parameters stay on the card for a round, and each client's model is
 * added there, in f64 and in the order and rounding of flat_model.h. */
#include "train/card_inside.h"

#include <shoal/autograd.h>
#include <shoal/ops.h>

/* The job changes the common parameters only when this worker has answered the round. */
shoal_err sh_card_take_common(sh_card *card, const shoal_module *common)
{
    shoal_err err = sh_card_take(card, common);
    card->has_common = err == SHOAL_OK;
    return err;
}

shoal_err sh_card_sums_begin(sh_card *card, const shoal_module *common)
{
    int64_t length = card->offsets[card->count];
    if (card->common == NULL) {
        card->common = sh_card_make(card, SHOAL_F32, SHOAL_SHAPE(length));
        card->sums = card->common ? sh_card_make(card, SHOAL_F64, SHOAL_SHAPE(length)) : NULL;
    }
    if (card->sums == NULL) {
        return shoal_last_error();
    }
    shoal_err err = card->has_common ? SHOAL_OK : sh_card_take(card, common);
    card->has_common = false; /* in the next round they are others */
    err = err == SHOAL_OK ? sh_tensor_copy_data(card->common, card->params) : err;
    return err == SHOAL_OK ? sh_tensor_fill(card->sums, 0) : err;
}

shoal_err sh_card_sums_client(sh_card *card)
{
    shoal_err err = sh_tensor_copy_data(card->params, card->common);
    return err == SHOAL_OK ? sh_card_take_momentum(card, NULL) : err;
}

shoal_err sh_card_sums_add(sh_card *card, double weight)
{
    return sh_card_sums_add_from(card, card->params, weight);
}

shoal_err sh_card_sums_add_from(sh_card *card, shoal_tensor *params, double weight)
{
    size_t mark = shoal_scope_mark();
    shoal_no_grad_begin();
    shoal_tensor *x = shoal_mul_scalar(shoal_to_dtype(params, SHOAL_F64), weight);
    shoal_err err = shoal_add_(card->sums, x) ? SHOAL_OK : shoal_last_error();
    shoal_no_grad_end();
    shoal_scope_release(mark);
    return err;
}

shoal_err sh_card_sums_give(sh_card *card, const shoal_module *model, double *row)
{
    size_t at = 0;
    shoal_err err = SHOAL_OK;
    const shoal_tensor *t;
    for (size_t i = 0; err == SHOAL_OK && (t = sh_module_next_parameter(model, &at)) != NULL; i++) {
        const double *sums = (const double *)sh_tensor_ptr(card->sums) + card->offsets[i];
        err = card->device->read(row, sums, (size_t)t->count * sizeof *row);
        row += t->count;
    }
    return err;
}
