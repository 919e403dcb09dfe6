// Steps that compute: generated code, and kernels of the library.
#include <algorithm>
#include <optional>

#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/params.h"
#include "tools/verify/kernels/nest_passes.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/serial_values.h"
#include "tools/verify/steps/check_product.h"
#include "tools/verify/steps/check_step.h"
#include "tools/verify/steps/step_checker.h"

namespace partita::verifier {

using runtime::Step;
using runtime::StepKind;

absl::StatusOr<StepChecker::KernelStep*> StepChecker::kernel_of(const Step& step) {
  if (auto known = kernel_steps_.find(step.id); known != kernel_steps_.end()) return &known->second;
  PARTITA_ASSIGN_OR_RETURN(const LoopNest* nest, kernels_.nest_of(step));
  KernelStep kernel{{*nest, claims_[step.id].values}};
  kernel.parts.resize(step.operands.size());
  for (size_t k = static_cast<size_t>(step.inputs); k < step.operands.size(); ++k) {
    WrittenPart part = written_part(*nest, static_cast<int>(k));
    const bool folds = std::any_of(nest->folds.begin(), nest->folds.end(),
                                   [&](const NestFold& f) { return f.access.operand == static_cast<int>(k); });
    if (!folds && !written_parts_.is_all(elements(step.operands[k].shape), part)) kernel.parts[k] = std::move(part);
  }
  return &kernel_steps_.emplace(step.id, std::move(kernel)).first->second;
}

absl::Status StepChecker::run_kernel(const Step& step) {
  PARTITA_RETURN_IF_ERROR(check_count(step));
  PARTITA_ASSIGN_OR_RETURN(KernelStep * kernel, kernel_of(step));
  PARTITA_RETURN_IF_ERROR(check_apart(step, true, kernel));
  PARTITA_RETURN_IF_ERROR(check_in_place(step, *kernel));
  const Claim& claim = claims_[step.id];
  for (size_t k = 0; k < static_cast<size_t>(step.inputs); ++k) {
    absl::Status status = read(step, k, claim.values[k]);
    if (!status.ok()) return differs("operand ", k, ": ", status.message());
  }
  PARTITA_RETURN_IF_ERROR(prove(*kernel));
  for (size_t k = static_cast<size_t>(step.inputs); k < step.operands.size(); ++k)
    PARTITA_RETURN_IF_ERROR(write_kernel(step, *kernel, k));
  return absl::OkStatus();
}

// A result that lies over an operand overwrites each element where it has been read.
absl::Status StepChecker::check_in_place(const Step& step, KernelStep& kernel) const {
  for (size_t o = static_cast<size_t>(step.inputs); o < step.operands.size(); ++o) {
    const Range out = range(step, o);
    for (size_t k = 0; k < static_cast<size_t>(step.inputs); ++k) {
      if (out.empty() || !range(step, k).overlaps(out)) continue;
      auto [at, fresh] = kernel.over.try_emplace({o, k}, false);
      if (fresh) at->second = overwrites_after_reading(kernel.use.nest, static_cast<int>(k), static_cast<int>(o));
      if (!at->second)
        return differs("operand ", o, " lies over operand ", k, ", elements of which are read after they are written");
    }
  }
  return absl::OkStatus();
}

// Once for all runs, and whichever kernels wrote the temporaries.
absl::Status StepChecker::prove(KernelStep& kernel) {
  std::vector<const NestUse*> from;
  for (int k = 0; k < kernel.use.nest.inputs; ++k) {
    const auto writer = writers_.find(kernel.use.values[static_cast<size_t>(k)]);
    if (writer != writers_.end()) from.push_back(writer->second.use);
  }
  if (kernel.proved.count(from)) return absl::OkStatus();
  PARTITA_RETURN_IF_ERROR(prove_nest(code_, kernel.use, writers_));
  kernel.proved.insert(std::move(from));
  return absl::OkStatus();
}

absl::Status StepChecker::write_kernel(const Step& step, const KernelStep& kernel, size_t k) {
  const int value = kernel.use.values[k];
  const WrittenPart* part = kernel.parts[k] ? &*kernel.parts[k] : nullptr;
  const Range r = range(step, k);
  if (value >= 0) {
    PARTITA_RETURN_IF_ERROR(m_.check_type(step.operands[k], value));
    PARTITA_RETURN_IF_ERROR(check_segment(value));
  } else {
    auto [writer, fresh] = writers_.try_emplace(value, TemporaryWriter{&kernel.use, static_cast<int>(k)});
    const bool alone = writer->second.use == &kernel.use && writer->second.operand == static_cast<int>(k);
    if (value == -1 || part != nullptr || !alone || quantized_.contains(value))
      return differs("operand ", k, ": expected a temporary that one kernel writes, and all of it");
  }
  PARTITA_RETURN_IF_ERROR(check_one_place(step, k, r));
  const std::optional<Content> before = m_.memory().at(r);
  const bool begun = before && before->value == value && before->each == each_ && before->run == entry_.micro_batch;
  const std::pair<int, int64_t> place{static_cast<int>(r.region), r.begin};
  if (part == nullptr || !before) {
    overwritten_.erase(place);
  } else if (!begun) {
    overwritten_[place] = *before;
  }
  PARTITA_RETURN_IF_ERROR(m_.write_range(r, value));
  if (value >= 0) written_parts_.write(value, elements(g_.type(value).shape), part);
  return absl::OkStatus();
}

// Kernels that write a value in parts may write it over another, each where it reads that: what they have not written
// yet is still there.
bool StepChecker::is_overwritten(const Step& step, const Range& r, int value) {
  const auto old = overwritten_.find({static_cast<int>(r.region), r.begin});
  const std::optional<Content> now = m_.memory().at(r);
  if (step.kind != StepKind::kKernel || old == overwritten_.end() || !now || !m_.is(old->second, value)) return false;
  for (size_t k = static_cast<size_t>(step.inputs); k < step.operands.size(); ++k) {
    const int written = claims_[step.id].values[k];
    if (range(step, k) == r && now->value == written && m_.is(*now, written) && !written_parts_.is_whole(written))
      return true;
  }
  return false;
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
  if (step.name == "quantize_fp8") return run_quantize(step);
  if (step.name == "multiply_fp8") return run_multiply(step);
  if (step.params.contains("sizes")) return run_attention(step);
  const Claim& claim = claims_[step.id];
  if (claim.node < 0) return differs("it claims no node");
  const Node& node = g_.nodes[claim.node];
  const std::string epilogue = runtime::text_param(step.params, "epilogue", "");
  const bool accumulates = epilogue == "accumulate";
  if (accumulates && step.name == "gather_grad") return run_added_rows(step);
  const bool sums = node.op->sums_micro_batches;
  PARTITA_RETURN_IF_ERROR(check_apart(step, sums));
  if (sums) PARTITA_RETURN_IF_ERROR(check_order(claim.node));
  if (!epilogue.empty() && !accumulates) return run_product(step, epilogue);
  if (accumulates && node.op->name != "matmul")
    return differs("expected no epilogue of a ", node.op->name, ", found ", quote(epilogue));
  PARTITA_RETURN_IF_ERROR(check_params(node, step, epilogue));
  PARTITA_RETURN_IF_ERROR(check_operands(step, node));
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    size_t o = node.inputs.size() + k;
    int value = in_order(node.outputs[k], has_channels_last(step));
    if (accumulates) {
      PARTITA_ASSIGN_OR_RETURN(value, read_sum(step, o, value));
    }
    PARTITA_RETURN_IF_ERROR(write_result(step, o, value));
  }
  return absl::OkStatus();
}

// Gradients of gathered rows, added to what the last operand is: the sum of both, which may lie where that did.
absl::Status StepChecker::run_added_rows(const Step& step) {
  PARTITA_RETURN_IF_ERROR(check_apart(step, true));
  const std::vector<int>& values = claims_[step.id].values;
  if (step.inputs != 3 || step.operands.size() != 4)
    return differs("expected rows, their indices, a term and a sum, found ", step.operands.size(), " operands");
  const Node* sum = values[3] < 0 ? nullptr : g_.producer(values[3]);
  const Node* rows = nullptr;
  for (size_t k = 0; sum != nullptr && k < sum->inputs.size() && rows == nullptr; ++k) {
    const ValueId term = sum->inputs[k];
    const Node* made = term == kNoValue ? nullptr : g_.producer(term);
    if (made != nullptr && made->op->name == "gather_grad" && added_to(g_, storage_, values[3], term) == values[2])
      rows = made;
  }
  if (rows == nullptr)
    return differs("expected a sum of gathered rows' gradient and ", m_.name(values[2]), ", found ",
                   m_.name(values[3]));
  PARTITA_RETURN_IF_ERROR(check_params(*rows, step, "accumulate"));
  const int expected[] = {storage_[rows->inputs[0]], storage_[rows->inputs[1]], values[2]};
  const TensorType types[] = {g_.type(rows->inputs[0]), g_.type(rows->inputs[1]), g_.type(rows->outputs[0]),
                              g_.type(rows->outputs[0])};
  for (size_t k = 0; k < step.operands.size(); ++k) {
    const runtime::Operand& o = step.operands[k];
    if (o.dtype != types[k].dtype || o.shape != types[k].shape)
      return differs("operand ", k, ": expected ", to_string(types[k]), ", found ", dtype_name(o.dtype),
                     to_string(o.shape));
  }
  for (size_t k = 0; k < 3; ++k) {
    absl::Status status = values[k] == expected[k]
                              ? read(step, k, expected[k])
                              : differs("expected ", m_.name(expected[k]), ", found ", m_.name(values[k]));
    if (!status.ok()) return differs("operand ", k, ": ", status.message());
  }
  return write_result(step, 3, values[3]);
}

// The terms of a sum in a fixed order come one after the other, from the first micro-batch on, or from the last one
// back.
absl::Status StepChecker::check_order(NodeId node) {
  const int64_t terms = g_.nodes[node].attrs.i("micro_batches", 0);
  if (terms != program_.micro_batches)
    return differs("expected a sum over ", program_.micro_batches, " micro-batches, found one over ", terms);
  const int32_t now = entry_.micro_batch, last = static_cast<int32_t>(terms) - 1;
  const auto [term, first] = terms_.try_emplace(node, now);
  const bool next = first ? now == 0 || now == last : now == term->second + 1 || now == term->second - 1;
  if (!next) return differs("expected the terms of a sum in their order, found that of micro-batch ", now);
  term->second = now;
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
  if (step.operands[inputs].shape != type.shape)
    return differs("operand ", inputs, ": expected ", to_string(type.shape));
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

// `value` is a bias in fewer bits, which a kernel has made of it.
absl::Status StepChecker::check_rounded(const runtime::Operand& operand, int value, int bias,
                                        const TensorType& type) const {
  const auto made = writers_.find(value);
  const absl::Status cast =
      made == writers_.end() ? differs("no kernel has written it") : prove_cast(code_, made->second, bias, type.dtype);
  if (!cast.ok())
    return differs("expected ", m_.name(bias), " in ", dtype_name(type.dtype), ", found ", m_.name(value), ": ",
                   cast.message());
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
