#include "passes/recognize/recognize_dispatch.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>

#include "passes/recognize/pattern.h"

namespace partita {
namespace {

// A value whose dimensions are those of combine: a letter for each, '1' where it is of size 1.
struct Factor {
  ValueId value;
  std::string dims;

  std::string letters() const {
    std::string s = dims;
    std::erase(s, '1');
    return s;
  }
};

// What one choice of each token adds to combine.
struct Choice {
  ValueId expert = kNoValue, place = kNoValue;  // integers, an element for each token
  std::vector<ValueId> of_token, of_expert;     // factors of its weight: [s], and [s, e], to be summed over e
};

struct Combine {
  int64_t tokens = 0, experts = 0, places = 0;
  std::vector<Choice> choices;
};

constexpr size_t kMostTerms = 256;  // choices of a token, factors of one, products on the way to a factor

class CombineFinder {
 public:
  explicit CombineFinder(const GraphFacts& facts) : facts_(facts) {}

  std::optional<Combine> find(ValueId v) const {
    const Shape& s = facts_.shape(v);
    if (s.size() != 3 || !is_float(facts_.type(v).dtype)) return std::nullopt;
    Combine c{s[0], s[1], s[2], {}};
    if (std::min({c.tokens, c.experts, c.places}) < 2) return std::nullopt;
    std::vector<ValueId> terms = {v};
    for (size_t k = 0; !terms.empty(); ++k) {
      if (k == kMostTerms) return std::nullopt;
      ValueId term = terms.back();
      terms.pop_back();
      if (const Node* sum = facts_.made_by(term, "add")) {
        for (ValueId in : sum->inputs) {
          if (facts_.shape(in) != s) return std::nullopt;
          terms.push_back(in);
        }
        continue;
      }
      std::optional<Choice> choice = choice_of(c, term);
      if (!choice) return std::nullopt;
      c.choices.push_back(*std::move(choice));
    }
    if (!are_counted(c)) return std::nullopt;
    return c;
  }

 private:
  std::optional<Choice> choice_of(const Combine& c, ValueId term) const {
    Choice choice;
    std::vector<Factor> todo = {{term, "sec"}};
    for (size_t k = 0; !todo.empty(); ++k) {
      if (k == kMostTerms) return std::nullopt;
      const Factor f = todo.back();
      todo.pop_back();
      const std::string letters = f.letters();
      if (letters == "s") {
        choice.of_token.push_back(f.value);
      } else if (auto index = class_of(f.value, c.tokens, c.experts);
                 index && letters == "se" && choice.expert == kNoValue) {
        choice.expert = *index;
      } else if (index = class_of(f.value, c.tokens, c.places); index && letters == "sc" && choice.place == kNoValue) {
        choice.place = *index;
      } else if (!open(c, f, todo)) {
        if (letters != "se") return std::nullopt;
        choice.of_expert.push_back(f.value);
      }
    }
    if (choice.expert == kNoValue || choice.place == kNoValue) return std::nullopt;
    return choice;
  }

  // The factors that `f` is the product of; false where it is none, or not of factors whose dimensions are known.
  bool open(const Combine& c, const Factor& f, std::vector<Factor>& todo) const {
    const Node* node = facts_.graph().producer(f.value);
    if (node == nullptr) return false;
    std::vector<Factor> parts;
    if (node->op->name == "reshape") {
      parts = {{node->inputs[0], f.letters()}};
      if (!spread(parts[0])) return false;
    } else if (node->op->name == "mul" || node->op->name == "broadcast" ||
               (node->op->name == "cast" && facts_.type(node->inputs[0]).dtype != DType::kBool)) {
      for (ValueId in : node->inputs) {
        const Shape& s = facts_.shape(in);
        std::string dims = f.dims.substr(f.dims.size() - s.size());
        for (size_t d = 0; d < s.size(); ++d) dims[d] = s[d] == 1 ? '1' : dims[d];
        parts.push_back({in, std::move(dims)});
      }
    } else {
      return false;
    }
    // What is split further has to end in factors of a choice: a product over experts' logits, say, is one factor.
    if (f.letters() == "se" && node->op->name == "mul" &&
        std::none_of(parts.begin(), parts.end(), [&](const Factor& p) { return leads_to_class(p.value, c); }))
      return false;
    todo.insert(todo.end(), parts.begin(), parts.end());
    return true;
  }

  // Whether a value is, or is a product with, the one-hot form of a token's expert.
  bool leads_to_class(ValueId v, const Combine& c) const {
    std::vector<ValueId> todo = {v};
    for (size_t k = 0; !todo.empty() && k < kMostTerms; ++k) {
      v = todo.back();
      todo.pop_back();
      if (class_of(v, c.tokens, c.experts)) return true;
      const Node* node = facts_.graph().producer(v);
      if (node != nullptr && (node->op->name == "mul" || node->op->name == "reshape" || node->op->name == "cast"))
        todo.insert(todo.end(), node->inputs.begin(), node->inputs.end());
    }
    return false;
  }

  // Gives the letters of a reshape's result, without ones, to its operand's dimensions.
  bool spread(Factor& f) const {
    std::string dims;
    size_t next = 0;
    for (int64_t n : facts_.shape(f.value)) {
      if (n != 1 && next == f.dims.size()) return false;
      dims += n == 1 ? '1' : f.dims[next++];
    }
    f.dims = std::move(dims);
    return next == f.letters().size();
  }

  // The index i [tokens, 1] of eq(i, 0 1 … n-1), cast to a float.
  std::optional<ValueId> class_of(ValueId v, int64_t tokens, int64_t n) const {
    const Node* node = facts_.graph().producer(v);
    while (node != nullptr && node->op->name == "cast") node = facts_.graph().producer(node->inputs[0]);
    if (node == nullptr || node->op->name != "eq") return std::nullopt;
    for (size_t k = 0; k < 2; ++k) {
      const TensorType& type = facts_.type(node->inputs[k]);
      if (is_integer(type.dtype) && type.shape == Shape{tokens, 1} && counts_up(facts_, node->inputs[1 - k], n))
        return node->inputs[k];
    }
    return std::nullopt;
  }

  // Whether no two tokens have one place: it counts the tokens before that made the same choice, after all tokens of
  // other choices (of each two, one counts the other).
  bool are_counted(const Combine& c) const {
    std::vector<std::set<ValueId>> after;
    for (const Choice& choice : c.choices) {
      after.emplace_back();
      if (!counts(c, choice, after.back())) return false;
    }
    for (size_t i = 0; i < after.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (after[i].count(c.choices[j].expert) == after[j].count(c.choices[i].expert)) return false;
      }
    }
    return true;
  }

  // Whether the place is made of a running sum over tokens of the choice's one-hot form, by ops that give each count a
  // place of its own; `after`: the experts whose one-hot forms it has the sums of.
  bool counts(const Combine& c, const Choice& choice, std::set<ValueId>& after) const {
    bool running = false;
    std::set<ValueId> seen;
    std::vector<ValueId> todo = {choice.place};
    while (!todo.empty()) {
      const ValueId v = todo.back();
      todo.pop_back();
      const Node* node = facts_.graph().producer(v);
      if (node == nullptr || class_of(v, c.tokens, c.experts)) continue;
      const bool sum = node->op->name == "reduce_sum" && node->attrs.ints("dims") == std::vector<int64_t>{0},
                 run = node->op->name == "cumsum" && node->attrs.i("dim") == 0 && node->attrs.i("reverse") == 0;
      if (const auto expert = sum || run ? class_of(node->inputs[0], c.tokens, c.experts) : std::nullopt) {
        if (sum) after.insert(*expert);
        running = running || (run && *expert == choice.expert);
        continue;
      }
      if (!keeps_counts_apart(*node)) return false;
      for (ValueId in : node->inputs) {
        if (in != kNoValue && seen.insert(in).second) todo.push_back(in);
      }
    }
    return running;
  }

  // No division, say, that gives two counts one place. Factors are masks.
  bool keeps_counts_apart(const Node& node) const {
    static const std::set<std::string_view> kOps = {"add",        "sub", "mul", "cast",   "reshape", "broadcast",
                                                    "reduce_sum", "lt",  "le",  "select", "and",     "not"};
    if (kOps.count(node.op->name) == 0) return false;
    return node.op->name != "mul" || std::none_of(node.inputs.begin(), node.inputs.end(),
                                                  [&](ValueId v) { return facts_.number(v).value_or(1) != 1; });
  }

  const GraphFacts& facts_;
};

enum class Mask : uint8_t { kNone, kPositive, kNotZero };

// What an operand of a product is made of: combine, or 1 where it is above 0, or not 0.
struct Spread {
  Combine combine;
  Mask mask = Mask::kNone;
  bool by_places = false;  // rows are places
};

// Which dimensions of a value of rank 3 those of what views make of it are.
using Groups = std::vector<std::vector<int>>;

bool regroup(Groups& groups, const Shape& from, const Shape& to) {
  std::vector<int> flat;
  for (const auto& g : groups) flat.insert(flat.end(), g.begin(), g.end());
  groups.assign(to.size(), {});
  size_t next = 0;
  for (size_t d = 0; d < to.size(); ++d) {
    int64_t n = 1;
    while (next < flat.size() && n < to[d]) {
      n *= from[static_cast<size_t>(flat[next])];
      groups[d].push_back(flat[next++]);
    }
    if (n != to[d]) return false;
  }
  return next == flat.size();
}

std::optional<Spread> spread_of(const GraphFacts& facts, ValueId operand) {
  std::vector<const Node*> views;
  ValueId v = operand;
  Spread out;
  while (facts.type(v).rank() != 3) {
    const Node* node = facts.graph().producer(v);
    if (node == nullptr || node->op->name != "reshape") return std::nullopt;
    views.push_back(node);
    v = node->inputs[0];
  }
  while (const Node* node = facts.made_by(v, "transpose")) views.push_back(node), v = node->inputs[0];
  if (const Node* cast = facts.made_by(v, "cast")) {
    const Node* test = facts.graph().producer(cast->inputs[0]);
    if (test == nullptr) return std::nullopt;
    const std::string_view op = test->op->name;
    if (op == "lt" && facts.number(test->inputs[0]) == 0.0) {
      v = test->inputs[1];
      out.mask = Mask::kPositive;
    } else if (op == "cast" || (op == "ne" && facts.number(test->inputs[1]) == 0.0)) {
      v = test->inputs[0];
      out.mask = Mask::kNotZero;
    } else {
      return std::nullopt;
    }
    if (facts.type(cast->inputs[0]).dtype != DType::kBool) return std::nullopt;
  }
  std::optional<Combine> combine = CombineFinder(facts).find(v);
  if (!combine) return std::nullopt;
  Groups groups = {{0}, {1}, {2}};
  for (size_t k = views.size(); k-- > 0;) {
    if (views[k]->op->name == "reshape") {
      if (!regroup(groups, facts.shape(v), facts.shape(views[k]->outputs[0]))) return std::nullopt;
      continue;
    }
    Groups before = groups;
    const auto& permutation = views[k]->attrs.ints("permutation");
    for (size_t d = 0; d < groups.size(); ++d) groups[d] = before[static_cast<size_t>(permutation[d])];
  }
  out.by_places = groups == Groups{{1, 2}, {0}};
  if (!out.by_places && groups != Groups{{0}, {1, 2}}) return std::nullopt;
  out.combine = *std::move(combine);
  return out;
}

class DispatchWriter {
 public:
  DispatchWriter(Rewriter& r, const Spread& spread, DType dtype)
      : r_(r), b_(r.builder()), c_(spread.combine), mask_(spread.mask), dtype_(dtype) {}

  // x [tokens, width] -> [experts * places, width]
  ValueId send(ValueId x) {
    const Filled places = fill();
    return b_.emit("dispatch", {x, places.token, places.weight});
  }

  // y [experts * places, width] -> [tokens, width]
  ValueId bring_back(ValueId y) {
    const Filled places = fill();
    return b_.emit("combine", {y, places.token, places.weight}, {{"size", c_.tokens}});
  }

 private:
  struct Filled {
    ValueId token, weight;  // i64 and float [experts * places]
  };

  // Which token has each place, and its weight there. Places without one have the weight 0 and tokens in turn: sums by
  // token take as many terms for each.
  Filled fill() {
    const int64_t places = c_.experts * c_.places, all = c_.tokens * static_cast<int64_t>(c_.choices.size());
    std::vector<ValueId> rows, weights;
    for (const Choice& choice : c_.choices) {
      ValueId e = index(choice.expert), p = index(choice.place);
      weights.push_back(weight(choice));
      ValueId kept = b_.emit("ne", {weights.back(), b_.scalar(dtype_, 0)});
      ValueId valid = b_.emit("and", {kept, b_.emit("and", {inside(e, c_.experts), inside(p, c_.places)})});
      rows.push_back(b_.select(valid, b_.add(b_.mul(e, number(c_.places)), p), number(places)));
    }
    ValueId empty = b_.full(DType::kI64, {places + 1}, -1);  // one more for those that are dropped
    ValueId from = b_.emit("scatter_elements", {empty, in_turn(rows), count(all)},
                           {{"dim", int64_t{0}}, {"mode", std::string("none")}});
    from = b_.emit("slice", {from}, {{"starts", Shape{0}}, {"limits", Shape{places}}, {"strides", Shape{1}}});
    ValueId filled = b_.emit("le", {number(0), from});
    from = b_.select(filled, from, b_.emit("mod", {count(places), number(all)}));
    ValueId w = b_.emit("gather", {in_turn(weights), from}, {{"dim", int64_t{0}}});
    w = b_.select(filled, w, b_.scalar(dtype_, 0));
    if (mask_ == Mask::kPositive) w = b_.cast(b_.emit("lt", {b_.scalar(dtype_, 0), w}), dtype_);
    if (mask_ == Mask::kNotZero) w = b_.cast(b_.emit("ne", {w, b_.scalar(dtype_, 0)}), dtype_);
    return {b_.emit("mod", {from, number(c_.tokens)}), w};
  }

  ValueId number(int64_t n) { return b_.constant(to_literal({{DType::kI64, {}}, {}, {n}})); }
  ValueId count(int64_t n) { return b_.emit("iota", {}, {{"size", n}, {"to", DType::kI64}}); }
  ValueId index(ValueId old) { return b_.cast(b_.reshape(r_(old), {c_.tokens}), DType::kI64); }

  ValueId inside(ValueId index, int64_t size) {
    return b_.emit("and", {b_.emit("le", {number(0), index}), b_.emit("lt", {index, number(size)})});
  }

  ValueId weight(const Choice& choice) {
    ValueId w = kNoValue;
    auto times = [&](ValueId x, ValueId factor) { return x == kNoValue ? factor : b_.mul(x, factor); };
    if (!choice.of_expert.empty()) {
      ValueId e = b_.reshape(index(choice.expert), {c_.tokens, 1});
      ValueId x = b_.cast(b_.emit("eq", {e, count(c_.experts)}), dtype_);
      for (ValueId v : choice.of_expert) x = times(x, b_.cast(b_.reshape(r_(v), {c_.tokens, c_.experts}), dtype_));
      w = b_.reduce_sum(x, {1}, /*keep=*/false);
    }
    for (ValueId v : choice.of_token) w = times(w, b_.cast(b_.reshape(r_(v), {c_.tokens}), dtype_));
    return w != kNoValue ? w : b_.full(dtype_, {c_.tokens}, 1);
  }

  // [choices * tokens]
  ValueId in_turn(const std::vector<ValueId>& of_choices) {
    return of_choices.size() == 1 ? of_choices[0] : b_.emit("concat", of_choices, {{"dim", int64_t{0}}});
  }

  Rewriter& r_;
  Builder& b_;
  const Combine& c_;
  const Mask mask_;
  const DType dtype_;
};

}  // namespace

absl::StatusOr<Graph> recognize_dispatch(const Graph& graph, const PassContext& context) {
  return replace_all(graph, context, [&](const GraphFacts& facts, const Node& node) -> std::optional<Replacement> {
    if (node.op->name != "matmul" || facts.type(node.outputs[0]).rank() != 2) return std::nullopt;
    for (size_t side = 0; side < 2; ++side) {
      if (facts.type(node.inputs[side]).rank() != 2) continue;
      std::optional<Spread> spread = spread_of(facts, node.inputs[side]);
      if (!spread) continue;
      const ValueId root = node.outputs[0], other = node.inputs[1 - side];
      // Whether operands' first dimension is summed over.
      const bool turned = side == 0 ? node.attrs.i("transpose_a") != 0 : node.attrs.i("transpose_b") == 0,
                 other_turned = side == 0 ? node.attrs.i("transpose_b") == 0 : node.attrs.i("transpose_a") != 0;
      const bool sends = spread->by_places != turned;  // sums over tokens
      auto emit = [spread = *std::move(spread), root, other, other_turned, side, sends, &facts](Rewriter& r) {
        Builder& b = r.builder();
        ValueId x = other_turned ? r(other) : b.transpose(r(other), {1, 0});
        DispatchWriter writer(r, spread, facts.type(root).dtype);
        ValueId y = sends ? writer.send(x) : writer.bring_back(x);
        return side == 0 ? y : b.transpose(y, {1, 0});
      };
      return Replacement{{facts.id(node)}, root, emit};
    }
    return std::nullopt;
  });
}

}  // namespace partita
