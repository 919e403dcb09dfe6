# A folder HOME with the compiler and the runner of BUILD, and the CUDA module that runs on this machine in place of the
# real one: bundles that are compiled there take it along.
file(REMOVE_RECURSE ${HOME})
file(MAKE_DIRECTORY ${HOME})
file(GLOB files ${BUILD}/runtime/*.so* ${BUILD}/runtime/partita_runner)
list(FILTER files EXCLUDE REGEX "libpartita_cuda")
foreach(file ${files} ${BUILD}/tools/partita ${BUILD}/tests/stand_ins/libpartita_cuda.so)
  get_filename_component(name ${file} NAME)
  file(CREATE_LINK ${file} ${HOME}/${name} COPY_ON_ERROR)
endforeach()
