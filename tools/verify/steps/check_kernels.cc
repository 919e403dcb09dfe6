// Steps that compute: generated code, and kernels of the library.
#include <algorithm>
#include <set>

#include "base/status.h"
#include "runtime/program/params.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/serial_values.h"
#include "tools/verify/steps/check_product.h"
#include "tools/verify/steps/check_step.h"
#include "tools/verify/steps/derivable.h"
#include "tools/verify/steps/step_checker.h"

namespace partita::verifier {

using runtime::Step;
using runtime::StepKind;

// The kernels of one fusion group compute its results together, and some of them a part each.
void StepChecker::add_to_group(Segment kind, const Step& step) {
  const Claim& claim = claims_[step.id];
  for (size_t k = static_cast<size_t>(step.inputs); k < claim.values.size(); ++k)
    last_writer_[{static_cast<int>(kind), claim.values[k]}] = step.id;
  auto& group = groups_[{static_cast<int>(kind), claims_[step.id].node}];
  const std::vector<int>& values = claims_[step.id].values;
  for (size_t k = 0; k < values.size() && k < static_cast<size_t>(step.inputs); ++k) {
    if (values[k] >= 0) group.insert(values[k]);
  }
}

// Temporaries that one step alone writes, and it reads one value alone, or none.
void StepChecker::note_temporaries(const Step& step) {
  const Claim& claim = claims_[step.id];
  for (size_t k = static_cast<size_t>(step.inputs); k < claim.values.size(); ++k) {
    if (claim.values[k] >= -1) continue;
    int made_of = -1;
    if (step.kind == StepKind::kKernel && step.inputs == 0) made_of = kConstants;
    if (step.kind == StepKind::kKernel && step.inputs == 1 && claim.values[0] >= 0) made_of = claim.values[0];
    auto [at, fresh] = rounded_.try_emplace(claim.values[k], made_of);
    if (!fresh) at->second = -1;
  }
}

absl::Status StepChecker::run_kernel(const Step& step) {
  PARTITA_RETURN_IF_ERROR(check_count(step));
  PARTITA_RETURN_IF_ERROR(check_apart(step, true));
  const Claim& claim = claims_[step.id];
  if (overwritten_by_ != claim.node) overwritten_.clear();
  overwritten_by_ = claim.node;
  for (size_t k = 0; k < static_cast<size_t>(step.inputs); ++k) {
    absl::Status status = read(step, k, claim.values[k]);
    if (!status.ok()) return differs("operand ", k, ": ", status.message());
  }
  const std::set<int>& given = groups_[{static_cast<int>(kind_), claim.node}];
  for (size_t k = static_cast<size_t>(step.inputs); k < step.operands.size(); ++k) {
    int value = claim.values[k];
    if (value >= 0) {
      PARTITA_RETURN_IF_ERROR(m_.check_type(step.operands[k], value));
      int missing = underivable(g_, storage_, m_.literals(), value, given);
      if (missing >= 0)
        return differs("operand ", k, ": ", m_.name(value), ": expected ", m_.name(missing),
                       " among the operands, found none");
      PARTITA_RETURN_IF_ERROR(check_segment(value));
    }
    Range r = range(step, k);
    PARTITA_RETURN_IF_ERROR(check_one_place(step, k, r));
    if (auto c = m_.memory().at(r)) overwritten_.try_emplace({static_cast<int>(r.region), r.begin}, *c);
    PARTITA_RETURN_IF_ERROR(m_.write_range(r, value));
    auto part = std::find_if(claim.parts.begin(), claim.parts.end(),
                             [&](const WrittenPart& p) { return static_cast<size_t>(p.operand) == k; });
    if (value >= 0)
      written_parts_.write(value, elements(g_.type(value).shape), part == claim.parts.end() ? nullptr : &*part);
  }
  return absl::OkStatus();
}

// Kernels of one group that write parts of a value write them side by side.
absl::Status StepChecker::check_one_place(const Step& step, size_t k, const Range& r) {
  const Claim& claim = claims_[step.id];
  auto [first, fresh] = places_.try_emplace({claim.node, claim.values[k]}, step.id, r);
  if (fresh || first->second.second == r) return absl::OkStatus();
  return differs("operand ", k, ": ", m_.name(claim.values[k]), ": expected it where step ", first->second.first,
                 " writes a part of it, found another place");
}

absl::Status StepChecker::run_library(const Step& step) {
  PARTITA_RETURN_IF_ERROR(check_count(step));
  const Claim& claim = claims_[step.id];
  if (claim.node < 0) return differs("it claims no node");
  const Node& node = g_.nodes[claim.node];
  const std::string epilogue = runtime::text_param(step.params, "epilogue", "");
  const bool accumulates = epilogue == "accumulate";
  PARTITA_RETURN_IF_ERROR(check_apart(step, false));
  if (!epilogue.empty() && !accumulates) return run_product(step, epilogue);
  PARTITA_RETURN_IF_ERROR(check_params(node, step, epilogue));
  PARTITA_RETURN_IF_ERROR(check_operands(step, node));
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    size_t o = node.inputs.size() + k;
    int value = storage_[node.outputs[k]];
    if (accumulates) {
      PARTITA_ASSIGN_OR_RETURN(value, read_sum(step, o, value));
    }
    PARTITA_RETURN_IF_ERROR(write_result(step, o, value));
  }
  return absl::OkStatus();
}

// A product that does what follows it.
absl::Status StepChecker::run_product(const Step& step, const std::string& epilogue) {
  const Claim& claim = claims_[step.id];
  const size_t inputs = static_cast<size_t>(step.inputs);
  if (inputs >= step.operands.size()) return differs("expected a result, found none");
  const bool accumulates = epilogue.rfind("accumulate", 0) == 0;
  const std::vector<ValueId>& own = g_.nodes[claim.node].outputs;
  const int result = !accumulates ? claim.values[inputs] : own.empty() ? -1 : storage_[own[0]];
  PARTITA_ASSIGN_OR_RETURN(const ProductOperands found,
                           product_operands(g_, storage_, epilogue, result, claim.values.back()));
  const Node& product = g_.nodes[found.product];
  PARTITA_RETURN_IF_ERROR(check_params(product, step, epilogue));
  if (inputs != found.inputs.size() || step.operands.size() - inputs != found.outputs.size())
    return differs("expected ", found.inputs.size(), " inputs and ", found.outputs.size(), " outputs");
  const TensorType& type = g_.type(product.outputs[0]);
  for (size_t k = 0; k < inputs; ++k) {
    int value = found.inputs[k];
    if (static_cast<int>(k) == found.bias && g_.type(value).dtype != type.dtype) {
      value = claim.values[k];
      PARTITA_RETURN_IF_ERROR(check_rounded(step.operands[k], value, found.inputs[k], type));
    }
    if (k < 2 && step.operands[k].shape != g_.type(product.inputs[k]).shape)
      return differs("operand ", k, ": expected ", to_string(g_.type(product.inputs[k]).shape));
    absl::Status status = claim.values[k] == value
                              ? read(step, k, value)
                              : differs("expected ", m_.name(value), ", found ", m_.name(claim.values[k]));
    if (!status.ok()) return differs("operand ", k, ": ", status.message());
  }
  for (size_t k = 0; k < found.outputs.size(); ++k) {
    int value = found.outputs[k];
    if (k == 0 && accumulates) {
      PARTITA_ASSIGN_OR_RETURN(value, read_sum(step, inputs, value));
    }
    PARTITA_RETURN_IF_ERROR(write_result(step, inputs + k, value));
  }
  return absl::OkStatus();
}

// `value` is a bias in fewer bits: of a step that reads nothing else. Code has constants of one number in itself.
absl::Status StepChecker::check_rounded(const runtime::Operand& operand, int value, int bias,
                                        const TensorType& type) const {
  const auto made = rounded_.find(value);
  const Literal* literal = m_.literals()[static_cast<size_t>(bias)];
  const int wanted = literal != nullptr && is_uniform(*literal) ? kConstants : bias;
  if (value >= -1 || made == rounded_.end() || made->second != wanted)
    return differs("expected ", m_.name(bias), " in ", dtype_name(type.dtype), ", found ", m_.name(value));
  if (operand.dtype == type.dtype && elements(operand.shape) == type.shape.back()) return absl::OkStatus();
  return differs("expected a bias of ", type.shape.back(), " ", dtype_name(type.dtype), ", found ",
                 dtype_name(operand.dtype), to_string(operand.shape));
}

// What a product is added to is read; the value that its result becomes.
absl::StatusOr<int> StepChecker::read_sum(const Step& step, size_t o, int value) {
  const int sum = claims_[step.id].values[o], to = sum < 0 ? -1 : added_to(g_, storage_, sum, value);
  if (to < 0) return differs("expected a sum with ", m_.name(value), ", found ", m_.name(sum));
  PARTITA_RETURN_IF_ERROR(read(step, o, to));
  return sum;
}

absl::Status StepChecker::write_result(const Step& step, size_t o, int value) {
  const int claimed = claims_[step.id].values[o];
  if (claimed != value) return differs("operand ", o, ": expected ", m_.name(value), ", found ", m_.name(claimed));
  PARTITA_RETURN_IF_ERROR(m_.check_type(step.operands[o], value));
  PARTITA_RETURN_IF_ERROR(check_segment(value));
  return m_.write_range(range(step, o), value);
}

}  // namespace partita::verifier
