/* Config files: the options of a command in an INI file, read with libinih.
 *
 *     ; how the nightly run trains
 *     [train]
 *     method = sync
 *     lr = 0.04
 *     save = "a name with blanks at its end "
 *
 * The section is the command's name and may be omitted. A comment is a line that begins with ; or #, or follows a value
 * after a blank and ;.
 */
#ifndef CLI_CONFIG_H
#define CLI_CONFIG_H

#include "cli/table.h"

/* Sets the options that the command line does not give. An option of another choice than the one made in either place
 * (cli_table.chosen) is an error, as on the command line. Returns false after printing what is wrong, with file and
 * line: exit with *out_status. */
bool cli_config_read(const cli_table *table, const char *path, void *call, cli_given *given, cli_exit *out_status);

/* Prints the options of all choices and of this one (cli_option.of), each with its origin. path is the file that was
 * read, or NULL. */
cli_exit cli_config_print(const cli_table *table, const char *path, const void *call, const cli_given *given,
                          unsigned of);

#endif
