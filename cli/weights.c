#include "cli/weights.h"

#include <shoal/autograd.h>
#include <shoal/ops.h>

#include <inttypes.h>
#include <string.h>

#define STATE "shoal/"

/* "[32, 1, 5, 5]" */
static const char *shape_text(const shoal_tensor *t, char buffer[200])
{
    size_t at = (size_t)snprintf(buffer, 200, "[");
    for (int i = 0; i < shoal_tensor_ndim(t) && at < 180; i++) {
        at += (size_t)snprintf(buffer + at, 200 - at, "%s%" PRId64, i > 0 ? ", " : "", shoal_tensor_size(t, i));
    }
    snprintf(buffer + at, 200 - at, "]");
    return buffer;
}

static bool same_shape(const shoal_tensor *a, const shoal_tensor *b)
{
    bool same = shoal_tensor_ndim(a) == shoal_tensor_ndim(b);
    for (int i = 0; same && i < shoal_tensor_ndim(a); i++) {
        same = shoal_tensor_size(a, i) == shoal_tensor_size(b, i);
    }
    return same;
}

static bool is_float(const shoal_tensor *t)
{
    shoal_dtype d = shoal_tensor_dtype(t);
    return d == SHOAL_F32 || d == SHOAL_F64 || d == SHOAL_F16 || d == SHOAL_BF16;
}

static bool take_one(const cli_command *command, const char *path, const cli_weights *w, const shoal_named *it)
{
    char wanted[200], got[200];
    shoal_tensor *t = shoal_tensors_find(w->file, it->name);
    if (t == NULL) {
        cli_complain(command, CLI_FAILED, "%s: there is no tensor '%s', which %s has", path, it->name, w->model);
    } else if (!same_shape(t, it->tensor)) {
        cli_complain(command, CLI_FAILED, "%s: the tensor '%s' is %s, but in %s %s", path, it->name, shape_text(t, got),
                     w->model, shape_text(it->tensor, wanted));
    } else if (is_float(t) != is_float(it->tensor)) {
        cli_complain(command, CLI_FAILED, "%s: the tensor '%s' is of %s, but in %s of %s", path, it->name,
                     shoal_dtype_name(shoal_tensor_dtype(t)), w->model,
                     shoal_dtype_name(shoal_tensor_dtype(it->tensor)));
    } else if (shoal_copy_(it->tensor, t) == NULL) {
        cli_complain(command, CLI_FAILED, "%s: %s", path, shoal_last_error_text());
    } else {
        return true;
    }
    return false;
}

static bool take_all(const cli_command *command, const char *path, const cli_weights *w)
{
    bool good = true;
    for (shoal_named it = {0}; good && shoal_module_next(w->module, &it);) {
        good = take_one(command, path, w, &it);
    }
    for (size_t i = 0; good && i < shoal_tensors_count(w->file); i++) {
        const char *name = shoal_tensors_name(w->file, i);
        if (strncmp(name, STATE, strlen(STATE)) != 0 && shoal_module_get(w->module, name) == NULL) {
            cli_complain(command, CLI_FAILED, "%s: the tensor '%s' is none of %s", path, name, w->model);
            good = false;
        }
    }
    return good;
}

bool cli_weights_load(const cli_command *command, const char *path, const char *model, cli_weights *out_weights,
                      cli_exit *out_status)
{
    cli_weights w = {.file = shoal_safetensors_read(path)};
    *out_weights = w;
    if (w.file == NULL) {
        *out_status = cli_complain(command, CLI_FAILED, "%s", shoal_last_error_text());
        return false;
    }
    w.model = model != NULL ? model : shoal_tensors_text(w.file, "model");
    w.data = shoal_tensors_text(w.file, "data");
    w.data = w.data != NULL ? w.data : shoal_data_name(0);
    w.module = w.model != NULL ? shoal_model_create(w.model) : NULL;
    *out_weights = w;
    if (w.model == NULL) {
        *out_status = cli_complain(command, CLI_MISUSED, "%s does not say of which model it is; give --model", path);
        return false;
    }
    if (w.module == NULL) {
        *out_status = cli_complain(command, CLI_FAILED, "%s: %s", path, shoal_last_error_text());
        return false;
    }
    shoal_module_train(w.module, false);
    shoal_no_grad_begin();
    bool good = take_all(command, path, &w);
    shoal_no_grad_end();
    *out_status = good ? CLI_OK : CLI_FAILED;
    return good;
}

void cli_weights_free(cli_weights *weights)
{
    shoal_module_destroy(weights->module);
    shoal_tensors_destroy(weights->file);
    *weights = (cli_weights){.module = NULL};
}

shoal_dataset *cli_test_set(const char *data)
{
    if (strcmp(data, "fashion-mnist") == 0) {
        return shoal_fashion_mnist(SHOAL_TEST);
    }
    return strcmp(data, "mnist") == 0 ? shoal_mnist(SHOAL_TEST) : shoal_mnist_at(data, SHOAL_TEST);
}
