# cmake -DPROGRAM=FILE -DFOLDER=FOLDER -P bring_libraries.cmake: copies the shared libraries that PROGRAM needs and a
# bare Debian or Ubuntu lacks into FOLDER, under the names that the loader looks for.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${PROGRAM} RESOLVED_DEPENDENCIES_VAR found
  PRE_EXCLUDE_REGEXES "^lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+|z)\\.so" "^ld-linux")
foreach(library ${found})
  get_filename_component(name ${library} NAME)
  file(COPY_FILE ${library} ${FOLDER}/${name} ONLY_IF_DIFFERENT)
endforeach()
