/* shoal bench: measures the primitives of the library and prints them next to their physical limits. */
#include "cli/cli.h"

#include <bench/bench.h>

#include <string.h>

static const char help[] = "usage: shoal bench [WHAT] [--json]\n"
                           "Measures the library on this machine, next to the physical limit of each\n"
                           "measurement.\n\n"
                           "what to measure:\n"
                           "  queue       round trips through two queues, messages per second, 64 MiB\n"
                           "  barrier     a barrier of two processes\n"
                           "  spawn       starting and joining processes, and the memory of an idle one\n"
                           "  heap        allocating and freeing blocks\n"
                           "  tensor      sending shared tensors: round trips, one way, 64 MiB\n"
                           "  train       training speed of one process with one thread\n"
                           "  all         all of these (default)\n\n"
                           "options:\n"
                           "  --json      print one JSON object per measurement\n"
                           "  -h, --help  print this help and exit\n"
                           "  --version   print the version and exit\n";

static const struct {
    const char *name;
    shoal_err (*run)(bench_report *report);
} parts[] = {{"queue", bench_queue}, {"barrier", bench_barrier}, {"spawn", bench_spawn},
             {"heap", bench_heap},   {"tensor", bench_tensor},   {"train", bench_train}};

#define PARTS (sizeof parts / sizeof *parts)

static bool is_met(const bench_line *l)
{
    return l->wanted == BENCH_AT_MOST ? l->value <= l->target : l->value >= l->target;
}

static bool write_json(const bench_line *l, void *context)
{
    cli_output *output = context;
    fprintf(output->file, "{\"name\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"", l->name, l->value, l->unit);
    if (l->limit_name != NULL) {
        fprintf(output->file, ", \"limit\": %.6g, \"limit_name\": \"%s\"", l->limit, l->limit_name);
    } else {
        fputs(", \"limit\": null, \"limit_name\": null", output->file);
    }
    if (l->wanted != BENCH_ANY) {
        fprintf(output->file, ", \"target\": %.6g, \"ok\": %s", l->target, is_met(l) ? "true" : "false");
    }
    fputs("}\n", output->file);
    return cli_output_send(output);
}

static bool skip_json(const char *name, const char *why, void *context)
{
    cli_output *output = context;
    fprintf(output->file, "{\"name\": \"%s\", \"value\": null, \"skipped\": ", name);
    cli_json_string(output->file, why);
    fputs("}\n", output->file);
    return cli_output_send(output);
}

/* Writes value with about four digits and without an exponent. */
static const char *short_number(double value, char buffer[32])
{
    int digits = value >= 1000 ? 0 : value >= 100 ? 1 : value >= 10 ? 2 : 3;
    snprintf(buffer, 32, "%.*f", digits, value);
    return buffer;
}

static bool write_row(const bench_line *l, void *context)
{
    cli_output *output = context;
    char value[32], limit[32], target[32];
    fprintf(output->file, "%-35s %11s %-3s", l->name, short_number(l->value, value), l->unit);
    if (l->limit_name != NULL) {
        fprintf(output->file, " %6.2f x %s %s", l->value / l->limit, l->limit_name, short_number(l->limit, limit));
    }
    if (l->wanted != BENCH_ANY) {
        fprintf(output->file, "%s %s %s: %s", l->limit_name != NULL ? ";" : "         ",
                l->wanted == BENCH_AT_MOST ? "at most" : "at least", short_number(l->target, target),
                is_met(l) ? "ok" : "missed");
    }
    fputc('\n', output->file);
    return cli_output_send(output);
}

static bool skip_row(const char *name, const char *why, void *context)
{
    cli_output *output = context;
    fprintf(output->file, "%-35s     skipped: %s\n", name, why);
    return cli_output_send(output);
}

static cli_exit measure(size_t first, size_t last, bool json)
{
    cli_output output;
    shoal_err err = SHOAL_OK;
    if (!cli_output_begin(&output)) {
        return CLI_FAILED;
    }
    bench_report report = {
        .line = json ? write_json : write_row, .skip = json ? skip_json : skip_row, .context = &output};
    for (size_t i = first; i <= last && err == SHOAL_OK; i++) {
        err = parts[i].run(&report);
    }
    if (err != SHOAL_OK && !output.failed) {
        cli_complain(&cli_bench, CLI_FAILED, "%s: %s", shoal_err_name(err), shoal_last_error_text());
    }
    cli_exit status = cli_output_end(&output);
    return err != SHOAL_OK ? CLI_FAILED : status;
}

static cli_exit run(int argc, char **argv)
{
    cli_options options;
    cli_exit status;
    if (!cli_options_read(&cli_bench, argc, argv, &options, &status)) {
        return status;
    }
    if (options.argument == NULL || strcmp(options.argument, "all") == 0) {
        return measure(0, PARTS - 1, options.json);
    }
    for (size_t i = 0; i < PARTS; i++) {
        if (strcmp(options.argument, parts[i].name) == 0) {
            return measure(i, i, options.json);
        }
    }
    return cli_complain(&cli_bench, CLI_MISUSED,
                        "unknown measurement '%s'; use queue, barrier, spawn, heap, tensor, train or all",
                        options.argument);
}

const cli_command cli_bench = {
    .name = "bench",
    .summary = "measure the speed of the library on this machine",
    .help = help,
    .run = run,
    .words = "queue barrier spawn heap tensor train all --json",
};
