#include "codegen/prepare/fp8_products.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "base/math/quantized.h"
#include "base/status.h"
#include "codegen/prepare/value_readers.h"
#include "ir/graph/builder.h"
#include "ir/graph/storage.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

bool is_set(const Attrs& attrs, std::string_view name) { return attrs.i(name, 0) != 0; }

// x [rows, columns] -> bytes; with `both` also those of its transpose.
absl::StatusOr<std::vector<TensorType>> quantized_types(const OpView& use) {
  const Shape& shape = use.shape(0);
  const bool tiles = is_set(use.attrs, "tiles");
  const TensorType as_rows{DType::kU8, {QuantizedMatrix{shape[0], shape[1], tiles}.bytes()}},
      turned{DType::kU8, {QuantizedMatrix{shape[1], shape[0], tiles}.bytes()}};
  if (is_set(use.attrs, "both")) return std::vector<TensorType>{as_rows, turned};
  return std::vector<TensorType>{is_set(use.attrs, "transpose") ? turned : as_rows};
}

absl::StatusOr<std::vector<TensorType>> product_types(const OpView& use) {
  return std::vector<TensorType>{{DType::kBF16, {use.attrs.i("m"), use.attrs.i("n")}}};
}

double product_flops(const OpView& use) {
  return 2.0 * static_cast<double>(use.attrs.i("m") * use.attrs.i("n")) * static_cast<double>(use.attrs.i("k"));
}

// The code generator's own: no graph outside it has them.
const OpDef kQuantize = {.name = "quantize_fp8",
                         .attributes = "s format, i tiles?, i transpose?, i both?",
                         .infer = quantized_types,
                         .kernel = true};
const OpDef kMultiply = {.name = "multiply_fp8",
                         .min_inputs = 2,
                         .max_inputs = 2,
                         .attributes = "i m, i n, i k, s a, s b, i tiles_a?, i tiles_b?",
                         .infer = product_types,
                         .work = WorkKind::kMatrix,
                         .flops = product_flops,
                         .kernel = true};

// An operand as a product reads it.
struct Operand {
  ValueId rounding = kNoValue;
  std::string format;
  Shape matrix;  // [rows, columns] as it lies in memory before
  bool tiles = false, transpose = false;

  QuantizedMatrix quantized() const { return {matrix[transpose], matrix[1 - transpose], tiles}; }
  // What tells forms of one rounding apart.
  using Form = std::tuple<bool, bool, int64_t>;
  Form form() const { return {tiles, transpose, matrix[1]}; }
};

class Quantizer {
 public:
  Quantizer(const Graph& graph, const std::map<ValueId, Fp8Rounding>& roundings)
      : graph_(graph), roundings_(roundings), r_(graph), readers_(graph) {}

  Fp8Products run() && {
    for (const Node& node : graph_.nodes) plan(node);
    for (const auto& [rounding, forms] : quantized_) readers_.add({roundings_.at(rounding).of});
    for (const auto& [node, operands] : planned_) {
      readers_.remove(node->inputs, [](const Node& n) { return !n.op->communicates && n.outputs.size() == 1; });
    }
    for (const Node& node : graph_.nodes) {
      if (const auto p = planned_.find(&node); p != planned_.end()) {
        multiply(node, p->second);
      } else if (!readers_.is_gone(node)) {
        r_.copy(node);
      }
      for (ValueId v : node.outputs) quantize(v);
    }
    Fp8Products out;
    out.same_as = same_values(r_, graph_, products_);
    out.graph = std::move(r_).finish();
    return out;
  }

 private:
  using Operands = std::pair<Operand, Operand>;
  struct Form {
    Operand operand;
    ValueId made = kNoValue;  // in the new graph
  };

  ValueId storage(ValueId v) const { return storage_of(graph_, v); }

  // The operand of a product that sums over its last dimension, or over the one before.
  std::optional<Operand> operand(ValueId v, bool sums_last) const {
    const ValueId at = storage(v);
    const auto rounding = roundings_.find(at);
    if (rounding == roundings_.end() || graph_.type(v).dtype != DType::kBF16) return std::nullopt;
    const int64_t columns = graph_.type(v).shape.back(), rows = elements(graph_.type(v).shape) / columns;
    const Fp8Rounding& as = rounding->second;
    const std::optional<Fp8Block> block = fp8_block(as.shape, as.dims, columns);
    Operand made{at, as.format, {rows, columns}, block == Fp8Block{kFp8Block, kFp8Block}, !sums_last};
    const Fp8Block line = sums_last ? Fp8Block{1, kFp8Block} : Fp8Block{kFp8Block, 1};
    if (!block || !(made.tiles || *block == line) || !made.quantized().fits()) return std::nullopt;
    return made;
  }

  int64_t matrices(ValueId v) const {
    const Shape& s = graph_.type(v).shape;
    return elements(Shape(s.begin(), s.end() - 2));
  }

  void plan(const Node& node) {
    if (node.op != find_op("matmul") || node.attrs.i("fp8", 0) != kFp8Block || node.attrs.i("block", 0) != 0 ||
        node.device != DeviceKind::kDefault || elements(graph_.type(node.outputs[0]).shape) == 0)
      return;
    const bool ta = is_set(node.attrs, "transpose_a"), tb = is_set(node.attrs, "transpose_b");
    if (matrices(node.inputs[1]) != 1 || (ta && matrices(node.inputs[0]) != 1)) return;
    std::optional<Operand> a = operand(node.inputs[0], !ta), b = operand(node.inputs[1], tb);
    if (!a || !b || (a->tiles && b->tiles) || (a->format == "e5m2" && b->format == "e5m2")) return;
    quantized_[a->rounding][a->form()] = {*a};
    quantized_[b->rounding][b->form()] = {*b};
    planned_.emplace(&node, Operands{*std::move(a), *std::move(b)});
  }

  // The forms of a rounding that products read, made in its place; what is read once for two of them there, too.
  void quantize(ValueId rounding) {
    const auto forms = quantized_.find(rounding);
    if (forms == quantized_.end()) return;
    for (auto& [key, form] : forms->second) {
      if (form.made != kNoValue) continue;
      Form* other = other_way(form.operand);
      const Node& here = *graph_.producer(rounding);
      r_.at(here);
      if (other != nullptr)  // where gradients of weights run apart, the others do not wait for them
        r_.builder().context().weight_gradient =
            here.weight_gradient && graph_.producer(other->operand.rounding)->weight_gradient;
      Attrs attrs;
      attrs.set("format", form.operand.format);
      if (form.operand.tiles) attrs.set("tiles", int64_t{1});
      if (other != nullptr) {
        attrs.set("both", int64_t{1});
      } else if (form.operand.transpose) {
        attrs.set("transpose", int64_t{1});
      }
      const ValueId of = r_(roundings_.at(rounding).of);
      auto made = r_.builder().try_emit(kQuantize, {r_.builder().reshape(of, form.operand.matrix)}, std::move(attrs));
      PARTITA_CHECK(made.ok(), std::string(made.status().message()));
      form.made = (*made)[other != nullptr && form.operand.transpose];
      if (other != nullptr) other->made = (*made)[!form.operand.transpose];
    }
  }

  // The same numbers, in the other direction, that products read as well: of this rounding, if its blocks are square,
  // or of one beside it. Of whole tiles. Null: there is none.
  Form* other_way(const Operand& o) {
    if (o.matrix[0] % kFp8Block != 0 || o.matrix[1] % kFp8Block != 0) return nullptr;
    const Fp8Rounding& as = roundings_.at(o.rounding);
    const Node& here = *graph_.producer(o.rounding);
    for (auto& [rounding, forms] : quantized_) {
      const Node& there = *graph_.producer(rounding);
      if (storage(roundings_.at(rounding).of) != storage(as.of) || there.segment != here.segment) continue;
      for (auto& [key, form] : forms) {
        const Operand& x = form.operand;
        if (form.made == kNoValue && x.transpose != o.transpose && x.tiles == o.tiles && x.format == o.format &&
            x.matrix == o.matrix)
          return &form;
      }
    }
    return nullptr;
  }

  void multiply(const Node& node, const Operands& operands) {
    r_.at(node);
    const auto& [a, b] = operands;
    const QuantizedMatrix left = a.quantized(), right = b.quantized();
    Attrs attrs;
    attrs.set("m", left.rows), attrs.set("n", right.rows), attrs.set("k", left.inner);
    attrs.set("a", a.format), attrs.set("b", b.format);
    if (a.tiles) attrs.set("tiles_a", int64_t{1});
    if (b.tiles) attrs.set("tiles_b", int64_t{1});
    const auto form = [&](const Operand& o) { return quantized_.at(o.rounding).at(o.form()).made; };
    auto made = r_.builder().try_emit(kMultiply, {form(a), form(b)}, std::move(attrs));
    PARTITA_CHECK(made.ok(), std::string(made.status().message()));
    const ValueId now = (*made)[0], old = node.outputs[0];
    products_.emplace_back(now, old);
    r_.replace(old, r_.builder().reshape(now, graph_.type(old).shape));
  }

  const Graph& graph_;
  const std::map<ValueId, Fp8Rounding>& roundings_;
  Rewriter r_;
  ValueReaders readers_;
  std::map<const Node*, Operands> planned_;
  std::map<ValueId, std::map<Operand::Form, Form>> quantized_;  // by rounding, and by how it lies
  std::vector<std::pair<ValueId, ValueId>> products_;           // values of the new graph: what they are
};

}  // namespace

Fp8Products multiply_in_fp8(const Graph& graph, const std::map<ValueId, Fp8Rounding>& roundings) {
  return Quantizer(graph, roundings).run();
}

}  // namespace partita
