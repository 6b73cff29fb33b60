#include "data/source.h"

#include "os/file.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

shoal_err sh_source_open(sh_source *s, const char *path)
{
    *s = (sh_source){.name = path, .fd = -1};
    if (path == NULL) {
        return sh_fail(SHOAL_EINVAL, "the file name is NULL");
    }
    return sh_file_open(path, &s->fd, &s->size);
}

void sh_source_memory(sh_source *s, const char *name, const void *bytes, size_t size)
{
    *s = (sh_source){.name = name, .bytes = bytes, .fd = -1, .size = size};
}

void sh_source_close(sh_source *s)
{
    if (s->fd >= 0) {
        close(s->fd);
    }
    s->fd = -1;
}

shoal_err sh_source_read_some(sh_source *s, void *to, size_t size, size_t *out_got)
{
    uint64_t left = sh_source_left(s);
    size_t got = left < size ? (size_t)left : size;
    if (s->fd >= 0) {
        SH_TRY(sh_file_read_at(s->fd, s->name, s->at, to, got, &got));
    } else if (got > 0) {
        memcpy(to, s->bytes + s->at, got);
    }
    s->at += got;
    *out_got = got;
    return SHOAL_OK;
}

shoal_err sh_source_read(sh_source *s, void *to, size_t size)
{
    size_t got;
    uint64_t first = s->at;
    SH_TRY(sh_source_read_some(s, to, size, &got));
    if (got < size) {
        return sh_source_fail(s, SHOAL_ECORRUPT, s->at, "the file ends, but %zu bytes from byte %llu on are needed",
                              size, (unsigned long long)first);
    }
    return SHOAL_OK;
}

shoal_err sh_source_fail(const sh_source *s, shoal_err err, uint64_t byte, const char *format, ...)
{
    char text[384];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return sh_fail(err, "%s: byte %llu: %s", s->name, (unsigned long long)byte, text);
}

bool sh_bytes_of(shoal_dtype dtype, int ndim, const int64_t *shape, uint64_t *out_bytes)
{
    int64_t bytes = (int64_t)shoal_dtype_size(dtype);
    bool empty = false;
    for (int d = 0; d < ndim; d++) {
        empty = empty || shape[d] == 0;
        if (shape[d] < 0 || __builtin_mul_overflow(bytes, shape[d] > 0 ? shape[d] : 1, &bytes)) {
            return false;
        }
    }
    *out_bytes = empty ? 0 : (uint64_t)bytes;
    return true;
}

void sh_swap_bytes(void *data, int64_t count, size_t size)
{
    uint16_t *two = data;
    uint32_t *four = data;
    uint64_t *eight = data;
    for (int64_t i = 0; i < count && size > 1; i++) {
        switch (size) {
        case 2: two[i] = __builtin_bswap16(two[i]); break;
        case 4: four[i] = __builtin_bswap32(four[i]); break;
        default: eight[i] = __builtin_bswap64(eight[i]); break;
        }
    }
}

shoal_err sh_source_check_bools(const sh_source *s, const uint8_t *data, int64_t count, uint64_t first)
{
    for (int64_t i = 0; i < count; i++) {
        if (data[i] > 1) {
            return sh_source_fail(s, SHOAL_ECORRUPT, first + (uint64_t)i, "%d is not a bool: a bool is 0 or 1",
                                  data[i]);
        }
    }
    return SHOAL_OK;
}
