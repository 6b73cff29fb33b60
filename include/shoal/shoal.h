/* All of Shoal: includes every public header.
 *
 * Every call follows these rules.
 *
 * 1. Values are consumed. A call that takes a shoal_value * consumes it, on success and on failure. A call that takes
 *    a const shoal_value * only reads it. So calls can be nested, and nothing leaks: shoal_queue_put(q,
 *    shoal_map("loss", loss), SHOAL_FOREVER). To use a value again, pass it to shoal_value_keep first: no call
 *    consumes a kept value, and its owner destroys it with shoal_value_destroy.
 *
 * 2. Handles are borrowed. A handle is a pointer to a block, queue, pipe, lock, tensor, module and so on. A call that
 *    stores a handle retains it. Each type has its own retain and release, or create and destroy. shoal_release(x)
 *    chooses the function by the type of x, and does not compile if there is none. Some calls take the caller's
 *    reference instead. Calls with "give" in their name take it if they succeed. shoal_module_add_parameter,
 *    shoal_module_add_buffer, shoal_module_add_child, shoal_sequential and shoal_scoped always take it, because their
 *    argument was usually just made.
 *
 * 3. Failures. A call that deals with the system or with other processes returns shoal_err. Its outputs are its last
 *    parameters, are named out_..., and are unchanged after a failure. A buffer of the caller comes before its
 *    capacity. Five calls write something after a failure too: shoal_queue_get_bytes and shoal_pipe_recv_bytes write
 *    the size of a message that does not fit, shoal_spawn_with writes NULLs, shoal_wait writes `ready`, and
 *    shoal_world_audit writes what it found. A call that people write inside expressions (it makes a value, tensor,
 *    module, data set, optimiser or loader) returns NULL after a failure. In both cases shoal_last_error_text
 *    explains the failure.
 *
 *    NULL arguments. If a call that returns a pointer gets NULL for the result of another call (a tensor, value or
 *    module), it returns NULL, and the failure of that other call stays the last error. So an expression needs one
 *    check, at its end. Every other NULL that is not allowed is SHOAL_EINVAL, with a text that names the call and the
 *    argument; if the call returns shoal_err, the text ends with the thread's earlier failure. No call returns the
 *    code of an earlier call's failure. A call that cannot fail (size, count, pid) returns 0, false or NULL for NULL,
 *    and does not change the last error.
 *
 * 4. Iteration returns SHOAL_OK, SHOAL_END after the last item (which is not a failure), or an error:
 *
 *        while ((err = shoal_loader_next(data, &b)) == SHOAL_OK) { ... }
 *
 * 5. Clean-up (destroy, release, close, leave) accepts NULL and half-built objects, and never changes the last error.
 *
 * 6. Every call that waits for another process takes a timeout (time.h). These calls run a job to its end instead:
 *    shoal_spawn (shoal_spawn_with has a timeout in its options), shoal_pool_apply and shoal_pool_map
 *    (shoal_future_get takes a timeout), shoal_loader_next (shoal_loader_options has a timeout) and shoal_train_run
 *    (its callback can stop it). Destroying a job that still runs ends it within seconds. A wait returns SHOAL_EINTR
 *    if a signal arrives and the thread asked for that (interrupt.h).
 *
 * 7. After shoal_world_leave, and once the process has begun to exit, a call on an old handle does nothing and fails
 *    with SHOAL_ESTATE. Release and destroy are still allowed. Exit begins in the atexit handler that the library
 *    registers at its first use. Handlers and C++ static objects that were registered later run before it, and their
 *    calls work; earlier ones run after it.
 *
 * Lifetimes:
 *
 *   world            from the first call that needs it until its last member leaves or dies
 *   handle           from create, get or retain until the last release in this process
 *   object           from create until no handle and no message refers to it
 *   value            from the call that makes it until the call that consumes it
 *   kept value       from shoal_value_keep until shoal_value_destroy
 *   member           as long as the value that it was read from
 *   result of an op  until the end of its scope: shoal_scope_release, or the next batch of a loader
 *   batch            until the next shoal_loader_next
 *
 * To use the result of an op, a tensor of a batch or an object read from a value for longer, retain it.
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
#include <shoal/reduction.h>
#include <shoal/share.h>
#include <shoal/sync.h>
#include <shoal/tensor.h>
#include <shoal/time.h>
#include <shoal/train.h>
#include <shoal/value.h>
#include <shoal/version.h>
#include <shoal/world.h>

#endif
