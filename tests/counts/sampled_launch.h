// What the launches of a step do, from some of their blocks: the first and the last, and in between pairs of blocks
// beside each other.
#pragma once

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "tests/counts/touched.h"
#include "tests/stand_ins/cuda/kernels.h"

namespace partita::counts {

// Of a launch, all its blocks. Instructions are of PTX, counted once a warp.
struct Work {
  std::array<double, ptx::kKinds> instructions{};
  double lanes = 0, branches = 0, divergent_branches = 0;
  double shared_passes = 0, bank_conflicts = 0, local_accesses = 0;
  double of(ptx::Kind kind) const { return instructions[static_cast<size_t>(kind)]; }
  // But moves and parameters, which hardly an assembler leaves.
  double needed_issues() const;
  void add(const ptx::Counters& counters, double weight);
};

struct Launched {
  std::string kernel;
  int64_t blocks = 0, threads = 0, shared_bytes = 0;
  int64_t sampled = 0;  // blocks that ran
  Work work;
};

// Blocks of a launch that run, and what each stands for. `parts`: blocks of its parts in turn, which may differ.
std::unordered_map<uint32_t, double> sample_blocks(const std::vector<int64_t>& parts, int64_t of_each);

class LaunchCounter final : public stand_in::Watcher {
 public:
  // Of the step whose launches come next. `parts`: of a batched launch, the blocks of its steps.
  void begin(Touched* touched, std::vector<int64_t> parts);
  std::vector<Launched> end();
  // What the interpreter has refused so far.
  const absl::Status& status() const { return status_; }
  int64_t copies() const { return copies_; }  // and memory set, in the step

  void launch(const ptx::Module& module, const ptx::Program& program, const ptx::Grid& grid,
              std::vector<std::byte> parameters) override;
  void set(std::byte* to, size_t bytes) override;
  void copy(std::byte* to, const std::byte* from, size_t bytes) override;

 private:
  Touched* touched_ = nullptr;  // null: nothing is counted
  std::vector<int64_t> parts_;
  std::vector<Launched> launches_;
  int64_t copies_ = 0;
  absl::Status status_;
};

}  // namespace partita::counts
