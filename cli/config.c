#include "cli/config.h"

#include <errno.h>
#include <ini.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MOST 198 /* the longest line in bytes that Debian's libinih does not cut */

#define BOM "\xEF\xBB\xBF" /* may begin a file in UTF-8 */
#define NOT_READABLE "expected 'NAME = VALUE', a [section], or a comment after ; or #"

typedef struct reading {
    const cli_table *table;
    const char *path;
    void *call;
    cli_given *given;
    void *trial; /* a separate call in which values are checked */
    FILE *file;
    int line;               /* the current one */
    int lines[CLI_OPTIONS]; /* the line of each option; 0: not in the file */
    bool failed;            /* and the reason is printed; nothing more is read */
} reading;

__attribute__((format(printf, 2, 3))) static void complain(reading *r, const char *format, ...)
{
    char text[700];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    r->failed = true;
    cli_complain(r->table->command, CLI_MISUSED, "%s:%d: %s", r->path, r->line, text);
}

/* ---- lines: libinih silently cuts long ones, so they are refused here ---- */

/* Reads the rest of the line after `first` into text, without leading blanks and without its end. Returns false if it
 * is too long or has a zero byte. */
static bool read_line(reading *r, int first, char *text, size_t capacity)
{
    size_t length = 0;
    for (int c = first; c != EOF && c != '\n'; c = getc(r->file)) {
        if (length == 0 && (c == ' ' || c == '\t')) {
            continue;
        }
        bool comment = length > 0 && (text[0] == ';' || text[0] == '#');
        if (c == 0 || (length + 2 > capacity && !comment)) {
            return false;
        }
        if (length + 2 <= capacity) {
            text[length++] = (char)c;
        }
    }
    text[length] = 0;
    return true;
}

/* Returns whether libinih can read a line. It goes on after one that it cannot read, so the first one is found here. */
static bool is_readable(const char *text)
{
    const char *blanks = " \t\r\v\f", *wanted = text[0] == '[' ? "]" : "=:";
    if (text[0] == ';' || text[0] == '#' || text[strspn(text, blanks)] == 0) {
        return true;
    }
    for (const char *c = text; *c != 0; c++) {
        if (strchr(wanted, *c) != NULL) {
            return true;
        }
        if (*c == ';' && c > text && strchr(blanks, c[-1]) != NULL) {
            return false; /* the rest is a comment */
        }
    }
    return false;
}

/* Reads a line for libinih. Leading blanks are dropped, because they would make it a continuation of the line
 * before. */
static char *next_line(char *text, int capacity, void *stream)
{
    reading *r = stream;
    int first = r->failed ? EOF : getc(r->file);
    if (first == EOF) {
        return NULL;
    }
    r->line++;
    size_t most = (size_t)capacity < LINE_MOST + 2 ? (size_t)capacity : LINE_MOST + 2;
    if (!read_line(r, first, text, most)) {
        complain(r, "the line contains a zero byte, or is longer than %zu bytes", most - 2);
        return NULL;
    }
    if (!is_readable(r->line == 1 && strncmp(text, BOM, strlen(BOM)) == 0 ? text + strlen(BOM) : text)) {
        complain(r, NOT_READABLE);
        return NULL;
    }
    return text;
}

/* ---- values ---- */

/* Returns a copy of text without its quotes, which the caller owns. Returns NULL after printing what is wrong. */
static char *unquote(reading *r, const char *name, const char *text)
{
    size_t length = strlen(text);
    if (text[0] == '"' && (length < 2 || text[length - 1] != '"')) {
        complain(r, "%s: the closing quote is missing; a blank and ; begin a comment, even inside quotes", name);
        return NULL;
    }
    char *copy = text[0] == '"' ? strndup(text + 1, length - 2) : strdup(text);
    if (copy == NULL) {
        complain(r, "no memory");
    }
    return copy;
}

/* Checks a value and keeps it. Its field is set when all values are known, and with them the choice. */
static void take(reading *r, const cli_option *o, const char *text)
{
    char wanted[CLI_WANTED];
    size_t i = (size_t)(o - r->table->options);
    char *copy = unquote(r, o->name, text);
    if (copy == NULL) {
        return;
    }
    if (!cli_option_set(o, copy, r->trial, wanted)) {
        complain(r, "%s '%s': expected %s", o->name, copy, wanted);
    }
    r->given->kept[i] = copy;
    r->lines[i] = r->line;
}

/* Returns the other option of the choice by which the file sets the same field, or NULL. */
static const cli_option *second_name(const reading *r, size_t option, unsigned of)
{
    const cli_option *all = r->table->options;
    for (size_t i = 0; i < option; i++) {
        if (r->lines[i] != 0 && all[i].at == all[option].at && (all[i].of == 0 || (all[i].of & of) != 0)) {
            return &all[i];
        }
    }
    return NULL;
}

static void put_in_place(reading *r, size_t i, unsigned of)
{
    char wanted[CLI_WANTED];
    const cli_option *o = &r->table->options[i], *other = second_name(r, i, of);
    if (other != NULL) {
        int line = r->lines[other - r->table->options];
        r->line = line > r->lines[i] ? line : r->lines[i];
        complain(r, "'%s' and '%s' are the same option; the other is in line %d", other->name, o->name,
                 line > r->lines[i] ? r->lines[i] : line);
    } else if (r->given->origin[i] != CLI_GIVEN && cli_option_set(o, r->given->kept[i], r->call, wanted)) {
        cli_given_note(r->table, r->given, i, CLI_IN_FILE, r->lines[i]);
    }
}

/* Checks whether an option of the file belongs to the choice. If not, it is an error, as on the command line, except
 * for a flag that is off and an option that the command line overrides. */
static bool belongs(reading *r, size_t i, unsigned of)
{
    const cli_option *o = &r->table->options[i];
    char value[CLI_VALUE];
    bool off = o->kind == CLI_FLAG && strcmp(cli_option_text(o, r->trial, value), "false") == 0;
    if ((o->of & of) != 0) {
        return true;
    }
    if (!off && r->given->origin[i] != CLI_GIVEN) {
        r->line = r->lines[i];
        cli_option_choices(r->table, o, value, sizeof value);
        complain(r, "%s is for %s %.200s, but the %s is %s", o->name, r->table->choice_name, value,
                 r->table->choice_name, r->table->choice(__builtin_ctz(of)));
    }
    return false;
}

/* Sets the options of all choices first: the choice itself is among them. */
static void put_all_in_place(reading *r)
{
    const cli_table *table = r->table;
    for (size_t i = 0; i < table->count && !r->failed; i++) {
        if (r->lines[i] != 0 && table->options[i].of == 0) {
            put_in_place(r, i, 0);
        }
    }
    unsigned of = table->chosen != NULL ? table->chosen(r->call) : 0;
    for (size_t i = 0; i < table->count && !r->failed; i++) {
        if (r->lines[i] != 0 && table->options[i].of != 0 && belongs(r, i, of)) {
            put_in_place(r, i, of);
        }
    }
}

/* libinih calls this for each value. */
static int on_value(void *user, const char *section, const char *name, const char *value)
{
    reading *r = user;
    const char *command = r->table->command->name;
    const cli_option *o = cli_table_find(r->table, name);
    if (r->failed) {
        return 1;
    }
    if (section[0] != 0 && strcmp(section, command) != 0) {
        complain(r, "%s is in section [%s]; the only section is [%s]", name, section, command);
    } else if (o == NULL) {
        const char *near = cli_table_nearest(r->table, name);
        complain(r,
                 near != NULL ? "unknown option '%s'; did you mean '%s'?" : "unknown option '%s'; see shoal %s --help",
                 name, near != NULL ? near : command);
    } else if (o->here_only) {
        complain(r, "'%s' works only on the command line", name);
    } else if (r->lines[o - r->table->options] != 0) {
        complain(r, "'%s' occurs twice, first in line %d", name, r->lines[o - r->table->options]);
    } else {
        take(r, o, value);
    }
    return 1;
}

bool cli_config_read(const cli_table *table, const char *path, void *call, cli_given *given, cli_exit *out_status)
{
    reading r = {.table = table, .path = path, .call = call, .given = given, .file = fopen(path, "re")};
    if (r.file == NULL) {
        *out_status = cli_complain(table->command, CLI_FAILED, "cannot read %s: %s", path, strerror(errno));
        return false;
    }
    r.trial = calloc(1, table->size);
    int wrong = r.trial != NULL ? ini_parse_stream(next_line, &r, on_value, &r) : 0;
    *out_status = CLI_MISUSED;
    if (r.trial == NULL) {
        *out_status = cli_complain(table->command, CLI_FAILED, "no memory");
        r.failed = true;
    } else if (ferror(r.file)) {
        *out_status = cli_complain(table->command, CLI_FAILED, "cannot read %s: %s", path, strerror(errno));
        r.failed = true;
    } else if (wrong != 0 && !r.failed) {
        r.line = wrong;
        complain(&r, NOT_READABLE);
    }
    if (!r.failed) {
        put_all_in_place(&r);
    }
    free(r.trial);
    fclose(r.file);
    return !r.failed;
}

/* ---- printing ---- */

/* Writes text as a value of a file. Returns false if no file can hold it. */
static bool quote(const char *text, char buffer[CLI_VALUE])
{
    size_t length = strlen(text);
    bool quoted = length == 0 || text[0] == '"' || strchr(" \t", text[0]) != NULL ||
                  strchr(" \t", text[length - 1]) != NULL || text[0] == ';';
    for (size_t i = 0; i < length; i++) {
        bool comment = text[i] == ';' && i > 0 && strchr(" \t\v\f", text[i - 1]) != NULL;
        if (comment || text[i] == '\n' || text[i] == '\r') {
            return false;
        }
    }
    int n = snprintf(buffer, CLI_VALUE, quoted ? "\"%s\"" : "%s", text);
    return n > 0 && n <= LINE_MOST;
}

static void say_origin(const cli_given *given, size_t i, const char *path, char *buffer, size_t capacity)
{
    switch (given->origin[i]) {
    case CLI_DEFAULT: snprintf(buffer, capacity, "default"); break;
    case CLI_GIVEN: snprintf(buffer, capacity, "command line"); break;
    case CLI_IN_CHECKPOINT: snprintf(buffer, capacity, "the checkpoint"); break;
    case CLI_IN_FILE: snprintf(buffer, capacity, "%s, line %d", path, given->line[i]); break;
    }
    cli_printable(buffer);
}

/* Prints a setting with its origin behind it, or in the line above if the line would be too long. */
static bool print_one(FILE *file, const char *name, const char *value, const char *origin)
{
    char text[CLI_VALUE];
    if (!quote(value, text) || strlen(name) + 3 + strlen(text) > LINE_MOST) {
        return false;
    }
    if (strlen(name) + strlen(text) + strlen(origin) + 40 > LINE_MOST) {
        fprintf(file, "; %s\n%s = %s\n", origin, name, text);
    } else {
        int column = fprintf(file, "%s = %s", name, text);
        fprintf(file, "%*s ; %s\n", column < 30 ? 30 - column : 0, "", origin);
    }
    return true;
}

cli_exit cli_config_print(const cli_table *table, const char *path, const void *call, const cli_given *given,
                          unsigned of)
{
    char buffer[CLI_VALUE], origin[PATH_MAX];
    cli_output output;
    if (!cli_output_begin(&output)) {
        return CLI_FAILED;
    }
    fprintf(output.file, "; all settings, for shoal %s --config\n[%s]\n", table->command->name, table->command->name);
    for (size_t i = 0; i < table->count && !output.failed; i++) {
        const cli_option *o = &table->options[i];
        const char *value = cli_option_text(o, call, buffer);
        if (value == NULL || !cli_option_is_setting(table, i, of)) {
            continue;
        }
        say_origin(given, i, path, origin, sizeof origin);
        if (!print_one(output.file, o->name, value, origin)) {
            cli_complain(table->command, CLI_FAILED, "a config file cannot hold the value of %s: '%.100s'", o->name,
                         value);
            output.failed = true;
        }
    }
    return cli_output_end(&output);
}
