/* Feeds any bytes to the IDX reader. It must return a tensor whose every byte can be read, or an error that names the
 * file and the byte offset. */
#include "data/source.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(int condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    sh_source s;
    sh_source_memory(&s, "input", bytes, size);
    shoal_tensor *t = sh_idx_read(&s, shoal_empty);
    if (t == NULL) {
        shoal_err err = shoal_last_error();
        require(err == SHOAL_ECORRUPT || err == SHOAL_ETYPE || err == SHOAL_ENOMEM);
        require(err == SHOAL_ENOMEM || strncmp(shoal_last_error_text(), "input: byte ", 12) == 0);
        return 0;
    }
    size_t length = (size_t)shoal_tensor_count(t) * shoal_dtype_size(shoal_tensor_dtype(t));
    uint8_t *copy = malloc(length + 1);
    require(copy != NULL && shoal_tensor_read(t, copy, length) == SHOAL_OK);
    free(copy);
    shoal_tensor_release(t);
    return 0;
}
