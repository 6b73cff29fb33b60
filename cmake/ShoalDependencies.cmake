# What the project links with. Upstream renamed its pkg-config file from msgpack to msgpack-c in version 6.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_search_module(MSGPACK REQUIRED IMPORTED_TARGET msgpack msgpack-c)
find_library(SHOAL_MSGPACK_ARCHIVE NAMES libmsgpackc.a libmsgpack-c.a HINTS ${MSGPACK_LIBDIR})
mark_as_advanced(SHOAL_MSGPACK_ARCHIVE)

if(SHOAL_TESTS)
    pkg_check_modules(CHECK REQUIRED IMPORTED_TARGET check)
endif()
