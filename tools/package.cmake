# What `cmake --install` and CPack put where. Programs find their parts by their own place, so that the tree may lie
# anywhere:  bin/partita  lib/partita/{partita_runner,lib*.so*}  share/{partita,doc,man,...}
set(built partita partita_runner)
install(TARGETS partita RUNTIME DESTINATION bin)
install(TARGETS partita_runner RUNTIME DESTINATION lib/partita)
foreach(module partita_comm_mpi partita_session partita_cuda)
  if(TARGET ${module})
    list(APPEND built ${module})
    install(TARGETS ${module} LIBRARY DESTINATION lib/partita)
  endif()
endforeach()
# All that is installed, in one target: tools/package builds it.
add_custom_target(partita_installed DEPENDS ${built})
if(PARTITA_TESTS AND NOT PARTITA_SANITIZE)
  add_test(NAME installed_tree COMMAND ${CMAKE_SOURCE_DIR}/tests/package/installed_tree ${CMAKE_BINARY_DIR})
  set_tests_properties(installed_tree PROPERTIES TIMEOUT 600)
endif()

# What partita_bring_libraries put beside the runner; the modules there are installed above, with their own rpaths.
# Files alone: install(DIRECTORY) would make the build tree's folders, too.
install(CODE "
  file(GLOB brought LIST_DIRECTORIES false \"${CMAKE_BINARY_DIR}/runtime/lib*.so*\")
  list(FILTER brought EXCLUDE REGEX \"/libpartita_[^/]*$\")
  file(INSTALL DESTINATION \"\${CMAKE_INSTALL_PREFIX}/lib/partita\" TYPE SHARED_LIBRARY FILES \${brought})")
# Manual pages and completions, as the built program says them.
install(DIRECTORY ${CMAKE_BINARY_DIR}/share/ DESTINATION share)
install(DIRECTORY tools/schema DESTINATION share/partita)
install(DIRECTORY partitioner/planner/cluster/profiles DESTINATION share/partita)
install(FILES LICENSE NOTICE README.md CHANGELOG.md DESTINATION share/doc/partita)
install(FILES NOTICE DESTINATION share/doc/partita RENAME copyright)
install(DIRECTORY docs DESTINATION share/doc/partita)

# The licences of what is linked in, as the packages state them that it comes from.
set(licenses share/doc/partita/licenses)
foreach(pair llvm:llvm-19-dev lld:liblld-19-dev protobuf:libprotobuf-dev yaml-cpp:libyaml-cpp-dev jemalloc:libjemalloc-dev
    zstd:libzstd-dev openssl:libssl-dev json:nlohmann-json3-dev cli11:libcli11-dev abseil:libabsl-dev fmt:libfmt-dev libgomp:libgomp1)
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 name)
  list(GET pair 1 package)
  install(FILES /usr/share/doc/${package}/copyright DESTINATION ${licenses} RENAME ${name})
endforeach()
install(FILES ${PARTITA_DEPS}/share/doc/onednn/LICENSE DESTINATION ${licenses} RENAME onednn)
install(FILES ${PARTITA_DEPS}/share/doc/onednn/THIRD-PARTY-PROGRAMS DESTINATION ${licenses} RENAME onednn-third-party-programs)
if(CUDNN_FRONTEND_INCLUDE_DIR)
  install(FILES ${PARTITA_DEPS}/share/doc/cudnn-frontend/LICENSE-MIT.txt DESTINATION ${licenses} RENAME cudnn-frontend)
  install(FILES ${PARTITA_DEPS}/share/doc/cudnn-frontend/NOTICE DESTINATION ${licenses} RENAME cudnn-frontend-notice)
endif()

set(CPACK_PACKAGE_NAME partita)
set(CPACK_PACKAGE_VENDOR "The Partita authors")
set(CPACK_PACKAGE_CONTACT "The Partita authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "auto-parallelizing compiler for ONNX training graphs")
set(CPACK_PACKAGE_FILE_NAME partita-${PROJECT_VERSION}-linux-x86_64)
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
  "Partita compiles ONNX training graphs into executables for the ranks of a
cluster, with the communication already in them, plans their layout, proves
that they compute the serial program, and runs them.")
# Debian 12 is the floor. Open MPI, NVIDIA's driver and libraries are found where they are.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= 2.36), libgcc-s1 (>= 12), libstdc++6 (>= 12), zlib1g")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS openmpi-bin)
include(CPack)
