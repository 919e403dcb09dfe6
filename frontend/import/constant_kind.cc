#include "frontend/import/constant_kind.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

namespace partita {
namespace {

// Enough to tell a table from weights without reading gigabytes of mapped file.
constexpr int64_t kSample = 4096;

int64_t stride_of(int64_t n) { return n <= kSample ? 1 : n / kSample; }

bool on_circle(const Literal& x, const Literal& y) {
  int64_t n = elements(x.type.shape), step = stride_of(n);
  bool varies = false;
  double first = element_f(x, 0);
  for (int64_t k = 0; k < n; k += step) {
    double a = element_f(x, k), b = element_f(y, k);
    if (!(std::abs(a * a + b * b - 1) < 1e-2)) return false;
    varies |= std::abs(a - first) > 1e-3;
  }
  return varies;
}

bool bounded(const Literal& x) {
  int64_t n = elements(x.type.shape), step = stride_of(n);
  for (int64_t k = 0; k < n; k += step) {
    if (!(std::abs(element_f(x, k)) <= 1.001)) return false;
  }
  return true;
}

}  // namespace

bool is_mask(const Literal& literal) {
  int64_t n = elements(literal.type.shape), step = stride_of(n);
  bool zero = false, low = false;
  for (int64_t k = 0; k < n; k += step) {
    double v = element_f(literal, k);
    if (v == 0) {
      zero = true;
    } else if (v <= -1e4) {
      low = true;
    } else {
      return false;
    }
  }
  return zero && low;
}

bool is_unnamed_scalar(const OnnxTensor& tensor) {
  if (elements(tensor.type.shape) != 1) return false;
  std::string_view name = tensor.name;
  // By PyTorch, then by ONNX Runtime where it shares constants, tf2onnx, Paddle, and onnxsim ("_v_312").
  for (std::string_view made_up :
       {"onnx::", "/", "ortshared_", "const_fold_opt__", "helper.constant.", "auto.cast.", "p2o.", "_v_"}) {
    if (name.starts_with(made_up)) return true;
  }
  // "pow_12", "val_3", "scalar_tensor_default_1", "17": a traced operation, numbered.
  name = name.substr(0, name.find_last_not_of("0123456789") + 1);
  if (name.ends_with('_') && name.size() > 1) name.remove_suffix(1);
  constexpr std::string_view kTraced[] = {
      "",      "val",      "_val",           "scalar_tensor_default", "scalar_tensor",
      "full",  "clone",    "unsqueeze",      "full_default",          "lift_fresh_copy",
      "fill",  "alias",    "detach",         "_tensor_constant",      "lifted_tensor",
      "const", "_to_copy", "c_lifted_tensor"};
  return std::find(std::begin(kTraced), std::end(kTraced), name) != std::end(kTraced);
}

std::vector<bool> rotary_tables(const std::vector<OnnxTensor>& tensors) {
  std::vector<bool> out(tensors.size(), false);
  std::map<std::pair<Shape, int>, std::vector<size_t>> by_shape;
  for (size_t k = 0; k < tensors.size(); ++k) {
    const OnnxTensor& t = tensors[k];
    if (!t.literal || !is_float(t.type.dtype) || t.type.rank() < 2 || elements(t.type.shape) < 2 ||
        !bounded(*t.literal))
      continue;
    by_shape[{t.type.shape, static_cast<int>(t.type.dtype)}].push_back(k);
  }
  for (const auto& [shape, group] : by_shape) {
    if (group.size() > 64) continue;  // a table comes in few copies
    for (size_t a = 0; a < group.size(); ++a) {
      for (size_t b = a + 1; b < group.size(); ++b) {
        if (on_circle(*tensors[group[a]].literal, *tensors[group[b]].literal)) out[group[a]] = out[group[b]] = true;
      }
    }
  }
  return out;
}

}  // namespace partita
