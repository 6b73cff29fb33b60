#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024
#define PATIENCE_MS 1000

char *cli_printable(char *text)
{
    for (char *c = text; *c != 0; c++) {
        if ((unsigned char)*c < ' ' || *c == 127) {
            *c = '?';
        }
    }
    return text;
}

cli_exit cli_complain(const cli_command *command, cli_exit status, const char *format, ...)
{
    char text[LINE_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fprintf(stderr, "shoal%s%s: %s\n", command != NULL ? " " : "", command != NULL ? command->name : "",
            cli_printable(text));
    return status;
}

bool cli_output_begin(cli_output *output)
{
    *output = (cli_output){.stop = -1};
    output->file = open_memstream(&output->text, &output->size);
    if (output->file == NULL) {
        output->failed = true;
        cli_complain(NULL, CLI_FAILED, "no memory for the output");
    }
    return !output->failed;
}

static int wait_for(struct pollfd *fds, nfds_t count, int milliseconds)
{
    int n;
    do {
        n = poll(fds, count, milliseconds);
    } while (n < 0 && errno == EINTR);
    return n;
}

/* Waits until standard output accepts data. Returns false to give up. `stop` is a pipe: a signal that comes just before
 * write() leaves a byte there and cannot be missed, as it could if it had to interrupt write(). */
static bool wait_for_reader(int stop)
{
    struct pollfd fds[] = {{.fd = STDOUT_FILENO, .events = POLLOUT}, {.fd = stop, .events = POLLIN}};
    int n = wait_for(fds, 2, -1);
    if (n > 0 && fds[0].revents == 0) {
        n = wait_for(fds, 1, PATIENCE_MS);
    }
    return n < 0 || fds[0].revents != 0; /* write() will report what is wrong */
}

static bool write_all(cli_output *output)
{
    const char *text = output->text;
    size_t piece = output->stop >= 0 ? PIPE_BUF : SIZE_MAX; /* a pipe with room accepts PIPE_BUF without blocking */
    for (size_t left = output->size; left > 0 && !output->given_up;) {
        if (output->stop >= 0 && !wait_for_reader(output->stop)) {
            output->given_up = true;
            break;
        }
        ssize_t n = write(STDOUT_FILENO, text, left < piece ? left : piece);
        if (n < 0 && errno != EINTR) {
            return false;
        }
        if (n > 0) {
            text += n;
            left -= (size_t)n;
        }
    }
    return true;
}

bool cli_output_send(cli_output *output)
{
    if (output->failed) {
        return false;
    }
    if (fflush(output->file) != 0) {
        output->failed = true;
        cli_complain(NULL, CLI_FAILED, "no memory for the output");
    } else if (!write_all(output)) {
        output->failed = true;
        if (errno != EPIPE) { /* a reader that has seen enough, such as head, is not an error to report */
            cli_complain(NULL, CLI_FAILED, "cannot write the output: %s", strerror(errno));
        }
    }
    rewind(output->file);
    return !output->failed;
}

cli_exit cli_output_end(cli_output *output)
{
    bool sent = cli_output_send(output);
    if (output->file != NULL) {
        fclose(output->file);
        free(output->text);
    }
    return sent ? CLI_OK : CLI_FAILED;
}

cli_exit cli_print(const char *text)
{
    cli_output output;
    if (!cli_output_begin(&output)) {
        return CLI_FAILED;
    }
    fputs(text, output.file);
    return cli_output_end(&output);
}

/* Returns the length of the UTF-8 character at text, 0 if it is not one. */
static size_t character(const unsigned char *text)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80 ? 1 : text[0] >> 5 == 6 ? 2 : text[0] >> 4 == 14 ? 3 : text[0] >> 3 == 30 ? 4 : 0;
    uint32_t code = length == 1 ? text[0] : text[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (text[i] >> 6 != 2) {
            return 0;
        }
        code = code << 6 | (text[i] & 0x3fu);
    }
    return length > 0 && code >= least[length] && code <= 0x10ffff && code >> 11 != 27 ? length : 0;
}

void cli_json_string(FILE *file, const char *text)
{
    fputc('"', file);
    for (const unsigned char *c = (const unsigned char *)text; *c != 0;) {
        size_t length = character(c);
        if (length == 0) {
            fputs("\\ufffd", file);
            c++;
        } else if (length == 1 && (*c < ' ' || *c == 127)) {
            fprintf(file, "\\u%04x", *c++);
        } else if (*c == '"' || *c == '\\') {
            fprintf(file, "\\%c", *c++);
        } else {
            fwrite(c, 1, length, file);
            c += length;
        }
    }
    fputc('"', file);
}

void cli_json_number(FILE *file, double x)
{
    fprintf(file, isfinite(x) ? "%.9g" : "null", x);
}

void cli_html_text(FILE *file, const char *text)
{
    for (const unsigned char *c = (const unsigned char *)text; *c != 0;) {
        size_t length = character(c);
        bool control = length == 1 && ((*c < ' ' && *c != '\n' && *c != '\t') || *c == 127);
        if (length == 0 || control) {
            fputs("&#xfffd;", file);
        } else if (strchr("&<>\"'", *c) != NULL) {
            fprintf(file, "&#%d;", *c);
        } else {
            fwrite(c, 1, length, file);
        }
        c += length > 0 ? length : 1;
    }
}

const char *cli_size(uint64_t bytes, char buffer[CLI_SIZE_TEXT])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes == UINT64_MAX) {
        snprintf(buffer, CLI_SIZE_TEXT, "unlimited");
        return buffer;
    }
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(buffer, CLI_SIZE_TEXT, unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return buffer;
}
