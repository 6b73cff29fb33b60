/* shoal eval: tests a saved model on a test set. */
#include "cli/weights.h"

#include <shoal/train.h>

#include <inttypes.h>
#include <math.h>
#include <time.h>

#define CLASSES 10

typedef struct call {
    const char *model, *load, *data;
    bool json;
} call;

typedef struct answer {
    int64_t images;
    double loss, accuracy, seconds;
    int64_t confusion[CLASSES][CLASSES]; /* [true class][predicted class] */
} answer;

/* ---- testing ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static shoal_err test(shoal_module *module, shoal_dataset *set, answer *a)
{
    a->images = shoal_dataset_length(set);
    if (a->images == 0) {
        return shoal_fail(SHOAL_EINVAL, "no images to test with");
    }
    double begun = now();
    shoal_err err = shoal_evaluate_classes(module, set, CLASSES, &a->confusion[0][0], &a->loss, &a->accuracy);
    a->seconds = now() - begun;
    a->loss = isnan(a->loss) ? NAN : a->loss; /* without a sign, which would be printed */
    return err;
}

/* ---- printing ---- */

static int64_t images_of(const answer *a, int class)
{
    int64_t sum = 0;
    for (int i = 0; i < CLASSES; i++) {
        sum += a->confusion[class][i];
    }
    return sum;
}

/* Returns the fraction of the images of a class that the model got right. NaN: the class has no images. */
static double class_accuracy(const answer *a, int class)
{
    int64_t images = images_of(a, class);
    return images > 0 ? (double)a->confusion[class][class] / (double)images : NAN;
}

static void print_text(FILE *f, const answer *a, const call *c, const cli_weights *w)
{
    fprintf(f, "%s of %s on %s, %" PRId64 " images\n\n", w->model, c->load, c->data, a->images);
    fprintf(f, "  test loss  %.4f\n  accuracy   %.2f %%\n  speed      %.0f images/s\n\n", a->loss, a->accuracy * 100,
            (double)a->images / a->seconds);
    fputs("  class  images  accuracy predicted", f);
    for (int i = 0; i < CLASSES; i++) {
        fprintf(f, i == 0 ? "%2d" : "%6d", i);
    }
    fputc('\n', f);
    for (int is = 0; is < CLASSES; is++) {
        fprintf(f, "  %5d %7" PRId64, is, images_of(a, is));
        fprintf(f, images_of(a, is) > 0 ? " %7.2f %%      " : "       -        ", class_accuracy(a, is) * 100);
        for (int said = 0; said < CLASSES; said++) {
            fprintf(f, "%6" PRId64, a->confusion[is][said]);
        }
        fputc('\n', f);
    }
}

static void print_json(FILE *f, const answer *a, const call *c, const cli_weights *w)
{
    fputs("{\"model\": ", f);
    cli_json_string(f, w->model);
    fputs(", \"file\": ", f);
    cli_json_string(f, c->load);
    fputs(", \"data\": ", f);
    cli_json_string(f, c->data);
    fprintf(f, ", \"images\": %" PRId64 ", \"test_loss\": ", a->images);
    cli_json_number(f, a->loss);
    fprintf(f, ", \"test_accuracy\": %.9g, \"seconds\": %.6g", a->accuracy, a->seconds);
    fprintf(f, ", \"images_per_second\": %.6g, \"class_accuracy\": [", (double)a->images / a->seconds);
    for (int i = 0; i < CLASSES; i++) {
        fputs(i > 0 ? ", " : "", f);
        cli_json_number(f, class_accuracy(a, i));
    }
    fputs("], \"confusion\": [", f);
    for (int i = 0; i < CLASSES * CLASSES; i++) {
        const char *before = i == 0 ? "[" : i % CLASSES == 0 ? "], [" : ", ";
        fprintf(f, "%s%" PRId64, before, a->confusion[i / CLASSES][i % CLASSES]);
    }
    fputs("]]}\n", f);
}

/* ---- the command ---- */

static const char *const groups[] = {"options", NULL};

#define AT(field) CLI_FIELD(call, field)

static const cli_option options[] = {
    CLI_WEIGHTS_OPTIONS(call),
    {.name = "data",
     .value = "NAME",
     .kind = CLI_FOLDER,
     .help = "the test set (default: the data set it was trained on): a folder, or a name",
     .words = shoal_data_name,
     AT(data)},
    {.name = "json", .kind = CLI_FLAG, .help = "print one JSON object", AT(json)},
};

static const cli_table table = {
    .command = &cli_eval,
    .options = options,
    .count = sizeof options / sizeof *options,
    .size = sizeof(call),
    .required = "--load FILE",
    .groups = groups,
    .before = "Tests a saved model. Prints its loss, its accuracy, the accuracy of each class,\n"
              "and the confusion matrix.\n",
    .after = "\nexamples:\n"
             "  shoal train --epochs 1 --save mnist.safetensors\n"
             "  shoal eval --load mnist.safetensors\n"
             "  shoal eval --load mnist.safetensors --data fashion-mnist --json\n",
};

static cli_exit evaluate(call *c, const cli_weights *w)
{
    answer a = {.images = 0};
    cli_output output;
    c->data = c->data != NULL ? c->data : w->data;
    shoal_dataset *set = cli_test_set(c->data);
    shoal_err err = set != NULL ? test(w->module, set, &a) : shoal_last_error();
    shoal_dataset_release(set);
    if (err != SHOAL_OK) {
        return cli_complain(&cli_eval, CLI_FAILED, "%s", shoal_last_error_text());
    }
    if (!cli_output_begin(&output)) {
        return CLI_FAILED;
    }
    (c->json ? print_json : print_text)(output.file, &a, c, w);
    return cli_output_end(&output);
}

static cli_exit run(int argc, char **argv)
{
    call c = {.json = false};
    cli_given given = {.line = {0}};
    cli_weights weights;
    cli_exit status;
    int first;
    if (!cli_table_read(&table, argc, argv, &c, &given, &first, &status)) {
        return status;
    }
    if (c.load == NULL) {
        return cli_complain(&cli_eval, CLI_MISUSED, "--load FILE is missing: the model to test");
    }
    if (cli_weights_load(&cli_eval, c.load, c.model, &weights, &status)) {
        status = evaluate(&c, &weights);
    }
    cli_weights_free(&weights);
    return status;
}

const cli_command cli_eval = {
    .name = "eval",
    .summary = "test a saved model",
    .run = run,
    .table = &table,
};
