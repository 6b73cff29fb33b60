#include "cli/image.h"

#include <errno.h>
#include <fcntl.h>
#include <png.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

__attribute__((format(printf, 2, 3))) static bool fail(char why[CLI_IMAGE_WHY], const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, CLI_IMAGE_WHY, format, arguments);
    va_end(arguments);
    return false;
}

void cli_image_free(cli_image *image)
{
    free(image->grey);
    *image = (cli_image){.width = 0};
}

/* Allocates the pixels, if their number is within the limits. */
static bool make(cli_image *image, uint64_t width, uint64_t height, char why[CLI_IMAGE_WHY])
{
    if (width < 1 || width > CLI_IMAGE_SIDE || height < 1 || height > CLI_IMAGE_SIDE) {
        return fail(why, "it has %llu x %llu pixels; width and height must be from 1 to %d", (unsigned long long)width,
                    (unsigned long long)height, CLI_IMAGE_SIDE);
    }
    *image = (cli_image){.width = (uint32_t)width, .height = (uint32_t)height, .grey = malloc(width * height)};
    return image->grey != NULL || fail(why, "no memory for %llu pixels", (unsigned long long)(width * height));
}

/* ---- PNG ---- */

static bool is_even(const cli_image *image)
{
    return memcmp(image->grey, image->grey + 1, (size_t)image->width * image->height - 1) == 0;
}

/* paper is the grey behind transparent pixels. */
static bool decode_png_on(uint8_t paper, const uint8_t *bytes, size_t size, cli_image *image, bool *out_transparent,
                          char why[CLI_IMAGE_WHY])
{
    png_image png = {.version = PNG_IMAGE_VERSION};
    const png_color behind = {.red = paper, .green = paper, .blue = paper};
    if (!png_image_begin_read_from_memory(&png, bytes, size)) {
        return fail(why, "cannot read the PNG: %s", png.message);
    }
    if (!make(image, png.width, png.height, why)) {
        png_image_free(&png);
        return false;
    }
    *out_transparent = (png.format & PNG_FORMAT_FLAG_ALPHA) != 0;
    png.format = PNG_FORMAT_GRAY;
    png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB; /* else 16 bits without a gamma value would be linear light */
    if (!png_image_finish_read(&png, &behind, image->grey, 0, NULL)) {
        cli_image_free(image);
        return fail(why, "cannot read the PNG: %s", png.message);
    }
    return true;
}

/* An image that is white where it is not transparent cannot be seen on white, and is decoded on black. */
static bool decode_png(const uint8_t *bytes, size_t size, cli_image *image, char why[CLI_IMAGE_WHY])
{
    bool transparent = false, good = decode_png_on(255, bytes, size, image, &transparent, why);
    if (good && transparent && is_even(image)) {
        cli_image_free(image);
        good = decode_png_on(0, bytes, size, image, &transparent, why);
    }
    return good;
}

/* ---- PGM ---- */

typedef struct scan {
    const uint8_t *bytes;
    size_t size, at;
} scan;

/* Reads a number after blanks and comments. */
static bool scan_number(scan *s, uint32_t most, uint32_t *out)
{
    while (s->at < s->size && (strchr(" \t\r\n\v\f", s->bytes[s->at]) != NULL || s->bytes[s->at] == '#')) {
        if (s->bytes[s->at] == 0) {
            return false; /* strchr finds it too */
        }
        bool comment = s->bytes[s->at] == '#';
        while (comment && s->at < s->size && s->bytes[s->at] != '\n') {
            s->at++;
        }
        s->at += s->at < s->size;
    }
    uint64_t x = 0;
    size_t begin = s->at;
    for (; s->at < s->size && s->bytes[s->at] >= '0' && s->bytes[s->at] <= '9' && x <= most; s->at++) {
        x = x * 10 + (uint64_t)(s->bytes[s->at] - '0');
    }
    *out = (uint32_t)x;
    return s->at > begin && x <= most;
}

static bool next_pixel(scan *s, bool plain, uint32_t most, uint32_t *out)
{
    if (plain) {
        return scan_number(s, most, out);
    }
    size_t width = most > 255 ? 2 : 1;
    if (s->size - s->at < width) {
        return false;
    }
    *out = width == 2 ? (uint32_t)s->bytes[s->at] << 8 | s->bytes[s->at + 1] : s->bytes[s->at];
    s->at += width;
    return *out <= most;
}

static bool decode_pgm(const uint8_t *bytes, size_t size, cli_image *image, char why[CLI_IMAGE_WHY])
{
    scan s = {.bytes = bytes, .size = size, .at = 2};
    bool plain = bytes[1] == '2';
    uint32_t width, height, most, pixel;
    if (!scan_number(&s, 1u << 31, &width) || !scan_number(&s, 1u << 31, &height) || !scan_number(&s, 65535, &most) ||
        most == 0 || s.at >= s.size) {
        return fail(why,
                    "byte %zu: not the header of a PGM file; expected width, height and a maximum value up to 65535",
                    s.at);
    }
    s.at++; /* one blank, then the pixels */
    if (!make(image, width, height, why)) {
        return false;
    }
    for (size_t i = 0; i < (size_t)width * height; i++) {
        if (!next_pixel(&s, plain, most, &pixel)) {
            cli_image_free(image);
            return fail(why, "byte %zu: pixel %zu of %zu is missing, or above %u", s.at, i, (size_t)width * height,
                        most);
        }
        image->grey[i] = (uint8_t)((pixel * 255 + most / 2) / most);
    }
    return true;
}

/* ---- files ---- */

bool cli_image_decode(const uint8_t *bytes, size_t size, cli_image *out_image, char why[CLI_IMAGE_WHY])
{
    *out_image = (cli_image){.width = 0};
    if (size >= 8 && png_sig_cmp(bytes, 0, 8) == 0) {
        return decode_png(bytes, size, out_image, why);
    }
    if (size >= 3 && bytes[0] == 'P' && (bytes[1] == '2' || bytes[1] == '5')) {
        return decode_pgm(bytes, size, out_image, why);
    }
    return fail(why, "neither a PNG nor a PGM file (P2 or P5)");
}

/* Reads the whole file, unless it has more than CLI_IMAGE_FILE bytes. The caller owns the result. Returns NULL and sets
 * errno on failure. */
static uint8_t *read_all(int fd, size_t *out_size)
{
    size_t room = 1u << 16, size = 0;
    uint8_t *bytes = malloc(room);
    while (bytes != NULL && size <= CLI_IMAGE_FILE) {
        if (size == room) {
            uint8_t *more = realloc(bytes, room *= 2);
            if (more == NULL) {
                break;
            }
            bytes = more;
        }
        ssize_t n = read(fd, bytes + size, room - size);
        if (n == 0) {
            *out_size = size;
            return bytes;
        }
        if (n < 0 && errno != EINTR) {
            break;
        }
        size += n > 0 ? (size_t)n : 0;
    }
    if (bytes != NULL && size > CLI_IMAGE_FILE) {
        errno = EFBIG;
    }
    free(bytes);
    return NULL;
}

static bool read_from(int fd, cli_image *out_image, char why[CLI_IMAGE_WHY])
{
    size_t size = 0;
    uint8_t *bytes = read_all(fd, &size);
    if (bytes == NULL) {
        return errno == EFBIG ? fail(why, "larger than the maximum of %zu bytes", CLI_IMAGE_FILE)
                              : fail(why, "%s", strerror(errno));
    }
    bool good = cli_image_decode(bytes, size, out_image, why);
    free(bytes);
    return good;
}

bool cli_image_read(const char *path, cli_image *out_image, char why[CLI_IMAGE_WHY])
{
    struct stat status;
    bool good = false;
    *out_image = (cli_image){.width = 0};
    if (strcmp(path, "-") == 0) {
        return read_from(STDIN_FILENO, out_image, why);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &status) != 0) {
        fail(why, "%s", strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        fail(why, "not a regular file");
    } else {
        good = read_from(fd, out_image, why);
    }
    if (fd >= 0) {
        close(fd);
    }
    return good;
}

/* ---- scaling ---- */

/* Returns how much of the pixel at `at` is between from and to. */
static double overlap(int64_t at, double from, double to)
{
    double low = (double)at > from ? (double)at : from, high = (double)at + 1 < to ? (double)at + 1 : to;
    return high > low ? high - low : 0;
}

typedef struct area {
    double x0, x1, y0, y1;
} area;

static double sum_up(const cli_image *image, const float levels[256], cli_box box, area a)
{
    double sum = 0;
    int64_t first_x = a.x0 > box.x ? (int64_t)a.x0 : box.x, first_y = a.y0 > box.y ? (int64_t)a.y0 : box.y;
    for (int64_t y = first_y; y < (int64_t)box.y + box.height && (double)y < a.y1; y++) {
        double row = 0;
        for (int64_t x = first_x; x < (int64_t)box.x + box.width && (double)x < a.x1; x++) {
            row += overlap(x, a.x0, a.x1) * (double)levels[image->grey[(size_t)y * image->width + (size_t)x]];
        }
        sum += row * overlap(y, a.y0, a.y1);
    }
    return sum;
}

/* An area is at least one pixel wide. If it covers parts of two pixels, its value is between theirs, so that small
 * images do not become blocks. */
void cli_image_draw(const cli_image *image, const float levels[256], cli_box box, double left, double top, double step,
                    int side, float *out)
{
    double width = step > 1 ? step : 1, more = (width - step) / 2;
    for (int y = 0; y < side; y++) {
        for (int x = 0; x < side; x++) {
            double x0 = left + x * step - more, y0 = top + y * step - more;
            area a = {.x0 = x0, .x1 = x0 + width, .y0 = y0, .y1 = y0 + width};
            out[y * side + x] = (float)(sum_up(image, levels, box, a) / (width * width));
        }
    }
}

void cli_image_scale(const cli_image *image, bool invert, int side, float *out)
{
    double square = image->width > image->height ? image->width : image->height;
    cli_box whole = {.width = image->width, .height = image->height};
    float levels[256];
    for (int i = 0; i < 256; i++) {
        levels[i] = (float)(invert ? 255 - i : i);
    }
    cli_image_draw(image, levels, whole, (image->width - square) / 2, (image->height - square) / 2, square / side, side,
                   out);
}
