/* Feeds any bytes to the IDX reader. It must return a tensor whose every byte can be read, or an error that names the
 * file and the byte offset. */
#include "tests/fuzz/fuzz_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    fuzz_tensor(sh_idx_read, bytes, size);
    return 0;
}
