#include "partitioner/planner/report/explain.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/cat.h"
#include "fmt/format.h"
#include "ir/recipe/block_ranges.h"

namespace partita {
namespace {

constexpr double kWorthALine = 5e-4;  // of the step
constexpr size_t kNextBest = 10;

std::string gb(double bytes) {
  return bytes > 0 && bytes < 1e8 ? fmt::format("{:.3g} MB", bytes / 1e6) : fmt::format("{:.1f} GB", bytes / 1e9);
}

std::string bar(double share) {
  return std::string(static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * 40)), '#');
}

// What there is of a record, by its table of names; equal ones by name.
template <typename Record, typename Table>
std::vector<std::pair<double, std::string_view>> largest_first(const Record& record, const Table& names) {
  std::vector<std::pair<double, std::string_view>> out;
  for (const auto& [name, member] : names) {
    if (record.*member > 0) out.emplace_back(record.*member, name);
  }
  std::sort(out.begin(), out.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  return out;
}

// "12.6 TFLOP", "218 M"
std::string scaled(double value, const char* unit) {
  for (auto [prefix, size] : {std::pair{"P", 1e15}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}})
    if (value >= size) return fmt::format("{:.4g} {}{}", value / size, prefix, unit);
  return fmt::format("{:.4g} {}", value, unit);
}

int64_t units_of(const Plan::Stage& stage) {
  int64_t units = 0;
  for (const Plan::Chunk& c : stage.chunks) units += c.units;
  return units;
}

std::string time_table(const Plan::Predicted& p) {
  std::string text;
  const double step = p.step_seconds;
  for (const auto& [seconds, name] : largest_first(p.breakdown, kBreakdownNames)) {
    if (seconds > step * kWorthALine)
      text +=
          fmt::format("  {:<11} {:>9.4g} s {:>5.1f} %  {}\n", name, seconds, 100 * seconds / step, bar(seconds / step));
  }
  return text;
}

using Axes = std::map<std::string, int64_t>;

// "data 4 x tensor 2"
std::string axes_text(const Axes& axes) {
  std::string text;
  for (const char* name : {"data", "tensor", "context", "expert"}) {
    const auto at = axes.find(name);
    if (at != axes.end() && at->second > 1) append(text, text.empty() ? "" : " x ", name, " ", at->second);
  }
  return text.empty() ? "one rank" : text;
}

// What each run of stages does that are alike in devices and axes; nothing where all stages of a plan are.
std::string stage_table(const Plan& plan) {
  const std::vector<Plan::Stage>& stages = plan.stages;
  if (stages[0].ranks == 0) return "";
  auto axes_of = [&](size_t s) -> const Axes& {
    return s < plan.pin.stages.size() ? plan.pin.stages[s] : plan.pin.axes;
  };
  auto alike = [&](size_t a, size_t b) { return stages[a].device == stages[b].device && axes_of(a) == axes_of(b); };
  std::string text;
  size_t runs = 0;
  for (size_t first = 0, next = 0; first < stages.size(); first = next, ++runs) {
    double busiest = 0, fullest = 0;
    int64_t units = 0;
    for (; next < stages.size() && alike(first, next); ++next) {
      double seconds = 0;
      for (const Plan::Chunk& c : stages[next].chunks) {
        seconds += c.times.forward + c.times.backward;
        if (plan.pin.schedule == PipelineSchedule::kZeroBubble) seconds += c.times.weight;
      }
      units += units_of(stages[next]);
      busiest = std::max(busiest, seconds);
      fullest = std::max(fullest, stages[next].memory.total());
    }
    const Plan::Stage &from = stages[first], &to = stages[next - 1];
    text += fmt::format("  {:<12} {:<22} {}: ranks {} to {}, {} units, {:.4g} s a micro-batch, {} of {}\n",
                        next - first == 1 ? cat("stage ", first) : cat("stages ", first, "-", next - 1),
                        axes_text(axes_of(first)), from.device, from.first_rank, to.first_rank + to.ranks - 1, units,
                        busiest, gb(fullest), gb(from.capacity));
  }
  return runs > 1 ? text : "";
}

// Memory of the fullest stage as it is counted, and of the program that was allocated, where one was.
std::string memory_table(const Plan& plan) {
  const Plan::Predicted& p = plan.predicted;
  const std::vector<Plan::Stage>& stages = plan.stages;
  const size_t fullest = plan.fullest_stage();
  const MemoryUse& memory = stages[fullest].memory;
  const double capacity = stages[fullest].capacity;
  std::string text = fmt::format("memory of the fullest stage ({} of {}), as counted: {} of {}{}\n", fullest,
                                 stages.size(), gb(memory.total()), gb(capacity),
                                 p.fits && memory.total() > capacity ? ", which its program is below" : "");
  for (const auto& [bytes, name] : largest_first(memory, kMemoryUses))
    text +=
        fmt::format("  {:<15} {:>9} {:>5.1f} %  {}\n", name, gb(bytes), 100 * bytes / capacity, bar(bytes / capacity));
  if (p.program_bytes.size() != stages.size()) return text;
  auto room = [&](size_t s) { return stages[s].capacity - stages[s].memory.reserve; };
  auto bytes = [&](size_t s) { return static_cast<double>(p.program_bytes[s]); };
  size_t most = 0;
  for (size_t s = 1; s < stages.size(); ++s) {
    if (bytes(s) - room(s) > bytes(most) - room(most)) most = s;
  }
  // With the reserve too: as `sweep`, and changes that make a plan fit, say a program's memory.
  text += fmt::format(
      "its program, as compile lays it out: {} of {} beside the reserve, {} of {} with it (stage {} of {})\n",
      gb(bytes(most)), gb(room(most)), gb(bytes(most) + stages[most].memory.reserve), gb(stages[most].capacity), most,
      stages.size());
  if (p.fits && bytes(most) > room(most))
    text +=
        "compile will refuse it: the program takes many times what is counted, so that no layout would do. The graph "
        "spells out what the cost model takes for one op; export that op in another way\n";
  return text;
}

// What each stage computes again or leaves to the host's memory:
// "    stage 0: full_offload of blocks 0..2: 1.2 GB freed, 80 MB on the host, 0.1 s a step".
std::string recompute_table(const Plan& plan) {
  std::string text;
  for (size_t s = 0; s < plan.stages.size(); ++s) {
    for (const RecomputedBlocks& r : plan.stages[s].recompute) {
      std::vector<RecomputeMode> blocks(static_cast<size_t>(r.blocks.back()) + 1, RecomputeMode::kNone);
      for (int64_t b : r.blocks) blocks[static_cast<size_t>(b)] = r.mode;
      std::string ranges;
      for (const std::string& range : block_ranges(blocks, r.mode)) append(ranges, ranges.empty() ? "" : ", ", range);
      text += fmt::format("    stage {}: {} of block{} {}: {} freed{}, {:.3g} s a step\n", s, enum_name(r.mode),
                          r.blocks.size() > 1 ? "s" : "", ranges, gb(r.bytes),
                          r.host_bytes > 0 ? cat(", ", gb(r.host_bytes), " on the host") : "", r.seconds);
    }
  }
  return text;
}

std::string compared_table(const std::vector<Plan::Compared>& compared) {
  std::string text;
  for (const Plan::Compared& c : compared) {
    if (text.empty()) text = "compared:\n";
    text += fmt::format("  {:<22} {}\n", c.like,
                        !c.found ? c.error
                        : c.found->fits
                            ? fmt::format("{:.4g} s  {}; {}", c.found->step_seconds, c.found->layout, c.found->reason)
                            : fmt::format("DOES NOT FIT  {}; {}", c.found->layout, c.found->reason));
  }
  return text;
}

}  // namespace

std::vector<std::string> departures(const Plan& plan) {
  std::vector<std::string> notes;
  if (const Compression kind = plan.compress.value_or(Compression::kNone); kind != Compression::kNone)
    notes.push_back(cat("compress: ", enum_name(kind),
                        ": gradients travel compressed; training is not that of the serial program"));
  if (plan.pin.schedule == PipelineSchedule::kPipedream)
    notes.emplace_back(
        "schedule: pipedream: asynchronous: each micro-batch is an optimizer step, on weights that lack those of "
        "micro-batches in flight; training is not that of the serial program");
  if (plan.batch_statistics == BatchNormGroup::kReplica)
    notes.emplace_back(
        "semantics: batch_norm: replica: batch statistics are of each rank's micro-batch, not of the global batch");
  return notes;
}

std::string summary(const Plan& plan) {
  const Plan::Predicted& p = plan.predicted;
  std::string text = cat(plan.layout, " on ", plan.hardware, "\n");
  const double tokens = p.tokens_per_second;
  if (!plan.links.empty()) append(text, "links: ", plan.links, "\n");
  const bool samples = std::abs(tokens * p.step_seconds - static_cast<double>(plan.global_batch)) < 0.5;
  text += fmt::format("step {:.4g} s, {} {}/s, MFU {:.1f} %{}\n", p.step_seconds,
                      tokens < 1e3 ? fmt::format("{:.4g}", tokens) : fmt::format("{:.0f}", tokens),
                      samples ? "samples" : "tokens", 100 * p.mfu, p.fits ? "" : "; DOES NOT FIT");
  if (!p.lengths.empty()) {
    text += "the mean of steps of";
    for (const LengthTime& l : p.lengths)
      text += fmt::format("{} length {}: {:.4g} s", &l == p.lengths.data() ? "" : ",", l.length, l.step_seconds);
    text += "\n";
  }
  if (p.price_per_hour > 0 && tokens > 0)
    text += fmt::format("price: ${:.4g} an hour, ${:.4g} for a billion {}\n", p.price_per_hour,
                        p.price_per_hour / 3600 / tokens * 1e9, samples ? "samples" : "tokens");
  for (const std::string& note : departures(plan)) append(text, note, "\n");
  if (plan.pin.axis("pipeline").value_or(1) > 1 && plan.pin.cuts.empty())
    text += "stages: the plan has no names for its cuts; compile balances the stages anew\n";
  return cat(text, stage_table(plan), time_table(p), memory_table(plan), compared_table(plan.compared));
}

namespace {

// What the plan counts on to run beside compute, on the stage where most does.
double hidden_seconds(const Plan& plan) {
  double most = 0;
  for (const Plan::Stage& stage : plan.stages) {
    double each = 0;
    for (const Plan::Chunk& c : stage.chunks) {
      if (c.by_kind)
        each += c.by_kind->forward.hidden_gathers + c.by_kind->backward.hidden_gathers +
                c.by_kind->forward.hidden_sums + c.by_kind->backward.hidden_sums;
    }
    const double sums = stage.update ? stage.update->hidden_reduce : 0;
    most = std::max(most, each * static_cast<double>(plan.micro_batches) + sums);
  }
  return most;
}

// Seconds that a stage's blocks which are computed again, or wait on the host, add to a step, where they are most.
double recompute_seconds(const Plan& plan) {
  double most = 0;
  for (const Plan::Stage& stage : plan.stages) {
    double sum = 0;
    for (const RecomputedBlocks& r : stage.recompute) sum += r.seconds;
    most = std::max(most, sum);
  }
  return most;
}

// "recompute full: values are made again instead of kept; 20.3 % of the step".
std::string recompute_choice(const Plan& plan, double recomputed) {
  const PinRecipe& pin = plan.pin;
  const RecomputeMode mode = pin.recompute.value_or(RecomputeMode::kNone);
  const bool hosted =
      waits_on_host(mode) || std::any_of(pin.recompute_blocks.begin(), pin.recompute_blocks.end(), waits_on_host);
  const double share = 100 * (hosted ? recompute_seconds(plan) : recomputed) / plan.predicted.step_seconds;
  if (!pin.recompute_blocks.empty())
    return fmt::format("  recompute by block: where a stage lacks room; {:.1f} % of the step\n{}", share,
                       recompute_table(plan));
  if (mode == RecomputeMode::kNone) return "";
  const char* what = mode == RecomputeMode::kOffload ? "activations wait in host memory"
                     : hosted ? "values are made again instead of kept, and what they are made of waits in host memory"
                              : "values are made again instead of kept";
  return fmt::format("  recompute {}: {}; {:.1f} % of the step\n{}", enum_name(mode), what, share,
                     hosted ? recompute_table(plan) : "");
}

// What each choice of the layout is for, and what it costs.
std::string choices(const Plan& plan) {
  const Plan::Predicted& p = plan.predicted;
  const PinRecipe& pin = plan.pin;
  const Breakdown& b = p.breakdown;
  auto percent = [&](double seconds) { return 100 * seconds / p.step_seconds; };
  auto axis = [&](const char* name) { return pin.axis(name).value_or(1); };
  std::string text;
  if (!pin.stages.empty())
    text += "  what crosses between stages that differ is laid out anew; its time is under send\n";
  if (!pin.cuts.empty()) {
    append(text, "  ", pin.interleave.value_or(1) > 1 ? "chunks" : "stages", " begin at:");
    for (const std::string& c : pin.cuts) append(text, " ", c);
    text += "\n";
  }
  const int64_t tensor = pin.stages.empty() ? axis("tensor") : 1, data = pin.stages.empty() ? axis("data") : 1;
  if (tensor > 1)
    text += fmt::format(
        "  tensor {0}: each device multiplies 1/{0} of every layer; partial sums cost {1:.1f} % of the step\n", tensor,
        percent(b.tensor));
  if (axis("pipeline") > 1) {
    int64_t least = units_of(plan.stages[0]), most = least, all = 0;
    for (const Plan::Stage& s : plan.stages)
      least = std::min(least, units_of(s)), most = std::max(most, units_of(s)), all += units_of(s);
    text +=
        fmt::format("  pipeline {}: each stage holds {} of the {} units; {} micro-batches leave a bubble of {:.1f} %\n",
                    axis("pipeline"), least == most ? cat(most) : cat(least, " to ", most), all, plan.micro_batches,
                    100 * p.bubble_share);
  }
  if (data > 1)
    text += fmt::format("  data {0}: {0} replicas share the batch; summing gradients ({1}) costs {2:.1f} %\n", data,
                        p.gradient_collective, percent(b.gradients));
  for (const PlanTraffic::Shared& s : plan.shared)
    text +=
        fmt::format("  tied parameters: stage {} sends stage {} what both read, {} a step, and gets {} of gradients\n",
                    s.owner, s.reader, gb(s.parameters), gb(s.gradients));
  if (!plan.shared.empty()) text += fmt::format("    back; waiting for both costs {:.1f} %\n", percent(b.tied));
  if (axis("context") > 1)
    text += fmt::format(
        "  context {0}: each device has 1/{0} of every sample's positions; attention's exchanges cost {1:.1f} %\n",
        axis("context"), percent(b.context));
  if (axis("expert") > 1)
    text +=
        fmt::format("  expert {0}: each device holds 1/{0} of the experts; sending tokens to them costs {1:.1f} %\n",
                    axis("expert"), percent(b.expert));
  if (const int zero = pin.zero.value_or(0); zero > 0)
    text += fmt::format("  ZeRO-{}: the {} are stored once among the replicas\n", zero,
                        zero == 1   ? "optimizer's states"
                        : zero == 2 ? "optimizer's states and gradients"
                                    : "optimizer's states, gradients and parameters");
  if (pin.prefetch_blocks)
    text += fmt::format("  gathers of parameters run {} block{} ahead of their use; waiting for them costs {:.1f} %\n",
                        *pin.prefetch_blocks, *pin.prefetch_blocks == 1 ? "" : "s", percent(b.gathers));
  if (const int64_t turns = pin.overlap_micro_batches.value_or(1); turns > 1)
    text += fmt::format(
        "  {} micro-batches take turns: each computes while what the others sent travels; waiting for it "
        "costs {:.1f} %\n",
        turns, percent(b.within_passes()));
  if (const int64_t parts = pin.overlap_products.value_or(1); parts > 1)
    text += fmt::format(
        "  products beside sums and gathers of the tensor axis are cut into {} parts of rows: what one part sends or "
        "needs travels while another one is computed; waiting for it costs {:.1f} %\n",
        parts, percent(b.tensor));
  if (const std::vector<BucketSize>& sizes = pin.bucket_bytes.sizes; !sizes.empty()) {
    text += "  buckets, in which gradients and parameters travel:";
    for (const BucketSize& s : sizes)
      append(text, &s == &sizes[0] ? " " : ", ", gb(static_cast<double>(s.bytes)),
             s.ranks > 0 ? cat(" among ", s.ranks, " ranks") : "");
    text += "\n";
  }
  if (const double hidden = hidden_seconds(plan); hidden > kWorthALine * p.step_seconds)
    text += fmt::format("  overlap: {:.4g} s of gathers and sums are to run beside compute\n", hidden);
  text += recompute_choice(plan, b.recompute);
  if (const OffloadMode mode = pin.offload.value_or(OffloadMode::kNone); mode != OffloadMode::kNone)
    text += fmt::format("  offload {}: {} in host memory; {:.1f} % of the step\n", enum_name(mode),
                        mode == OffloadMode::kAll ? "parameters and states are"
                        : pin.offload_fraction
                            ? fmt::format("{:.3g} % of the optimizer's states are", 100 * *pin.offload_fraction)
                            : "the optimizer's states are",
                        percent(b.offload + b.optimizer));
  if (const auto sorted = largest_first(b, kBreakdownNames); !sorted.empty())
    text += fmt::format("  what binds: {} ({:.0f} % of the step)\n", sorted[0].second, percent(sorted[0].first));
  return text;
}

std::string unit_table(const std::vector<Plan::Unit>& units) {
  std::string text;
  for (const Plan::Unit& u : units) {
    text += fmt::format("  {:>4} x {:<20} {:>12} a sample, {:>8} parameters, tensor splits {}\n", u.count, u.name,
                        scaled(u.forward_flops + u.backward_flops, "FLOP"), scaled(u.parameters, ""),
                        u.tensor_split.empty() ? "nothing" : u.tensor_split);
    if (u.grouped_matrices > 0)
      text +=
          fmt::format("         experts: the rows of each of {:.0f} are multiplied together; no weights are copied\n",
                      u.grouped_matrices);
  }
  return text;
}

}  // namespace

std::string explanation(const Plan& plan) {
  std::string text = cat(summary(plan), "\nwhy\n", choices(plan), "\nunits of the model\n", unit_table(plan.units));
  if (!plan.candidates.empty()) text += "\nnext best\n";
  for (size_t k = 0; k < std::min(plan.candidates.size(), kNextBest); ++k) {
    const Plan::Other& c = plan.candidates[k];
    text += fmt::format("  {:>9.4g} s  {}\n               {}\n", c.step_seconds, c.layout, c.reason);
  }
  const Plan::Search& s = plan.search;
  text += fmt::format("\nsearch: {} layouts priced, {} did not fit, gap {:.2f} % of the cost model\n", s.considered,
                      s.unfit, 100 * s.gap);
  return text;
}

std::string comparison(const Plan& plan, const Plan::Other& other) {
  const double ours = plan.predicted.step_seconds, theirs = other.step_seconds;
  std::string text = fmt::format("plan   {:>9.4g} s  {}\nother  {:>9.4g} s  {} ({:+.1f} %{})\n", ours, plan.layout,
                                 theirs, other.layout, 100 * (theirs / ours - 1), other.fits ? "" : ", DOES NOT FIT");
  auto sorted = kBreakdownNames;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [name, seconds] : sorted) {
    const double x = plan.predicted.breakdown.*seconds, y = other.breakdown.*seconds;
    if (std::abs(x - y) > kWorthALine * ours)
      text += fmt::format("  {:<11} {:>9.4g} s -> {:>9.4g} s ({:+.4g} s)\n", name, x, y, y - x);
  }
  if (!other.reason.empty()) append(text, "  ", other.reason, "\n");
  return text;
}

}  // namespace partita
