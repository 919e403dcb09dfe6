#include "passes/recognize/attention_operand.h"

#include <algorithm>

namespace partita {
namespace {

constexpr int kMaxSteps = 32;  // ops looked through

// Takes one constant factor off `v` and into `scale`.
bool unscaled(const GraphFacts& facts, ValueId& v, double& scale) {
  const Node *mul = facts.made_by(v, "mul"), *div = facts.made_by(v, "div"), *node = mul ? mul : div;
  if (!node) return false;
  for (int k : {0, 1}) {
    auto n = facts.number(node->inputs[1 - k]);
    if (!n || (div && k == 1) || facts.type(node->inputs[k]) != facts.type(v)) continue;
    scale = mul ? scale * *n : scale / *n;
    v = node->inputs[k];
    return true;
  }
  return false;
}

// One step towards the value before the transpose of its matrices.
bool turned(const GraphFacts& facts, AttentionOperand& o) {
  if (const Node* reshape = facts.made_by(o.base, "reshape");
      reshape && keeps_matrix(facts.shape(reshape->inputs[0]), facts.shape(o.base))) {
    o.base = reshape->inputs[0];
    return true;
  }
  const Node* transpose = facts.made_by(o.base, "transpose");
  if (!transpose) return false;
  std::vector<int64_t> p = transpose->attrs.ints("permutation");
  std::swap(p[p.size() - 1], p[p.size() - 2]);
  o.base = transpose->inputs[0];
  o.swap = false;
  if (!std::is_sorted(p.begin(), p.end())) o.permutation = std::move(p);
  return true;
}

}  // namespace

bool keeps_matrix(const Shape& a, const Shape& b) {
  return a.size() >= 2 && b.size() >= 2 && a.back() == b.back() && a[a.size() - 2] == b[b.size() - 2];
}

ValueId before_reshapes(const GraphFacts& facts, ValueId v) {
  for (int steps = 0; steps < 16; ++steps) {
    const Node* reshape = facts.made_by(v, "reshape");
    if (!reshape) break;
    v = reshape->inputs[0];
  }
  return v;
}

std::optional<AttentionOperand> before_repeat(const GraphFacts& facts, ValueId v, int64_t batch, int64_t heads) {
  const Node* broadcast = facts.made_by(before_reshapes(facts, v), "broadcast");
  if (!broadcast) return std::nullopt;
  const Shape &from = facts.shape(broadcast->inputs[0]), &to = facts.shape(broadcast->outputs[0]);
  if (from.size() != 5 || to.size() != 5 || from[2] != 1 || to[0] != batch || to[1] * to[2] != heads)
    return std::nullopt;
  for (size_t d : {0, 1, 3, 4}) {
    if (from[d] != to[d]) return std::nullopt;
  }
  return AttentionOperand{before_reshapes(facts, broadcast->inputs[0]), {}, false, to[1]};
}

std::optional<AttentionOperand> find_operand(const GraphFacts& facts, ValueId v, int64_t batch, int64_t heads,
                                             bool swap, double* scale) {
  const Shape& s = facts.shape(v);
  if (s.size() == 4 ? s[0] != batch || (s[1] != heads && s[1] != 1) : s[0] != batch * heads) return std::nullopt;
  AttentionOperand o{v, {}, swap, s.size() == 4 ? s[1] : heads};
  for (int steps = 0; steps < kMaxSteps; ++steps) {
    if (scale && unscaled(facts, o.base, *scale)) continue;
    if (!o.swap || !turned(facts, o)) break;
  }
  if (o.swap || !o.permutation.empty()) return o;
  if (o.heads == heads) {
    if (auto repeated = before_repeat(facts, o.base, batch, heads)) return repeated;
  }
  o.base = before_reshapes(facts, o.base);
  return o;
}

AttentionOperand whole_operand(const GraphFacts& facts, ValueId v, int64_t heads, bool swap) {
  double in_scale_already = 1;
  for (int steps = 0; steps < kMaxSteps && unscaled(facts, v, in_scale_already); ++steps) {
  }
  return {v, {}, swap, facts.shape(v).size() == 4 ? facts.shape(v)[1] : heads};
}

ValueId AttentionOperand::emit(Rewriter& r, int64_t batch, int64_t rows, int64_t columns) const {
  Builder& b = r.builder();
  ValueId v = r(base);
  if (!permutation.empty()) v = b.transpose(v, permutation);
  if (!swap) return b.reshape(v, {batch, heads, rows, columns});
  return b.transpose(b.reshape(v, {batch, heads, columns, rows}), {0, 1, 3, 2});
}

}  // namespace partita
