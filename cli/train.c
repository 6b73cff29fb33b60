#include "cli/train_show.h"

#include <shoal/version.h>

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EPOCHS_USUAL 3

static const char help[] =
    "usage: shoal train [OPTION ...]\n"
    "Trains one model by several processes, and tests it. Without options: the MNIST network by Hogwild with four\n"
    "workers, 3 epochs (12 passes over the set).\n\n"
    "  --method NAME   hogwild: workers share the parameters, without locks, and each passes over the whole set "
    "(default)\n"
    "                  sync:    each passes over its part, then the parameters become the mean of all\n"
    "                  local:   as sync, the mean taken every --steps batches\n"
    "                  serial:  one worker\n"
    "                  a3c:     actors learn in environments; they share parameters and RMSprop's averages\n"
    "  --workers N     processes, 1 to 1024 (4)\n"
    "  --epochs E      (3)\n"
    "  --start HOW     spawn, fork or forkserver (spawn)\n"
    "  --shard         hogwild: each worker has its part of the set\n"
    "  --steps K       local: batches between two means (16)\n"
    "  --restarts N    how often one worker that dies is started again (10)\n\n"
    "  --model NAME    mnist-cnn (default), fedavg-cnn, mlp, logistic, lenet5, lstm-classifier\n"
    "  --data NAME     mnist (default), fashion-mnist, or a folder of such files\n"
    "  --lr X          learning rate (0.01; a3c: 0.002, falling to 0)\n"
    "  --momentum X    (0.5)\n"
    "  --batch N       samples in a batch (64)\n"
    "  --seed N        of initial values, orders and dropout (1); all methods but hogwild repeat to the bit\n\n"
    "  --env NAME      a3c: the environment (cartpole)\n"
    "  --until X       a3c: the mean return of 100 episodes to reach (cartpole: 475)\n"
    "  --env-steps N   a3c: at most so many steps, of all actors together (2000000)\n"
    "  --rollout N     a3c: steps between two changes by one actor (20)\n"
    "  --gamma X       a3c: how much of the next step's return counts (0.99)\n"
    "  --entropy X     a3c: weight of the policy's entropy (0.01)\n\n"
    "  --save FILE     the parameters as safetensors, also when stopped\n"
    "  --json FILE     one JSON object a line, the last {\"event\":\"summary\",...}; - for standard output\n"
    "  --quiet         no lines for people\n"
    "  -h, --help      this\n"
    "  --version       the version\n\n"
    "Ctrl-C and SIGTERM stop at a step; the exit status is then 130 or 143.\n\n"
    "examples: shoal train --epochs 1\n"
    "          shoal train --method sync --workers 4 --epochs 12 --lr 0.04 --save mnist.safetensors\n"
    "          shoal train --method a3c\n";

typedef struct call {
    shoal_train_options job;
    const char *json;
    bool quiet;
    int signal; /* that stopped the job; 0: none */
    cli_show show;
} call;

/* ---- options ---- */

enum {
    METHOD = 256,
    WORKERS,
    EPOCHS,
    START,
    SHARD,
    STEPS,
    RESTARTS,
    MODEL,
    DATA,
    LR,
    MOMENTUM,
    BATCH,
    SEED,
    ENV,
    UNTIL,
    ENV_STEPS,
    ROLLOUT,
    GAMMA,
    ENTROPY,
    SAVE,
    JSON,
    QUIET,
    VERSION
};

static const struct option known[] = {
    {"method", required_argument, NULL, METHOD},
    {"workers", required_argument, NULL, WORKERS},
    {"epochs", required_argument, NULL, EPOCHS},
    {"start", required_argument, NULL, START},
    {"shard", no_argument, NULL, SHARD},
    {"steps", required_argument, NULL, STEPS},
    {"restarts", required_argument, NULL, RESTARTS},
    {"model", required_argument, NULL, MODEL},
    {"data", required_argument, NULL, DATA},
    {"lr", required_argument, NULL, LR},
    {"momentum", required_argument, NULL, MOMENTUM},
    {"batch", required_argument, NULL, BATCH},
    {"seed", required_argument, NULL, SEED},
    {"env", required_argument, NULL, ENV},
    {"until", required_argument, NULL, UNTIL},
    {"env-steps", required_argument, NULL, ENV_STEPS},
    {"rollout", required_argument, NULL, ROLLOUT},
    {"gamma", required_argument, NULL, GAMMA},
    {"entropy", required_argument, NULL, ENTROPY},
    {"save", required_argument, NULL, SAVE},
    {"json", required_argument, NULL, JSON},
    {"quiet", no_argument, NULL, QUIET},
    {"version", no_argument, NULL, VERSION},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static bool misused(const char *option, const char *given, const char *wanted)
{
    cli_complain(&cli_train, CLI_MISUSED, "%s '%s'; %s", option, given, wanted);
    return false;
}

static bool read_whole(const char *option, int64_t least, int64_t most, int64_t *out)
{
    char *end, wanted[80];
    errno = 0;
    long long x = strtoll(optarg, &end, 10);
    if (errno == 0 && end != optarg && *end == 0 && x >= least && x <= most) {
        *out = x;
        return true;
    }
    snprintf(wanted, sizeof wanted, "a whole number from %lld to %lld is wanted", (long long)least, (long long)most);
    return misused(option, optarg, wanted);
}

static bool read_number(const char *option, bool zero, double below, double *out)
{
    char *end, wanted[80];
    errno = 0;
    double x = strtod(optarg, &end);
    if (errno == 0 && end != optarg && *end == 0 && (x > 0 || (zero && x == 0)) && x < below) {
        *out = x;
        return true;
    }
    snprintf(wanted, sizeof wanted, "a number %s and below %g is wanted", zero ? "from 0" : "above 0", below);
    return misused(option, optarg, wanted);
}

/* In the options of a job 0 is the default, and what is negative is none. */
static bool none_of_zero(double *x)
{
    *x = *x == 0 ? -1 : *x;
    return true;
}

static bool read_start(shoal_start *out)
{
    static const char *const names[] = {
        [SHOAL_START_SPAWN] = "spawn", [SHOAL_START_FORK] = "fork", [SHOAL_START_FORKSERVER] = "forkserver"};
    for (size_t i = 1; i < sizeof names / sizeof *names; i++) {
        if (strcmp(optarg, names[i]) == 0) {
            *out = (shoal_start)i;
            return true;
        }
    }
    return misused("--start", optarg, "spawn, fork or forkserver is wanted");
}

static bool read_method(shoal_train_method *out)
{
    return shoal_train_method_find(optarg, out) == SHOAL_OK ||
           misused("--method", optarg, "hogwild, sync, local or serial is wanted");
}

static bool read_one(call *c, int option)
{
    shoal_train_options *job = &c->job;
    int64_t n = 0;
    bool good = true;
    switch (option) {
    case METHOD: return read_method(&job->method);
    case WORKERS: good = read_whole("--workers", 1, SHOAL_TRAIN_WORKERS, &n), job->workers = (int)n; break;
    case EPOCHS: return read_whole("--epochs", 1, 1000000, &job->epochs);
    case START: return read_start(&job->start);
    case SHARD: job->shard = true; break;
    case STEPS: return read_whole("--steps", 1, 1000000, &job->steps);
    case RESTARTS: good = read_whole("--restarts", 0, 1000000, &n), job->restarts = n > 0 ? (int)n : -1; break;
    case MODEL: job->model = optarg; break;
    case DATA: job->data = optarg; break;
    case LR: return read_number("--lr", false, 1e6, &job->lr);
    case MOMENTUM: return read_number("--momentum", true, 1, &job->momentum) && none_of_zero(&job->momentum);
    case BATCH: return read_whole("--batch", 1, 1000000, &job->batch);
    case SEED: good = read_whole("--seed", 0, INT64_MAX, &n), job->seed = (uint64_t)n; break;
    case ENV: job->env = optarg; break;
    case UNTIL: return read_number("--until", false, 1e15, &job->until);
    case ENV_STEPS: return read_whole("--env-steps", 1, INT64_C(1000000000000), &job->env_steps);
    case ROLLOUT: return read_whole("--rollout", 1, 100000, &job->rollout);
    case GAMMA: return read_number("--gamma", true, 1e6, &job->gamma) && none_of_zero(&job->gamma);
    case ENTROPY: return read_number("--entropy", true, 1e6, &job->entropy) && none_of_zero(&job->entropy);
    case SAVE: job->save = optarg; break;
    case JSON: c->json = optarg; break;
    case QUIET: c->quiet = true; break;
    default: break;
    }
    return good;
}

/* True: run. False: all is said; end with *out_status. */
static bool read_call(int argc, char **argv, call *c, cli_exit *out_status)
{
    *c = (call){.job = {.epochs = EPOCHS_USUAL, .seed = 1}};
    *out_status = CLI_MISUSED;
    opterr = 0;
    optind = 0;
    for (int found; (found = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
        if (found == 'h' || found == VERSION) {
            *out_status = cli_print(found == 'h' ? help : "shoal " SHOAL_VERSION "\n");
            return false;
        }
        if (found == '?') {
            cli_complain(&cli_train, CLI_MISUSED, "'%s' is no option, or lacks its value; see shoal train --help",
                         argv[optind - 1]);
            return false;
        }
        if (!read_one(c, found)) {
            return false;
        }
    }
    if (optind < argc) {
        cli_complain(&cli_train, CLI_MISUSED, "no argument is taken, but there is '%s'", argv[optind]);
        return false;
    }
    if (shoal_train_check(&c->job) != SHOAL_OK) {
        cli_complain(&cli_train, CLI_MISUSED, "%s", shoal_last_error_text());
        return false;
    }
    return true;
}

/* ---- signals: the handler leaves their number in a pipe, which is read between steps of the job ---- */

static int pipe_ends[2];

static void note_signal(int number)
{
    int kept = errno;
    unsigned char byte = (unsigned char)number;
    (void)!write(pipe_ends[1], &byte, 1);
    errno = kept;
}

static bool watch_signals(void)
{
    struct sigaction action = {.sa_handler = note_signal, .sa_flags = SA_RESTART};
    return pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK) == 0 && sigaction(SIGINT, &action, NULL) == 0 &&
           sigaction(SIGTERM, &action, NULL) == 0;
}

static int seen_signal(void)
{
    unsigned char byte;
    return read(pipe_ends[0], &byte, 1) == 1 ? byte : 0;
}

/* ---- the job ---- */

static bool on_event(const shoal_train_event *event, void *context)
{
    call *c = context;
    if (c->signal == 0) {
        c->signal = seen_signal();
    }
    return cli_show_event(&c->show, event) && c->signal == 0;
}

/* So that a job does not find out at its end. */
static bool can_save(const char *path)
{
    char folder[PATH_MAX];
    if (path == NULL) {
        return true;
    }
    snprintf(folder, sizeof folder, "%s", path);
    if (access(dirname(folder), W_OK | X_OK) == 0) {
        return true;
    }
    cli_complain(&cli_train, CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
    return false;
}

static cli_exit run(int argc, char **argv)
{
    call c;
    cli_exit status;
    if (!read_call(argc, argv, &c, &status)) {
        return status;
    }
    if (!can_save(c.job.save) || !cli_show_begin(&c.show, &c.job, c.json, c.quiet)) {
        return CLI_FAILED;
    }
    c.job.call = on_event;
    c.job.context = &c;
    shoal_err err = watch_signals() ? shoal_train_run(&c.job, NULL) : shoal_fail(SHOAL_EOS, "%s", strerror(errno));
    if (err != SHOAL_OK) {
        cli_complain(&cli_train, CLI_FAILED, "%s", shoal_last_error_text());
    }
    status = cli_show_end(&c.show, err != SHOAL_OK);
    return status == CLI_OK && c.signal != 0 ? (cli_exit)(128 + c.signal) : status;
}

const cli_command cli_train = {
    .name = "train",
    .summary = "trains a model by several processes: hogwild, sync, local, serial, a3c",
    .help = help,
    .run = run,
};
