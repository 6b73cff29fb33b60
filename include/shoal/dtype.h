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

#define SHOAL_DTYPES 8

/* The size of one element in bytes; 0 for what is no dtype. */
size_t shoal_dtype_size(shoal_dtype dtype);

/* The name of an element type: "f32", "bool", …; "?" for what is no dtype. */
const char *shoal_dtype_name(shoal_dtype dtype);

/* True for f32, f64, bf16 and f16. */
bool shoal_dtype_is_float(shoal_dtype dtype);

#ifdef __cplusplus
}
#endif
#endif
