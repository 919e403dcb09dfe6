// Products of fp8 numbers: steps that write a matrix as bytes and scales (base/math/quantized.h), and steps that
// multiply two of those. A product is the graph's where each of its operands is what the graph rounds to fp8: of the
// same value, in the same format, with the blocks that the step's parameters say.
#include <optional>
#include <string>

#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/params.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/serial_values.h"
#include "tools/verify/steps/check_step.h"
#include "tools/verify/steps/step_checker.h"

namespace partita::verifier {
namespace {

using runtime::Step;

absl::Status check_only(const Step& step, const runtime::Params& expected) {
  for (const auto& [name, value] : expected) {
    const auto found = step.params.find(name);
    if (found == step.params.end() || found->second != value)
      return differs("expected parameter ", quote(name), " as the graph has it, found another");
  }
  for (const auto& [name, value] : step.params) {
    if (!expected.contains(name)) return differs("expected no parameter ", quote(name), " of a ", step.name);
  }
  return absl::OkStatus();
}

bool is_of(const runtime::Operand& operand, DType dtype, const Shape& shape) {
  return operand.dtype == dtype && operand.shape == shape;
}

bool is_set(const Node& node, const char* name) { return node.attrs.i(name, 0) != 0; }

int64_t matrices(const Shape& shape) { return elements(Shape(shape.begin(), shape.end() - 2)); }

}  // namespace

// What it writes are temporaries, this step's alone: a matrix in rows, or its transpose, or, with `both`, the two.
absl::Status StepChecker::run_quantize(const Step& step) {
  const auto is_set = [&](const char* name) { return runtime::int_param(step.params, name, 0) != 0; };
  const bool both = is_set("both");
  if (step.inputs != 1 || step.operands.size() != (both ? 3 : 2) || claims_[step.id].node >= 0)
    return differs("expected a matrix and its bytes, which are no node's");
  const int value = claims_[step.id].values[0];
  Quantized q{.step = step.id,
              .segment = kind_,
              .of = value,
              .format = runtime::text_param(step.params, "format", ""),
              .tiles = is_set("tiles"),
              .transpose = !both && is_set("transpose")};
  runtime::Params expected{{"format", q.format}};
  if (q.tiles) expected["tiles"] = int64_t{1};
  if (q.transpose) expected["transpose"] = int64_t{1};
  if (both) expected["both"] = int64_t{1};
  PARTITA_RETURN_IF_ERROR(check_only(step, expected));
  if (q.format != "e4m3" && q.format != "e5m2") return differs("expected a format of fp8, found ", quote(q.format));
  q.matrix = step.operands[0].shape;
  if (value < 0 || q.matrix.size() != 2 || step.operands[0].dtype != DType::kBF16)
    return differs("operand 0: expected a matrix of bf16, found ", m_.name(value));
  PARTITA_RETURN_IF_ERROR(check_apart(step, false));
  if (absl::Status status = read(step, 0, value); !status.ok()) return differs("operand 0: ", status.message());
  for (size_t k = 1; k < step.operands.size(); ++k, q.transpose = true)
    PARTITA_RETURN_IF_ERROR(write_quantized(step, k, q));
  return absl::OkStatus();
}

absl::Status StepChecker::write_quantized(const Step& step, size_t k, const Quantized& q) {
  if (!q.quantized().fits() || !is_of(step.operands[k], DType::kU8, {q.quantized().bytes()}))
    return differs("operand ", k, ": expected the bytes and scales of whole blocks, u8[", q.quantized().bytes(), "]");
  const int made = claims_[step.id].values[k];
  const Quantized& first = quantized_.try_emplace(made, q).first->second;
  if (made >= -1 || first.step != step.id || first.transpose != q.transpose || writers_.contains(made))
    return differs("operand ", k, ": expected a temporary that one step writes, found ", m_.name(made));
  return m_.write_range(range(step, k), made);
}

absl::Status StepChecker::run_multiply(const Step& step) {
  const Claim& claim = claims_[step.id];
  const Node* node = claim.node < 0 ? nullptr : &g_.nodes[claim.node];
  if (node == nullptr || node->op->name != "matmul" || node->attrs.i("fp8", 0) != kFp8Block ||
      node->attrs.i("block", 0) != 0)
    return differs("expected a product of values that are rounded to fp8 in blocks of ", kFp8Block);
  if (step.inputs != 2 || step.operands.size() != 3) return differs("expected two operands and a result");
  PARTITA_RETURN_IF_ERROR(check_apart(step, false));
  const Quantized* q[2];
  for (size_t k = 0; k < 2; ++k) {
    const auto found = quantized_.find(claim.values[k]);
    if (found == quantized_.end())
      return differs("operand ", k, ": expected what a step has quantized, found ", m_.name(claim.values[k]));
    q[k] = &found->second;
    const bool sums_last = k == 0 ? !is_set(*node, "transpose_a") : is_set(*node, "transpose_b");
    absl::Status status = check_rounding(node->inputs[k], *q[k], !sums_last);
    if (status.ok() && !is_of(step.operands[k], DType::kU8, {q[k]->quantized().bytes()}))
      status = differs("expected u8[", q[k]->quantized().bytes(), "]");
    if (status.ok()) status = m_.read_range(range(step, k), claim.values[k]);
    if (!status.ok()) return differs("operand ", k, ": ", status.message());
  }
  const QuantizedMatrix a = q[0]->quantized(), b = q[1]->quantized();
  const bool folds = is_set(*node, "transpose_a") && matrices(g_.type(node->inputs[0]).shape) != 1;
  if (a.inner != b.inner || matrices(g_.type(node->inputs[1]).shape) != 1 || folds)
    return differs("expected a product of two matrices");
  runtime::Params expected{{"m", a.rows}, {"n", b.rows}, {"k", a.inner}, {"a", q[0]->format}, {"b", q[1]->format}};
  if (a.tiles) expected["tiles_a"] = int64_t{1};
  if (b.tiles) expected["tiles_b"] = int64_t{1};
  const bool accumulates = step.params.contains("epilogue");
  if (accumulates) expected["epilogue"] = std::string("accumulate");
  PARTITA_RETURN_IF_ERROR(check_only(step, expected));
  if (!is_of(step.operands[2], DType::kBF16, {a.rows, b.rows}))
    return differs("operand 2: expected bf16[", a.rows, ", ", b.rows, "]");
  int result = storage_[node->outputs[0]];
  if (accumulates) {
    PARTITA_ASSIGN_OR_RETURN(result, read_sum(step, 2, result));
  }
  return write_result(step, 2, result);
}

// `v`, an operand of a product, is what `q` has of it: the rounding of the same value, block by block.
absl::Status StepChecker::check_rounding(ValueId v, const Quantized& q, bool transpose) const {
  const auto rounding = roundings_.find(storage_[v]);
  if (rounding == roundings_.end()) return differs("expected a rounding to fp8, found ", m_.name(storage_[v]));
  const Fp8Rounding& r = rounding->second;
  if (r.of != q.of || r.format != q.format)
    return differs("expected ", m_.name(r.of), " in ", r.format, ", found ", m_.name(q.of), " in ", q.format);
  if (const Segment made = g_.producer(rounding->first)->segment; runs_of(made) != runs_of(q.segment))
    return differs(m_.name(q.of), ": expected it quantized in segment ", enum_name(made), ", found in ",
                   enum_name(q.segment));
  const int64_t columns = g_.type(v).shape.back();
  const std::optional<Fp8Block> block = fp8_block(r.shape, r.dims, columns);
  const Fp8Block expected = q.tiles       ? Fp8Block{kFp8Block, kFp8Block}
                            : q.transpose ? Fp8Block{kFp8Block, 1}
                                          : Fp8Block{1, kFp8Block};
  if (!block || *block != expected || q.transpose != transpose ||
      q.matrix != Shape{elements(g_.type(v).shape) / columns, columns})
    return differs("expected the blocks of ", m_.name(storage_[v]), " in rows of what is summed over, found others");
  return absl::OkStatus();
}

}  // namespace partita::verifier
