# SHOAL_CUDA: auto (libshoal_cuda is built where nvcc is found), on (an error without nvcc), off.
# SHOAL_CUDA_ARCHITECTURES: as CMake takes them. The default has machine code for sm_80 to sm_90, and PTX for later cards.
# A sanitized build has none: the sanitizers do not see what runs on a card, and the library would be built three times.

set(SHOAL_CUDA auto CACHE STRING "Build libshoal_cuda: auto, on or off")
set(SHOAL_CUDA_ARCHITECTURES "80-real;86-real;89-real;90" CACHE STRING "CUDA architectures, as CMake takes them")
set(SHOAL_HAS_CUDA OFF)

if(NOT SHOAL_CUDA MATCHES "^(auto|on|off|ON|OFF)$")
    message(FATAL_ERROR "SHOAL_CUDA is ${SHOAL_CUDA}; it must be auto, on or off")
endif()
if(NOT SHOAL_CUDA MATCHES "^(off|OFF)$" AND NOT SHOAL_SANITIZE AND NOT SHOAL_FUZZ AND NOT SHOAL_COVERAGE)
    if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
        set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
    endif()
    set(CMAKE_CUDA_ARCHITECTURES OFF)
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        enable_language(CUDA)
        set(SHOAL_HAS_CUDA ON)
    elseif(SHOAL_CUDA MATCHES "^(on|ON)$")
        message(FATAL_ERROR "SHOAL_CUDA is on, but nvcc was not found")
    else()
        message(STATUS "nvcc not found: libshoal_cuda is not built, the rest is")
    endif()
endif()
