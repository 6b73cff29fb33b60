/* Included before each source of a layer, which is compiled with -fvisibility=hidden: what the public headers declare
 * can be exported, and src/shoal.map says what is. So the headers need no mark on each declaration. */
#pragma GCC visibility push(default)
#include <shoal/shoal.h>
#pragma GCC visibility pop
