/* All of Shoal. */
#ifndef SHOAL_H
#define SHOAL_H

#include <shoal/autograd.h>
#include <shoal/binding.h>
#include <shoal/block.h>
#include <shoal/data.h>
#include <shoal/dlpack.h>
#include <shoal/dtype.h>
#include <shoal/env.h>
#include <shoal/error.h>
#include <shoal/file.h>
#include <shoal/handle.h>
#include <shoal/log.h>
#include <shoal/nn.h>
#include <shoal/ops.h>
#include <shoal/optim.h>
#include <shoal/pool.h>
#include <shoal/process.h>
#include <shoal/queue.h>
#include <shoal/share.h>
#include <shoal/sync.h>
#include <shoal/tensor.h>
#include <shoal/time.h>
#include <shoal/train.h>
#include <shoal/value.h>
#include <shoal/version.h>
#include <shoal/world.h>

#endif
