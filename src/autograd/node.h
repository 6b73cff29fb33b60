/* A recorded call. Belongs to the thread that recorded it.
 *
 * A node is held by the tensors it made, by the nodes that used these, and by a running backward. It holds its inputs' nodes
 * and leaves, and what forward saved; backward lets go of these as it passes, so after it only empty nodes are left. An
 * output that a node saves is saved as another tensor over the same storage, which has no node: no circle. */
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

/* Where the gradient of an input goes. */
typedef struct sh_edge {
    sh_node *node;      /* with output, the input's maker; NULL for a leaf */
    shoal_tensor *leaf; /* the input itself, when it is a leaf that needs a gradient */
    uint8_t output;
    bool need;
    bool present;
    sh_shape shape; /* of the input */
} sh_edge;

struct sh_node {
    sh_node_head head;
    const sh_op *op;
    const sh_device *device;
    uint64_t number; /* in order of recording: an input's node has a lower one */
    sh_node *next;   /* in the list of nodes being destroyed */
    sh_attrs a;
    uint8_t in_count, out_count, saved_count;
    bool spent;  /* backward has passed */
    bool queued; /* backward will come */
    sh_edge in[SH_OP_INPUTS];
    shoal_tensor *saved[SH_OP_SAVED];
    uint32_t versions[SH_OP_SAVED];
    shoal_tensor *grad[SH_OP_OUTPUTS]; /* while backward runs: what has arrived */
    bool grad_is_ours[SH_OP_OUTPUTS];  /* nobody else sees it: it may be added to */
    sh_hooks *hooks[SH_OP_OUTPUTS];
};

/* Records the call: its outputs get the node. Errors: SHOAL_ENOMEM. */
shoal_err sh_node_record(sh_call *call);

/* Lets go of inputs and saved tensors. */
void sh_node_empty(sh_node *node);

#endif
