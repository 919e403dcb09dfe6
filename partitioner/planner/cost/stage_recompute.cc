// Which blocks a layout's stages compute again: on each stage, what is missing is freed by the blocks and modes that
// cost least (recompute_knapsack.h). Early stages hold more micro-batches, so that a block frees more there and more of
// them are computed again.
#include <algorithm>

#include "partitioner/planner/cost/cost_model.h"
#include "partitioner/planner/cost/program_memory.h"
#include "partitioner/planner/cost/recompute_knapsack.h"

namespace partita {
namespace {

constexpr int kRounds = 4;  // a block that is computed again takes working memory, once a stage

// Units of the chunks, in the order of the model: [stage's chunks][units].
std::vector<std::vector<size_t>> units_of_chunks(const std::vector<StageUnits>& chunks, size_t stage, size_t stages) {
  std::vector<std::vector<size_t>> out;
  for (size_t p = 0, unit = 0; p < chunks.size(); unit += static_cast<size_t>(chunks[p++].units)) {
    if (p % stages != stage) continue;
    auto& list = out.emplace_back();
    for (size_t k = 0; k < static_cast<size_t>(chunks[p].units); ++k) list.push_back(unit + k);
  }
  return out;
}

// Of each unit, its number among the blocks; -1: it is none.
std::vector<int64_t> block_numbers(const Workload& w) {
  std::vector<int64_t> out;
  int64_t next = 0;
  for (size_t u = 0; u < w.units.size(); ++u) out.push_back(w.unit(u).is_block() ? next++ : -1);
  return out;
}

}  // namespace

std::optional<Layout> CostModel::with_recompute(Layout whole, double spare) {
  const Workload& w = *problem_.workload;
  const std::vector<StageUnits> chunks = chunk_units(whole);
  const StageLayouts layouts(whole);
  const std::vector<int64_t> numbers = block_numbers(w);
  std::vector<RecomputeMode> modes(static_cast<size_t>(block_count(w)), RecomputeMode::kNone);
  for (int64_t s = 0; s < whole.pipeline; ++s) {
    const size_t stage = static_cast<size_t>(s);
    const Layout& l = layouts[stage];
    const DeviceGroup& group = group_of_stage(whole, s);
    const double held = in_flight(problem_, whole, s);
    StageUnits units = units_of_stage(whole, chunks, s);
    auto missing = [&] {
      return stage_memory(problem_, group.device, l, units, held).total() + spare - group.device.memory_bytes;
    };
    double bytes = missing();
    if (bytes <= 0) continue;
    const std::vector<UnitCost>& costs = unit_costs(group, l);
    std::vector<RecomputeItems> items(w.kinds.size());
    for (size_t k = 0; k < items.size(); ++k) {
      const UnitWork& u = w.kinds[k];
      if (!u.is_block()) continue;
      items[k].count = units.counts[k];
      const double all = kept_bytes(u, w, l, RecomputeMode::kNone);
      for (size_t m = 0; m < kRecomputeModes; ++m) {
        const RecomputeMode mode = static_cast<RecomputeMode>(m);
        if (mode != RecomputeMode::kFull && !(w.recomputes & mode_bit(mode))) continue;
        items[k].modes[m] = {held * (all - kept_bytes(u, w, l, mode)), again_seconds(costs[k], mode)};
      }
    }
    bool fits = false;
    for (int round = 0; round < kRounds && !fits; ++round) {
      const auto chosen = choose_recompute(items, bytes);
      if (!chosen) return std::nullopt;
      units.recomputed = *chosen;
      const double over = missing();
      fits = over <= 0, bytes += over;
    }
    if (!fits) return std::nullopt;
    // The first blocks of each chunk, so that of interleaved stages no chunk keeps more than one block more than
    // others.
    const auto all = units_of_chunks(chunks, stage, static_cast<size_t>(whole.pipeline));
    size_t longest = 0;
    for (const auto& list : all) longest = std::max(longest, list.size());
    for (size_t at = 0; at < longest; ++at) {
      for (const auto& list : all) {
        if (at >= list.size() || numbers[list[at]] < 0) continue;
        StageUnits::ByMode& left = units.recomputed[static_cast<size_t>(w.units[list[at]])];
        size_t mode = kRecomputeModes - 1;
        while (left[mode] == 0) --mode;
        --left[mode], modes[static_cast<size_t>(numbers[list[at]])] = static_cast<RecomputeMode>(mode);
      }
    }
  }
  while (!modes.empty() && modes.back() == RecomputeMode::kNone) modes.pop_back();
  if (modes.empty()) return std::nullopt;
  whole.recompute_blocks = std::move(modes);
  const bool all_full = std::all_of(whole.recompute_blocks.begin(), whole.recompute_blocks.end(),
                                    [](RecomputeMode mode) { return mode == RecomputeMode::kFull; });
  if (all_full && static_cast<int64_t>(whole.recompute_blocks.size()) == block_count(w))
    whole.recompute = RecomputeMode::kFull, whole.recompute_blocks.clear();
  return whole;
}

std::vector<RecomputedBlocks> CostModel::recomputed(const Layout& whole, int64_t s) {
  const Workload& w = *problem_.workload;
  const std::vector<StageUnits> chunks = chunk_units(whole);
  const std::vector<int64_t> numbers = block_numbers(w);
  const Layout l = whole.of_stage(s);
  const std::vector<UnitCost>& costs = unit_costs(group_of_stage(whole, s), l);
  const double held = in_flight(problem_, whole, s), times = static_cast<double>(micro_batches(problem_, whole));
  const DeviceProfile& device = group_of_stage(whole, s).device;
  auto kept = [&](const UnitWork& u, RecomputeMode mode) {
    return problem_.own_programs ? kept_bytes(u, w, l, mode) : saved_bytes(u, problem_, device, l, mode);
  };
  std::array<RecomputedBlocks, kRecomputeModes> by_mode;
  for (const auto& list : units_of_chunks(chunks, static_cast<size_t>(s), static_cast<size_t>(whole.pipeline))) {
    for (size_t unit : list) {
      if (numbers[unit] < 0) continue;
      const size_t kind = static_cast<size_t>(w.units[unit]), block = static_cast<size_t>(numbers[unit]);
      const RecomputeMode mode = whole.recompute_of(block);
      if (mode <= RecomputeMode::kNone) continue;
      RecomputedBlocks& to = by_mode[static_cast<size_t>(mode)];
      to.mode = mode, to.blocks.push_back(numbers[unit]);
      to.bytes += held * (kept(w.kinds[kind], RecomputeMode::kNone) - kept(w.kinds[kind], mode));
      to.seconds += times * again_seconds(costs[kind], mode);
    }
  }
  std::vector<RecomputedBlocks> out;
  for (RecomputedBlocks& b : by_mode) {
    if (!b.blocks.empty()) out.push_back(std::move(b));
  }
  return out;
}

}  // namespace partita
