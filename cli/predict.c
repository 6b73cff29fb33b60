/* shoal predict: classifies images with a saved model. */
#include "cli/framing.h"
#include "cli/weights.h"

#include <shoal/autograd.h>
#include <shoal/ops.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CLASSES 10
#define SHOWN 3 /* classes, for people */

typedef enum invert { INVERT_AUTO, INVERT_YES, INVERT_NO } invert;

typedef struct call {
    const char *model, *load, *data;
    invert invert;
    bool as_is, json;
} call;

/* How the images of a data set look, on which a model was trained. */
typedef struct set_look {
    double mean, deviation; /* of its pixels from 0 to 1 */
    const cli_framing *framing;
} set_look;

typedef struct answer {
    double probability[CLASSES];
    int order[CLASSES]; /* classes, the most probable first */
    bool inverted;
    cli_box box; /* what was cropped to; its width is 0 if nothing was cropped */
} answer;

/* ---- asking the model ---- */

static void sort(answer *a)
{
    for (int i = 0; i < CLASSES; i++) {
        int at = i;
        for (; at > 0 && a->probability[a->order[at - 1]] < a->probability[i]; at--) {
            a->order[at] = a->order[at - 1];
        }
        a->order[at] = i;
    }
}

static shoal_err ask(shoal_module *module, float pixels[CLI_FRAME * CLI_FRAME], answer *a)
{
    size_t mark = shoal_scope_mark();
    shoal_no_grad_begin();
    shoal_tensor *x = shoal_scoped(shoal_from_data(SHOAL_F32, pixels, 4, (int64_t[]){1, 1, CLI_FRAME, CLI_FRAME}));
    shoal_tensor *scores = shoal_module_forward(module, x);
    shoal_err err = scores != NULL ? SHOAL_OK : shoal_last_error();
    if (err == SHOAL_OK && shoal_tensor_count(scores) != CLASSES) {
        err = shoal_fail(SHOAL_EINVAL, "the model does not have %d classes", CLASSES);
    }
    for (int i = 0; err == SHOAL_OK && i < CLASSES; i++) {
        double log_p = 0;
        err = shoal_tensor_at(scores, 2, (int64_t[]){0, i}, &log_p);
        double p = exp(log_p);
        a->probability[i] = isnan(p) ? NAN : p; /* without a sign, which would be printed */
    }
    shoal_no_grad_end();
    shoal_scope_release(mark);
    sort(a);
    return err;
}

/* Makes the model's input of an image. Returns false and fills in why if the image shows nothing. */
static bool prepare(const call *c, const set_look *look, const cli_image *image, float *pixels, answer *a,
                    char why[CLI_IMAGE_WHY])
{
    a->inverted = c->invert == INVERT_YES || (c->invert == INVERT_AUTO && cli_framing_is_dark_on_light(image));
    if (c->as_is) {
        cli_image_scale(image, a->inverted, CLI_FRAME, pixels);
    } else if (!cli_framing_apply(look->framing, image, a->inverted, pixels, &a->box)) {
        snprintf(why, CLI_IMAGE_WHY, "nothing stands out from the background%s",
                 c->invert == INVERT_AUTO  ? ""
                 : c->invert == INVERT_YES ? " as darker; try --invert auto"
                                           : " as lighter; try --invert auto");
        return false;
    }
    for (int i = 0; i < CLI_FRAME * CLI_FRAME; i++) {
        pixels[i] = (float)((pixels[i] / 255.0 - look->mean) / look->deviation);
    }
    return true;
}

/* Returns false after printing what is wrong with the image. */
static bool predict(const call *c, const cli_weights *w, const char *path, const set_look *look, answer *a)
{
    char why[CLI_IMAGE_WHY];
    float pixels[CLI_FRAME * CLI_FRAME];
    cli_image image;
    bool good = cli_image_read(path, &image, why) && prepare(c, look, &image, pixels, a, why);
    cli_image_free(&image);
    if (good && ask(w->module, pixels, a) != SHOAL_OK) {
        snprintf(why, sizeof why, "%s", shoal_last_error_text());
        good = false;
    }
    if (!good) {
        cli_complain(&cli_predict, CLI_FAILED, "%s: %s", path, why);
    }
    return good;
}

/* ---- printing ---- */

static void print_text(FILE *f, const char *path, const answer *a)
{
    char *copy = strdup(path);
    fprintf(f, "%s: %d  %.2f %%  (", copy != NULL ? cli_printable(copy) : "", a->order[0],
            a->probability[a->order[0]] * 100);
    free(copy);
    for (int i = 1; i < SHOWN; i++) {
        fprintf(f, "%s%d %.2f %%", i > 1 ? ", " : "", a->order[i], a->probability[a->order[i]] * 100);
    }
    fprintf(f, ")%s%s\n", a->inverted ? ", dark on light" : "", a->box.width > 0 ? ", cropped" : "");
}

static void print_json(FILE *f, const char *path, const answer *a)
{
    fputs("{\"file\": ", f);
    cli_json_string(f, path);
    fprintf(f, ", \"class\": %d, \"probability\": ", a->order[0]);
    cli_json_number(f, a->probability[a->order[0]]);
    fprintf(f, ", \"inverted\": %s, \"cropped\": ", a->inverted ? "true" : "false");
    if (a->box.width > 0) {
        fprintf(f, "[%u, %u, %u, %u]", a->box.x, a->box.y, a->box.width, a->box.height);
    } else {
        fputs("null", f);
    }
    fputs(", \"probabilities\": [", f);
    for (int i = 0; i < CLASSES; i++) {
        fputs(i > 0 ? ", " : "", f);
        cli_json_number(f, a->probability[i]);
    }
    fputs("]}\n", f);
}

/* ---- the command ---- */

static const char *invert_word(size_t i)
{
    static const char *const words[] = {"auto", "yes", "no", NULL};
    return words[i];
}

static const char *const groups[] = {"options", NULL};

#define AT(field) CLI_FIELD(call, field)

static const cli_option options[] = {
    CLI_WEIGHTS_OPTIONS(call),
    {.name = "data",
     .value = "NAME",
     .kind = CLI_WORD,
     .help = "prepare images as for this data set (default: the data set it was trained on)",
     .words = shoal_data_name,
     AT(data)},
    {.name = "invert",
     .value = "WHEN",
     .kind = CLI_WORD,
     .help = "invert black and white; auto, the default, does if the image is darker than its edge",
     .words = invert_word,
     AT(invert)},
    {.name = "as-is",
     .kind = CLI_FLAG,
     .help = "do not crop and centre: pad the whole image to a square and scale it to 28 x 28",
     AT(as_is)},
    {.name = "json", .kind = CLI_FLAG, .help = "print one JSON object per image", AT(json)},
};

static const cli_table table = {
    .command = &cli_predict,
    .options = options,
    .count = sizeof options / sizeof *options,
    .size = sizeof(call),
    .required = "--load FILE",
    .arguments = "IMAGE ...",
    .groups = groups,
    .before = "Classifies images with a saved model. Prints the most probable class of each\n"
              "image, and the next two.\n\n"
              "An IMAGE is a PNG or PGM file of up to 8192 x 8192 pixels, or - for standard\n"
              "input. Colours become grey. The image is prepared as the data set was made:\n"
              "  mnist           crop to the digit, scale its longer side to 20 pixels, and\n"
              "                  move its centre of mass to the middle of 28 x 28\n"
              "  fashion-mnist   crop to the object, scale its longer side to 28 pixels, and\n"
              "                  move its middle to the middle of 28 x 28\n"
              "An image that already has this form is left as it is. A blank image is an error.\n",
    .after = "\nexamples:\n"
             "  shoal predict --load mnist.safetensors seven.png\n"
             "  convert seven.jpg png:- | shoal predict --load mnist.safetensors -\n",
};

static cli_exit predict_all(const call *c, const cli_weights *w, char **paths)
{
    const char *data = c->data != NULL ? c->data : w->data;
    set_look look = {.framing = cli_framing_of(data)};
    cli_output output;
    cli_exit status = CLI_OK;
    if (shoal_data_scale(data, &look.mean, &look.deviation) != SHOAL_OK &&
        shoal_data_scale(shoal_data_name(0), &look.mean, &look.deviation) != SHOAL_OK) { /* a folder counts as MNIST */
        return cli_complain(&cli_predict, CLI_FAILED, "%s: %s", c->load, shoal_last_error_text());
    }
    if (!cli_output_begin(&output)) {
        return CLI_FAILED;
    }
    for (; *paths != NULL && !output.failed; paths++) {
        answer a = {.inverted = false};
        if (predict(c, w, *paths, &look, &a)) {
            (c->json ? print_json : print_text)(output.file, *paths, &a);
            (void)cli_output_send(&output);
        } else {
            status = CLI_FAILED;
        }
    }
    cli_exit sent = cli_output_end(&output);
    return status != CLI_OK ? status : sent;
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
    if (c.load == NULL || first >= argc) {
        return cli_complain(&cli_predict, CLI_MISUSED, "%s",
                            c.load == NULL ? "--load FILE is missing: the model to use" : "no image given");
    }
    if (cli_weights_load(&cli_predict, c.load, c.model, &weights, &status)) {
        status = predict_all(&c, &weights, argv + first);
    }
    cli_weights_free(&weights);
    return status;
}

const cli_command cli_predict = {
    .name = "predict",
    .summary = "classify images with a saved model",
    .run = run,
    .table = &table,
};
