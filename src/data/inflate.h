/* Unpacks gzip while reading. Several members in a row are one stream, as gzip defines it. */
#ifndef SH_DATA_INFLATE_H
#define SH_DATA_INFLATE_H

#include "data/source.h"

/* Deflate expands one byte to at most this many: a file cannot hold more than that, whatever its header claims. */
#define SH_INFLATE_MOST 1032

typedef struct sh_inflate sh_inflate;

/* Starts to unpack. s must be at the first byte and outlive the result. Returns NULL and sets SHOAL_ENOMEM if there is
 * no memory. */
sh_inflate *sh_inflate_create(sh_source *s);
void sh_inflate_destroy(sh_inflate *z);

/* Reads the next bytes, at most size. Returns fewer only at the end of the stream, after checking its checksum.
 * SHOAL_ECORRUPT names the byte of the packed file. */
shoal_err sh_inflate_read(sh_inflate *z, void *to, size_t size, size_t *out_got);

/* Returns the number of bytes unpacked so far. */
uint64_t sh_inflate_at(const sh_inflate *z);

#endif
