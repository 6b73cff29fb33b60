# Tests. One executable is one ctest test; it is linked with the object files of all layers, the same ones that the
# shipped library is made of, so it reaches the hidden symbols too. A sanitized build, which nobody ships, puts the objects into one
# shared library for all tests: they are so large there that linking them into each test took a minute and 3.6 GB.
#
#   shoal_test(<name> SOURCES a.c [b.c ...] [COST seconds] [LABELS l ...] [SERIAL] [SOAK] [CARD] [HOST] [WRAP function ...])
#   shoal_test_options(<file>_test.c [COST seconds] [LABELS l ...] [SERIAL] [SOAK] [CARD] [HOST])   for a test in shoal_layer(TESTS)
#   shoal_script_test(<name> COMMAND script [arg ...] [COST seconds] [LABELS l ...] [SERIAL])
#
# COST      roughly how long it takes: of several tests at a time the long ones begin first, so that none is left alone at the end.
# LABELS    `threads`: the test is also built and run under ThreadSanitizer.
# SERIAL    nothing else runs beside it.
# SOAK      the test runs a second time, as <name>.soak with the label `soak` and a day's limit, under `ctest -C soak`;
#           it takes the number of kills from SHOAL_SOAK_KILLS, and of ends, forks and stops from SHOAL_SOAK_ENDS, SHOAL_SOAK_FORKS and SHOAL_SOAK_STOPS.
# CARD      scripts/test-cuda runs the test once more on the card of this machine, with SHOAL_TEST_CARD in its environment. Without a card
#           it is skipped.
# HOST      the test runs once more as <name>.host, with the kernels of a card on the host (tests/harness/cuda_host). Implies CARD.
# WRAP      functions of the C library that the test replaces for the layers (ld --wrap); it links the object files in every build.
# A test runs in the source root, for at most SHOAL_TEST_TIMEOUT seconds: that only ends what hangs. SHOAL_BUILD_DIR in its environment names the build directory.

set(SHOAL_TEST_TIMEOUT 900)
set(SHOAL_SOAK_TIMEOUT 86400)

if(SHOAL_TESTS)
    add_custom_target(tests COMMENT "All tests")
    add_custom_target(tests_threads COMMENT "The tests that run under ThreadSanitizer")
    add_custom_target(tests_cuda COMMENT "The tests that run on a card")
    add_custom_target(tests_soak COMMENT "The tests that run for as long as they are told to")
    # Every test needs the library `test_harness`, so without it none is built. ctest alone would fail each test with a page of words.
    file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/require_tests.cmake CONTENT
"if(NOT EXISTS [[$<TARGET_FILE:test_harness>]])
    message(FATAL_ERROR [[The tests are not built. Build them: cmake --build ${PROJECT_BINARY_DIR} --target tests]])
endif()
")
    set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY TEST_INCLUDE_FILES ${PROJECT_BINARY_DIR}/require_tests.cmake)
else()
    foreach(target tests tests_threads tests_cuda tests_soak)
        add_custom_target(${target}
            COMMAND ${CMAKE_COMMAND} -E echo
                "The tests cannot be built: SHOAL_TESTS is off, or the package check is missing (scripts/setup test)"
            COMMAND ${CMAKE_COMMAND} -E false
            VERBATIM)
    endforeach()
endif()

# The target `tests` builds these too, where there are such targets.
function(shoal_tests_need)
    foreach(target ${ARGN})
        if(SHOAL_TESTS AND TARGET ${target})
            add_dependencies(tests ${target})
        endif()
    endforeach()
endfunction()

function(shoal_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL;SOAK;CARD;HOST" "COST" "SOURCES;LABELS;WRAP")
    if(arg_UNPARSED_ARGUMENTS OR NOT arg_SOURCES)
        message(FATAL_ERROR "shoal_test(${name}): expected SOURCES, got also '${arg_UNPARSED_ARGUMENTS}'")
    endif()
    if(NOT SHOAL_TESTS)
        return()
    endif()
    add_executable(${name} EXCLUDE_FROM_ALL ${arg_SOURCES})
    add_dependencies(tests ${name})
    shoal_flags(${name})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    target_include_directories(${name} PRIVATE
        ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
    set(layers sh_all)
    if(SHOAL_SANITIZE AND NOT arg_WRAP)
        set(layers sh_tested)
    endif()
    list(TRANSFORM arg_WRAP PREPEND -Wl,--wrap=)
    target_link_options(${name} PRIVATE ${arg_WRAP})
    # The test's own code need not be fast, and -O3 took twice as long to compile.
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
    target_link_libraries(${name} PRIVATE
        ${layers} test_harness PkgConfig::CHECK ${SHOAL_PACKAGES} Threads::Threads ${CMAKE_DL_LIBS} m)

    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    shoal_test_defaults(${name})
    shoal_test_apply(${name} "${arg_COST}" "${arg_LABELS}" "${arg_SERIAL}" "${arg_SOAK}")
    if(arg_CARD OR arg_HOST)
        shoal_test_card(${name})
    endif()
    if(arg_HOST)
        set_property(GLOBAL APPEND PROPERTY SHOAL_HOST_TESTS ${name})
    endif()
endfunction()

# All layers as one library with nothing hidden: what the tests of a sanitized build link.
function(shoal_test_library)
    if(NOT SHOAL_TESTS OR NOT SHOAL_SANITIZE)
        return()
    endif()
    get_property(layers GLOBAL PROPERTY SHOAL_LAYERS)
    list(TRANSFORM layers REPLACE "(.+)" "$<TARGET_OBJECTS:sh_\\1>")
    add_library(sh_tested SHARED EXCLUDE_FROM_ALL ${layers})
    set_target_properties(sh_tested PROPERTIES LINKER_LANGUAGE C LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    shoal_instrument(sh_tested)
    target_link_options(sh_tested PRIVATE -Wl,-Bsymbolic-functions)
    target_link_libraries(sh_tested PRIVATE ${SHOAL_PACKAGES} Threads::Threads ${CMAKE_DL_LIBS} m)
endfunction()

function(shoal_test_options file)
    cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL;SOAK;CARD;HOST" "COST" "LABELS")
    if(arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "shoal_test_options(${file}): unknown '${arg_UNPARSED_ARGUMENTS}'")
    endif()
    if(SHOAL_TESTS)
        get_filename_component(layer ${CMAKE_CURRENT_SOURCE_DIR} NAME)
        get_filename_component(stem ${file} NAME_WE)
        shoal_test_apply(${layer}_${stem} "${arg_COST}" "${arg_LABELS}" "${arg_SERIAL}" "${arg_SOAK}")
        if(arg_CARD OR arg_HOST)
            shoal_test_card(${layer}_${stem})
        endif()
        if(arg_HOST)
            set_property(GLOBAL APPEND PROPERTY SHOAL_HOST_TESTS ${layer}_${stem})
        endif()
    endif()
endfunction()

function(shoal_script_test name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "COST" "COMMAND;LABELS")
    if(arg_UNPARSED_ARGUMENTS OR NOT arg_COMMAND)
        message(FATAL_ERROR "shoal_script_test(${name}): expected COMMAND, got also '${arg_UNPARSED_ARGUMENTS}'")
    endif()
    if(SHOAL_TESTS)
        add_test(NAME ${name} COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
        shoal_test_defaults(${name})
        shoal_test_apply(${name} "${arg_COST}" "${arg_LABELS}" "${arg_SERIAL}" FALSE)
    endif()
endfunction()

function(shoal_test_defaults name)
    set(environment SHOAL_BUILD_DIR=${PROJECT_BINARY_DIR})
    if(SHOAL_SANITIZE)
        list(APPEND environment
            ASAN_OPTIONS=detect_stack_use_after_return=1:handle_sigill=1
            UBSAN_OPTIONS=print_stacktrace=1
            "TSAN_OPTIONS=halt_on_error=1 second_deadlock_stack=1")
    endif()
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "${environment}")
    set_tests_properties(${name} PROPERTIES TIMEOUT ${SHOAL_TEST_TIMEOUT})
endfunction()

# The same program once more, on a card, with these variables in its environment too.
function(shoal_test_card name)
    add_dependencies(tests_cuda ${name})
    shoal_card_command(${name} 300 ${ARGN} ${PROJECT_BINARY_DIR}/tests/${name})
endfunction()

# Adds a line to the list of scripts/test-cuda: a name, a limit in seconds, and a command for env(1). The paths in it are made relative to
# the source root, so that a build can be carried to a machine with a card.
function(shoal_card_command name seconds)
    list(JOIN ARGN " " command)
    string(REPLACE "${PROJECT_SOURCE_DIR}/" "" command "${command}")
    set_property(GLOBAL APPEND_STRING PROPERTY SHOAL_CARD_COMMANDS "${name} ${seconds} ${command}\n")
endfunction()

function(shoal_write_card_commands)
    get_property(commands GLOBAL PROPERTY SHOAL_CARD_COMMANDS)
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/tests_cuda.txt CONTENT "${commands}" @ONLY)
endfunction()

# The same program once more with tensors of a card (tests/harness/talk.h): as <name>.stub over the stub of the driver, which needs no card,
# and on a card.
function(shoal_test_talk name)
    if(NOT SHOAL_TESTS)
        return()
    endif()
    shoal_test_card(${name} SHOAL_TALK_DEVICE=cuda)
    add_dependencies(${name} cuda_stub shoal_cuda_stub)
    add_test(NAME ${name}.stub COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    shoal_test_defaults(${name}.stub)
    set_property(TEST ${name}.stub APPEND PROPERTY ENVIRONMENT
        SHOAL_TALK_DEVICE=cuda
        SHOAL_CUDA_DRIVER=$<TARGET_FILE:cuda_stub>
        SHOAL_CUDA_LIBRARY=$<TARGET_FILE:shoal_cuda_stub>)
endfunction()

# The tests with HOST once more, as <name>.host. Called last: whether there is tests/harness/cuda_host is known late.
function(shoal_host_tests)
    get_property(names GLOBAL PROPERTY SHOAL_HOST_TESTS)
    foreach(name ${names})
        if(TARGET shoal_cuda_host)
            add_test(NAME ${name}.host COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
            shoal_test_defaults(${name}.host)
            set_property(TEST ${name}.host APPEND PROPERTY ENVIRONMENT
                SHOAL_TEST_CARD=host
                SHOAL_TEST_SHORT=1
                SHOAL_CUDA_DRIVER=$<TARGET_FILE:cuda_stub>
                SHOAL_CUDA_LIBRARY=$<TARGET_FILE:shoal_cuda_host>)
        endif()
    endforeach()
endfunction()

function(shoal_test_apply name cost labels serial soak)
    if(cost)
        set_tests_properties(${name} PROPERTIES COST ${cost})
    endif()
    if(labels)
        set_property(TEST ${name} APPEND PROPERTY LABELS ${labels})
    endif()
    if("threads" IN_LIST labels AND TARGET ${name})
        add_dependencies(tests_threads ${name})
    endif()
    if(serial)
        set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
    endif()
    if(soak)
        add_dependencies(tests_soak ${name})
        add_test(NAME ${name}.soak CONFIGURATIONS soak COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
        shoal_test_defaults(${name}.soak)
        set_tests_properties(${name}.soak PROPERTIES LABELS soak RUN_SERIAL ON TIMEOUT ${SHOAL_SOAK_TIMEOUT})
    endif()
endfunction()
