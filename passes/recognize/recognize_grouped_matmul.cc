#include "passes/recognize/recognize_grouped_matmul.h"

#include "passes/recognize/pattern.h"

namespace partita {
namespace {

// Matrices gathered from a stack.
struct GatheredMatrices {
  ValueId stack,
      indices;  // [e,…,…]; any shape (or [r,1], one coordinate each) of as many elements as there are matrices
  bool transposed = false;  // on their way to the product
};

bool same_matrices(const Shape& a, const Shape& b) {
  return a.size() >= 2 && b.size() >= 2 && std::equal(a.end() - 2, a.end(), b.end() - 2);
}

bool swaps_matrices(const std::vector<int64_t>& permutation) {
  const size_t r = permutation.size();
  for (size_t d = 0; d < r; ++d) {
    size_t from = d + 2 == r ? d + 1 : d + 1 == r ? d - 1 : d;
    if (permutation[d] != static_cast<int64_t>(from)) return false;
  }
  return r >= 2;
}

// Whether the node takes whole matrices along the first dimension of a stack of them, one for each index.
bool gathers_matrices(const GraphFacts& facts, const Node& node) {
  if (node.op->name == "gather") {
    if (node.attrs.i("dim") != 0) return false;
  } else if (node.op->name != "gather_nd" || node.attrs.i("batch_dims") != 0 ||
             facts.shape(node.inputs[1]).back() != 1) {
    return false;
  }
  return facts.type(node.inputs[0]).rank() == 3 && !facts.is_constant(node.inputs[1]);
}

std::optional<GatheredMatrices> gathered_matrices(const GraphFacts& facts, ValueId v) {
  bool transposed = false;
  while (const Node* node = facts.graph().producer(v)) {
    if (node->inputs.empty() || node->inputs[0] == kNoValue) return std::nullopt;
    const ValueId from = node->inputs[0];
    if (gathers_matrices(facts, *node)) {
      const bool larger = elements(facts.shape(v)) > elements(facts.shape(from));
      return larger ? std::optional(GatheredMatrices{from, node->inputs[1], transposed}) : std::nullopt;
    }
    if (node->op->name == "transpose" && swaps_matrices(node->attrs.ints("permutation"))) {
      transposed = !transposed;
    } else if (node->op->name == "cast") {
      if (!is_float(facts.type(from).dtype)) return std::nullopt;
    } else if (node->op->name != "reshape" || !same_matrices(facts.shape(from), facts.shape(v))) {
      return std::nullopt;
    }
    v = from;
  }
  return std::nullopt;
}

// [batch…, a, b] -> [batch…, b, a].
ValueId swap_last_two(Builder& b, ValueId v) {
  Shape s = b.shape(v);
  const size_t r = s.size();
  if (s[r - 1] == 1 || s[r - 2] == 1) {
    std::swap(s[r - 1], s[r - 2]);
    return b.reshape(v, std::move(s));
  }
  std::vector<int64_t> permutation(r);
  for (size_t d = 0; d < r; ++d) permutation[d] = static_cast<int64_t>(d);
  std::swap(permutation[r - 1], permutation[r - 2]);
  return b.transpose(v, permutation);
}

// The product without what it repeats itself, such as rows that several matrices are multiplied with; before it is
// differentiated, so that its gradients read the same.
ValueId least(Builder& b, ValueId y) {
  for (;;) {
    const Node node = *b.graph().producer(y);
    const std::vector<TensorType> types = input_types(b.graph(), node);
    const ValueId now = node.op->simpler({b, node.attrs, types, node.inputs, {}, {}});
    if (now == kNoValue) return y;
    y = now;
  }
}

// One product of `batch` matrices as one of rows: those of x [batch or 1…, m, k], or its columns where the gathered
// matrices (operand `gathered` of the product) stand on the left.
ValueId grouped(Rewriter& r, const GraphFacts& facts, const Node& node, size_t gathered, const GatheredMatrices& g) {
  Builder& b = r.builder();
  const bool left = gathered == 0;
  const ValueId other = node.inputs[1 - gathered], result = node.outputs[0];
  const bool other_turned = node.attrs.i(left ? "transpose_b" : "transpose_a", 0) != 0,
             turned = (node.attrs.i(left ? "transpose_a" : "transpose_b", 0) != 0) != g.transposed;
  const Shape &shape = facts.shape(result), &matrices = facts.shape(node.inputs[gathered]);
  const Shape batch(shape.begin(), shape.end() - 2);
  ValueId x = r(other);
  if (other_turned != left) x = swap_last_two(b, x);
  const int64_t m = b.shape(x)[shape.size() - 2], k = b.shape(x).back();
  Shape rows = batch;
  rows.insert(rows.end(), {m, k});
  x = b.reshape(b.broadcast_to(x, rows), {elements(batch) * m, k});
  // An index for each matrix, then for each row that it is multiplied with.
  Shape chosen(matrices.begin(), matrices.end() - 2), of_rows = batch;
  chosen.push_back(1);
  of_rows.push_back(m);
  ValueId indices = b.reshape(b.broadcast_to(b.reshape(r(g.indices), chosen), of_rows), {elements(batch) * m});
  ValueId w = b.cast(r(g.stack), b.dtype(x));
  // y = x w; with w on the left, y^T = x^T w^T.
  ValueId y = least(b, b.emit("grouped_matmul", {x, w, indices}, {{"transpose_b", int64_t{turned != left}}}));
  rows.back() = b.shape(y).back();
  y = b.reshape(y, rows);
  return left ? swap_last_two(b, y) : y;
}

}  // namespace

absl::StatusOr<Graph> recognize_grouped_matmul(const Graph& graph, const PassContext& context) {
  return replace_all(graph, context, [&](const GraphFacts& facts, const Node& node) -> std::optional<Replacement> {
    if (node.op->name != "matmul" || !is_float(facts.type(node.outputs[0]).dtype)) return std::nullopt;
    for (size_t k : {0, 1}) {
      auto g = gathered_matrices(facts, node.inputs[k]);
      if (!g) continue;
      auto emit = [&facts, &node, k, g = *g](Rewriter& r) { return grouped(r, facts, node, k, g); };
      return Replacement{{facts.id(node)}, node.outputs[0], emit};
    }
    return std::nullopt;
  });
}

}  // namespace partita
