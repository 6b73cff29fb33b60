/* The table of ops. */
#include "autograd/op.h"

#define ENTRY(name) &sh_op_##name,

const sh_op *const sh_ops[] = {SH_OPS(ENTRY) NULL};
