// Runs a one-rank program for tests: generated kernels as they are, library kernels by the reference evaluator. Memory
// that no step has written is NaN.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codegen/emit_program.h"
#include "ir/graph/builder.h"
#include "runtime/kernel/kernel_module.h"
#include "runtime/program/program.h"
#include "tests/codegen/support/ptx_kernels.h"

namespace partita {

class Interpreter {
 public:
  explicit Interpreter(runtime::Program program);
  // A GPU program, its kernels as PTX.
  Interpreter(runtime::Program program, ptx::Order order);

  void set_state(const std::string& name, const Tensor& value);
  void set_input(const std::string& name, const Tensor& value);
  Tensor state(const std::string& name) const;
  Tensor output(const std::string& name) const;
  // Runs the schedule with `parts` calls for each kernel. `stage` is called before each micro-batch; accumulators start
  // from zero.
  void run(int parts = 3, const std::function<void(int)>& stage = {});
  const runtime::Program& program() const { return program_; }
  int kernels() const;                    // kernel steps
  void launch_apart() { apart_ = true; }  // every step of a GPU by itself
  int joined() const { return joined_; }  // runs of kernel steps in launches of several

 private:
  char* address(const runtime::Operand& o) const;
  void run_segment(const runtime::ProgramSegment& segment, int parts);
  void run_step(const runtime::Step& step, int parts);
  Tensor read(const runtime::Operand& o) const;
  void write(const runtime::Operand& o, const Tensor& value) const;

  runtime::Program program_;
  std::unique_ptr<runtime::KernelModule> module_;
  std::unique_ptr<PtxKernels> device_;
  ptx::Order order_ = ptx::Order::kForward;
  bool apart_ = false;
  int joined_ = 0;
  std::vector<std::vector<uint64_t>> regions_;
};

// With dimension k that was permutation[k].
Tensor transposed(const Tensor& x, std::vector<int64_t> permutation);
// Rounds to the tensor's own type.
Tensor rounded(const Tensor& t);
// Deterministic numbers: floats about N(0, scale), integers in [0, below).
Tensor random_tensor(const TensorType& type, uint64_t seed, double scale = 1, int64_t below = 10);

// One graph as a program of one rank; inputs and states random. Compares all outputs and states with the reference:
// |found - expected| <= tolerance *
// (|expected| + the largest |expected| of the tensor * slack). Returns the number of kernel steps.
struct CompareOptions {
  TargetOptions target;
  double tolerance = 0;  // 0: by type
  double slack = 0.1;
  double scale = 1;
  int64_t below = 10;
  ptx::Order order = ptx::Order::kForward;  // where the target is a GPU
};
int compare_with_reference(const Graph& graph, const CompareOptions& options = {});
// The outputs, then the states, that the same program leaves; `kernels`: the number of kernel steps.
std::vector<Tensor> computed(const Graph& graph, const CompareOptions& options, int* kernels = nullptr);
LocalProgram local_program(Graph graph);

}  // namespace partita
