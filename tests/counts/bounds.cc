#include "tests/counts/bounds.h"

#include <algorithm>

namespace partita::counts {
namespace {

using ptx::Kind;

constexpr double kThreads = 2048, kBlocks = 32, kRegisters = 65536;  // of a processor at most
constexpr double kFirstCacheBytes = 128, kSecondCacheBytes = 64;     // that a processor gets from a cache in a clock
constexpr double kSharedBytes = 160 << 10;                           // of a processor, for blocks

// Blocks of a launch that run at once, all processors together.
double running_blocks(const Row& row, const DeviceProfile& device) {
  double most = kBlocks;
  const Launched& launch = *std::max_element(row.launches.begin(), row.launches.end(),
                                             [](const auto& a, const auto& b) { return a.blocks < b.blocks; });
  const auto threads = static_cast<double>(launch.threads);
  most = std::min(most, kThreads / threads);
  if (row.registers > 0) most = std::min(most, kRegisters / (row.registers * threads));
  if (launch.shared_bytes > 0) most = std::min(most, kSharedBytes / static_cast<double>(launch.shared_bytes));
  return std::max(1.0, most) * device.processors;
}

}  // namespace

double memory_bytes(const Row& row, const DeviceProfile& device) {
  if (row.launches.empty()) return row.least();
  const double fits = device.cache / 2;
  const bool keeps = row.block_sectors * kSector * running_blocks(row, device) <= fits;
  double sectors = 0;
  for (const ExtentUse& use : row.uses) {
    const double size = static_cast<double>((use.extent.bytes + 31) / 32);
    const bool once = size > 0 && (size * kSector <= fits || use.neighbours_share);
    sectors += once ? std::min(size, use.reads.of_blocks) : use.reads.of_blocks;
    if (!keeps) sectors += use.reads.far;
    sectors += size > 0 ? std::min(size, use.writes.of_blocks) : use.writes.of_blocks;
  }
  return sectors * kSector;
}

Bound bound(const Row& row, const DeviceProfile& device) {
  Bound b;
  b.memory_bytes = memory_bytes(row, device);
  const double fp32 = device.flops[static_cast<size_t>(Precision::kFp32)];
  const double arithmetic = row.flops / (row.is_product ? device.peak(row.precision) : fp32);
  const double least_memory = row.least() / device.bandwidth;
  b.least = std::max(arithmetic, least_memory);
  b.by_memory = least_memory >= arithmetic;
  const auto take = [&](const char* unit, double seconds) {
    if (seconds > b.seconds) b.seconds = seconds, b.unit = unit;
  };
  take("memory", b.memory_bytes / device.bandwidth);
  if (row.is_product) take("matrix", arithmetic);
  if (device.clock <= 0) return b;
  double units[9] = {};  // seconds, of all launches
  const char* names[] = {"issue", "fp32", "fp64", "integer", "special", "convert", "exchange", "memory pipe", "L2"};
  for (const Launched& launch : row.launches) {
    const double clocks = device.clock * std::min(device.processors, static_cast<double>(launch.blocks));
    const ProcessorLanes& lanes = device.lanes;
    const auto warps = [&](double n, double of) { return n * ptx::kLanes / of / clocks; };
    const Work& w = launch.work;
    units[0] += warps(w.needed_issues(), lanes.issue);
    units[1] += warps(w.of(Kind::kFloat), lanes.fp32);
    units[2] += warps(w.of(Kind::kDouble), lanes.fp64);
    units[3] += warps(w.of(Kind::kInteger) + w.of(Kind::kCompare), lanes.integer);
    units[4] += warps(w.of(Kind::kSpecial), lanes.special);
    units[5] += warps(w.of(Kind::kConvert), lanes.convert);
    units[6] += warps(w.of(Kind::kExchange), lanes.exchange);
    const double global = w.of(Kind::kGlobal) + w.of(Kind::kAtomic) + w.of(Kind::kAsyncCopy);
    units[7] += warps(global, lanes.memory) + w.shared_passes / clocks;
  }
  if (!row.launches.empty()) {
    double issued = 0, second = 0;
    for (const ExtentUse& use : row.uses) {
      issued += use.reads.issued + use.writes.issued;
      second += use.reads.of_blocks + use.reads.far + use.writes.of_blocks;
    }
    const auto most = std::max_element(row.launches.begin(), row.launches.end(),
                                       [](const Launched& a, const Launched& b) { return a.blocks < b.blocks; });
    const double clocks = device.clock * std::min(device.processors, static_cast<double>(most->blocks));
    units[7] = std::max(units[7], issued * kSector / kFirstCacheBytes / clocks);
    units[8] = second * kSector / kSecondCacheBytes / clocks;
  }
  for (size_t k = 0; k < std::size(units); ++k) take(names[k], units[k]);
  return b;
}

namespace {

void add(Sums& sums, const Row& row, const Bound& b) {
  const auto n = static_cast<double>(row.count);
  sums.bound += n * b.seconds;
  sums.least += n * b.least;
  sums.bytes += n * b.memory_bytes;
  sums.least_bytes += n * row.least();
}

}  // namespace

Sums memory_bound(const CountedProgram& program, const DeviceProfile& device) {
  Sums sums;
  for (const Row& row : program.rows) {
    const Bound b = bound(row, device);
    if (b.by_memory && !row.launches.empty()) add(sums, row, b);
  }
  return sums;
}

Sums all(const CountedProgram& program, const DeviceProfile& device) {
  Sums sums;
  for (const Row& row : program.rows) add(sums, row, bound(row, device));
  return sums;
}

}  // namespace partita::counts
