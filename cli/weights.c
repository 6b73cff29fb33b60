#include "cli/weights.h"

#include <string.h>

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
        *out_status = cli_complain(command, CLI_MISUSED, "%s does not name its model; give --model", path);
        return false;
    }
    if (w.module == NULL) {
        *out_status = cli_complain(command, CLI_FAILED, "%s: %s", path, shoal_last_error_text());
        return false;
    }
    if (shoal_weights_read(path, w.module) != SHOAL_OK) {
        *out_status = cli_complain(command, CLI_FAILED, "%s", shoal_last_error_text());
        return false;
    }
    shoal_module_train(w.module, false);
    *out_status = CLI_OK;
    return true;
}

void cli_weights_free(cli_weights *weights)
{
    shoal_module_destroy(weights->module);
    shoal_tensors_destroy(weights->file);
    *weights = (cli_weights){.module = NULL};
}

const char *cli_model_word(size_t i)
{
    return shoal_model_names()[i];
}

shoal_dataset *cli_test_set(const char *data)
{
    if (strcmp(data, "fashion-mnist") == 0) {
        return shoal_fashion_mnist(SHOAL_PART_TEST);
    }
    return strcmp(data, "mnist") == 0 ? shoal_mnist(SHOAL_PART_TEST) : shoal_mnist_at(data, SHOAL_PART_TEST);
}
