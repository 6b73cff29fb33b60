/* The parameters as a file. */
#include "train/job.h"

#include <shoal/file.h>

#include <stdio.h>

static shoal_err set_number(shoal_tensors *set, const char *name, double x)
{
    char text[32];
    snprintf(text, sizeof text, "%.9g", x);
    return shoal_tensors_set_text(set, name, text);
}

static shoal_err fill(sh_job *job, shoal_tensors *set)
{
    shoal_err err = SHOAL_OK;
    for (shoal_named it = {0}; err == SHOAL_OK && shoal_module_next(job->model, &it);) {
        err = shoal_tensors_add(set, it.name, it.tensor);
    }
    if (err == SHOAL_OK) {
        err = shoal_tensors_set_text(set, "method", job->method->name);
    }
    if (err == SHOAL_OK && job->own_model) {
        err = shoal_tensors_set_text(set, "model", job->o.model);
    }
    const struct {
        const char *name;
        double x;
    } numbers[] = {
        {"workers", job->o.workers},          {"epochs", (double)job->result.epochs},
        {"batch", (double)job->o.batch},      {"lr", job->o.lr},
        {"momentum", job->o.momentum},        {"seed", (double)job->o.seed},
        {"test_loss", job->result.test_loss}, {"test_accuracy", job->result.test_accuracy},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && err == SHOAL_OK; i++) {
        err = set_number(set, numbers[i].name, numbers[i].x);
    }
    return err;
}

shoal_err sh_job_save(sh_job *job)
{
    if (job->o.save == NULL) {
        return SHOAL_OK;
    }
    shoal_tensors *set = shoal_tensors_create();
    shoal_err err = set ? fill(job, set) : shoal_last_error();
    if (err == SHOAL_OK) {
        err = shoal_safetensors_write(job->o.save, set);
    }
    shoal_tensors_destroy(set);
    if (err == SHOAL_OK) {
        sh_job_tell(job, SHOAL_TRAIN_SAVE, -1, job->o.save);
    }
    return err;
}
