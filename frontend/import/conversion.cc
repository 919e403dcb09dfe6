#include "frontend/import/conversion.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {

void Conversion::fail(std::string message) const { throw ImportError{absl::InvalidArgumentError(std::move(message))}; }
void Conversion::unsupported(std::string message) const {
  throw ImportError{absl::UnimplementedError(std::move(message))};
}

const OnnxValue& Conversion::any(int k) const {
  if (k >= count() || !inputs_[k]) fail(cat("input ", k, " is missing"));
  if (inputs_[k]->kind == OnnxValue::Kind::kUnusable) unsupported(cat("input ", k, " is ", inputs_[k]->why));
  return *inputs_[k];
}

ValueId Conversion::in(int k) const {
  const OnnxValue& v = any(k);
  if (v.kind != OnnxValue::Kind::kTensor)
    fail(cat("input ", k, ": expected a tensor, found ",
             v.kind == OnnxValue::Kind::kSequence ? "a sequence" : "an empty optional"));
  return v.value;
}

const std::vector<ValueId>& Conversion::sequence(int k) const {
  const OnnxValue& v = any(k);
  if (v.kind != OnnxValue::Kind::kSequence) fail(cat("input ", k, ": expected a sequence, found a tensor"));
  return *v.sequence;
}

Literal Conversion::known(int k, std::string_view what) const {
  return e.known(in(k), cat("input ", k, " (", what, ")"));
}

std::vector<int64_t> Conversion::known_ints(int k, std::string_view what) const {
  Literal l = known(k, what);
  if (is_float(l.type.dtype))
    fail(cat("input ", k, " (", what, "): expected whole numbers, found ", to_string(l.type)));
  if (l.type.rank() > 1) fail(cat("input ", k, " (", what, "): expected a vector, found ", to_string(l.type)));
  return to_tensor(l).i;
}

int64_t Conversion::known_int(int k, std::string_view what) const {
  auto values = known_ints(k, what);
  if (values.size() != 1) fail(cat("input ", k, " (", what, "): expected one number, found ", values.size()));
  return values[0];
}

std::vector<double> Conversion::known_floats(int k, std::string_view what) const {
  Tensor t = to_tensor(known(k, what));
  if (!is_float(t.type.dtype)) t.f.assign(t.i.begin(), t.i.end());
  return t.f;
}

double Conversion::known_float(int k, std::string_view what) const {
  auto values = known_floats(k, what);
  if (values.size() != 1) fail(cat("input ", k, " (", what, "): expected one number, found ", values.size()));
  return values[0];
}

const OnnxAttribute* Conversion::find(std::string_view name) const {
  for (const OnnxAttribute* a : attributes_) {
    if (a->name == name) return a;
  }
  return nullptr;
}

template <typename T>
const T* Conversion::get(std::string_view name, std::string_view what) const {
  const OnnxAttribute* a = find(name);
  if (!a) return nullptr;
  const T* value = std::get_if<T>(&a->value);
  if (!value) fail(cat("attribute ", quote(name), ": expected ", what));
  return value;
}

int64_t Conversion::i(std::string_view name) const {
  const int64_t* v = get<int64_t>(name, "a whole number");
  if (!v) fail(cat("attribute ", quote(name), " is missing"));
  return *v;
}

double Conversion::f(std::string_view name, double otherwise) const {
  const float* v = get<float>(name, "a number");
  return v ? *v : otherwise;
}

std::string Conversion::s(std::string_view name, std::string_view otherwise) const {
  const std::string* v = get<std::string>(name, "a string");
  return v ? *v : std::string(otherwise);
}

std::vector<int64_t> Conversion::ints(std::string_view name, std::vector<int64_t> otherwise) const {
  const auto* v = get<std::vector<int64_t>>(name, "a list of whole numbers");
  return v ? *v : otherwise;
}

std::vector<double> Conversion::floats(std::string_view name, std::vector<double> otherwise) const {
  const auto* v = get<std::vector<float>>(name, "a list of numbers");
  return v ? std::vector<double>(v->begin(), v->end()) : otherwise;
}

std::vector<std::string> Conversion::strings(std::string_view name, std::vector<std::string> otherwise) const {
  const auto* v = get<std::vector<std::string>>(name, "a list of strings");
  return v ? *v : otherwise;
}

const OnnxTensor* Conversion::tensor(std::string_view name) const {
  const auto* v = get<std::shared_ptr<const OnnxTensor>>(name, "a tensor");
  return v ? v->get() : nullptr;
}

const OnnxGraph& Conversion::graph(std::string_view name) const {
  const auto* v = get<std::shared_ptr<const OnnxGraph>>(name, "a graph");
  if (!v) fail(cat("attribute ", quote(name), " is missing"));
  return **v;
}

DType Conversion::element(int64_t onnx_element) const {
  bool fits = onnx_element >= 0 && onnx_element < 1000;
  DType t = fits ? dtype_of_onnx(static_cast<int>(onnx_element)) : DType::kInvalid;
  if (t == DType::kInvalid)
    unsupported(cat("element type ", fits ? onnx_element_name(static_cast<int>(onnx_element)) : cat(onnx_element),
                    " is not supported"));
  return t;
}

int Conversion::axis(int64_t axis, int rank) const {
  if (axis < -rank || axis >= rank) fail(cat("axis ", axis, " does not exist in a tensor of rank ", rank));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

std::vector<int64_t> Conversion::axes(std::vector<int64_t> axes, int rank) const {
  for (int64_t& a : axes) a = axis(a, rank);
  std::sort(axes.begin(), axes.end());
  if (std::adjacent_find(axes.begin(), axes.end()) != axes.end()) fail("an axis is listed twice");
  return axes;
}

}  // namespace partita
