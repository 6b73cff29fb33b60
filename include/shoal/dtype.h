/* Element types of tensors. */
#ifndef SHOAL_DTYPE_H
#define SHOAL_DTYPE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The element type of a tensor. */
typedef enum shoal_dtype {
    SHOAL_F32,
    SHOAL_F64,
    SHOAL_BF16, /* stored and converted; no arithmetic */
    SHOAL_F16,  /* stored and converted; no arithmetic */
    SHOAL_I64,
    SHOAL_I32,
    SHOAL_U8,
    SHOAL_B8, /* bool: a byte that is 0 or 1 */
} shoal_dtype;

/* The number of element types. */
#define SHOAL_DTYPES 8

/* Returns the size of one element in bytes; 0 for an invalid dtype. Thread-safe. */
size_t shoal_dtype_size(shoal_dtype dtype);

/* Returns the name of an element type, such as "f32" or "bool"; "?" for an invalid dtype. The library owns the text.
 * Thread-safe. */
const char *shoal_dtype_name(shoal_dtype dtype);

/* Returns whether an element type is a float: f32, f64, bf16 or f16. Thread-safe. */
bool shoal_dtype_is_float(shoal_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
