/* Gzip, unpacked on the way. Several members one after the other are one stream, as gzip has it. */
#ifndef SH_DATA_INFLATE_H
#define SH_DATA_INFLATE_H

#include "data/source.h"

/* Deflate makes at most this many bytes of one: what a header promises beyond that cannot be in the file. */
#define SH_INFLATE_MOST 1032

typedef struct sh_inflate sh_inflate;

/* s must stand at the first byte and stay. NULL: SHOAL_ENOMEM. */
sh_inflate *sh_inflate_create(sh_source *s);
void sh_inflate_destroy(sh_inflate *z);

/* The next bytes, at most size, fewer only at the end of the stream, whose checksum is then right. SHOAL_ECORRUPT names the byte
 * of the packed file. */
shoal_err sh_inflate_read(sh_inflate *z, void *to, size_t size, size_t *out_got);

/* Bytes unpacked so far. */
uint64_t sh_inflate_at(const sh_inflate *z);

#endif
