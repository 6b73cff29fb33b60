/* Nodes: recording a call, and releasing it. */
#include "autograd/node.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local struct {
    uint64_t number;
    sh_node *doomed;
    bool destroying;
} mine __attribute__((tls_model("initial-exec")));

void sh_node_empty(sh_node *node)
{
    for (int i = 0; i < node->in_count; i++) {
        sh_edge *e = &node->in[i];
        sh_node *from = e->node;
        shoal_tensor *leaf = e->leaf;
        e->node = NULL;
        e->leaf = NULL;
        sh_node_release(from);
        shoal_tensor_release(leaf);
    }
    for (int i = 0; i < node->saved_count; i++) {
        shoal_tensor *t = node->saved[i];
        node->saved[i] = NULL;
        shoal_tensor_release(t);
    }
}

/* A chain of nodes can be as long as memory allows, so nodes to be destroyed wait in a list and not on the stack. */
static void node_destroy(sh_node *node)
{
    node->next = mine.doomed;
    mine.doomed = node;
    if (mine.destroying) {
        return;
    }
    mine.destroying = true;
    while (mine.doomed) {
        sh_node *n = mine.doomed;
        mine.doomed = n->next;
        sh_node_empty(n);
        for (int i = 0; i < n->out_count; i++) {
            free(n->hooks[i]);
        }
        sh_cpu_cache_free(n, sizeof *n);
    }
    mine.destroying = false;
}

static void edge_init(sh_edge *e, shoal_tensor *input, bool need)
{
    e->present = input != NULL;
    e->need = need;
    if (!need) {
        return;
    }
    sh_tensor_shape_of(input, &e->shape);
    e->device = input->storage->device;
    if (input->node) {
        e->node = input->node;
        e->output = input->node_output;
        ((sh_node_head *)(void *)e->node)->refs++;
    } else {
        e->leaf = shoal_tensor_retain(input);
    }
}

shoal_err sh_node_record(sh_call *call)
{
    sh_node *node = sh_cpu_cache_alloc(sizeof *node);
    if (!node) {
        return shoal_last_error();
    }
    memset(node, 0, sizeof *node);
    node->head = (sh_node_head){.refs = (uint32_t)call->out_count, .destroy = node_destroy};
    node->op = call->op;
    node->device = call->device;
    node->number = ++mine.number;
    node->a = call->a;
    node->in_count = (uint8_t)call->in_count;
    node->out_count = (uint8_t)call->out_count;
    node->saved_count = (uint8_t)call->saved_count;
    for (int i = 0; i < call->in_count; i++) {
        edge_init(&node->in[i], call->in[i], call->need[i]);
    }
    memcpy(node->saved, call->saved, sizeof node->saved);
    memcpy(node->versions, call->versions, sizeof node->versions);
    call->saved_count = 0; /* the node owns the references now */
    for (int i = 0; i < call->out_count; i++) {
        sh_node_release(call->out[i]->node); /* in place: the edge above holds a reference */
        call->out[i]->node = node;
        call->out[i]->node_output = (uint8_t)i;
        call->out[i]->requires_grad = true;
    }
    return SHOAL_OK;
}
