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

// Whether all points (x, y) = (column, column + `apart`) of rows lie on the circle and turn by one angle a row.
bool turns(const Literal& l, int64_t rows, int64_t columns, int64_t apart) {
  constexpr double kClose = 5e-3;
  const auto at = [&](int64_t row, int64_t column) { return element_f(l, row * columns + column); };
  bool varies = false;
  for (int64_t c = 0; c < columns; c = c % apart == apart - 1 ? c + apart + 1 : c + 1) {
    double cosine = 0, sine = 0;  // of the angle from the first row to the second
    for (int64_t r = 0; r < rows; ++r) {
      const double x = at(r, c), y = at(r, c + apart);
      if (!(std::abs(x * x + y * y - 1) < kClose)) return false;
      if (r == 0) continue;
      const double u = at(r - 1, c), v = at(r - 1, c + apart), along = x * u + y * v, across = x * v - y * u;
      if (r == 1) {
        cosine = along, sine = across;
        varies = varies || std::abs(across) > kClose;
      }
      if (!(std::abs(along - cosine) < kClose && std::abs(across - sine) < kClose)) return false;
    }
  }
  return varies;
}

}  // namespace

bool is_named_constant(std::string_view name) {
  constexpr std::string_view kOutput = "_output_0";
  const auto numbered = [](std::string_view text, std::string_view word) {
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    if (text.starts_with('_')) text.remove_prefix(1);
    return text.find_first_not_of("0123456789") == std::string_view::npos;
  };
  if (name.starts_with('/') && name.ends_with(kOutput)) {
    const std::string_view path = name.substr(0, name.size() - kOutput.size());
    return numbered(path.substr(path.rfind('/') + 1), "Constant");
  }
  return numbered(name, "lifted_tensor") || numbered(name, "c_lifted_tensor") || numbered(name, "_tensor_constant");
}

bool is_sinusoidal(const OnnxTensor& tensor) {
  const Shape& shape = tensor.type.shape;
  if (!tensor.literal || shape.size() < 2 || !is_float(tensor.type.dtype)) return false;
  const int64_t columns = shape.back(), rows = std::min<int64_t>(shape[shape.size() - 2], 32);
  if (rows < 4 || columns < 4 || columns % 2 != 0 || elements(shape) != shape[shape.size() - 2] * columns) return false;
  return turns(*tensor.literal, rows, columns, 1) || turns(*tensor.literal, rows, columns, columns / 2) ||
         (columns % 4 == 0 && turns(*tensor.literal, rows, columns, columns / 4));
}

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
