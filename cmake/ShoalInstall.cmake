# make install: program, both libraries, headers, MNIST, shoal.pc and the CMake package. docs/man installs the man pages.
# The installed tree can be moved: shoal.pc and the package find their prefix from where they lie.

include(CMakePackageConfigHelpers)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/shoal DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# Where the library looks for it: beside the program, in ../share/shoal.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/data/mnist DESTINATION ${CMAKE_INSTALL_DATADIR}/shoal)

if(TARGET shoal_cli)
    install(TARGETS shoal_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# Beside libshoal, which loads it; no program links with it.
if(TARGET shoal_cuda)
    install(TARGETS shoal_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()

if(TARGET shoal)
    set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/shoal)
    install(TARGETS shoal EXPORT shoalTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(TARGETS shoal_static EXPORT shoalStaticTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
    install(EXPORT shoalTargets NAMESPACE shoal:: DESTINATION ${package_dir})
    install(EXPORT shoalStaticTargets NAMESPACE shoal:: DESTINATION ${package_dir})
    configure_package_config_file(
        cmake/shoalConfig.cmake.in ${PROJECT_BINARY_DIR}/shoalConfig.cmake INSTALL_DESTINATION ${package_dir})
    write_basic_package_version_file(${PROJECT_BINARY_DIR}/shoalConfigVersion.cmake COMPATIBILITY SameMinorVersion)
    install(FILES ${PROJECT_BINARY_DIR}/shoalConfig.cmake ${PROJECT_BINARY_DIR}/shoalConfigVersion.cmake
        DESTINATION ${package_dir})

    set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
    if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} OR IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
        set(SHOAL_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
        set(SHOAL_PC_LIBDIR ${CMAKE_INSTALL_FULL_LIBDIR})
        set(SHOAL_PC_INCLUDEDIR ${CMAKE_INSTALL_FULL_INCLUDEDIR})
    else()
        file(RELATIVE_PATH up /${pc_dir} /)
        string(REGEX REPLACE "/$" "" up "${up}")
        set(SHOAL_PC_PREFIX "\${pcfiledir}/${up}")
        set(SHOAL_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
        set(SHOAL_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
    endif()
    configure_file(cmake/shoal.pc.in ${PROJECT_BINARY_DIR}/shoal.pc @ONLY)
    install(FILES ${PROJECT_BINARY_DIR}/shoal.pc DESTINATION ${pc_dir})
endif()
