/* The stub driver: a test loads it through SHOAL_CUDA_DRIVER and SHOAL_CUDA_LIBRARY, and controls it by these calls. */
#ifndef TESTING_CUDA_STUB_STUB_H
#define TESTING_CUDA_STUB_STUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a test can ask for. The environment says the same for a process that has just started:
 *
 *   SHOAL_STUB_FAIL=cuMemCreate:3:2   the third call of cuMemCreate, and all later ones, return error 2
 *   SHOAL_STUB_CARDS=1                how many cards there are
 *   SHOAL_STUB_VERSION=13000          the driver's version
 *   SHOAL_STUB_MEMORY=1073741824      bytes of card memory, of each process
 *   SHOAL_STUB_TRACE=/path/of/a/file  each call of the driver adds a line: pid, thread (program, or the name of a
 *                                     thread of the library), function, stream (default, capture, stream, - for none)
 *   SHOAL_STUB_USED=/path/of/a/file   the file has the bytes that are used of it, so that all processes share it.
 *                                     What a process has made counts until it drops it or exits, also if others have
 *                                     it; what a killed one has made stays used */
typedef struct sh_stub {
    /* From the nth call of the function on (1: the next one), it returns this error, `times` times; 0 times: for ever.
     * One function at a time; NULL: none. */
    void (*fail_call)(const char *function, unsigned nth, unsigned times, int result);
    /* How often a function was called, NULL: all of them together, except cuGetErrorName, cuGetErrorString. */
    uint64_t (*calls)(const char *function);
    /* The streams of this process stop before the next thing that is enqueued, and go on. */
    void (*block)(void);
    void (*unblock)(void);
    /* From now on, a stream has room for so many things that wait; who enqueues one more waits in its call. 0: any
     * number. */
    void (*room)(unsigned things);
    /* Bytes of card memory that this process has made or imported, and not released. */
    size_t (*held)(void);
    /* Another library captures in a thread of its own: calls that allocate, free or wait fail with 900, unless their
     * thread has said that it is relaxed (cuThreadExchangeStreamCaptureMode). */
    void (*forbid)(bool forbidden);
} sh_stub;

/* Sets the environment of this process and of its children to the stub, which must be built (the target cuda_stub).
 * Called before the first card call. With SHOAL_TEST_CARD set, does nothing: the test runs on a card. */
void sh_stub_use(void);

/* Returns the control of the stub; NULL on a card. */
const sh_stub *sh_stub_control(void);

#endif
