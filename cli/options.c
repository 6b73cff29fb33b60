/* Reads the options of the commands that have no table. */
#include "cli/cli.h"

#include <shoal/version.h>

#include <getopt.h>
#include <string.h>

static cli_exit complain_of_option(const cli_command *command, char **argv, bool known)
{
    const char *given = argv[optind - 1];
    if (known) {
        return cli_complain(command, CLI_MISUSED, "option '%.*s' does not take a value", (int)strcspn(given, "="),
                            given);
    }
    char others[64] = "--json, --help or --version";
    if (command->flag != NULL) {
        (void)snprintf(others, sizeof others, "--%s, --json, --help or --version", command->flag);
    }
    if (optopt != 0) {
        return cli_complain(command, CLI_MISUSED, "unknown option '-%c'; use %s", optopt, others);
    }
    return cli_complain(command, CLI_MISUSED, "unknown option '%s'; use %s", given, others);
}

bool cli_options_read(const cli_command *command, int argc, char **argv, cli_options *out_options, cli_exit *out_status)
{
    enum { JSON = 256, VERSION, FLAG };
    const struct option known[] = {
        {"json", no_argument, NULL, JSON},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, VERSION},
        {command->flag, no_argument, NULL, FLAG},
        {0},
    };
    *out_options = (cli_options){.json = false};
    opterr = 0;
    optind = 0;
    for (int found; (found = getopt_long(argc, argv, "h", known, NULL)) != -1;) {
        switch (found) {
        case JSON: out_options->json = true; break;
        case FLAG: out_options->flag = true; break;
        case 'h': *out_status = cli_print(command->help); return false;
        case VERSION: *out_status = cli_print("shoal " SHOAL_VERSION "\n"); return false;
        default: *out_status = complain_of_option(command, argv, optopt >= JSON || optopt == 'h'); return false;
        }
    }
    if (argc - optind > 1) {
        *out_status =
            cli_complain(command, CLI_MISUSED, "unexpected argument '%s'; at most one is allowed", argv[optind + 1]);
        return false;
    }
    out_options->argument = argv[optind];
    return true;
}
