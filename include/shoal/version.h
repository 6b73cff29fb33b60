/* The version of the headers, and of the library that is loaded. */
#ifndef SHOAL_VERSION_H
#define SHOAL_VERSION_H

#define SHOAL_VERSION "0.2.0"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that is loaded, like SHOAL_VERSION. */
const char *shoal_version(void);

#ifdef __cplusplus
}
#endif
#endif
