/* Brings an image into the frame of a data set: the size and position that its images give to what they show.
 *
 * A model knows only the frame of its set. A digit that fills the image, or is small in a corner, looks like something
 * else to it.
 */
#ifndef CLI_FRAMING_H
#define CLI_FRAMING_H

#include "cli/image.h"

#define CLI_FRAME 28 /* the width and height of the sets' images in pixels */

typedef struct cli_framing {
    int longest;   /* the length of the longer side of what is shown, in pixels */
    double middle; /* the position of its centre in both directions, in pixels */
    bool by_mass;  /* the centre of mass is used; else the middle of the box */
    bool stretch;  /* stretch the contrast from black ground to white ink; else keep the greys */
} cli_framing;

/* Returns the framing of a data set by name. A folder counts as MNIST. */
const cli_framing *cli_framing_of(const char *data);

/* Checks whether the image shows something darker than its ground, which is the median of the outermost pixels. */
bool cli_framing_is_dark_on_light(const cli_image *image);

/* Writes CLI_FRAME x CLI_FRAME values from 0, the ground, to 255. invert: what is shown is darker than the ground.
 * Returns false if nothing differs from the ground. *out_box is what was cropped to; its width is 0 if the image
 * already had the frame. */
bool cli_framing_apply(const cli_framing *framing, const cli_image *image, bool invert, float *out, cli_box *out_box);

#endif
