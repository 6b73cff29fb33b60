/* Feeds any bytes to the safetensors reader. It must return a set whose tensors can be read and found by name, or an
 * error that names the file and the byte offset. Writing the set and reading it again must give the same set. */
#include "tests/fuzz/fuzz_file.h"

#include <shoal/file.h>

#include <stdio.h>
#include <unistd.h>

static void compare(const shoal_tensors *a, const shoal_tensors *b)
{
    require(shoal_tensors_count(a) == shoal_tensors_count(b));
    for (size_t i = 0; i < shoal_tensors_count(a); i++) {
        require(shoal_tensor_equal(shoal_tensors_at(a, i), shoal_tensors_find(b, shoal_tensors_name(a, i))));
    }
}

static void write_and_read(const shoal_tensors *set)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/shm/fuzz_safetensors.%d", (int)getpid());
    shoal_err err = shoal_safetensors_write(path, set);
    require(err == SHOAL_OK || err == SHOAL_EINVAL);
    if (err == SHOAL_OK) {
        shoal_tensors *again = shoal_safetensors_read(path);
        require(again != NULL);
        compare(set, again);
        shoal_tensors_destroy(again);
        unlink(path);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    sh_source s;
    sh_source_memory(&s, "input", bytes, size);
    shoal_tensors *set = sh_safetensors_read(&s);
    if (set == NULL) {
        require_file_error();
        return 0;
    }
    compare(set, set);
    write_and_read(set);
    shoal_tensors_destroy(set);
    return 0;
}
