/* The program `shoal`: finds the command and runs it. */
#include "cli/cli.h"

#include <shoal/version.h>
#include <shoal/world.h>

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cli_command *const commands[] = {&cli_train, &cli_eval, &cli_predict, &cli_data,
                                              &cli_ps,    &cli_info, &cli_bench,   &cli_completions};

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
          "Trains models with several processes that share memory.\n\n"
          "commands:\n",
          output.file);
    for (size_t i = 0; i < COMMANDS; i++) {
        fprintf(output.file, "  %-11s  %s\n", commands[i]->name, commands[i]->summary);
    }
    fputs("\noptions:\n"
          "  -h, --help   print this help and exit\n"
          "  --version    print the version and exit\n\n"
          "shoal COMMAND --help describes a command and its options.\n\n"
          "examples:\n"
          "  shoal train --epochs 1 --save mnist.safetensors\n"
          "  shoal eval --load mnist.safetensors\n"
          "  shoal predict --load mnist.safetensors seven.png\n",
          output.file);
    return cli_output_end(&output);
}

/* Checks the environment variables whose unknown words the library ignores, in each process: it has no call that
 * reports them. */
static bool check_environment(const cli_command *command)
{
    static const struct {
        const char *variable, *words[5], *all; /* words: a NULL ends them */
    } known[] = {{"SHOAL_CPU", {"", "plain", "avx2", "avx512"}, "plain, avx2 or avx512"},
                 {"SHOAL_CAPTURE", {"", "on", "off"}, "on or off"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const char *word = getenv(known[i].variable);
        bool found = word == NULL;
        for (size_t j = 0; known[i].words[j] != NULL && !found; j++) {
            found = strcmp(word, known[i].words[j]) == 0;
        }
        if (!found) {
            cli_complain(command, CLI_FAILED, "%s=%s: use %s", known[i].variable, word, known[i].all);
            return false;
        }
    }
    return true;
}

static cli_exit run(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : NULL;
    if (word == NULL) {
        return cli_complain(NULL, CLI_MISUSED, "no command; use one of %s, or --help", command_names());
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        return print_help();
    }
    if (strcmp(word, "--version") == 0) {
        return cli_print("shoal " SHOAL_VERSION "\n");
    }
    if (word[0] == '-') {
        return cli_complain(NULL, CLI_MISUSED, "unknown option '%s'; use --help or --version", word);
    }
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(word, commands[i]->name) == 0) {
            return check_environment(commands[i]) ? commands[i]->run(argc - 1, argv + 1) : CLI_FAILED;
        }
    }
    return cli_complain(NULL, CLI_MISUSED, "unknown command '%s'; use one of %s", word, command_names());
}

/* Opens each standard stream that is closed, in the wrong mode: no other file can get its fd, and using the stream
 * still fails. */
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
    shoal_err err = shoal_init(&argc, &argv); /* does not return in a child that a command started */
    if (err != SHOAL_OK) {
        return cli_complain(NULL, CLI_FAILED, "%s", shoal_last_error_text());
    }
    hold_standard_streams();
    signal(SIGPIPE, SIG_IGN); /* a write to a closed pipe fails with EPIPE instead */
    signal(SIGXFSZ, SIG_IGN); /* and a write beyond the file size limit with EFBIG */
    return run(argc, argv);
}
