/* What the two halves of cuda_share have in common. */
#ifndef BENCH_CUDA_SHARE_H
#define BENCH_CUDA_SHARE_H

#include <shoal/shoal.h>

#define PATIENCE SHOAL_SECONDS(30)

#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        shoal_err err_ = (expression);                                                                                 \
        if (err_ != SHOAL_OK) {                                                                                        \
            return err_;                                                                                               \
        }                                                                                                              \
    } while (0)

double share_now(void); /* seconds */

shoal_err share_wrong(const char *what);

/* Starts a process by spawn: the others of a card cannot be forked. Takes args. */
shoal_err share_start(shoal_target target, int rank, shoal_value *args, shoal_process **out);

/* Waits until it has returned, and destroys it. */
shoal_err share_finish(shoal_process *p);

/* Waits until all that this process has lent is back, and gives its card memory to the driver. */
shoal_err share_all_back(void);

/* ---- cuda_share_deaths.c ---- */

/* Kills the makers and the receivers of that many tensors. */
shoal_err share_deaths(int count, bool with_mps);

/* Returns how many MiB of the card are in use, by all processes and by the one that looks. again: waits until no more
 * are in use than before, because the driver takes a moment to end a killed process. */
shoal_err share_in_use(int64_t *out_mib);
shoal_err share_in_use_again(int64_t before, int64_t *out_mib);

#endif
