/* C++ helpers: let the macros of the other headers pass temporary objects to C calls. A temporary exists until the
 * end of its full expression, as long as the call needs it.
 */
#ifndef SHOAL_CXX_H
#define SHOAL_CXX_H
#ifdef __cplusplus

#include <cstddef>
#include <cstdint>

/* A shape, for SHOAL_SHAPE. */
template <std::size_t n> struct shoal_cxx_dims {
    static constexpr int count = static_cast<int>(n);
    std::int64_t dims[n];
    const std::int64_t *get() const
    {
        return dims;
    }
};

template <class... Size> shoal_cxx_dims<sizeof...(Size)> shoal_cxx_shape(Size... sizes)
{
    return {{static_cast<std::int64_t>(sizes)...}};
}

/* Returns the address of options that are written inside a call. */
template <class Options> const Options *shoal_cxx_options(const Options &options)
{
    return &options;
}

#endif
#endif
