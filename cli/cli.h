/* What all commands of the program share: how they are called, how they report errors, and how they print.
 *
 * Exit status: 0 success, 1 the command failed, 2 wrong usage. Each failure prints one line to standard error.
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
    const char *help;    /* what `shoal NAME --help` prints; NULL: it is made from the table */
    cli_exit (*run)(int argc, char **argv);
    const struct cli_table *table; /* of its options (cli/table.h); NULL: they are in words */
    /* For the completions, if there is no table: the options, those that take a folder with a / at the end, and the
     * words for the first argument. The words that may follow one are after a colon, separated by commas: "list
     * verify:mnist --to/". */
    const char *words;
    const char *flag; /* one more option without a value, if there is no table; NULL: none */
} cli_command;

extern const cli_command cli_train, cli_eval, cli_predict, cli_info, cli_ps, cli_bench, cli_data, cli_completions;

/* Returns command i in the order of the help, NULL beyond the last. */
const cli_command *cli_command_at(size_t i);

/* Prints "shoal NAME: text" to standard error as one line, even if the text has line breaks. Returns status. command
 * may be NULL. */
__attribute__((format(printf, 3, 4))) cli_exit cli_complain(const cli_command *command, cli_exit status,
                                                            const char *format, ...);

/* Reads the options of a command without a table: --json, --help, --version, its flag, and at most one argument.
 * Returns false if the command is finished, with its message printed: exit with *out_status. */
typedef struct cli_options {
    bool json;
    bool flag;            /* that of the command */
    const char *argument; /* NULL: none */
} cli_options;
bool cli_options_read(const cli_command *command, int argc, char **argv, cli_options *out_options,
                      cli_exit *out_status);

/* Standard output. `file` collects the text; it is sent in whole pieces, so that a failed write is detected and
 * reported. */
typedef struct cli_output {
    FILE *file;
    char *text;
    size_t size;
    int stop;      /* an fd: once it is readable, wait at most a second for the reader; -1: always wait */
    bool given_up; /* the wait ended so: nothing more is sent, which is not a failure */
    bool failed;
} cli_output;

bool cli_output_begin(cli_output *output); /* returns false after printing that there is no memory */
bool cli_output_send(cli_output *output);  /* sends the text; returns false after printing why it cannot */
cli_exit cli_output_end(cli_output *output);

/* Prints text as the whole output of a command. */
cli_exit cli_print(const char *text);

/* Writes a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD. */
void cli_json_string(FILE *file, const char *text);

/* Writes a JSON number, or null if x is not finite. */
void cli_json_number(FILE *file, double x);

/* Writes text for HTML, also inside quoted attributes. What HTML cannot contain becomes U+FFFD. */
void cli_html_text(FILE *file, const char *text);

/* Writes "1.5 GiB" to buffer, or "unlimited" for UINT64_MAX. Returns buffer. */
#define CLI_SIZE_TEXT 32
const char *cli_size(uint64_t bytes, char buffer[CLI_SIZE_TEXT]);

/* Replaces control characters by '?' in place. Returns text. */
char *cli_printable(char *text);

#endif
