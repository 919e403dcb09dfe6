#include "tools/flow/device_memory.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "fmt/format.h"
#include "partitioner/planner/cluster/device_profile.h"
#include "runtime/device/attention_scratch.h"
#include "runtime/program/communicators.h"
#include "runtime/program/sides.h"
#include "runtime/program/tree_sums.h"
#include "tools/verify/bundle/manifest.h"

namespace partita {
namespace {

// What NCCL takes on GPUs whose profile says nothing else.
const DeviceProfile& usual_device() {
  static const DeviceProfile usual = [] {
    const auto library = ProfileLibrary::load();
    PARTITA_CHECK(library.ok() && library->device("defaults") != nullptr, "profiles that are built in");
    return *library->device("defaults");
  }();
  return usual;
}

// The reserve has room for some communicators; programs for GPUs say how many they have.
double beyond_reserve(const runtime::Program& p) {
  if (!runtime::needs_device(p)) return 0;
  const runtime::Communicators c = runtime::communicators(p);
  return usual_device().beyond_reserve(static_cast<double>(c.groups), static_cast<double>(c.sends),
                                       static_cast<double>(c.receives));
}

}  // namespace

double device_bytes(const runtime::Program& p) {
  double bytes = beyond_reserve(p) + static_cast<double>(runtime::branch_bytes(p) + runtime::score_scratch_bytes(p));
  const std::map<std::string, int64_t> regions = verifier::memory_bytes(p);
  for (const char* region : {"state", "arena", "constant", "input"}) bytes += static_cast<double>(regions.at(region));
  return bytes;
}

double communicator_bytes(const runtime::Program& p) {
  if (!runtime::needs_device(p)) return 0;
  const runtime::Communicators c = runtime::communicators(p);
  const DeviceProfile& d = usual_device();
  return d.communicator_receive_bytes * static_cast<double>(c.groups + c.receives) +
         d.communicator_send_bytes * static_cast<double>(c.groups + c.sends);
}

absl::Status check_room(const std::vector<runtime::Program>& programs, const std::vector<double>& room) {
  if (room.empty()) return absl::OkStatus();
  const double least = *std::min_element(room.begin(), room.end());
  for (size_t k = 0; k < programs.size(); ++k) {
    const std::map<std::string, int64_t> bytes = verifier::memory_bytes(programs[k]);
    const double needs = device_bytes(programs[k]), has = room.size() == programs.size() ? room[k] : least,
                 beyond = beyond_reserve(programs[k]),
                 scores = static_cast<double>(runtime::score_scratch_bytes(programs[k]));
    if (needs <= has) continue;
    auto gigabytes = [](double b) { return fmt::format("{:.3g} GB", b / 1e9); };
    return absl::ResourceExhaustedError(cat(
        programs.size() > 1 ? cat("the program of stage ", k) : "the program", " needs ", gigabytes(needs),
        " of device memory (state ", gigabytes(static_cast<double>(bytes.at("state"))), ", working memory ",
        gigabytes(static_cast<double>(bytes.at("arena"))),
        scores > 0 ? cat(", attention's scores in cuDNN ", gigabytes(scores)) : "",
        beyond > 0 ? cat(", NCCL's communicators beyond the reserve ", gigabytes(beyond)) : "",
        "); the plan's devices have ", gigabytes(has),
        " beside the reserve. Plan again with a smaller micro_batch, recompute: full or a higher zero stage pinned, "
        "or --allow-infeasible to compile it all the same"));
  }
  return absl::OkStatus();
}

}  // namespace partita
