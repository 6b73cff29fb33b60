/* The data sets that are known by name: their files, and where to look for them. */
#ifndef SH_DATA_CATALOG_H
#define SH_DATA_CATALOG_H

#include "data/source.h"

#include <limits.h>

#include <shoal/data.h>

#define SH_CATALOG_FILES 4

typedef enum sh_catalog_name {
    SH_MNIST,
    SH_FASHION_MNIST,
    SH_CATALOG,
} sh_catalog_name;

typedef struct sh_catalog_file {
    const char *name; /* without .gz */
    uint64_t size;    /* unpacked */
    uint32_t crc;     /* CRC32, unpacked */
} sh_catalog_file;

typedef struct sh_catalog_entry {
    const char *name;
    const char *origin;
    sh_catalog_file files[SH_CATALOG_FILES]; /* training images and labels, test images and labels */
    float mean, deviation;
} sh_catalog_entry;

extern const sh_catalog_entry sh_catalog[SH_CATALOG];

/* Finds the folder of an entry. Errors: SHOAL_ENOENT, with the places where it looked. */
shoal_err sh_catalog_where(const sh_catalog_entry *e, char folder[PATH_MAX]);

/* Opens a file in a folder, plain or with .gz. path holds its name and must live as long as the source. */
shoal_err sh_catalog_open(sh_source *s, const char *folder, const char *name, char path[PATH_MAX]);

#endif
