/* Where a reader's bytes come from: a file, or memory. They are read in order, and every error names the file and the
 * byte. */
#ifndef SH_DATA_SOURCE_H
#define SH_DATA_SOURCE_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

#include <shoal/tensor.h>

typedef struct sh_source {
    const char *name;     /* the caller owns it */
    const uint8_t *bytes; /* memory, or NULL */
    int fd;               /* of a file, if bytes is NULL */
    uint64_t size;        /* of the whole source */
    uint64_t at;          /* position of the next byte */
} sh_source;

shoal_err sh_source_open(sh_source *s, const char *path);
void sh_source_memory(sh_source *s, const char *name, const void *bytes, size_t size);
void sh_source_close(sh_source *s);

/* Reads the next size bytes. Returns SHOAL_ECORRUPT if there are fewer. */
shoal_err sh_source_read(sh_source *s, void *to, size_t size);

/* Reads the next bytes, at most size; 0 at the end. */
shoal_err sh_source_read_some(sh_source *s, void *to, size_t size, size_t *out_got);

static inline uint64_t sh_source_left(const sh_source *s)
{
    return s->size - s->at;
}

/* Sets the error "NAME: byte N: text" and returns err. */
__attribute__((format(printf, 4, 5))) shoal_err sh_source_fail(const sh_source *s, shoal_err err, uint64_t byte,
                                                               const char *format, ...);

/* The readers behind file.h, for any source. make is shoal_empty or shoal_empty_shared. */
typedef shoal_tensor *(*sh_maker)(shoal_dtype dtype, int ndim, const int64_t *shape);
shoal_tensor *sh_idx_read(sh_source *s, sh_maker make);
shoal_tensor *sh_npy_read(sh_source *s, sh_maker make);
struct shoal_tensors;
struct shoal_tensors *sh_safetensors_read(sh_source *s);

/* Computes the bytes of a shape. Returns false if that overflows, or would if sizes of 0 were 1: strides must fit
 * too. */
bool sh_bytes_of(shoal_dtype dtype, int ndim, const int64_t *shape, uint64_t *out_bytes);

/* Reverses the bytes of each of count elements of size bytes, in place. */
void sh_swap_bytes(void *data, int64_t count, size_t size);

/* Checks that every byte is 0 or 1. first is the position of the bytes in the source. Errors: SHOAL_ECORRUPT. */
shoal_err sh_source_check_bools(const sh_source *s, const uint8_t *data, int64_t count, uint64_t first);

#endif
