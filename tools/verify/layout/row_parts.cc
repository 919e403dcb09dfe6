#include "tools/verify/layout/row_parts.h"

#include <algorithm>
#include <optional>

#include "base/cat.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

// One of `count` equal parts of a dimension.
struct TakenPart {
  int dim = 0;
  int64_t count = 1, index = 0;
};

std::optional<TakenPart> taken_part(const Graph& g, const Node& node) {
  if (node.op->name != "slice") return std::nullopt;
  const Shape &from = g.type(node.inputs[0]).shape, &to = g.type(node.outputs[0]).shape;
  const std::vector<int64_t>&starts = node.attrs.ints("starts"), &strides = node.attrs.ints("strides");
  std::optional<TakenPart> part;
  for (size_t d = 0; d < from.size(); ++d) {
    if (strides[d] != 1) return std::nullopt;
    if (to[d] == from[d]) continue;
    if (part || to[d] == 0 || from[d] % to[d] != 0 || starts[d] % to[d] != 0) return std::nullopt;
    part = TakenPart{static_cast<int>(d), from[d] / to[d], starts[d] / to[d]};
  }
  return part;
}

bool same(const IndexMap& a, const IndexMap& b) {
  return a.root == b.root && a.digits == b.digits && a.axes == b.axes && a.through == b.through &&
         a.partial == b.partial && a.kind == b.kind && a.sliced == b.sliced && a.summed == b.summed;
}

}  // namespace

RowParts::RowParts(const Graph& local, Mesh& mesh) : g_(local) {
  for (const Node& node : local.nodes) {
    const auto part = taken_part(local, node);
    if (!part || !axis_of_.try_emplace(part->count, static_cast<int>(mesh.axes.size())).second) continue;
    mesh.axes.push_back({cat("part of ", part->count), part->count});
  }
}

bool RowParts::visit(const Node& node, std::vector<IndexMap>& layouts, const Mesh& mesh, const IsView& is_view) {
  if (!take(node, layouts, mesh, is_view) && !join(node, layouts, mesh)) return false;
  moved_ = &node;
  return true;
}

bool RowParts::take(const Node& node, std::vector<IndexMap>& layouts, const Mesh& mesh, const IsView& is_view) {
  const auto part = taken_part(g_, node);
  if (!part || layouts[node.inputs[0]].root < 0 || at_.count(node.inputs[0])) return false;
  const int axis = axis_of_.at(part->count);
  auto result = sliced_by(layouts[node.inputs[0]], g_.type(node.inputs[0]).shape, part->dim, axis, mesh, is_view);
  if (!result.ok()) return false;
  if (result->depends_on(axis)) at_[node.outputs[0]] = {axis, part->index};
  layouts[node.outputs[0]] = *std::move(result);
  return true;
}

bool RowParts::join(const Node& node, std::vector<IndexMap>& layouts, const Mesh& mesh) {
  const ValueId first = node.inputs[0];
  const auto count = static_cast<int64_t>(node.inputs.size());
  if (node.op->name != "concat" || layouts[first].root < 0) return false;
  const auto begin = at_.find(first);
  for (int64_t k = 0; k < count; ++k) {
    const ValueId v = node.inputs[static_cast<size_t>(k)];
    const auto at = at_.find(v);
    if (g_.type(v) != g_.type(first) || !same(layouts[v], layouts[first]) || (at == at_.end()) != (begin == at_.end()))
      return false;
    if (at != at_.end() && at->second != Place{begin->second.first, k}) return false;
  }
  IndexMap whole = layouts[first];
  if (begin == at_.end()) {
    whole.digits.insert(whole.digits.begin(), Digit{count, 0});  // one value several times
  } else {
    if (mesh.axes[static_cast<size_t>(begin->second.first)].size != count) return false;
    auto result = gathered(whole, {begin->second.first}, mesh);
    if (!result.ok()) return false;
    whole = *std::move(result);
  }
  Shape apart = g_.type(first).shape;
  std::vector<int64_t> order;
  for (int64_t d = 1; d <= static_cast<int64_t>(apart.size()); ++d) order.push_back(d);
  order.insert(order.begin() + node.attrs.i("dim"), 0);
  apart.insert(apart.begin(), count);
  auto result = transposed(whole, apart, order);
  if (!result.ok()) return false;
  layouts[node.outputs[0]] = *std::move(result);
  return true;
}

absl::Status RowParts::follow(const Node& node, const std::vector<IndexMap>& layouts, const Mesh& mesh) {
  if (moved_ == &node) return absl::OkStatus();
  std::optional<Place> place;
  for (ValueId v : node.inputs) {
    const auto at = v == kNoValue ? at_.end() : at_.find(v);
    if (at == at_.end()) continue;
    if (place && *place != at->second)
      return differs("expected operands of one part of rows, found ", mesh.axes[place->first].name, ": ", place->second,
                     ", and ", mesh.axes[at->second.first].name, ": ", at->second.second);
    place = at->second;
  }
  if (!place) return absl::OkStatus();
  for (ValueId v : node.outputs) {
    if (layouts[v].is_partial(place->first)) return differs("expected a sum over all rows, found one over a part");
    if (layouts[v].depends_on(place->first)) at_[v] = *place;
  }
  return absl::OkStatus();
}

}  // namespace partita::verifier
