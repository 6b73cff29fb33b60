/* The names of version 0.2, for programs that were written with it: each stands for its name of 0.3. docs/renames.md
 * lists them. The other headers include this one. A program that defines SHOAL_NO_OLD_NAMES before its first include
 * has the new names only.
 */
#if !defined(SHOAL_COMPAT_H) && !defined(SHOAL_NO_OLD_NAMES)
#define SHOAL_COMPAT_H

/* The GPU. */
#define shoal_card_info shoal_cuda_info
#define shoal_card_memory shoal_cuda_memory
#define shoal_card_tensor shoal_cuda_tensor
#define shoal_card_count shoal_cuda_count
#define shoal_card_info_get shoal_cuda_info_get
#define shoal_card_memory_get shoal_cuda_memory_get
#define shoal_card_wait shoal_cuda_wait
#define shoal_card_trim shoal_cuda_trim
#define shoal_card_stream shoal_cuda_stream
#define shoal_card_follow_stream shoal_cuda_follow_stream
#define shoal_card_precede_stream shoal_cuda_precede_stream
#define shoal_card_tensors_list shoal_cuda_tensors_list
#define shoal_card_tensors_list_of shoal_cuda_tensors_list_of
#define SHOAL_ECARD SHOAL_ECUDA

/* Members of structs. */
#define card_share cuda_share
#define card_held cuda_held
#define card_used cuda_used

/* Constants. */
#define SHOAL_NULL SHOAL_TYPE_NULL
#define SHOAL_BOOL SHOAL_TYPE_BOOL
#define SHOAL_INT SHOAL_TYPE_INT
#define SHOAL_UINT SHOAL_TYPE_UINT
#define SHOAL_FLOAT SHOAL_TYPE_FLOAT
#define SHOAL_STRING SHOAL_TYPE_STRING
#define SHOAL_BYTES SHOAL_TYPE_BYTES
#define SHOAL_LIST SHOAL_TYPE_LIST
#define SHOAL_MAP SHOAL_TYPE_MAP
#define SHOAL_OBJECT SHOAL_TYPE_OBJECT
#define SHOAL_FOREIGN SHOAL_TYPE_FOREIGN
#define SHOAL_MEAN SHOAL_REDUCTION_MEAN
#define SHOAL_SUM SHOAL_REDUCTION_SUM
#define SHOAL_NONE SHOAL_REDUCTION_NONE
#define SHOAL_ALL SHOAL_ALL_DIMS
#define SHOAL_COO SHOAL_LAYOUT_COO
#define SHOAL_CSR SHOAL_LAYOUT_CSR
#define SHOAL_TRAIN SHOAL_PART_TRAIN
#define SHOAL_TEST SHOAL_PART_TEST
#define SHOAL_RUNNING SHOAL_PROCESS_RUNNING
#define SHOAL_RETURNED SHOAL_PROCESS_RETURNED
#define SHOAL_FAILED SHOAL_PROCESS_FAILED
#define SHOAL_EXITED SHOAL_PROCESS_EXITED
#define SHOAL_KILLED SHOAL_PROCESS_KILLED

/* Calls. */
#define shoal_to shoal_to_dtype
#define shoal_tensor_to shoal_to_device
#define shoal_copy_later_ shoal_tensor_copy_async

#endif

/* In 0.2 the second argument of shoal_max_pool2d and shoal_avg_pool2d was a pointer to shoal_pool2d_options, which the
 * calls with "_with" take now. Both forms compile. ops.h includes this after its declarations. */
#if defined(SHOAL_OPS_READ_H) && !defined(SHOAL_COMPAT_OPS_H) && !defined(SHOAL_NO_OLD_NAMES)
#define SHOAL_COMPAT_OPS_H
#ifdef __cplusplus
inline shoal_tensor *shoal_max_pool2d(shoal_tensor *x, const shoal_pool2d_options *options)
{
    return shoal_max_pool2d_with(x, options);
}
inline shoal_tensor *shoal_avg_pool2d(shoal_tensor *x, const shoal_pool2d_options *options)
{
    return shoal_avg_pool2d_with(x, options);
}
#else
#define shoal_max_pool2d(x, ...) SHOAL_COMPAT_POOL(shoal_max_pool2d, x, __VA_ARGS__)
#define shoal_avg_pool2d(x, ...) SHOAL_COMPAT_POOL(shoal_avg_pool2d, x, __VA_ARGS__)
#define SHOAL_COMPAT_POOL(name, x, ...)                                                                                \
    _Generic((__VA_ARGS__),                                                                                            \
             shoal_pool2d_options * : name##_with,                                                                     \
             const shoal_pool2d_options * : name##_with,                                                               \
             default : name)(x, __VA_ARGS__)
#endif
#endif
