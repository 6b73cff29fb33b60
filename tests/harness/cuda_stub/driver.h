/* What the files of the stub driver share. */
#ifndef TESTING_CUDA_STUB_DRIVER_H
#define TESTING_CUDA_STUB_DRIVER_H

#include "device/cuda_driver.h"
#include "tests/harness/cuda_stub/stub.h"

#include <stdbool.h>

#define STUB_EXPORT __attribute__((visibility("default")))

/* The first line of every function of the driver: counts and traces the call, and returns the error that was asked for.
 * ENTER_STREAM is for those that get a stream. */
int stub_enter(const char *function, const char *stream);
const char *stub_kind(sh_cu_stream s);
#define ENTER_AS(stream)                                                                                               \
    do {                                                                                                               \
        int result_ = stub_enter(__func__, stream);                                                                    \
        if (result_ != SH_CU_OK) {                                                                                     \
            return result_;                                                                                            \
        }                                                                                                              \
    } while (0)
#define ENTER ENTER_AS("-")
#define ENTER_STREAM(s) ENTER_AS(stub_kind(s))

/* One lock around everything. */
void stub_lock(void);
void stub_unlock(void);

/* Checks whether cuMemAllocHost made the memory at this address. */
bool stub_is_pinned(const void *data);

/* Calls call(a copy of arg) on the stream, or records it: how tests/harness/cuda_host launches kernels. */
STUB_EXPORT void shoal_stub_call(sh_cu_stream s, void (*call)(const void *arg), const void *arg, size_t size);

/* Sets the mode of the calling thread, and returns what it was. */
int stub_exchange_mode(int mode);

void stub_block(void);
void stub_unblock(void);
void stub_room(unsigned things);

#endif
