// Samples of several lengths: each has a cost model of its own, of as many positions a step, in the same layout.
#include "partitioner/planner/cost/cost_model.h"

namespace partita {

// Micro-batches have as many positions.
Layout CostModel::layout_of(const Layout& layout, const CostModel& shorter) const {
  Layout own = layout;
  own.micro_batch = layout.micro_batch * problem_.length / shorter.problem_.length;
  return own;
}

template <typename Cost>
double CostModel::mean_of_lengths(const Layout& layout, Cost cost) {
  double sum = cost(*this, layout);
  for (const auto& s : shorter_) sum += cost(*s, layout_of(layout, *s));
  return sum / static_cast<double>(1 + shorter_.size());
}

double CostModel::lower_bound(const Layout& layout) {
  return mean_of_lengths(layout, [](CostModel& m, const Layout& l) { return m.lower_bound_of_largest(l); });
}

double CostModel::heaviest_seconds(const DeviceGroup& group, const Layout& layout) {
  return mean_of_lengths(layout, [&](CostModel& m, const Layout& l) { return m.heaviest_of_largest(group, l); });
}

double CostModel::balanced_bound(const Layout& layout) {
  return mean_of_lengths(layout, [](CostModel& m, const Layout& l) { return m.bound(l, m.balanced(l)); });
}

double CostModel::bound(const Layout& layout, const std::vector<int>& cuts) {
  return mean_of_lengths(layout, [&](CostModel& m, const Layout& l) { return m.bound(l, m.weigh(l, cuts)); });
}

double CostModel::cuts_bound(const Layout& layout, bool anywhere) {
  return anywhere || layout.interleave == 1 ? balanced_bound(layout) : bound(layout, even_cuts(layout));
}

Prediction CostModel::predict(const Layout& layout, bool replay) {
  Prediction out = predict_largest(layout, replay);
  if (shorter_.empty()) return out;
  const double count = static_cast<double>(1 + shorter_.size());
  const double largest = out.step_seconds;
  auto over = [](const Prediction& p) {
    const size_t worst = static_cast<size_t>(p.worst_stage);
    return p.memory[worst].total() - p.capacity[worst];
  };
  for (const auto& s : shorter_) {
    Prediction p = s->predict_largest(layout_of(layout, *s), replay);
    out.lengths.push_back({s->problem_.length, p.step_seconds});
    out.step_seconds += p.step_seconds, out.flops += p.flops, out.bubble_share += p.bubble_share;
    for (const auto& [name, seconds] : kBreakdownNames) out.breakdown.*seconds += p.breakdown.*seconds;
    if (over(p) <= over(out)) continue;
    out.memory = std::move(p.memory), out.worst_stage = p.worst_stage;
    out.missing_bytes = p.missing_bytes, out.fits = p.fits;
  }
  out.lengths.push_back({problem_.length, largest});
  out.step_seconds /= count, out.flops /= count, out.bubble_share /= count;
  for (const auto& [name, seconds] : kBreakdownNames) out.breakdown.*seconds /= count;
  return out;
}

}  // namespace partita
