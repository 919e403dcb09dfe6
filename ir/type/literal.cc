#include "ir/type/literal.h"

#include <cstring>

#include "base/float16.h"
#include "base/status.h"

namespace partita {
namespace {

template <typename T>
T load(const std::byte* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <typename T>
void store(std::byte* p, T v) {
  std::memcpy(p, &v, sizeof v);
}

double float_at(DType t, const std::byte* p) {
  switch (t) {
    case DType::kF16:
      return f16_to_float(load<uint16_t>(p));
    case DType::kBF16:
      return bf16_to_float(load<uint16_t>(p));
    case DType::kF32:
      return load<float>(p);
    case DType::kF64:
      return load<double>(p);
    default:
      PARTITA_CHECK(false, "not a float type");
  }
}

int64_t int_at(DType t, const std::byte* p) {
  switch (t) {
    case DType::kBool:
      return load<uint8_t>(p) != 0;
    case DType::kI8:
      return load<int8_t>(p);
    case DType::kU8:
      return load<uint8_t>(p);
    case DType::kI16:
      return load<int16_t>(p);
    case DType::kU16:
      return load<uint16_t>(p);
    case DType::kI32:
      return load<int32_t>(p);
    case DType::kU32:
      return load<uint32_t>(p);
    case DType::kI64:
      return load<int64_t>(p);
    case DType::kU64:
      return static_cast<int64_t>(load<uint64_t>(p));
    default:
      PARTITA_CHECK(false, "not an integer type");
  }
}

void put(DType t, std::byte* p, double f, int64_t i) {
  switch (t) {
    case DType::kF16:
      return store(p, float_to_f16(static_cast<float>(f)));
    case DType::kBF16:
      return store(p, float_to_bf16(static_cast<float>(f)));
    case DType::kF32:
      return store(p, static_cast<float>(f));
    case DType::kF64:
      return store(p, f);
    case DType::kBool:
      return store(p, static_cast<uint8_t>(i != 0));
    default:
      break;
  }
  std::memcpy(p, &i, static_cast<size_t>(dtype_size(t)));  // two's complement, little-endian host
}

}  // namespace

Tensor Tensor::zeros(TensorType type) {
  Tensor t{std::move(type), {}, {}};
  size_t n = static_cast<size_t>(elements(t.type.shape));
  if (is_float(t.type.dtype)) {
    t.f.assign(n, 0.0);
  } else {
    t.i.assign(n, 0);
  }
  return t;
}

Literal make_literal(TensorType type, std::vector<std::byte> bytes) {
  PARTITA_CHECK(static_cast<int64_t>(bytes.size()) == byte_size(type), "literal size");
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  const std::byte* data = owner->data();
  return {std::move(type), std::move(owner), data};
}

Literal to_literal(const Tensor& t) {
  std::vector<std::byte> bytes(static_cast<size_t>(byte_size(t.type)));
  int64_t n = elements(t.type.shape), size = dtype_size(t.type.dtype);
  bool floats = is_float(t.type.dtype);
  for (int64_t k = 0; k < n; ++k) put(t.type.dtype, bytes.data() + k * size, floats ? t.f[k] : 0, floats ? 0 : t.i[k]);
  return make_literal(t.type, std::move(bytes));
}

Tensor to_tensor(const Literal& literal) {
  Tensor t = Tensor::zeros(literal.type);
  int64_t n = elements(t.type.shape), size = dtype_size(t.type.dtype);
  for (int64_t k = 0; k < n; ++k) {
    if (is_float(t.type.dtype)) {
      t.f[k] = float_at(t.type.dtype, literal.data + k * size);
    } else {
      t.i[k] = int_at(t.type.dtype, literal.data + k * size);
    }
  }
  return t;
}

Literal scalar_literal(DType dtype, double value) {
  Tensor t = Tensor::zeros({dtype, {}});
  if (is_float(dtype)) {
    t.f[0] = value;
  } else {
    t.i[0] = static_cast<int64_t>(value);
  }
  return to_literal(t);
}

Literal ints_literal(const std::vector<int64_t>& values) {
  Tensor t = Tensor::zeros({DType::kI64, {static_cast<int64_t>(values.size())}});
  t.i = values;
  return to_literal(t);
}

Literal doubles_literal(const std::vector<double>& values) {
  Tensor t = Tensor::zeros({DType::kF64, {static_cast<int64_t>(values.size())}});
  t.f = values;
  return to_literal(t);
}

double element_f(const Literal& l, int64_t index) {
  const std::byte* p = l.data + index * dtype_size(l.type.dtype);
  return is_float(l.type.dtype) ? float_at(l.type.dtype, p) : static_cast<double>(int_at(l.type.dtype, p));
}

int64_t element_i(const Literal& l, int64_t index) {
  const std::byte* p = l.data + index * dtype_size(l.type.dtype);
  return is_float(l.type.dtype) ? static_cast<int64_t>(float_at(l.type.dtype, p)) : int_at(l.type.dtype, p);
}

bool is_uniform(const Literal& l) {
  size_t size = static_cast<size_t>(dtype_size(l.type.dtype));
  int64_t n = elements(l.type.shape);
  for (int64_t k = 1; k < n; ++k) {
    if (std::memcmp(l.data, l.data + static_cast<size_t>(k) * size, size) != 0) return false;
  }
  return true;
}

}  // namespace partita
