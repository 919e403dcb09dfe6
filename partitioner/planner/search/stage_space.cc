// A section with p stages, each of which takes W seconds for all units of the heaviest kind, gets through p / W of them
// a second. Sections work side by side, so a micro-batch takes 1 / sum(p / W) at least, however it is cut. Sections are
// chosen one after the other, fastest first, until even the fastest of what is left would not be fast enough.
#include "partitioner/planner/search/stage_space.h"

#include <algorithm>
#include <limits>

namespace partita {
namespace {

constexpr size_t kMostKept = size_t{1} << 20;  // combinations

int64_t sample_ranks(const Layout::StageAxes& a) { return a.data * a.expert; }

}  // namespace

StageSpace::StageSpace(CostModel& model, const Space& space)
    : model_(model), space_(space), dropped_(std::numeric_limits<double>::infinity()) {
  for (const std::vector<int64_t>& split : space.splits) {
    auto& sections = ways_.emplace_back();
    for (int64_t devices : split) sections.push_back(ways(devices));
  }
}

std::vector<StageSpace::Way> StageSpace::ways(int64_t devices) const {
  std::vector<Way> out;
  for (int64_t stages : divisors(devices)) {
    const int64_t each = devices / stages;
    for (int64_t tensor : space_.ranges.tensor.sizes(each))
      for (int64_t context : space_.ranges.context.sizes(each / tensor))
        for (int64_t expert : space_.ranges.expert.sizes(each / tensor / context)) {
          const int64_t data = each / tensor / context / expert;
          if (!space_.data || *space_.data == data) out.push_back({{data, tensor, context, expert}, stages});
        }
  }
  return out;
}

StageSpace::Rates StageSpace::rates(const StageChoice& shared) {
  const std::vector<std::vector<Way>>& sections = ways_[static_cast<size_t>(shared.split)];
  const std::vector<DeviceGroup>& groups = model_.problem().cluster->groups;
  Rates out;
  for (size_t g = 0; g < sections.size(); ++g) {
    std::vector<Rate>& list = out.emplace_back();
    for (size_t k = 0; k < sections[g].size(); ++k) {
      const Way& way = sections[g][k];
      if (shared.samples % sample_ranks(way.axes) != 0) continue;
      Layout own;
      own.data = way.axes.data, own.tensor = way.axes.tensor;
      own.context = way.axes.context, own.expert = way.axes.expert;
      own.micro_batch = shared.samples / sample_ranks(way.axes);
      own.sequence_parallel = shared.sequence_parallel && own.tensor > 1, own.recompute = shared.recompute;
      const double seconds = model_.heaviest_seconds(groups[groups.size() > 1 ? g : 0], own);
      list.push_back({static_cast<uint16_t>(k), static_cast<double>(way.stages) / std::max(seconds, 1e-30)});
    }
    std::stable_sort(list.begin(), list.end(), [](const Rate& a, const Rate& b) { return a.rate > b.rate; });
  }
  return out;
}

std::vector<StageChoice> StageSpace::below(double seconds) {
  const int64_t batch = model_.problem().global_batch;
  for (size_t split = 0; split < ways_.size(); ++split)
    for (int64_t samples : divisors(batch))
      for (bool sequence : space_.sequence_parallel)
        for (RecomputeMode recompute : space_.recompute) {
          if (space_.recompute_by_block && recompute != RecomputeMode::kNone)
            continue;  // what does not fit asks for it
          StageChoice choice;
          choice.split = static_cast<int32_t>(split), choice.samples = samples;
          choice.sequence_parallel = sequence, choice.recompute = recompute;
          const Rates rates = this->rates(choice);
          if (std::none_of(rates.begin(), rates.end(), [](const auto& list) { return list.empty(); }))
            combine(choice, rates, 0, 0, 0, seconds);
        }
  std::stable_sort(kept_.begin(), kept_.end(),
                   [](const StageChoice& a, const StageChoice& b) { return a.bound < b.bound; });
  return std::move(kept_);
}

void StageSpace::combine(StageChoice choice, const Rates& rates, size_t section, double so_far, int64_t stages,
                         double seconds) {
  const auto& ways = ways_[static_cast<size_t>(choice.split)];
  double rest = 0;
  for (size_t g = section + 1; g < rates.size(); ++g) rest += rates[g].front().rate;
  const double micro_batches = static_cast<double>(model_.problem().global_batch / choice.samples);
  for (const Rate& r : rates[section]) {
    choice.bound = micro_batches / (so_far + r.rate + rest);
    if (choice.bound >= seconds) return;
    const int64_t so_many = stages + ways[section][r.way].stages;
    if (so_many + static_cast<int64_t>(rates.size() - section - 1) > space_.ranges.pipeline.most) continue;
    choice.of_section[section] = r.way;
    if (section + 1 < rates.size()) {
      combine(choice, rates, section + 1, so_far + r.rate, so_many, seconds);
      continue;
    }
    if (space_.ranges.pipeline.pinned && *space_.ranges.pipeline.pinned != so_many) continue;
    int64_t most = 1;
    bool alike = true, tensor = false;
    for (size_t g = 0; g < rates.size(); ++g) {
      const Layout::StageAxes& axes = ways[g][choice.of_section[g]].axes;
      most = std::max(most, sample_ranks(axes));
      alike = alike && axes == ways[0][choice.of_section[0]].axes;  // one of the uniform layouts
      tensor = tensor || axes.tensor > 1;
    }
    if (alike || (choice.sequence_parallel && !tensor && space_.sequence_parallel.size() > 1)) continue;
    const bool allowed = choice.samples % most == 0 && std::find(space_.micro_batch.begin(), space_.micro_batch.end(),
                                                                 choice.samples / most) != space_.micro_batch.end();
    if (allowed) keep(choice);
  }
}

void StageSpace::keep(const StageChoice& choice) {
  kept_.push_back(choice);
  if (kept_.size() < 2 * kMostKept) return;
  std::stable_sort(kept_.begin(), kept_.end(),
                   [](const StageChoice& a, const StageChoice& b) { return a.bound < b.bound; });
  dropped_ = std::min(dropped_, kept_[kMostKept].bound);
  kept_.resize(kMostKept);
}

Layout StageSpace::layout(const StageChoice& c) const {
  const std::vector<std::vector<Way>>& sections = ways_[static_cast<size_t>(c.split)];
  Layout l;
  for (size_t g = 0; g < sections.size(); ++g) {
    const Way& way = sections[g][c.of_section[g]];
    l.stages.insert(l.stages.end(), static_cast<size_t>(way.stages), way.axes);
  }
  // Of equals the first, as where the plan's pins are read.
  const Layout::StageAxes& most = *std::max_element(
      l.stages.begin(), l.stages.end(), [](const auto& a, const auto& b) { return sample_ranks(a) < sample_ranks(b); });
  l.data = most.data, l.tensor = most.tensor, l.context = most.context, l.expert = most.expert;
  l.pipeline = static_cast<int64_t>(l.stages.size());
  l.micro_batch = c.samples / sample_ranks(most);
  l.recompute = c.recompute;
  l.sequence_parallel = c.sequence_parallel;
  return l;
}

}  // namespace partita
