// See tools/bench/gpu_counts.
#include <cstdio>

#include "CLI/CLI.hpp"
#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/exit_code.h"
#include "base/fault.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/cluster/device_profile.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "tests/counts/bounds.h"
#include "tests/counts/report.h"
#include "tools/machine/cuda_toolkit.h"

namespace partita {
namespace {

struct Flags {
  std::vector<std::string> bundles, devices = {"H100-80GB", "H200", "B200", "A100-80GB"};
  std::string json;
  double most = 0;
  bool all = false;
};

absl::StatusOr<counts::CountedProgram> count_bundle(const std::string& folder) {
  PARTITA_ASSIGN_OR_RETURN(const auto files, runtime::BundleFiles::open_unproved(folder));
  PARTITA_ASSIGN_OR_RETURN(auto programs, files->programs(runtime::kImageName));
  if (programs.size() != 1)
    return absl::InvalidArgumentError(
        cat("it has the programs of ", programs.size(), " pipeline stages; expected one"));
  const auto assembler = find_assembler();
  return counts::count_program(std::move(programs[0]), assembler.ok() ? *assembler : "");
}

absl::StatusOr<bool> run(const Flags& flags) {
  PARTITA_ASSIGN_OR_RETURN(const ProfileLibrary library, ProfileLibrary::load());
  std::vector<const DeviceProfile*> devices;
  for (const std::string& name : flags.devices) {
    devices.push_back(library.device(name));
    if (devices.back() == nullptr)
      return absl::InvalidArgumentError(cat("--device ", quote(name),
                                            ": no such profile (partitioner/planner/cluster/"
                                            "profiles/devices.yaml)"));
  }
  std::string json;
  bool holds = true;
  for (const std::string& bundle : flags.bundles) {
    auto counted = count_bundle(bundle);
    if (!counted.ok()) return with_context(counted.status(), bundle);
    std::printf("%s\n%s%s\n", bundle.c_str(),
                counts::table(*counted, devices, flags.all ? size_t{1} << 20 : 30).c_str(),
                counts::sums(*counted, devices).c_str());
    std::fflush(stdout);
    append(json, json.empty() ? "{\n" : ",\n", nlohmann::json(bundle).dump(), ": ", counts::json(*counted, devices));
    for (const DeviceProfile* d : devices)
      holds = holds && (flags.most <= 0 || counts::memory_bound(*counted, *d).ratio() <= flags.most);
  }
  if (!flags.json.empty()) PARTITA_RETURN_IF_ERROR(write_file_atomically(flags.json, json + "\n}\n"));
  return holds;
}

}  // namespace
}  // namespace partita

int main(int argc, char** argv) {
  partita::exit_on_uncaught();
  partita::Flags flags;
  CLI::App app("What every kernel of a bundle for GPUs moves and computes, counted without one.");
  app.add_option("bundles", flags.bundles, "folders that `partita compile --target cuda:sm_80` wrote")->required();
  app.add_option("--device", flags.devices, "profile whose rates bounds are for; may be given several times")
      ->allow_extra_args(false)
      ->capture_default_str();
  app.add_option("--json", flags.json, "file for all rows and sums");
  app.add_option("--most", flags.most,
                 "exit code 4 where kernels bound by memory need more than this many times their least time, all "
                 "together");
  app.add_flag("--all", flags.all, "every row, not only the 30 that take longest");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  const absl::StatusOr<bool> holds = partita::run(flags);
  if (holds.ok()) return *holds ? 0 : 4;
  std::fprintf(stderr, "gpu_counts: %s\n", std::string(holds.status().message()).c_str());
  return partita::exit_code(holds.status());
}
