/* Order between Shoal's stream and those of other libraries in this process. include/shoal/device.h describes it. */
#include "device/cuda_capture.h"

#include "base/error.h"
#include "device/cuda_share.h"
#include "shm/card_lock.h"

static struct {
    sh_cu_event event; /* made at the first need, and used again: a wait keeps what was recorded before it */
} relay;

static shoal_err check(sh_cu_stream other)
{
    if (!sh_cuda_get()) {
        return shoal_last_error();
    }
    shoal_err err = sh_cuda_capture_refuse("ordering work with a stream of another library");
    if (err == SHOAL_OK) {
        err = sh_cuda_follow();
    }
    int status = SH_CU_CAPTURE_NONE;
    int result = err == SHOAL_OK ? sh_cu.cuStreamIsCapturing(other, &status) : SH_CU_OK;
    bool captures = status != SH_CU_CAPTURE_NONE || (result >= SH_CU_CAPTURE_FIRST && result <= SH_CU_CAPTURE_LAST);
    if (err == SHOAL_OK && captures) {
        return sh_fail(SHOAL_ESTATE, "another library is capturing a CUDA graph on its stream: use Shoal's tensors "
                                     "before or after the capture");
    }
    return err == SHOAL_OK ? sh_cuda_result("cannot query a stream", result) : err;
}

/* What comes into `after` waits for what is in `before`. One of them is Shoal's. */
static shoal_err order(sh_cu_stream before, sh_cu_stream after)
{
    int mode = sh_cuda_relax(), result = sh_cu.cuStreamQuery(before);
    sh_cuda_restrict(mode);
    if (result != SH_CU_NOT_READY) {
        return sh_cuda_result("cannot query a stream", result);
    }
    sh_cardlock_lock(SH_CARD_LOCK_EVENT);
    result = relay.event ? SH_CU_OK : sh_cu.cuEventCreate(&relay.event, SH_CU_EVENT_DISABLE_TIMING);
    if (result == SH_CU_OK) {
        result = sh_cu.cuEventRecord(relay.event, before);
    }
    if (result == SH_CU_OK) {
        result = sh_cu.cuStreamWaitEvent(after, relay.event, 0);
    }
    sh_cardlock_unlock(SH_CARD_LOCK_EVENT);
    sh_cuda_touch(); /* a wait counts as work */
    return sh_cuda_result("cannot order the work of two streams", result);
}

shoal_err shoal_cuda_stream(void **out_stream)
{
    SH_NEED(out_stream);
    shoal_err err = check(NULL);
    if (err == SHOAL_OK) {
        sh_cuda_order_distrust();
        err = sh_cuda_follow(); /* what another thread received meanwhile */
    }
    if (err == SHOAL_OK) {
        *out_stream = sh_cuda_the_card()->stream;
    }
    return err;
}

shoal_err shoal_cuda_follow_stream(void *stream)
{
    shoal_err err = check(stream);
    return err == SHOAL_OK ? order(stream, sh_cuda_the_card()->stream) : err;
}

shoal_err shoal_cuda_precede_stream(void *stream)
{
    shoal_err err = check(stream);
    err = err == SHOAL_OK ? order(sh_cuda_the_card()->stream, stream) : err;
    if (err == SHOAL_OK) {
        sh_cuda_watch();
    }
    return err;
}
