/* Values as messages in the heap: a block with the references and the bytes of one value. */
#ifndef SH_IPC_MESSAGE_H
#define SH_IPC_MESSAGE_H

#include "shm/block.h"
#include "shm/kind.h"

#include <shoal/value.h>

/* Makes a message of a value; the handle is private to the maker until it sends it. Called inside (sh_enter).
 * Errors: SHOAL_ENOMEM, SHOAL_EINVAL. */
shoal_err sh_message_make(sh_ctx *c, const shoal_value *value, shoal_block **out_message);

/* The same for raw bytes. */
shoal_err sh_message_make_bytes(sh_ctx *c, const void *bytes, size_t size, shoal_block **out_message);

/* Reads the value of a message that the caller holds and that nobody else reads at the same time. The shared objects
 * in it get handles of ours. With keep the message can be read again later, otherwise its references are used up.
 * Called inside. Errors: SHOAL_ECORRUPT, SHOAL_ENOMEM. */
shoal_err sh_message_read(sh_ctx *c, const shoal_block *message, bool keep, shoal_value **out_value);

/* The same for the message that a reference word of ours names (a task's argument or result); 0 there gives a null
 * value. */
shoal_err sh_message_read_at(sh_ctx *c, uint64_t reference, bool keep, shoal_value **out_value);

/* Moves a new message into a reference word of ours, releasing what was there. The handle is used up. */
void sh_message_store(sh_ctx *c, shoal_block *message, uint64_t reference);

/* Raw bytes: their address and size, or NULL when the message is a value. */
const void *sh_message_bytes(const shoal_block *message, size_t *out_size);

#endif
