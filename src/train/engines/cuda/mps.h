/* NVIDIA's multi-process service (MPS) for the workers of a job. With it their kernels run on the GPU at the same
 * time. Without it the GPU runs the kernels of one process at a time.
 *
 * The job uses a running daemon as it is. Otherwise it starts one, with its own folder for pipes and logs. A shell, the
 * owner, starts the daemon, waits until its input ends, then ends the daemon and removes the folder. Only the job's
 * process holds the other end of that input, so the owner also does this when the job is killed. The owner has its
 * own session, so no signal to the job's group reaches it.
 *
 * The daemon starts a server for its clients. If a client crashes, the server and the contexts of all clients are lost,
 * and the daemon starts another server for the next client. If the daemon itself has ended, the job starts a new one. A
 * client that is killed while it talks to the server can leave the server waiting for it for ever. Then every other
 * client waits for the server. The job notices that no worker makes progress, and replaces them all.
 *
 * death: of the owner: the job ends the daemon itself when it ends.
 * death: of both: the kernel drops the lock on the folder that they held, and the next job of this user that starts a
 * daemon ends this one first. */
#ifndef SH_TRAIN_MPS_H
#define SH_TRAIN_MPS_H

#include <shoal/train.h>

#include <sys/types.h>

/* The value of CUDA_MPS_PIPE_DIRECTORY for workers that must not use MPS, even if a daemon runs. No daemon can be
 * there, so the driver works without one. */
#define SH_MPS_NOWHERE "/dev/null"

/* The number of contexts that MPS allows on one GPU (since Volta). */
#define SH_MPS_CLIENTS 48

extern const char *sh_mps_seconds; /* how long a command to a daemon may take; "5", except in tests */
extern const char *sh_mps_folders; /* where the folders of daemons are; "/tmp", except in tests */

typedef struct sh_mps {
    /* Of the daemon that the job has started, or SH_MPS_NOWHERE; "": the workers look where the job would. */
    char folder[64];
    pid_t owner;
    int socket;         /* to the owner, which ends the daemon when this is closed */
    int lock;           /* on the folder; open while there is an owner */
    int workers, share; /* of the options */
    bool used;          /* by the workers: this daemon, or one that ran before */
    int64_t lost;       /* sh_now when the server last went down; 0: never */
    char note[160];     /* one line for people that was not reported yet; "": none */
} sh_mps;

/* Checks what can be known before the start. Errors: SHOAL_ENOENT if the options have cuda_share, and MPS is not
 * installed and no daemon runs. Calls no daemon. */
shoal_err sh_mps_check(const shoal_train_options *o);

/* Starts a daemon, if the options and the machine need one. Otherwise folder names none, and note may say why. Waits
 * until the daemon is up. Errors: SHOAL_ELIMIT if MPS does not allow that many workers; SHOAL_EOS, also if the daemon
 * does not start and the options have cuda_share. */
shoal_err sh_mps_start(sh_mps *mps, const shoal_train_options *o);

/* Called when a worker has lost its GPU, before it is started again. If MPS is used, sets note: the server went down
 * and starts again. If the job's own daemon does not answer, starts a new one, in another folder. Workers that lose
 * their contexts together are one event. */
void sh_mps_recover(sh_mps *mps);

/* Called when no worker makes progress after a death. Replaces the job's own daemon without talking to it, and sets
 * note. The workers must have ended. */
void sh_mps_replace(sh_mps *mps);

/* Ends the daemon that sh_mps_start started, and waits until it has ended, for at most some seconds. Accepts a zeroed
 * struct. The clients must have ended. */
void sh_mps_stop(sh_mps *mps);

/* Makes this process a client of the daemon in a folder (of sh_mps), before it opens the GPU. It may use `share`
 * percent of the GPU; 0: all of it. */
void sh_mps_join(const char *folder, int share);

#endif
