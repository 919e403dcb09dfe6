#include "tools/proof/trials/library_meaning.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "absl/strings/str_split.h"
#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "ir/graph/index_bounds.h"
#include "runtime/program/params.h"
#include "tools/proof/trials/sampled_indices.h"

namespace partita {
namespace {

constexpr double kOperations = 1e6, kMostOperations = 1e9;  // of a part: about, and at most
constexpr int kMoves = 2;                                   // of the operands, by what rounding them changes
constexpr int kMovesOfRows = 8;  // where rows are added up: one result may have most of them, and others tell little
constexpr double kNoise = 8;

bool has(const std::vector<FormulaOperand>& operands, int factor, bool all) {
  const auto in = [&](const FormulaOperand& o) { return has_factor(o, factor); };
  return all ? std::all_of(operands.begin(), operands.end(), in) : std::any_of(operands.begin(), operands.end(), in);
}

Tensor apply_op(std::string_view name, const Attrs& attrs, const std::vector<const Tensor*>& inputs) {
  return evaluate_op(*find_op(name), attrs, inputs)[0];
}

// What a product does with its result (runtime/kernels/matmul_plan.h).
void finish_product(const std::string& epilogue, const Tensor* bias, const Tensor& held, Tensor& result) {
  const std::set<std::string> pieces = absl::StrSplit(epilogue, '+', absl::SkipEmpty());
  if (pieces.count("bias")) {
    for (size_t k = 0; k < result.f.size(); ++k) result.f[k] += bias->f[k % bias->f.size()];
  }
  if (pieces.count("accumulate")) {
    for (size_t k = 0; k < result.f.size(); ++k) result.f[k] += held.f[k];
  }
  if (pieces.count("relu")) result = apply_op("relu", {}, {&result});
  if (pieces.count("gelu_erf")) result = apply_op("gelu", {}, {&result});
  if (pieces.count("gelu_tanh")) result = apply_op("gelu", {{"approximate", int64_t{1}}}, {&result});
}

bool is_known_epilogue(const std::string& epilogue) {
  const std::set<std::string> known = {"bias", "accumulate", "relu", "gelu_erf", "gelu_tanh"};
  for (const auto piece : absl::StrSplit(epilogue, '+', absl::SkipEmpty())) {
    if (known.count(std::string(piece)) == 0) return false;
  }
  return true;
}

// Float operands a part of themselves up or down, at random.
Tensor moved(Tensor t, double share, std::mt19937_64& draw) {
  for (double& x : t.f) {
    if (std::isfinite(x)) x *= draw() % 2 == 0 ? 1 + share : 1 - share;
  }
  return t;
}

}  // namespace

LibraryMeaning::LibraryMeaning(const runtime::Step& step) : step_(step) {}

int64_t LibraryMeaning::Rows::place(int64_t element) const {
  const int64_t width = shape[3], row = element / width, head = row / shape[2], sample = head / shape[1];
  return at[0] + sample * at[1] + head % shape[1] * at[2] + row % shape[2] * at[3] + element % width;
}

// Attention whose step says where rows lie: the op's operands are those rows, its attributes what else there is.
absl::Status LibraryMeaning::take_views() {
  const std::vector<int64_t> z = runtime::ints_param(step_.params, "sizes", {});
  if (z.size() != 7) return absl::InvalidArgumentError(cat(step_.name, ": expected seven sizes"));
  const Shape q{z[0], z[1], z[3], z[5]}, k{z[0], z[2], z[4], z[5]}, v{z[0], z[2], z[4], z[6]},
      out{z[0], z[1], z[3], z[6]};
  const bool gradient = step_.name == "attention_grad";
  const auto inputs = static_cast<size_t>(step_.inputs);
  const auto rows = [&](const char* name, size_t operand, const Shape& shape) {
    rows_[operand] = {shape, runtime::ints_param(step_.params, name, {})};
    if (operand < inputs) types_[operand].shape = shape;
    return rows_[operand].at.size() == 4
               ? absl::OkStatus()
               : absl::InvalidArgumentError(cat(step_.name, ": expected four numbers ", name));
  };
  const size_t first = gradient ? 1 : 0;
  PARTITA_RETURN_IF_ERROR(rows("q", first, q));
  PARTITA_RETURN_IF_ERROR(rows("k", first + 1, k));
  PARTITA_RETURN_IF_ERROR(rows("v", first + 2, v));
  PARTITA_RETURN_IF_ERROR(rows("out", gradient ? 5 : inputs, out));
  if (gradient) {
    PARTITA_RETURN_IF_ERROR(rows("g", 0, out));
    PARTITA_RETURN_IF_ERROR(rows("dq", inputs, q));
    PARTITA_RETURN_IF_ERROR(rows("dk", inputs + 1, k));
    PARTITA_RETURN_IF_ERROR(rows("dv", inputs + 2, v));
  }
  together_ = step_.params.contains("together");
  attrs_ = {};
  for (const char* name : {"scale", "causal", "kernel"}) {
    const auto at = step_.params.find(name);
    if (at != step_.params.end()) std::visit([&](const auto& x) { attrs_.set(name, x); }, at->second);
  }
  return absl::OkStatus();
}

absl::StatusOr<LibraryMeaning> LibraryMeaning::of(const runtime::Step& step) {
  LibraryMeaning m(step);
  m.op_ = find_op(step.name);
  const std::string epilogue = runtime::text_param(step.params, "epilogue", "");
  if (m.op_ == nullptr || m.op_->sums_micro_batches || !is_known_epilogue(epilogue))
    return absl::UnimplementedError("its result depends on what ran before it");
  for (const auto& [name, value] : step.params) {
    if (name != "epilogue") std::visit([&, n = name](const auto& v) { m.attrs_.set(n, v); }, value);
  }
  const size_t inputs = epilogue.empty() ? static_cast<size_t>(step.inputs) : 2;
  Builder b;
  std::vector<ValueId> values;
  for (size_t k = 0; k < inputs; ++k) {
    const runtime::Operand& o = step.operands[k];
    m.types_.push_back({o.dtype, o.shape});
  }
  if (step.params.contains("sizes")) PARTITA_RETURN_IF_ERROR(m.take_views());
  for (size_t k = 0; k < inputs; ++k)
    values.push_back(m.types_[k].dtype == DType::kInvalid ? kNoValue : b.input(cat("operand ", k), m.types_[k]));
  const OpView use{m.attrs_, m.types_};
  PARTITA_RETURN_IF_ERROR(infer_types(*m.op_, use).status());
  m.formula_ = bound_formula(*m.op_, use);
  for (size_t k = 0; k < inputs; ++k) {  // a formula has no operand where one is absent
    if (m.types_[k].dtype == DType::kInvalid)
      m.formula_.inputs.insert(m.formula_.inputs.begin() + static_cast<std::ptrdiff_t>(k), FormulaOperand{});
  }
  b.emit(step.name, values, m.attrs_);
  const auto known = index_bounds(b.graph());
  int64_t largest = 1;
  for (const runtime::Operand& o : step.operands) {
    for (int64_t d : o.shape) largest = std::max(largest, d);
  }
  for (size_t k = 0; k < inputs; ++k) {
    const auto at = known.find(cat("operand ", k));
    m.bounds_.push_back(m.attrs_.has("parts") ? IndexBounds{0, m.attrs_.i("parts"), 0}  // a rank's coordinate says one
                        : at != known.end()   ? at->second
                                              : IndexBounds{0, largest, 0});
  }
  for (size_t k = 0; k < inputs; ++k) {
    const DType type = m.types_[k].dtype;
    m.linear_ = m.linear_ && (!is_float(type) || m.formula_.inputs[k].linear >= 0);
  }
  for (const Factor& f : m.formula_.factors)
    m.has_windows_ = m.has_windows_ || (m.op_->work == WorkKind::kMatrix && f.role == FactorRole::kWhole);
  for (size_t f = 0; f < m.formula_.factors.size(); ++f) {
    const bool runs =
        m.op_->name == "cumsum" && m.formula_.factors[f].role == FactorRole::kWhole;  // sums of all before
    if (runs || !has_factor(m.formula_.outputs[0], static_cast<int>(f)))
      m.terms_ *= static_cast<double>(m.formula_.factors[f].size);
  }
  m.rare_ = static_cast<int64_t>(std::clamp(4 * m.terms_, 16.0, 1e6));
  m.choose_sizes();
  if (m.flops() > kMostOperations)
    return absl::UnimplementedError("the reference evaluator takes too long for any part of its result");
  return m;
}

bool LibraryMeaning::adds_rows() const { return step_.name == "gather_grad" && step_.inputs == 3; }

// A factor along which each part of the operands makes a part of every result.
bool LibraryMeaning::is_free(int factor) const {
  return formula_.factors[static_cast<size_t>(factor)].role == FactorRole::kParallel &&
         has(formula_.inputs, factor, false) && has(formula_.outputs, factor, true);
}

Formula LibraryMeaning::part() const {
  Formula f = formula_;
  for (size_t k = 0; k < sizes_.size(); ++k) f.factors[k].size = sizes_[k];
  return f;
}

double LibraryMeaning::flops() const {
  const Formula f = part();
  std::vector<TensorType> types;
  std::vector<Shape> in, out;
  double all = 0;
  for (size_t k = 0; k < types_.size(); ++k) {
    in.push_back(types_[k].dtype == DType::kInvalid ? Shape{} : operand_shape(f, f.inputs[k]));
    types.push_back({types_[k].dtype, in.back()});
    if (types_[k].dtype != DType::kInvalid) all += static_cast<double>(elements(in.back()));
  }
  for (const FormulaOperand& o : f.outputs) {
    out.push_back(operand_shape(f, o));
    all += static_cast<double>(elements(out.back()));
  }
  const Attrs attrs = localized_attrs(*op_, attrs_, in, out);
  return 10 * all + use_flops(*op_, {attrs, types}, f);
}

// Halves the longest factor until the part is small.
void LibraryMeaning::choose_sizes() {
  for (const Factor& f : formula_.factors) sizes_.push_back(f.size);
  while (flops() > kOperations) {
    size_t longest = sizes_.size();
    for (size_t k = 0; k < sizes_.size(); ++k) {
      if (sizes_[k] > 1 && is_free(static_cast<int>(k)) && (longest == sizes_.size() || sizes_[k] > sizes_[longest]))
        longest = k;
    }
    if (longest == sizes_.size()) return;
    sizes_[longest] = (sizes_[longest] + 1) / 2;
  }
}

// The row-major numbers of an operand's elements that have those indices.
std::vector<int64_t> LibraryMeaning::elements_of(const FormulaOperand& operand, const Chosen& chosen) const {
  std::vector<int64_t> all{0};
  for (const std::vector<int>& dim : operand.dims) {
    for (int factor : dim) {
      const int64_t size = formula_.factors[static_cast<size_t>(factor)].size;
      std::vector<int64_t> next;
      for (int64_t e : all) {
        for (int64_t i : chosen[static_cast<size_t>(factor)]) next.push_back(e * size + i);
      }
      all = std::move(next);
    }
  }
  return all;
}

// Where elements of an operand lie in the step's.
std::vector<int64_t> LibraryMeaning::places_of(size_t operand, std::vector<int64_t> elements) const {
  const auto rows = rows_.find(operand);
  for (int64_t& e : elements) e = rows == rows_.end() ? e : rows->second.place(e);
  return elements;
}

std::vector<Tensor> LibraryMeaning::evaluate(const std::vector<Tensor>& inputs, const Tensor& held) const {
  const Formula f = part();
  std::vector<Shape> in, out;
  std::vector<const Tensor*> pointers;
  for (size_t k = 0; k < types_.size(); ++k) {
    in.push_back(inputs[k].type.shape);
    pointers.push_back(types_[k].dtype == DType::kInvalid ? nullptr : &inputs[k]);
  }
  for (const FormulaOperand& o : f.outputs) out.push_back(operand_shape(f, o));
  std::vector<Tensor> results = evaluate_op(*op_, localized_attrs(*op_, attrs_, in, out), pointers);
  const std::string epilogue = runtime::text_param(step_.params, "epilogue", "");
  if (!epilogue.empty()) finish_product(epilogue, inputs.size() > 2 ? &inputs[2] : nullptr, held, results[0]);
  return results;
}

// How far a result may be off: as what moving the operands changes it, more where it is a longer sum.
std::vector<BoundedValue> LibraryMeaning::bounded(const Tensor& exact, const std::vector<const Tensor*>& others) const {
  const DType type = exact.type.dtype;
  std::vector<BoundedValue> values;
  for (int64_t i : exact.i) values.push_back({{0, i}, 0});
  for (double x : exact.f) values.push_back({{x, 0}, 0});
  double squares = 0, count = 0;
  for (const Tensor* t : others) {
    for (size_t k = 0; k < values.size(); ++k) {
      BoundedValue& v = values[k];
      const double x = is_float(type) ? t->f[k] : 0;
      if (is_float(type) ? std::isnan(x) != std::isnan(v.value.f) || (std::isinf(x) && x != v.value.f)
                         : t->i[k] != v.value.i) {
        v.off = INFINITY;
      } else if (is_float(type) && std::isfinite(x)) {
        v.off = std::max(v.off, std::abs(x - v.value.f));
        if (std::isfinite(v.off)) squares += v.off * v.off, ++count;
      }
    }
  }
  if (!is_float(type)) return values;
  const double usual = count > 0 ? std::sqrt(squares / count) : 0;
  for (BoundedValue& v : values) {
    if (!std::isfinite(v.value.f)) continue;
    v.off = kNoise * (1 + std::sqrt(terms_ / 64)) * std::max(v.off, usual) + 4 * half_unit(type) * std::abs(v.value.f);
    v = stored(type, v);
  }
  return values;
}

std::vector<LibraryMeaning::Part> LibraryMeaning::sample(const std::vector<const std::byte*>& operands,
                                                         std::mt19937_64& draw) const {
  Chosen chosen;
  for (size_t k = 0; k < sizes_.size(); ++k)
    chosen.push_back(sampled_indices(formula_.factors[k].size, sizes_[k], draw));
  const Formula f = part();
  const auto take = [&](size_t operand, const std::vector<int64_t>& of, Shape shape) {
    const Literal all{{step_.operands[operand].dtype, step_.operands[operand].shape}, nullptr, operands[operand]};
    Tensor t = Tensor::zeros({all.type.dtype, std::move(shape)});
    for (size_t k = 0; k < of.size(); ++k) {
      if (is_float(all.type.dtype)) {
        t.f[k] = element_f(all, of[k]);
      } else {
        t.i[k] = element_i(all, of[k]);
      }
    }
    return t;
  };
  std::vector<Tensor> inputs;
  DType narrow = DType::kF64;
  for (size_t k = 0; k < static_cast<size_t>(step_.inputs); ++k) {
    if (operands[k] == nullptr) {
      inputs.emplace_back();
    } else if (k < types_.size()) {
      inputs.push_back(take(k, places_of(k, elements_of(f.inputs[k], chosen)), operand_shape(f, f.inputs[k])));
      const DType type = types_[k].dtype;
      if (is_float(type) && half_unit(type) > half_unit(narrow)) narrow = type;
    } else if (!adds_rows()) {  // a bias, one number for each column of the result
      const std::vector<int64_t>& columns = chosen[static_cast<size_t>(f.outputs[0].dims.back()[0])];
      inputs.push_back(take(k, columns, {static_cast<int64_t>(columns.size())}));
    }
  }
  std::vector<std::vector<int64_t>> places;
  const auto first = static_cast<size_t>(step_.inputs);
  for (size_t o = 0; o < f.outputs.size(); ++o)
    places.push_back(places_of(first + o, elements_of(f.outputs[o], chosen)));
  // What rows are added to is an operand; what a product is added to lies where its result comes.
  const Tensor held = take(adds_rows() ? 2 : first, places[0], operand_shape(f, f.outputs[0]));
  // Products are added up in 32 bits at least.
  const double share =
      op_->work == WorkKind::kMatrix && linear_ && narrow != DType::kF64 ? half_unit(DType::kF32) : half_unit(narrow);
  const std::vector<Tensor> exact = evaluate(inputs, held);
  std::vector<std::vector<Tensor>> others;
  for (int m = 0; m < (step_.name == "gather_grad" ? kMovesOfRows : kMoves); ++m) {
    std::vector<Tensor> off;
    for (const Tensor& t : inputs) off.push_back(moved(t, share, draw));
    others.push_back(evaluate(off, moved(held, share, draw)));
  }
  std::vector<Part> parts;
  for (size_t o = 0; o < exact.size(); ++o) {
    std::vector<const Tensor*> of;
    for (const std::vector<Tensor>& t : others) of.push_back(&t[o]);
    parts.push_back({together_ ? first : first + o, std::move(places[o]), bounded(exact[o], of)});
  }
  return parts;
}

}  // namespace partita
