// A layout: every choice that a plan makes about how to run a step; and the space of layouts for a problem.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "partitioner/planner/cluster/cluster.h"
#include "partitioner/planner/rates/kernel_time.h"
#include "partitioner/planner/workload/workload.h"

namespace partita {

// Ranks are numbered tensor innermost, then context, expert, data, pipeline.
struct Layout {
  int64_t data = 1, tensor = 1, pipeline = 1, context = 1, expert = 1;
  int zero = 0;
  int64_t zero_group = 0;             // data ranks that share one sharded copy; 0: all
  bool reshard_after_forward = true;  // ZeRO-3: parameters are gathered for each pass, not once a step
  int64_t micro_batch = 1;
  bool sequence_parallel = false;
  RecomputeMode recompute = RecomputeMode::kNone;
  OffloadMode offload = OffloadMode::kNone;
  PipelineSchedule schedule = PipelineSchedule::k1f1b;
  int64_t interleave = 1;
  std::vector<int> cuts;               // units in each stage chunk, in order; empty: blocks evenly
  std::vector<std::string> cut_names;  // where the chunks but the first begin; empty: no names
  // Where the stages differ, the axes of each; the axes above are then those of a stage with the most sample ranks, and
  // micro_batch counts the samples of its ranks.
  struct StageAxes {
    int64_t data = 1, tensor = 1, context = 1, expert = 1;
    int64_t devices() const { return data * tensor * context * expert; }
    auto operator<=>(const StageAxes&) const = default;
  };
  std::vector<StageAxes> stages;

  int64_t devices() const { return first_device(pipeline); }
  int64_t devices_of_stage(int64_t stage) const {
    return stages.empty() ? data * tensor * context * expert : stages[static_cast<size_t>(stage)].devices();
  }
  // Devices of the stages before.
  int64_t first_device(int64_t stage) const;
  // The layout that all stages would have if they were like this one.
  Layout of_stage(int64_t stage) const;
  bool operator==(const Layout&) const = default;
};

// The layouts of the stages, each as if all were like it.
class StageLayouts {
 public:
  explicit StageLayouts(const Layout& l) : all_(l) {
    for (size_t s = 0; s < l.stages.size(); ++s) {
      if (s == 0 || l.stages[s] != l.stages[s - 1]) own_.push_back(l.of_stage(static_cast<int64_t>(s)));
      which_.push_back(own_.size() - 1);
    }
  }
  const Layout& operator[](size_t stage) const { return own_.empty() ? all_ : own_[which_[stage]]; }

 private:
  const Layout& all_;
  std::vector<Layout> own_;  // of runs of stages that are alike
  std::vector<size_t> which_;
};

// "data 8 x tensor 4 x pipeline 2, ZeRO-1, micro-batch 2, 1f1b, recompute full"
std::string describe(const Layout& layout);

struct Problem {
  const Workload* workload = nullptr;
  const Cluster* cluster = nullptr;
  ComputeOptions options;
  int64_t global_batch = 1;
  bool clip = false;
  Compression compress = Compression::kNone;
  BatchNormGroup batch_statistics = BatchNormGroup::kGlobal;
  // Memory is that of programs compiled here (program_memory.h), not that of the software that the profiles describe.
  bool own_programs = false;

  int64_t devices() const { return cluster->devices(); }
};

// Micro-batches that one replica runs in a step; 0 where the batch does not divide.
int64_t micro_batches(const Problem& problem, const Layout& layout);

// Why the layout cannot be, as a reason for the user; empty where it can.
std::string invalid(const Problem& problem, const Layout& layout);

// The sizes that an axis may have.
struct AxisRange {
  std::optional<int64_t> pinned;
  int64_t most = 1;
  // Those that divide `devices`.
  std::vector<int64_t> sizes(int64_t devices) const;
};

// Values of each choice, pinned ones alone where pinned. InvalidArgument where pins contradict the problem.
struct Space {
  static constexpr size_t kMostParts = 8;
  std::vector<int64_t> tensor, pipeline, context, expert, micro_batch;  // data is what is left
  std::optional<int64_t> data;
  std::vector<int> zero;
  std::vector<bool> sequence_parallel;
  std::vector<RecomputeMode> recompute;
  std::vector<OffloadMode> offload;
  std::vector<PipelineSchedule> schedule;
  std::vector<int64_t> interleave;
  int64_t zero_group = 0;           // as pinned: of all layouts, or at most so many ranks, as many as divide
  bool zero_group_of_node = false;  // the latter
  bool reshard_after_forward = true;
  std::vector<int> cuts;  // units of each chunk, where cuts are pinned
  std::vector<std::string> cut_names;
  std::vector<Layout::StageAxes> stages;  // where they are pinned to differ
  // Where stages may differ without a pin: ways to divide the devices into consecutive parts, by the devices of each.
  // The stages of a part are alike.
  std::vector<std::vector<int64_t>> splits;
  struct {
    AxisRange tensor, pipeline, context, expert;  // pipeline: the stages of all parts
  } ranges;
  bool fixed = false;  // one layout alone
};
absl::StatusOr<Space> layout_space(const Problem& problem, const PinRecipe& pin, RecomputeMode recompute,
                                   std::optional<int64_t> micro);

std::vector<int64_t> divisors(int64_t n);

// The layout as pins.
PinRecipe to_pins(const Layout& layout);

}  // namespace partita
