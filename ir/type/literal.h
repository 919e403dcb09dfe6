// Host tensors of the compiler.
//   Literal: bytes in the element type's own layout, owned or borrowed from a mapped file; cheap to copy.
//   Tensor:  wide values (double or int64) for the reference evaluator and constant folding.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "ir/type/tensor_type.h"

namespace partita {

struct Literal {
  TensorType type;
  std::shared_ptr<const void> owner;  // keeps `data` alive
  const std::byte* data = nullptr;    // byte_size(type) bytes, row-major, unaligned

  std::span<const std::byte> bytes() const { return {data, static_cast<size_t>(byte_size(type))}; }
};

struct Tensor {
  TensorType type;
  std::vector<double> f;   // elements, where the type is a float type
  std::vector<int64_t> i;  // elements, otherwise (bool as 0 and 1)

  static Tensor zeros(TensorType type);
};

Literal make_literal(TensorType type, std::vector<std::byte> bytes);
// Rounds to the literal's element type.
Literal to_literal(const Tensor& tensor);
Tensor to_tensor(const Literal& literal);
// A rank-0 literal.
Literal scalar_literal(DType dtype, double value);
// Rank-1 i64, f64.
Literal ints_literal(const std::vector<int64_t>& values);
Literal doubles_literal(const std::vector<double>& values);

// Value of element `index` as a double / int64.
double element_f(const Literal& literal, int64_t index);
int64_t element_i(const Literal& literal, int64_t index);
// True where every element has the same bits.
bool is_uniform(const Literal& literal);

}  // namespace partita
