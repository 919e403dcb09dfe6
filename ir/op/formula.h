// The formula of an op: which factors each dimension of each operand is made of. From it come output shapes, work,
// legal splits, what a split leaves behind, and local shapes.
//
//   "~ b m k+, ~ b k+ n -> b m n"       matmul: splitting k leaves a partial sum; linear in each operand
//   "~1 a b, ~1 * b -> a b"             broadcast add: jointly linear (one group); '*' is a dimension of size 1
//   "~ (a b) c -> a (b c)"              reshape: factors move, outermost first inside a group
//   "v=50^ d, t -> t d"                 '^': must stay whole; '=' gives a size that no input tells
//
//   ". -> a=5"                          '.': a scalar operand (no operand at all is written as nothing)
//
// Suffixes of a factor, written where it first stands in an input: '+' reduced by sum, '>' by max, '<' by min, '^' must
// stay whole. A prefix '~' marks an operand that the op is linear in: on its own, or, with a number, jointly with those
// of the same number. A factor that only outputs have is made by the op from its global index.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/type/tensor_type.h"

namespace partita {

enum class FactorRole : uint8_t { kParallel, kSum, kMax, kMin, kWhole };

struct Factor {
  std::string name;
  int64_t size = -1;  // -1 until bound
  FactorRole role = FactorRole::kParallel;
};

struct FormulaOperand {
  std::vector<std::vector<int>> dims;  // per dimension, its factors outermost first; empty = a dimension of size 1
  int linear = -1;                     // linearity group; -1: not linear
};

struct Formula {
  std::vector<Factor> factors;
  std::vector<FormulaOperand> inputs;
  std::vector<FormulaOperand> outputs;

  // The factor's index, or -1.
  int find(std::string_view name) const;
};

absl::StatusOr<Formula> parse_formula(std::string_view text);
std::string to_string(const Formula& formula);

// Solves the factors' sizes from the input shapes; InvalidArgument (operand, dimension, expected, found) where they do
// not fit.
absl::Status bind_sizes(Formula& formula, const std::vector<Shape>& inputs);
// Shape of an operand of a bound formula.
Shape operand_shape(const Formula& formula, const FormulaOperand& operand);
// Whether one of the operand's dimensions is made of the factor.
bool has_factor(const FormulaOperand& operand, int factor);
// Points of the iteration space: the product of all factor sizes.
int64_t points(const Formula& formula);

// "a b c …": fresh factor names for writing formulas of any rank.
std::string factor_name(int index);

}  // namespace partita
