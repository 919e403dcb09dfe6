// Which mesh axes split which factors of one use of an op, chosen from how its operands lie.
#pragma once

#include <optional>
#include <vector>

#include "ir/mesh/sharding.h"
#include "ir/op/formula.h"

namespace partita {

// axes[f]: the mesh axes that split factor f, outermost first.
struct FactorSplit {
  std::vector<std::vector<int>> axes;
};

// Cuts factors of `formula` so that every split piece of `sharding` starts at a factor's boundary, where that is
// possible (a factor that must stay whole is not cut). Works on a bound formula; operand is the use's input or output
// that has this sharding.
void refine(Formula& formula, bool output, size_t operand, const Sharding& sharding, const Mesh& mesh);

// Whether refine() would leave the formula as it is.
bool is_refined(const Formula& formula, bool output, size_t operand, const Sharding& sharding, const Mesh& mesh);

// The splits that one operand's sharding asks for: for each split piece the factor it starts at and the piece's axes.
// Pieces that fit no factor are left out.
std::vector<std::pair<int, std::vector<int>>> proposals(const Formula& formula, const FormulaOperand& operand,
                                                        const Sharding& sharding, const Mesh& mesh);

// The factors that must stay whole at which split pieces of an operand start, with the pieces' axes: how it lies and
// cannot be taken.
std::vector<std::pair<int, std::vector<int>>> split_whole_factors(const Formula& formula, const FormulaOperand& operand,
                                                                  const Sharding& sharding, const Mesh& mesh);

// One operand of a use, as the choice of a split sees it.
struct OperandLayouts {
  std::vector<Sharding> ways;  // the shardings in which its value is at hand
  int64_t bytes = 0;           // of the whole value
  bool pinned = false;         // how it lies is the plan's choice (a parameter): it is not moved
};

// Bytes of operands, and twice `output_bytes` of sums where the factor is not parallel, that change ranks when `axis`
// splits `factor`. What lies whole is sliced for free.
int64_t bytes_moved(const Formula& formula, const std::vector<OperandLayouts>& inputs, int64_t output_bytes, int axis,
                    int factor, const Mesh& mesh);

// One split that honours what the operands ask for. Each axis goes to the factor that a pinned operand asks for; else
// to the one that moves the fewest bytes: operands that lie otherwise are gathered or exchanged, a reduced factor
// leaves a partial sum of `output_bytes`. An operand that lacks the axis is sliced for free. Factors that must stay
// whole, and sizes that an axis does not divide, are not split.
FactorSplit choose_split(const Formula& formula, const std::vector<OperandLayouts>& inputs, int64_t output_bytes,
                         const Mesh& mesh);

// The sharding of an operand under a split, without partial axes.
Sharding operand_sharding(const Formula& formula, const FormulaOperand& operand, const FactorSplit& split);

// The split that gives an output this sharding, using factors that are neither reduced nor whole; nullopt where there
// is none.
std::optional<FactorSplit> split_for_output(const Formula& formula, const FormulaOperand& output,
                                            const Sharding& sharding, const Mesh& mesh);

// The formula with each factor's local size.
Formula local_formula(const Formula& formula, const FactorSplit& split, const Mesh& mesh);

}  // namespace partita
