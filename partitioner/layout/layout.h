// A layout: every choice about how the ranks run a step.
#pragma once

#include <string>
#include <vector>

#include "ir/recipe/recipe.h"

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

// The layout as pins.
PinRecipe to_pins(const Layout& layout);

}  // namespace partita
