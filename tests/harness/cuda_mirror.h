/* The kernels of a device for arrays in host memory: every call copies its arrays to the device, runs there, and copies
 * them back. So the tests of the kernels run on a card as they are. */
#ifndef TESTING_CUDA_MIRROR_H
#define TESTING_CUDA_MIRROR_H

#include "device/device.h"

/* Returns the device that SHOAL_TEST_CARD names: 1 is the card, `host` is the stub of a card with the card's kernels
 * (tests/harness/cuda_host), `far` is tests/harness/far_device.h, which tests the mirror itself. NULL if it is not set.
 * Ends the test if there is no card. */
const sh_device *sh_mirror_device(void);

/* Returns whether SHOAL_TEST_CARD is `host`: a kernel takes a thousand times as long there as on a card. */
bool sh_mirror_is_host(void);

/* Returns the kernels of that device, or NULL. */
const sh_kernels *sh_mirror_kernels(void);

/* Returns the fast kernels to test, 0 (AVX2) or 1 (AVX-512); prints and returns NULL if this CPU cannot run them. With
 * SHOAL_TEST_CARD the device's take the place of 0, and there is no 1. */
const sh_kernels *sh_mirror_fast(int i);

#endif
