/* Compiles the file that TEMPLATE names for f32 and for f64: T is the element type, and NAME(x) is f32_x or f64_x.
 * Included once for each template. */
#define T float
#define NAME(x) f32_##x
#include TEMPLATE
#undef T
#undef NAME
#define T double
#define NAME(x) f64_##x
#include TEMPLATE
#undef T
#undef NAME
#undef TEMPLATE
