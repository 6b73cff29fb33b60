/* How a data set frames what its images show, and a picture brought into that frame.
 *
 * A model knows the frame of its set only: of a digit that fills the picture, or stands small in a corner, it sees something else.
 */
#ifndef CLI_FRAMING_H
#define CLI_FRAMING_H

#include "cli/image.h"

#define CLI_FRAME 28 /* pixels of a side of the sets' images */

typedef struct cli_framing {
    int longest;   /* pixels that the longer side of what is shown has */
    double middle; /* where its centre is, either way, in pixels */
    bool by_mass;  /* the centre is that of mass; else the middle of its box */
    bool stretch;  /* from black ground to white ink; else it keeps its greys */
} cli_framing;

/* Of a set by its name. Folders are taken for sets like MNIST. */
const cli_framing *cli_framing_of(const char *data);

/* Whether what stands out from the ground is darker than it. The ground is the median of the outermost pixels. */
bool cli_framing_is_dark_on_light(const cli_image *image);

/* CLI_FRAME x CLI_FRAME values from 0, the ground, to 255. invert: what is shown is darker than the ground. False: nothing stands
 * out from the ground. *out_box is what was cut out; of width 0: nothing, the picture has the frame already. */
bool cli_framing_apply(const cli_framing *framing, const cli_image *image, bool invert, float *out, cli_box *out_box);

#endif
