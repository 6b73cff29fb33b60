/* The program: finds the command and runs it. */
#include "cli/cli.h"

#include <shoal/version.h>
#include <shoal/world.h>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cli_command *const commands[] = {&cli_train, &cli_eval,  &cli_predict, &cli_info,
                                              &cli_ps,    &cli_bench, &cli_data,    &cli_completions};

#define COMMANDS (sizeof commands / sizeof *commands)

const cli_command *cli_command_at(size_t i)
{
    return i < COMMANDS ? commands[i] : NULL;
}

/* "train, eval and ps" */
static const char *command_names(void)
{
    static char text[200];
    for (size_t i = 0, at = 0; i < COMMANDS && at < sizeof text; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%s",
                               i == 0             ? ""
                               : i + 1 < COMMANDS ? ", "
                                                  : " and ",
                               commands[i]->name);
    }
    return text;
}

static cli_exit print_help(void)
{
    cli_output output;
    if (!cli_output_begin(&output)) {
        return CLI_FAILED;
    }
    fputs("usage: shoal COMMAND [OPTION ...]\n"
          "Trains models by processes that share memory, uses what they learned, looks at their worlds,\n"
          "measures them, and looks after data sets.\n\n",
          output.file);
    for (size_t i = 0; i < COMMANDS; i++) {
        fprintf(output.file, "  shoal %-11s %-27s %s\n", commands[i]->name, commands[i]->usage, commands[i]->summary);
    }
    fputs("\n  -h, --help         this, or what a command does: shoal COMMAND --help\n"
          "  --version          the version\n",
          output.file);
    return cli_output_end(&output);
}

/* The library takes an unknown word as none, in each process, and has no call that could tell. */
static bool cpu_is_known(void)
{
    static const char *const known[] = {"", "plain", "avx2", "avx512"};
    const char *wish = getenv("SHOAL_CPU");
    for (size_t i = 0; wish != NULL && i < sizeof known / sizeof *known; i++) {
        if (strcmp(wish, known[i]) == 0) {
            return true;
        }
    }
    return wish == NULL;
}

static cli_exit run(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    if (word == NULL) {
        return cli_complain(NULL, CLI_MISUSED, "no command; one of %s is wanted, or --help", command_names());
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        return print_help();
    }
    if (strcmp(word, "--version") == 0) {
        return cli_print("shoal " SHOAL_VERSION "\n");
    }
    if (word[0] == '-') {
        return cli_complain(NULL, CLI_MISUSED, "unknown option '%s'; known are --help and --version", word);
    }
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(word, commands[i]->name) == 0) {
            return cpu_is_known() ? commands[i]->run(argc - 1, argv + 1)
                                  : cli_complain(commands[i], CLI_FAILED, "SHOAL_CPU=%s: want plain, avx2 or avx512",
                                                 getenv("SHOAL_CPU"));
        }
    }
    return cli_complain(NULL, CLI_MISUSED, "unknown command '%s'; known are %s", word, command_names());
}

/* A standard stream that was closed is opened the wrong way round: its number cannot be taken by another file, and using it fails. */
static void hold_standard_streams(void)
{
    static const int modes[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0) {
            (void)!open("/dev/null", modes[fd]);
        }
    }
}

int main(int argc, char **argv)
{
    shoal_err err = shoal_init(&argc, &argv); /* a child that a command started goes its own way from here */
    if (err != SHOAL_OK) {
        return cli_complain(NULL, CLI_FAILED, "%s", shoal_last_error_text());
    }
    hold_standard_streams();
    signal(SIGPIPE, SIG_IGN); /* a reader that went away is a write that fails */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file that may not be so large */
    return run(argc, argv);
}
