#include "passes/recognize/recognize_attention.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "passes/recognize/attention_mask_operand.h"
#include "passes/recognize/attention_operand.h"
#include "passes/recognize/pattern.h"

namespace partita {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- The spelling.

struct Spelling {
  std::vector<NodeId> nodes;
  std::vector<MaskTerm> masks;
  const Node* scores = nullptr;  // the product of queries and keys
  double scale = 1;
  Shape lead;  // [b, h], once a value of rank 4 has told it
};

class SpellingFinder {
 public:
  explicit SpellingFinder(const GraphFacts& facts) : facts_(facts) {}

  // From the product of probabilities and values back to that of queries and keys.
  std::optional<Spelling> find(const Node& product) {
    Spelling s;
    s.nodes.push_back(facts_.id(product));
    ValueId p = product.inputs[0];
    note_shape(s, p);
    for (int steps = 0; steps < 16; ++steps) {
      const Node* node = facts_.graph().producer(p);
      if (!node) return std::nullopt;
      s.nodes.push_back(facts_.id(*node));
      if (node->op->name == "softmax") {
        if (node->attrs.i("dim") != facts_.type(p).rank() - 1) return std::nullopt;
        note_shape(s, p);
        if (!scores(s, node->inputs[0]) || !s.scores) return std::nullopt;
        return s;
      }
      if (passes(*node)) {
        p = node->inputs[0];
      } else if (ValueId guarded = guarded_by_nan(s, *node); guarded != kNoValue) {
        p = guarded;
      } else {
        return std::nullopt;
      }
      note_shape(s, p);
    }
    return std::nullopt;
  }

 private:
  void note_shape(Spelling& s, ValueId v) const {
    const Shape& shape = facts_.shape(v);
    if (shape.size() == 4) s.lead = {shape[0], shape[1]};
  }

  // Casts between floats, and reshapes of the dimensions before the matrix.
  bool passes(const Node& node) const {
    const TensorType &from = facts_.type(node.inputs[0]), &to = facts_.type(node.outputs[0]);
    if (node.op->name == "cast") return is_float(from.dtype) && is_float(to.dtype);
    return node.op->name == "reshape" && keeps_matrix(from.shape, to.shape) && from.rank() >= 3 && from.rank() <= 4 &&
           to.rank() >= 3 && to.rank() <= 4;
  }

  // select(is_nan(p), 0, p).
  ValueId guarded_by_nan(Spelling& s, const Node& node) const {
    if (node.op->name != "select" || facts_.number(node.inputs[1]) != 0.0) return kNoValue;
    const Node* nan = facts_.made_by(node.inputs[0], "is_nan");
    if (!nan || nan->inputs[0] != node.inputs[2]) return kNoValue;
    s.nodes.push_back(facts_.id(*nan));
    return node.inputs[2];
  }

  bool scores(Spelling& s, ValueId v) {
    if (++visited_ > 200) return false;
    const Node* node = facts_.graph().producer(v);
    if (!node || facts_.graph().values[v].output != 0) return false;
    Spelling before = s;
    s.nodes.push_back(facts_.id(*node));
    note_shape(s, v);
    std::string_view op = node->op->name;
    if (op == "matmul") {
      s.scores = node;
      return true;
    }
    bool found = passes(*node)                ? scores(s, node->inputs[0])
                 : op == "mul" || op == "div" ? scaled(s, *node)
                 : op == "add"                ? added(s, *node)
                                              : op == "select" && selected(s, *node);
    if (!found) s = std::move(before);
    return found;
  }

  bool scaled(Spelling& s, const Node& node) {
    for (int k : {0, 1}) {
      auto n = facts_.number(node.inputs[1 - k]);
      if (!n || (node.op->name == "div" && k == 1) || facts_.shape(node.inputs[k]) != facts_.shape(node.outputs[0]))
        continue;
      s.scale = node.op->name == "mul" ? s.scale * *n : s.scale / *n;
      return scores(s, node.inputs[k]);
    }
    return false;
  }

  bool added(Spelling& s, const Node& node) {
    if (s.scale != 1) return false;  // a scale outside would be the mask's too
    for (int k : {0, 1}) {
      if (facts_.shape(node.inputs[k]) != facts_.shape(node.outputs[0])) continue;
      Spelling before = s;
      s.masks.push_back({.value = node.inputs[1 - k], .rank = facts_.type(node.outputs[0]).rank()});
      if (scores(s, node.inputs[k])) return true;
      s = std::move(before);
    }
    return false;
  }

  bool selected(Spelling& s, const Node& node) {
    if (s.scale != 1) return false;
    for (int k : {1, 2}) {
      auto fill = facts_.number(node.inputs[3 - k]);
      if (!fill || *fill > -1e4 || facts_.shape(node.inputs[k]) != facts_.shape(node.outputs[0])) continue;
      s.masks.push_back({node.inputs[0], false, k == 2, *fill, facts_.type(node.outputs[0]).rank()});
      return scores(s, node.inputs[k]);
    }
    return false;
  }

  const GraphFacts& facts_;
  int visited_ = 0;
};

// Sums taken apart: each term is a mask of its own.
std::vector<MaskTerm> single_terms(const GraphFacts& facts, std::vector<MaskTerm> terms) {
  for (size_t k = 0; k < terms.size() && terms.size() < 64;) {
    const Node* add = terms[k].added ? facts.made_by(terms[k].value, "add") : nullptr;
    if (!add) {
      ++k;
      continue;
    }
    MaskTerm second = terms[k];
    terms[k].value = add->inputs[0];
    second.value = add->inputs[1];
    terms.push_back(second);
  }
  return terms;
}

// --- Both together: an attention op to make.

struct Attention {
  AttentionOperand q, k, v;
  int64_t batch, heads, queries, keys, features, value_features;
  double scale;
  AttentionMasks masks;
  TensorType result;

  ValueId emit(Rewriter& r) const {
    Builder& b = r.builder();
    std::vector<ValueId> in = {q.emit(r, batch, queries, features), k.emit(r, batch, keys, features),
                               v.emit(r, batch, keys, value_features)};
    ValueId mask = masks.emit(r, batch, heads, b.dtype(in[0]));
    if (mask != kNoValue) in.push_back(mask);
    ValueId y = b.emit_all("attention", in, {{"scale", scale}, {"causal", int64_t{masks.causal}}})[0];
    return b.cast(b.reshape(y, result.shape), result.dtype);
  }
};

class Recogniser {
 public:
  explicit Recogniser(const GraphFacts& facts) : facts_(facts) {}

  std::optional<Replacement> spelled(const Node& product) {
    if (facts_.type(product.outputs[0]).rank() < 3 || product.attrs.i("transpose_a", 0) != 0) return std::nullopt;
    auto s = SpellingFinder(facts_).find(product);
    if (!s || s->scores->attrs.i("transpose_a", 0) != 0 || !is_closed(facts_, s->nodes, product.outputs[0]))
      return std::nullopt;
    ValueId queries = s->scores->inputs[0], keys = s->scores->inputs[1], values = product.inputs[1];
    const Shape& scores = facts_.shape(s->scores->outputs[0]);
    DType type = facts_.type(queries).dtype;
    if (facts_.type(keys).dtype != type || facts_.type(values).dtype != type || scores.size() > 4 ||
        facts_.shape(values).size() > 4)
      return std::nullopt;
    Attention a;
    a.result = facts_.type(product.outputs[0]);
    if (s->lead.empty()) s->lead = lead_of(queries, scores[0]);
    a.batch = s->lead[0], a.heads = s->lead[1];
    a.queries = scores[scores.size() - 2], a.keys = scores.back();
    a.features = facts_.shape(queries).back(), a.value_features = a.result.shape.back();
    a.scale = s->scale;
    Shape q_lead(facts_.shape(queries).begin(), facts_.shape(queries).end() - 2),
        lead(scores.begin(), scores.end() - 2);
    if (q_lead != lead || !operands(a, queries, keys, values, s->scores->attrs.i("transpose_b", 0) == 0,
                                    product.attrs.i("transpose_b", 0) != 0))
      return std::nullopt;
    auto masks = simplified(analysis(a.queries, a.keys), single_terms(facts_, s->masks));
    if (!masks || !std::isfinite(a.scale) || a.heads % a.k.heads != 0) return std::nullopt;
    a.masks = *std::move(masks);
    return Replacement{s->nodes, product.outputs[0], [a](Rewriter& r) { return a.emit(r); }};
  }

  // An attention op that says more than it must.
  std::optional<Replacement> simpler(const Node& node) {
    std::vector<NodeId> nodes = {facts_.id(node)};
    if (!is_closed(facts_, nodes, node.outputs[0])) return std::nullopt;
    const Shape &q = facts_.shape(node.inputs[0]), &k = facts_.shape(node.inputs[1]);
    ValueId mask = node.inputs.size() > 3 ? node.inputs[3] : kNoValue;
    Attention a;
    a.result = facts_.type(node.outputs[0]);
    a.batch = q[0], a.heads = q[1], a.queries = q[2], a.keys = k[2], a.features = q[3],
    a.value_features = a.result.shape[3];
    a.scale = node.attrs.f("scale");
    a.q = {node.inputs[0], {}, false, q[1]}, a.k = {node.inputs[1], {}, false, k[1]},
    a.v = {node.inputs[2], {}, false, k[1]};
    bool grouped = k[1] == q[1] && ungrouped(a);
    bool causal = node.attrs.i("causal", 0) != 0,
         bool_mask = mask != kNoValue && facts_.type(mask).dtype == DType::kBool;
    std::vector<MaskTerm> terms;
    if (mask != kNoValue) terms.push_back({mask, !bool_mask, false, bool_mask ? -kInfinity : 0, 4});
    auto masks = simplified(analysis(a.queries, a.keys), bool_mask ? terms : single_terms(facts_, terms));
    bool changed = masks && mask != kNoValue &&
                   !(masks->conditions.size() == 1 && masks->conditions[0].condition.value == mask) &&
                   !(masks->added.size() == 1 && masks->added[0].value == mask);
    if (causal && masks && (!masks->added.empty() || masks->causal))
      changed = false;  // low numbers and causality together: leave as it is
    if (!grouped && !changed) return std::nullopt;
    if (changed) {
      a.masks = *std::move(masks);
      a.masks.causal |= causal;
    } else {
      a.masks.causal = causal;
      if (bool_mask)
        a.masks.conditions.push_back({{mask, false}, 4});
      else if (mask != kNoValue)
        a.masks.added.push_back({mask, {}, 0, 4});
    }
    return Replacement{nodes, node.outputs[0], [a](Rewriter& r) { return a.emit(r); }};
  }

 private:
  // [b, h] of scores in rank 3: those of the queries before a reshape made them one, else each is a batch of its own.
  Shape lead_of(ValueId queries, int64_t count) const {
    const Shape& s = facts_.shape(before_reshapes(facts_, queries));
    bool apart = s.size() == 4 && s[0] * s[1] == count && keeps_matrix(s, facts_.shape(queries));
    return apart ? Shape{s[0], s[1]} : Shape{count, 1};
  }

  bool operands(Attention& a, ValueId queries, ValueId keys, ValueId values, bool swap_keys, bool swap_values) const {
    auto q = find_operand(facts_, queries, a.batch, a.heads, false, &a.scale);
    auto k = find_operand(facts_, keys, a.batch, a.heads, swap_keys, &a.scale);
    auto v = find_operand(facts_, values, a.batch, a.heads, swap_values, nullptr);
    if (!q || !k || !v || q->heads != a.heads) return false;
    if (k->heads != v->heads) {  // as they are, where only one was repeated or only one was seen to be
      k = whole_operand(facts_, keys, a.heads, swap_keys);
      v = AttentionOperand{
          values, {}, swap_values, facts_.shape(values).size() == 4 ? facts_.shape(values)[1] : a.heads};
      if (k->heads != v->heads) return false;
    }
    a.q = *q, a.k = *k, a.v = *v;
    return true;
  }

  bool ungrouped(Attention& a) const {
    auto k = before_repeat(facts_, a.k.base, a.batch, a.heads), v = before_repeat(facts_, a.v.base, a.batch, a.heads);
    if (!k || !v || k->heads != v->heads) return false;
    a.k = *k, a.v = *v;
    return true;
  }

  MaskAnalysis& analysis(int64_t queries, int64_t keys) {
    auto& made = analyses_[{queries, keys}];
    if (!made) made = std::make_unique<MaskAnalysis>(facts_, queries, keys);
    return *made;
  }

  const GraphFacts& facts_;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<MaskAnalysis>> analyses_;
};

}  // namespace

absl::StatusOr<Graph> recognize_attention(const Graph& graph, const PassContext& context) {
  std::unique_ptr<Recogniser> recogniser;
  return replace_all(graph, context, [&](const GraphFacts& facts, const Node& node) -> std::optional<Replacement> {
    if (!recogniser) recogniser = std::make_unique<Recogniser>(facts);
    if (node.op->name == "matmul") return recogniser->spelled(node);
    if (node.op->name == "attention") return recogniser->simpler(node);
    return std::nullopt;
  });
}

}  // namespace partita
