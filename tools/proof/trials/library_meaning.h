// What a library step computes, by the definition of its op (OpDef::evaluate) in double precision, on as much of its
// operands as that does in a moment: its formula says along which factors a part of the result is that of a part of the
// operands.
//
//   matmul f32[4096 768], f32[768 50257]: "m k+, k n -> m n", rows 0, 7, 311, … and columns 2, 40, …, all of k
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "base/index_bounds.h"
#include "ir/op/op_def.h"
#include "runtime/program/program.h"
#include "tools/proof/trials/bounded_value.h"

namespace partita {

class LibraryMeaning {
 public:
  // Unimplemented where the step's result is no function of its operands, or the least part of it takes too long.
  static absl::StatusOr<LibraryMeaning> of(const runtime::Step& step);

  // Of each operand that has integers, what they may be.
  const std::vector<std::optional<IndexBounds>>& bounds() const { return bounds_; }
  // Whether the op is linear in each of its operands with floats.
  bool is_linear() const { return linear_; }
  // Whether NaN and infinities may reach results that have none of them by the definition, which passes over what has a
  // weight of zero: attention's masked keys, and the padding of convolutions, which some processors' kernels multiply
  // too.
  bool spreads() const { return !linear_ || has_windows_; }
  // One in so many numbers may be special, that about every second element of the result has none to do with them.
  int64_t rare() const { return rare_; }

  struct Part {
    size_t operand = 0;
    std::vector<int64_t> elements;
    std::vector<BoundedValue> values;
  };
  // A part of each result, drawn by `draw`. `operands`: what lies there before the step, null for an absent one.
  std::vector<Part> sample(const std::vector<const std::byte*>& operands, std::mt19937_64& draw) const;

 private:
  using Chosen = std::vector<std::vector<int64_t>>;  // per factor: the indices that are looked at
  // Where rows of an operand or result of attention lie (codegen/prepare/attention_views.h): [batch, heads, rows,
  // width] as `shape`, and from where on, in elements.
  struct Rows {
    Shape shape;
    std::vector<int64_t> at;
    int64_t place(int64_t element) const;
  };

  explicit LibraryMeaning(const runtime::Step& step);
  bool adds_rows() const;  // codegen/prepare/added_rows.h
  bool is_free(int factor) const;
  void choose_sizes();
  double flops() const;
  Formula part() const;  // the formula with those sizes
  std::vector<int64_t> elements_of(const FormulaOperand& operand, const Chosen& chosen) const;
  absl::Status take_views();
  std::vector<int64_t> places_of(size_t operand, std::vector<int64_t> elements) const;
  std::vector<Tensor> evaluate(const std::vector<Tensor>& inputs, const Tensor& held) const;
  std::vector<BoundedValue> bounded(const Tensor& exact, const std::vector<const Tensor*>& moved) const;

  runtime::Step step_;
  const OpDef* op_ = nullptr;
  Attrs attrs_;
  std::vector<TensorType> types_;  // of the op's inputs
  std::map<size_t, Rows> rows_;    // by the op's operands, inputs and then results, where they are no whole tensors
  bool together_ = false;          // all results lie in one operand
  Formula formula_;
  std::vector<int64_t> sizes_;  // of each factor, how much of it is looked at
  std::vector<std::optional<IndexBounds>> bounds_;
  int64_t rare_ = 1;
  bool linear_ = true, has_windows_ = false;
  double terms_ = 1;  // of the sums that a result is
};

}  // namespace partita
