#include "tools/verify/undo/undo_compression.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/recipe/recipe.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/serial_values.h"
#include "tools/verify/undo/undo_factorization.h"
#include "tools/verify/undo/undo_quantization.h"

namespace partita::verifier {
namespace {

bool is_wide(DType type) { return type == DType::kF32 || type == DType::kF64; }

class Bf16Sums {
 public:
  explicit Bf16Sums(const Graph& graph)
      : g_(graph), readers_(uses(graph)), is_sum_(graph.nodes.size(), false), wide_(graph.values.size(), kNoValue) {
    for (size_t n = 0; n < g_.nodes.size(); ++n) is_sum_[n] = sums_narrowed(g_.nodes[n]);
    // What is left out takes the sums with it that it reads or that read it.
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t n = 0; n < g_.nodes.size(); ++n) {
        if (!is_sum_[n] || (sums_narrowed(g_.nodes[n]) && is_widened(g_.nodes[n]))) continue;
        is_sum_[n] = false;
        changed = true;
      }
    }
  }

  Uncompressed undo() {
    Uncompressed out;
    Rewriter r(g_);
    for (size_t n = 0; n < g_.nodes.size(); ++n) {
      const Node& node = g_.nodes[n];
      size_t before = r.builder().graph().nodes.size();
      if (is_sum_[n]) {
        emit_sum(r, node);
        out.sums += static_cast<int64_t>(node.inputs.size());
      } else if (is_cast(node) && is_sum(producer(node.inputs[0]))) {
        r.at(node);  // no cast at all where the types are equal
        r.replace(node.outputs[0], r.builder().cast(wide_[node.inputs[0]], g_.type(node.outputs[0]).dtype));
      } else if (!is_narrowing(static_cast<NodeId>(n)) || !read_by_sums(node.outputs[0])) {
        r.copy(node);
      }
      for (size_t k = before; k < r.builder().graph().nodes.size(); ++k) out.from.push_back(static_cast<NodeId>(n));
    }
    out.graph = std::move(r).finish();
    return out;
  }

 private:
  static bool is_cast(const Node& node) { return node.op->name == "cast"; }
  NodeId producer(ValueId v) const { return g_.values[v].producer; }
  bool is_sum(NodeId n) const { return n != kNoNode && is_sum_[n]; }
  bool is_narrowing(NodeId n) const {
    return n != kNoNode && is_cast(g_.nodes[n]) && is_wide(g_.type(g_.nodes[n].inputs[0]).dtype) &&
           g_.type(g_.nodes[n].outputs[0]).dtype == DType::kBF16;
  }

  bool sums_narrowed(const Node& node) const {
    if (!node.op->communicates || node.attrs.s("reduce", "") != "sum" || node.segment < Segment::kBackward)
      return false;
    return std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId v) { return is_narrowing(producer(v)) || is_sum(producer(v)); });
  }

  // Whether all that reads the results sums them on or makes them wide again, for later segments.
  bool is_widened(const Node& node) const {
    for (ValueId v : node.outputs) {
      for (NodeId n : readers_[v]) {
        if (is_sum_[n]) continue;
        const Node& reader = g_.nodes[n];
        if (!is_cast(reader) || !is_wide(g_.type(reader.outputs[0]).dtype)) return false;
        if (node.segment == Segment::kBackward && !read_later(reader.outputs[0], node.segment) &&
            !is_accumulated(reader.outputs[0]))
          return false;
      }
    }
    return true;
  }

  bool read_by_sums(ValueId v) const {
    return !readers_[v].empty() &&
           std::all_of(readers_[v].begin(), readers_[v].end(), [&](NodeId n) { return is_sum(n); });
  }

  // What a node that reads `v` leaves of it: moved, also between ranks, summed on over other ranks, or narrowed for
  // that.
  static ValueId left_of(ValueId v, const Node& reader) {
    const Movement how = movement_of(*reader.op);
    if (how == Movement::kView || how == Movement::kTranspose || is_cast(reader)) return reader.outputs[0];
    const bool moves = reader.op->name == "all_gather" || reader.op->name == "all_to_all";
    if (!reader.op->communicates || (!moves && reader.attrs.s("reduce", "") != "sum")) return kNoValue;
    return reader.outputs[static_cast<size_t>(std::ranges::find(reader.inputs, v) - reader.inputs.begin())];
  }

  bool read_later(ValueId v, Segment than) const {
    return std::all_of(readers_[v].begin(), readers_[v].end(), [&](NodeId n) {
      const Node& reader = g_.nodes[n];
      const ValueId left = left_of(v, reader);
      return reader.segment > than || (left != kNoValue && read_later(left, than));
    });
  }

  // Whether it is only summed up over micro-batches.
  bool is_accumulated(ValueId v) const {
    return !readers_[v].empty() && std::all_of(readers_[v].begin(), readers_[v].end(), [&](NodeId n) {
      const Node& reader = g_.nodes[n];
      if (const ValueId left = left_of(v, reader); left != kNoValue) return is_accumulated(left);
      return reader.op->name == "accumulate" && reader.inputs[1] == v;
    });
  }

  void emit_sum(Rewriter& r, const Node& node) {
    r.at(node);
    std::vector<ValueId> in;
    for (ValueId v : node.inputs) {
      in.push_back(is_sum(producer(v)) ? wide_[v] : r(g_.nodes[producer(v)].inputs[0]));
    }
    std::vector<ValueId> out = r.builder().emit_all(node.op->name, std::move(in), node.attrs);
    for (size_t k = 0; k < out.size(); ++k) {
      wide_[node.outputs[k]] = out[k];
      r.replace(node.outputs[k], out[k]);
    }
  }

  const Graph& g_;
  std::vector<std::vector<NodeId>> readers_;
  std::vector<bool> is_sum_;
  std::vector<ValueId> wide_;  // per narrow sum, the sum in the new graph
};

// What is rewritten has to be sound: every result of the type that its op gives.
absl::Status check_types(const Graph& g) {
  for (const Node& node : g.nodes) {
    std::vector<TensorType> inputs = input_types(g, node);
    auto types = infer_types(*node.op, {node.attrs, inputs});
    if (!types.ok()) return differs(quote(g.origin(node)), ": ", types.status().message());
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (g.type(node.outputs[k]) != (*types)[k])
        return differs(quote(g.origin(node)), ": expected ", to_string((*types)[k]), ", found ",
                       to_string(g.type(node.outputs[k])));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Uncompressed> undo_compression(const Graph& ranks, std::string_view kind) {
  const std::optional<Compression> compression = parse_enum<Compression>(kind);
  if (!compression)
    return absl::InvalidArgumentError(cat("compress: expected none, bf16, int8 or powersgd, found ", quote(kind)));
  if (*compression != Compression::kNone) PARTITA_RETURN_IF_ERROR(check_types(ranks));
  switch (*compression) {
    case Compression::kNone:
      break;
    case Compression::kBf16:
      return Bf16Sums(ranks).undo();
    case Compression::kInt8:
      return undo_quantization(ranks);
    case Compression::kPowerSgd:
      return undo_factorization(ranks);
  }
  Uncompressed same{.graph = ranks};
  for (size_t n = 0; n < ranks.nodes.size(); ++n) same.from.push_back(static_cast<NodeId>(n));
  return same;
}

}  // namespace partita::verifier
