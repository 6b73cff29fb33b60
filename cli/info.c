/* shoal info: prints the version, the machine and the limits of a world. */
#include "cli/cli.h"
#include "cli/machine.h"

#include <shoal/device.h>
#include <shoal/version.h>
#include <shoal/world.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char help[] = "usage: shoal info [--json]\n"
                           "Prints the version, the processor and its features, the limits for worlds on\n"
                           "this machine, and its NVIDIA GPUs.\n\n"
                           "options:\n"
                           "  --json      print one JSON object\n"
                           "  -h, --help  print this help and exit\n"
                           "  --version   print the version and exit\n";

/* Limits of the memory layout, as <shoal/world.h> states them. */
#define PROCESSES_MAX 4094
#define SPANS_MAX 4194304
#define BLOCK_MAX (UINT64_C(1) << 40)

/* The limits of a world that this process would create, or the error why it cannot. */
typedef struct world_look {
    shoal_err err;
    shoal_world_info info;
} world_look;

/* The GPUs that this process sees, or the error why it sees none. Opens no GPU. */
typedef struct gpus_look {
    shoal_err err;
    char text[300];
    int count;
    shoal_cuda_info *list; /* NULL: none was read; freed by run */
} gpus_look;

static void look_at_gpus(gpus_look *c)
{
    *c = (gpus_look){0};
    c->err = shoal_cuda_count(&c->count);
    c->list = calloc((size_t)c->count, sizeof *c->list);
    if (c->err == SHOAL_OK && c->list == NULL) {
        c->err = shoal_fail(SHOAL_ENOMEM, "no memory for %d GPUs", c->count);
    }
    for (int i = 0; c->err == SHOAL_OK && i < c->count; i++) {
        c->err = shoal_cuda_info_get(i, &c->list[i]);
    }
    if (c->err != SHOAL_OK) {
        snprintf(c->text, sizeof c->text, "%s", shoal_last_error_text());
    }
}

static void print_gpus(FILE *file, const gpus_look *c, bool mps)
{
    char a[CLI_SIZE_TEXT];
    if (c->err != SHOAL_OK) {
        fprintf(file, "GPUs           none: %s\n", c->text);
        return;
    }
    for (int i = 0; i < c->count; i++) {
        const shoal_cuda_info *gpu = &c->list[i];
        fprintf(file, "GPU %-10d %s, %s, %s\n", i, gpu->name, cli_size(gpu->memory, a), gpu->uuid);
    }
    fprintf(file, "driver         CUDA %d.%d; MPS %s\n", c->list[0].driver / 1000, c->list[0].driver % 1000 / 10,
            mps ? "is installed" : "is not installed: processes take turns on a GPU");
}

static void print_list_json(FILE *file, const gpus_look *c, const char *name)
{
    fprintf(file, ", \"%s\": [", name);
    for (int i = 0; c->err == SHOAL_OK && i < c->count; i++) {
        fprintf(file, "%s{\"name\": ", i > 0 ? ", " : "");
        cli_json_string(file, c->list[i].name);
        fprintf(file, ", \"uuid\": \"%s\", \"memory\": %zu, \"driver\": \"%d.%d\"}", c->list[i].uuid, c->list[i].memory,
                c->list[i].driver / 1000, c->list[i].driver % 1000 / 10);
    }
    fputs("]", file);
}

static void print_error_json(FILE *file, const gpus_look *c, const char *name)
{
    fprintf(file, ", \"%s\": \"%s\", \"%s_text\": ", name, shoal_err_name(c->err), name);
    cli_json_string(file, c->text);
}

static void print_gpus_json(FILE *file, const gpus_look *c, bool mps)
{
    print_list_json(file, c, "cuda_devices");
    fprintf(file, ", \"mps\": %s", mps ? "true" : "false");
    if (c->err != SHOAL_OK) {
        print_error_json(file, c, "cuda_error");
    }
    /* The names of 0.2. */
    print_list_json(file, c, "cards");
    if (c->err != SHOAL_OK) {
        print_error_json(file, c, "cards_error");
    }
}

static void look_at_world(world_look *w)
{
    w->err = shoal_world_info_get(&w->info);
}

static void print_text(FILE *file, const cli_machine *m, const world_look *w, const gpus_look *c)
{
    char a[CLI_SIZE_TEXT], b[CLI_SIZE_TEXT];
    fprintf(file, "version        %s\n", SHOAL_VERSION);
    fprintf(file, "processor      %s\n", m->processor[0] != 0 ? m->processor : "unknown");
    fprintf(file, "features       %s\n", m->features[0] != 0 ? m->features : "none that Shoal uses");
    fprintf(file, "cpus           %u of %u\n", m->cpus, m->cpus_online);
    fprintf(file, "page size      %s\n", cli_size(m->page, a));
    fprintf(file, "memory         %s, %s available\n", cli_size(m->memory, a),
            m->memory_available != CLI_UNKNOWN ? cli_size(m->memory_available, b) : "unknown");
    fprintf(file, "kernel         %s, futex_waitv %s\n", m->kernel, m->futex_waitv ? "yes" : "no");
    if (m->open_files == CLI_UNKNOWN) {
        fprintf(file, "open files     unlimited\n");
    } else {
        fprintf(file, "open files     %" PRIu64 "\n", m->open_files);
    }
    fprintf(file, "address space  %s\n", cli_size(m->address_space, a));
    if (m->shm == CLI_UNKNOWN) {
        fprintf(file, "/dev/shm       not mounted; a world does not need it\n");
    } else {
        fprintf(file, "/dev/shm       %s, %s available; a world does not use it\n", cli_size(m->shm, a),
                cli_size(m->shm_available, b));
    }
    if (w->err == SHOAL_OK) {
        fprintf(file, "world          %s of addresses, %s of memory at most\n", cli_size(w->info.reserved, a),
                cli_size(w->info.heap_limit, b));
    } else {
        fprintf(file, "world          cannot be made here: %s: %s\n", shoal_err_name(w->err), shoal_last_error_text());
    }
    fprintf(file, "world limits   %d processes, %d spans, %s per block\n", PROCESSES_MAX, SPANS_MAX,
            cli_size(BLOCK_MAX, a));
    print_gpus(file, c, m->mps);
}

static void print_number(FILE *file, const char *key, uint64_t n)
{
    if (n == CLI_UNKNOWN) {
        fprintf(file, ", \"%s\": null", key);
    } else {
        fprintf(file, ", \"%s\": %" PRIu64, key, n);
    }
}

static void print_features(FILE *file, const char *features)
{
    fputs(", \"features\": [", file);
    for (const char *f = features; *f != 0;) {
        int length = (int)strcspn(f, " ");
        fprintf(file, "%s\"%.*s\"", f > features ? ", " : "", length, f);
        f += length + (f[length] == ' ');
    }
    fputc(']', file);
}

static void print_json(FILE *file, const cli_machine *m, const world_look *w, const gpus_look *c)
{
    fprintf(file, "{\"version\": \"%s\", \"processor\": ", SHOAL_VERSION);
    cli_json_string(file, m->processor);
    print_features(file, m->features);
    fprintf(file, ", \"cpus\": %u, \"cpus_online\": %u", m->cpus, m->cpus_online);
    print_number(file, "page_size", m->page);
    print_number(file, "memory", m->memory);
    print_number(file, "memory_available", m->memory_available);
    fputs(", \"kernel\": ", file);
    cli_json_string(file, m->kernel);
    fprintf(file, ", \"futex_waitv\": %s", m->futex_waitv ? "true" : "false");
    print_number(file, "open_files", m->open_files);
    print_number(file, "open_files_hard", m->open_files_hard);
    print_number(file, "address_space", m->address_space);
    print_number(file, "dev_shm", m->shm);
    print_number(file, "dev_shm_available", m->shm_available);
    fprintf(file, ", \"world\": {\"processes_max\": %d, \"spans_max\": %d, \"block_max\": %" PRIu64, PROCESSES_MAX,
            SPANS_MAX, BLOCK_MAX);
    if (w->err == SHOAL_OK) {
        print_number(file, "reserved", w->info.reserved);
        print_number(file, "heap_limit", w->info.heap_limit);
    } else {
        fprintf(file, ", \"error\": \"%s\", \"error_text\": ", shoal_err_name(w->err));
        cli_json_string(file, shoal_last_error_text());
    }
    fputs("}", file);
    print_gpus_json(file, c, m->mps);
    fputs("}\n", file);
}

static cli_exit run(int argc, char **argv)
{
    cli_options options;
    cli_exit status;
    cli_output output;
    cli_machine machine;
    world_look world;
    gpus_look gpus;
    if (!cli_options_read(&cli_info, argc, argv, &options, &status)) {
        return status;
    }
    if (options.argument != NULL) {
        return cli_complain(&cli_info, CLI_MISUSED, "unexpected argument '%s'", options.argument);
    }
    if (!cli_output_begin(&output)) {
        return CLI_FAILED;
    }
    cli_machine_read(&machine);
    look_at_gpus(&gpus);
    look_at_world(&world);
    (options.json ? print_json : print_text)(output.file, &machine, &world, &gpus);
    free(gpus.list);
    return cli_output_end(&output);
}

const cli_command cli_info = {
    .name = "info",
    .summary = "print version, processor, GPUs and limits",
    .help = help,
    .run = run,
    .words = "--json",
};
