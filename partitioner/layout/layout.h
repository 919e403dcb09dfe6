// A layout: every choice about how ranks run a step. As text it is pins (train.yaml, plan.json), which to_pins() writes
// and pinned_layout() reads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/recipe/recipe.h"

namespace partita {

inline constexpr const char* kStageAxis = "pipeline";  // of the mesh: the stages of a pipeline

// Ranks are numbered tensor innermost, then context, expert, data, pipeline.
struct Layout {
  static constexpr int64_t kNode = -1;  // a zero_group of the ranks of one node
  static constexpr int64_t kPrefetched = 1;

  int64_t data = 1, tensor = 1, pipeline = 1, context = 1, expert = 1;
  int zero = 0;                       // ZeRO stage
  int64_t zero_group = 0;             // sample ranks that share one sharded copy; 0: all of them
  int64_t hierarchical_group = 0;     // sample ranks that meet first in what all of them sum, scatter or gather; 0: all
  BucketSizes buckets;                // of collectives that travel together
  bool reshard_after_forward = true;  // ZeRO-3: parameters are gathered for each pass, not once a step
  // Gathers of parameters start so far ahead that as many bytes as this many of the largest one's wait for their first
  // use at a time; 0: each as it is wanted. Unset: open, kPrefetched in programs.
  std::optional<int64_t> prefetch_blocks;
  // Micro-batches of a rank that are computed in turns, each while what the others have sent travels; 1: one after the
  // other. Unset: open, 1 in programs.
  std::optional<int64_t> overlap_micro_batches;
  // Parts of rows that products beside collectives over the tensor axis are cut into, each computed while what another
  // one sends or needs travels; 1: whole. Unset: open, 1 in programs.
  std::optional<int64_t> overlap_products;
  int64_t micro_batch = 1;         // samples that a rank takes at once; 0: all that it has of a run of the graph
  bool sequence_parallel = false;  // Megatron's: sums over the tensor axis are scattered along positions
  RecomputeMode recompute = RecomputeMode::kNone;  // of all blocks
  std::vector<RecomputeMode> recompute_blocks;     // in its place, of each; of those after the last one: none
  OffloadMode offload = OffloadMode::kNone;
  double offload_fraction = 1;  // with kOptimizer: of the bytes of a rank's states, those in the host's memory
  PipelineSchedule schedule = PipelineSchedule::k1f1b;
  int64_t interleave = 1;              // chunks of a pipeline's stage
  std::vector<int> cuts;               // units in each stage chunk, in order; empty: blocks evenly
  std::vector<std::string> cut_names;  // where the chunks but the first begin; empty: balanced
  // Not a pin, but what the target's products want: bytes that rows of their operands and results are to be multiples
  // of, where padding achieves it cheaply (partitioner/prepare/pad_dimensions.h).
  int64_t row_bytes = 1;
  // Where the stages differ, the axes of each; the axes above are then those of a stage with the most sample ranks, and
  // micro_batch counts the samples of its ranks.
  struct StageAxes {
    int64_t data = 1, tensor = 1, context = 1, expert = 1;
    int64_t ranks() const { return data * tensor * context * expert; }
    int64_t sample_ranks() const { return data * expert; }
    auto operator<=>(const StageAxes&) const = default;
  };
  std::vector<StageAxes> stages;

  int64_t prefetched() const { return prefetch_blocks.value_or(kPrefetched); }
  int64_t overlapped() const { return overlap_micro_batches.value_or(1); }
  int64_t row_parts() const { return overlap_products.value_or(1); }
  int64_t ranks() const { return first_rank(pipeline); }
  int64_t ranks_of_stage(int64_t stage) const {
    return stages.empty() ? data * tensor * context * expert : stages[static_cast<size_t>(stage)].ranks();
  }
  // Ranks of the stages before.
  int64_t first_rank(int64_t stage) const;
  // Ranks that take different samples.
  int64_t sample_ranks() const { return data * expert; }
  // What becomes of what a block leaves for backward, by its number.
  RecomputeMode recompute_of(size_t block) const {
    if (recompute_blocks.empty()) return recompute;
    return block < recompute_blocks.size() ? recompute_blocks[block] : RecomputeMode::kNone;
  }
  // Those of them that share one sharded copy: zero_group, or what it stands for where no cluster says how large nodes
  // are. Divides sample_ranks() where the layout is one.
  int64_t shard_ranks() const;
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
