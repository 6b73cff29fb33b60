/* The reader of pictures over any bytes: a picture within its bounds that can be scaled, or a reason. */
#include "cli/image.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void require(int condition)
{
    if (!condition) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    enum { SIDE = 28 };
    char why[CLI_IMAGE_WHY] = "";
    float scaled[SIDE * SIDE];
    cli_image image;
    if (!cli_image_decode(bytes, size, &image, why)) {
        require(image.grey == NULL && why[0] != 0 && strlen(why) < sizeof why);
        return 0;
    }
    require(image.width >= 1 && image.width <= CLI_IMAGE_SIDE && image.height >= 1 && image.height <= CLI_IMAGE_SIDE);
    cli_image_scale(&image, cli_image_is_dark_on_light(&image), SIDE, scaled);
    for (int i = 0; i < SIDE * SIDE; i++) {
        require(scaled[i] >= 0 && scaled[i] <= 255.01f);
    }
    cli_image_free(&image);
    return 0;
}
