#include "tests/counts/sampled_launch.h"

#include <algorithm>

#include "tests/stand_ins/cuda/memory.h"

namespace partita::counts {
namespace {

constexpr int64_t kBlocksOfLaunch = 16, kBlocksOfPart = 4;
// Instructions of a block from which on fewer of them have to do.
constexpr uint64_t kLong = 100'000;
constexpr int64_t kLongBlocks = 4;

}  // namespace

double Work::needed_issues() const {
  double all = 0;
  for (double n : instructions) all += n;
  return all - of(ptx::Kind::kMove) - of(ptx::Kind::kParameter);
}

void Work::add(const ptx::Counters& c, double weight) {
  for (size_t k = 0; k < instructions.size(); ++k) instructions[k] += weight * static_cast<double>(c.instructions[k]);
  lanes += weight * static_cast<double>(c.lanes);
  branches += weight * static_cast<double>(c.branches);
  divergent_branches += weight * static_cast<double>(c.divergent_branches);
  shared_passes += weight * static_cast<double>(c.shared_passes);
  bank_conflicts += weight * static_cast<double>(c.bank_conflicts);
  local_accesses += weight * static_cast<double>(c.local_accesses);
}

std::unordered_map<uint32_t, double> sample_blocks(const std::vector<int64_t>& parts, int64_t of_each) {
  std::unordered_map<uint32_t, double> weights;
  int64_t begin = 0;
  for (int64_t n : parts) {
    if (n <= of_each) {
      for (int64_t b = 0; b < n; ++b) weights[static_cast<uint32_t>(begin + b)] = 1;
    } else {
      weights[static_cast<uint32_t>(begin)] = weights[static_cast<uint32_t>(begin + n - 1)] = 1;
      const int64_t pairs = (of_each - 2) / 2, inner = n - 2;
      for (int64_t p = 0; p < pairs; ++p) {
        const int64_t at = 1 + (2 * p + 1) * (inner - 1) / (2 * pairs);
        for (int64_t b : {at, at + 1}) {
          weights[static_cast<uint32_t>(begin + std::min(b, n - 2))] =
              static_cast<double>(inner) / static_cast<double>(2 * pairs);
        }
      }
    }
    begin += n;
  }
  return weights;
}

void LaunchCounter::begin(Touched* touched, std::vector<int64_t> parts) {
  touched_ = touched;
  parts_ = std::move(parts);
  launches_.clear();
  copies_ = 0;
}

std::vector<Launched> LaunchCounter::end() {
  touched_ = nullptr;
  return std::move(launches_);
}

void LaunchCounter::launch(const ptx::Module& module, const ptx::Program& program, const ptx::Grid& grid,
                           std::vector<std::byte> parameters) {
  if (touched_ == nullptr || !status_.ok()) return;
  const int64_t blocks = grid.blocks.count();
  Launched made{program.name, blocks, grid.threads.count(), program.shared_bytes + grid.shared_bytes, 0, {}};
  const bool has_parts = parts_.size() > 1;
  std::vector<ptx::GlobalMemory::Range> memory;
  for (const auto& [begin, bytes] : stand_in::Memory::instance().blocks())
    memory.push_back({reinterpret_cast<uint64_t>(begin), bytes});
  const auto run = [&](uint32_t number) {
    ptx::Counters counters;
    const ptx::LaunchOptions options{
        .finds_races = false, .counts_traffic = true, .observer = touched_, .blocks = {&number, 1}};
    if (status_.ok()) status_ = ptx::launch(module, program, grid, parameters, memory, options, &counters);
    ++made.sampled;
    return counters;
  };
  // The first block is among those of any sample, and stands for itself.
  touched_->weigh({{0, 1}});
  const ptx::Counters first = run(0);
  made.work.add(first, 1);
  const int64_t most = first.total() > kLong ? kLongBlocks : kBlocksOfLaunch;
  auto weights = has_parts ? sample_blocks(parts_, kBlocksOfPart) : sample_blocks({blocks}, most);
  weights.erase(0);
  std::vector<uint32_t> numbers;
  for (const auto& [number, weight] : weights) numbers.push_back(number);
  std::sort(numbers.begin(), numbers.end());
  touched_->weigh(weights);
  for (uint32_t number : numbers) made.work.add(run(number), weights.at(number));
  if (!status_.ok()) return;
  touched_->finish();
  launches_.push_back(std::move(made));
}

void LaunchCounter::set(std::byte* to, size_t bytes) {
  if (touched_ == nullptr) return;
  touched_->stream(reinterpret_cast<uint64_t>(to), bytes, /*reads=*/false);
  ++copies_;
}

void LaunchCounter::copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (touched_ == nullptr) return;
  touched_->stream(reinterpret_cast<uint64_t>(from), bytes, /*reads=*/true);
  touched_->stream(reinterpret_cast<uint64_t>(to), bytes, /*reads=*/false);
  ++copies_;
}

}  // namespace partita::counts
