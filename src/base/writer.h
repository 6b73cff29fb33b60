/* Writes a text into a buffer of the caller. What does not fit is only counted, as snprintf does. */
#ifndef SH_BASE_WRITER_H
#define SH_BASE_WRITER_H

#include <stddef.h>

typedef struct sh_writer {
    char *buffer; /* may be NULL if capacity is 0 */
    size_t capacity;
    size_t length; /* of the whole text, with what did not fit */
} sh_writer;

void sh_writer_put(sh_writer *w, const char *text);
void sh_writer_put_bytes(sh_writer *w, const char *text, size_t size);

/* Writes the NUL. If the text does not fit, it ends before a UTF-8 character that would be cut. Returns the length of
 * the whole text. */
size_t sh_writer_end(const sh_writer *w);

#endif
