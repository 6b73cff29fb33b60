/* The public calls about cards. */
#include "device/cuda_capture.h"

#include "base/error.h"
#include "device/cuda_share.h"

#include <stdio.h>

shoal_err shoal_cuda_count(int *out_count)
{
    SH_NEED(out_count);
    return sh_cuda_count(out_count);
}

shoal_err shoal_cuda_info_get(int index, shoal_cuda_info *out_info)
{
    SH_NEED(out_info);
    int count = 0;
    shoal_err err = sh_cuda_count(&count);
    if (err == SHOAL_OK && (index < 0 || index >= count)) {
        err = sh_fail(SHOAL_EINVAL, "no GPU %d: this process sees %d, numbered from 0", index, count);
    }
    sh_cuda_card card = {.index = index};
    if (err == SHOAL_OK) {
        err = sh_cuda_describe(&card);
    }
    if (err == SHOAL_OK) {
        *out_info = (shoal_cuda_info){.memory = card.total, .driver = sh_cu.version};
        snprintf(out_info->name, sizeof out_info->name, "%s", card.name);
        (void)sh_cuda_uuid_text(card.uuid, out_info->uuid);
    }
    return err;
}

shoal_err shoal_cuda_memory_get(shoal_cuda_memory *out_memory)
{
    SH_NEED(out_memory);
    sh_cuda_memory_numbers n;
    shoal_err err = sh_cuda_get() ? sh_cuda_memory_numbers_now(&n) : shoal_last_error();
    if (err == SHOAL_OK) {
        *out_memory = (shoal_cuda_memory){.asked = n.asked, .held = n.held, .free = n.free, .total = n.total};
    }
    return err;
}

shoal_err shoal_cuda_wait(void)
{
    return sh_cuda_is_open() ? sh_device_cuda.wait() : SHOAL_OK;
}

size_t shoal_cuda_trim(void)
{
    if (!sh_cuda_is_ours() || !sh_cuda_is_well()) {
        return 0;
    }
    size_t bytes = 0;
    sh_cleanup_begin();
    if (sh_cuda_check() == SHOAL_OK) {
        sh_cuda_order_poll();
        sh_cuda_scratch_give_back();
        bytes = sh_cuda_memory_trim();
    }
    sh_cleanup_end();
    return bytes;
}
