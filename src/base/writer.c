#include "base/writer.h"

#include <stdint.h>
#include <string.h>

void sh_writer_put_bytes(sh_writer *w, const char *text, size_t size)
{
    if (w->length < w->capacity) {
        size_t room = w->capacity - w->length;
        memcpy(w->buffer + w->length, text, size < room ? size : room);
    }
    w->length += size;
}

void sh_writer_put(sh_writer *w, const char *text)
{
    sh_writer_put_bytes(w, text, strlen(text));
}

/* Returns where the text ends if at most `end` bytes of it are kept. */
static size_t before_a_cut_character(const char *text, size_t end)
{
    size_t start = end;
    while (start > 0 && ((uint8_t)text[start - 1] & 0xc0) == 0x80) {
        start--;
    }
    uint8_t lead = start > 0 ? (uint8_t)text[start - 1] : 0;
    size_t wanted = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0; /* bytes after the first one */
    return end - start < wanted ? start - 1 : end;
}

size_t sh_writer_end(const sh_writer *w)
{
    if (w->length < w->capacity) {
        w->buffer[w->length] = 0;
    } else if (w->capacity > 0) {
        w->buffer[before_a_cut_character(w->buffer, w->capacity - 1)] = 0;
    }
    return w->length;
}
