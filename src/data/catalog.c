#include "data/catalog.h"

#include "base/error.h"

#include "data/inflate.h"
#include "os/file.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define TRAIN_IMAGES "train-images-idx3-ubyte"
#define TRAIN_LABELS "train-labels-idx1-ubyte"
#define TEST_IMAGES "t10k-images-idx3-ubyte"
#define TEST_LABELS "t10k-labels-idx1-ubyte"

const sh_catalog_entry sh_catalog[SH_CATALOG] = {
    [SH_MNIST] =
        {
            .name = "mnist",
            .origin = "it comes with Shoal's sources, in data/mnist",
            .files = {{TRAIN_IMAGES, 47040016, 0xe9f4d8b3},
                      {TRAIN_LABELS, 60008, 0xe0cb4ad2},
                      {TEST_IMAGES, 7840016, 0x91373bdf},
                      {TEST_LABELS, 10008, 0x4ab9eff9}},
            .mean = 0.1307f,
            .deviation = 0.3081f,
        },
    [SH_FASHION_MNIST] =
        {
            .name = "fashion-mnist",
            .origin = "Debian's package dataset-fashion-mnist has it, in /usr/share/datasets/fashion-mnist",
            .files = {{TRAIN_IMAGES, 47040016, 0xb4f29f28},
                      {TRAIN_LABELS, 60008, 0x741a4657},
                      {TEST_IMAGES, 7840016, 0x678fe0b1},
                      {TEST_LABELS, 10008, 0x80142c1f}},
            .mean = 0.2860f,
            .deviation = 0.3530f,
        },
};

/* ---- finding ---- */

static bool join(char out[PATH_MAX], const char *a, const char *b, const char *c)
{
    int n = snprintf(out, PATH_MAX, "%s/%s%s", a, b, c);
    return n > 0 && n < PATH_MAX;
}

/* Checks whether the folder has the training images of the entry. */
static bool is_folder_of(const sh_catalog_entry *e, const char *folder)
{
    char path[PATH_MAX];
    return (join(path, folder, e->files[0].name, "") && access(path, F_OK) == 0) ||
           (join(path, folder, e->files[0].name, ".gz") && access(path, F_OK) == 0);
}

/* The folder in SHOAL_DATA holds all data sets. If it has the name of this one, it is taken as this data set's
 * folder. */
static void own_place(const sh_catalog_entry *e, bool itself, char out[PATH_MAX])
{
    const char *own = getenv("SHOAL_DATA");
    if (own == NULL || own[0] == 0) {
        return;
    }
    const char *slash = strrchr(own, '/');
    if (!itself) {
        (void)!join(out, own, e->name, "");
    } else if (strcmp(slash != NULL ? slash + 1 : own, e->name) == 0) {
        snprintf(out, PATH_MAX, "%s", own);
    }
}

/* Returns a folder next to the program, or next to the program's folder (above = 1). */
static void place_beside_program(const sh_catalog_entry *e, int above, const char *folder, char out[PATH_MAX])
{
    char program[PATH_MAX - 64];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    for (int i = 0; i <= above; i++) {
        char *slash = strrchr(program, '/');
        if (slash == NULL) {
            return;
        }
        *slash = 0;
    }
    snprintf(out, PATH_MAX, "%s/%s/%s", program, folder, e->name);
}

/* Returns where `make install` puts the data: share/shoal of the prefix, above the library's folder, which may have
 * several parts (lib/x86_64-linux-gnu). The library looks up its own path, so a prefix can be moved. If it is linked
 * into a program, it finds the program, as place_beside_program does. */
static void place_above_library(const sh_catalog_entry *e, int above, char out[PATH_MAX])
{
    char library[PATH_MAX];
    Dl_info info;
    if (dladdr((const void *)&sh_catalog, &info) == 0 || info.dli_fname == NULL ||
        realpath(info.dli_fname, library) == NULL) {
        return;
    }
    for (int i = 0; i < above + 2; i++) { /* its name, then its folders */
        char *slash = strrchr(library, '/');
        if (slash == NULL) {
            return;
        }
        *slash = 0;
    }
    if ((size_t)snprintf(out, PATH_MAX, "%s/share/shoal/%s", library, e->name) >= PATH_MAX) {
        out[0] = 0;
    }
}

/* Returns the i-th place to look in, from 0; false after the last. An empty string means that this place does not exist
 * here. */
static bool candidate(const sh_catalog_entry *e, unsigned i, char out[PATH_MAX])
{
    enum { OWN, OWN_ITSELF, HERE, BESIDE, ABOVE = BESIDE + 3, SYSTEM = ABOVE + 2, PLACES = SYSTEM + 3 };
    static const char *const beside[] = {"data", "data", "share/shoal"};
    static const char *const system[] = {"/usr/local/share/shoal", "/usr/share/shoal", "/usr/share/datasets"};
    out[0] = 0;
    if (i < HERE) {
        own_place(e, i == OWN_ITSELF, out);
    } else if (i == HERE) {
        (void)!join(out, "data", e->name, "");
    } else if (i < ABOVE) {
        place_beside_program(e, i > BESIDE, beside[i - BESIDE], out);
    } else if (i < SYSTEM) {
        place_above_library(e, (int)(i - ABOVE), out);
    } else if (i < PLACES) {
        (void)!join(out, system[i - SYSTEM], e->name, "");
    }
    return i < PLACES;
}

enum {
    LOOKED = 340, /* bytes of an error text for the places; the text has room for about 100 more */
};

/* Adds a place to the list for an error text, unless it is there already. Writes "…" for what does not fit. */
static void name_place(char looked[LOOKED], const char *place)
{
    static const char more[] = ", …";
    const char *known = strstr(looked, place);
    size_t used = strlen(looked), length = strlen(place);
    if ((known != NULL && (known == looked || known[-1] == ' ') && (known[length] == ',' || known[length] == 0)) ||
        (used >= sizeof more - 1 && strcmp(looked + used - (sizeof more - 1), more) == 0)) {
        return;
    }
    if (used + 2 + length + sizeof more > LOOKED) {
        memcpy(looked + used, more, sizeof more); /* there is always room for this */
        return;
    }
    if (used > 0) {
        memcpy(looked + used, ", ", 2);
        used += 2;
    }
    memcpy(looked + used, place, length + 1);
}

shoal_err sh_catalog_where(const sh_catalog_entry *e, char folder[PATH_MAX])
{
    char looked[LOOKED] = "";
    char place[PATH_MAX];
    for (unsigned i = 0; candidate(e, i, place); i++) {
        if (place[0] != 0 && is_folder_of(e, place)) {
            memcpy(folder, place, PATH_MAX);
            return SHOAL_OK;
        }
        if (place[0] != 0) {
            name_place(looked, place);
        }
    }
    return sh_fail(SHOAL_ENOENT,
                   "cannot find the data set %s: set SHOAL_DATA to the folder that holds it; looked in %s", e->name,
                   looked);
}

shoal_err sh_catalog_open(sh_source *s, const char *folder, const char *name, char path[PATH_MAX])
{
    if (!join(path, folder, name, "")) {
        return sh_fail(SHOAL_EINVAL, "%.200s…: the path is too long", folder);
    }
    shoal_err err = sh_source_open(s, path);
    if (err == SHOAL_ENOENT && join(path, folder, name, ".gz")) {
        err = sh_source_open(s, path);
    }
    return err;
}

static const sh_catalog_entry *find(const char *name)
{
    for (int i = 0; name != NULL && i < SH_CATALOG; i++) {
        if (strcmp(sh_catalog[i].name, name) == 0) {
            return &sh_catalog[i];
        }
    }
    (void)sh_fail(SHOAL_ENOENT, "unknown data set '%s': mnist and fashion-mnist are known", name != NULL ? name : "");
    return NULL;
}

const char *shoal_data_name(size_t i)
{
    return i < SH_CATALOG ? sh_catalog[i].name : NULL;
}

const char *shoal_data_origin(const char *name)
{
    if (!name) {
        return NULL;
    }
    const sh_catalog_entry *e = find(name);
    return e != NULL ? e->origin : NULL;
}

shoal_err shoal_data_scale(const char *name, double *out_mean, double *out_deviation)
{
    SH_NEED(name);
    SH_NEED(out_mean);
    SH_NEED(out_deviation);
    const sh_catalog_entry *e = find(name);
    if (e == NULL) {
        return SHOAL_ENOENT;
    }
    *out_mean = (double)e->mean;
    *out_deviation = (double)e->deviation;
    return SHOAL_OK;
}

shoal_err shoal_data_where(const char *name, char *folder, size_t capacity)
{
    SH_NEED(name);
    SH_NEED(folder);
    char place[PATH_MAX];
    const sh_catalog_entry *e = find(name);
    SH_TRY(e != NULL ? sh_catalog_where(e, place) : SHOAL_ENOENT);
    if ((size_t)snprintf(folder, capacity, "%s", place) >= capacity) {
        return sh_fail(SHOAL_EINVAL, "a buffer of %zu bytes is too small for %s", capacity, place);
    }
    return SHOAL_OK;
}

/* ---- checking ---- */

/* Computes the size and CRC32 of a whole source, unpacked. */
static shoal_err sum_up(sh_source *s, sh_inflate *z, uint64_t most, uint64_t *out_size, uint32_t *out_crc)
{
    enum { CHUNK = 1 << 16 };
    uint8_t *chunk = malloc(CHUNK);
    uint64_t size = 0;
    uLong crc = crc32(0, NULL, 0);
    shoal_err err = chunk != NULL ? SHOAL_OK : sh_fail(SHOAL_ENOMEM, "no memory to read %s", s->name);
    for (size_t got = CHUNK; err == SHOAL_OK && got > 0 && size <= most;) {
        err = z != NULL ? sh_inflate_read(z, chunk, CHUNK, &got) : sh_source_read_some(s, chunk, CHUNK, &got);
        if (err == SHOAL_OK) {
            crc = crc32(crc, chunk, (uInt)got);
            size += got;
        }
    }
    free(chunk);
    *out_size = size;
    *out_crc = (uint32_t)crc;
    return err;
}

static shoal_err verify_file(const sh_catalog_file *f, const char *folder)
{
    char path[PATH_MAX];
    sh_source s;
    uint64_t size = 0;
    uint32_t crc = 0;
    SH_TRY(sh_catalog_open(&s, folder, f->name, path));
    size_t length = strlen(path);
    bool packed = length > 3 && strcmp(path + length - 3, ".gz") == 0;
    sh_inflate *z = packed ? sh_inflate_create(&s) : NULL;
    shoal_err err = packed && z == NULL ? shoal_last_error() : sum_up(&s, z, f->size, &size, &crc);
    if (err == SHOAL_OK && size != f->size) {
        err = sh_source_fail(&s, SHOAL_ECORRUPT, size < f->size ? size : f->size,
                             "it unpacks to %s bytes than the expected %" PRIu64, size < f->size ? "fewer" : "more",
                             f->size);
    } else if (err == SHOAL_OK && crc != f->crc) {
        err = sh_fail(SHOAL_ECORRUPT, "%s: the CRC32 of its %" PRIu64 " bytes is %08x, not %08x", path, size, crc,
                      f->crc);
    }
    sh_inflate_destroy(z);
    sh_source_close(&s);
    return err;
}

shoal_err shoal_data_verify(const char *name, const char *folder)
{
    SH_NEED(name);
    char place[PATH_MAX];
    const sh_catalog_entry *e = find(name);
    SH_TRY(e == NULL ? SHOAL_ENOENT : folder == NULL ? sh_catalog_where(e, place) : SHOAL_OK);
    for (int i = 0; i < SH_CATALOG_FILES; i++) {
        SH_TRY(verify_file(&e->files[i], folder != NULL ? folder : place));
    }
    return SHOAL_OK;
}

/* ---- copying ---- */

static shoal_err copy_bytes(sh_source *s, sh_atomic_file *to)
{
    enum { CHUNK = 1 << 16 };
    uint8_t *chunk = malloc(CHUNK);
    shoal_err err = chunk != NULL ? SHOAL_OK : sh_fail(SHOAL_ENOMEM, "no memory to copy %s", s->name);
    for (size_t got = CHUNK; err == SHOAL_OK && got > 0;) {
        err = sh_source_read_some(s, chunk, CHUNK, &got);
        if (err == SHOAL_OK) {
            err = sh_atomic_file_write(to, chunk, got);
        }
    }
    free(chunk);
    return err;
}

static shoal_err copy_file(const char *name, const char *from, const char *to)
{
    char path[PATH_MAX], target[PATH_MAX];
    sh_source s;
    sh_atomic_file file;
    SH_TRY(sh_catalog_open(&s, from, name, path));
    shoal_err err = join(target, to, strrchr(path, '/') + 1, "")
                        ? sh_atomic_file_begin(&file, target)
                        : sh_fail(SHOAL_EINVAL, "%.200s…: the path is too long", to);
    if (err == SHOAL_OK) {
        err = copy_bytes(&s, &file);
        if (err == SHOAL_OK) {
            err = sh_atomic_file_commit(&file);
        } else {
            sh_atomic_file_abort(&file);
        }
    }
    sh_source_close(&s);
    return err;
}

/* Creates the folder and those above it. */
static shoal_err make_folders(const char *path)
{
    char part[PATH_MAX];
    if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part) {
        return sh_fail(SHOAL_EINVAL, "%.200s…: the path is too long", path);
    }
    for (char *p = part + 1;; p++) {
        char c = *p;
        if (c == '/' || c == 0) {
            *p = 0;
            if (mkdir(part, 0777) != 0 && errno != EEXIST) {
                return sh_file_fail(part, "make folder");
            }
            *p = c;
        }
        if (c == 0) {
            return SHOAL_OK;
        }
    }
}

shoal_err shoal_data_copy(const char *name, const char *from, const char *to)
{
    SH_NEED(name);
    SH_NEED(to);
    const sh_catalog_entry *e = find(name);
    if (e == NULL || from == NULL || to == NULL || to[0] == 0) {
        return e == NULL ? SHOAL_ENOENT : sh_fail(SHOAL_EINVAL, "shoal_data_copy: a folder is NULL");
    }
    SH_TRY(shoal_data_verify(name, from));
    SH_TRY(make_folders(to));
    for (int i = 0; i < SH_CATALOG_FILES; i++) {
        SH_TRY(copy_file(e->files[i].name, from, to));
    }
    return SHOAL_OK;
}
