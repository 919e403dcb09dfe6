#include "base/cat.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> iota_types(const OpView& use) {
  DType to = use.attrs.dtype("to");
  if (!is_float(to) && !is_integer(to))
    return absl::InvalidArgumentError(cat("attribute 'to': expected a float or integer type, found ", dtype_name(to)));
  return one_output(to, {use.attrs.i("size")});
}

}  // namespace

// 0, 1, 2, … size - 1 in type `to`. A rank that holds a part of it slices the whole.
extern const OpDef kIota = {
    .name = "iota",
    .min_inputs = 0,
    .max_inputs = 0,
    .attributes = "i size, dtype to",
    .formula_of = [](const OpView& use) { return cat("-> a=", use.attrs.i("size"), "^"); },
    .infer = iota_types,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars&) -> Scalars {
      return {s.cast(s.index(0), use.attrs.dtype("to"))};
    },
    .localize = [](const Attrs& attrs, std::span<const Shape>, std::span<const Shape> outputs) -> Attrs {
      Attrs local = attrs;
      local.set("size", outputs[0][0]);
      return local;
    },
};

}  // namespace partita
