/* Feeds any bytes to the image reader. It must return an image within its limits that
 * can be scaled and framed, or a reason. */
#include "cli/framing.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

static void require_pixels(const float pixels[CLI_FRAME * CLI_FRAME])
{
    for (int i = 0; i < CLI_FRAME * CLI_FRAME; i++) {
        require(pixels[i] >= 0 && pixels[i] <= 255.01f);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char why[CLI_IMAGE_WHY] = "";
    float pixels[CLI_FRAME * CLI_FRAME];
    cli_box box;
    cli_image image;
    if (!cli_image_decode(bytes, size, &image, why)) {
        require(image.grey == NULL && why[0] != 0 && strlen(why) < sizeof why);
        return 0;
    }
    require(image.width >= 1 && image.width <= CLI_IMAGE_SIDE && image.height >= 1 && image.height <= CLI_IMAGE_SIDE);
    bool dark = cli_framing_is_dark_on_light(&image);
    cli_image_scale(&image, dark, CLI_FRAME, pixels);
    require_pixels(pixels);
    for (size_t i = 0; i < 2; i++) {
        if (cli_framing_apply(cli_framing_of(i == 0 ? "mnist" : "fashion-mnist"), &image, dark, pixels, &box)) {
            require_pixels(pixels);
            require(box.x + box.width <= image.width && box.y + box.height <= image.height);
        }
    }
    cli_image_free(&image);
    return 0;
}
