// The space of layouts for a problem: which values each choice may have.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "partitioner/layout/layout.h"
#include "partitioner/planner/space/problem.h"

namespace partita {

// The sizes that an axis may have.
struct AxisRange {
  std::optional<int64_t> pinned;
  int64_t most = 1;
  // Those that divide `devices`.
  std::vector<int64_t> sizes(int64_t devices) const;
};

// Values of each choice, pinned ones alone where pinned. InvalidArgument where pins contradict the problem.
struct Space {
  static constexpr size_t kMostSections = 8;
  std::vector<int64_t> tensor, pipeline, context, expert, micro_batch;  // data is what is left
  std::optional<int64_t> data;
  std::vector<int> zero;
  std::vector<bool> sequence_parallel;
  std::vector<RecomputeMode> recompute;             // of all blocks
  bool recompute_by_block = false;                  // what is computed again may differ from block to block
  RecomputeMode least_kept = RecomputeMode::kFull;  // of all blocks, what leaves least on the devices
  std::vector<RecomputeMode> recompute_blocks;      // where that is pinned
  std::vector<OffloadMode> offload;
  std::optional<double> offload_fraction;  // as pinned
  std::vector<PipelineSchedule> schedule;
  std::vector<int64_t> interleave;
  int64_t zero_group = 0;           // as pinned: of all layouts, or at most so many ranks, as many as divide
  bool zero_group_of_node = false;  // the latter
  bool zero_group_open = false;     // also searched
  int64_t hierarchical_group = 0;   // as pinned; 0, and no buckets: chosen for each layout
  BucketSizes buckets;
  bool reshard_after_forward = true;
  std::optional<int64_t> prefetch_blocks, overlap_micro_batches, overlap_products;  // as pinned
  std::vector<int> cuts;  // units of each chunk, where cuts are pinned
  std::vector<std::string> cut_names;
  std::vector<Layout::StageAxes> stages;  // where they are pinned to differ
  // Where stages may differ without a pin: ways to divide the devices into consecutive sections, by the devices of
  // each. The stages of a section are alike.
  std::vector<std::vector<int64_t>> splits;
  struct {
    AxisRange tensor, pipeline, context, expert;  // pipeline: the stages of all sections
  } ranges;
  bool fixed = false;  // one layout alone

  int64_t zero_group_of(const Layout& layout) const;
  // Why pinned cuts are none of the layout's; empty where they are, or none are pinned.
  std::string other_parts(const Layout& layout) const;
  // Whether the stages differ without a pin.
  bool searches_stages(const Layout& layout) const { return !layout.stages.empty() && stages.empty(); }
  // Whether stages may begin anywhere.
  bool leaves_cuts_open(const Problem& problem, const Layout& layout) const;
};
absl::StatusOr<Space> layout_space(const Problem& problem, const PinRecipe& pin, RecomputeMode recompute,
                                   std::optional<int64_t> micro);

std::vector<int64_t> divisors(int64_t n);

}  // namespace partita
