/* Finds the epochs that the event files of a folder already have, so that a resumed job writes each epoch once. */
#include "cli/tensorboard.h"

#include "cli/train_text.h"

#include <dirent.h>
#include <string.h>

enum { RECORD_MOST = 256, HEAD = 12, TAIL = 4 }; /* bytes: no event of ours is larger; length and checksum; checksum */

static uint64_t little(const unsigned char *bytes, int count)
{
    uint64_t x = 0;
    for (int i = count; i-- > 0;) {
        x = x << 8 | bytes[i];
    }
    return x;
}

/* Reads the step and value of an event with one scalar of this tag, as cli_tensorboard_event writes it: wall time,
 * step, summary, value, tag, number. Returns false if it is another event. */
static bool read_scalar(const unsigned char *data, size_t size, const char *tag, int64_t *out_step, float *out_value)
{
    size_t at = 10, length = strlen(tag); /* after the key and the 8 bytes of the time, and the key of the step */
    uint64_t step = 0;
    for (int shift = 0; at < size && shift < 64; shift += 7) {
        step |= (uint64_t)(data[at] & 0x7f) << shift;
        if (data[at++] < 0x80) {
            break;
        }
    }
    at += 4; /* the keys and lengths of summary and value, each one byte because a tag is short */
    if (at + 2 + length + 5 != size || data[at + 1] != length || memcmp(data + at + 2, tag, length) != 0) {
        return false;
    }
    uint32_t bits = (uint32_t)little(data + size - 4, 4);
    memcpy(out_value, &bits, sizeof bits);
    *out_step = (int64_t)step;
    return true;
}

static void mark(const shoal_train_past *past, int64_t step, float value, bool *out_there)
{
    for (int64_t i = 0; i < past->count; i++) {
        const shoal_train_result *r = &past->epochs[i].so_far;
        out_there[i] = out_there[i] || (r->images == step && (float)r->epochs == value);
    }
}

/* Reads a file up to its end, or to a record that is not ours or that a kill cut off. */
static void look_into(FILE *file, const char *tag, const shoal_train_past *past, bool *out_there)
{
    unsigned char head[HEAD], data[RECORD_MOST + TAIL];
    while (fread(head, 1, HEAD, file) == HEAD) {
        uint64_t size = little(head, 8);
        int64_t step;
        float value;
        if (size > RECORD_MOST || fread(data, 1, size + TAIL, file) != size + TAIL) {
            return;
        }
        if (read_scalar(data, size, tag, &step, &value)) {
            mark(past, step, value, out_there);
        }
    }
}

void cli_tensorboard_find(const char *folder, shoal_train_method method, const shoal_train_past *past, bool *out_there)
{
    char path[PATH_MAX];
    DIR *all = opendir(folder);
    for (struct dirent *entry; all != NULL && (entry = readdir(all)) != NULL;) {
        bool ours = strncmp(entry->d_name, CLI_TENSORBOARD_NAME, strlen(CLI_TENSORBOARD_NAME)) == 0;
        bool fits = ours && snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < (int)sizeof path;
        FILE *file = fits ? fopen(path, "re") : NULL;
        if (file != NULL) {
            look_into(file, cli_terms_of(method)->epoch, past, out_there);
            fclose(file);
        }
    }
    if (all != NULL) {
        closedir(all);
    }
}
