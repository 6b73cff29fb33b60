/* Pictures: PNG (libpng) and PGM (P2 and P5), as bytes of grey. Nothing in a file is believed: sides are bounded, and with them the
 * memory. */
#ifndef CLI_IMAGE_H
#define CLI_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLI_IMAGE_SIDE 4096                  /* most pixels in a row, and rows */
#define CLI_IMAGE_FILE ((size_t)(64u << 20)) /* most bytes of a file */

typedef struct cli_image {
    uint32_t width, height;
    uint8_t *grey; /* 0 is black; freed by cli_image_free */
} cli_image;

/* The bytes of a file. Where a PNG is transparent it is white, as paper is. False: why tells. */
#define CLI_IMAGE_WHY 200
bool cli_image_decode(const uint8_t *bytes, size_t size, cli_image *out_image, char why[CLI_IMAGE_WHY]);

/* A file. False: why tells, without the file's name. */
bool cli_image_read(const char *path, cli_image *out_image, char why[CLI_IMAGE_WHY]);
void cli_image_free(cli_image *image);

/* Whether its outermost pixels are lighter than the middle of black and white, so that it is dark on light. */
bool cli_image_is_dark_on_light(const cli_image *image);

/* side x side values from 0 to 255, in the middle of a square that is filled up with the ground (black; white before invert turns
 * black and white round). Each is the mean of the area that it covers. */
void cli_image_scale(const cli_image *image, bool invert, int side, float *out);

#endif
