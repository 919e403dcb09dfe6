#include "partitioner/layout/layout.h"

#include <algorithm>

#include "base/cat.h"
#include "fmt/format.h"

namespace partita {

namespace {

constexpr int64_t kRanksOfANode = 8;

}  // namespace

int64_t Layout::first_rank(int64_t stage) const {
  int64_t before = 0;
  for (int64_t s = 0; s < stage; ++s) before += ranks_of_stage(s);
  return before;
}

int64_t Layout::shard_ranks() const {
  const int64_t all = sample_ranks();
  if (zero_group != kNode) return zero_group > 0 ? zero_group : all;
  return all > kRanksOfANode ? kRanksOfANode : all % 2 == 0 ? all / 2 : all;
}

Layout Layout::of_stage(int64_t stage) const {
  Layout own = *this;
  if (stages.empty()) return own;
  const StageAxes& axes = stages[static_cast<size_t>(stage)];
  own.stages.clear();
  own.data = axes.data, own.tensor = axes.tensor, own.context = axes.context, own.expert = axes.expert;
  own.sequence_parallel = sequence_parallel && own.tensor > 1;
  own.micro_batch = micro_batch * (data * expert) / (own.data * own.expert);
  return own;
}

namespace {

// "data 8 x tensor 4"
std::string axes_text(int64_t data, int64_t tensor, int64_t pipeline, int64_t context, int64_t expert) {
  std::string text;
  auto axis = [&](std::string_view name, int64_t size) {
    if (size > 1) append(text, text.empty() ? "" : " x ", name, " ", size);
  };
  axis("data", data), axis("tensor", tensor), axis("pipeline", pipeline), axis("context", context);
  axis("expert", expert);
  return text.empty() ? "one device" : text;
}

// ", recompute full of 3 blocks, mlp of 1, inputs of 2 on the host, activations of 4 on the host"
std::string recompute_text(const std::vector<RecomputeMode>& blocks) {
  std::string text;
  auto say = [&](std::string_view what, std::string_view where, auto counts) {
    const auto n = std::count_if(blocks.begin(), blocks.end(), counts);
    if (n == 0) return;
    const std::string_view noun = !text.empty() ? "" : n == 1 ? " block" : " blocks";
    append(text, ", ", what, " of ", n, noun, where);
  };
  for (size_t m = static_cast<size_t>(RecomputeMode::kFull); m > static_cast<size_t>(RecomputeMode::kNone); --m) {
    const RecomputeMode mode = static_cast<RecomputeMode>(m);
    say(cat(text.empty() ? "recompute " : "", enum_name(mode)), "",
        [&](RecomputeMode of) { return on_device(of) == mode; });
  }
  say("inputs", " on the host", [](RecomputeMode of) { return of == RecomputeMode::kFullOffload; });
  say("activations", " on the host", [](RecomputeMode of) { return of == RecomputeMode::kOffload; });
  return text;
}

// Of all blocks.
std::string recompute_text(RecomputeMode mode) {
  if (mode == RecomputeMode::kNone) return "";
  if (mode == RecomputeMode::kOffload) return ", activations on the host";
  return cat(", recompute ", enum_name(on_device(mode)), waits_on_host(mode) ? ", inputs on the host" : "");
}

}  // namespace

std::string describe(const Layout& l) {
  std::string text;
  for (size_t first = 0, next = 0; first < l.stages.size(); first = next) {
    const Layout::StageAxes& s = l.stages[first];
    while (next < l.stages.size() && l.stages[next] == s) ++next;
    const std::string axes = axes_text(s.data, s.tensor, 1, s.context, s.expert);
    append(text, text.empty() ? "" : " | ", next - first > 1 ? cat(next - first, " x (", axes, ")") : axes);
  }
  if (text.empty()) {
    text = axes_text(l.data, l.tensor, l.pipeline, l.context, l.expert);
  } else {
    text = cat("stages ", text);
  }
  if (l.sequence_parallel) text += ", sequence parallel";
  if (l.zero > 0) append(text, ", ZeRO-", l.zero);
  if (l.zero > 0 && l.shard_ranks() < l.sample_ranks()) append(text, " within ", l.shard_ranks());
  if (l.zero >= 3 && !l.reshard_after_forward) text += " gathered once a step";
  if (l.prefetched() != Layout::kPrefetched) append(text, ", gathers ", l.prefetched(), " ahead");
  if (l.hierarchical_group > 1) append(text, ", sums by ", l.hierarchical_group);
  append(text, ", micro-batch ", l.micro_batch);
  if (l.overlapped() > 1) append(text, ", ", l.overlapped(), " in turns");
  if (l.row_parts() > 1) append(text, ", products in ", l.row_parts(), " parts");
  if (l.pipeline > 1) append(text, ", ", enum_name(l.schedule));
  if (l.interleave > 1) append(text, " ", l.interleave);
  text += l.recompute_blocks.empty() ? recompute_text(l.recompute) : recompute_text(l.recompute_blocks);
  if (l.offload != OffloadMode::kNone) append(text, ", offload ", enum_name(l.offload));
  if (l.offload_fraction < 1) text += fmt::format(" ({:.3g} %)", 100 * l.offload_fraction);
  if (!l.cuts.empty()) text += ", uneven stages";
  return text;
}

PinRecipe to_pins(const Layout& l) {
  PinRecipe p;
  p.axes = {
      {"data", l.data}, {"tensor", l.tensor}, {"pipeline", l.pipeline}, {"context", l.context}, {"expert", l.expert}};
  p.zero = l.zero;
  if (l.zero_group != 0) p.zero_group = l.zero_group == Layout::kNode ? PinRecipe::kNode : l.zero_group;
  if (l.hierarchical_group > 0) p.hierarchical_group = l.hierarchical_group;
  p.bucket_bytes = l.buckets;
  p.reshard_after_forward = l.reshard_after_forward;
  p.prefetch_blocks = l.prefetch_blocks;
  p.overlap_micro_batches = l.overlap_micro_batches;
  p.overlap_products = l.overlap_products;
  if (l.micro_batch > 0) p.micro_batch = l.micro_batch;
  p.sequence_parallel = l.sequence_parallel;
  if (l.recompute_blocks.empty()) p.recompute = l.recompute;
  p.recompute_blocks = l.recompute_blocks;
  p.offload = l.offload;
  if (l.offload_fraction < 1) p.offload_fraction = l.offload_fraction;
  p.schedule = l.schedule;
  p.interleave = l.interleave;
  p.cuts = l.cut_names;
  for (const Layout::StageAxes& s : l.stages)
    p.stages.push_back({{"data", s.data}, {"tensor", s.tensor}, {"context", s.context}, {"expert", s.expert}});
  return p;
}

}  // namespace partita
