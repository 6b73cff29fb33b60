# Layers, the two libraries made of them, and the programs that use them.
#
#   shoal_layer(<name> SOURCES a.c ... [TESTS a_test.c ...])   in src/<name>/CMakeLists.txt
#   shoal_kernels_isa(<layer> <isa> OPTIONS -m... SOURCES a_fast.c ...)   beside shoal_layer
#   shoal_cli(SOURCES main.c ...)                              in cli/CMakeLists.txt
#   shoal_bench(<name> SOURCES a.c ...)                        in bench/CMakeLists.txt
#   shoal_example(<name> SOURCES a.c ...)                      in examples/CMakeLists.txt
#
# The test of a layer's x_test.c is called <layer>_x_test and carries the layer's name as a label.
#
# The default target builds the product: both libraries, the program, its completions and the man pages. The rest is built when asked for:
#   tests        every test program, and all else that a test runs
#   examples     the programs of examples/
#   benchmarks   the programs of bench/ that are not part of the shoal program

add_library(sh_all INTERFACE)
add_custom_target(examples COMMENT "The examples")
add_custom_target(benchmarks COMMENT "The benchmark programs")

macro(shoal_subdirectory dir)
    if(EXISTS ${PROJECT_SOURCE_DIR}/${dir}/CMakeLists.txt)
        add_subdirectory(${PROJECT_SOURCE_DIR}/${dir})
    endif()
endmacro()

function(shoal_layer name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;TESTS")
    if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
        message(FATAL_ERROR "shoal_layer(${name}): expected SOURCES, got also '${arg_UNPARSED_ARGUMENTS}'")
    endif()
    add_library(sh_${name} OBJECT ${arg_SOURCES})
    shoal_flags(sh_${name})
    target_include_directories(sh_${name} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_compile_options(sh_${name} PRIVATE -include ${PROJECT_SOURCE_DIR}/cmake/export.h)
    target_link_libraries(sh_${name} PRIVATE ${SHOAL_PACKAGES} Threads::Threads)
    target_sources(sh_all INTERFACE $<TARGET_OBJECTS:sh_${name}>)
    set_property(GLOBAL APPEND PROPERTY SHOAL_LAYERS ${name})

    foreach(file ${arg_TESTS})
        get_filename_component(stem ${file} NAME_WE)
        shoal_test(${name}_${stem} SOURCES ${file} LABELS ${name})
    endforeach()
endfunction()

# The fast kernels: not for the fuzzers, which do not need them and whose instrumentation makes them take minutes to compile, and not
# for ThreadSanitizer: kernels start no thread, and the plain ones read and write the same elements.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND NOT SHOAL_FUZZ AND NOT SHOAL_SANITIZE MATCHES "thread")
    set(SHOAL_KERNELS_FAST ON)
endif()

# A sanitized build runs where it was made, so it leaves out what this CPU cannot run.
set(SHOAL_CPU_FLAGS "")
if(SHOAL_SANITIZE AND EXISTS /proc/cpuinfo)
    file(STRINGS /proc/cpuinfo SHOAL_CPU_FLAGS REGEX "^flags" LIMIT_COUNT 1)
endif()

# Sources of a layer compiled for one instruction set: with -DSH_ISA=<isa> and the options. The layer's other sources see
# SH_KERNELS_<ISA>.
function(shoal_kernels_isa layer isa)
    cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "OPTIONS;SOURCES")
    if(NOT SHOAL_KERNELS_FAST OR (SHOAL_CPU_FLAGS AND NOT SHOAL_CPU_FLAGS MATCHES " ${isa}"))
        return()
    endif()
    string(TOUPPER ${isa} define)
    target_compile_definitions(sh_${layer} PRIVATE SH_KERNELS_${define})
    set(target sh_${layer}_${isa})
    add_library(${target} OBJECT ${arg_SOURCES})
    shoal_flags(${target})
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_compile_definitions(${target} PRIVATE SH_ISA=${isa})
    target_compile_options(${target} PRIVATE -include ${PROJECT_SOURCE_DIR}/cmake/export.h
        -fno-math-errno -fno-trapping-math -fopenmp-simd ${arg_OPTIONS})
    # Instrumented loops are not vectorised, so -O3 took three times as long and gained nothing; and AddressSanitizer sees a wrong
    # address by itself. A second -O1 after -O3 would not do: shoal_instrument gives one already, and CMake drops the later of two.
    if(SHOAL_SANITIZE)
        target_compile_options(${target} PRIVATE -fno-sanitize=null,alignment,object-size,pointer-overflow)
    else()
        target_compile_options(${target} PRIVATE -O3)
    endif()
    # gcc puts frames that AddressSanitizer watches after return at addresses that are not aligned for such vectors.
    if(SHOAL_SANITIZE MATCHES "address" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
        target_compile_options(${target} PRIVATE --param asan-use-after-return=0)
    endif()
    target_sources(sh_all INTERFACE $<TARGET_OBJECTS:${target}>)
    set_property(GLOBAL APPEND PROPERTY SHOAL_LAYERS ${layer}_${isa})
endfunction()

# libshoal.so and libshoal.a, of the same objects.
function(shoal_libraries)
    get_property(layers GLOBAL PROPERTY SHOAL_LAYERS)
    if(NOT layers)
        return()
    endif()
    set(objects "")
    foreach(layer ${layers})
        list(APPEND objects $<TARGET_OBJECTS:sh_${layer}>)
    endforeach()

    set(map ${PROJECT_SOURCE_DIR}/src/shoal.map)
    add_library(shoal SHARED ${objects})
    set_target_properties(shoal PROPERTIES
        VERSION ${PROJECT_VERSION}
        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
        LINKER_LANGUAGE C
        LINK_DEPENDS ${map})
    # nodelete: threads that end after a dlclose still run the library's destructors, and a world is left at exit only.
    target_link_options(shoal PRIVATE -Wl,--version-script=${map} -Wl,-Bsymbolic-functions -Wl,--as-needed -Wl,-z,nodelete)
    if(NOT SHOAL_SANITIZE AND NOT SHOAL_FUZZ)
        target_link_options(shoal PRIVATE -Wl,-z,defs)
    endif()

    shoal_library_for_wheels("${objects}" ${map})

    add_library(shoal_static STATIC ${objects})
    set_target_properties(shoal_static PROPERTIES
        OUTPUT_NAME shoal
        EXPORT_NAME static
        ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib
        LINKER_LANGUAGE C)

    foreach(target shoal shoal_static)
        shoal_instrument(${target})
        target_include_directories(${target} INTERFACE
            $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
        target_link_libraries(${target} PRIVATE ${SHOAL_PACKAGES} Threads::Threads ${CMAKE_DL_LIBS} m)
    endforeach()
    add_library(shoal::shoal ALIAS shoal)
    add_library(shoal::static ALIAS shoal_static)
endfunction()

# The shared library for a Python wheel, which must bring what it needs. libz is inside: a second libz.so.1 could be the wrong one
# for others in the same process. Debian's archive of jansson cannot go into a shared library, so libjansson.so.4 lies beside it.
function(shoal_library_for_wheels objects map)
    find_library(SHOAL_JANSSON_SHARED NAMES libjansson.so.4 HINTS ${JANSSON_LIBDIR})
    mark_as_advanced(SHOAL_JANSSON_SHARED)
    if(NOT SHOAL_MSGPACK_ARCHIVE OR NOT SHOAL_ZLIB_ARCHIVE OR NOT SHOAL_JANSSON_SHARED)
        return()
    endif()
    add_library(shoal_for_wheels SHARED EXCLUDE_FROM_ALL ${objects})
    set_target_properties(shoal_for_wheels PROPERTIES
        OUTPUT_NAME shoal
        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/wheel
        INSTALL_RPATH "\$ORIGIN"
        LINKER_LANGUAGE C
        LINK_DEPENDS ${map})
    target_link_options(shoal_for_wheels PRIVATE -Wl,--version-script=${map} -Wl,-Bsymbolic-functions -Wl,--as-needed
        -Wl,-z,nodelete -Wl,-z,defs -Wl,--disable-new-dtags)
    target_link_libraries(shoal_for_wheels PRIVATE
        ${SHOAL_MSGPACK_ARCHIVE} ${SHOAL_ZLIB_ARCHIVE} ${SHOAL_JANSSON_SHARED} Threads::Threads ${CMAKE_DL_LIBS} m)
endfunction()

# A program that starts children by running itself again pays for its shared libraries at each start: about 50 to 100
# microseconds each, of 600 in all. So the program and the benchmarks link the archives, and only libc is left to load.
# whole-archive keeps the objects in the order of the layers. A worker then touches fewer pages: the floor's code lies together.
function(shoal_link_archives target)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})
    if(SHOAL_MSGPACK_ARCHIVE AND SHOAL_ZLIB_ARCHIVE AND SHOAL_JANSSON_ARCHIVE)
        target_link_libraries(${target} PRIVATE
            -Wl,--whole-archive $<TARGET_FILE:shoal_static> -Wl,--no-whole-archive ${SHOAL_ARCHIVES} Threads::Threads ${CMAKE_DL_LIBS} m)
        add_dependencies(${target} shoal_static)
        set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS $<TARGET_FILE:shoal_static>)
    else()
        target_link_libraries(${target} PRIVATE shoal_static)
    endif()
    target_link_options(${target} PRIVATE -Wl,--as-needed -Wl,-z,lazy)
endfunction()

function(shoal_cli)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "SOURCES")
    add_executable(shoal_cli ${arg_SOURCES})
    shoal_flags(shoal_cli)
    shoal_link_archives(shoal_cli)
    target_include_directories(shoal_cli PRIVATE ${INIH_INCLUDE_DIRS} ${PNG_INCLUDE_DIRS})
    target_link_libraries(shoal_cli PRIVATE ${SHOAL_CLI_PACKAGES})
    set_target_properties(shoal_cli PROPERTIES OUTPUT_NAME shoal RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
endfunction()

function(shoal_bench name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBRARIES")
    add_executable(bench_${name} EXCLUDE_FROM_ALL ${arg_SOURCES})
    add_dependencies(benchmarks bench_${name})
    shoal_flags(bench_${name})
    shoal_link_archives(bench_${name})
    target_link_libraries(bench_${name} PRIVATE ${arg_LIBRARIES} m)
    set_target_properties(bench_${name} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bench)
endfunction()

function(shoal_example name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES")
    add_executable(example_${name} EXCLUDE_FROM_ALL ${arg_SOURCES})
    add_dependencies(examples example_${name})
    shoal_flags(example_${name})
    target_link_libraries(example_${name} PRIVATE shoal::shoal)
    set_target_properties(example_${name} PROPERTIES
        OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
endfunction()
