#include "passes/recognize/recognize_cross_entropy.h"

#include "passes/recognize/pattern.h"

namespace partita {
namespace {

// [rows…, 1] labels of logits [rows…, classes].
bool labels_fit(const GraphFacts& facts, ValueId labels, ValueId logits) {
  Shape expected = facts.shape(logits);
  if (expected.empty()) return false;
  expected.back() = 1;
  DType type = facts.type(labels).dtype;
  return facts.shape(labels) == expected && (type == DType::kI32 || type == DType::kI64);
}

struct Patterns {
  Pattern x = any("x"), labels = any("labels");
  Pattern log_softmax =
      one_of({named("probabilities", op("log_softmax", {x})), op("log", {named("probabilities", op("softmax", {x}))})});
  Pattern picked = named("picked", op("take_along", {log_softmax, labels}));
  Pattern equal = op("eq", {labels, any("classes")});
  Pattern one_hot =
      one_of({op("cast", {equal}), op("cast", {op("cast", {equal})}), op("select", {equal, number(1), number(0)})});
  Pattern summed = named("summed", op("reduce_sum", {product({log_softmax, one_hot}, "factor")}));
  // A sign outside is part of it.
  std::vector<Pattern> pick = {op("neg", {picked}), picked}, sum = {op("neg", {summed}), summed};
};

bool is_softmax_over_classes(const GraphFacts& facts, const Match& m) {
  const Node* softmax = facts.graph().producer(m["probabilities"]);
  return softmax && softmax->attrs.i("dim") == facts.type(m["x"]).rank() - 1;
}

bool is_pick(const GraphFacts& facts, const Match& m) {
  return is_softmax_over_classes(facts, m) &&
         facts.graph().producer(m["picked"])->attrs.i("dim") == facts.type(m["x"]).rank() - 1 &&
         labels_fit(facts, m["labels"], m["x"]);
}

bool is_sum(const GraphFacts& facts, const Match& m) {
  const Shape& s = facts.shape(m["x"]);
  const Node* sum = facts.graph().producer(m["summed"]);
  return is_softmax_over_classes(facts, m) && labels_fit(facts, m["labels"], m["x"]) &&
         counts_up(facts, m["classes"], s.back()) &&
         sum->attrs.ints("dims") == std::vector<int64_t>{static_cast<int64_t>(s.size()) - 1};
}

// Labels [rows…] of [rows…, 1].
ValueId row_labels(Builder& b, ValueId labels) {
  Shape s = b.shape(labels);
  s.pop_back();
  return b.reshape(labels, s);
}

}  // namespace

absl::StatusOr<Graph> recognize_cross_entropy(const Graph& graph, const PassContext& context) {
  Patterns patterns;
  return replace_all(graph, context, [&](const GraphFacts& facts, const Node& node) -> std::optional<Replacement> {
    std::string_view op = node.op->name;
    if (op != "neg" && op != "take_along" && op != "reduce_sum") return std::nullopt;
    ValueId root = node.outputs[0];
    const TensorType& type = facts.type(root);
    for (bool pick : {true, false}) {
      for (const Pattern& p : pick ? patterns.pick : patterns.sum) {
        auto m =
            find_match(facts, p, root, [&](const Match& m) { return pick ? is_pick(facts, m) : is_sum(facts, m); });
        if (!m) continue;
        auto emit = [m = *m, pick, negative = op == "neg", &type](Rewriter& r) {
          Builder& b = r.builder();
          ValueId x = r(m["x"]), labels = row_labels(b, r(m["labels"]));
          if (pick) {  // take_along counts negative labels from the end
            DType t = b.dtype(labels);
            ValueId low = b.emit("lt", {labels, b.scalar(t, 0)});
            labels = b.select(low, b.add(labels, b.scalar(t, static_cast<double>(b.shape(x).back()))), labels);
          }
          ValueId y = b.emit_all("cross_entropy", {x, labels})[0];
          double factor = (negative ? 1 : -1) * (pick ? 1 : m.number("factor"));
          if (factor == -1)
            y = b.neg(y);
          else if (factor != 1)
            y = b.scale(y, factor);
          return b.cast(b.reshape(y, type.shape), type.dtype);
        };
        return Replacement{m->nodes, root, emit};
      }
    }
    return std::nullopt;
  });
}

}  // namespace partita
