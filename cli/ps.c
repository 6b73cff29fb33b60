/* shoal ps: lists the processes of all worlds of this user. */
#include "cli/cli.h"

#include <shoal/world.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char help[] = "usage: shoal ps [--json]\n"
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
                           "  CARD        the memory of a card that its tensors use, with what it has lent\n"
                           "  HELD        the memory of a card that it has from the driver\n"
                           "  NAME        the name that it was started with\n"
                           "  DOING       its current operation, or what it waits for\n\n"
                           "options:\n"
                           "  --json      print one JSON object per process\n"
                           "  -h, --help  print this help and exit\n"
                           "  --version   print the version and exit\n";

enum { WORLD, USED, LIMIT, RECOVERED, PID, SLOT, STATE, REFS, CACHED, CARD, HELD, NAME, DOING, COLUMNS };

static const struct {
    const char *title;
    bool right;
} columns[COLUMNS] = {
    [WORLD] = {"WORLD", false},  [USED] = {"USED", true}, [LIMIT] = {"LIMIT", true},  [RECOVERED] = {"RECOVERED", true},
    [PID] = {"PID", true},       [SLOT] = {"SLOT", true}, [STATE] = {"STATE", false}, [REFS] = {"REFS", true},
    [CACHED] = {"CACHED", true}, [CARD] = {"CARD", true}, [HELD] = {"HELD", true},    [NAME] = {"NAME", false},
    [DOING] = {"DOING", false},
};

/* A row of the table: its cells as text. */
typedef struct row {
    char *cells[COLUMNS];
} row;

typedef struct listing {
    cli_output output;
    row *rows;
    size_t count;
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

static bool add_row(const shoal_ps_entry *e, void *context)
{
    listing *l = context;
    row *grown = realloc(l->rows, (l->count + 1) * sizeof *grown);
    if (grown == NULL) {
        l->no_memory = true;
        return false;
    }
    l->rows = grown;
    row *r = &l->rows[l->count++];
    *r = (row){{[WORLD] = cell(e->world),
                [USED] = size(e->world_used),
                [LIMIT] = size(e->world_limit),
                [RECOVERED] = number(e->world_recovered),
                [PID] = number((uint64_t)e->pid),
                [SLOT] = number(e->slot),
                [STATE] = cell(e->state),
                [REFS] = number(e->references),
                [CACHED] = number(e->cached),
                [CARD] = e->card_held > 0 ? size(e->card_used) : cell("-"),
                [HELD] = e->card_held > 0 ? size(e->card_held) : cell("-"),
                [NAME] = cell(e->name),
                [DOING] = cell(e->doing)}};
    for (int i = 0; i < COLUMNS; i++) {
        l->no_memory = l->no_memory || r->cells[i] == NULL;
    }
    return !l->no_memory;
}

static void print_row(FILE *file, const char *const cells[COLUMNS], const int widths[COLUMNS])
{
    for (int i = 0; i < COLUMNS; i++) {
        int width = i == COLUMNS - 1 ? 0 : widths[i];
        fprintf(file, "%s%*s", i > 0 ? "  " : "", columns[i].right ? width : -width, cells[i]);
    }
    fputc('\n', file);
}

static void print_table(const listing *l, FILE *file)
{
    const char *titles[COLUMNS];
    int widths[COLUMNS];
    for (int i = 0; i < COLUMNS; i++) {
        titles[i] = columns[i].title;
        widths[i] = (int)strlen(titles[i]);
        for (size_t n = 0; n < l->count; n++) {
            int length = (int)strlen(l->rows[n].cells[i]);
            widths[i] = length > widths[i] ? length : widths[i];
        }
    }
    print_row(file, titles, widths);
    for (size_t n = 0; n < l->count; n++) {
        print_row(file, (const char *const *)l->rows[n].cells, widths);
    }
}

static bool print_object(const shoal_ps_entry *e, void *context)
{
    FILE *file = ((listing *)context)->output.file;
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
    fprintf(file, ", \"card_used\": %" PRIu64 ", \"card_held\": %" PRIu64 "}\n", e->card_used, e->card_held);
    return true;
}

static void free_rows(listing *l)
{
    for (size_t n = 0; n < l->count; n++) {
        for (int i = 0; i < COLUMNS; i++) {
            free(l->rows[n].cells[i]);
        }
    }
    free(l->rows);
}

static cli_exit run(int argc, char **argv)
{
    cli_options options;
    cli_exit status;
    listing l = {.count = 0};
    if (!cli_options_read(&cli_ps, argc, argv, &options, &status)) {
        return status;
    }
    if (options.argument != NULL) {
        return cli_complain(&cli_ps, CLI_MISUSED, "unexpected argument '%s'", options.argument);
    }
    if (!cli_output_begin(&l.output)) {
        return CLI_FAILED;
    }
    shoal_err err = shoal_world_list(options.json ? print_object : add_row, &l);
    if (err == SHOAL_OK && l.no_memory) {
        err = shoal_fail(SHOAL_ENOMEM, "no memory for the table");
    }
    if (err == SHOAL_OK && !options.json) {
        print_table(&l, l.output.file);
    }
    free_rows(&l);
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
    .words = "--json",
};
