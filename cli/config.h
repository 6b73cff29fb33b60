/* Config files: the options of a command in an INI file, read with libinih.
 *
 *     ; how the nightly run trains
 *     [train]
 *     method = sync
 *     lr = 0.04
 *     save = "a name with blanks at its end "
 *
 * The section, which may be left out, is the command's name. A comment stands in a line of its own after ; or #, or behind a
 * value after a blank and ;.
 */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include "cli/table.h"

/* Fills in what the command line has not given. What belongs to other choices than the one that was made, here or there
 * (cli_table.chosen), is an error as it is on the command line. False: it was said what is wrong, with file and line; end with *out_status. */
bool cli_config_read(const cli_table *table, const char *path, void *call, cli_given *given, cli_exit *out_status);

/* Prints the options that belong to all choices or to this one (cli_option.of), with where each comes from. path: of the file
 * that was read, NULL: none. */
cli_exit cli_config_print(const cli_table *table, const char *path, const void *call, const cli_given *given,
                          unsigned of);

#endif
