/* For C++: what the macros of the other headers need to give a temporary to a C call. Everything here lives until the end of the
 * expression that it stands in, as a compound literal does in C. */
#ifndef SHOAL_CXX_H
#define SHOAL_CXX_H
#ifdef __cplusplus

#include <cstddef>
#include <cstdint>

/* A shape. */
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

/* The address of options that are written where they are used. */
template <class Options> const Options *shoal_cxx_options(const Options &options)
{
    return &options;
}

#endif
#endif
