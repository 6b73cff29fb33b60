/* Parses and prints the values of options, and reads the command line. */
#include "cli/table.h"

#include <shoal/version.h>

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MOST 48

/* ---- values ---- */

void cli_option_words(const cli_option *option, char *buffer, size_t capacity)
{
    size_t at = 0;
    buffer[0] = 0;
    for (size_t i = 0; option->words(i) != NULL && at < capacity; i++) {
        const char *before = i == 0 ? "" : option->words(i + 1) == NULL ? " or " : ", ";
        at += (size_t)snprintf(buffer + at, capacity - at, "%s%s", before, option->words(i));
    }
}

void cli_option_choices(const cli_table *table, const cli_option *option, char *buffer, size_t capacity)
{
    size_t at = 0;
    int last = 0;
    buffer[0] = 0;
    for (int bit = 0; bit < 32 && table->choice(bit) != NULL; bit++) {
        last = option->of >> bit & 1 ? bit : last;
    }
    for (int bit = 0; option->of != 0 && bit <= last; bit++) {
        if (option->of >> bit & 1 && at < capacity) {
            const char *join = at == 0 ? "" : bit < last ? ", " : " or ";
            at += (size_t)snprintf(buffer + at, capacity - at, "%s%s", join, table->choice(bit));
        }
    }
}

/* Describes the values that the option accepts. */
static void say_wanted(const cli_option *o, char wanted[CLI_WANTED])
{
    char words[CLI_WANTED - 16];
    switch (o->kind) {
    case CLI_WHOLE: snprintf(wanted, CLI_WANTED, "a whole number from %.0Lf to %.0Lf", o->least, o->most); break;
    case CLI_NUMBER:
        snprintf(wanted, CLI_WANTED, "a number %s %Lg and %s %Lg", o->ends & CLI_ABOVE ? "above" : "of at least",
                 o->least, o->ends & CLI_BELOW ? "below" : "at most", o->most);
        break;
    case CLI_WORD:
        cli_option_words(o, words, sizeof words);
        snprintf(wanted, CLI_WANTED, "%s", words);
        break;
    case CLI_FLAG: snprintf(wanted, CLI_WANTED, "true or false"); break;
    default: snprintf(wanted, CLI_WANTED, "a value that is not empty"); break;
    }
}

/* Sets a field of an integer type. */
static void set_whole(const cli_option *o, void *field, int64_t x)
{
    x = x == 0 && o->none ? -1 : x;
    switch (o->type) {
    case CLI_INT: *(int *)field = (int)x; break;
    case CLI_INT64: *(int64_t *)field = x; break;
    case CLI_UINT64: *(uint64_t *)field = (uint64_t)x; break;
    case CLI_ENUM: *(unsigned *)field = (unsigned)x; break;
    default: break;
    }
}

static bool take_whole(const cli_option *o, const char *text, void *field)
{
    char *end;
    errno = 0;
    long long x = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != 0 || x < o->least || x > o->most) {
        return false;
    }
    set_whole(o, field, x);
    return true;
}

static bool take_number(const cli_option *o, const char *text, void *field)
{
    char *end;
    errno = 0;
    double x = strtod(text, &end);
    bool low = o->ends & CLI_ABOVE ? x > o->least : x >= o->least;
    bool high = o->ends & CLI_BELOW ? x < o->most : x <= o->most;
    if (errno != 0 || end == text || *end != 0 || !low || !high) {
        return false;
    }
    *(double *)field = x == 0 && o->none ? -1 : x;
    return true;
}

static bool take_word(const cli_option *o, const char *text, void *field)
{
    for (size_t i = 0; o->words(i) != NULL; i++) {
        if (strcmp(text, o->words(i)) == 0 && o->type == CLI_STRING) {
            *(const char **)field = o->words(i);
            return true;
        }
        if (strcmp(text, o->words(i)) == 0) {
            set_whole(o, field, (int64_t)i + o->first);
            return true;
        }
    }
    return false;
}

static bool take_flag(const char *text, bool *out)
{
    static const char *const words[][2] = {{"true", "false"}, {"yes", "no"}, {"on", "off"}, {"1", "0"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(text, words[i][0]) == 0 || strcmp(text, words[i][1]) == 0) {
            *out = strcmp(text, words[i][0]) == 0;
            return true;
        }
    }
    return false;
}

bool cli_option_set(const cli_option *option, const char *text, void *call, char wanted[CLI_WANTED])
{
    void *field = (char *)call + option->at;
    bool good = true;
    switch (option->kind) {
    case CLI_WHOLE: good = take_whole(option, text, field); break;
    case CLI_NUMBER: good = take_number(option, text, field); break;
    case CLI_WORD: good = take_word(option, text, field); break;
    case CLI_FLAG: good = take_flag(text, field); break;
    default:
        good = text[0] != 0;
        *(const char **)field = good ? text : *(const char **)field;
        break;
    }
    if (!good) {
        say_wanted(option, wanted);
    }
    return good;
}

static int64_t whole_of(const cli_option *o, const void *field)
{
    switch (o->type) {
    case CLI_INT: return *(const int *)field;
    case CLI_INT64: return *(const int64_t *)field;
    case CLI_UINT64: return (int64_t) * (const uint64_t *)field;
    case CLI_ENUM: return *(const unsigned *)field;
    default: return 0;
    }
}

/* Writes x with the fewest digits that read back as the same number. */
static const char *number_text(double x, char buffer[CLI_VALUE])
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buffer, CLI_VALUE, "%.*g", digits, x);
        if (strtod(buffer, NULL) == x) {
            break;
        }
    }
    return buffer;
}

const char *cli_option_text(const cli_option *option, const void *call, char buffer[CLI_VALUE])
{
    const void *field = (const char *)call + option->at;
    if (option->type == CLI_STRING) {
        const char *text = *(const char *const *)field;
        const char *word;
        return text == NULL || option->kind != CLI_WORD || take_word(option, text, &word) ? text : NULL;
    }
    if (option->type == CLI_BOOL) {
        return *(const bool *)field ? "true" : "false";
    }
    if (option->type == CLI_DOUBLE) {
        double x = *(const double *)field;
        x = x < 0 && option->none ? 0 : x;
        bool zero = option->none || (option->least == 0 && !(option->ends & CLI_ABOVE)); /* is a valid value */
        return x != 0 || zero ? number_text(x, buffer) : NULL;
    }
    int64_t x = whole_of(option, field);
    if (option->kind == CLI_WORD) {
        return x >= option->first ? option->words((size_t)(x - option->first)) : NULL;
    }
    x = x < 0 && option->none ? 0 : x;
    snprintf(buffer, CLI_VALUE, "%" PRId64, x);
    return x >= option->least ? buffer : NULL;
}

bool cli_option_is_setting(const cli_table *table, size_t option, unsigned of)
{
    const cli_option *o = &table->options[option];
    for (size_t i = 0; i < option; i++) {
        if (table->options[i].at == o->at) {
            return false;
        }
    }
    return !o->here_only && (o->of == 0 || (o->of & of) != 0);
}

/* ---- names ---- */

const cli_option *cli_table_find(const cli_table *table, const char *name)
{
    for (size_t i = 0; i < table->count; i++) {
        const cli_option *o = &table->options[i];
        if (strcmp(o->name, name) == 0 || (o->old != NULL && strcmp(o->old, name) == 0)) {
            return o;
        }
    }
    return NULL;
}

/* Returns the number of letters to change, insert or delete to turn a into b (Levenshtein distance). */
static size_t distance(const char *a, const char *b)
{
    size_t row[NAME_MOST + 1], n = strlen(b);
    if (n > NAME_MOST || strlen(a) > NAME_MOST) {
        return NAME_MOST;
    }
    for (size_t j = 0; j <= n; j++) {
        row[j] = j;
    }
    for (size_t i = 0; a[i] != 0; i++) {
        size_t corner = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            size_t change = corner + (a[i] != b[j]), insert = row[j] + 1, leave = row[j + 1] + 1;
            corner = row[j + 1];
            row[j + 1] = insert < leave ? insert : leave;
            row[j + 1] = change < row[j + 1] ? change : row[j + 1];
        }
    }
    return row[n];
}

const char *cli_table_nearest(const cli_table *table, const char *name)
{
    const char *nearest = NULL;
    size_t least = strlen(name) / 3 + 1; /* up to a third of the letters may be wrong */
    for (size_t i = 0; i < table->count; i++) {
        size_t d = distance(name, table->options[i].name);
        if (d <= least) {
            least = d > 0 ? d - 1 : 0;
            nearest = table->options[i].name;
        }
    }
    return nearest;
}

void cli_given_note(const cli_table *table, cli_given *given, size_t option, cli_origin origin, int line)
{
    for (size_t i = 0; i < table->count; i++) {
        if (table->options[i].at == table->options[option].at) {
            given->origin[i] = origin;
            given->line[i] = line;
        }
    }
}

void cli_given_free(cli_given *given)
{
    for (size_t i = 0; i < CLI_OPTIONS; i++) {
        free(given->kept[i]);
        given->kept[i] = NULL;
    }
}

/* ---- the command line ---- */

/* For an option of the table, getopt_long returns its number plus OPTION or NO_OPTION. */
enum { VERSION = 256, OPTION = 1000, NO_OPTION = OPTION + CLI_OPTIONS };

typedef struct long_options {
    struct option list[2 * CLI_OPTIONS + 3];
    char no[CLI_OPTIONS][NAME_MOST]; /* "no-NAME" for each flag, which unsets it if a file sets it */
} long_options;

static void list_options(const cli_table *table, long_options *out)
{
    size_t at = 0;
    for (size_t i = 0; i < table->count && i < CLI_OPTIONS; i++) {
        const cli_option *o = &table->options[i];
        bool flag = o->kind == CLI_FLAG;
        out->list[at++] = (struct option){o->name, flag ? no_argument : required_argument, NULL, OPTION + (int)i};
        if (o->old != NULL && !flag) {
            out->list[at++] = (struct option){o->old, required_argument, NULL, OPTION + (int)i};
        }
        if (flag && !o->here_only) {
            snprintf(out->no[i], NAME_MOST, "no-%s", o->name);
            out->list[at++] = (struct option){out->no[i], no_argument, NULL, NO_OPTION + (int)i};
        }
    }
    out->list[at++] = (struct option){"help", no_argument, NULL, 'h'};
    out->list[at++] = (struct option){"version", no_argument, NULL, VERSION};
    out->list[at] = (struct option){0};
}

/* Lists the options whose names begin with a name, such as "--model, --momentum". Returns their number. */
static size_t list_beginning(const cli_table *table, const char *name, char *buffer, size_t capacity)
{
    size_t count = 0, at = 0;
    for (size_t i = 0; i < table->count && at < capacity; i++) {
        if (strncmp(table->options[i].name, name, strlen(name)) == 0) {
            at +=
                (size_t)snprintf(buffer + at, capacity - at, "%s--%s", count++ > 0 ? ", " : "", table->options[i].name);
        }
    }
    return count;
}

static cli_exit complain_of_unknown(const cli_table *table, const char *given)
{
    char name[NAME_MOST], several[CLI_WANTED];
    const char *near = NULL;
    if (given[0] == '-' && given[1] == '-') {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(given + 2, "="), given + 2);
        if (name[0] != 0 && list_beginning(table, name, several, sizeof several) > 1) {
            return cli_complain(table->command, CLI_MISUSED, "'--%s' is short for several options: %s", name, several);
        }
        near = cli_table_nearest(table, name);
    }
    if (near != NULL) {
        return cli_complain(table->command, CLI_MISUSED, "unknown option '%.*s'; did you mean --%s?",
                            (int)strcspn(given, "="), given, near);
    }
    return cli_complain(table->command, CLI_MISUSED, "unknown option '%s'; see shoal %s --help", given,
                        table->command->name);
}

/* Reports a bad option. found is what getopt_long returned: '?' or ':'. */
static cli_exit complain_of_option(const cli_table *table, int found, char **argv)
{
    const char *given = argv[optind - 1];
    char wanted[CLI_WANTED], letter[3] = {'-', (char)optopt, 0};
    if (found == ':' && optopt >= OPTION) {
        const cli_option *o = &table->options[optopt - OPTION];
        say_wanted(o, wanted);
        return cli_complain(table->command, CLI_MISUSED, "--%s %s: the value is missing; expected %s", o->name,
                            o->value, wanted);
    }
    if (optopt >= VERSION || optopt == 'h') {
        return cli_complain(table->command, CLI_MISUSED, "option '%.*s' does not take a value",
                            (int)strcspn(given, "="), given);
    }
    return complain_of_unknown(table, optopt != 0 ? letter : given);
}

static cli_exit print_help(const cli_table *table)
{
    cli_output output;
    if (!cli_output_begin(&output)) {
        return CLI_FAILED;
    }
    cli_table_help(table, output.file);
    return cli_output_end(&output);
}

/* Returns the other name by which the same option was given before, or NULL. */
static const cli_option *given_before(const cli_table *table, const cli_given *given, size_t option)
{
    for (size_t i = 0; i < table->count; i++) {
        if (i != option && given->named[i] && table->options[i].at == table->options[option].at) {
            return &table->options[i];
        }
    }
    return NULL;
}

static bool read_one(const cli_table *table, int found, void *call, cli_given *given)
{
    char wanted[CLI_WANTED];
    bool no = found >= NO_OPTION;
    size_t i = (size_t)(found - (no ? NO_OPTION : OPTION));
    const cli_option *o = &table->options[i], *other = given_before(table, given, i);
    if (other != NULL) {
        cli_complain(table->command, CLI_MISUSED, "--%s and --%s are the same option; give one of them", other->name,
                     o->name);
        return false;
    }
    const char *text = o->kind != CLI_FLAG ? optarg : no ? "false" : "true";
    if (!cli_option_set(o, text, call, wanted)) {
        cli_complain(table->command, CLI_MISUSED, "--%s '%s': expected %s", o->name, text, wanted);
        return false;
    }
    given->named[i] = true;
    cli_given_note(table, given, i, CLI_GIVEN, 0);
    return true;
}

bool cli_table_read(const cli_table *table, int argc, char **argv, void *call, cli_given *given, int *out_first,
                    cli_exit *out_status)
{
    long_options known;
    list_options(table, &known);
    *out_status = CLI_MISUSED;
    opterr = 0;
    optind = 0;
    for (int found; (found = getopt_long(argc, argv, ":h", known.list, NULL)) != -1;) {
        if (found == 'h' || found == VERSION) {
            *out_status = found == 'h' ? print_help(table) : cli_print("shoal " SHOAL_VERSION "\n");
            return false;
        }
        if (found < OPTION) {
            *out_status = complain_of_option(table, found, argv);
            return false;
        }
        if (!read_one(table, found, call, given)) {
            return false;
        }
    }
    if (table->arguments == NULL && optind < argc) {
        cli_complain(table->command, CLI_MISUSED, "unexpected argument '%s'", argv[optind]);
        return false;
    }
    *out_first = optind;
    return true;
}
