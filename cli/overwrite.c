#include "cli/overwrite.h"

#include "cli/train_resume.h"
#include "cli/train_text.h"

#include <shoal/file.h>

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Checks whether two texts of a setting have the same meaning. Two paths of a data folder do if they lead to the same
 * one. */
static bool same_value(const char *setting, const char *a, const char *b)
{
    struct stat p, q;
    return strcmp(a, b) == 0 || (strcmp(setting, "data") == 0 && !cli_is_data_name(a) && !cli_is_data_name(b) &&
                                 stat(a, &p) == 0 && stat(b, &q) == 0 && p.st_dev == q.st_dev && p.st_ino == q.st_ino);
}

/* Checks whether a checkpoint is of another job, and writes the difference to why. */
static bool differs(const shoal_tensors *there, const cli_settings *settings, int64_t epochs, char *why, size_t size)
{
    const char *finished = shoal_tensors_text(there, "epochs");
    for (size_t i = 0; i < settings->count; i++) {
        const cli_setting *s = &settings->all[i];
        const char *text = !cli_option_may_change(s->name) ? cli_checkpoint_text(there, s->name) : NULL;
        if (text != NULL && !same_value(s->name, text, s->text)) {
            snprintf(why, size, "holds another job: %s is %.60s there and %.60s here", s->name, text, s->text);
            return true;
        }
    }
    if (finished != NULL && strtoll(finished, NULL, 10) > epochs) {
        snprintf(why, size, "holds a longer job: %.20s epochs are finished there, but this job has %lld", finished,
                 (long long)epochs);
        return true;
    }
    return false;
}

/* Checks whether a checkpoint is of a job that was interrupted: some of its epochs are finished, but not all, and it
 * did not reach its goal. */
static bool interrupted(const shoal_tensors *there, long long *out_finished, long long *out_wanted)
{
    const char *finished = shoal_tensors_text(there, "epochs"), *wanted = cli_checkpoint_text(there, "epochs");
    *out_finished = finished != NULL ? strtoll(finished, NULL, 10) : 0;
    *out_wanted = wanted != NULL ? strtoll(wanted, NULL, 10) : 0;
    return *out_finished > 0 && *out_finished < *out_wanted && shoal_tensors_text(there, "reached_epoch") == NULL;
}

bool cli_overwrite_allowed(const char *path, const cli_settings *settings, int64_t epochs)
{
    struct stat at;
    char why[300] = "is not a checkpoint";
    if (stat(path, &at) != 0 || (S_ISREG(at.st_mode) && at.st_size == 0)) {
        return true; /* nothing is lost */
    }
    shoal_tensors *there = S_ISREG(at.st_mode) ? shoal_safetensors_read(path) : NULL;
    bool checkpoint = there != NULL && shoal_tensors_text(there, "checkpoint") != NULL;
    bool allowed = checkpoint && !differs(there, settings, epochs, why, sizeof why);
    long long finished = 0, wanted = 0;
    bool lost = allowed && interrupted(there, &finished, &wanted);
    shoal_tensors_destroy(there);
    if (lost) {
        cli_complain(
            &cli_train, CLI_MISUSED,
            "--save %s: it holds %lld of %lld epochs of this job; --resume %s continues it, --overwrite starts again",
            path, finished, wanted, path);
    } else if (!allowed) {
        cli_complain(&cli_train, CLI_MISUSED, "--save %s: the file %s; %s--overwrite replaces it", path, why,
                     checkpoint ? "--resume continues it, " : "");
    }
    return allowed && !lost;
}
