/* Backward: visits the recorded nodes from the last to the first and adds up gradients.
 *
 * A node's number is greater than those of its inputs' nodes. The loop always takes the waiting node with the greatest
 * number, so it reaches a node only after every user of its outputs has added its share. A leaf with hooks collects its
 * shares until the end, because a hook gets the whole gradient. Other leaves add each share at once; if the op can, it
 * writes directly into the leaf's grad (sh_back_target). */
#include "autograd/node.h"

#include "base/error.h"
#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

/* A leaf with hooks, and the gradient that has arrived for it so far. */
typedef struct hooked {
    shoal_tensor *leaf;
    shoal_tensor *grad;
} hooked;

typedef struct walk {
    sh_node **heap; /* ordered by number, the greatest first; each entry holds a reference */
    size_t count, room;
    hooked *leaves;
    size_t leaf_count, leaf_room;
} walk;

struct sh_back {
    walk *walk;
    sh_node *node;
    const sh_kernels *kernels;
    sh_exec *exec;
    const shoal_tensor *given[SH_OP_INPUTS];
    const shoal_tensor *target[SH_OP_INPUTS]; /* the leaf's own grad, if backward was told to write there */
};

/* ---- the queue of nodes ---- */

static shoal_err push(walk *w, sh_node *node)
{
    if (!sh_grow(&w->heap, w->count, &w->room, sizeof(sh_node *))) {
        return sh_fail(SHOAL_ENOMEM, "no memory for a backward of %zu ops", w->count + 1);
    }
    node->head.refs++;
    node->queued = true;
    size_t i = w->count++;
    while (i > 0 && w->heap[(i - 1) / 2]->number < node->number) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = node;
    return SHOAL_OK;
}

static sh_node *pop(walk *w)
{
    sh_node *top = w->heap[0], *last = w->heap[--w->count];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < w->count; i = child) {
        if (child + 1 < w->count && w->heap[child + 1]->number > w->heap[child]->number) {
            child++;
        }
        if (w->heap[child]->number <= last->number) {
            break;
        }
        w->heap[i] = w->heap[child];
    }
    w->heap[i] = last;
    top->queued = false;
    return top;
}

/* ---- adding up ---- */

static bool is_half(const shoal_tensor *t)
{
    return t->dtype == SHOAL_BF16 || t->dtype == SHOAL_F16;
}

/* Kernels cannot add halves, so this adds through f32. */
static shoal_err add_into_half(shoal_tensor *to, shoal_tensor *g)
{
    size_t mark = shoal_scope_mark();
    shoal_tensor *sum = shoal_add(shoal_to_dtype(to, SHOAL_F32), shoal_to_dtype(g, SHOAL_F32));
    sh_tensor_touch(to);
    shoal_err err = sum ? sh_tensor_copy_data(to, sum) : shoal_last_error();
    shoal_scope_release(mark);
    return err;
}

static shoal_err add_into(shoal_tensor *to, shoal_tensor *g)
{
    if (is_half(to)) {
        return add_into_half(to, g);
    }
    const sh_device *device = to->storage->device;
    sh_exec *exec = device->exec();
    sh_view out = sh_tensor_view(to), in = sh_tensor_view_as(g, to->ndim, to->shape);
    sh_tensor_touch(to);
    return exec ? device->kernels()->elementwise->axpy(exec, &out, &in, sh_scalar_int(1)) : shoal_last_error();
}

/* Checks whether only the caller, and the scope, can access the tensor's memory. */
static bool is_sole(const shoal_tensor *g)
{
    return sh_load_relaxed(&g->refs) <= 1 && sh_load_relaxed(&g->storage->refs) == 1 && !g->storage->foreign &&
           !g->storage->owner_block;
}

/* steal means that g was made for this leaf and nobody else gets it, so its memory may become the leaf's grad. */
static shoal_err add_to_leaf(shoal_tensor *leaf, shoal_tensor *g, bool steal)
{
    if (leaf->grad && !leaf->grad_is_zero) {
        return add_into(leaf->grad, g);
    }
    if (leaf->grad) {
        leaf->grad_is_zero = false;
        sh_tensor_touch(leaf->grad);
        return sh_tensor_copy_data(leaf->grad, g);
    }
    leaf->grad = steal && g->contiguous && is_sole(g) ? shoal_tensor_retain(g) : sh_tensor_new_copy(g);
    return leaf->grad ? SHOAL_OK : shoal_last_error();
}

/* *sum += g, where the sum starts as NULL. *ours is set if only this walk uses its memory. */
static shoal_err add_to_sum(shoal_tensor **sum, bool *ours, shoal_tensor *g)
{
    if (!*sum) {
        *sum = shoal_tensor_retain(g);
        *ours = false;
        return SHOAL_OK;
    }
    if (!*ours) {
        shoal_tensor *copy = sh_tensor_new_copy(*sum);
        if (!copy) {
            return shoal_last_error();
        }
        shoal_tensor_release(*sum);
        *sum = copy;
        *ours = true;
    }
    return add_into(*sum, g);
}

static shoal_err add_to_hooked(walk *w, shoal_tensor *leaf, shoal_tensor *g)
{
    size_t i = 0;
    while (i < w->leaf_count && w->leaves[i].leaf != leaf) {
        i++;
    }
    if (!sh_grow(&w->leaves, i, &w->leaf_room, sizeof *w->leaves)) {
        return sh_fail(SHOAL_ENOMEM, "no memory for %zu tensors with hooks", i + 1);
    }
    if (i == w->leaf_count) {
        w->leaves[w->leaf_count++] = (hooked){.leaf = shoal_tensor_retain(leaf)};
    }
    bool ours = false;
    return add_to_sum(&w->leaves[i].grad, &ours, g);
}

/* Returns g summed over the dims in which the input was repeated. The scope owns the result. */
static shoal_tensor *sum_to(shoal_tensor *g, const sh_shape *s)
{
    int extra = g->ndim - s->ndim;
    g = is_half(g) ? shoal_to_dtype(g, SHOAL_F32) : g; /* sh_back_give converts back */
    for (int d = 0; d < extra; d++) {
        g = shoal_sum(g, 0, false);
    }
    for (int d = 0; g && d < s->ndim; d++) {
        if (s->shape[d] == 1 && g->shape[d] != 1) {
            g = shoal_sum(g, d, true);
        }
    }
    return g;
}

static bool has_shape(const shoal_tensor *g, const sh_shape *s)
{
    return g->ndim == s->ndim && memcmp(g->shape, s->shape, (size_t)s->ndim * sizeof s->shape[0]) == 0;
}

static shoal_err deposit(walk *w, const sh_edge *e, shoal_tensor *g, bool steal)
{
    if (e->leaf) {
        return e->leaf->hooks ? add_to_hooked(w, e->leaf, g) : add_to_leaf(e->leaf, g, steal);
    }
    sh_node *node = e->node;
    SH_TRY(node->queued ? SHOAL_OK : push(w, node)); /* first: cleanup covers queued nodes only */
    return add_to_sum(&node->grad[e->output], &node->grad_is_ours[e->output], g);
}

/* ---- called by the backward of an op ---- */

shoal_tensor *sh_back_grad(const sh_back *back, int output)
{
    return back->node->grad[output];
}

shoal_tensor *sh_back_saved(const sh_back *back, int i)
{
    return back->node->saved[i];
}

const sh_attrs *sh_back_attrs(const sh_back *back)
{
    return &back->node->a;
}

bool sh_back_needs(const sh_back *back, int input)
{
    return input < back->node->in_count && back->node->in[input].need;
}

void sh_back_shape(const sh_back *back, int input, sh_shape *out)
{
    *out = back->node->in[input].shape;
}

const sh_kernels *sh_back_kernels(const sh_back *back)
{
    return back->kernels;
}

sh_exec *sh_back_exec(const sh_back *back)
{
    return back->exec;
}

static bool was_given(const sh_back *back, const shoal_tensor *g)
{
    for (int i = 0; i < back->node->in_count; i++) {
        if (back->given[i] == g) {
            return true;
        }
    }
    return false;
}

/* Checks whether g is a gradient that arrived at this node and is passed on unchanged. */
static bool is_passed_on(const sh_back *back, const shoal_tensor *g)
{
    return g == back->node->grad[0] || g == back->node->grad[1];
}

shoal_err sh_back_give(sh_back *back, int input, shoal_tensor *grad)
{
    const sh_edge *e = &back->node->in[input];
    if (!grad) {
        return shoal_last_error();
    }
    if (!e->need || grad == back->target[input]) {
        return SHOAL_OK;
    }
    if (!has_shape(grad, &e->shape)) {
        grad = sum_to(grad, &e->shape);
    }
    if (grad && (shoal_dtype)grad->dtype != e->shape.dtype) {
        grad = shoal_to_dtype(grad, e->shape.dtype);
    }
    if (grad && grad->storage->device != e->device) {
        grad = sh_op_to_device(grad, e->device);
    }
    if (!grad) {
        return shoal_last_error();
    }
    if (was_given(back, grad)) {
        grad = sh_scope_add(sh_tensor_new_copy(grad)); /* the first recipient may have taken over its memory */
    }
    back->given[input] = grad;
    return grad ? deposit(back->walk, e, grad, !is_passed_on(back, grad)) : shoal_last_error();
}

shoal_tensor *sh_back_target(sh_back *back, int input, bool *out_add)
{
    const sh_edge *e = &back->node->in[input];
    shoal_tensor *leaf = e->leaf;
    *out_add = false;
    if (!leaf || leaf->hooks || (leaf->grad && (!leaf->grad->contiguous || leaf->grad->dtype != leaf->dtype))) {
        sh_shape s;
        return sh_shape_init(&s, e->shape.dtype, e->shape.ndim, e->shape.shape) == SHOAL_OK
                   ? sh_scope_add(sh_tensor_new(back->node->device, &s))
                   : NULL;
    }
    if (!leaf->grad) {
        leaf->grad = sh_tensor_new_like(leaf);
    } else {
        *out_add = !leaf->grad_is_zero;
        leaf->grad_is_zero = false;
        sh_tensor_touch(leaf->grad);
    }
    back->target[input] = leaf->grad;
    return leaf->grad;
}

shoal_tensor *sh_back_target_zeroed(sh_back *back, int input)
{
    bool add;
    shoal_tensor *t = sh_back_target(back, input, &add);
    return t && (add || sh_tensor_fill(t, 0) == SHOAL_OK) ? t : NULL;
}

/* ---- the walk ---- */

static bool is_shaped_like(const shoal_tensor *a, const shoal_tensor *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, sizeof a->shape[0] * (size_t)a->ndim) == 0;
}

static shoal_tensor *run_hooks(const sh_hooks *hooks, shoal_tensor *g)
{
    sh_hooks now = *hooks; /* a copy, because a hook may remove itself */
    for (int i = 0; i < now.count && g; i++) {
        shoal_tensor *before = g;
        uint64_t mark = sh_callback_mark();
        g = now.list[i].call(g, now.list[i].context);
        if (!g) {
            (void)sh_callback_null(mark, "backward", "a gradient hook");
        }
        if (g && g->storage->device != before->storage->device) {
            (void)sh_device_mixed("a gradient hook", before->storage->device, g->storage->device);
            return NULL;
        }
        if (g && (g->dtype != before->dtype || !is_shaped_like(g, before))) {
            sh_text was, is;
            (void)sh_fail(SHOAL_EINVAL, "a gradient hook returned %s for a gradient %s", sh_tensor_text(&is, g),
                          sh_tensor_text(&was, before));
            return NULL;
        }
    }
    return g;
}

static shoal_err check_saved(const sh_node *node)
{
    for (int i = 0; i < node->saved_count; i++) {
        if (node->saved[i] && node->saved[i]->storage->version != node->versions[i]) {
            sh_text text;
            return sh_fail(SHOAL_ESTATE, "backward of %s: a tensor it needs, %s, was changed in place after forward",
                           node->op->name, sh_tensor_text(&text, node->saved[i]));
        }
    }
    return SHOAL_OK;
}

static shoal_err visit(walk *w, sh_node *node)
{
    if (node->spent) {
        return sh_fail(
            SHOAL_ESTATE,
            "backward a second time through %s, whose record is gone; keep the record with shoal_backward_with",
            node->op->name);
    }
    SH_TRY(check_saved(node));
    for (int i = 0; i < node->out_count; i++) {
        if (node->hooks[i] && node->grad[i]) {
            shoal_tensor *g = run_hooks(node->hooks[i], node->grad[i]);
            if (!g) {
                return shoal_last_error();
            }
            (void)shoal_tensor_retain(g);
            shoal_tensor_release(node->grad[i]);
            node->grad[i] = g;
            node->grad_is_ours[i] = false;
        }
    }
    sh_back back = {.walk = w, .node = node, .kernels = node->device->kernels(), .exec = node->device->exec()};
    return back.exec ? node->op->backward(&back) : shoal_last_error();
}

static void forget_grads(sh_node *node)
{
    for (int i = 0; i < node->out_count; i++) {
        shoal_tensor_release(node->grad[i]);
        node->grad[i] = NULL;
    }
}

static shoal_err finish_hooked(walk *w, shoal_err err)
{
    for (size_t i = 0; i < w->leaf_count; i++) {
        hooked *h = &w->leaves[i];
        if (err == SHOAL_OK) {
            shoal_tensor *g = run_hooks(h->leaf->hooks, h->grad);
            err = g ? add_to_leaf(h->leaf, g, false) : shoal_last_error();
        }
        shoal_tensor_release(h->grad);
        shoal_tensor_release(h->leaf);
    }
    return err;
}

static shoal_err walk_all(walk *w, bool keep)
{
    shoal_err err = SHOAL_OK;
    while (w->count > 0) {
        sh_node *node = pop(w);
        size_t mark = shoal_scope_mark();
        if (err == SHOAL_OK) {
            err = visit(w, node);
        }
        forget_grads(node);
        if (err == SHOAL_OK && !keep) {
            node->spent = true;
            sh_node_empty(node);
        }
        sh_node_release(node);
        shoal_scope_release(mark);
    }
    return finish_hooked(w, err);
}

/* Returns the gradient to start with: a tensor of the scope, or the caller's. */
static shoal_tensor *first_grad(shoal_tensor *t, shoal_tensor *grad)
{
    if (!grad) {
        if (t->count != 1) {
            sh_text text;
            (void)sh_fail(SHOAL_EINVAL, "backward from %s, which is not a single number: pass a gradient",
                          sh_tensor_text(&text, t));
            return NULL;
        }
        shoal_tensor *one = sh_scope_add(sh_tensor_new_like(t));
        return one && sh_tensor_fill(one, 1) == SHOAL_OK ? one : NULL;
    }
    if (grad->dtype != t->dtype || grad->ndim != t->ndim ||
        memcmp(grad->shape, t->shape, sizeof t->shape[0] * (size_t)t->ndim) != 0) {
        sh_text own, given;
        (void)sh_fail(SHOAL_EINVAL, "backward from %s: a gradient %s does not match", sh_tensor_text(&own, t),
                      sh_tensor_text(&given, grad));
        return NULL;
    }
    if (grad->storage->device != t->storage->device) {
        (void)sh_device_mixed("backward", t->storage->device, grad->storage->device);
        return NULL;
    }
    return grad;
}

shoal_err shoal_backward_with(shoal_tensor *t, shoal_tensor *grad, bool keep)
{
    SH_NEED_TENSOR(t);
    if (grad) {
        SH_NEED_TENSOR(grad);
    }
    if (!t->requires_grad) {
        return sh_fail(SHOAL_ESTATE, "backward: this tensor was not computed from any tensor that needs a gradient");
    }
    size_t mark = shoal_scope_mark();
    shoal_no_grad_begin();
    walk w = {0};
    sh_edge root = {.node = t->node, .output = t->node_output, .leaf = t->node ? NULL : t};
    shoal_tensor *g = first_grad(t, grad);
    shoal_err err = g ? deposit(&w, &root, g, false) : shoal_last_error();
    if (err == SHOAL_OK) {
        err = walk_all(&w, keep);
    }
    free(w.heap);
    free(w.leaves);
    shoal_no_grad_end();
    shoal_scope_release(mark);
    return err;
}

shoal_err shoal_backward(shoal_tensor *t)
{
    SH_NEED_TENSOR(t);
    return shoal_backward_with(t, NULL, false);
}
