// What a loop nest leaves in memory, point by point in double precision: by the meaning that its nodes' scalar
// operations have for the reference evaluator (ir/op/scalar.h), and by nothing of code generation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/functional/function_ref.h"
#include "ir/nest/loop_nest.h"
#include "ir/type/literal.h"
#include "tools/proof/trials/bounded_value.h"

namespace partita {

// An element that a unit of work writes.
struct WrittenElement {
  int operand = -1;
  int64_t element = 0;
  BoundedValue value;
};

class NestMeaning {
 public:
  // `operands`: what lies there before the kernel runs. Both outlive this.
  NestMeaning(const LoopNest& nest, const std::vector<const std::byte*>& operands);

  // About how many scalar operations the smallest sample of a unit takes.
  double least_work() const;
  // Some of what a unit of work writes: so many rows and columns that they take about `work` operations, the first and
  // the last among them. Of sums over rows, all rows.
  std::vector<WrittenElement> sample(int64_t unit, double work, std::mt19937_64& draw);
  // Calls f(operand, element) for all that a unit writes.
  void each_written(int64_t unit, absl::FunctionRef<void(int, int64_t)> f) const;

 private:
  using Index = std::vector<int64_t>;  // one per loop

  // One walk over the columns of a row.
  struct Pass {
    std::vector<int> narrow;            // nodes that are the same for all columns, known once it begins
    std::vector<int> wide, reductions;  // at each column; and what they are reduced to
  };

  std::vector<int> along_columns(const std::vector<int>& targets) const;
  double work_of_row(int64_t columns) const;
  std::vector<Index> rows_of(int64_t unit) const;
  bool is_blocked(int loop) const;
  int64_t columns_of(const Index& row) const;
  void set_column(Index& at, int64_t columns, int64_t column) const;
  static int64_t element(const NestAccess& access, const Index& at);
  bool is_wide(const NestAccess& access) const;
  void compute(int node, const Index& at);
  void begin_row(Index& at);

  const LoopNest& nest_;
  std::vector<Literal> operands_;
  std::vector<bool> wide_;
  std::vector<BoundedOperation> operations_;  // per node
  std::vector<Pass> passes_;
  std::vector<NestStore> stores_;     // those that are there in the end
  std::vector<int> at_end_;           // nodes at each column whose values are stored
  std::vector<BoundedValue> values_;  // per node, at the point that is looked at
};

}  // namespace partita
