/* A node: a recorded call. It belongs to the thread that recorded it.
 *
 * References to a node are held by the tensors it made, by the nodes that used these, and by a running backward. A node
 * holds references to its inputs' nodes and leaves, and to what forward saved; backward releases these as it passes, so
 * only empty nodes remain after it. If a node saves an output, it saves another tensor over the same storage that has
 * no node, so there is no reference cycle. */
#ifndef SH_AUTOGRAD_NODE_H
#define SH_AUTOGRAD_NODE_H

#include "autograd/op.h"

#define SH_HOOKS 8

struct sh_hooks {
    int next_id;
    int count;
    struct {
        int id;
        shoal_grad_hook call;
        void *context;
    } list[SH_HOOKS];
};

/* The destination of an input's gradient. */
typedef struct sh_edge {
    sh_node *node;      /* the node that made the input, as its output number `output`; NULL for a leaf */
    shoal_tensor *leaf; /* the input itself, if it is a leaf that needs a gradient */
    uint8_t output;
    bool need;
    bool present;
    sh_shape shape; /* of the input */
    const sh_device *device;
} sh_edge;

struct sh_node {
    sh_node_head head;
    const sh_op *op;
    const sh_device *device;
    uint64_t number; /* in order of recording: an input's node has a lower number */
    sh_node *next;   /* in the list of nodes being destroyed */
    sh_attrs a;
    uint8_t in_count, out_count, saved_count;
    bool spent;  /* backward has passed */
    bool queued; /* in the queue of a running backward */
    sh_edge in[SH_OP_INPUTS];
    shoal_tensor *saved[SH_OP_SAVED];
    uint32_t versions[SH_OP_SAVED];
    shoal_tensor *grad[SH_OP_OUTPUTS]; /* while backward runs: the gradient that has arrived so far */
    bool grad_is_ours[SH_OP_OUTPUTS];  /* no one else uses its memory, so it may be added to */
    sh_hooks *hooks[SH_OP_OUTPUTS];
};

/* Records the call and attaches the node to its outputs. Errors: SHOAL_ENOMEM. */
shoal_err sh_node_record(sh_call *call);

/* Releases the inputs and the saved tensors. */
void sh_node_empty(sh_node *node);

#endif
