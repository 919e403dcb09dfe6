#include "tests/codegen/support/attention_reference.h"

#include <string>

#include "ir/op/op_def.h"
#include "runtime/program/params.h"

namespace partita {
namespace {

using runtime::Step;

// Visits (element of a dense [batch, heads, rows, width], its place in the operand).
template <typename F>
void for_rows(const Step& step, const char* name, const Shape& shape, F visit) {
  const std::vector<int64_t> at = runtime::ints_param(step.params, name, {});
  size_t n = 0;
  for (int64_t b = 0; b < shape[0]; ++b)
    for (int64_t h = 0; h < shape[1]; ++h)
      for (int64_t i = 0; i < shape[2]; ++i)
        for (int64_t x = 0; x < shape[3]; ++x)
          visit(n++, static_cast<size_t>(at[0] + b * at[1] + h * at[2] + i * at[3] + x));
}

Tensor gathered(const Step& step, const char* name, const Tensor& from, const Shape& shape) {
  Tensor out = Tensor::zeros({from.type.dtype, shape});
  for_rows(step, name, shape, [&](size_t n, size_t place) { out.f[n] = from.f[place]; });
  return out;
}

void scatter(const Step& step, const char* name, const Tensor& from, Tensor& to) {
  for_rows(step, name, from.type.shape, [&](size_t n, size_t place) { to.f[place] = from.f[n]; });
}

}  // namespace

std::vector<Tensor> evaluate_attention(const Step& step, std::span<const Tensor* const> in) {
  const std::vector<int64_t> z = runtime::ints_param(step.params, "sizes", {});
  const Shape q{z[0], z[1], z[3], z[5]}, k{z[0], z[2], z[4], z[5]}, v{z[0], z[2], z[4], z[6]},
      out{z[0], z[1], z[3], z[6]};
  Attrs attrs;
  attrs.set("scale", runtime::real_param(step.params, "scale", 1));
  attrs.set("causal", runtime::int_param(step.params, "causal", 0));
  const bool gradient = step.name == "attention_grad";
  const size_t first = gradient ? 1 : 0;
  std::vector<Tensor> rows = {gathered(step, "q", *in[first], q), gathered(step, "k", *in[first + 1], k),
                              gathered(step, "v", *in[first + 2], v)};
  std::vector<const Tensor*> operands = {&rows[0], &rows[1], &rows[2]};
  const Tensor* mask = gradient ? in[4] : in.size() > 3 ? in[3] : nullptr;
  const auto result = [&](size_t k) {
    const runtime::Operand& o = step.operands[static_cast<size_t>(step.inputs) + k];
    return Tensor::zeros({o.dtype, o.shape});
  };
  if (!gradient) {
    if (mask != nullptr) operands.push_back(mask);
    const std::vector<Tensor> made = evaluate_op(*find_op("attention"), attrs, operands);
    std::vector<Tensor> results = {result(0), made[1]};
    scatter(step, "out", made[0], results[0]);
    return results;
  }
  const Tensor g = gathered(step, "g", *in[0], out), kept = gathered(step, "out", *in[5], out);
  operands = {&g, operands[0], operands[1], operands[2], mask, &kept, in[6]};
  const std::vector<Tensor> made = evaluate_op(*find_op("attention_grad"), attrs, operands);
  const bool together = step.params.contains("together");
  std::vector<Tensor> results;
  constexpr const char* kNames[] = {"dq", "dk", "dv"};
  for (size_t x = 0; x < 3; ++x) {
    if (x == 0 || !together) results.push_back(result(x));
    scatter(step, kNames[x], made[x], results.back());
  }
  return results;
}

}  // namespace partita
