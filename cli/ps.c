/* shoal ps: lists the processes of all worlds of this user, or their shared GPU tensors. */
#include "cli/cli.h"

#include <shoal/share.h>
#include <shoal/world.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char help[] = "usage: shoal ps [--tensors] [--json]\n"
                           "Lists the processes of all worlds of this user, one per line.\n\n"
                           "columns:\n"
                           "  WORLD       the name of the world\n"
                           "  USED        the memory of the world that is in use\n"
                           "  LIMIT       the most memory that the world may use\n"
                           "  RECOVERED   the number of dead processes that the world has cleaned up after\n"
                           "  PID, SLOT   the process, and its place in the world\n"
                           "  STATE       running, waiting, reserved (starting) or dead (not cleaned up yet)\n"
                           "  REFS        the number of blocks that it holds\n"
                           "  CACHED      the number of free blocks that it keeps for itself\n"
                           "  GPU         the GPU memory that its tensors use, with what it has lent\n"
                           "  HELD        the GPU memory that it has from the driver\n"
                           "  NAME        the name that it was started with\n"
                           "  DOING       its current operation, or what it waits for\n\n"
                           "columns of --tensors:\n"
                           "  GPU         the GPU, by its UUID\n"
                           "  TENSOR      the tensor's number in its world\n"
                           "  DTYPE, SHAPE, SIZE\n"
                           "              its type and shape, and the size of its storage; several\n"
                           "              tensors may share one storage\n"
                           "  PID, SLOT, NAME\n"
                           "              a process that holds it; - if only a queue holds it\n\n"
                           "options:\n"
                           "  --tensors   list the shared GPU tensors instead, one line for each\n"
                           "              process that holds one\n"
                           "  --json      print one JSON object per line\n"
                           "  -h, --help  print this help and exit\n"
                           "  --version   print the version and exit\n";

#define COLUMNS_MAX 16

/* ---- tables ---- */

typedef struct column {
    const char *title;
    bool right;
} column;

typedef struct listing {
    cli_output output;
    const column *columns;
    size_t width;  /* the number of columns */
    char **cells;  /* row by row, as text */
    size_t count;  /* of rows */
    char **worlds; /* the names, for the tensors in them */
    size_t world_count;
    const char *world; /* the one that is listed */
    bool json;
    bool no_memory;
} listing;

static char *cell(const char *text)
{
    char *copy = strdup(text[0] != 0 ? text : "-");
    return copy != NULL ? cli_printable(copy) : NULL;
}

static char *number(uint64_t n)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, n);
    return strdup(text);
}

static char *size(uint64_t bytes)
{
    char text[CLI_SIZE_TEXT];
    return strdup(cli_size(bytes, text));
}

/* Adds a row and takes its cells. Returns false if there is no memory. */
static bool add_cells(listing *l, char *const *cells)
{
    char **grown = realloc(l->cells, (l->count + 1) * l->width * sizeof *grown);
    l->no_memory = l->no_memory || grown == NULL;
    l->cells = grown != NULL ? grown : l->cells;
    for (size_t i = 0; i < l->width; i++) {
        l->no_memory = l->no_memory || cells[i] == NULL;
        if (grown != NULL) {
            grown[l->count * l->width + i] = cells[i];
        } else {
            free(cells[i]);
        }
    }
    l->count += grown != NULL;
    return !l->no_memory;
}

static int width_of(const listing *l, size_t at)
{
    size_t width = strlen(l->columns[at].title);
    for (size_t n = 0; n < l->count; n++) {
        size_t length = strlen(l->cells[n * l->width + at]);
        width = length > width ? length : width;
    }
    return (int)width;
}

static void print_table(const listing *l, FILE *file)
{
    int widths[COLUMNS_MAX];
    for (size_t i = 0; i < l->width; i++) {
        widths[i] = i == l->width - 1 ? 0 : width_of(l, i);
    }
    for (size_t n = 0; n <= l->count; n++) { /* the titles first */
        for (size_t i = 0; i < l->width; i++) {
            const char *text = n == 0 ? l->columns[i].title : l->cells[(n - 1) * l->width + i];
            fprintf(file, "%s%*s", i > 0 ? "  " : "", l->columns[i].right ? widths[i] : -widths[i], text);
        }
        fputc('\n', file);
    }
}

/* ---- processes ---- */

enum { WORLD, USED, LIMIT, RECOVERED, PID, SLOT, STATE, REFS, CACHED, GPU, HELD, NAME, DOING, COLUMNS };

static const column process_columns[COLUMNS] = {
    [WORLD] = {"WORLD", false},  [USED] = {"USED", true}, [LIMIT] = {"LIMIT", true},  [RECOVERED] = {"RECOVERED", true},
    [PID] = {"PID", true},       [SLOT] = {"SLOT", true}, [STATE] = {"STATE", false}, [REFS] = {"REFS", true},
    [CACHED] = {"CACHED", true}, [GPU] = {"GPU", true},   [HELD] = {"HELD", true},    [NAME] = {"NAME", false},
    [DOING] = {"DOING", false},
};

static void print_process(const shoal_ps_entry *e, FILE *file)
{
    fputs("{\"world\": ", file);
    cli_json_string(file, e->world);
    fprintf(file, ", \"world_used\": %" PRIu64 ", \"world_limit\": %" PRIu64 ", \"world_recovered\": %" PRIu64,
            e->world_used, e->world_limit, e->world_recovered);
    fprintf(file, ", \"pid\": %" PRId32 ", \"slot\": %" PRIu32 ", \"name\": ", e->pid, e->slot);
    cli_json_string(file, e->name);
    fputs(", \"state\": ", file);
    cli_json_string(file, e->state);
    fputs(", \"doing\": ", file);
    cli_json_string(file, e->doing);
    fprintf(file, ", \"references\": %" PRIu64 ", \"cached\": %" PRIu64, e->references, e->cached);
    fprintf(file, ", \"cuda_used\": %" PRIu64 ", \"cuda_held\": %" PRIu64, e->cuda_used, e->cuda_held);
    fprintf(file, ", \"card_used\": %" PRIu64, e->cuda_used);       /* the name in 0.2 */
    fprintf(file, ", \"card_held\": %" PRIu64 "}\n", e->cuda_held); /* the name in 0.2 */
}

static bool add_process(const shoal_ps_entry *e, void *context)
{
    listing *l = context;
    if (l->json) {
        print_process(e, l->output.file);
        return true;
    }
    return add_cells(l, (char *[COLUMNS]){[WORLD] = cell(e->world),
                                          [USED] = size(e->world_used),
                                          [LIMIT] = size(e->world_limit),
                                          [RECOVERED] = number(e->world_recovered),
                                          [PID] = number((uint64_t)e->pid),
                                          [SLOT] = number(e->slot),
                                          [STATE] = cell(e->state),
                                          [REFS] = number(e->references),
                                          [CACHED] = number(e->cached),
                                          [GPU] = e->cuda_held > 0 ? size(e->cuda_used) : cell("-"),
                                          [HELD] = e->cuda_held > 0 ? size(e->cuda_held) : cell("-"),
                                          [NAME] = cell(e->name),
                                          [DOING] = cell(e->doing)});
}

/* ---- tensors ---- */

enum { T_WORLD, T_GPU, T_TENSOR, T_DTYPE, T_SHAPE, T_SIZE, T_PID, T_SLOT, T_NAME, T_COLUMNS };

static const column tensor_columns[T_COLUMNS] = {
    [T_WORLD] = {"WORLD", false}, [T_GPU] = {"GPU", false},    [T_TENSOR] = {"TENSOR", true},
    [T_DTYPE] = {"DTYPE", false}, [T_SHAPE] = {"SHAPE", true}, [T_SIZE] = {"SIZE", true},
    [T_PID] = {"PID", true},      [T_SLOT] = {"SLOT", true},   [T_NAME] = {"NAME", false},
};

#define SHAPE_TEXT (22 * SHOAL_MAX_DIMS)

/* Writes the shape as JSON, or as 3x4. */
static const char *shape_text(const shoal_cuda_tensor *t, bool json, char text[SHAPE_TEXT])
{
    size_t n = (size_t)snprintf(text, SHAPE_TEXT, "%s", json ? "[" : "");
    for (int i = 0; i < t->ndim; i++) {
        n += (size_t)snprintf(text + n, SHAPE_TEXT - n, "%s%" PRId64, i == 0 ? "" : json ? ", " : "x", t->shape[i]);
    }
    (void)snprintf(text + n, SHAPE_TEXT - n, "%s", json ? "]" : "");
    return text;
}

static void print_tensor(const listing *l, const shoal_cuda_tensor *t, FILE *file)
{
    char shape[SHAPE_TEXT];
    fputs("{\"world\": ", file);
    cli_json_string(file, l->world);
    fprintf(file, ", \"uuid\": \"%s\", \"card\": \"%s\"", t->uuid, t->uuid); /* the second is its name in 0.2 */
    fprintf(file, ", \"tensor\": %" PRIu64 ", \"dtype\": \"%s\", \"shape\": %s", t->id, shoal_dtype_name(t->dtype),
            shape_text(t, true, shape));
    fprintf(file, ", \"size\": %" PRIu64, t->size);
    if (t->pid != 0) {
        fprintf(file, ", \"pid\": %" PRId32 ", \"slot\": %" PRIu32 ", \"name\": ", t->pid, t->slot);
        cli_json_string(file, t->name);
    }
    fputs("}\n", file);
}

static bool add_tensor(const shoal_cuda_tensor *t, void *context)
{
    listing *l = context;
    char shape[SHAPE_TEXT];
    if (l->json) {
        print_tensor(l, t, l->output.file);
        return true;
    }
    bool held = t->pid != 0;
    return add_cells(l, (char *[T_COLUMNS]){[T_WORLD] = cell(l->world),
                                            [T_GPU] = cell(t->uuid),
                                            [T_TENSOR] = number(t->id),
                                            [T_DTYPE] = cell(shoal_dtype_name(t->dtype)),
                                            [T_SHAPE] = cell(shape_text(t, false, shape)),
                                            [T_SIZE] = size(t->size),
                                            [T_PID] = held ? number((uint64_t)t->pid) : cell("-"),
                                            [T_SLOT] = held ? number(t->slot) : cell("-"),
                                            [T_NAME] = cell(t->name)});
}

/* Remembers a world. */
static bool note_world(const shoal_ps_entry *e, void *context)
{
    listing *l = context;
    for (size_t i = 0; i < l->world_count; i++) {
        if (strcmp(l->worlds[i], e->world) == 0) {
            return true;
        }
    }
    char **grown = realloc(l->worlds, (l->world_count + 1) * sizeof *grown);
    l->worlds = grown != NULL ? grown : l->worlds;
    char *name = grown != NULL ? strdup(e->world) : NULL;
    if (name != NULL) {
        grown[l->world_count++] = name;
    }
    l->no_memory = name == NULL;
    return name != NULL;
}

/* Checks whether a world that was listed cannot be read by its name: it has just ended, or its name is not that of its
 * file. */
static bool is_unreadable(shoal_err err)
{
    return err == SHOAL_ENOENT || err == SHOAL_EINVAL || err == SHOAL_EPERM || err == SHOAL_ELAYOUT ||
           err == SHOAL_ECORRUPT;
}

/* Joins no world: that would take a slot in it. */
static shoal_err list_tensors(listing *l)
{
    shoal_err err = shoal_world_list(note_world, l);
    if (err != SHOAL_OK) {
        return err;
    }
    for (size_t i = 0; !l->no_memory && i < l->world_count; i++) {
        l->world = l->worlds[i];
        err = shoal_cuda_tensors_list_of(l->world, add_tensor, l);
        if (err != SHOAL_OK && !is_unreadable(err)) {
            return err;
        }
    }
    return SHOAL_OK;
}

/* ---- the command ---- */

static void end_listing(listing *l)
{
    for (size_t i = 0; i < l->count * l->width; i++) {
        free(l->cells[i]);
    }
    for (size_t i = 0; i < l->world_count; i++) {
        free(l->worlds[i]);
    }
    free(l->cells);
    free(l->worlds);
}

static cli_exit run(int argc, char **argv)
{
    cli_options options;
    cli_exit status;
    if (!cli_options_read(&cli_ps, argc, argv, &options, &status)) {
        return status;
    }
    if (options.argument != NULL) {
        return cli_complain(&cli_ps, CLI_MISUSED, "unexpected argument '%s'", options.argument);
    }
    listing l = {.columns = options.flag ? tensor_columns : process_columns,
                 .width = options.flag ? T_COLUMNS : COLUMNS,
                 .json = options.json};
    if (!cli_output_begin(&l.output)) {
        return CLI_FAILED;
    }
    shoal_err err = options.flag ? list_tensors(&l) : shoal_world_list(add_process, &l);
    if (err == SHOAL_OK && l.no_memory) {
        err = shoal_fail(SHOAL_ENOMEM, "no memory for the table");
    }
    if (err == SHOAL_OK && !options.json) {
        print_table(&l, l.output.file);
    }
    end_listing(&l);
    if (err != SHOAL_OK) {
        cli_complain(&cli_ps, CLI_FAILED, "%s: %s", shoal_err_name(err), shoal_last_error_text());
        l.output.failed = true; /* so that nothing is printed: half a list would mislead */
    }
    return cli_output_end(&l.output);
}

const cli_command cli_ps = {
    .name = "ps",
    .summary = "list the running worlds and their processes",
    .help = help,
    .run = run,
    .words = "--json --tensors",
    .flag = "tensors",
};
