/* Pictures: PNG (libpng) and PGM (P2 and P5), as bytes of grey. Nothing in a file is believed: sides are bounded, and with them the
 * memory. */
#ifndef CLI_IMAGE_H
#define CLI_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLI_IMAGE_SIDE 8192                  /* most pixels in a row, and rows */
#define CLI_IMAGE_FILE ((size_t)(64u << 20)) /* most bytes of a file */

typedef struct cli_image {
    uint32_t width, height;
    uint8_t *grey; /* 0 is black; freed by cli_image_free */
} cli_image;

/* The bytes of a file. Where a PNG is transparent it is white, as paper is; black, if nothing could be seen on white. False: why tells. */
#define CLI_IMAGE_WHY 200
bool cli_image_decode(const uint8_t *bytes, size_t size, cli_image *out_image, char why[CLI_IMAGE_WHY]);

/* A file; "-": standard input, up to its end. False: why tells, without the file's name. */
bool cli_image_read(const char *path, cli_image *out_image, char why[CLI_IMAGE_WHY]);
void cli_image_free(cli_image *image);

/* Pixels of a picture. */
typedef struct cli_box {
    uint32_t x, y, width, height;
} cli_box;

/* side x side values, each the mean of an area of the picture: that of the first begins at left and top, and each is `step` pixels wide, of
 * which at least one is looked at. A pixel of grey g counts levels[g], what is outside of the box 0. */
void cli_image_draw(const cli_image *image, const float levels[256], cli_box box, double left, double top, double step,
                    int side, float *out);

/* The whole picture, side x side values from 0 to 255, in the middle of a square that is filled up with 0. */
void cli_image_scale(const cli_image *image, bool invert, int side, float *out);

#endif
