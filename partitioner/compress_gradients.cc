#include "partitioner/compress_gradients.h"

#include <algorithm>
#include <map>
#include <set>

#include "ir/builder.h"
#include "partitioner/late_reads.h"

namespace partita {
namespace {

bool is_gradient_sum(const LocalProgram& program, const LateReads& reads, const Node& node,
                     const std::vector<int>& axes) {
  if (node.segment < Segment::kBackward || node.segment > Segment::kUpdate || !reads.is_joint(node)) return false;
  if (node.attrs.s("reduce", "") != "sum") return false;
  const std::vector<int64_t>& over = node.attrs.ints("axes");
  bool samples = std::any_of(axes.begin(), axes.end(), [&](int a) { return std::count(over.begin(), over.end(), a); });
  const TensorType& type = program.graph.type(node.outputs[0]);
  bool wide = type.dtype == DType::kF32 || type.dtype == DType::kF64;
  // In backward, the others are of activations: something there computes with them.
  return samples && wide && elements(type.shape) > 1 && (node.segment > Segment::kBackward || reads.are_late(node));
}

}  // namespace

std::vector<int> sample_axes(const ShardingPlan& plan) {
  std::set<int> axes(plan.slice_axes.begin(), plan.slice_axes.end());
  for (const Sharding& s : plan.inputs) {
    if (s.dims.empty()) continue;
    for (const Piece& p : s.dims[0]) axes.insert(p.axes.begin(), p.axes.end());
  }
  axes.erase(plan.mesh.time);
  return {axes.begin(), axes.end()};
}

CompressedGradients compress_gradients(LocalProgram& program, Compression kind, const std::vector<int>& axes) {
  CompressedGradients done;
  if (kind == Compression::kNone) return done;
  const Graph& graph = program.graph;
  LateReads reads(program);
  auto readers = uses(graph);
  Rewriter r(graph);
  std::map<ValueId, ValueId> narrow_of;  // of sums that are summed on, across nodes: they are not widened in between
  for (const Node& node : graph.nodes) {
    if (!is_gradient_sum(program, reads, node, axes)) {
      r.copy(node);
      continue;
    }
    r.at(node);
    Builder& b = r.builder();
    auto narrow = narrow_of.find(node.inputs[0]);
    ValueId in = narrow != narrow_of.end() ? narrow->second : b.cast(r(node.inputs[0]), DType::kBF16);
    ValueId out = b.emit(node.op->name, {in}, node.attrs);
    narrow_of[node.outputs[0]] = out;
    const auto& next = readers[node.outputs[0]];
    bool sent_on = !next.empty() && std::all_of(next.begin(), next.end(), [&](NodeId n) {
      return is_gradient_sum(program, reads, graph.nodes[n], axes);
    });
    if (!sent_on) r.replace(node.outputs[0], b.cast(out, graph.type(node.outputs[0]).dtype));
    ++done.sums;
    done.bytes += byte_size(b.type(in));
    done.plain_bytes += byte_size(graph.type(node.inputs[0]));
  }
  program.graph = std::move(r).finish();
  return done;
}

}  // namespace partita
