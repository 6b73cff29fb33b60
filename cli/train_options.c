#include "cli/train_options.h"

#include "cli/config.h"
#include "cli/train_resume.h"

#include <shoal/env.h>

#include <stdlib.h>
#include <string.h>

#define EPOCHS_HOGWILD 3 /* 12 passes of four workers: some 99 % on MNIST */
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
    return i < count ? shoal_model_names()[i] : i == count ? "actor-critic" : NULL; /* which a3c makes to measure */
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

/* ---- the table ---- */

enum { RUN, METHODS, DATA, OUTPUT, SURVIVE, CONFIG };

static const char *const groups[] = {
    [RUN] = "what to run",
    [METHODS] = "methods",
    [DATA] = "data and model",
    [OUTPUT] = "output",
    [SURVIVE] = "surviving",
    [CONFIG] = "configuration",
    NULL,
};

#define AT(field) CLI_FIELD(cli_train_call, field)
#define OF(method) .of = 1u << SHOAL_METHOD_##method
#define OF_SAMPLES .of = ~(1u << SHOAL_METHOD_A3C) /* methods that pass over a set */
#define MOST 1000000

/* One line an option: its group, name, value, bounds or words, field, help, and what is special about it. */
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
    WORD(RUN, "method", "NAME", method_word, job.method, "how processes train together", ),
    WHOLE(RUN, "workers", "N", 1, SHOAL_TRAIN_WORKERS, job.workers, "processes", ),
    WHOLE(RUN, "epochs", "E", 1, MOST, job.epochs,
          "passes over the data; hogwild: of each worker; fedavg: rounds; a3c: 10,000 steps each", ),
    NUMBER(RUN, "until", "X", 0, 1e15L, CLI_ABOVE, job.until,
           "ends after an epoch whose test accuracy is at least this; a3c: when the mean return of 100 episodes is", ),
    WORD(RUN, "start", "HOW", start_word, job.start, "how processes are started", .first = SHOAL_START_SPAWN),
    WORD(RUN, "device", "NAME", device_word, device, "where tensors are", ),

    FLAG(METHODS, "shard", job.shard, "each worker passes over its part of the set", OF(HOGWILD)),
    FLAG(METHODS, "shared-state", job.shared_state, "one momentum for all workers", OF(HOGWILD)),
    WORD(METHODS, "average", "WHAT", average_word, job.average, "what is averaged", OF(SYNC)),
    WHOLE(METHODS, "rounds-per-epoch", "N", 1, MOST, job.rounds, "means of parameters in an epoch", OF(SYNC)),
    WHOLE(METHODS, "steps", "K", 1, MOST, job.steps, "batches between two means", OF(LOCAL)),
    WHOLE(METHODS, "rounds", "N", 1, MOST, job.epochs, "the same as --epochs", OF(FEDAVG)),
    WHOLE(METHODS, "clients", "N", 1, 1000000000, job.clients, "who have the samples", OF(FEDAVG)),
    WORD(METHODS, "split", "HOW", split_word, job.split, "who has which: any, or two shards by label", OF(FEDAVG)),
    NUMBER(METHODS, "fraction", "C", 0, 1, CLI_ABOVE, job.fraction, "of the clients that train in a round", OF(FEDAVG)),
    WHOLE(METHODS, "local-epochs", "E", 1, MOST, job.local_epochs, "passes of a client in a round", OF(FEDAVG)),
    NUMBER(METHODS, "server-momentum", "X", 0, 1, CLI_BELOW, job.server_momentum, "from round to round", OF(FEDAVG)),

    WORD(METHODS, "env", "NAME", env_word, job.env, "what the actors learn in", OF(A3C)),
    WHOLE(METHODS, "env-steps", "N", 1, 10000000000, job.env_steps, "at most so many steps, of all actors together",
          OF(A3C)),
    WHOLE(METHODS, "rollout", "N", 1, 100000, job.rollout, "steps between two changes by one actor", OF(A3C)),
    NUMBER(METHODS, "gamma", "X", 0, 1, CLI_CLOSED, job.gamma, "how much of the next step's return counts",
           .none = true, OF(A3C)),
    NUMBER(METHODS, "entropy", "X", 0, 1e6L, CLI_CLOSED, job.entropy, "weight of the policy's entropy", .none = true,
           OF(A3C)),

    WORD(DATA, "model", "NAME", model_word, job.model, "what is trained", ),
    PATH(DATA, "data", "NAME", CLI_FOLDER, job.data, "a folder of IDX files, or a name", .words = shoal_data_name),
    NUMBER(DATA, "lr", "X", 0, 1e6L, CLI_ABOVE | CLI_BELOW, job.lr, "learning rate", ),
    NUMBER(DATA, "lr-decay", "X", 0, 1, CLI_ABOVE, job.lr_decay,
           "what the learning rate is multiplied by after each epoch", OF_SAMPLES),
    NUMBER(DATA, "momentum", "X", 0, 1, CLI_BELOW, job.momentum, "of the steps; 0: none", .none = true, OF_SAMPLES),
    WHOLE(DATA, "batch", "N", 1, MOST, job.batch, "samples in a batch", OF_SAMPLES),
    WHOLE(DATA, "seed", "N", 0, INT64_MAX, job.seed, "of initial values, orders and dropout", ),

    PATH(OUTPUT, "json", "FILE", CLI_FILE, show.json, "one JSON object a line; - for standard output", ),
    PATH(OUTPUT, "report", "FILE", CLI_FILE, show.report,
         "an HTML page with curves, events, options and machine; - for standard output", ),
    PATH(OUTPUT, "tensorboard", "DIR", CLI_FOLDER, show.tensorboard, "event files for TensorBoard", ),
    FLAG(OUTPUT, "quiet", show.quiet, "no lines for people", ),

    PATH(SURVIVE, "save", "FILE", CLI_FILE, job.save,
         "a checkpoint, and the weights as safetensors: at the beginning, after each epoch, at the end", ),
    FLAG(SURVIVE, "overwrite", overwrite,
         "--save may replace any file; else only a checkpoint of this job (the same settings, not more epochs), which "
         "it begins anew",
         .here_only = true),
    PATH(SURVIVE, "resume", "FILE", CLI_FILE, job.resume,
         "goes on from such a file, with its settings, and saves to it unless --save names another; --epochs, "
         "--env-steps, "
         "--until, --start, --restarts, --allow-nan and the output may differ", ),
    FLAG(SURVIVE, "allow-nan", job.allow_nan,
         "goes on when a loss is NaN or infinite, which else ends the job with an error", ),
    WHOLE(SURVIVE, "restarts", "N", 0, MOST, job.restarts, "how often one worker that dies is started again",
          .none = true),

    PATH(CONFIG, "config", "FILE", CLI_FILE, config, "reads options from a file; the command line wins",
         .here_only = true),
    FLAG(CONFIG, "print-config", print_config, "prints what is in force, as --config reads it, and ends",
         .here_only = true),
};

#define OPTIONS (sizeof options / sizeof *options)
_Static_assert(OPTIONS <= CLI_OPTIONS, "cli_given has too few places");

/* ---- help ---- */

static const char before[] =
    "Trains one model by several processes, and tests it. Without options: the MNIST network by\n"
    "Hogwild with four workers, 3 epochs each.\n";

static const char after[] =
    "\nCtrl-C, SIGTERM and SIGHUP stop at a step, save, and end with status 130, 143 or 129. A flag that\n"
    "a file has set is taken back by --no-NAME.\n\n"
    "examples:\n"
    "  shoal train --epochs 1\n"
    "  shoal train --method sync --workers 4 --epochs 12 --lr 0.04 --save mnist.safetensors\n"
    "  shoal train --resume mnist.safetensors --epochs 24\n"
    "  shoal train --method local --steps 8 --report local.html --json log.jsonl --quiet\n"
    "  shoal train --method sync --lr 0.04 --print-config >sync.ini\n"
    "  shoal train --config sync.ini --seed 2\n"
    "  shoal train --method a3c --workers 4\n";

static const struct {
    const char *name, *text;
} method_texts[] = {
    {"hogwild", "workers share parameters without locks, each passes over the whole set"},
    {"serial", "one worker"},
    {"sync", "each passes over its part, then the mean of all parameters is taken"},
    {"local", "as sync, the mean taken every --steps batches"},
    {"a3c", "actors learn in environments, and share parameters and RMSprop's averages"},
    {"fedavg", "clients own the samples; in a round some train, and the weighted mean is taken"},
};

/* What each method does, below --method. */
static void help_methods(const cli_option *o, void (*line)(void *context, const char *text), void *context)
{
    char text[200];
    if (o->words != method_word) {
        return;
    }
    for (size_t i = 0; i < sizeof method_texts / sizeof *method_texts; i++) {
        shoal_train_method method;
        if (shoal_train_method_find(method_texts[i].name, &method) == SHOAL_OK) {
            snprintf(text, sizeof text, "%s: %s", method_texts[i].name, method_texts[i].text);
            line(context, text);
        }
    }
}

static const char *method_name(int bit)
{
    return shoal_train_method_name((shoal_train_method)bit);
}

static unsigned method_chosen(const void *call)
{
    return 1u << ((const cli_train_call *)call)->job.method;
}

/* What is in force where nothing, or not all, is asked for. */
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

/* "64; fedavg 10": what most methods have, the first of them where it is even, and those that have another. */
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
            at += (size_t)snprintf(buffer + at, capacity - at, "; %s %s", method_name(i), text[i]);
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
    .more = help_methods,
};

/* ---- reading ---- */

/* What belongs to another method was meant otherwise. (cli_config_read says so of a file.) */
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

/* How long a3c goes on is said in epochs or in steps. The command line's word wins; two at one place contradict each other. */
static bool settle_length(cli_train_call *call)
{
    size_t epochs = number_of("epochs"), steps = number_of("env-steps");
    cli_origin *origin = call->given.origin;
    if (call->job.method != SHOAL_METHOD_A3C || origin[epochs] == CLI_DEFAULT || origin[steps] == CLI_DEFAULT) {
        return true;
    }
    if (origin[epochs] == origin[steps]) {
        bool file = origin[steps] == CLI_IN_FILE;
        cli_complain(&cli_train, CLI_MISUSED, "%s%sepochs and env-steps both say how long a3c goes on; one is wanted",
                     file ? call->config : "", file ? ": " : "");
        return false;
    }
    if (origin[steps] == CLI_GIVEN) {
        call->job.epochs = 0;
        origin[epochs] = CLI_DEFAULT;
    } else {
        call->job.env_steps = 0;
        origin[steps] = CLI_DEFAULT;
    }
    return true;
}

static bool is_output(const char *path)
{
    return path != NULL && strcmp(path, "-") == 0;
}

/* What two options ask for, and cannot both have. */
static bool check_pairs(const cli_train_call *call)
{
    if (is_output(call->show.json) && is_output(call->show.report)) {
        cli_complain(&cli_train, CLI_MISUSED,
                     "--json - and --report - both write to standard output; give one of them a file");
        return false;
    }
    if (call->job.method == SHOAL_METHOD_SYNC && call->job.average == SHOAL_AVERAGE_GRADIENTS && call->job.rounds > 1) {
        cli_complain(&cli_train, CLI_MISUSED,
                     "--rounds-per-epoch %lld is for --average parameters; gradients are averaged after each batch",
                     (long long)call->job.rounds);
        return false;
    }
    return true;
}

static bool check(cli_train_call *call)
{
    if (!fits_method(call) || !settle_length(call) || !check_pairs(call)) {
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
    if (call->job.method ==
        SHOAL_METHOD_A3C) { /* one of the two follows from the other, and would be an error beside it */
        *(call->job.env_steps != 0 ? &shown.job.epochs : &shown.job.env_steps) = 0;
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
    if (call->device == CLI_CUDA) {
        *out_status = cli_complain(&cli_train, CLI_FAILED, "this build has no CUDA; --device cpu is what there is");
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
