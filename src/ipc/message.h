/* Messages in the heap: a block with the references and the bytes of one value. */
#ifndef SH_IPC_MESSAGE_H
#define SH_IPC_MESSAGE_H

#include "ipc/value_codec.h"
#include "shm/block.h"
#include "shm/kind.h"

#include <shoal/value.h>

/* Makes a message of an encoded value. The handle is private to the caller until it sends it. Called inside (sh_enter);
 * the encoding is made before, because its objects may have something to do then (sh_value_before_put). Errors:
 * SHOAL_ENOMEM, SHOAL_EINVAL. */
shoal_err sh_message_make(sh_ctx *c, const sh_encoding *encoding, shoal_block **out_message);

/* Reads the value of a message that the caller holds and that nobody else reads at the same time. The shared objects in
 * it get handles in this process. With keep the message can be read again later; without it its references are used up.
 * Called inside. Errors: SHOAL_ECORRUPT, SHOAL_ENOMEM. */
shoal_err sh_message_read(sh_ctx *c, const shoal_block *message, bool keep, shoal_value **out_value);

/* The same for the message that a reference word of this process names (a task's argument or result). A word of 0 gives
 * a null value. */
shoal_err sh_message_read_at(sh_ctx *c, uint64_t reference, bool keep, shoal_value **out_value);

/* Moves a new message into a reference word of this process and releases what was there. Uses up the handle. */
void sh_message_store(sh_ctx *c, shoal_block *message, uint64_t reference);

/* Makes a packed value (shoal/value.h) of the message. *out_value is NULL if it has shared objects or raw bytes.
 * Errors: SHOAL_ECORRUPT, SHOAL_ENOMEM. */
shoal_err sh_message_read_packed(const shoal_block *message, shoal_value **out_value);

/* Returns the address and size of raw bytes, or NULL if the message is a value. */
const void *sh_message_bytes(const shoal_block *message, size_t *out_size);

#endif
