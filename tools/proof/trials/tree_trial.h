// A sum over the terms of a step's micro-batches by itself (accumulate_tree): its kernel runs once for each term, and
// keeps the sums of branches in between. The order is part of what it says, so the last result is that of a balanced
// tree to the bit, whatever rounding does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/program/program.h"
#include "tools/proof/trials/trial_memory.h"

namespace partita {

class TreeTrial {
 public:
  // `elements`: of the result, those that are looked at. Whether a step is such a sum is_tree() says.
  TreeTrial(const runtime::Step& step, std::vector<int64_t> elements);
  static bool is_tree(const runtime::Step& step);

  int64_t terms() const { return terms_; }
  const std::vector<int64_t>& elements() const { return elements_; }
  // Around each run of the kernel on newly drawn operands: its sum is what the run before left, if there was one.
  void begin(TrialMemory& memory);
  void end(const TrialMemory& memory);
  // The elements of the sum of all terms, after the last run.
  std::vector<double> sums() const;

 private:
  const runtime::Operand& result_;
  const int64_t terms_;
  const std::vector<int64_t> elements_;
  std::vector<std::vector<double>> leaves_;  // of each term that was begun, those elements
  std::vector<std::byte> left_;              // by the run before
};

}  // namespace partita
