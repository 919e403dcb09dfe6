#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> broadcast_types(const OpView& use) {
  const Shape &from = use.shape(0), &to = use.attrs.ints("shape");
  bool fits = checked_elements(to) && from.size() <= to.size();
  for (size_t d = 0; fits && d < from.size(); ++d) {
    int64_t size = to[to.size() - from.size() + d];
    fits = from[d] == size || from[d] == 1;
  }
  if (!fits) return absl::InvalidArgumentError(cat("cannot broadcast ", to_string(from), " to ", to_string(to)));
  return std::vector<TensorType>{{use.dtype(), to}};
}

// "~ * b -> n=4 a=3 b": what is new or expanded is made by the op, so any rank makes its own part of it.
std::string broadcast_formula(const OpView& use) {
  const Shape &from = use.shape(0), &to = use.attrs.ints("shape");
  size_t lead = to.size() - from.size();
  std::string in = "~", out;
  for (size_t d = 0; d < to.size(); ++d) {
    std::string name = factor_name(static_cast<int>(d));
    bool made = d < lead || from[d - lead] != to[d];
    append(out, " ", name, made ? cat("=", to[d]) : "");
    if (d >= lead) append(in, " ", made ? "*" : name);
  }
  return in + " ->" + out;
}

void broadcast_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  const Shape& from = use.shape(0);
  std::vector<int64_t> strides = row_major_strides(from);
  int64_t target = 0;
  for_each_index(outputs[0].type.shape, [&](const std::vector<int64_t>& index) {
    int64_t source = 0;
    for (size_t d = 0; d < from.size(); ++d)
      source += from[d] == 1 ? 0 : index[index.size() - from.size() + d] * strides[d];
    copy_element(*in[0], source, outputs[0], target++);
  });
}

}  // namespace

// To attribute `shape`, right-aligned as in NumPy: new dimensions in front, dimensions of size 1 repeated.
extern const OpDef kBroadcast = {
    .name = "broadcast",
    .attributes = "ints shape",
    .formula_of = broadcast_formula,
    .infer = broadcast_types,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.sum_to(use.gradients[0], use.types[0].shape)};
    },
    .simpler =
        [](const OpUse& use) { return use.types[0].shape == use.attrs.ints("shape") ? use.inputs[0] : kNoValue; },
    .evaluate = broadcast_evaluate,
};

}  // namespace partita
