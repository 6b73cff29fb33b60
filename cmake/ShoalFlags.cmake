# shoal_flags(<target>): the language, the warnings and the instrumentation that every target of the project is compiled with.

set(SHOAL_FUZZ_SANITIZE address,undefined)

function(shoal_flags target)
    set_target_properties(${target} PROPERTIES
        C_STANDARD 11
        C_STANDARD_REQUIRED ON
        C_EXTENSIONS ON
        C_VISIBILITY_PRESET hidden
        POSITION_INDEPENDENT_CODE ON)
    # Without these a test could not link the library of all objects (shoal_test_library).
    if(SHOAL_SANITIZE)
        set_target_properties(${target} PROPERTIES C_VISIBILITY_PRESET default)
        target_compile_options(${target} PRIVATE -fno-semantic-interposition)
    endif()
    target_compile_definitions(${target} PRIVATE _GNU_SOURCE SHOAL_NO_OLD_NAMES $<$<BOOL:${SHOAL_DEATH_POINTS}>:SHOAL_DEATH_POINTS>)
    target_compile_options(${target} PRIVATE
        -Wall -Wextra -Wshadow -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wvla
        $<$<BOOL:${SHOAL_WERROR}>:-Werror>
        -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
    if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
        target_compile_options(${target} PRIVATE -mcx16)
    endif()
    shoal_instrument(${target})
endfunction()

# The sanitizers and gcov have to be there at compile time and at link time.
function(shoal_instrument target)
    set(flags "")
    if(SHOAL_FUZZ)
        list(APPEND flags -fsanitize=fuzzer-no-link,${SHOAL_FUZZ_SANITIZE})
    elseif(SHOAL_SANITIZE)
        list(APPEND flags -fsanitize=${SHOAL_SANITIZE})
    endif()
    if(flags)
        # Lines are enough for a report, and half as much to write as all that -g knows.
        list(APPEND flags -fno-sanitize-recover=all -fno-omit-frame-pointer -O1 -g1)
    endif()
    # Undefined behaviour ends the process by an instruction that traps, and AddressSanitizer reports the line (handle_sigill in
    # ShoalTest.cmake). Texts for each check made the library three times as large: 150,000 addresses that each new process had to
    # relocate, a third of the time of tests that start processes.
    if(SHOAL_SANITIZE MATCHES "address" AND SHOAL_SANITIZE MATCHES "undefined" AND NOT SHOAL_FUZZ)
        list(APPEND flags -fsanitize-undefined-trap-on-error)
    endif()
    # gcc says that ThreadSanitizer does not see fences; that is so, and no error.
    if(SHOAL_SANITIZE MATCHES "thread" AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
        target_compile_options(${target} PRIVATE -Wno-tsan)
    endif()
    if(SHOAL_COVERAGE)
        list(APPEND flags --coverage)
    endif()
    target_compile_options(${target} PRIVATE ${flags})
    target_link_options(${target} PRIVATE ${flags})
endfunction()
