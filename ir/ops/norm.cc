#include "ir/ops/norm.h"

#include <cmath>

#include "base/cat.h"
#include "ir/ops/wide.h"

namespace partita {

absl::StatusOr<std::vector<TensorType>> norm_types(const OpView& use, int statistics) {
  const TensorType& x = use.inputs[0];
  int64_t axis = use.attrs.i("axis");
  double epsilon = use.attrs.f("epsilon");
  if (!is_float(x.dtype) || axis < 0 || axis >= x.rank()) {
    return absl::InvalidArgumentError(
        cat("expected a float tensor that has dimension ", axis, " (axis), found ", to_string(x)));
  }
  if (!std::isfinite(epsilon) || epsilon < 0)
    return absl::InvalidArgumentError(cat("expected an epsilon of at least 0, found ", epsilon));
  Shape normalized(x.shape.begin() + axis, x.shape.end());
  for (size_t k = 1; k < use.inputs.size(); ++k) {
    const TensorType& t = use.inputs[k];
    if (t.dtype == DType::kInvalid) continue;
    if (t.shape != normalized || (t.dtype != x.dtype && t.dtype != wide_type(x.dtype))) {
      return absl::InvalidArgumentError(cat("expected ", k == 1 ? "scale " : "bias ",
                                            to_string(TensorType{x.dtype, normalized}), " (the dimensions of ",
                                            to_string(x), " from ", axis, " on), found ", to_string(t)));
    }
  }
  Shape leading(x.shape.begin(), x.shape.begin() + axis);
  leading.resize(x.shape.size(), 1);
  std::vector<TensorType> types{x};
  for (int k = 0; k < statistics; ++k) types.push_back({wide_type(x.dtype), leading});
  return types;
}

std::string norm_formula(const OpView& use, int statistics) {
  std::string x, y, normalized, statistic;
  for (int d = 0; d < use.rank(); ++d) {
    bool whole = d >= use.attrs.i("axis");
    append(x, factor_name(d), whole ? "^ " : " ");
    append(y, " ", factor_name(d));
    append(whole ? normalized : statistic, " ", factor_name(d));
    if (whole) statistic += " *";
  }
  // The leading factors come before the stars, since `axis` cuts the dimensions in two.
  std::string text = x;
  for (size_t k = 1; k < use.inputs.size(); ++k) {
    if (use.inputs[k].dtype != DType::kInvalid) text += "," + normalized;
  }
  text += " ->" + y;
  for (int k = 0; k < statistics; ++k) text += "," + statistic;
  return text;
}

std::vector<int64_t> norm_dims(const OpUse& use) {
  std::vector<int64_t> dims;
  for (int64_t d = use.attrs.i("axis"); d < use.types[0].rank(); ++d) dims.push_back(d);
  return dims;
}

double norm_size(const OpUse& use) {
  double n = 1;
  for (int64_t d : norm_dims(use)) n *= static_cast<double>(use.types[0].shape[d]);
  return n;
}

}  // namespace partita
