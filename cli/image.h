/* Reads images, PNG (libpng) and PGM (P2 and P5), as bytes of grey, and scales them. No number in a file is trusted:
 * width and height are bounded, and with them the memory. */
#ifndef CLI_IMAGE_H
#define CLI_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLI_IMAGE_SIDE 8192                  /* the maximum width and height */
#define CLI_IMAGE_FILE ((size_t)(64u << 20)) /* the maximum size of a file in bytes */

typedef struct cli_image {
    uint32_t width, height;
    uint8_t *grey; /* 0 is black; freed by cli_image_free */
} cli_image;

/* Decodes the bytes of a file. What is transparent in a PNG becomes white, as on paper, or black if nothing could be
 * seen on white. Returns false and fills in why on failure. */
#define CLI_IMAGE_WHY 200
bool cli_image_decode(const uint8_t *bytes, size_t size, cli_image *out_image, char why[CLI_IMAGE_WHY]);

/* Reads an image from a file, or from standard input if path is "-". Returns false and fills in why, without the file's
 * name, on failure. */
bool cli_image_read(const char *path, cli_image *out_image, char why[CLI_IMAGE_WHY]);
void cli_image_free(cli_image *image);

/* A part of an image, in pixels. */
typedef struct cli_box {
    uint32_t x, y, width, height;
} cli_box;

/* Writes side x side values, each the mean of an area of the image. The first area begins at left and top; each is
 * `step` pixels wide, but at least one. A pixel of grey g counts as levels[g], and what is outside of the box as 0. */
void cli_image_draw(const cli_image *image, const float levels[256], cli_box box, double left, double top, double step,
                    int side, float *out);

/* Scales the whole image to side x side values from 0 to 255, padded with 0 to a square. */
void cli_image_scale(const cli_image *image, bool invert, int side, float *out);

#endif
