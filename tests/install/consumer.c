/* A program that knows Shoal only as installed. */
#include <shoal/shoal.h>

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    if (shoal_init(&argc, &argv) != SHOAL_OK) {
        fprintf(stderr, "shoal_init: %s\n", shoal_last_error_text());
        return 1;
    }
    if (strcmp(shoal_version(), SHOAL_VERSION) != 0) {
        fprintf(stderr, "headers of %s, library of %s\n", SHOAL_VERSION, shoal_version());
        return 1;
    }
    printf("shoal %s\n", shoal_version());
    return 0;
}
