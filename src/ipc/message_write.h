/* Making and reading a message in steps, so that the bytes are copied while nobody is kept out of the heap. */
#ifndef SH_IPC_MESSAGE_WRITE_H
#define SH_IPC_MESSAGE_WRITE_H

#include "ipc/message.h"
#include "ipc/value_codec.h"

#define SH_MESSAGE_RAW (UINT64_C(1) << 32) /* in `count`: raw bytes, not a value */

/* Inside: an empty message with room for count references and size bytes. */
shoal_err sh_message_new(sh_ctx *c, uint64_t count, uint64_t size, bool raw, shoal_block **out_message);

/* Anywhere: where its bytes go; count as it was made, not as it says in memory that others can write. */
char *sh_message_room(const shoal_block *message, uint64_t count);

/* Inside: its references. */
shoal_err sh_message_refer(sh_ctx *c, const shoal_block *message, shoal_block *const *objects, size_t count);

/* Inside: handles for its objects; and dropping them. Between the two, anywhere: decoding. Without keep the references leave
 * the message, unless it fails; sh_message_refer puts them back. */
shoal_err sh_message_objects(sh_ctx *c, const shoal_block *message, bool keep, shoal_block ***out_objects,
                             size_t *out_count);

/* Inside: handles for its objects that draw weights of their own. Nothing in the message changes, so several may read it at once. */
shoal_err sh_message_open_objects(sh_ctx *c, const shoal_block *message, shoal_block ***out_objects, size_t *out_count);

void sh_message_objects_drop(sh_ctx *c, shoal_block **objects, size_t count);
shoal_err sh_message_decode(const shoal_block *message, shoal_block **objects, size_t count, shoal_value **out_value);

#endif
