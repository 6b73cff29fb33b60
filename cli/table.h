/* The options of a command as a table. The command line, the config file, --print-config, the help and the shell
 * completions are all made from one row per option.
 *
 * A field whose option is not given stays zero, which means the default for the library.
 */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include "cli/cli.h"

typedef enum cli_kind {
    CLI_WHOLE,  /* from least to most */
    CLI_NUMBER, /* from least to most, see cli_ends */
    CLI_WORD,   /* one of words */
    CLI_TEXT,   /* any text; words has the known ones */
    CLI_FILE,   /* a path */
    CLI_FOLDER, /* a path */
    CLI_FLAG,
} cli_kind;

/* Which bounds of a CLI_NUMBER are excluded. */
typedef enum cli_ends { CLI_CLOSED = 0, CLI_ABOVE = 1, CLI_BELOW = 2 } cli_ends;

/* The type of the field that an option sets. */
typedef enum cli_type { CLI_INT, CLI_INT64, CLI_UINT64, CLI_DOUBLE, CLI_BOOL, CLI_STRING, CLI_ENUM } cli_type;

#define CLI_TYPE_OF(x)                                                                                                 \
    _Generic((x), int: CLI_INT, int64_t: CLI_INT64, uint64_t: CLI_UINT64, double: CLI_DOUBLE, bool: CLI_BOOL,          \
             const char *: CLI_STRING, unsigned: CLI_ENUM)

/* The field that an option sets, in the struct of the command's call. */
#define CLI_FIELD(call, field) .at = offsetof(call, field), .type = CLI_TYPE_OF(((call *)0)->field)

typedef struct cli_option {
    const char *name;  /* without the dashes */
    const char *old;   /* its name in version 0.2, which is understood everywhere and shown nowhere; NULL: the same */
    const char *value; /* its name in the help: "N"; NULL: a flag */
    const char *help;  /* one or two lines: a noun phrase for a value, an imperative for an action */
    cli_kind kind;
    int group;      /* of the help */
    unsigned of;    /* a bit for each choice (cli_table.choice) that has this option; 0: all have it */
    bool here_only; /* allowed on the command line only, not in a file */
    bool none;      /* 0 means none, which is -1 for the library: its 0 means the default */
    cli_ends ends;
    int first; /* the value of an enum's first word */
    long double least, most;
    const char *(*words)(size_t i); /* NULL beyond the last */
    size_t at;
    cli_type type;
} cli_option;

typedef struct cli_table {
    const cli_command *command;
    const cli_option *options;
    size_t count;                   /* CLI_OPTIONS at most */
    size_t size;                    /* of the struct of the call */
    const char *required;           /* the option that must be given: "--load FILE"; NULL: none */
    const char *arguments;          /* what may follow the options: "IMAGE ..."; NULL: nothing */
    const char *const *groups;      /* titles */
    const char *before, *after;     /* the options in the help; NULL: nothing */
    const char *(*choice)(int bit); /* names of the bits in `of` */
    const char *choice_name;        /* what is chosen: "method" */

    /* Returns the bit of the choice in this call. NULL if all options belong to all choices. */
    unsigned (*chosen)(const void *call);

    /* Returns the default of an option for the help, or NULL if it has none. May be NULL. */
    const char *(*usual)(const cli_option *option, char *buffer, size_t capacity);
} cli_table;

/* Where the value of an option comes from. */
typedef enum cli_origin { CLI_DEFAULT, CLI_IN_CHECKPOINT, CLI_IN_FILE, CLI_GIVEN } cli_origin;

#define CLI_OPTIONS 96

/* Which options are given, and where. Options of the same field are names of the same option and share origin and
 * line. */
typedef struct cli_given {
    cli_origin origin[CLI_OPTIONS];
    bool named[CLI_OPTIONS]; /* given on the command line by this name */
    int line[CLI_OPTIONS];   /* in the file */
    char *kept[CLI_OPTIONS]; /* texts from the file that fields point to */
} cli_given;

void cli_given_note(const cli_table *table, cli_given *given, size_t option, cli_origin origin, int line);
void cli_given_free(cli_given *given);

/* Reads the command line into call. argv[*out_first] is the first argument after the options. Returns false if the
 * command is finished, with its message printed: exit with *out_status. */
bool cli_table_read(const cli_table *table, int argc, char **argv, void *call, cli_given *given, int *out_first,
                    cli_exit *out_status);

/* Sets the field of an option. The field may point to text, which must stay. Returns false and describes the valid
 * values in wanted if text is not one. */
#define CLI_WANTED 400
bool cli_option_set(const cli_option *option, const char *text, void *call, char wanted[CLI_WANTED]);

/* Returns the value of a field as text that cli_option_set accepts, NULL if it is not set. */
#define CLI_VALUE 4200
const char *cli_option_text(const cli_option *option, const void *call, char buffer[CLI_VALUE]);

/* Checks whether an option is a setting of a choice (a bit of cli_option.of) and the first of its names. */
bool cli_option_is_setting(const cli_table *table, size_t option, unsigned of);

/* Returns the option with this name, or NULL. */
const cli_option *cli_table_find(const cli_table *table, const char *name);

/* Returns the name of the option that is most similar to name, NULL if none is similar. */
const char *cli_table_nearest(const cli_table *table, const char *name);

/* Writes the choices that have an option, "hogwild, serial or local", or "" if all have it. */
void cli_option_choices(const cli_table *table, const cli_option *option, char *buffer, size_t capacity);

/* Writes the words of an option, separated by commas, with "or" before the last. */
void cli_option_words(const cli_option *option, char *buffer, size_t capacity);

void cli_table_help(const cli_table *table, FILE *file);

#endif
