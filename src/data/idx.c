/* Reads IDX, the format of MNIST: two zero bytes, a type, the number of dims, the sizes (32 bits each), the elements.
 * All numbers are big-endian, and the file is often gzipped. */
#include "data/inflate.h"

#include "base/error.h"

#include <shoal/file.h>

/* The file's bytes, unpacked if it is gzipped. */
typedef struct stream {
    sh_source *source;
    sh_inflate *gzip; /* NULL: it is not gzipped */
} stream;

static uint64_t stream_at(const stream *in)
{
    return in->gzip != NULL ? sh_inflate_at(in->gzip) : in->source->at;
}

#define stream_fail(in, err, byte, format, ...)                                                                        \
    sh_source_fail((in)->source, err, byte, "%s" format, (in)->gzip != NULL ? "(unpacked) " : "", ##__VA_ARGS__)

static shoal_err stream_read(stream *in, void *to, size_t size)
{
    size_t got;
    if (in->gzip == NULL) {
        return sh_source_read(in->source, to, size);
    }
    SH_TRY(sh_inflate_read(in->gzip, to, size, &got));
    if (got < size) {
        return stream_fail(in, SHOAL_ECORRUPT, stream_at(in), "the data end, but %zu more bytes are needed",
                           size - got);
    }
    return SHOAL_OK;
}

/* Checks that nothing follows. */
static shoal_err stream_end(stream *in)
{
    uint8_t more;
    size_t got;
    uint64_t at = stream_at(in);
    SH_TRY(in->gzip != NULL ? sh_inflate_read(in->gzip, &more, 1, &got)
                            : sh_source_read_some(in->source, &more, 1, &got));
    if (got > 0) {
        return stream_fail(in, SHOAL_ECORRUPT, at, "bytes follow after the last element");
    }
    return SHOAL_OK;
}

/* Returns an upper bound for the bytes that can still come. */
static uint64_t stream_most(const stream *in)
{
    uint64_t most;
    if (in->gzip == NULL) {
        return sh_source_left(in->source);
    }
    return __builtin_mul_overflow(in->source->size, SH_INFLATE_MOST, &most) ? UINT64_MAX : most;
}

static shoal_err read_dtype(stream *in, uint8_t code, shoal_dtype *out_dtype)
{
    switch (code) {
    case 0x08: *out_dtype = SHOAL_U8; return SHOAL_OK;
    case 0x0c: *out_dtype = SHOAL_I32; return SHOAL_OK;
    case 0x0d: *out_dtype = SHOAL_F32; return SHOAL_OK;
    case 0x0e: *out_dtype = SHOAL_F64; return SHOAL_OK;
    case 0x09:
    case 0x0b:
        return stream_fail(in, SHOAL_ETYPE, 2,
                           "elements of type 0x%02x (%s) are not supported: u8, i32, f32 and f64 are", code,
                           code == 0x09 ? "i8" : "i16");
    default: return stream_fail(in, SHOAL_ECORRUPT, 2, "0x%02x is not a type of IDX", code);
    }
}

static shoal_err read_shape(stream *in, shoal_dtype dtype, int ndim, int64_t *shape, uint64_t *out_bytes)
{
    uint8_t sizes[SHOAL_MAX_DIMS * 4];
    if (ndim < 1 || ndim > SHOAL_MAX_DIMS) {
        return stream_fail(in, SHOAL_ECORRUPT, 3, "%d dims: IDX files must have 1 to %d", ndim, SHOAL_MAX_DIMS);
    }
    SH_TRY(stream_read(in, sizes, (size_t)ndim * 4));
    for (int d = 0; d < ndim; d++) {
        const uint8_t *b = sizes + 4 * d;
        shape[d] = (int64_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
    }
    if (!sh_bytes_of(dtype, ndim, shape, out_bytes) || *out_bytes > stream_most(in)) {
        return stream_fail(in, SHOAL_ECORRUPT, 4, "the sizes need more bytes than the file can hold (%llu)",
                           (unsigned long long)stream_most(in));
    }
    return SHOAL_OK;
}

static shoal_err read_tensor(stream *in, sh_maker make, shoal_tensor **out_tensor)
{
    uint8_t head[4];
    int64_t shape[SHOAL_MAX_DIMS];
    shoal_dtype dtype = SHOAL_U8;
    uint64_t bytes = 0;
    shoal_err err = stream_read(in, head, sizeof head);
    if (err == SHOAL_OK && (head[0] != 0 || head[1] != 0)) {
        err = stream_fail(in, SHOAL_ECORRUPT, 0, "not an IDX file: it begins with %02x %02x", head[0], head[1]);
    }
    if (err == SHOAL_OK) {
        err = read_dtype(in, head[2], &dtype);
    }
    if (err == SHOAL_OK) {
        err = read_shape(in, dtype, head[3], shape, &bytes);
    }
    if (err != SHOAL_OK) {
        return err;
    }
    shoal_tensor *t = make(dtype, head[3], shape);
    err = t != NULL ? stream_read(in, shoal_tensor_data(t), (size_t)bytes) : shoal_last_error();
    if (err == SHOAL_OK) {
        err = stream_end(in);
    }
    if (err != SHOAL_OK) {
        shoal_tensor_release(t);
        return err;
    }
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    sh_swap_bytes(shoal_tensor_data(t), shoal_tensor_count(t), shoal_dtype_size(dtype));
#endif
    *out_tensor = t;
    return SHOAL_OK;
}

/* Checks for gzip's magic bytes: they decide, not the file's name. */
static shoal_err is_gzip(sh_source *s, bool *out_gzip)
{
    uint8_t magic[2] = {0};
    size_t got;
    shoal_err err = sh_source_read_some(s, magic, sizeof magic, &got);
    s->at = 0;
    *out_gzip = err == SHOAL_OK && magic[0] == 0x1f && magic[1] == 0x8b;
    return err;
}

shoal_tensor *sh_idx_read(sh_source *s, sh_maker make)
{
    stream in = {.source = s};
    bool gzip;
    shoal_tensor *t = NULL;
    if (is_gzip(s, &gzip) != SHOAL_OK || (gzip && (in.gzip = sh_inflate_create(s)) == NULL)) {
        return NULL;
    }
    (void)!read_tensor(&in, make, &t);
    sh_inflate_destroy(in.gzip);
    return t;
}

shoal_tensor *shoal_idx_read(const char *path)
{
    SH_GIVEN_OR_NULL(path);
    sh_source s;
    shoal_tensor *t = sh_source_open(&s, path) == SHOAL_OK ? sh_idx_read(&s, shoal_empty) : NULL;
    sh_source_close(&s);
    return t;
}
