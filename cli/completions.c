/* shoal completions: prints completions for bash and zsh, made from the tables of the commands. */
#include "cli/table.h"

#include <string.h>

static const char help[] = "usage: shoal completions bash|zsh\n"
                           "Prints a script that completes commands, options and their values. make install\n"
                           "installs both scripts. To use one without that:\n\n"
                           "  bash        source <(shoal completions bash)\n"
                           "  zsh         shoal completions zsh >DIR/_shoal, where DIR is in $fpath\n\n"
                           "options:\n"
                           "  -h, --help  print this help and exit\n"
                           "  --version   print the version and exit\n";

/* A word of a command that has no table (cli_command.words). */
typedef struct plain_word {
    char text[64];
    char then[64]; /* the words that may follow, separated by blanks; "": none */
    bool option;
    bool folder; /* an option that takes a folder */
} plain_word;

/* Reads the next word at *at. Returns false after the last. */
static bool next_word(const char **at, plain_word *out)
{
    *at += strspn(*at, " ");
    size_t length = strcspn(*at, " "), name = strcspn(*at, " :/");
    *out = (plain_word){.option = **at == '-', .folder = (*at)[name] == '/'};
    snprintf(out->text, sizeof out->text, "%.*s", (int)name, *at);
    snprintf(out->then, sizeof out->then, "%.*s", (*at)[name] == ':' ? (int)(length - name - 1) : 0, *at + name + 1);
    for (char *c = out->then; *c != 0; c++) {
        *c = *c == ',' ? ' ' : *c;
    }
    *at += length;
    return length > 0;
}

/* ---- bash ---- */

static void bash_value(FILE *file, const cli_option *o)
{
    if (o->kind == CLI_FLAG || (o->kind < CLI_FILE && o->words == NULL)) {
        return;
    }
    fprintf(file, "        %s)%s_shoal_reply", o->name, strlen(o->name) < 12 ? " " : "\n            ");
    fprintf(file, " '%s' '", o->kind == CLI_FILE ? "-f" : o->kind == CLI_FOLDER ? "-d" : "");
    for (size_t i = 0; o->words != NULL && o->words(i) != NULL; i++) {
        fprintf(file, "%s%s", i > 0 ? " " : "", o->words(i));
    }
    fputs("' \"$cur\"; return ;;\n", file);
}

static void bash_table(FILE *file, const cli_table *table)
{
    fputs("        case ${prev#--} in\n", file);
    for (size_t i = 0; i < table->count; i++) {
        bash_value(file, &table->options[i]);
    }
    /* Other values are numbers and texts, which have no completions. */
    for (size_t i = 0, n = 0; i <= table->count; i++) {
        const cli_option *o = &table->options[i];
        if (i == table->count) {
            fputs(n > 0 ? ") return ;;\n" : "", file);
        } else if (o->kind != CLI_FLAG && o->kind < CLI_FILE && o->words == NULL) {
            fprintf(file, "%s%s", n++ > 0 ? "|" : "        ", o->name);
        }
    }
    fprintf(file, "        esac\n        _shoal_reply '%s' '", table->arguments != NULL ? "-f" : "");
    for (size_t i = 0; i < table->count; i++) {
        fprintf(file, "--%s ", table->options[i].name);
    }
    fputs("--help --version' \"$cur\"\n", file);
}

/* Prints the options, "--a --b", or the words for the first argument. */
static void put_words(FILE *file, const char *words, bool options)
{
    plain_word word;
    bool first = true;
    for (const char *at = words; next_word(&at, &word);) {
        if (word.option == options) {
            fprintf(file, "%s%s", first ? "" : " ", word.text);
            first = false;
        }
    }
}

/* Completes options, the first argument, and what may follow it. */
static void bash_words(FILE *file, const char *words)
{
    plain_word word;
    fputs("        case $prev in\n", file);
    for (const char *at = words; next_word(&at, &word);) {
        if (word.folder) {
            fprintf(file, "        %s) _shoal_reply '-d' '' \"$cur\"; return ;;\n", word.text);
        }
    }
    fputs("        esac\n        _shoal_arguments\n        case ${arguments[*]} in\n        '') words='", file);
    put_words(file, words, false);
    fputs("' ;;\n", file);
    for (const char *at = words; next_word(&at, &word);) {
        if (word.then[0] != 0) {
            fprintf(file, "        %s) words='%s' ;;\n", word.text, word.then);
        }
    }
    fputs("        esac\n        _shoal_reply '' \"$words ", file);
    put_words(file, words, true);
    fputs(" --help --version\" \"$cur\"\n", file);
}

static void write_bash(FILE *file)
{
    fputs("# bash completion for shoal, written by `shoal completions bash`.\n\n"
          "_shoal_reply() { # what compgen finds (-f, -d or nothing), words, what they begin with\n"
          "    local found=()\n"
          "    if [[ -n $1 && $3 != -* ]]; then\n"
          "        compopt -o filenames 2>/dev/null\n"
          "        mapfile -t found < <(compgen $1 -- \"$3\")\n"
          "    fi\n"
          "    mapfile -t COMPREPLY < <(compgen -W \"$2\" -- \"$3\")\n"
          "    COMPREPLY+=(\"${found[@]}\")\n"
          "}\n\n"
          "_shoal_arguments() { # the words before the cursor that are neither options nor their folders\n"
          "    local i\n"
          "    for ((i = 2; i < COMP_CWORD; i++)); do\n"
          "        case ${COMP_WORDS[i - 1]} in --from | --to | =) continue ;; esac\n"
          "        case ${COMP_WORDS[i]} in -* | =) ;; *) arguments+=(\"${COMP_WORDS[i]}\") ;; esac\n"
          "    done\n"
          "}\n\n"
          "_shoal() {\n"
          "    local cur=${COMP_WORDS[COMP_CWORD]} prev= words= arguments=()\n"
          "    COMPREPLY=()\n"
          "    ((COMP_CWORD == 0)) || prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
          "    # --option=value comes in three words.\n"
          "    if [[ $prev == = ]] && ((COMP_CWORD >= 2)); then\n"
          "        prev=${COMP_WORDS[COMP_CWORD - 2]}\n"
          "    elif [[ $cur == = ]]; then\n"
          "        cur=\n"
          "    fi\n"
          "    [[ $prev == --* ]] || prev=\n"
          "    if ((COMP_CWORD <= 1)); then\n"
          "        _shoal_reply '' '",
          file);
    for (size_t i = 0; cli_command_at(i) != NULL; i++) {
        fprintf(file, "%s ", cli_command_at(i)->name);
    }
    fputs("--help --version' \"$cur\"\n        return\n    fi\n    case ${COMP_WORDS[1]} in\n", file);
    for (size_t i = 0; cli_command_at(i) != NULL; i++) {
        const cli_command *c = cli_command_at(i);
        fprintf(file, "    %s)\n", c->name);
        if (c->table != NULL) {
            bash_table(file, c->table);
        } else {
            bash_words(file, c->words);
        }
        fputs("        ;;\n", file);
    }
    fputs("    esac\n}\n\ncomplete -F _shoal shoal\n", file);
}

/* ---- zsh ---- */

/* Escapes text for '...[ ]:...', where some characters are special in zsh. */
static void zsh_text(FILE *file, const char *text)
{
    for (; *text != 0; text++) {
        if (*text == '\'') {
            fputs("'\\''", file);
        } else if (strchr("[]:\\", *text) != NULL) {
            fprintf(file, "\\%c", *text);
        } else {
            fputc(*text, file);
        }
    }
}

static void zsh_words(FILE *file, const cli_option *o)
{
    for (size_t i = 0; o->words(i) != NULL; i++) {
        fprintf(file, "%s%s", i > 0 ? " " : "", o->words(i));
    }
}

static void zsh_option(FILE *file, const cli_option *o)
{
    fprintf(file, "            '--%s%s[", o->name, o->kind == CLI_FLAG ? "" : "=");
    zsh_text(file, o->help);
    fputc(']', file);
    if (o->kind != CLI_FLAG) {
        fprintf(file, ":%s:", o->value);
    }
    if (o->kind >= CLI_FILE && o->kind != CLI_FLAG && o->words != NULL) {
        fputs("{compadd -- ", file);
        zsh_words(file, o);
        fprintf(file, "; _files%s}", o->kind == CLI_FOLDER ? " -/" : "");
    } else if (o->words != NULL) {
        fputc('(', file);
        zsh_words(file, o);
        fputc(')', file);
    } else if (o->kind == CLI_FILE || o->kind == CLI_FOLDER) {
        fprintf(file, "_files%s", o->kind == CLI_FOLDER ? " -/" : "");
    }
    fputs("' \\\n", file);
}

static void zsh_plain(FILE *file, const char *words)
{
    plain_word word;
    for (const char *at = words; next_word(&at, &word);) {
        if (word.option) {
            fprintf(file, "            '%s%s' \\\n", word.text, word.folder ? "=:DIR:_files -/" : "");
        }
    }
    const char *between = "            '1:word:(";
    for (const char *at = words; next_word(&at, &word);) {
        if (!word.option) {
            fprintf(file, "%s%s", between, word.text);
            between = " ";
        }
    }
    fputs(between[1] == 0 ? ")' \\\n" : "", file);
    between = "            '2:name:{case $words[2] in ";
    for (const char *at = words; next_word(&at, &word);) {
        if (word.then[0] != 0) {
            fprintf(file, "%s%s) compadd -- %s ;; ", between, word.text, word.then);
            between = "";
        }
    }
    fputs(between[0] == 0 ? "esac}' \\\n" : "", file);
}

static void zsh_command(FILE *file, const cli_command *c)
{
    fprintf(file, "    %s)\n        _arguments \\\n", c->name);
    for (size_t i = 0; c->table != NULL && i < c->table->count; i++) {
        zsh_option(file, &c->table->options[i]);
    }
    if (c->table == NULL) {
        zsh_plain(file, c->words);
    } else if (c->table->arguments != NULL) {
        fputs("            '*:file:_files' \\\n", file);
    }
    fputs("            '(-h --help)'{-h,--help}'[help]' '--version[the version]'\n        ;;\n", file);
}

static void write_zsh(FILE *file)
{
    fputs("#compdef shoal\n# zsh completion for shoal, written by `shoal completions zsh`.\n\n"
          "_shoal() {\n"
          "    local -a commands=(\n",
          file);
    for (size_t i = 0; cli_command_at(i) != NULL; i++) {
        fprintf(file, "        '%s:", cli_command_at(i)->name);
        zsh_text(file, cli_command_at(i)->summary);
        fputs("'\n", file);
    }
    fputs("    )\n"
          "    if ((CURRENT == 2)); then\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    local command=$words[2]\n"
          "    shift words\n"
          "    ((CURRENT--))\n"
          "    case $command in\n",
          file);
    for (size_t i = 0; cli_command_at(i) != NULL; i++) {
        zsh_command(file, cli_command_at(i));
    }
    fputs("    esac\n}\n\n"
          "if [[ $funcstack[1] == _shoal ]]; then\n    _shoal \"$@\"\nelse\n    compdef _shoal shoal\nfi\n",
          file);
}

/* ---- the command ---- */

static cli_exit run(int argc, char **argv)
{
    cli_options options;
    cli_output output;
    cli_exit status;
    if (!cli_options_read(&cli_completions, argc, argv, &options, &status)) {
        return status;
    }
    const char *shell = options.argument;
    if (shell == NULL) {
        return cli_complain(&cli_completions, CLI_MISUSED, "the name of the shell is missing: bash or zsh");
    }
    if (strcmp(shell, "bash") != 0 && strcmp(shell, "zsh") != 0) {
        return cli_complain(&cli_completions, CLI_MISUSED, "unknown shell '%s'; use bash or zsh", shell);
    }
    if (!cli_output_begin(&output)) {
        return CLI_FAILED;
    }
    (shell[0] == 'b' ? write_bash : write_zsh)(output.file);
    return cli_output_end(&output);
}

const cli_command cli_completions = {
    .name = "completions",
    .summary = "print the completions for bash or zsh",
    .help = help,
    .run = run,
    .words = "bash zsh",
};
