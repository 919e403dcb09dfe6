#include <algorithm>

#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

constexpr size_t kMostParts = 256;

// One term of a sum: x with zeros around it along one dimension.
struct Part {
  ValueId x;
  int64_t dim, at;
};

std::optional<Part> part_of(const Builder& b, ValueId term) {
  const Node* pad = b.graph().producer(term);
  if (pad == nullptr || pad->op->name != "pad") return std::nullopt;
  const Literal* value = b.literal(pad->inputs[1]);
  if (value == nullptr || !is_float(value->type.dtype) || element_f(*value, 0) != 0) return std::nullopt;
  const Shape &all = b.shape(term), &own = b.shape(pad->inputs[0]);
  std::optional<Part> part;
  for (size_t d = 0; d < all.size(); ++d) {
    if (all[d] == own[d]) continue;
    if (part.has_value()) return std::nullopt;
    part = Part{pad->inputs[0], static_cast<int64_t>(d), pad->attrs.ints("low")[d]};
  }
  return part;
}

// Terms that lie one after the other and leave no gap, as the gradients of a tensor's slices do, are a concatenation.
ValueId concatenation(const OpUse& use) {
  if (use.types[0].shape != use.types[1].shape) return kNoValue;
  Builder& b = use.b;
  std::vector<ValueId> terms(use.inputs.begin(), use.inputs.end());
  std::vector<Part> parts;
  while (!terms.empty()) {
    const ValueId term = terms.back();
    terms.pop_back();
    const Node* sum = b.graph().producer(term);
    if (sum != nullptr && sum->op->name == "add" && b.shape(sum->inputs[0]) == b.shape(sum->inputs[1])) {
      terms.insert(terms.end(), sum->inputs.begin(), sum->inputs.end());
      continue;
    }
    const auto part = part_of(b, term);
    if (!part || parts.size() == kMostParts || (!parts.empty() && part->dim != parts[0].dim)) return kNoValue;
    parts.push_back(*part);
  }
  std::sort(parts.begin(), parts.end(), [](const Part& p, const Part& q) { return p.at < q.at; });
  const int64_t dim = parts[0].dim;
  int64_t end = 0;
  std::vector<ValueId> joined;
  for (const Part& p : parts) {
    if (p.at != end) return kNoValue;
    end += b.shape(p.x)[static_cast<size_t>(dim)];
    joined.push_back(p.x);
  }
  if (end != use.types[0].shape[static_cast<size_t>(dim)]) return kNoValue;
  return b.emit("concat", std::move(joined), {{"dim", dim}});
}

ValueId add_simpler(const OpUse& use) {
  const ValueId other = other_than(use, 0);
  return other != kNoValue ? other : concatenation(use);
}

}  // namespace

// a + b. Jointly linear: a partial sum passes only where both operands are partial.
extern const OpDef kAdd = {
    .name = "add",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = sum_formula,
    .infer = same_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.sum_to(use.gradients[0], use.types[0].shape), use.b.sum_to(use.gradients[0], use.types[1].shape)};
    },
    .simpler = add_simpler,
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars { return {s.add(x[0], x[1])}; },
};

}  // namespace partita
