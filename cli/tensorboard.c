#include "cli/tensorboard.h"

#include "cli/train_text.h"

#include <errno.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Limits the samples of the curves: a minimum time between two, and a maximum number while the time doubles. A day
 * gives some thousands, not a million. */
#define SAMPLE_SECONDS 0.25
#define SAMPLE_SHARE (1.0 / 1024)
#define FLUSH_SECONDS 1.0

/* ---- crc32c (Castagnoli), reflected, as RFC 3720 has it ---- */

static uint32_t crc32c(const unsigned char *bytes, size_t size)
{
    static uint32_t table[256];
    if (table[1] == 0) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t x = i;
            for (int bit = 0; bit < 8; bit++) {
                x = x >> 1 ^ (x & 1 ? 0x82f63b78u : 0);
            }
            table[i] = x;
        }
    }
    uint32_t crc = ~0u;
    for (size_t i = 0; i < size; i++) {
        crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
    }
    return ~crc;
}

/* Masks a checksum, as records do, so that a checksum over data with checksums in it is still good. */
static uint32_t masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ---- protocol buffers, as much of them as an Event needs ---- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

/* Fields by number: Event, Summary, Summary.Value. */
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5 };
enum { SUMMARY_VALUE = 1 };
enum { VALUE_TAG = 1, VALUE_SIMPLE = 2 };

/* Large enough for one event: a tag is a few words. */
typedef struct message {
    unsigned char bytes[256];
    size_t size;
} message;

static void put_little(message *m, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        m->bytes[m->size++] = (unsigned char)(x >> 8 * i);
    }
}

static void put_varint(message *m, uint64_t x)
{
    for (; x >= 0x80; x >>= 7) {
        m->bytes[m->size++] = (unsigned char)(x | 0x80);
    }
    m->bytes[m->size++] = (unsigned char)x;
}

static void put_key(message *m, unsigned field, unsigned type)
{
    put_varint(m, field << 3 | type);
}

static void put_bytes(message *m, unsigned field, const void *bytes, size_t size)
{
    put_key(m, field, BYTES);
    put_varint(m, size);
    memcpy(m->bytes + m->size, bytes, size);
    m->size += size;
}

static void put_double(message *m, unsigned field, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_key(m, field, FIXED64);
    put_little(m, bits, 8);
}

static void put_float(message *m, unsigned field, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    put_key(m, field, FIXED32);
    put_little(m, bits, 4);
}

/* ---- records ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Writes a record: length, its checksum, data, its checksum. ferror reports a failure later. */
static void write_record(FILE *file, const message *data)
{
    message head = {.size = 0}, tail = {.size = 0};
    put_little(&head, data->size, 8);
    put_little(&head, masked(crc32c(head.bytes, 8)), 4);
    put_little(&tail, masked(crc32c(data->bytes, data->size)), 4);
    fwrite(head.bytes, 1, head.size, file);
    fwrite(data->bytes, 1, data->size, file);
    fwrite(tail.bytes, 1, tail.size, file);
}

static void write_version(FILE *file)
{
    static const char version[] = "brain.Event:2";
    message event = {.size = 0};
    put_double(&event, EVENT_WALL_TIME, now());
    put_bytes(&event, EVENT_FILE_VERSION, version, sizeof version - 1);
    write_record(file, &event);
}

static void write_scalar(const cli_tensorboard *t, const char *tag, int64_t step, double x)
{
    message value = {.size = 0}, summary = {.size = 0}, event = {.size = 0};
    if (!isfinite(x)) {
        return;
    }
    put_bytes(&value, VALUE_TAG, tag, strlen(tag));
    put_float(&value, VALUE_SIMPLE, (float)x);
    put_bytes(&summary, SUMMARY_VALUE, value.bytes, value.size);
    put_double(&event, EVENT_WALL_TIME, now());
    put_key(&event, EVENT_STEP, VARINT);
    put_varint(&event, (uint64_t)step);
    put_bytes(&event, EVENT_SUMMARY, summary.bytes, summary.size);
    write_record(t->file, &event);
}

/* ---- curves ---- */

static void keep_pace(cli_tensorboard *t, const shoal_train_event *event)
{
    for (int i = 0; i < event->workers_count && i < CLI_TENSORBOARD_WORKERS; i++) {
        t->paced_images[i] = event->workers[i].images;
    }
    t->paced_at = event->so_far.train_seconds;
}

static void write_workers(cli_tensorboard *t, const cli_terms *terms, const shoal_train_event *event)
{
    double passed = event->so_far.train_seconds - t->paced_at;
    char tag[96];
    for (int i = 0; i < event->workers_count && i < CLI_TENSORBOARD_WORKERS; i++) {
        const shoal_train_worker *w = &event->workers[i];
        snprintf(tag, sizeof tag, "workers/%d/loss", i);
        write_scalar(t, tag, event->so_far.images, w->loss);
        snprintf(tag, sizeof tag, "workers/%d/%s", i, terms->rate_tag);
        write_scalar(t, tag, event->so_far.images,
                     passed > 0 ? (double)(w->images - t->paced_images[i]) / passed : NAN);
    }
    keep_pace(t, event);
}

static void write_job(const cli_tensorboard *t, const shoal_train_result *r, double loss)
{
    write_scalar(t, "train/loss", r->images, loss);
    write_scalar(t, cli_terms_of(t->method)->rate_tag, r->images, r->images_per_second);
}

/* Writes the scalars that only a finished epoch has. Its number comes last: a file that a kill cut off before it lacks
 * the epoch. */
static void write_epoch(const cli_tensorboard *t, const shoal_train_result *r)
{
    const cli_terms *terms = cli_terms_of(t->method);
    write_scalar(t, "test/loss", r->images, r->test_loss);
    write_scalar(t, terms->score_tag, r->images, cli_score(t->method, r));
    write_scalar(t, "deaths", r->images, (double)r->deaths);
    write_scalar(t, terms->epoch, r->images, (double)r->epochs);
}

static void write_curves(cli_tensorboard *t, const shoal_train_event *event)
{
    write_job(t, &event->so_far, event->loss);
    write_workers(t, cli_terms_of(t->method), event);
    if (event->kind == SHOAL_TRAIN_EPOCH) {
        write_epoch(t, &event->so_far);
    }
}

/* Writes the past epochs that the folder lacks: a job that was killed may have saved an epoch before its events were
 * written. */
static void write_past(const cli_tensorboard *t, const shoal_train_past *past)
{
    char path[PATH_MAX];
    bool *there = calloc((size_t)past->count + 1, sizeof *there);
    memcpy(path, t->path, sizeof path);
    if (there != NULL) {
        cli_tensorboard_find(dirname(path), t->method, past, there);
    }
    for (int64_t i = 0; there != NULL && i < past->count; i++) {
        if (!there[i]) {
            write_job(t, &past->epochs[i].so_far, past->epochs[i].loss);
            write_epoch(t, &past->epochs[i].so_far);
        }
    }
    free(there);
}

bool cli_tensorboard_event(cli_tensorboard *events, const shoal_train_event *event)
{
    double seconds = event->so_far.seconds;
    bool epoch = event->kind == SHOAL_TRAIN_EPOCH;
    if (events->file == NULL) {
        return true;
    }
    if (!events->begun) {
        keep_pace(events, event); /* a resumed job has images from before */
        events->begun = true;
    }
    if (event->past != NULL) {
        write_past(events, event->past);
    }
    if (epoch || (event->kind == SHOAL_TRAIN_TICK && seconds >= events->next_sample)) {
        write_curves(events, event);
        double pause = seconds * SAMPLE_SHARE;
        events->next_sample = seconds + (pause > SAMPLE_SECONDS ? pause : SAMPLE_SECONDS);
    }
    if (epoch || seconds >= events->next_flush) {
        events->next_flush = seconds + FLUSH_SECONDS;
        fflush(events->file);
    }
    return !ferror(events->file);
}

/* ---- the file ---- */

static bool make_folders(const char *folder)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST) {
            return false;
        }
        *slash = '/';
    }
    return mkdir(path, 0777) == 0 || errno == EEXIST;
}

bool cli_tensorboard_open(cli_tensorboard *events, shoal_train_method method, const char *folder)
{
    char host[256] = "";
    *events = (cli_tensorboard){.method = method};
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == 0 || strchr(host, '/') != NULL) {
        snprintf(host, sizeof host, "localhost");
    }
    int length = snprintf(events->path, sizeof events->path, "%s/" CLI_TENSORBOARD_NAME "%010lld.%s.%ld", folder,
                          (long long)time(NULL), host, (long)getpid());
    if (length >= (int)sizeof events->path) {
        errno = ENAMETOOLONG;
        return false;
    }
    events->file = make_folders(folder) ? fopen(events->path, "wxe") : NULL;
    if (events->file == NULL) {
        return false;
    }
    write_version(events->file);
    if (fflush(events->file) == 0) {
        return true;
    }
    int why = errno;
    cli_tensorboard_close(events);
    errno = why;
    return false;
}

bool cli_tensorboard_close(cli_tensorboard *events)
{
    bool open = events->file != NULL, good = !open || fclose(events->file) == 0;
    if (open && !events->begun) {
        unlink(events->path);
    }
    events->file = NULL;
    return good;
}
