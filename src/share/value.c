/* Tensors, sparse tensors and modules as members of values: the calls of their kinds (ipc/value.h). */
#include "share/module.h"
#include "share/sparse.h"

#include "ipc/value.h"

static shoal_err describe_tensor(void *handle, const char *call, shoal_block **out_block)
{
    shoal_tensor *t = handle;
    shoal_block *description;
    if (sh_tensor_is_released(t)) {
        return sh_released_error(call);
    }
    SH_TRY(sh_share_describe_tensor(t, &description));
    *out_block = sh_block_retain(description);
    return SHOAL_OK;
}

static void *open_tensor(shoal_block *description)
{
    shoal_tensor *t = sh_share_tensor_of(sh_block_retain(description));
    if (!t) {
        sh_block_release(description);
    }
    return t;
}

static void drop_tensor(void *tensor)
{
    shoal_tensor_release(tensor);
}

static shoal_err describe_sparse(void *handle, const char *call, shoal_block **out_block)
{
    (void)call;
    return sh_sparse_describe(handle, out_block);
}

static void *open_sparse(shoal_block *record)
{
    return sh_sparse_of_record(record);
}

static void drop_sparse(void *sparse)
{
    shoal_sparse_destroy(sparse);
}

static shoal_err describe_module(void *handle, const char *call, shoal_block **out_block)
{
    (void)call;
    return sh_share_describe_module(handle, out_block);
}

static void *open_module(shoal_block *record)
{
    return sh_share_module_of(record);
}

static void drop_module(void *module)
{
    shoal_module_destroy(module);
}

__attribute__((constructor)) static void register_kinds(void)
{
    sh_value_kinds[SHOAL_KIND_TENSOR] = (sh_value_calls){describe_tensor, open_tensor, drop_tensor, sh_share_mark_work};
    sh_value_kinds[SHOAL_KIND_SPARSE] = (sh_value_calls){describe_sparse, open_sparse, drop_sparse, sh_share_mark_work};
    sh_value_kinds[SHOAL_KIND_MODULE] = (sh_value_calls){describe_module, open_module, drop_module, sh_share_mark_work};
}
