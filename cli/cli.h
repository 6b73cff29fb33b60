/* What the commands of the program share: how they are called, how they fail, and how they write.
 *
 * Exit status: 0 success, 1 the command failed, 2 it was called wrongly. Whatever fails says so in one line on standard error.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,
    CLI_MISUSED = 2,
} cli_exit;

typedef struct cli_command {
    const char *name;    /* "ps" */
    const char *summary; /* for `shoal --help`, in the imperative */
    const char *help;    /* what `shoal NAME --help` prints; NULL: the table tells */
    cli_exit (*run)(int argc, char **argv);
    const struct cli_table *table; /* of its options (cli/table.h); NULL: it has those in words */
    /* For the completions, where there is no table: options, those that end in / take a folder; words for the first argument, and
     * after a colon, with commas between, those that may follow one: "list verify:mnist --to/". */
    const char *words;
} cli_command;

extern const cli_command cli_train, cli_eval, cli_predict, cli_info, cli_ps, cli_bench, cli_data, cli_completions;

/* All of them, as the help lists them; NULL beyond the last. */
const cli_command *cli_command_at(size_t i);

/* Writes "shoal NAME: text" to standard error, as one line whatever the text holds, and returns status. command may be NULL. */
__attribute__((format(printf, 3, 4))) cli_exit cli_complain(const cli_command *command, cli_exit status,
                                                            const char *format, ...);

/* The options of a command. All of them take --json, --help and --version and at most one argument.
 * True: run. False: all is said and done; end with *out_status. */
typedef struct cli_options {
    bool json;
    const char *argument; /* NULL: none */
} cli_options;
bool cli_options_read(const cli_command *command, int argc, char **argv, cli_options *out_options,
                      cli_exit *out_status);

/* Standard output. Text is gathered in `file` and sent in whole pieces, so that a write that fails is noticed and explained. */
typedef struct cli_output {
    FILE *file;
    char *text;
    size_t size;
    int stop;      /* when it is readable, a reader that takes nothing for a second is not waited for; -1: nothing is */
    bool given_up; /* that was so: nothing is sent any more, which is no failure */
    bool failed;
} cli_output;

bool cli_output_begin(cli_output *output); /* false: no memory, and it was said */
bool cli_output_send(cli_output *output);  /* sends what was gathered; false: it could not, and it was said */
cli_exit cli_output_end(cli_output *output);

/* Text as one command's whole output. */
cli_exit cli_print(const char *text);

/* A string in quotes, as JSON wants it; bytes that are no UTF-8 become U+FFFD. */
void cli_json_string(FILE *file, const char *text);

/* A number, as JSON wants it: null where it is not finite. */
void cli_json_number(FILE *file, double x);

/* Text as it stands in HTML and in the quotes of its attributes; what cannot stand there becomes U+FFFD. */
void cli_html_text(FILE *file, const char *text);

/* "1.5 GiB" into buffer, which it returns. UINT64_MAX: "unlimited". */
#define CLI_SIZE_TEXT 32
const char *cli_size(uint64_t bytes, char buffer[CLI_SIZE_TEXT]);

/* text with what is not printable made '?', in place. */
char *cli_printable(char *text);

#endif
