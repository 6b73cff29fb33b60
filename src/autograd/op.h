/* Ops: what each computes, what shape that has, and what its gradient is, side by side in one table entry.
 *
 * A public function fills a sh_call and hands it to sh_run with its op. sh_run lets the op's shape rule look at the inputs,
 * makes the outputs, runs forward and, when a gradient will be wanted, keeps what backward needs in a node. backward.c walks
 * the nodes.
 *
 * Nothing in an op may read elements on the host: data may be on a card. It goes through call->kernels and call->exec. */
#ifndef SH_AUTOGRAD_OP_H
#define SH_AUTOGRAD_OP_H

#include "autograd/op_list.h"
#include "tensor/tensor.h"

#include <shoal/autograd.h>
#include <shoal/ops.h>

#define SH_OP_INPUTS 8
#define SH_OP_OUTPUTS 2
#define SH_OP_SAVED 8

/* Numbers that belong to a call: what each means is the op's business. */
typedef struct sh_attrs {
    int64_t i[2 * SHOAL_MAX_DIMS + 2];
    double d[3];
} sh_attrs;

typedef struct sh_op sh_op;

typedef struct sh_call {
    shoal_tensor *in[SH_OP_INPUTS]; /* borrowed; NULL for one that is left out */
    int in_count;
    sh_attrs a;

    /* Set by sh_run before shape: */
    const sh_op *op;
    const sh_device *device;
    const sh_kernels *kernels;
    sh_exec *exec;
    bool need[SH_OP_INPUTS]; /* backward will want a gradient for this input */
    bool record;             /* for any */

    /* Set by the shape rule: each output's shape; for a view also its strides and offset in in[0]'s storage. */
    sh_shape shape[SH_OP_OUTPUTS];
    int out_count; /* 1 unless the shape rule says otherwise */

    /* Made by sh_run before forward; contiguous, or a view of in[0], or in[0] itself when in place. */
    shoal_tensor *out[SH_OP_OUTPUTS];

    /* What forward keeps for backward: sh_call_save_in and its like. */
    shoal_tensor *saved[SH_OP_SAVED];
    uint32_t versions[SH_OP_SAVED];
    int saved_count;
    bool in_place;
} sh_call;

typedef struct sh_back sh_back;

typedef enum sh_op_kind {
    SH_OP_COMPUTES, /* outputs are new */
    SH_OP_VIEWS,    /* the output is a view of in[0]; forward may be NULL */
} sh_op_kind;

struct sh_op {
    const char *name;
    sh_op_kind kind;

    /* Checks the inputs (words with shapes and dtypes) and fills shape. */
    shoal_err (*shape)(sh_call *call);
    shoal_err (*forward)(sh_call *call);

    /* Gives a gradient for each input that needs one. Runs without recording, in a scope of its own, so it may be written
     * with the public functions. NULL: the op has no gradient, its output needs none. */
    shoal_err (*backward)(sh_back *back);
};

/* Runs the op. The first output, which belongs to the scope, like the others (call->out); NULL after an error. An input of
 * NULL among the first `required` is somebody's earlier error: NULL, with that error left as it is. */
shoal_tensor *sh_run(const sh_op *op, sh_call *call, int required);

/* The same, into in[0]; shape must come to in[0]'s shape and dtype. */
shoal_tensor *sh_run_in_place(const sh_op *op, sh_call *call, int required);

/* In forward, before it writes: keeps an input (NULL stays NULL) or an output for backward, as saved number saved_count. An
 * input that an op in place is about to overwrite is copied. save_in_if leaves the place empty unless wanted: what no gradient
 * needs may change later. Do nothing unless call->record. Errors: SHOAL_ENOMEM. */
shoal_err sh_call_save_in(sh_call *call, int i);
shoal_err sh_call_save_in_if(sh_call *call, int i, bool wanted);
shoal_err sh_call_save_out(sh_call *call, int i);

/* In forward: a new contiguous tensor for backward alone (a mask, winners): the scope's, and saved. When nothing is recorded it
 * is only the scope's. */
shoal_tensor *sh_call_scratch(sh_call *call, shoal_dtype dtype, int ndim, const int64_t *shape);

/* In backward: the gradient of an output (NULL: none arrived, it counts as zeros), what forward saved, the attributes. */
shoal_tensor *sh_back_grad(const sh_back *back, int output);
shoal_tensor *sh_back_saved(const sh_back *back, int i);
const sh_attrs *sh_back_attrs(const sh_back *back);
bool sh_back_needs(const sh_back *back, int input);
void sh_back_shape(const sh_back *back, int input, sh_shape *out);
const sh_kernels *sh_back_kernels(const sh_back *back);
sh_exec *sh_back_exec(const sh_back *back);

/* Hands over the gradient of an input: the scope's, borrowed. Of a broadcast input it is summed to the input's shape. NULL
 * returns the error that made it NULL. Nothing happens when the input needs none. */
shoal_err sh_back_give(sh_back *back, int input, shoal_tensor *grad);

/* Where to write the gradient of an input, contiguous and of its shape, so that a leaf's needs no second pass: with
 * *out_add it holds a sum to be added to, otherwise garbage to be overwritten. Give it afterwards like any other. NULL:
 * SHOAL_ENOMEM. For kernels that only add, sh_back_target_zeroed. */
shoal_tensor *sh_back_target(sh_back *back, int input, bool *out_add);
shoal_tensor *sh_back_target_zeroed(sh_back *back, int input);

/* Zeros of a tensor's dtype and device, in another shape: the scope's. NULL gives NULL. */
shoal_tensor *sh_zeros_on(const shoal_tensor *like, int ndim, const int64_t *shape);

/* A number, likewise, as a 0-d tensor. */
shoal_tensor *sh_op_scalar_on(const shoal_tensor *like, double value);

/* An index tensor as kernels want it: i64, contiguous; the scope's, or the argument. NULL gives NULL. */
shoal_tensor *sh_as_index(shoal_tensor *t, const char *op);

#define SH_OP_DECLARE(name) extern const sh_op sh_op_##name;
SH_OPS(SH_OP_DECLARE)
#undef SH_OP_DECLARE

/* All ops, for the tests and for who wants to know; ends with NULL. */
extern const sh_op *const sh_ops[];

#endif
