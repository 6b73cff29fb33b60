/* The table of options of `shoal train`, its help, and the checks that concern several options. */
#include "cli/train_options.h"

#include "cli/config.h"
#include "cli/train_resume.h"

#include <shoal/env.h>

#include <stdlib.h>
#include <string.h>

#define EPOCHS_HOGWILD 3 /* 12 passes of four workers reach some 99 % on MNIST */
#define SEED 1

/* ---- words ---- */

static const char *method_word(size_t i)
{
    return shoal_train_method_name((shoal_train_method)i);
}

static const char *model_word(size_t i)
{
    size_t count = 0;
    while (shoal_model_names()[count] != NULL) {
        count++;
    }
    return i < count ? shoal_model_names()[i] : i == count ? "actor-critic" : NULL; /* a3c fits it to the environment */
}

static const char *env_word(size_t i)
{
    const shoal_env_type *type = shoal_env_at(i);
    return type != NULL ? type->name : NULL;
}

static const char *start_word(size_t i)
{
    static const char *const words[] = {"spawn", "fork", "forkserver", NULL};
    return words[i];
}

static const char *average_word(size_t i)
{
    static const char *const words[] = {"parameters", "gradients", NULL};
    return words[i];
}

static const char *split_word(size_t i)
{
    static const char *const words[] = {"iid", "shards", NULL};
    return words[i];
}

static const char *device_word(size_t i)
{
    static const char *const words[] = {"cpu", "cuda", NULL};
    return words[i];
}

static const char *mps_word(size_t i)
{
    static const char *const words[] = {"auto", "off", NULL};
    return words[i];
}

/* ---- the table ---- */

enum { RUN, LEARN, HOGWILD, SYNC, LOCAL, FEDAVG, A3C, SAVE, OUTPUT, PROCESSES, CONFIG };

static const char *const groups[] = {
    [RUN] = "what to train",    [LEARN] = "learning",
    [HOGWILD] = "hogwild only", [SYNC] = "sync only",
    [LOCAL] = "local only",     [FEDAVG] = "fedavg only",
    [A3C] = "a3c only",         [SAVE] = "saving and resuming",
    [OUTPUT] = "output",        [PROCESSES] = "processes and failures",
    [CONFIG] = "configuration", NULL,
};

#define AT(field) CLI_FIELD(cli_train_call, field)
#define OF(method) .of = 1u << SHOAL_METHOD_##method
#define OF_SAMPLES .of = ~(1u << SHOAL_METHOD_A3C) /* the methods that train on a data set */
#define MOST 1000000

/* One row per option: group, name, name of the value, bounds or words, field, help, and what is special about it. */
#define WHOLE(g, n, v, low, high, f, h, ...)                                                                           \
    {                                                                                                                  \
        .group = g, .name = n, .value = v, .kind = CLI_WHOLE, .least = low, .most = high, .help = h, AT(f),            \
        __VA_ARGS__                                                                                                    \
    }
#define NUMBER(g, n, v, low, high, open, f, h, ...)                                                                    \
    {                                                                                                                  \
        .group = g, .name = n, .value = v, .kind = CLI_NUMBER, .least = low, .most = high, .ends = open, .help = h,    \
        AT(f), __VA_ARGS__                                                                                             \
    }
#define WORD(g, n, v, w, f, h, ...)                                                                                    \
    {                                                                                                                  \
        .group = g, .name = n, .value = v, .kind = CLI_WORD, .words = w, .help = h, AT(f), __VA_ARGS__                 \
    }
#define PATH(g, n, v, k, f, h, ...)                                                                                    \
    {                                                                                                                  \
        .group = g, .name = n, .value = v, .kind = k, .help = h, AT(f), __VA_ARGS__                                    \
    }
#define FLAG(g, n, f, h, ...)                                                                                          \
    {                                                                                                                  \
        .group = g, .name = n, .kind = CLI_FLAG, .help = h, AT(f), __VA_ARGS__                                         \
    }

static const cli_option options[] = {
    WORD(RUN, "method", "NAME", method_word, job.method, "how the workers train together, as described above", ),
    WORD(RUN, "model", "NAME", model_word, job.model, "the model, as described above", ),
    PATH(RUN, "data", "NAME", CLI_FOLDER, job.data,
         "the data set: a folder with the four IDX files of MNIST's names, or a name that shoal data list shows",
         .words = shoal_data_name),
    WHOLE(RUN, "workers", "N", 1, SHOAL_TRAIN_WORKERS, job.workers,
          "number of processes that train, from 1 to 1024; the default does not depend on the number of cores", ),
    WHOLE(RUN, "epochs", "E", 1, MOST, job.epochs,
          "number of epochs. An epoch is one pass over the data set; hogwild: one pass by each worker; fedavg: one "
          "round; a3c: 10,000 steps of all workers together", ),
    NUMBER(RUN, "until", "X", 0, 1e15L, CLI_CLOSED, job.until,
           "stop when the test accuracy (0 to 1) reaches X, 0 for never; a3c: when the mean return of the last 100 "
           "episodes reaches X",
           .none = true),

    NUMBER(LEARN, "lr", "X", 0, 1e6L, CLI_ABOVE | CLI_BELOW, job.lr, "learning rate", ),
    NUMBER(LEARN, "lr-decay", "X", 0, 1, CLI_ABOVE, job.lr_decay,
           "multiply the learning rate by X, above 0 and at most 1, after each epoch (fedavg: each round); not for a3c",
           OF_SAMPLES),
    NUMBER(LEARN, "momentum", "X", 0, 1, CLI_BELOW, job.momentum, "momentum of SGD, 0 for none; not for a3c",
           .none = true, OF_SAMPLES),
    WHOLE(LEARN, "batch", "N", 1, MOST, job.batch, "samples per batch; not for a3c", OF_SAMPLES),
    WHOLE(LEARN, "seed", "N", 0, INT64_MAX, job.seed,
          "seed of initial values, sample orders, dropout, and fedavg's split and choice of clients", ),

    FLAG(HOGWILD, "shard", job.hogwild.shard,
         "give each worker only its part of the data set, so that an epoch is one pass", OF(HOGWILD)),
    FLAG(HOGWILD, "shared-state", job.hogwild.shared_state,
         "share one momentum among all workers; without it, each worker has its own", OF(HOGWILD)),
    WORD(SYNC, "average", "WHAT", average_word, job.sync.average,
         "average the parameters after each round, or the gradients of every batch", OF(SYNC)),
    WHOLE(SYNC, "rounds-per-epoch", "N", 1, MOST, job.sync.rounds,
          "number of times per epoch to average the parameters; not with --average gradients", OF(SYNC)),
    WHOLE(LOCAL, "steps", "K", 1, MOST, job.local.steps, "average the parameters after every K batches", OF(LOCAL)),
    WHOLE(FEDAVG, "rounds", "N", 1, MOST, job.epochs, "number of rounds; the same as --epochs", OF(FEDAVG)),
    WHOLE(FEDAVG, "clients", "N", 1, 1000000000, job.fedavg.clients,
          "number of clients that own the samples; clients are not processes: the workers train them in turn",
          OF(FEDAVG)),
    WORD(FEDAVG, "split", "HOW", split_word, job.fedavg.split,
         "give each client random samples (iid), or two shards of the set sorted by label (shards)", OF(FEDAVG)),
    NUMBER(FEDAVG, "fraction", "C", 0, 1, CLI_ABOVE, job.fedavg.fraction,
           "fraction of the clients that train in a round, rounded to whole clients, at least one", OF(FEDAVG)),
    WHOLE(FEDAVG, "local-epochs", "E", 1, MOST, job.fedavg.local_epochs,
          "passes of a client over its samples in a round", OF(FEDAVG)),
    NUMBER(FEDAVG, "server-momentum", "X", 0, 1, CLI_BELOW, job.fedavg.server_momentum,
           "momentum of the server's update after each round, 0 for none", OF(FEDAVG)),
    WORD(A3C, "env", "NAME", env_word, job.a3c.env, "the environment", OF(A3C)),
    WHOLE(A3C, "env-steps", "N", 1, 10000000000, job.a3c.env_steps,
          "maximum number of steps of all workers together; replaces --epochs, which counts 10,000 steps each",
          OF(A3C)),
    WHOLE(A3C, "rollout", "N", 1, 100000, job.a3c.rollout, "steps between two updates by one worker", OF(A3C)),
    NUMBER(A3C, "gamma", "X", 0, 1, CLI_CLOSED, job.a3c.gamma, "discount factor of rewards", .none = true, OF(A3C)),
    NUMBER(A3C, "entropy", "X", 0, 1e6L, CLI_CLOSED, job.a3c.entropy, "weight of the policy's entropy", .none = true,
           OF(A3C)),

    PATH(
        SAVE, "save", "FILE", CLI_FILE, job.save,
        "write a checkpoint with the weights (safetensors) at the start, after each epoch, and when the job ends or is "
        "stopped", ),
    PATH(SAVE, "resume", "FILE", CLI_FILE, job.resume,
         "continue from a checkpoint with its settings, and save to it unless --save is given. Only these may change: "
         "--epochs (the total, with the finished ones), --env-steps, --until, --start, --restarts, --device, --mps, "
         "--cuda-share, --tf32, --allow-nan, --data if a folder has moved, and the output. Give --json, --report and "
         "--tensorboard again", ),
    FLAG(SAVE, "overwrite", overwrite,
         "let --save replace any file. Without it, --save replaces only a checkpoint of a job with the same settings "
         "that "
         "is finished or has no finished epoch. An unfinished one is refused: continue it with --resume",
         .here_only = true),

    FLAG(OUTPUT, "quiet", show.quiet, "print no progress and no summary, for example with --json or --report", ),
    PATH(OUTPUT, "json", "FILE", CLI_FILE, show.json,
         "write results and events to FILE (-: standard output), one JSON object per line", ),
    PATH(OUTPUT, "report", "FILE", CLI_FILE, show.report,
         "write an HTML page to FILE (-: standard output) with curves, events and settings", ),
    PATH(OUTPUT, "tensorboard", "DIR", CLI_FOLDER, show.tensorboard, "write event files for TensorBoard", ),

    WHOLE(PROCESSES, "restarts", "N", 0, MOST, job.restarts, "number of times to start each worker again if it dies",
          .none = true),
    FLAG(PROCESSES, "allow-nan", job.allow_nan, "go on if a loss is NaN or infinite; without it, the job fails", ),
    WORD(PROCESSES, "start", "HOW", start_word, job.start, "how to start processes (rarely needed)",
         .first = SHOAL_START_SPAWN),
    WORD(PROCESSES, "device", "NAME", device_word, job.device,
         "where the workers train (cuda: an NVIDIA GPU; not for a3c and --shared-state)", ),
    WORD(PROCESSES, "mps", "WHEN", mps_word, job.mps,
         "whether workers with --device cuda share the GPU through NVIDIA's MPS (auto: if it is installed); without "
         "MPS they take turns", ),
    WHOLE(PROCESSES, "cuda-share", "N", 1, 100, job.cuda_share,
          "percent of the GPU that each worker may use; needs --device cuda and MPS (default: all of it)",
          .old = "card-share"), /* the option's name in 0.2 */
    FLAG(PROCESSES, "tf32", job.tf32,
         "with --device cuda, round the factors of products to TF32, about 3 digits: faster. Affects only the model "
         "fedavg-cnn", ),

    PATH(CONFIG, "config", "FILE", CLI_FILE, config,
         "read options from an INI file; the command line overrides it. --no-shard, --no-shared-state, "
         "--no-allow-nan, --no-tf32 and --no-quiet unset a flag of the file",
         .here_only = true),
    FLAG(CONFIG, "print-config", print_config, "print all settings as a file for --config, and exit",
         .here_only = true),
};

#define OPTIONS (sizeof options / sizeof *options)
_Static_assert(OPTIONS <= CLI_OPTIONS, "cli_given has too few places");

/* ---- help ---- */

static const char before[] = "Trains a model with several processes and tests it after each epoch. Without\n"
                             "options: the model mnist-cnn on MNIST, hogwild, 4 workers, 3 epochs.\n"
                             "\n"
                             "methods:\n"
                             "  hogwild   All workers update the same parameters, without locks. Each passes\n"
                             "            over the whole data set in its own order, so an epoch of N workers\n"
                             "            is N passes.\n"
                             "  serial    One worker. The baseline for the others.\n"
                             "  sync      Each worker trains its own copy on its part of the data set. After\n"
                             "            each pass the copies are averaged. Raise --lr with the number of\n"
                             "            workers: 0.04 for 4 workers learns about like 0.01 for one.\n"
                             "  local     Like sync, but averages after every few batches, and each worker\n"
                             "            keeps its momentum. Raise --lr as for sync.\n"
                             "  fedavg    Federated averaging. Clients own the samples. In each round some\n"
                             "            clients train, and their models are averaged.\n"
                             "  a3c       Reinforcement learning. Each worker acts in its own environment,\n"
                             "            and all update the same parameters, without locks.\n"
                             "serial, sync, local and fedavg give the same result every time for the same\n"
                             "seed, number of workers and kind of CPU; hogwild and a3c vary from run to run.\n"
                             "To compare methods, set --epochs: the defaults differ. 3 epochs of hogwild with\n"
                             "4 workers are 12 passes over the data set, as are 12 epochs of sync.\n"
                             "\n"
                             "models:\n"
                             "  mnist-cnn        Small convolutional network, 21,840 parameters.\n"
                             "  fedavg-cnn       Large convolutional network, 1,663,370 parameters.\n"
                             "  mlp              Fully connected network, 199,210 parameters.\n"
                             "  logistic         Logistic regression, 7,850 parameters.\n"
                             "  lenet5           LeNet-5, 61,706 parameters.\n"
                             "  lstm-classifier  Recurrent network that reads images by rows, 82,186\n"
                             "                   parameters.\n"
                             "  actor-critic     Policy and value of an environment. For a3c only.\n";

static const char after[] = "\n"
                            "An option may be shortened as long as it stays unique: --mom for --momentum.\n"
                            "\n"
                            "Ctrl-C, SIGTERM and SIGHUP stop the job. It writes its checkpoint and report,\n"
                            "and exits with status 130 (Ctrl-C), 143 (SIGTERM) or 129 (SIGHUP). To continue\n"
                            "it, use --resume FILE.\n"
                            "\n"
                            "examples:\n"
                            "  shoal train --method hogwild --workers 4 --save mnist.safetensors\n"
                            "  shoal train --resume mnist.safetensors --epochs 6\n"
                            "  shoal train --method serial --epochs 12\n"
                            "  shoal train --method sync --workers 4 --epochs 12 --lr 0.04\n"
                            "  shoal train --method local --workers 4 --epochs 12 --lr 0.04 --steps 8\n"
                            "  shoal train --method fedavg --workers 2 --server-momentum 0.5 --until 0.99\n"
                            "  shoal train --method a3c --workers 4\n"
                            "  shoal train --report run.html --json run.jsonl --quiet\n"
                            "  shoal train --method sync --lr 0.04 --print-config >sync.ini\n"
                            "  shoal train --config sync.ini --seed 2\n";

static const char *method_name(int bit)
{
    return shoal_train_method_name((shoal_train_method)bit);
}

static unsigned method_chosen(const void *call)
{
    return 1u << ((const cli_train_call *)call)->job.method;
}

/* Sets the defaults of everything that the call does not give. */
static void fill_in(cli_train_call *call)
{
    shoal_train_options *job = &call->job;
    if (job->epochs == 0 && job->method == SHOAL_METHOD_HOGWILD) {
        job->epochs = EPOCHS_HOGWILD;
    }
    *job = shoal_train_defaults(job);
    const char *start = getenv("SHOAL_START");
    for (size_t i = 0; job->start == SHOAL_START_DEFAULT && start != NULL && start_word(i) != NULL; i++) {
        job->start = strcmp(start, start_word(i)) == 0 ? (shoal_start)(SHOAL_START_SPAWN + i) : job->start;
    }
    job->start = job->start == SHOAL_START_DEFAULT ? SHOAL_START_SPAWN : job->start;
}

static const char *usual_of(const cli_option *o, shoal_train_method method, char buffer[CLI_VALUE])
{
    cli_train_call call = {.job = {.method = method, .seed = SEED}};
    fill_in(&call);
    return cli_option_text(o, &call, buffer);
}

static bool applies(const cli_option *o, int method)
{
    return (o->of == 0 || o->of >> method & 1) && (o->words != method_word || method == 0);
}

/* "64; fedavg: 10": the default of most methods, or of the first method if there is a tie; then those of the other
 * methods. */
static const char *usual(const cli_option *o, char *buffer, size_t capacity)
{
    enum { METHODS_MOST = 32 };
    char text[METHODS_MOST][64], value[CLI_VALUE];
    int count = 0, same, best = -1, best_same = 0;
    size_t at = 0;
    for (; count < METHODS_MOST && method_name(count) != NULL; count++) {
        const char *found = o->kind != CLI_FLAG && !o->here_only && applies(o, count)
                                ? usual_of(o, (shoal_train_method)count, value)
                                : NULL;
        snprintf(text[count], sizeof *text, "%s", found != NULL ? found : "");
    }
    for (int i = 0; i < count; i++) {
        same = 0;
        for (int j = 0; text[i][0] != 0 && j < count; j++) {
            same += strcmp(text[i], text[j]) == 0;
        }
        best = same > best_same ? i : best;
        best_same = same > best_same ? same : best_same;
    }
    if (best >= 0) {
        at = (size_t)snprintf(buffer, capacity, "%s", text[best]);
    }
    for (int i = 0; best >= 0 && i < count && at < capacity; i++) {
        if (text[i][0] != 0 && strcmp(text[i], text[best]) != 0) {
            at += (size_t)snprintf(buffer + at, capacity - at, "; %s: %s", method_name(i), text[i]);
        }
    }
    return best >= 0 ? buffer : NULL;
}

const cli_table cli_train_table = {
    .command = &cli_train,
    .options = options,
    .count = OPTIONS,
    .size = sizeof(cli_train_call),
    .groups = groups,
    .before = before,
    .after = after,
    .choice = method_name,
    .choice_name = "method",
    .chosen = method_chosen,
    .usual = usual,
};

/* ---- reading ---- */

/* Checks that each given option belongs to the method. (cli_config_read does so for a file.) */
static bool fits_method(const cli_train_call *call)
{
    char value[CLI_VALUE];
    for (size_t i = 0; i < OPTIONS; i++) {
        const cli_option *o = &options[i];
        bool asked =
            call->given.named[i] && !(o->kind == CLI_FLAG && strcmp(cli_option_text(o, call, value), "false") == 0);
        if (asked && o->of != 0 && !(o->of >> call->job.method & 1)) {
            cli_option_choices(&cli_train_table, o, value, sizeof value);
            cli_complain(&cli_train, CLI_MISUSED, "--%s is for --method %s, but the method is %s", o->name, value,
                         method_name((int)call->job.method));
            return false;
        }
    }
    return true;
}

static size_t number_of(const char *name)
{
    return (size_t)(cli_table_find(&cli_train_table, name) - options);
}

/* Decides between epochs and env-steps, which both set the length of an a3c job. The command line overrides the file;
 * both in one place are an error. */
static bool settle_length(cli_train_call *call)
{
    size_t epochs = number_of("epochs"), steps = number_of("env-steps");
    cli_origin *origin = call->given.origin;
    if (call->job.method != SHOAL_METHOD_A3C || origin[epochs] == CLI_DEFAULT || origin[steps] == CLI_DEFAULT) {
        return true;
    }
    if (origin[epochs] == origin[steps]) {
        bool file = origin[steps] == CLI_IN_FILE;
        cli_complain(&cli_train, CLI_MISUSED,
                     "%s%sepochs and env-steps both set the length of an a3c job; give one of them",
                     file ? call->config : "", file ? ": " : "");
        return false;
    }
    if (origin[steps] == CLI_GIVEN) {
        call->job.epochs = 0;
        origin[epochs] = CLI_DEFAULT;
    } else {
        call->job.a3c.env_steps = 0;
        origin[steps] = CLI_DEFAULT;
    }
    return true;
}

static bool is_output(const char *path)
{
    return path != NULL && strcmp(path, "-") == 0;
}

/* Checks the options that only a GPU has. */
static bool check_card(const cli_train_call *call)
{
    const shoal_train_options *job = &call->job;
    bool cpu = job->device != SHOAL_CUDA, off = job->mps == SHOAL_MPS_OFF;
    const char *words = cpu && job->tf32             ? "--tf32 needs --device cuda"
                        : cpu && off                 ? "--mps off needs --device cuda"
                        : cpu && job->cuda_share > 0 ? "--cuda-share needs --device cuda"
                        : off && job->cuda_share > 0 ? "--cuda-share needs MPS, but --mps is off"
                                                     : NULL;
    if (words != NULL) {
        cli_complain(&cli_train, CLI_MISUSED, "%s", words);
    }
    return words == NULL;
}

/* Checks for options that contradict each other. */
static bool check_pairs(const cli_train_call *call)
{
    if (is_output(call->show.json) && is_output(call->show.report)) {
        cli_complain(&cli_train, CLI_MISUSED,
                     "--json - and --report - both write to standard output; give one of them a file");
        return false;
    }
    if (is_output(call->job.save) && !is_output(call->job.resume)) {
        cli_complain(&cli_train, CLI_MISUSED,
                     "--save -: a checkpoint cannot be written to standard output; give a file");
        return false;
    }
    if (call->job.method == SHOAL_METHOD_SYNC && call->job.sync.average == SHOAL_AVERAGE_GRADIENTS &&
        call->job.sync.rounds > 1) {
        cli_complain(&cli_train, CLI_MISUSED,
                     "--rounds-per-epoch %lld is for --average parameters; gradients are averaged after each batch",
                     (long long)call->job.sync.rounds);
        return false;
    }
    return check_card(call);
}

/* Checks that the model fits the method: the library does not know this model outside of a3c. */
static bool fits_model(const cli_train_call *call)
{
    const char *model = call->job.model;
    if (call->job.method == SHOAL_METHOD_A3C || model == NULL || strcmp(model, "actor-critic") != 0) {
        return true;
    }
    cli_complain(&cli_train, CLI_MISUSED, "--model %s is for --method a3c, but the method is %s", model,
                 method_name((int)call->job.method));
    return false;
}

static bool check(cli_train_call *call)
{
    if (!fits_method(call) || !fits_model(call) || !settle_length(call) || !check_pairs(call)) {
        return false;
    }
    if (shoal_train_check(&call->job) != SHOAL_OK) {
        cli_complain(&cli_train, CLI_MISUSED, "%s", shoal_last_error_text());
        return false;
    }
    return true;
}

static cli_exit print_config(const cli_train_call *call)
{
    cli_train_call shown = *call;
    fill_in(&shown);
    if (call->job.method == SHOAL_METHOD_A3C) { /* each follows from the other, and a file with both is an error */
        *(call->job.a3c.env_steps != 0 ? &shown.job.epochs : &shown.job.a3c.env_steps) = 0;
    }
    return cli_config_print(&cli_train_table, call->config, &shown, &call->given, 1u << call->job.method);
}

bool cli_settings_of(const shoal_train_options *job, cli_settings *out_settings)
{
    cli_train_call call = {.job = *job};
    char buffer[CLI_VALUE];
    fill_in(&call);
    *out_settings = (cli_settings){.count = 0};
    for (size_t i = 0; i < OPTIONS; i++) {
        const char *text = cli_option_text(&options[i], &call, buffer);
        if (text == NULL || options[i].at >= sizeof call.job ||
            !cli_option_is_setting(&cli_train_table, i, 1u << job->method)) {
            continue;
        }
        cli_setting setting = {.name = options[i].name, .text = strdup(text)};
        if (setting.text == NULL) {
            cli_settings_free(out_settings);
            return false;
        }
        out_settings->all[out_settings->count++] = setting;
    }
    return true;
}

void cli_settings_free(cli_settings *settings)
{
    for (size_t i = 0; i < settings->count; i++) {
        free(settings->all[i].text);
    }
    settings->count = 0;
}

bool cli_train_read(int argc, char **argv, cli_train_call *call, cli_exit *out_status)
{
    int first;
    *call = (cli_train_call){.job = {.seed = SEED}};
    if (!cli_table_read(&cli_train_table, argc, argv, call, &call->given, &first, out_status)) {
        return false;
    }
    if (call->config != NULL && !cli_config_read(&cli_train_table, call->config, call, &call->given, out_status)) {
        return false;
    }
    if (!cli_train_resume(call, out_status)) {
        return false;
    }
    *out_status = CLI_MISUSED;
    if (!check(call)) {
        return false;
    }
    if (call->print_config) {
        *out_status = print_config(call);
        return false;
    }
    if (call->job.epochs == 0 && call->job.method == SHOAL_METHOD_HOGWILD) {
        call->job.epochs = EPOCHS_HOGWILD;
    }
    return true;
}

void cli_train_free(cli_train_call *call)
{
    cli_given_free(&call->given);
}
