#include "passes/recognize/recognize_rotary.h"

#include <cstring>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "passes/recognize/pattern.h"

namespace partita {
namespace {

// A slice that takes features [start, limit) of the last dimension and all of the others.
bool takes_features(const GraphFacts& facts, const Node* slice, int64_t start, int64_t limit) {
  if (!slice || slice->op->name != "slice") return false;
  const Shape& s = facts.shape(slice->inputs[0]);
  const auto &starts = slice->attrs.ints("starts"), &limits = slice->attrs.ints("limits"),
             &strides = slice->attrs.ints("strides");
  for (size_t d = 0; d + 1 < s.size(); ++d) {
    if (starts[d] != 0 || limits[d] != s[d] || strides[d] != 1) return false;
  }
  return !s.empty() && starts.back() == start && limits.back() == limit && strides.back() == 1;
}

bool joins_features(const GraphFacts& facts, const Node* concat) {
  return concat && concat->op->name == "concat" && concat->inputs.size() == 2 &&
         concat->attrs.i("dim") == facts.type(concat->outputs[0]).rank() - 1;
}

// Tables whose last dimension holds the same values twice.
class Halves {
 public:
  explicit Halves(const GraphFacts& facts) : facts_(facts) {}

  bool repeats(ValueId v, int depth = 0) {
    const Shape& s = facts_.shape(v);
    if (s.empty() || s.back() < 2 || s.back() % 2 != 0 || depth > 32) return false;
    if (auto at = known_.find(v); at != known_.end()) return at->second;
    const Literal* l = facts_.literal(v);
    bool result =
        l ? repeats_bytes(*l) : facts_.graph().producer(v) && repeats_node(*facts_.graph().producer(v), v, depth + 1);
    known_[v] = result;
    return result;
  }

 private:
  static bool repeats_bytes(const Literal& l) {
    size_t half = static_cast<size_t>(l.type.shape.back() / 2 * dtype_size(l.type.dtype));
    size_t rows = static_cast<size_t>(elements(l.type.shape) / l.type.shape.back());
    for (size_t r = 0; r < rows; ++r) {
      const std::byte* row = l.data + r * 2 * half;
      if (std::memcmp(row, row + half, half) != 0) return false;
    }
    return true;
  }

  bool repeats_node(const Node& node, ValueId v, int depth) {
    std::string_view op = node.op->name;
    int64_t width = facts_.shape(v).back(), last = facts_.type(v).rank() - 1;
    auto same_width = [&] {
      return facts_.type(node.inputs[0]).rank() > 0 && facts_.shape(node.inputs[0]).back() == width &&
             repeats(node.inputs[0], depth);
    };
    if (node.op->scalar && node.outputs.size() == 1 && op != "uniform" &&
        op != "normal") {  // element by element: every operand is alike in both halves
      for (ValueId in : node.inputs) {
        bool constant = facts_.type(in).rank() == 0 || facts_.shape(in).back() == 1;
        if (!constant && !repeats(in, depth)) return false;
      }
      return true;
    }
    if (op == "reshape") return same_width();
    if (op == "broadcast")
      return facts_.type(node.inputs[0]).rank() == 0 || facts_.shape(node.inputs[0]).back() == 1 || same_width();
    if (op == "transpose") return node.attrs.ints("permutation").back() == last && same_width();
    if (op == "slice") return same_width() && node.attrs.ints("strides").back() == 1;
    if (op == "gather") return node.attrs.i("dim") != facts_.type(node.inputs[0]).rank() - 1 && same_width();
    if (op == "concat" && node.attrs.i("dim") == last)
      return node.inputs.size() == 2 && node.inputs[0] == node.inputs[1];
    return false;
  }

  const GraphFacts& facts_;
  absl::flat_hash_map<ValueId, bool> known_;
};

// Makes the first half of a table in rank 4, once for each table.
class HalfTables {
 public:
  ValueId of(Rewriter& r, ValueId table, const Literal* literal, DType type) {
    Builder& b = r.builder();
    auto [at, fresh] = made_.try_emplace({table, static_cast<int>(type)}, kNoValue);
    if (!fresh) return at->second;
    ValueId v = literal ? half_of(b, *literal) : half_of(b, r(table));
    Shape s = b.shape(v);
    s.insert(s.begin(), 4 - s.size(), 1);
    at->second = b.cast(b.reshape(v, s), type);
    return at->second;
  }

 private:
  static ValueId half_of(Builder& b, const Literal& l) {
    TensorType type = l.type;
    type.shape.back() /= 2;
    size_t half = static_cast<size_t>(type.shape.back() * dtype_size(type.dtype)),
           rows = static_cast<size_t>(elements(l.type.shape) / l.type.shape.back());
    std::vector<std::byte> bytes(rows * half);
    for (size_t row = 0; row < rows; ++row) std::memcpy(bytes.data() + row * half, l.data + row * 2 * half, half);
    type.shape.insert(type.shape.begin(), 4 - type.shape.size(), 1);
    return b.constant(make_literal(std::move(type), std::move(bytes)));
  }

  static ValueId half_of(Builder& b, ValueId v) {
    Shape limits = b.shape(v);
    limits.back() /= 2;
    return b.emit("slice", {v},
                  {{"starts", std::vector<int64_t>(limits.size(), 0)},
                   {"limits", limits},
                   {"strides", std::vector<int64_t>(limits.size(), 1)}});
  }

  absl::flat_hash_map<std::pair<ValueId, int>, ValueId> made_;
};

// Whether a table broadcasts along x [a,b,c,d] and says all of its angles.
bool is_table(const GraphFacts& facts, ValueId table, const Shape& x) {
  const Shape& s = facts.shape(table);
  if (s.empty() || s.size() > 4 || s.back() != x.back() || !is_float(facts.type(table).dtype)) return false;
  for (size_t d = 0; d + 1 < s.size(); ++d) {
    int64_t size = x[d + 4 - s.size()];
    if (s[d] != 1 && s[d] != size) return false;
  }
  return true;
}

struct Rotary {
  ValueId x, cos, sin;
};

}  // namespace

absl::StatusOr<Graph> recognize_rotary(const Graph& graph, const PassContext& context) {
  Pattern x = any("x");
  Pattern rotated =
      named("rotated", op("concat", {op("neg", {named("upper", op("slice", {x}))}), named("lower", op("slice", {x}))}));
  Pattern whole = op("add", {product({rotated, any("sin")}), product({x, any("cos")})});
  Pattern part = op("concat", {whole, any("rest")});
  std::unique_ptr<Halves> halves;
  HalfTables tables;
  return replace_all(graph, context, [&](const GraphFacts& facts, const Node& node) -> std::optional<Replacement> {
    if (node.op->name != "add" && node.op->name != "concat") return std::nullopt;
    if (!halves) halves = std::make_unique<Halves>(facts);
    ValueId root = node.outputs[0];
    auto producer = [&](ValueId v) { return facts.graph().producer(v); };
    auto is_rotary = [&](const Match& m) {
      const Shape& s = facts.shape(m["x"]);
      int64_t r = s.empty() ? 0 : s.back();
      return s.size() == 4 && r >= 2 && r % 2 == 0 && joins_features(facts, producer(m["rotated"])) &&
             takes_features(facts, producer(m["upper"]), r / 2, r) &&
             takes_features(facts, producer(m["lower"]), 0, r / 2) && is_table(facts, m["cos"], s) &&
             is_table(facts, m["sin"], s) && halves->repeats(m["cos"]) && halves->repeats(m["sin"]);
    };
    // The rest of the features goes around: x is a slice of what the whole is rotated of, and the rest is the other
    // slice.
    auto is_part = [&](const Match& m) {
      const Node *head = producer(m["x"]), *rest = producer(m["rest"]);
      if (!head || !rest || head->op->name != "slice" || rest->op->name != "slice" ||
          head->inputs[0] != rest->inputs[0])
        return false;
      int64_t r = facts.shape(m["x"]).back(), d = facts.shape(head->inputs[0]).back();
      return takes_features(facts, head, 0, r) && takes_features(facts, rest, r, d) && is_rotary(m);
    };
    std::optional<Match> m;
    bool partial = node.op->name == "concat";
    if (partial) {
      if (!joins_features(facts, &node)) return std::nullopt;
      m = find_match(facts, part, root, is_part);
    } else {
      m = find_match(facts, whole, root,
                     [&](const Match& m) { return is_rotary(m) && facts.shape(m["x"]) == facts.shape(root); });
    }
    if (!m) return std::nullopt;
    ValueId from = partial ? producer((*m)["x"])->inputs[0] : (*m)["x"];
    Rotary rotary{from, (*m)["cos"], (*m)["sin"]};
    auto emit = [&tables, &facts, rotary, root](Rewriter& r) {
      Builder& b = r.builder();
      ValueId x = r(rotary.x);
      DType type = b.dtype(x);
      ValueId cos = tables.of(r, rotary.cos, facts.literal(rotary.cos), type),
              sin = tables.of(r, rotary.sin, facts.literal(rotary.sin), type);
      if (b.type(cos) != b.type(sin)) {
        Shape both = *broadcast_shapes(b.shape(cos), b.shape(sin));
        cos = b.broadcast_to(cos, both);
        sin = b.broadcast_to(sin, both);
      }
      return b.cast(b.emit("rotary", {x, cos, sin}, {{"interleaved", int64_t{0}}}), facts.type(root).dtype);
    };
    return Replacement{m->nodes, root, emit};
  });
}

}  // namespace partita
