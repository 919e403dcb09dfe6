// Which blocks a layout's stages compute again, or leave to the host's memory: on each stage, what is missing is freed
// by the blocks and modes that cost least (recompute_knapsack.h). Early stages hold more micro-batches, so that a block
// frees more there and more of them are computed again. And what that costs.
#include <algorithm>
#include <utility>

#include "partitioner/planner/cost/cost_model.h"
#include "partitioner/planner/cost/memory/program_memory.h"
#include "partitioner/planner/cost/stage_room.h"

namespace partita {
namespace {

constexpr int kRounds = 4;  // of what a stage computes again, until its chunks' slots fit

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

// Which of a stage's blocks have the modes that its kinds have: the first blocks of each chunk are computed again, so
// that no chunk of an interleaved stage keeps more than one block more than others.
void spread(std::vector<StageUnits::ByMode> left, const Workload& w, const std::vector<std::vector<size_t>>& chunks,
            const std::vector<int64_t>& numbers, std::vector<RecomputeMode>& modes) {
  size_t longest = 0;
  for (const auto& units : chunks) longest = std::max(longest, units.size());
  for (size_t at = 0; at < longest; ++at) {
    for (const auto& units : chunks) {
      if (at >= units.size() || numbers[units[at]] < 0) continue;
      StageUnits::ByMode& of_kind = left[static_cast<size_t>(w.units[units[at]])];
      size_t mode = kRecomputeModes - 1;
      while (of_kind[mode] == 0) --mode;
      --of_kind[mode], modes[static_cast<size_t>(numbers[units[at]])] = static_cast<RecomputeMode>(mode);
    }
  }
}

}  // namespace

// Software that recomputes runs a block's forward part again; a program compiled here what is asked for of it alone.
CostModel::UnitCost::Again CostModel::repeated(const UnitWork& u, const UnitTime& t, const Share& share,
                                               const SoftwareProfile& software, RecomputeMode said) const {
  const RecomputeMode mode = on_device(said);
  if (!u.is_block() || mode <= RecomputeMode::kNone) return {};
  const double scores = mode == RecomputeMode::kSelective && !problem_.options.flash ? t.attention : 0;
  if (mode == RecomputeMode::kSelective && !problem_.own_programs) return {.compute = scores};
  const double host = mode == RecomputeMode::kSelective ? 0 : software.recompute_seconds;
  const double known = t.again[static_cast<size_t>(mode)];
  if (!problem_.own_programs || (known == 0 && mode == RecomputeMode::kFull)) return {t.forward + host, 1, 1, 1};
  // Partial sums over the tensor axis follow products that it divides along the summed size.
  double sums = 0, sums_again = 0, experts = 0, experts_again = 0;
  for (const MatrixWork& x : u.matrices) {
    const bool repeats = (x.again & mode_bit(mode)) != 0;
    if (x.split == 'k') sums += x.count, sums_again += repeats ? x.count : 0;
    if (x.expert) experts += x.count, experts_again += repeats ? x.count : 0;
  }
  // Operands go from positions to heads, and results back; or keys and values alone are gathered.
  double sent = 0, sent_again = 0;
  for (const AttentionWork& a : u.attention) {
    const double queries = exchanges_heads(a, share) ? a.heads * a.queries : 0, keys = a.key_heads * a.keys,
                 all = 2 * queries + 2 * keys;
    sent += all;
    sent_again += a.again & mode_bit(mode) ? all : a.operands_again & mode_bit(mode) ? all - queries : 0;
  }
  const auto ratio = [](double part, double all) { return all > 0 ? part / all : 0; };
  return {known + scores + host, ratio(sums_again, sums), ratio(sent_again, sent), ratio(experts_again, experts)};
}

double CostModel::again_seconds(const UnitCost& c, RecomputeMode mode, bool apart) {
  const UnitCost::Again& a = again(c, mode);
  return a.compute + a.tensor * c.tensor_forward + a.context * c.context_forward + a.expert * c.expert +
         (apart ? a.copies_apart : a.copies).added();
}

CostModel::UnitCost::Again CostModel::again_on(const StageUnits& units, size_t kind, const UnitCost& cost,
                                               const Layout& l) const {
  UnitCost::Again sum;
  for_each_mode(units, kind, problem_.workload->kinds[kind], l, [&](RecomputeMode mode, double n) {
    const UnitCost::Again& a = again(cost, mode);
    sum.compute += n * a.compute, sum.tensor += n * a.tensor, sum.context += n * a.context, sum.expert += n * a.expert;
    sum.copies.add(puts_off(units.first, l) ? a.copies_apart : a.copies, n);
  });
  return sum;
}

void CostModel::add_copies(const UnitWork& u, const DeviceProfile& device, const Layout& l, UnitCost& c) const {
  const double forward = c.forward + c.tensor_forward + c.context_forward + c.expert;
  for (RecomputeMode mode : {RecomputeMode::kOffload, RecomputeMode::kFullOffload}) {
    UnitCost::Again& a = c.again[static_cast<size_t>(mode)];
    const double backward =
        c.input_gradient + c.tensor_backward + c.context_backward + c.expert + again_seconds(c, mode, false);
    const auto kept = [&](bool apart) { return kept_on_rank(u, problem_, device, l, mode, apart); };
    a.copies = HostCopies::of(kept(false), device, forward, backward + c.weight_gradient, 0);
    a.copies_apart = HostCopies::of(kept(true), device, forward, backward, c.weight_gradient);
  }
}

std::optional<Layout> CostModel::with_recompute(Layout whole, double spare) {
  const Workload& w = *problem_.workload;
  const std::vector<StageUnits> chunks = chunk_units(whole);
  const StageLayouts layouts(whole);
  std::vector<RecomputeMode> modes(static_cast<size_t>(block_count(w)), RecomputeMode::kNone);
  std::vector<double> wanted(static_cast<size_t>(whole.pipeline), spare);
  std::vector<int64_t> short_of_room;
  for (int64_t s = 0; s < whole.pipeline; ++s) {
    if (missing(whole, chunks, s) + spare > 0) short_of_room.push_back(s);
  }
  for (int round = 0; round < kRounds && !short_of_room.empty(); ++round) {
    for (int64_t s : std::exchange(short_of_room, {})) {
      const size_t stage = static_cast<size_t>(s);
      StageUnits units = units_of_stage(whole, chunks, s);
      if (StageRoom(*this, whole, chunks, layouts[stage], s).compute_again(units, wanted[stage])) {
        spread(std::move(units.recomputed), w, units_of_chunks(chunks, stage, static_cast<size_t>(whole.pipeline)),
               block_numbers_, modes);
      } else if (round == 0) {
        return std::nullopt;
      }
    }
    if (whole.interleave == 1) break;
    Layout chosen = whole;  // slots are as large as the chunk that keeps most
    chosen.recompute_blocks = modes;
    const std::vector<StageUnits> chosen_chunks = chunk_units(chosen);
    for (int64_t s = 0; s < whole.pipeline; ++s) {
      const double over = missing(chosen, chosen_chunks, s) + spare;
      if (over > 0) wanted[static_cast<size_t>(s)] += over, short_of_room.push_back(s);
    }
  }
  while (!modes.empty() && modes.back() == RecomputeMode::kNone) modes.pop_back();
  if (modes.empty()) return std::nullopt;
  whole.recompute_blocks = std::move(modes);
  const RecomputeMode first = whole.recompute_blocks.front();
  const bool alike = std::all_of(whole.recompute_blocks.begin(), whole.recompute_blocks.end(),
                                 [&](RecomputeMode mode) { return mode == first && mode >= RecomputeMode::kFull; });
  if (alike && static_cast<int64_t>(whole.recompute_blocks.size()) == block_count(w))
    whole.recompute = first, whole.recompute_blocks.clear();
  return whole;
}

std::vector<RecomputedBlocks> CostModel::recomputed(const Layout& whole, int64_t s) {
  const Workload& w = *problem_.workload;
  const std::vector<StageUnits> chunks = chunk_units(whole);
  const Layout l = whole.of_stage(s);
  const std::vector<UnitCost>& costs = unit_costs(group_of_stage(whole, s), l);
  const double in_memory = held(whole, chunks, s), times = static_cast<double>(micro_batches(problem_, whole));
  const DeviceProfile& device = group_of_stage(whole, s).device;
  std::array<RecomputedBlocks, kRecomputeModes> by_mode;
  for (const auto& list : units_of_chunks(chunks, static_cast<size_t>(s), static_cast<size_t>(whole.pipeline))) {
    for (size_t unit : list) {
      if (block_numbers_[unit] < 0) continue;
      const size_t kind = static_cast<size_t>(w.units[unit]), block = static_cast<size_t>(block_numbers_[unit]);
      const RecomputeMode mode = whole.recompute_of(block);
      if (mode <= RecomputeMode::kNone) continue;
      RecomputedBlocks& to = by_mode[static_cast<size_t>(mode)];
      to.mode = mode, to.blocks.push_back(block_numbers_[unit]);
      const bool apart = puts_off(s == 0, l);
      const auto kept = [&](RecomputeMode m) { return kept_on_rank(w.kinds[kind], problem_, device, l, m, apart); };
      const KeptBytes left = kept(mode_on(device, mode));
      to.bytes += in_memory * (kept(RecomputeMode::kNone).on_device - left.on_device);
      to.host_bytes += in_memory * left.on_host;
      to.seconds += times * again_seconds(costs[kind], mode, apart);
    }
  }
  std::vector<RecomputedBlocks> out;
  for (RecomputedBlocks& b : by_mode) {
    if (!b.blocks.empty()) out.push_back(std::move(b));
  }
  return out;
}

}  // namespace partita
