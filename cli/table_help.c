/* The help of a command, from its table. */
#include "cli/table.h"

#include <string.h>

#define COLUMNS 98
#define TEXT 26 /* the column that texts begin in */

/* Words one after another, in lines that begin in the column TEXT; the first line has `column` already. */
static void wrap(FILE *file, const char *text, size_t column)
{
    fprintf(file, "%*s", column < TEXT ? (int)(TEXT - column) : 0, "");
    column = column < TEXT ? TEXT : column;
    for (bool first = true; *text != 0; first = false) {
        size_t length = strcspn(text, " ");
        if (!first && column + 1 + length > COLUMNS) {
            fprintf(file, "\n%*s", TEXT, "");
            column = TEXT;
        } else if (!first) {
            fputc(' ', file);
            column++;
        }
        fwrite(text, 1, length, file);
        column += length;
        text += length;
        text += *text == ' ';
    }
    fputc('\n', file);
}

void cli_option_choices(const cli_table *table, const cli_option *o, char *buffer, size_t capacity)
{
    size_t at = 0;
    buffer[0] = 0;
    for (int bit = 0; o->of != 0 && bit < 32 && table->choice(bit) != NULL; bit++) {
        if (o->of >> bit & 1 && at < capacity) {
            at += (size_t)snprintf(buffer + at, capacity - at, "%s%s", at > 0 ? ", " : "", table->choice(bit));
        }
    }
}

static void help_line(void *context, const char *text)
{
    wrap(context, text, 0);
}

static void help_option(const cli_table *table, const cli_option *o, FILE *file)
{
    char text[1200], words[400] = "", usual[200], choices[200];
    const char *known = table->usual != NULL ? table->usual(o, usual, sizeof usual) : NULL;
    if (o->words != NULL) {
        cli_option_words(o, words, sizeof words);
    }
    cli_option_choices(table, o, choices, sizeof choices);
    snprintf(text, sizeof text, "%s%s%s%s%s%s%s%s", choices, choices[0] != 0 ? ": " : "", o->help,
             words[0] != 0 ? ": " : "", words, known != NULL ? " (" : "", known != NULL ? known : "",
             known != NULL ? ")" : "");
    int column = fprintf(file, "  --%s%s%s", o->name, o->value != NULL ? " " : "", o->value != NULL ? o->value : "");
    if (column + 2 > TEXT) {
        fputc('\n', file);
        column = 0;
    }
    wrap(file, text, (size_t)column);
    if (table->more != NULL) {
        table->more(o, help_line, file);
    }
}

void cli_table_help(const cli_table *table, FILE *file)
{
    fprintf(file, "usage: shoal %s [OPTION ...]%s%s\n%s", table->command->name, table->arguments != NULL ? " " : "",
            table->arguments != NULL ? table->arguments : "", table->before != NULL ? table->before : "");
    for (int group = 0; table->groups[group] != NULL; group++) {
        fprintf(file, "\n%s:\n", table->groups[group]);
        for (size_t i = 0; i < table->count; i++) {
            if (table->options[i].group == group) {
                help_option(table, &table->options[i], file);
            }
        }
    }
    wrap(file, "this", (size_t)fprintf(file, "  -h, --help"));
    wrap(file, "the version", (size_t)fprintf(file, "  --version"));
    fprintf(file, "%s", table->after != NULL ? table->after : "");
}
