#include "tools/verify/graph/sum_order.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

bool is_micro_batch(Segment s) { return s == Segment::kForward || s == Segment::kBackward; }

// The weights of the axes in the number of a part of `each` elements; empty where they make up no number below `parts`.
std::vector<int64_t> weights(const IndexMap& layout, const Mesh& mesh, int64_t each, int64_t parts) {
  std::vector<AxisDigit> digits = layout.axes;
  std::sort(digits.begin(), digits.end(), [](const auto& a, const auto& b) { return a.stride < b.stride; });
  std::vector<int64_t> weight(mesh.axes.size(), 0);
  int64_t next = 1;
  for (const AxisDigit& d : digits) {
    const auto axis = static_cast<size_t>(d.axis);
    if (d.divisor != 1 || d.size != mesh.axes[axis].size || d.stride != next * each || weight[axis] != 0) return {};
    weight[axis] = next;
    next *= d.size;
  }
  return next == parts ? weight : std::vector<int64_t>{};
}

}  // namespace

SumOrder::SumOrder(const SerialValues& serial, const Mesh& mesh, int time, int64_t parts)
    : mesh_(mesh),
      time_(time),
      parts_(parts),
      weight_(mesh.axes.size(), 0),
      read_in_a_batch_(static_cast<size_t>(serial.roots()), false) {
  for (const Node& node : serial.graph().nodes) {
    if (!is_micro_batch(node.segment) || movement_of(*node.op) != Movement::kNone || node.op->sums_micro_batches)
      continue;
    for (ValueId v : node.inputs) {
      if (v != kNoValue && serial.layout(v).root >= 0)
        read_in_a_batch_[static_cast<size_t>(serial.layout(v).root)] = true;
    }
  }
}

absl::Status SumOrder::take_input(const Shape& shape, const IndexMap& layout, int64_t samples) {
  if (parts_ == 0 || shape.empty()) return absl::OkStatus();
  if (shape[0] != samples || samples % parts_ != 0)
    return differs("expected all ", samples, " samples of a step in one run of the serial program, ", parts_,
                   " equal parts, found ", shape[0]);
  const std::vector<int64_t> now = weights(layout, mesh_, elements(shape) / parts_, parts_);
  if (now.empty() && layout.axes.empty()) return absl::OkStatus();  // all samples
  if (now.empty() || (known_ && now != weight_))
    return differs("expected one of ", parts_, " parts of the samples, in the order of ranks and micro-batches, found ",
                   to_string(layout, mesh_));
  weight_ = now;
  known_ = true;
  return absl::OkStatus();
}

// What is made of samples is of one part, or of all of them: so each rank computes the same, whatever the ranks.
absl::Status SumOrder::check_apart(const IndexMap& x) const {
  int of = 0, all = 0;
  for (size_t a = 0; a < weight_.size(); ++a) {
    if (weight_[a] == 0 || mesh_.axes[a].size == 1) continue;
    ++all;
    of += x.depends_on(static_cast<int>(a)) || x.is_partial(static_cast<int>(a));
  }
  if (of == 0 || of == all) return absl::OkStatus();
  return differs("expected a value of one part of the samples, or of all of them, found ", to_string(x, mesh_));
}

absl::Status SumOrder::check_node(const Node& node, const Graph& local, const std::vector<IndexMap>& operands,
                                  const std::vector<IndexMap>& results) const {
  if (parts_ == 0) return absl::OkStatus();
  if (node.op->sums_micro_batches) return check_accumulation(node, operands.back());
  for (const IndexMap& x : operands) {
    if (is_micro_batch(node.segment)) PARTITA_RETURN_IF_ERROR(check_apart(x));
    if (!is_micro_batch(node.segment) && !x.partial.empty())
      return differs("expected a complete sum, whose order is fixed, found ", to_string(x, mesh_));
  }
  for (size_t k = 0; k < results.size(); ++k) {
    if (results[k].kind != PartialKind::kSum || !is_float(local.type(node.outputs[k]).dtype)) continue;
    for (int a : results[k].partial) {
      if (!is_micro_batch(node.segment) || !divides_samples(a))
        return differs("expected a sum in a fixed order, found one that ranks of ", name(a), " have parts of");
    }
  }
  return absl::OkStatus();
}

absl::Status SumOrder::check_accumulation(const Node& node, const IndexMap& term) const {
  if (node.op->name != "accumulate_tree")
    return differs("expected a sum over micro-batches in a fixed order (accumulate_tree), found ", node.op->name);
  if (time_ < 0 || !divides_samples(time_))
    return differs("expected micro-batches that are parts of one run, found runs side by side");
  return check_sum(term, {time_}, DType::kF32);
}

absl::Status SumOrder::check_sum(const IndexMap& x, const std::vector<int>& axes, DType type) const {
  if (parts_ == 0 || x.kind != PartialKind::kSum || !is_float(type)) return absl::OkStatus();
  if (dtype_size(type) < 4)
    return differs("expected a sum in f32 or wider, found ", dtype_name(type), ", which rounds what each rank has");
  const bool read = x.root >= 0 && read_in_a_batch_[static_cast<size_t>(x.root)];
  if (read && !(axes.size() == 1 && axes[0] == time_))
    return differs("expected a sum of what the whole backward part has made, found one that it goes on with");
  for (size_t k = 0; k < axes.size(); ++k) {
    if (!divides_samples(axes[k]))
      return differs("expected a sum over parts of the samples, found one over ", name(axes[k]));
    const int64_t weight = weight_[static_cast<size_t>(axes[k])];
    for (int a : x.partial) {
      const bool later = std::find(axes.begin(), axes.end(), a) == axes.end();
      if (later && weight_[static_cast<size_t>(a)] < weight)
        return differs("expected the sum over ", name(a), ", whose samples are nearer, before that over ",
                       name(axes[k]));
    }
    // A group's ranks are numbered by their coordinates, the first axis outermost.
    if (k > 0 && (axes[k] < axes[k - 1] || weight >= weight_[static_cast<size_t>(axes[k - 1])]))
      return differs("expected a group whose ranks are in the order of their samples, found one over ",
                     name(axes[k - 1]), " and ", name(axes[k]));
  }
  return absl::OkStatus();
}

}  // namespace partita::verifier
