# cmake -DOUT=FILE -DSOURCE=FOLDER -DVERSION=… -DLLVM=… -P build_info.cmake: writes FILE where what it says has changed.
find_program(GIT git)
set(commit "")
if(GIT)
  execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --abbrev=12 --exclude=* --dirty=-modified
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT [[#include "tools/cli/version.h"

namespace partita {

const BuildInfo kBuildInfo = {"@VERSION@", "@commit@", "@LLVM@"};

}  // namespace partita
]] @ONLY)
