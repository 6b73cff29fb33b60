/* Versions: that of the headers, and that of the loaded library. */
#ifndef SHOAL_VERSION_H
#define SHOAL_VERSION_H

#define SHOAL_VERSION "0.3.0"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the version of the loaded library, in the form of SHOAL_VERSION. The library owns the text. Thread-safe. */
const char *shoal_version(void);

#ifdef __cplusplus
}
#endif
#endif
