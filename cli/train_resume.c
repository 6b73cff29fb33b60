#include "cli/train_resume.h"

#include <stdlib.h>
#include <string.h>

static bool one_of(const char *name, const char *const *names)
{
    for (; *names != NULL; names++) {
        if (strcmp(name, *names) == 0) {
            return true;
        }
    }
    return false;
}

bool cli_option_may_change(const char *option)
{
    static const char *const names[] = {"epochs",     "env-steps", "until",     "start", "restarts", "device", "mps",
                                        "cuda-share", "tf32",      "allow-nan", "save",  "resume",   NULL};
    return one_of(option, names);
}

/* A checkpoint has underscores instead of dashes, and two other names: its "epochs" are the finished ones. */
const char *cli_checkpoint_text(const shoal_tensors *file, const char *option)
{
    char name[64];
    snprintf(name, sizeof name, "%s", option);
    for (char *c = name; *c != 0; c++) {
        *c = *c == '-' ? '_' : *c;
    }
    bool epochs = strcmp(option, "epochs") == 0, rounds = strcmp(option, "rounds-per-epoch") == 0;
    return shoal_tensors_text(file, epochs ? "epochs_wanted" : rounds ? "rounds" : name);
}

typedef struct reading {
    cli_train_call *call;
    const shoal_tensors *file;
    char missing[400]; /* "--epochs and --lr": what neither the file nor the call gives */
    bool failed;       /* and the reason is printed */
} reading;

/* Checks whether the job needs this setting, which the file does not have. */
static bool needed(const cli_train_call *call, const cli_option *o)
{
    static const char *const optional[] = {"lr-decay", NULL}; /* a file that is older than this option has no decay */
    if (strcmp(o->name, "epochs") == 0 || strcmp(o->name, "env-steps") == 0) {
        return call->job.epochs == 0;
    }
    bool no_set = call->job.method == SHOAL_METHOD_A3C && strcmp(o->name, "data") == 0;
    return !cli_option_may_change(o->name) && !one_of(o->name, optional) && !no_set;
}

static void note_missing(reading *r, const char *name)
{
    size_t at = strlen(r->missing);
    snprintf(r->missing + at, sizeof r->missing - at, "%s--%s", at > 0 ? ", " : "", name);
}

/* Sets the field of a setting to a copy of text, which call->given owns. */
static void take(reading *r, size_t i, const char *text)
{
    char wanted[CLI_WANTED];
    const cli_option *o = &cli_train_table.options[i];
    char *copy = strdup(text);
    free(r->call->given.kept[i]);
    r->call->given.kept[i] = copy;
    if (copy == NULL || !cli_option_set(o, copy, r->call, wanted)) {
        cli_complain(&cli_train, CLI_FAILED, "%s: %s is '%.60s'; %s%s", r->call->job.resume, o->name, text,
                     copy != NULL ? "expected " : "no memory", copy != NULL ? wanted : "");
        r->failed = true;
    }
    cli_given_note(&cli_train_table, &r->call->given, i, CLI_IN_CHECKPOINT, 0);
}

/* Sets all settings that are not given. The length of an a3c job is its steps; its epochs follow from them. */
static void take_settings(reading *r)
{
    unsigned method = 1u << r->call->job.method;
    bool a3c = r->call->job.method == SHOAL_METHOD_A3C;
    for (size_t i = 0; i < cli_train_table.count && !r->failed; i++) {
        const cli_option *o = &cli_train_table.options[i];
        bool setting = o->at < sizeof r->call->job && cli_option_is_setting(&cli_train_table, i, method);
        if (!setting || r->call->given.origin[i] != CLI_DEFAULT || (a3c && strcmp(o->name, "epochs") == 0)) {
            continue;
        }
        const char *text = cli_checkpoint_text(r->file, o->name);
        if (text != NULL) {
            take(r, i, text);
        } else if (needed(r->call, o)) {
            note_missing(r, o->name);
        }
    }
}

/* A job that goes on on the CPU leaves TF32 behind, unless the call asks for it. */
static void leave_tf32(cli_train_call *call)
{
    size_t i = (size_t)(cli_table_find(&cli_train_table, "tf32") - cli_train_table.options);
    if (call->job.device != SHOAL_CUDA && call->given.origin[i] == CLI_IN_CHECKPOINT) {
        call->job.tf32 = false;
        call->given.origin[i] = CLI_DEFAULT;
    }
}

/* Sets the method. Returns false if the call has another method than the file. */
static bool take_method(reading *r)
{
    size_t i = (size_t)(cli_table_find(&cli_train_table, "method") - cli_train_table.options);
    const char *there = shoal_tensors_text(r->file, "method");
    if (r->call->given.origin[i] == CLI_DEFAULT) {
        take(r, i, there);
        return !r->failed;
    }
    return strcmp(there, shoal_train_method_name(r->call->job.method)) == 0;
}

/* Says why the settings of the file cannot be used. Only --print-config needs it: a job that runs fails in the library,
 * and its log and report have the reason too. */
static void say_unusable(reading *r, bool checkpoint)
{
    const char *path = r->call->job.resume;
    r->failed = true;
    if (r->file == NULL) {
        cli_complain(&cli_train, CLI_FAILED, "%s", shoal_last_error_text());
    } else if (!checkpoint) {
        cli_complain(&cli_train, CLI_FAILED, "%s: not a checkpoint of a training job", path);
    } else {
        cli_complain(&cli_train, CLI_FAILED, "%s: method is %s in the checkpoint, but %s was given", path,
                     shoal_tensors_text(r->file, "method"), shoal_train_method_name(r->call->job.method));
    }
}

bool cli_train_resume(cli_train_call *call, cli_exit *out_status)
{
    const char *path = call->job.resume;
    shoal_tensors *file = path != NULL ? shoal_safetensors_read(path) : NULL;
    reading r = {.call = call, .file = file};
    bool checkpoint =
        file != NULL && shoal_tensors_text(file, "checkpoint") != NULL && shoal_tensors_text(file, "method") != NULL;
    if (checkpoint && take_method(&r)) {
        take_settings(&r);
        leave_tf32(call);
    } else if (path != NULL && call->print_config && !r.failed) {
        say_unusable(&r, checkpoint);
    }
    shoal_tensors_destroy(file);
    if (!r.failed && r.missing[0] != 0) {
        cli_complain(&cli_train, CLI_MISUSED,
                     "%s was written by an earlier version or another program and lacks some settings; give %s", path,
                     r.missing);
    }
    *out_status = r.failed ? CLI_FAILED : CLI_MISUSED;
    call->job.save = call->job.save != NULL ? call->job.save : path;
    return !r.failed && r.missing[0] == 0;
}
