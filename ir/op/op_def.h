// The definition of an op: everything that any part of the compiler knows about it. One op, one file in ir/ops, one
// constant, one line in ops/all.cc.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/op/formula.h"
#include "ir/op/scalar.h"
#include "ir/type/attr.h"
#include "ir/type/literal.h"
#include "ir/type/tensor_type.h"

namespace partita {

class Builder;
using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

// What a definition sees of one use of its op.
struct OpView {
  const Attrs& attrs;
  std::span<const TensorType> inputs;

  const Shape& shape(int k) const { return inputs[k].shape; }
  DType dtype(int k = 0) const { return inputs[k].dtype; }
  int rank(int k = 0) const { return inputs[k].rank(); }
};

// What a gradient or an expansion sees: the use, and the values around it in the graph that `b` builds.
struct OpUse {
  Builder& b;
  const Attrs& attrs;
  std::span<const TensorType> types;   // of the inputs
  std::span<const ValueId> inputs;     // kNoValue for an optional input that is absent
  std::span<const ValueId> outputs;    // of the forward op (gradients only)
  std::span<const ValueId> gradients;  // of the outputs; kNoValue where the loss does not depend on it (gradients only)

  OpView view() const { return {attrs, types}; }
};

// Which of a device's efficiency curves a kernel's time follows: bytes moved, a contraction of M x N x K, or attention.
enum class WorkKind : uint8_t { kMemory, kMatrix, kAttention };

// The type that mixed precision gives an op's f32 operands, as PyTorch's autocast does.
enum class OperandPrecision : uint8_t {
  kWidest,  // all of them the widest type among them
  kNarrow,  // the required ones the 16-bit type that the run computes in: contractions, which accumulate in f32
  kWide,    // f32: sums, statistics, exponentials
  kAsIs,    // the type they come in: the op computes in f32 inside
};

// What the ranks of a group do together.
enum class CollectiveOp : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll };

struct OpDef {
  std::string_view name;
  int min_inputs = 1;
  int max_inputs = 1;  // -1: any number
  // The attributes with their types, "i dim, i keep?, ints dims": a type of i, f, s, dtype, ints or floats, a name, and
  // '?' where it may be left out. infer_types checks them, so that infer and all that follows may take them as read.
  std::string_view attributes = {};

  // The op's formula, or how it is written for a use (rank, attributes). Exactly one of the two.
  std::string_view formula = {};
  std::string (*formula_of)(const OpView&) = nullptr;
  // Checks a use (attributes, types) and gives its output types. Absent: shapes from the formula, every output with the
  // type of input 0.
  absl::StatusOr<std::vector<TensorType>> (*infer)(const OpView&) = nullptr;
  WorkKind work = WorkKind::kMemory;
  double flops_per_point = 0;  // floating point operations per point of the formula's iteration space
  // Their number for a use, where the formula's points miscount them: windows that overlap, several products in one op.
  double (*flops)(const OpView&) = nullptr;

  // The gradient of each input as a value, or kNoValue; in IR ops, emitted through use.b. Absent: the op stops
  // gradients.
  std::vector<ValueId> (*gradient)(const OpUse&) = nullptr;

  // What a use's only output may be instead, for less work: a value that is there or that it emits; kNoValue where
  // there is nothing better. use.inputs are values of the graph that use.b builds.
  ValueId (*simpler)(const OpUse&) = nullptr;

  // Meaning, by at least one of these. `scalar`: an elementwise body with NumPy broadcasting. `expand`: in smaller ops.
  // `evaluate`: reference in wide arithmetic.
  Scalars (*scalar)(ScalarBuilder&, const OpView&, const Scalars&) = nullptr;
  std::vector<ValueId> (*expand)(const OpUse&) = nullptr;
  void (*evaluate)(const OpView&, std::span<const Tensor* const> inputs, std::vector<Tensor>& outputs) = nullptr;

  // The same results by ops that can split the factors which this one must keep whole (a vocabulary), at the price of
  // their partial sums.
  std::vector<ValueId> (*split_form)(const OpUse&) = nullptr;

  // The same results where operands or results are longer than `types` say along factors that the op keeps whole, or
  // looks rows up by, with zeros beyond the old end of results; `shapes`: of the results then. None where no such
  // factor is longer. Absent: it cannot be said.
  std::vector<ValueId> (*lengthened)(const OpUse&, std::span<const Shape> shapes) = nullptr;

  // The attributes of the same use on local shapes. Absent: attribute "shape", where there is one, becomes the first
  // output's local shape.
  Attrs (*localize)(const Attrs&, std::span<const Shape> local_inputs, std::span<const Shape> local_outputs) = nullptr;

  bool view = false;    // the output is the input's bytes under another shape
  bool kernel = false;  // the runtime has a kernel of this name (runtime/kernels); else scalar, expand or a loop nest
                        // makes the code
  bool moves = false;   // the output has the inputs' elements in other places, of whatever type they are
  // The same elements in the type of attribute "to".
  bool casts = false;
  bool draws = false;  // random numbers, by the step's seed
  // Brings each row to the experts that it chose.
  bool dispatches = false;
  // Row by row a product with one of operand 1's matrices, the one that operand 2 says; operand 3, where it is there,
  // has the first matrix of each part of them.
  bool chooses_matrices = false;
  bool communicates = false;                    // takes its place in the one order of communication
  std::optional<CollectiveOp> collective = {};  // what it does in its group; none: it goes between two ranks
  bool crosses_stages = false;                  // runs in the stage that attribute "to" says, on what stage "from" has
  bool sums_micro_batches =
      false;  // sums its last operand over the step's micro-batches: splitting them over an axis leaves a partial sum
  OperandPrecision precision = OperandPrecision::kWidest;
  bool wraps_indices = false;  // an index below 0 counts from the end; else it is outside
};

// Output types of a use; InvalidArgument in the words of the op's own check. Takes any use: counts of inputs and the
// presence and types of attributes are checked first.
absl::StatusOr<std::vector<TensorType>> infer_types(const OpDef& op, const OpView& use);
// The bound formula of a use that has been inferred.
Formula bound_formula(const OpDef& op, const OpView& use);
// Floating point operations of a use with its bound formula.
double use_flops(const OpDef& op, const OpView& use, const Formula& bound);
// The elementwise body of a use as a function of its inputs.
ScalarFunction scalar_function(const OpDef& op, const OpView& use);
Attrs localized_attrs(const OpDef& op, const Attrs& attrs, std::span<const Shape> local_inputs,
                      std::span<const Shape> local_outputs);

// nullptr where there is no such op.
const OpDef* find_op(std::string_view name);
std::span<const OpDef* const> all_ops();

}  // namespace partita
