#include "ir/op/op_def.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {
namespace {

absl::StatusOr<Formula> formula_for(const OpDef& op, const OpView& use) {
  PARTITA_ASSIGN_OR_RETURN(Formula formula,
                           parse_formula(op.formula_of ? op.formula_of(use) : std::string(op.formula)));
  std::vector<Shape> shapes;
  for (const TensorType& t : use.inputs) {
    if (t.dtype != DType::kInvalid) shapes.push_back(t.shape);
  }
  PARTITA_RETURN_IF_ERROR(bind_sizes(formula, shapes));
  return formula;
}

bool has_type(const AttrValue& value, std::string_view type) {
  if (type == "i") return std::holds_alternative<int64_t>(value);
  if (type == "f") return std::holds_alternative<double>(value);
  if (type == "s") return std::holds_alternative<std::string>(value);
  if (type == "dtype") return std::holds_alternative<DType>(value);
  if (type == "ints") return std::holds_alternative<std::vector<int64_t>>(value);
  return type == "floats" && std::holds_alternative<std::vector<double>>(value);
}

// Checks `attrs` against OpDef::attributes.
absl::Status check_attributes(const OpDef& op, const Attrs& attrs) {
  std::vector<std::string_view> known;
  for (std::string_view rest = op.attributes; !rest.empty();) {
    std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 2));
    std::string_view type = item.substr(0, item.find(' ')), name = item.substr(item.find(' ') + 1);
    bool optional = name.ends_with('?');
    if (optional) name.remove_suffix(1);
    known.push_back(name);
    const AttrValue* value = attrs.find(name);
    if (value == nullptr && !optional)
      return absl::InvalidArgumentError(cat("expected an attribute '", name, "' (", type, "), found none"));
    if (value != nullptr && !has_type(*value, type))
      return absl::InvalidArgumentError(cat("attribute '", name, "': expected ", type, ", found another type"));
  }
  for (const auto& [name, value] : attrs.items()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(
          cat("unknown attribute ", quote(name), "; expected ", op.attributes.empty() ? "none" : op.attributes));
    }
  }
  return absl::OkStatus();
}

absl::Status check_inputs(const OpDef& op, const OpView& use) {
  int count = static_cast<int>(use.inputs.size());
  if (count < op.min_inputs || (op.max_inputs >= 0 && count > op.max_inputs)) {
    std::string more = op.max_inputs < 0 ? " or more" : op.max_inputs > op.min_inputs ? cat(" to ", op.max_inputs) : "";
    return absl::InvalidArgumentError(cat("expected ", op.min_inputs, more, " inputs, found ", count));
  }
  for (int k = 0; k < op.min_inputs; ++k) {
    if (use.dtype(k) == DType::kInvalid) return absl::InvalidArgumentError(cat("input ", k, " is required"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<TensorType>> infer_types(const OpDef& op, const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_inputs(op, use));
  PARTITA_RETURN_IF_ERROR(check_attributes(op, use.attrs));
  if (op.infer) return op.infer(use);
  PARTITA_ASSIGN_OR_RETURN(Formula formula, formula_for(op, use));
  std::vector<TensorType> types;
  for (const FormulaOperand& out : formula.outputs) {
    Shape shape = operand_shape(formula, out);
    if (!checked_elements(shape))
      return absl::InvalidArgumentError(cat("a result of ", to_string(shape), " elements is too large"));
    types.push_back({use.inputs.empty() ? DType::kF32 : use.inputs[0].dtype, std::move(shape)});
  }
  return types;
}

Formula bound_formula(const OpDef& op, const OpView& use) {
  auto formula = formula_for(op, use);
  PARTITA_CHECK(formula.ok(), cat(op.name, ": ", formula.status().message()));
  return *std::move(formula);
}

double use_flops(const OpDef& op, const OpView& use, const Formula& bound) {
  if (op.flops) return op.flops(use);
  double flops = op.flops_per_point;
  for (const Factor& f : bound.factors) flops *= static_cast<double>(f.size);
  return flops;
}

ScalarFunction scalar_function(const OpDef& op, const OpView& use) {
  ScalarBuilder s;
  Scalars inputs;
  for (size_t k = 0; k < use.inputs.size(); ++k) inputs.push_back(s.input(static_cast<int>(k), use.inputs[k].dtype));
  Scalars outputs = op.scalar(s, use, inputs);
  ScalarFunction function{std::move(s.nodes()), {}};
  for (Scalar x : outputs) function.outputs.push_back(x.id);
  return function;
}

Attrs localized_attrs(const OpDef& op, const Attrs& attrs, std::span<const Shape> local_inputs,
                      std::span<const Shape> local_outputs) {
  if (op.localize) return op.localize(attrs, local_inputs, local_outputs);
  Attrs local = attrs;
  if (attrs.has("shape")) local.set("shape", local_outputs[0]);
  return local;
}

const OpDef* find_op(std::string_view name) {
  static const auto* const kByName = [] {
    auto* map = new absl::flat_hash_map<std::string_view, const OpDef*>();
    for (const OpDef* op : all_ops()) map->emplace(op->name, op);
    return map;
  }();
  auto at = kByName->find(name);
  return at == kByName->end() ? nullptr : at->second;
}

}  // namespace partita
