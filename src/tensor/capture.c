/* Captures, as the program sees them: a graph of the card (device/cuda_capture.h), and the random numbers of a step. */
#include "tensor/tensor.h"

#include "base/error.h"
#include "device/cuda_capture.h"

#include <stdlib.h>

struct shoal_capture {
    sh_cuda_capture *graph;
    sh_generator before; /* of the thread, when the capture began */
    uint64_t blocks;     /* of random numbers that one step takes */
};

shoal_err shoal_capture_begin(shoal_capture **out_capture)
{
    SH_NEED(out_capture);
    shoal_capture *c = malloc(sizeof *c);
    if (!c) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a capture");
    }
    *c = (shoal_capture){.before = sh_generator_get()};
    shoal_err err = sh_cuda_capture_begin(&c->graph);
    if (err != SHOAL_OK) {
        free(c);
        return err;
    }
    *out_capture = c;
    return SHOAL_OK;
}

shoal_err shoal_capture_end(shoal_capture *capture)
{
    SH_NEED(capture);
    bool recorded = sh_cuda_capturing() == capture->graph;
    shoal_err err = sh_cuda_capture_end(capture->graph);
    if (recorded) {
        capture->blocks = sh_generator_get().offset - capture->before.offset;
        sh_generator_set(capture->before); /* the step was recorded, not run */
    }
    return err;
}

shoal_err shoal_capture_replay(shoal_capture *capture)
{
    SH_NEED(capture);
    sh_generator now = sh_generator_get();
    if (capture->blocks > 0 && now.seed != capture->before.seed) {
        return sh_fail(SHOAL_ESTATE,
                       "the capture draws random numbers with the seed %llu, and this thread's seed is %llu: "
                       "capture the step again",
                       (unsigned long long)capture->before.seed, (unsigned long long)now.seed);
    }
    uint64_t advance = capture->blocks > 0 ? now.offset - capture->before.offset : 0;
    SH_TRY(sh_cuda_capture_launch(capture->graph, advance));
    now.offset += capture->blocks;
    sh_generator_set(now);
    return SHOAL_OK;
}

void shoal_capture_destroy(shoal_capture *capture)
{
    if (capture) {
        if (sh_cuda_capturing() == capture->graph) {
            sh_generator_set(capture->before);
        }
        sh_cuda_capture_destroy(capture->graph);
        free(capture);
    }
}
