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

/* Memory for the pixels, if there are neither none nor too many. */
static bool make(cli_image *image, uint64_t width, uint64_t height, char why[CLI_IMAGE_WHY])
{
    if (width < 1 || width > CLI_IMAGE_SIDE || height < 1 || height > CLI_IMAGE_SIDE) {
        return fail(why, "it has %llu x %llu pixels; 1 to %d either way are possible", (unsigned long long)width,
                    (unsigned long long)height, CLI_IMAGE_SIDE);
    }
    *image = (cli_image){.width = (uint32_t)width, .height = (uint32_t)height, .grey = malloc(width * height)};
    return image->grey != NULL || fail(why, "no memory for %llu pixels", (unsigned long long)(width * height));
}

/* ---- PNG ---- */

static bool decode_png(const uint8_t *bytes, size_t size, cli_image *image, char why[CLI_IMAGE_WHY])
{
    png_image png = {.version = PNG_IMAGE_VERSION};
    const png_color paper = {.red = 255, .green = 255, .blue = 255};
    if (!png_image_begin_read_from_memory(&png, bytes, size)) {
        return fail(why, "no PNG that can be read: %s", png.message);
    }
    if (!make(image, png.width, png.height, why)) {
        png_image_free(&png);
        return false;
    }
    png.format = PNG_FORMAT_GRAY;
    png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB; /* else 16 bits without a word on gamma are taken as linear light */
    if (!png_image_finish_read(&png, &paper, image->grey, 0, NULL)) {
        cli_image_free(image);
        return fail(why, "no PNG that can be read: %s", png.message);
    }
    return true;
}

/* ---- PGM ---- */

typedef struct scan {
    const uint8_t *bytes;
    size_t size, at;
} scan;

/* A number after blanks and comments. */
static bool scan_number(scan *s, uint32_t most, uint32_t *out)
{
    while (s->at < s->size && (strchr(" \t\r\n\v\f", s->bytes[s->at]) != NULL || s->bytes[s->at] == '#')) {
        if (s->bytes[s->at] == 0) {
            return false; /* which strchr finds, too */
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
        return fail(why, "byte %zu: no head of a PGM file: width, height and a lightest value up to 65535 are wanted",
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

static bool read_whole(int fd, uint8_t *bytes, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t n = read(fd, bytes + at, size - at);
        if (n == 0 || (n < 0 && errno != EINTR)) {
            errno = n == 0 ? EIO : errno;
            return false;
        }
        at += n > 0 ? (size_t)n : 0;
    }
    return true;
}

bool cli_image_read(const char *path, cli_image *out_image, char why[CLI_IMAGE_WHY])
{
    struct stat status;
    uint8_t *bytes = NULL;
    bool good = false;
    *out_image = (cli_image){.width = 0};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &status) != 0) {
        fail(why, "%s", strerror(errno));
    } else if (!S_ISREG(status.st_mode)) {
        fail(why, "no regular file");
    } else if ((uint64_t)status.st_size > CLI_IMAGE_FILE) {
        fail(why, "%lld bytes; %zu at most are read", (long long)status.st_size, CLI_IMAGE_FILE);
    } else if ((bytes = malloc((size_t)status.st_size + 1)) == NULL || !read_whole(fd, bytes, (size_t)status.st_size)) {
        fail(why, "%s", strerror(errno));
    } else {
        good = cli_image_decode(bytes, (size_t)status.st_size, out_image, why);
    }
    free(bytes);
    if (fd >= 0) {
        close(fd);
    }
    return good;
}

/* ---- to what a model wants ---- */

bool cli_image_is_dark_on_light(const cli_image *image)
{
    uint64_t sum = 0, count = 0;
    for (uint32_t y = 0; y < image->height; y++) {
        bool edge = y == 0 || y + 1 == image->height;
        uint32_t step = edge || image->width < 2 ? 1 : image->width - 1;
        for (uint32_t x = 0; x < image->width; x += step) {
            sum += image->grey[(size_t)y * image->width + x];
            count++;
        }
    }
    return 2 * sum > 255 * count;
}

/* How much of the pixel at `at` lies between from and to. */
static double overlap(int64_t at, double from, double to)
{
    double low = (double)at > from ? (double)at : from, high = (double)at + 1 < to ? (double)at + 1 : to;
    return high > low ? high - low : 0;
}

/* The sum over the area [x0, x1) x [y0, y1) of the picture; what lies outside is 0. */
static double area(const cli_image *image, bool invert, double x0, double x1, double y0, double y1)
{
    double sum = 0;
    int64_t first_x = x0 > 0 ? (int64_t)x0 : 0, first_y = y0 > 0 ? (int64_t)y0 : 0;
    for (int64_t y = first_y; y < image->height && (double)y < y1; y++) {
        double row = 0;
        for (int64_t x = first_x; x < image->width && (double)x < x1; x++) {
            uint8_t p = image->grey[(size_t)y * image->width + (size_t)x];
            row += overlap(x, x0, x1) * (invert ? 255 - p : p);
        }
        sum += row * overlap(y, y0, y1);
    }
    return sum;
}

void cli_image_scale(const cli_image *image, bool invert, int side, float *out)
{
    double square = image->width > image->height ? image->width : image->height, step = square / side;
    double left = (image->width - square) / 2, top = (image->height - square) / 2;
    for (int y = 0; y < side; y++) {
        for (int x = 0; x < side; x++) {
            double x0 = left + x * step, y0 = top + y * step;
            out[y * side + x] = (float)(area(image, invert, x0, x0 + step, y0, y0 + step) / (step * step));
        }
    }
}
