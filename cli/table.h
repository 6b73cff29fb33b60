/* The options of a command as a table. From one line of it come the command line, the config file, what --print-config prints,
 * the help and the shell completions.
 *
 * What is not given stays as it was, zero, which is the library's word for its own default.
 */
#ifndef CLI_TABLE_H
#define CLI_TABLE_H

#include "cli/cli.h"

typedef enum cli_kind {
    CLI_WHOLE,  /* from least to most */
    CLI_NUMBER, /* likewise; see cli_ends */
    CLI_WORD,   /* one of words */
    CLI_TEXT,   /* any; words are those that are known */
    CLI_FILE,   /* a path */
    CLI_FOLDER, /* a path */
    CLI_FLAG,
} cli_kind;

/* Which ends of the bounds of a CLI_NUMBER are outside of them. */
typedef enum cli_ends { CLI_CLOSED = 0, CLI_ABOVE = 1, CLI_BELOW = 2 } cli_ends;

/* The type of the field that an option fills in. */
typedef enum cli_type { CLI_INT, CLI_INT64, CLI_UINT64, CLI_DOUBLE, CLI_BOOL, CLI_STRING, CLI_ENUM } cli_type;

#define CLI_TYPE_OF(x)                                                                                                 \
    _Generic((x), int: CLI_INT, int64_t: CLI_INT64, uint64_t: CLI_UINT64, double: CLI_DOUBLE, bool: CLI_BOOL,          \
             const char *: CLI_STRING, unsigned: CLI_ENUM)

/* Where an option goes: a field of the struct that the command fills in. */
#define CLI_FIELD(call, field) .at = offsetof(call, field), .type = CLI_TYPE_OF(((call *)0)->field)

typedef struct cli_option {
    const char *name;  /* without the dashes */
    const char *value; /* as the help calls it: "N"; NULL: a flag */
    const char *help;  /* in a line or two */
    cli_kind kind;
    int group;      /* of the help */
    unsigned of;    /* a bit for each choice that it belongs to (cli_table.choice); 0: all */
    bool here_only; /* on the command line, not in a file */
    bool none;      /* 0 is to be none: the library, for which 0 is the default, wants -1 */
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
    size_t size;                    /* of the struct that is filled in */
    const char *required;           /* the option that must be given: "--load FILE"; NULL: none */
    const char *arguments;          /* what may follow the options: "IMAGE ..."; NULL: nothing */
    const char *const *groups;      /* titles */
    const char *before, *after;     /* of the help's options; NULL: nothing */
    const char *(*choice)(int bit); /* names of the bits in `of` */
    const char *choice_name;        /* "method": what is chosen */

    /* The bit of the choice that was made. A table without has no option that belongs to some choices only. */
    unsigned (*chosen)(const void *call);

    /* May be NULL: the default of an option as the help tells it, or NULL. */
    const char *(*usual)(const cli_option *option, char *buffer, size_t capacity);
} cli_table;

/* Where the value of an option comes from. */
typedef enum cli_origin { CLI_DEFAULT, CLI_IN_CHECKPOINT, CLI_IN_FILE, CLI_GIVEN } cli_origin;

#define CLI_OPTIONS 96

/* Options that fill in the same field are names of one thing: origin and line are those of all of them. */
typedef struct cli_given {
    cli_origin origin[CLI_OPTIONS];
    bool named[CLI_OPTIONS]; /* on the command line, by this name */
    int line[CLI_OPTIONS];   /* of the file */
    char *kept[CLI_OPTIONS]; /* texts of the file, which fields point to */
} cli_given;

void cli_given_note(const cli_table *table, cli_given *given, size_t option, cli_origin origin, int line);
void cli_given_free(cli_given *given);

/* Reads the command line into call. True: argv[*out_first] is the first argument. False: all is said; end with *out_status. */
bool cli_table_read(const cli_table *table, int argc, char **argv, void *call, cli_given *given, int *out_first,
                    cli_exit *out_status);

/* Puts a value into its field of call, which may point to text from then on. False: wanted says what would be right. */
#define CLI_WANTED 400
bool cli_option_set(const cli_option *option, const char *text, void *call, char wanted[CLI_WANTED]);

/* The value of a field as text that cli_option_set takes; NULL: it is not set. */
#define CLI_VALUE 4200
const char *cli_option_text(const cli_option *option, const void *call, char buffer[CLI_VALUE]);

/* Whether it is one of the settings of that choice (a bit of cli_option.of), under the first of its names. */
bool cli_option_is_setting(const cli_table *table, size_t option, unsigned of);

/* By name; NULL: none. */
const cli_option *cli_table_find(const cli_table *table, const char *name);

/* The name that is most like this one; NULL when none is. */
const char *cli_table_nearest(const cli_table *table, const char *name);

/* "hogwild, local": the choices that an option belongs to; "": all. */
void cli_option_choices(const cli_table *table, const cli_option *option, char *buffer, size_t capacity);

/* The words of an option with commas between and an "or" before the last. */
void cli_option_words(const cli_option *option, char *buffer, size_t capacity);

void cli_table_help(const cli_table *table, FILE *file);

#endif
