/* Making and reading a message in steps, so that the bytes are copied outside of sh_enter and sh_leave. */
#ifndef SH_IPC_MESSAGE_WRITE_H
#define SH_IPC_MESSAGE_WRITE_H

#include "ipc/message.h"
#include "ipc/value_codec.h"

#define SH_MESSAGE_RAW (UINT64_C(1) << 32) /* in `count`: raw bytes, not a value */

/* Inside: creates an empty message with room for count references and size bytes. */
shoal_err sh_message_new(sh_ctx *c, uint64_t count, uint64_t size, bool raw, shoal_block **out_message);

/* Anywhere: returns where its bytes go. count is the one it was created with: others can write the one in its
 * memory. */
char *sh_message_room(const shoal_block *message, uint64_t count);

/* Inside: stores references to the objects in the message. */
shoal_err sh_message_refer(sh_ctx *c, const shoal_block *message, shoal_block *const *objects, size_t count);

/* Anywhere: notes the size of those objects that nobody but the sender of the message holds: the message brings
 * them. */
void sh_message_bring(const shoal_block *message, shoal_block *const *objects, size_t count);

/* Inside: opens handles for its objects; sh_message_objects_drop releases them. With move the references leave the
 * message, unless this fails; sh_message_refer puts them back. Nobody else may read the message then. Without move each
 * handle draws a separate weight, and nothing in the message changes, so several processes may read it at once. */
shoal_err sh_message_objects(sh_ctx *c, const shoal_block *message, bool move, shoal_block ***out_objects,
                             size_t *out_count);
void sh_message_objects_drop(sh_ctx *c, shoal_block **objects, size_t count);

/* Anywhere: makes the value of a message that the caller holds. With move its references leave it, if nobody else can
 * read it; they go back into it if there is no memory for the rest. Otherwise only draws weights of its own: a message
 * that an acknowledged queue has rejected may still be read by a receiver whose lease has passed, and that one must
 * find all references. Nobody becomes a holder of the message meanwhile: only this process has the reference to it that
 * could be shared. Errors: SHOAL_ECORRUPT, SHOAL_ENOMEM. */
shoal_err sh_message_value(const shoal_block *message, bool move, shoal_value **out_value);

#endif
