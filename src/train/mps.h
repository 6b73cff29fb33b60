/* NVIDIA's multi-process service (MPS) for the workers of a job: with it their kernels run on the card side by side,
 * without it the card is given to one process after another.
 *
 * A daemon that already runs is used as it is. Otherwise the job starts one for itself, with its own folder for pipes
 * and logs. A shell, the keeper, starts the daemon, waits until its input ends, then ends the daemon and removes the
 * folder. Only the job's process holds the other end of that input, so the keeper does so also when the job is killed;
 * it has a session of its own, which no signal to the job's group reaches.
 *
 * death: of the keeper: the daemon stays until its folder is used no more; the job does not need the keeper. */
#ifndef SH_TRAIN_MPS_H
#define SH_TRAIN_MPS_H

#include <shoal/train.h>

#include <sys/types.h>

/* Contexts that MPS has room for on one card (since Volta). */
#define SH_MPS_CLIENTS 48

typedef struct sh_mps {
    char folder[64]; /* of the daemon that the job has started; "": none */
    pid_t keeper;
    int socket; /* to the keeper, which ends the daemon when this is closed */
    int workers;
    char note[160]; /* one line for people; "": none */
} sh_mps;

/* Starts a daemon, if the options and the machine want one. Otherwise folder is "", and note may say why. Waits until
 * the daemon is up. Errors: SHOAL_ELIMIT if MPS has no room for that many workers; SHOAL_EOS. */
shoal_err sh_mps_start(sh_mps *mps, const shoal_train_options *o);

/* Ends the daemon that start has started, and waits until it has ended, at most some seconds. Accepts a zeroed struct.
 * The clients must have ended. */
void sh_mps_stop(sh_mps *mps);

/* Makes this process a client, before it opens the card: of the daemon in that folder, if it is not "", with that
 * percentage of the card, if it is not 0. */
void sh_mps_join(const char *folder, int share);

#endif
