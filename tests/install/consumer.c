/* A program that knows Shoal only as installed. With an argument it prints where the data set of that name is. */
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
    if (argc > 1) {
        char folder[4096];
        shoal_err err = shoal_data_where(argv[1], folder, sizeof folder);
        puts(err == SHOAL_OK ? folder : shoal_last_error_text());
        return err != SHOAL_OK;
    }
    printf("shoal %s\n", shoal_version());
    return 0;
}
