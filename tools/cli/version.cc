#include "tools/cli/version.h"

#include "base/cat.h"
#include "oneapi/dnnl/dnnl.h"
#include "runtime/device/device.h"
#include "runtime/launch/communicator_factory.h"
#include "runtime/launch/plugin.h"

namespace partita {
namespace {

std::string place_of(std::string_view module) {
  const auto path = runtime::find_plugin(module, runtime::default_plugin_directories());
  return path.ok() ? *path : "not installed";
}

}  // namespace

std::string version_text(const BuildInfo& build) {
  const std::string commit = build.commit;
  const dnnl_version_t* dnnl = dnnl_version();
  return cat("partita ", build.version, commit.empty() ? "" : cat(" (commit ", commit, ")"), "\nLLVM ", build.llvm,
             ", oneDNN ", dnnl->major, ".", dnnl->minor, ".", dnnl->patch,
             "\nMPI module: ", place_of(runtime::kMpiModule), "\nCUDA module: ", place_of(runtime::kCudaModule));
}

}  // namespace partita
