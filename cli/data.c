/* shoal data: lists, verifies and copies the data sets that have a name. */
#include "cli/cli.h"

#include <shoal/data.h>
#include <shoal/version.h>

#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char help[] = "usage: shoal data list [--json]\n"
                           "       shoal data verify [NAME] [--json]\n"
                           "       shoal data fetch NAME [--from DIR] [--to DIR]\n"
                           "Manages the data sets that have a name: mnist and fashion-mnist.\n\n"
                           "  list        print where each data set is, or where to get it\n"
                           "  verify      check the files of one data set, or of all: size and CRC32\n"
                           "  fetch       verify the data set in the folder --from and copy it to --to.\n"
                           "              Without --from, print where to get it. Nothing is downloaded\n\n"
                           "options:\n"
                           "  --from DIR  the folder to copy from\n"
                           "  --to DIR    the folder to copy to (default SHOAL_DATA/NAME, or data/NAME)\n"
                           "  --json      print one JSON object per data set\n"
                           "  -h, --help  print this help and exit\n"
                           "  --version   print the version and exit\n";

typedef struct call {
    const char *what, *name; /* NULL: not given */
    const char *from, *to;
    bool json;
    cli_output output;
} call;

/* ---- list ---- */

static void list_one(call *c, const char *name)
{
    char folder[PATH_MAX];
    bool there = shoal_data_where(name, folder, sizeof folder) == SHOAL_OK;
    if (!c->json) {
        fprintf(c->output.file, "%-14s %s%s\n", name, there ? cli_printable(folder) : "not found; ",
                there ? "" : shoal_data_origin(name));
        return;
    }
    fputs("{\"name\": ", c->output.file);
    cli_json_string(c->output.file, name);
    fputs(", \"folder\": ", c->output.file);
    if (there) {
        cli_json_string(c->output.file, folder);
    } else {
        fputs("null", c->output.file);
    }
    fputs(", \"origin\": ", c->output.file);
    cli_json_string(c->output.file, shoal_data_origin(name));
    fputs("}\n", c->output.file);
}

static cli_exit list(call *c)
{
    if (c->name != NULL) {
        return cli_complain(&cli_data, CLI_MISUSED, "list does not take a name, but '%s' is given", c->name);
    }
    for (size_t i = 0; shoal_data_name(i) != NULL; i++) {
        list_one(c, shoal_data_name(i));
    }
    return CLI_OK;
}

/* ---- verify ---- */

static cli_exit verify_one(call *c, const char *name)
{
    char folder[PATH_MAX];
    if (shoal_data_where(name, folder, sizeof folder) != SHOAL_OK || shoal_data_verify(name, folder) != SHOAL_OK) {
        return cli_complain(&cli_data, CLI_FAILED, "%s", shoal_last_error_text());
    }
    if (c->json) {
        fputs("{\"name\": ", c->output.file);
        cli_json_string(c->output.file, name);
        fputs(", \"folder\": ", c->output.file);
        cli_json_string(c->output.file, folder);
        fputs(", \"ok\": true}\n", c->output.file);
    } else {
        fprintf(c->output.file, "%-14s %s: sizes and CRC32 are correct\n", name, cli_printable(folder));
    }
    return CLI_OK;
}

static cli_exit verify(call *c)
{
    char folder[PATH_MAX];
    if (c->name != NULL && shoal_data_origin(c->name) == NULL) {
        return cli_complain(&cli_data, CLI_MISUSED, "%s", shoal_last_error_text());
    }
    if (c->name != NULL) {
        return verify_one(c, c->name);
    }
    size_t found = 0;
    for (size_t i = 0; shoal_data_name(i) != NULL; i++) {
        if (shoal_data_where(shoal_data_name(i), folder, sizeof folder) == SHOAL_OK) {
            found++;
            cli_exit status = verify_one(c, shoal_data_name(i));
            if (status != CLI_OK) {
                return status;
            }
        }
    }
    return found > 0 ? CLI_OK : cli_complain(&cli_data, CLI_FAILED, "no data set found; see shoal data list");
}

/* ---- fetch ---- */

/* Sets out to the target folder: --to, else NAME in SHOAL_DATA, else NAME in data. */
static void choose_target(const call *c, char out[PATH_MAX])
{
    const char *own = getenv("SHOAL_DATA");
    if (c->to != NULL) {
        snprintf(out, PATH_MAX, "%s", c->to);
    } else {
        snprintf(out, PATH_MAX, "%s/%s", own != NULL && own[0] != 0 ? own : "data", c->name);
    }
}

static cli_exit fetch(call *c)
{
    char folder[PATH_MAX];
    if (c->name == NULL) {
        return cli_complain(&cli_data, CLI_MISUSED, "fetch needs a name: mnist or fashion-mnist");
    }
    const char *origin = shoal_data_origin(c->name);
    if (origin == NULL) {
        return cli_complain(&cli_data, CLI_MISUSED, "%s", shoal_last_error_text());
    }
    if (c->from == NULL && shoal_data_where(c->name, folder, sizeof folder) == SHOAL_OK) {
        fprintf(c->output.file, "%s is already in %s\n", c->name, cli_printable(folder));
        return CLI_OK;
    }
    if (c->from == NULL) {
        return cli_complain(&cli_data, CLI_FAILED, "%s not found, and nothing is downloaded; %s; or give --from DIR",
                            c->name, origin);
    }
    choose_target(c, folder);
    if (shoal_data_copy(c->name, c->from, folder) != SHOAL_OK) {
        return cli_complain(&cli_data, CLI_FAILED, "%s", shoal_last_error_text());
    }
    fprintf(c->output.file, "%s is now in %s\n", c->name, cli_printable(folder));
    return CLI_OK;
}

/* ---- the command ---- */

/* Returns false if the command is finished, with its message printed: exit with *out_status. */
static bool read_call(int argc, char **argv, call *c, cli_exit *out_status)
{
    enum { JSON = 256, VERSION, FROM, TO };
    static const struct option known[] = {
        {"json", no_argument, NULL, JSON},   {"from", required_argument, NULL, FROM},
        {"to", required_argument, NULL, TO}, {"version", no_argument, NULL, VERSION},
        {"help", no_argument, NULL, 'h'},    {0},
    };
    opterr = 0;
    optind = 0;
    for (int found; (found = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
        switch (found) {
        case JSON: c->json = true; break;
        case FROM: c->from = optarg; break;
        case TO: c->to = optarg; break;
        case 'h': *out_status = cli_print(help); return false;
        case VERSION: *out_status = cli_print("shoal " SHOAL_VERSION "\n"); return false;
        default:
            *out_status = cli_complain(
                &cli_data, CLI_MISUSED,
                "unknown option '%s', or its value is missing; use --from DIR, --to DIR, --json, --help or "
                "--version",
                argv[optind - 1]);
            return false;
        }
    }
    c->what = argv[optind];
    c->name = c->what != NULL ? argv[optind + 1] : NULL;
    if (argc - optind > 2) {
        *out_status = cli_complain(&cli_data, CLI_MISUSED, "unexpected argument '%s'; at most one name is allowed",
                                   argv[optind + 2]);
        return false;
    }
    return true;
}

typedef struct part {
    const char *name;
    cli_exit (*run)(call *c);
    bool copies; /* --from and --to are for it; else --json is */
} part;

static bool fits(const part *p, const call *c)
{
    const char *other = !p->copies && c->from != NULL ? "--from"
                        : !p->copies && c->to != NULL ? "--to"
                        : p->copies && c->json        ? "--json"
                                                      : NULL;
    if (other != NULL) {
        cli_complain(&cli_data, CLI_MISUSED, "%s does not take %s, which is for %s", p->name, other,
                     p->copies ? "list and verify" : "fetch");
    }
    return other == NULL;
}

static cli_exit run(int argc, char **argv)
{
    static const part parts[] = {{"list", list, false}, {"verify", verify, false}, {"fetch", fetch, true}};
    call c = {.json = false};
    cli_exit status;
    if (!read_call(argc, argv, &c, &status)) {
        return status;
    }
    if (c.what == NULL) {
        return cli_complain(&cli_data, CLI_MISUSED, "use list, verify or fetch");
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(c.what, parts[i].name) != 0) {
            continue;
        }
        if (!fits(&parts[i], &c)) {
            return CLI_MISUSED;
        }
        if (!cli_output_begin(&c.output)) {
            return CLI_FAILED;
        }
        status = parts[i].run(&c);
        /* After a failure nothing is printed: half an answer would mislead. */
        c.output.failed = c.output.failed || status != CLI_OK;
        cli_exit sent = cli_output_end(&c.output);
        return status != CLI_OK ? status : sent;
    }
    return cli_complain(&cli_data, CLI_MISUSED, "unknown action '%s'; use list, verify or fetch", c.what);
}

const cli_command cli_data = {
    .name = "data",
    .summary = "list, verify or copy data sets",
    .help = help,
    .run = run,
    .words = "list verify:mnist,fashion-mnist fetch:mnist,fashion-mnist --from/ --to/ --json",
};
