#include "tests/codegen/support/product_reference.h"

#include <set>

#include "absl/strings/str_split.h"
#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/evaluate.h"
#include "runtime/program/params.h"

namespace partita {
namespace {

Tensor apply(std::string_view op, const Attrs& attrs, std::vector<const Tensor*> inputs) {
  return evaluate_op(*find_op(op), attrs, inputs)[0];
}

}  // namespace

std::vector<Tensor> evaluate_product(const runtime::Step& step, std::span<const Tensor> inputs, const Tensor& held) {
  std::set<std::string> pieces =
      absl::StrSplit(runtime::text_param(step.params, "epilogue", ""), '+', absl::SkipEmpty());
  const auto take = [&](const char* piece) { return pieces.erase(piece) > 0; };
  Attrs attrs;
  for (const char* name : {"transpose_a", "transpose_b"}) attrs.set(name, runtime::int_param(step.params, name, 0));
  std::vector<Tensor> results = {apply("matmul", attrs, {&inputs[0], &inputs[1]})};
  const bool relu = take("relu");
  const Attrs tanh = {{"approximate", int64_t{1}}};
  if (take("bias")) {
    const size_t columns = static_cast<size_t>(results[0].type.shape.back());
    for (size_t k = 0; k < results[0].f.size(); ++k) results[0].f[k] += inputs[2].f[k % columns];
  }
  if (take("accumulate")) {
    for (size_t k = 0; k < held.f.size(); ++k) results[0].f[k] += held.f[k];
  }
  if (take("aux")) results.push_back(results[0]);
  if (relu) results[0] = apply("relu", {}, {&results[0]});
  if (take("gelu_tanh")) results[0] = apply("gelu", tanh, {&results[0]});
  if (take("gelu_tanh_grad")) {
    Tensor of = inputs.back();
    of.type.shape = results[0].type.shape;
    results[0] = apply("gelu_grad", tanh, {&results[0], &of});
  }
  for (size_t operand = 0; operand < 2; ++operand) {
    if (!take(operand == 0 ? "sum_a" : "sum_b")) continue;
    std::vector<int64_t> rows;
    for (size_t d = 0; d + 1 < inputs[operand].type.shape.size(); ++d) rows.push_back(static_cast<int64_t>(d));
    results.push_back(apply("reduce_sum", {{"dims", rows}, {"keep", int64_t{0}}}, {&inputs[operand]}));
  }
  PARTITA_CHECK(pieces.empty(),
                cat("an epilogue that the reference does not know: ", pieces.empty() ? "" : *pieces.begin()));
  return results;
}

}  // namespace partita
