#include "data/inflate.h"

#include <stdlib.h>
#include <zlib.h>

#define CHUNK 65536
#define GZIP_ONLY (15 + 16) /* zlib's window bits: 32 KiB, with a gzip header */

struct sh_inflate {
    sh_source *source;
    z_stream stream;
    bool ended; /* a member has ended, and no other has started */
    uint64_t unpacked;
    uint8_t chunk[CHUNK];
};

sh_inflate *sh_inflate_create(sh_source *s)
{
    sh_inflate *z = malloc(sizeof *z);
    if (z != NULL) {
        z->source = s;
        z->stream = (z_stream){.next_in = NULL};
        z->ended = false;
        z->unpacked = 0;
    }
    if (z == NULL || inflateInit2(&z->stream, GZIP_ONLY) != Z_OK) {
        free(z);
        (void)sh_fail(SHOAL_ENOMEM, "%s: no memory to unpack it", s->name);
        return NULL;
    }
    return z;
}

void sh_inflate_destroy(sh_inflate *z)
{
    if (z != NULL) {
        (void)inflateEnd(&z->stream);
        free(z);
    }
}

uint64_t sh_inflate_at(const sh_inflate *z)
{
    return z->unpacked;
}

/* Returns the position of the next byte in the packed file. */
static uint64_t packed_at(const sh_inflate *z)
{
    return z->source->at - z->stream.avail_in;
}

/* Makes sure that there are packed bytes. Sets out_end if there are none left. */
static shoal_err refill(sh_inflate *z, bool *out_end)
{
    size_t got = 0;
    *out_end = false;
    if (z->stream.avail_in == 0) {
        SH_TRY(sh_source_read_some(z->source, z->chunk, sizeof z->chunk, &got));
        z->stream.next_in = z->chunk;
        z->stream.avail_in = (uInt)got;
        *out_end = got == 0;
    }
    return SHOAL_OK;
}

/* Calls inflate once, for the room at stream.next_out. */
static shoal_err step(sh_inflate *z)
{
    if (z->ended) {
        z->ended = false;
        (void)inflateReset(&z->stream);
    }
    int result = inflate(&z->stream, Z_NO_FLUSH);
    switch (result) {
    case Z_STREAM_END: z->ended = true; return SHOAL_OK;
    case Z_OK:
    case Z_BUF_ERROR: return SHOAL_OK;
    case Z_MEM_ERROR: return sh_fail(SHOAL_ENOMEM, "%s: no memory to unpack it", z->source->name);
    default:
        return sh_source_fail(z->source, SHOAL_ECORRUPT, packed_at(z), "gzip: %s",
                              z->stream.msg != NULL ? z->stream.msg : "broken");
    }
}

shoal_err sh_inflate_read(sh_inflate *z, void *to, size_t size, size_t *out_got)
{
    size_t got = 0;
    while (got < size) {
        bool end;
        SH_TRY(refill(z, &end));
        if (end && z->ended) {
            break;
        }
        size_t room = size - got < (size_t)1 << 30 ? size - got : (size_t)1 << 30;
        z->stream.next_out = (uint8_t *)to + got;
        z->stream.avail_out = (uInt)room;
        SH_TRY(step(z));
        if (end && z->stream.avail_out == room && !z->ended) {
            return sh_source_fail(z->source, SHOAL_ECORRUPT, packed_at(z), "the file ends in the middle of gzip data");
        }
        got += room - z->stream.avail_out;
    }
    z->unpacked += got;
    *out_got = got;
    return SHOAL_OK;
}
