/* A device for tests whose memory the host cannot read: its addresses are not ones of this machine, so that code which
 * reads or writes them without a kernel or a copy crashes. Its kernels are the CPU's reference. */
#ifndef TESTING_FAR_DEVICE_H
#define TESTING_FAR_DEVICE_H

#include "device/device.h"

const sh_device *sh_far_device(void);

#endif
