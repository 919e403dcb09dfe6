#include "partitioner/compress/gradient_rewriter.h"

#include <algorithm>
#include <utility>

#include "base/cat.h"

namespace partita {

GradientRewriter::GradientRewriter(LocalProgram& program, const std::vector<int>& axes)
    : program_(program),
      graph_(program.graph),
      sums_(program, axes, /*accumulated=*/false),
      r_(program.graph),
      b_(r_.builder()) {
  for (size_t a = 0; a < program.mesh.axes.size(); ++a) {
    const int axis = static_cast<int>(a);
    const bool here = program.stage.axis < 0 || program.mesh.has(axis, program.stage.index);
    if (axis != program.stage.axis && axis != program.mesh.time && here) rank_axes_.push_back(axis);
    append(layout_, a > 0 ? "x" : "", program.mesh.axes[a].name, program.mesh.axes[a].size);
  }
  if (program.stage.axis >= 0) append(layout_, "/stage", program.stage.index);
}

CompressedGradients GradientRewriter::run() {
  std::vector<bool> taken(graph_.nodes.size(), false);
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (n > 0 && !same_part(graph_.nodes[n - 1], node)) flush();
    if (taken[n]) continue;
    if (sums_.contains(static_cast<NodeId>(n))) {
      if (!is_ready(node)) flush();
      GradientSum sum = sums_.from(static_cast<NodeId>(n));
      const bool opened = open(sum);
      any_open_ = any_open_ || opened;
      for (NodeId m : sum.nodes) taken[static_cast<size_t>(m)] = opened;
      if (opened) continue;
    }
    if (!is_ready(node) && node.segment == Segment::kBackward) {
      waiting_.push_back(&node);
      continue;
    }
    if (!is_ready(node)) flush();
    copy(node);
  }
  flush();
  program_.graph = std::move(r_).finish();
  sort_by_execution(program_.graph, program_.stage);
  return done_;
}

void GradientRewriter::flush() {
  if (!std::exchange(any_open_, false)) return;
  close();
  for (const Node* node : std::exchange(waiting_, {})) copy(*node);
}

bool GradientRewriter::same_part(const Node& a, const Node& b) const {
  return a.segment == b.segment && program_.stage.phase(a) == program_.stage.phase(b);
}

bool GradientRewriter::is_ready(const Node& node) const {
  return std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return r_.has(v); });
}

// Not before what it reads: the segment after backward, for what moves or converts a sum there.
void GradientRewriter::copy(const Node& node) {
  Node moved = node;
  for (ValueId v : node.inputs) {
    const Node* from = v == kNoValue ? nullptr : b_.graph().producer(r_(v));
    if (from != nullptr) moved.segment = std::max(moved.segment, from->segment);
  }
  if (moved.segment != node.segment) moved.weight_gradient = false, moved.chunk = 0;
  r_.copy(moved);
}

std::string GradientRewriter::state_name(const GradientSum& sum, const std::string& what) {
  std::string parameter = sums_.parameter_of(sum);
  const std::string name = cat("compress/", layout_, "/", parameter.empty() ? "gradient" : parameter, "/", what);
  std::string unique = name;
  for (int k = 2; !names_.insert(unique).second; ++k) unique = cat(name, k);
  return unique;
}

ValueId GradientRewriter::coordinate(int64_t axis) {
  const std::string& name = program_.mesh.axes[static_cast<size_t>(axis)].name;
  for (const GraphInput& in : b_.graph().inputs) {
    if (in.kind == InputKind::kCoordinate && in.name == name) return in.value;
  }
  program_.inputs.push_back({{}, Sharding{}});
  return b_.input(name, {DType::kI64, {}}, InputKind::kCoordinate);
}

ValueId GradientRewriter::part(ValueId v, int dim, int64_t begin, int64_t end) {
  Shape limits = b_.shape(v), starts(limits.size(), 0), strides(limits.size(), 1);
  if (begin == 0 && end == limits[static_cast<size_t>(dim)]) return v;
  starts[static_cast<size_t>(dim)] = begin, limits[static_cast<size_t>(dim)] = end;
  return b_.emit("slice", {v}, {{"starts", starts}, {"limits", limits}, {"strides", strides}});
}

std::vector<int64_t> GradientRewriter::alike_along(const GradientSum& sum) const {
  std::vector<int64_t> axes = sum.axes;
  const std::string parameter = sums_.parameter_of(sum);
  for (size_t k = 0; k < graph_.states.size(); ++k) {
    if (graph_.states[k].name != parameter) continue;
    for (int a : rank_axes_) {
      if (!program_.states[k].sharding.is_split_by(a)) axes.push_back(a);
    }
  }
  return axes;
}

ValueId GradientRewriter::kept_state(const std::string& name, TensorType type, InitialRule initial,
                                     const std::vector<int64_t>& shared) {
  std::vector<int> axes;
  for (int a : rank_axes_) {
    if (std::count(shared.begin(), shared.end(), a) == 0) axes.push_back(a);
  }
  const int64_t owners = program_.mesh.ways(axes);
  PlacedTensor placed{type.shape, Sharding::replicated(type.shape)};
  placed.logical.insert(placed.logical.begin(), owners);
  placed.sharding.dims.insert(placed.sharding.dims.begin(), {Piece{owners, axes}});
  Shape own = type.shape;
  own.insert(own.begin(), 1);
  b_.state({.name = name, .kind = StateKind::kOptimizer, .parameter = {}, .initial = std::move(initial)},
           {type.dtype, std::move(own)});
  program_.states.push_back(std::move(placed));
  return b_.reshape(b_.graph().states.back().value, type.shape);
}

void GradientRewriter::keep(const std::string& name, ValueId value) {
  Shape own = b_.shape(value);
  own.insert(own.begin(), 1);
  b_.set_next(name, b_.reshape(value, std::move(own)));
}

ValueId GradientRewriter::with_remainder(const GradientSum& sum, ValueId x, std::string& remainder) {
  remainder = state_name(sum, "residual");
  return b_.add(x, kept_state(remainder, b_.type(x), {}, {}));
}

void GradientRewriter::later(const GradientSum& sum, Segment segment) {
  const Node& last = graph_.nodes[sum.nodes.back()];
  b_.context() = {
      .segment = std::max(last.segment, segment), .origin = last.origin, .block = last.block, .device = last.device};
}

void GradientRewriter::after_backward(const GradientSum& sum) { later(sum, Segment::kReduce); }

void GradientRewriter::in_update(const GradientSum& sum) { later(sum, Segment::kUpdate); }

void GradientRewriter::replace(const GradientSum& sum, ValueId value) {
  r_.replace(graph_.nodes[sum.nodes.back()].outputs[0], value);
}

}  // namespace partita
