/* The table of element types. */
#include <shoal/dtype.h>

typedef struct dtype_row {
    const char *name;
    size_t size;
    bool is_float;
} dtype_row;

static const dtype_row table[SHOAL_DTYPES] = {
    [SHOAL_F32] = {"f32", 4, true}, [SHOAL_F64] = {"f64", 8, true},  [SHOAL_BF16] = {"bf16", 2, true},
    [SHOAL_F16] = {"f16", 2, true}, [SHOAL_I64] = {"i64", 8, false}, [SHOAL_I32] = {"i32", 4, false},
    [SHOAL_U8] = {"u8", 1, false},  [SHOAL_B8] = {"bool", 1, false},
};

static const dtype_row *row(shoal_dtype dtype)
{
    static const dtype_row none = {"?", 0, false};
    return (unsigned)dtype < SHOAL_DTYPES ? &table[dtype] : &none;
}

size_t shoal_dtype_size(shoal_dtype dtype)
{
    return row(dtype)->size;
}

const char *shoal_dtype_name(shoal_dtype dtype)
{
    return row(dtype)->name;
}

bool shoal_dtype_is_float(shoal_dtype dtype)
{
    return row(dtype)->is_float;
}
