#include "runtime/bind/bind_rank.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/host/processors.h"
#include "base/status.h"
#include "runtime/bind/divide_cores.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/communicate/fold_numbers.h"
#include "runtime/device/gpu_address.h"
#include "runtime/record/process.h"

namespace partita::runtime {
namespace {

// What a rank tells the others.
struct Site {
  int64_t host = 0;
  int64_t processors = 0;  // a checksum of those that it may use
  int64_t card = -1;
};
constexpr size_t kNumbers = sizeof(Site) / sizeof(int64_t);

struct HostRanks {
  std::vector<int64_t> cards;  // of each rank of this host
  size_t mine = 0;             // the place of this one
  size_t alike = 0;            // of them, those that may use the same processors as this one
};

int64_t card_of(int gpu, bool several_ranks) {
  const std::optional<PciAddress> at = gpu < 0 ? std::nullopt : gpu_address(gpu, several_ranks);
  return at ? card_address(at->domain, at->bus, at->device) : -1;
}

absl::StatusOr<HostRanks> ranks_of_host(Communicator* communicator, const Site& mine) {
  HostRanks host;
  const std::array<int64_t, kNumbers> told = {mine.host, mine.processors, mine.card};
  std::vector<int64_t> all(told.begin(), told.end());
  if (communicator != nullptr) {
    PARTITA_ASSIGN_OR_RETURN(all, all_gather(communicator, told, "the ranks of each host"));
  }
  const size_t rank = communicator != nullptr ? static_cast<size_t>(communicator->rank()) : 0;
  for (size_t r = 0; r * kNumbers < all.size(); ++r) {
    const Site site{all[r * kNumbers], all[r * kNumbers + 1], all[r * kNumbers + 2]};
    if (site.host != mine.host) continue;
    if (r == rank) host.mine = host.cards.size();
    host.cards.push_back(site.card);
    host.alike += site.processors == mine.processors ? 1 : 0;
  }
  return host;
}

// "4 cores (CPUs 12-15), NUMA node 1".
std::string describe(const HostTopology& topology, const std::vector<int>& processors) {
  const Extent extent = extent_of(topology, processors);
  std::string text = cat(extent.cores, extent.cores == 1 ? " core" : " cores",
                         processors.size() == 1 ? " (CPU " : " (CPUs ", fold_numbers(processors), ")");
  if (!extent.nodes.empty())
    append(text, extent.nodes.size() == 1 ? ", NUMA node " : ", NUMA nodes ", fold_numbers(extent.nodes));
  return text;
}

// Of the calling thread; 0, or an error of the system's.
int bind_thread(const std::vector<int>& processors) {
  const auto count = static_cast<size_t>(processors.back()) + 1;
  const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(count), [](cpu_set_t* s) { CPU_FREE(s); });
  CPU_ZERO_S(CPU_ALLOC_SIZE(count), set.get());
  for (const int p : processors) CPU_SET_S(static_cast<size_t>(p), CPU_ALLOC_SIZE(count), set.get());
  return ::sched_setaffinity(0, CPU_ALLOC_SIZE(count), set.get()) == 0 ? 0 : errno;
}

// Of each rank of its host, where it shares `allowed` with all but those that are bound elsewhere.
int threads_of(const std::vector<int>& allowed, const HostRanks& host) {
  const auto usable = static_cast<size_t>(usable_processors());
  // Where less is paid for than may be used, all ranks of the host share that.
  const size_t threads = usable < allowed.size() ? usable / host.cards.size() : usable / host.alike;
  return static_cast<int>(std::max<size_t>(threads, 1));
}

}  // namespace

absl::StatusOr<RankBinding> bind_rank(Communicator* communicator, BindMode mode, int gpu) {
  const std::vector<int> allowed = allowed_processors();
  const Site site{static_cast<int64_t>(host_key()), static_cast<int64_t>(checksum64(std::as_bytes(std::span(allowed)))),
                  card_of(mode == BindMode::kNone ? -1 : gpu, communicator != nullptr && communicator->size() > 1)};
  PARTITA_ASSIGN_OR_RETURN(const HostRanks host, ranks_of_host(communicator, site));
  RankBinding binding{threads_of(allowed, host), {}};
  const size_t ranks = host.cards.size();
  if (mode == BindMode::kNone || allowed.empty() || (ranks == 1 && site.card < 0)) return binding;
  // What concerns the whole host is said once.
  auto unbound = [&](const std::string& why) {
    if (host.mine == 0) binding.said = cat("not bound to cores, as ", why);
    return binding;
  };
  const auto topology = read_topology(site.card >= 0);
  if (!topology.ok()) return unbound(std::string(topology.status().message()));
  if (host.alike < ranks) {
    binding.said = cat(describe(*topology, allowed), ", as it was started");
    return binding;
  }
  const std::vector<int> own = divide_cores(*topology, allowed, host.cards)[host.mine];
  if (own.empty()) return unbound(cat("its host has ", extent_of(*topology, allowed).cores, " for ", ranks, " ranks"));
  if (const int error = bind_thread(own); error != 0) return unbound(std::strerror(error));
  binding.threads = std::min(binding.threads, static_cast<int>(own.size()));
  binding.said = describe(*topology, own);
  return binding;
}

}  // namespace partita::runtime
