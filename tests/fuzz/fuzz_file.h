/* Shared by the fuzz targets of files: the bytes are a file called "input". */
#ifndef FUZZ_FUZZ_FILE_H
#define FUZZ_FUZZ_FILE_H

#include "data/source.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

/* A reader has refused the file: its error names the file and the byte offset. */
static inline void require_file_error(void)
{
    shoal_err err = shoal_last_error();
    require(err == SHOAL_ECORRUPT || err == SHOAL_ETYPE || err == SHOAL_ENOMEM);
    require(err == SHOAL_ENOMEM || strncmp(shoal_last_error_text(), "input: byte ", 12) == 0);
}

/* Reads a file of one tensor, and every byte of the tensor. */
static inline void fuzz_tensor(shoal_tensor *(*read)(sh_source *s, sh_maker make), const uint8_t *bytes, size_t size)
{
    sh_source s;
    sh_source_memory(&s, "input", bytes, size);
    shoal_tensor *t = read(&s, shoal_empty);
    if (t == NULL) {
        require_file_error();
        return;
    }
    size_t length = (size_t)shoal_tensor_count(t) * shoal_dtype_size(shoal_tensor_dtype(t));
    uint8_t *copy = malloc(length + 1);
    require(copy != NULL && shoal_tensor_read(t, copy, length) == SHOAL_OK);
    free(copy);
    shoal_tensor_release(t);
}

#endif
