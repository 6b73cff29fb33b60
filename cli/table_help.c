/* Prints the help of a command from its table of options. */
#include "cli/table.h"

#include <string.h>

#define COLUMNS 79
#define TEXT 24         /* the column where texts begin */
#define UNBROKEN "\x1f" /* printed as a blank, but no line is broken there */

/* Prints text in lines from the column TEXT to COLUMNS. The first line already has `column` characters. */
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
        for (size_t i = 0; i < length; i++) {
            fputc(text[i] == UNBROKEN[0] ? ' ' : text[i], file);
        }
        column += length;
        text += length;
        text += *text == ' ';
    }
    fputc('\n', file);
}

static void help_option(const cli_table *table, const cli_option *o, FILE *file)
{
    char text[1200], words[400] = "", usual[200];
    const char *known = table->usual != NULL ? table->usual(o, usual, sizeof usual) : NULL;
    if (o->words != NULL) {
        cli_option_words(o, words, sizeof words);
    }
    snprintf(text, sizeof text, "%s%s%s%s%s%s", o->help, words[0] != 0 ? ": " : "", words,
             known != NULL ? " (default" UNBROKEN : "", known != NULL ? known : "", known != NULL ? ")" : "");
    int column = fprintf(file, "  --%s%s%s", o->name, o->value != NULL ? " " : "", o->value != NULL ? o->value : "");
    if (column + 2 > TEXT) {
        fputc('\n', file);
        column = 0;
    }
    wrap(file, text, (size_t)column);
}

void cli_table_help(const cli_table *table, FILE *file)
{
    fprintf(file, "usage: shoal %s%s%s [OPTION ...]%s%s\n%s", table->command->name, table->required != NULL ? " " : "",
            table->required != NULL ? table->required : "", table->arguments != NULL ? " " : "",
            table->arguments != NULL ? table->arguments : "", table->before != NULL ? table->before : "");
    for (int group = 0; table->groups[group] != NULL; group++) {
        fprintf(file, "\n%s:\n", table->groups[group]);
        for (size_t i = 0; i < table->count; i++) {
            if (table->options[i].group == group) {
                help_option(table, &table->options[i], file);
            }
        }
    }
    wrap(file, "print this help and exit", (size_t)fprintf(file, "  -h, --help"));
    wrap(file, "print the version and exit", (size_t)fprintf(file, "  --version"));
    fprintf(file, "%s", table->after != NULL ? table->after : "");
}
