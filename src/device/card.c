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
    int count = 0;
    sh_cuda_card card = {.index = index};
    SH_NEED(out_info);
    SH_TRY(sh_cuda_count(&count));
    if (index < 0 || index >= count) {
        return sh_fail(SHOAL_EINVAL, "no GPU %d: this process sees %d, numbered from 0", index, count);
    }
    SH_TRY(sh_cuda_describe(&card));
    *out_info = (shoal_cuda_info){.memory = card.total, .driver = sh_cu.version};
    snprintf(out_info->name, sizeof out_info->name, "%s", card.name);
    (void)sh_cuda_uuid_text(card.uuid, out_info->uuid);
    return SHOAL_OK;
}

shoal_err shoal_cuda_memory_get(shoal_cuda_memory *out_memory)
{
    sh_cuda_memory_numbers n;
    SH_NEED(out_memory);
    if (!sh_cuda_get()) {
        return shoal_last_error();
    }
    SH_TRY(sh_cuda_memory_numbers_now(&n));
    *out_memory = (shoal_cuda_memory){.asked = n.asked, .held = n.held, .free = n.free, .total = n.total};
    return SHOAL_OK;
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

/* ---- streams of other libraries ---- */

static shoal_err check(sh_cu_stream other)
{
    int status = SH_CU_CAPTURE_NONE;
    if (!sh_cuda_get()) {
        return shoal_last_error();
    }
    SH_TRY(sh_cuda_capture_refuse("ordering work with a stream of another library"));
    SH_TRY(sh_cuda_follow());
    int result = sh_cu.cuStreamIsCapturing(other, &status);
    if (status != SH_CU_CAPTURE_NONE || (result >= SH_CU_CAPTURE_FIRST && result <= SH_CU_CAPTURE_LAST)) {
        return sh_fail(SHOAL_ESTATE, "another library is capturing a CUDA graph on its stream: use Shoal's tensors "
                                     "before or after the capture");
    }
    return sh_cuda_result("cannot query a stream", result);
}

/* Under the lock of the driver: the record and the wait for it belong together. */
static int relay(sh_cu_stream before, sh_cu_stream after)
{
    int result = sh_gpu.event ? SH_CU_OK : sh_cu.cuEventCreate(&sh_gpu.event, SH_CU_EVENT_DISABLE_TIMING);
    result = result == SH_CU_OK ? sh_cu.cuEventRecord(sh_gpu.event, before) : result;
    return result == SH_CU_OK ? sh_cu.cuStreamWaitEvent(after, sh_gpu.event, 0) : result;
}

/* What comes into `after` waits for what is in `before`. One of them is Shoal's. */
static shoal_err order(sh_cu_stream before, sh_cu_stream after)
{
    int mode = sh_cuda_relax(), result = sh_cu.cuStreamQuery(before);
    sh_cuda_restrict(mode);
    if (result != SH_CU_NOT_READY) {
        return sh_cuda_result("cannot query a stream", result);
    }
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    result = relay(before, after);
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    sh_cuda_touch(); /* a wait counts as work */
    return sh_cuda_result("cannot order the work of two streams", result);
}

shoal_err shoal_cuda_stream(void **out_stream)
{
    SH_NEED(out_stream);
    SH_TRY(check(NULL));
    sh_cardlock_lock(SH_CARD_LOCK_DRIVER);
    sh_store_relaxed(&sh_gpu.uncounted, 1); /* from now on marks call the driver, and waits are not remembered */
    sh_cardlock_unlock(SH_CARD_LOCK_DRIVER);
    SH_TRY(sh_cuda_follow()); /* what another thread received meanwhile */
    *out_stream = sh_cuda_the_card()->stream;
    return SHOAL_OK;
}

shoal_err shoal_cuda_follow_stream(void *stream)
{
    SH_TRY(check(stream));
    return order(stream, sh_cuda_the_card()->stream);
}

shoal_err shoal_cuda_precede_stream(void *stream)
{
    SH_TRY(check(stream));
    SH_TRY(order(sh_cuda_the_card()->stream, stream));
    sh_cuda_service_watch();
    return SHOAL_OK;
}
