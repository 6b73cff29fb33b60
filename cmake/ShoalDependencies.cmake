# What the project links with. Upstream renamed its pkg-config file from msgpack to msgpack-c in version 6.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_search_module(MSGPACK REQUIRED IMPORTED_TARGET msgpack msgpack-c)
find_library(SHOAL_MSGPACK_ARCHIVE NAMES libmsgpackc.a libmsgpack-c.a HINTS ${MSGPACK_LIBDIR})
mark_as_advanced(SHOAL_MSGPACK_ARCHIVE)

# gzip and JSON, for the files of src/data.
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson>=2.11)
find_library(SHOAL_ZLIB_ARCHIVE NAMES libz.a HINTS ${ZLIB_LIBDIR})
find_library(SHOAL_JANSSON_ARCHIVE NAMES libjansson.a HINTS ${JANSSON_LIBDIR})
mark_as_advanced(SHOAL_ZLIB_ARCHIVE SHOAL_JANSSON_ARCHIVE)

# Config files and images, for the program alone.
pkg_check_modules(INIH REQUIRED IMPORTED_TARGET inih)
pkg_check_modules(PNG REQUIRED IMPORTED_TARGET libpng>=1.6)
find_library(SHOAL_INIH_ARCHIVE NAMES libinih.a HINTS ${INIH_LIBDIR})
find_library(SHOAL_PNG_ARCHIVE NAMES libpng.a libpng16.a HINTS ${PNG_LIBDIR})
mark_as_advanced(SHOAL_INIH_ARCHIVE SHOAL_PNG_ARCHIVE)
if(SHOAL_INIH_ARCHIVE AND SHOAL_PNG_ARCHIVE AND SHOAL_ZLIB_ARCHIVE)
    set(SHOAL_CLI_PACKAGES ${SHOAL_INIH_ARCHIVE} ${SHOAL_PNG_ARCHIVE} ${SHOAL_ZLIB_ARCHIVE} m)
else()
    set(SHOAL_CLI_PACKAGES PkgConfig::INIH PkgConfig::PNG)
endif()

# What the layers are linked with, and the same as archives.
set(SHOAL_PACKAGES PkgConfig::MSGPACK PkgConfig::ZLIB PkgConfig::JANSSON)
set(SHOAL_ARCHIVES ${SHOAL_MSGPACK_ARCHIVE} ${SHOAL_ZLIB_ARCHIVE} ${SHOAL_JANSSON_ARCHIVE})

# The product does without it.
if(SHOAL_TESTS)
    pkg_check_modules(CHECK IMPORTED_TARGET check)
    if(NOT CHECK_FOUND)
        message(STATUS "check not found: the tests cannot be built")
        set(SHOAL_TESTS OFF)
    endif()
endif()
