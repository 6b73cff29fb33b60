/* Ops: what each op computes, the shape of its result, and its gradient, side by side in one table entry.
 *
 * A public function fills a sh_call and passes it to sh_run with its op. sh_run calls the op's shape rule, makes the
 * outputs, runs forward and, if a gradient will be needed, keeps what backward needs in a node. backward.c visits the
 * nodes.
 *
 * No op may read elements on the host, because data may be on a card. Ops use call->kernels and call->exec. */
#ifndef SH_AUTOGRAD_OP_H
#define SH_AUTOGRAD_OP_H

#include "autograd/op_list.h"
#include "tensor/tensor.h"

#include <shoal/autograd.h>
#include <shoal/ops.h>

#define SH_OP_INPUTS 8
#define SH_OP_OUTPUTS 2
#define SH_OP_SAVED 8

/* The numbers of a call. Each op defines what they mean. */
typedef struct sh_attrs {
    int64_t i[2 * SHOAL_MAX_DIMS + 2];
    double d[3];
} sh_attrs;

typedef struct sh_op sh_op;

typedef struct sh_call {
    shoal_tensor *in[SH_OP_INPUTS]; /* borrowed; NULL if an optional input is omitted */
    int in_count;
    sh_attrs a;

    /* Set by sh_run before shape: */
    const sh_op *op;
    const sh_device *device;
    const sh_kernels *kernels;
    sh_exec *exec;
    bool need[SH_OP_INPUTS]; /* backward needs a gradient for this input */
    bool record;             /* backward needs a gradient for any input */

    /* Set by the shape rule: the shape of each output; for a view also its strides
     * and its offset in in[0]'s storage. */
    sh_shape shape[SH_OP_OUTPUTS];
    const sh_device *out_device; /* of the outputs; the inputs' unless the caller of sh_run sets another */
    int out_count;               /* 1 unless the shape rule sets another number */

    /* Made by sh_run before forward: contiguous tensors, a view of in[0], or, in place, in[0] itself. */
    shoal_tensor *out[SH_OP_OUTPUTS];

    /* Kept by forward for backward, through sh_call_save_in and the like. */
    shoal_tensor *saved[SH_OP_SAVED];
    uint32_t versions[SH_OP_SAVED];
    int saved_count;
    bool in_place;
} sh_call;

typedef struct sh_back sh_back;

typedef enum sh_op_kind {
    SH_OP_COMPUTES, /* outputs are new */
    SH_OP_COPIES,   /* as SH_OP_COMPUTES, and the inputs may be on different devices; call->device is that of in[0] */
    SH_OP_VIEWS,    /* the output is a view of in[0]; forward may be NULL */
} sh_op_kind;

struct sh_op {
    const char *name;
    sh_op_kind kind;

    /* Checks the inputs and fills shape. Its error texts contain shapes and dtypes. */
    shoal_err (*shape)(sh_call *call);
    shoal_err (*forward)(sh_call *call);

    /* Gives a gradient for each input that needs one. It runs in a separate scope and is not recorded, so it may call
     * public functions. NULL if the op has no gradient; its outputs then need none. */
    shoal_err (*backward)(sh_back *back);
};

/* Runs the op. Returns the first output, or NULL after an error. The scope owns all outputs (call->out). If one of the
 * first `required` inputs is NULL, an earlier call failed: returns NULL and leaves the error of that call unchanged. */
shoal_tensor *sh_run(const sh_op *op, sh_call *call, int required);

/* The same, but writes into in[0]. The shape rule must give in[0]'s shape and dtype. */
shoal_tensor *sh_run_in_place(const sh_op *op, sh_call *call, int required);

/* For forward, before it writes: keep an input (NULL stays NULL) or an output for backward, at index saved_count. An
 * input that an op in place is about to overwrite is copied. save_in_if leaves its place empty unless wanted, because
 * data that no gradient needs may change later. They do nothing unless call->record is set. Errors: SHOAL_ENOMEM. */
shoal_err sh_call_save_in(sh_call *call, int i);
shoal_err sh_call_save_in_if(sh_call *call, int i, bool wanted);
shoal_err sh_call_save_out(sh_call *call, int i);

/* For forward: returns a new contiguous tensor that only backward needs, such as a mask or winners. The scope owns it;
 * if the call is recorded, it is also saved. */
shoal_tensor *sh_call_scratch(sh_call *call, shoal_dtype dtype, int ndim, const int64_t *shape);

/* For backward: the gradient of an output (NULL if none arrived;
 * it then counts as zeros), the saved tensors, the attributes. */
shoal_tensor *sh_back_grad(const sh_back *back, int output);
shoal_tensor *sh_back_saved(const sh_back *back, int i);
const sh_attrs *sh_back_attrs(const sh_back *back);
bool sh_back_needs(const sh_back *back, int input);
void sh_back_shape(const sh_back *back, int input, sh_shape *out);
const sh_kernels *sh_back_kernels(const sh_back *back);
sh_exec *sh_back_exec(const sh_back *back);

/* Sets the gradient of an input; grad is borrowed from the scope. If the input was broadcast, the gradient is summed to
 * its shape; if it has another dtype or device than the input, it is copied. A NULL grad is the result of a failed
 * call: returns its error. Does nothing if the input needs no gradient. */
shoal_err sh_back_give(sh_back *back, int input, shoal_tensor *grad);

/* Returns where to write the gradient of an input: a contiguous tensor of its shape, which may be the leaf's own grad,
 * so that no second pass has to add it. If *out_add is set, it holds a sum to add to; otherwise garbage to overwrite.
 * Pass it to sh_back_give afterwards. sh_back_target_zeroed is for kernels that only add. Return NULL and set
 * SHOAL_ENOMEM if there is no memory. */
shoal_tensor *sh_back_target(sh_back *back, int input, bool *out_add);
shoal_tensor *sh_back_target_zeroed(sh_back *back, int input);

/* Returns zeros of the given shape, with like's dtype and device. The scope owns them. NULL gives NULL. */
shoal_tensor *sh_zeros_on(const shoal_tensor *like, int ndim, const int64_t *shape);

/* Returns a number as a 0-d tensor, in the same way. */
shoal_tensor *sh_op_scalar_on(const shoal_tensor *like, double value);

/* shoal_to_device, for any device. */
shoal_tensor *sh_op_to_device(shoal_tensor *a, const sh_device *device);

/* Makes an optional input contiguous; NULL stays NULL. Returns false, and sets the error, if that fails: the op must
 * not run as if the input was omitted. */
bool sh_contiguous_if_given(const char *call, shoal_tensor **t);

/* Returns an index tensor as kernels need it, i64 and contiguous: a tensor of the scope, or t itself.
 * NULL gives NULL. */
shoal_tensor *sh_as_index(shoal_tensor *t, const char *op);

#define SH_OP_DECLARE(name) extern const sh_op sh_op_##name;
SH_OPS(SH_OP_DECLARE)
#undef SH_OP_DECLARE

/* All ops, terminated by NULL. For the tests. */
extern const sh_op *const sh_ops[];

#endif
