/* All of Shoal. */
#ifndef SHOAL_H
#define SHOAL_H

#include <shoal/block.h>
#include <shoal/dtype.h>
#include <shoal/error.h>
#include <shoal/log.h>
#include <shoal/pool.h>
#include <shoal/process.h>
#include <shoal/queue.h>
#include <shoal/sync.h>
#include <shoal/time.h>
#include <shoal/value.h>
#include <shoal/version.h>
#include <shoal/world.h>

#endif
