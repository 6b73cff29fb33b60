/* All of Shoal.
 *
 * The rules of the interface. Every call keeps them.
 *
 * 1. Values. A call that takes a shoal_value * consumes it, whether or not it succeeds. So makers can be nested and nothing leaks:
 *    shoal_queue_put(q, shoal_map("loss", loss, "model", model), SHOAL_FOREVER). To use a value again, keep it: no call consumes a
 *    value that shoal_value_keep was called for, and its owner ends it with shoal_value_destroy.
 * 2. Handles (block, queue, pipe, locks, tensor, module, ...). Calls borrow them; whatever stores one retains it. Calls named give
 *    take the caller's reference when they succeed. Four others take it always, because they are given what was just made:
 *    shoal_module_add_parameter, _add_buffer and _add_child (and the makers of containers: shoal_sequential), and shoal_scoped. Each type has its own retain and release, or create and destroy.
 *    shoal_release(x) chooses by the type of x and does not compile for anything else.
 * 3. Failure. What talks to the system returns shoal_err; its outputs come last, are named out_..., and stay untouched on failure.
 *    A buffer of the caller stands before its capacity. (Three calls write what the caller needs all the same: shoal_queue_get_bytes and shoal_pipe_recv_bytes the size of a message that does
 *    not fit, shoal_spawn_with NULLs, shoal_wait `ready`.) What people write as expressions (makers of values, tensors, modules, data
 *    sets, optimisers, loaders) returns NULL, and NULL in gives NULL out. NULL where the result of another call is expected (a tensor, a
 *    value, a module) comes from that call's failure, which stays the last error. NULL for anything else (a path, a text, a shape,
 *    options, the args of shoal_arg_...) is SHOAL_EINVAL, as is a NULL that a call which returns shoal_err does not allow. The text
 *    names the call and the argument; from a call that returns shoal_err it ends with the thread's earlier failure. No call
 *    returns the code of an earlier call's failure. What cannot fail (size, count, pid) gives the zero of its type for NULL and leaves
 *    the last error.
 * 4. Iteration returns SHOAL_OK, SHOAL_END (nothing more comes; not a failure) or an error:
 *    while ((err = shoal_loader_next(data, &b)) == SHOAL_OK) { ... }
 * 5. Clean-up (destroy, release, close, leave) takes NULL and half-built objects and never changes the last error.
 * 6. Every call that waits for another process takes a time limit (time.h). Some run a job to its end instead: shoal_spawn
 *    (shoal_process_options has a timeout for shoal_spawn_with), shoal_pool_apply and shoal_pool_map (shoal_future_get takes one),
 *    shoal_loader_next (shoal_loader_options), shoal_train_run (its callback stops it). Destroying what still runs ends it, within
 *    seconds. A wait that a signal handler was asked to end returns SHOAL_EINTR.
 * 7. When the process has begun to end, and after shoal_world_leave, a call on an old handle is refused with SHOAL_ESTATE and touches
 *    nothing. Release and destroy are allowed. The end begins in the atexit handler that the library's first use registers: handlers
 *    and C++ statics that are older than that come after it, newer ones before it, and their calls work.
 *
 * What lives how long:
 *
 *   world            from the first call until its last member leaves or dies
 *   handle           from create, get or retain until the last release in this process
 *   object           from create until the last handle, or message, that refers to it is gone
 *   value            from its maker until the call that takes it
 *   kept value       from shoal_value_keep until shoal_value_destroy
 *   member           as long as the value that it was read from; the same holds for what a reader returns
 *   result of an op  until the end of its scope: shoal_scope_release, or the loader's next batch
 *   batch            until the next shoal_loader_next
 *
 * To keep the result of an op, a batch's tensor or an object read from a value for longer, retain it.
 */
#ifndef SHOAL_H
#define SHOAL_H

#include <shoal/autograd.h>
#include <shoal/binding.h>
#include <shoal/block.h>
#include <shoal/data.h>
#include <shoal/device.h>
#include <shoal/dlpack.h>
#include <shoal/dtype.h>
#include <shoal/env.h>
#include <shoal/error.h>
#include <shoal/file.h>
#include <shoal/handle.h>
#include <shoal/interrupt.h>
#include <shoal/log.h>
#include <shoal/message.h>
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
