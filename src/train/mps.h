/* NVIDIA's multi-process service (MPS) for the workers of a job: with it their kernels run on the card side by side,
 * without it the card is given to one process after another.
 *
 * A daemon that already runs is used as it is. Otherwise the job starts one for itself, with its own folder for pipes
 * and logs. A shell, the keeper, starts the daemon, waits until its input ends, then ends the daemon and removes the
 * folder. Only the job's process holds the other end of that input, so the keeper does so also when the job is killed;
 * it has a session of its own, which no signal to the job's group reaches.
 *
 * The daemon starts a server for its clients. A client that crashes takes the server and the contexts of all clients with
 * it; the daemon starts another for the next client. If the daemon itself is gone, the job starts a new one. A client
 * that is killed while it talks to the server can also leave the server waiting for it for ever, and then every other
 * client waits for the server: the job notices that nobody goes on, and replaces them all.
 *
 * death: of the keeper: the job ends the daemon itself when it ends.
 * death: of both: the kernel drops the lock on the folder that they held, and the next job of this user that starts a
 * daemon ends this one first. */
#ifndef SH_TRAIN_MPS_H
#define SH_TRAIN_MPS_H

#include <shoal/train.h>

#include <sys/types.h>

/* What CUDA_MPS_PIPE_DIRECTORY is for workers that shall not use MPS, also if a daemon runs: no daemon can be there, and
 * the driver then goes on without one. */
#define SH_MPS_NOWHERE "/dev/null"

/* Contexts that MPS has room for on one card (since Volta). */
#define SH_MPS_CLIENTS 48

extern const char *sh_mps_seconds; /* how long a command to a daemon may take; "5", except in tests */
extern const char *sh_mps_folders; /* where the folders of daemons are; "/tmp", except in tests */

typedef struct sh_mps {
    /* Of the daemon that the job has started, or SH_MPS_NOWHERE; "": the workers look where the job would. */
    char folder[64];
    pid_t keeper;
    int socket;         /* to the keeper, which ends the daemon when this is closed */
    int lock;           /* on the folder; open while there is a keeper */
    int workers, share; /* of the options */
    bool used;          /* by the workers: this daemon, or one that ran before */
    int64_t lost;       /* sh_now when the server last went down; 0: never */
    char note[160];     /* one line for people that was not reported yet; "": none */
} sh_mps;

/* Checks what can be known before the start: SHOAL_ENOENT if the workers shall have shares of the card, and MPS is not
 * here. Asks no daemon. */
shoal_err sh_mps_check(const shoal_train_options *o);

/* Starts a daemon, if the options and the machine want one. Otherwise folder has none, and note may say why. Waits until
 * the daemon is up. Errors: SHOAL_ELIMIT if MPS has no room for that many workers; SHOAL_EOS, also if the daemon does not
 * start and the workers shall have shares of the card. */
shoal_err sh_mps_start(sh_mps *mps, const shoal_train_options *o);

/* Called when a worker has lost its card, before it is started again. If MPS is used, sets note: the server has gone down,
 * and is there again. Starts the job's own daemon again if it does not answer; folder is then another one. The workers
 * that lose their contexts together are one event. */
void sh_mps_recover(sh_mps *mps);

/* Called when no worker goes on after a death: starts the job's own daemon again, which must not be asked any more, and
 * sets note. The workers must have ended. */
void sh_mps_replace(sh_mps *mps);

/* Ends the daemon that start has started, and waits until it has ended, at most some seconds. Accepts a zeroed struct.
 * The clients must have ended. */
void sh_mps_stop(sh_mps *mps);

/* Makes this process a client, before it opens the card: of the daemon in that folder (sh_mps), with that percentage of
 * the card, if it is not 0. */
void sh_mps_join(const char *folder, int share);

#endif
