// Uses of ops on inputs drawn from a seed, as the tables of cases ask for them.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ir/op/op_def.h"
#include "tests/ir/support/op_cases.h"

namespace partita {

// Those of every table.
std::vector<OpCase> all_op_cases();

double uniform_draw(std::mt19937_64& rng, double low, double high);
Tensor draw(const CaseInput& in, std::mt19937_64& rng);

// A use of an op on drawn inputs.
struct DrawnUse {
  const OpCase& c;
  const OpDef& op;
  std::vector<Tensor> inputs;  // an invalid type where absent
  std::vector<TensorType> types;

  explicit DrawnUse(const OpCase& the_case, uint64_t seed = 1);
  bool absent(size_t k) const { return types[k].dtype == DType::kInvalid; }

  static std::vector<Tensor> run(const OpDef& op, const Attrs& attrs, const std::vector<Tensor>& inputs);
  std::vector<Tensor> run() const { return run(op, c.attrs, inputs); }
};

std::string describe(const OpCase& c);
// "" where equal up to `tolerance` (relative, and absolute below 1), else the first difference.
std::string difference(const Tensor& a, const Tensor& b, double tolerance);

}  // namespace partita
