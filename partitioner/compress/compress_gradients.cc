#include "partitioner/compress/compress_gradients.h"

#include <map>
#include <set>

#include "ir/graph/builder.h"
#include "partitioner/compress/factor_gradients.h"
#include "partitioner/compress/gradient_sums.h"
#include "partitioner/compress/quantize_gradients.h"

namespace partita {
namespace {

constexpr int64_t kPowerSgdRank = 4;

CompressedGradients round_to_bf16(LocalProgram& program, const std::vector<int>& axes) {
  CompressedGradients done;
  const Graph& graph = program.graph;
  GradientSums sums(program, axes, /*accumulated=*/true);
  Rewriter r(graph);
  std::map<ValueId, ValueId> narrow_of;  // of sums that are summed on, across nodes: they are not widened in between
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!sums.contains(static_cast<NodeId>(n))) {
      r.copy(node);
      continue;
    }
    r.at(node);
    Builder& b = r.builder();
    auto narrow = narrow_of.find(node.inputs[0]);
    ValueId in = narrow != narrow_of.end() ? narrow->second : b.cast(r(node.inputs[0]), DType::kBF16);
    ValueId out = b.emit(node.op->name, {in}, node.attrs);
    narrow_of[node.outputs[0]] = out;
    if (!sums.is_summed_on(static_cast<NodeId>(n)))
      r.replace(node.outputs[0], b.cast(out, graph.type(node.outputs[0]).dtype));
    ++done.sums;
    const int64_t times = node.segment == Segment::kBackward ? program.micro_batches : 1;
    done.bytes += times * byte_size(b.type(in));
    done.plain_bytes += times * byte_size(graph.type(node.inputs[0]));
  }
  program.graph = std::move(r).finish();
  return done;
}

}  // namespace

CompressedGradients compress_gradients(LocalProgram& program, Compression kind, const std::vector<int>& axes,
                                       const BucketSizes& sizes) {
  if (kind == Compression::kBf16) return round_to_bf16(program, axes);
  if (kind == Compression::kInt8) return quantize_gradients(program, axes, sizes);
  if (kind == Compression::kPowerSgd) return factor_gradients(program, axes, kPowerSgdRank, sizes);
  return CompressedGradients{};
}

}  // namespace partita
