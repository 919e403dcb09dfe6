#include <algorithm>
#include <functional>

#include "ir/nest/device_schedule.h"
#include "runtime/program/tree_sums.h"
#include "tools/mutation/tree_mutations.h"

namespace partita {
namespace {

using verifier::Bundle;
using verifier::RankProgram;

runtime::ProgramSegment& segment_of(runtime::Program& p, const runtime::ScheduleEntry& e) {
  return p.segments[static_cast<size_t>(e.segment)];
}

// Two micro-batches change places, on all stages, forward and backward. (Of two alone the order is turned around, which
// leaves the tree as it is.)
bool micro_batches_in_turn(Bundle& b, std::mt19937& rng) {
  const auto count = static_cast<uint32_t>(b.programs[0].program.micro_batches);
  if (count < 4) return false;
  const auto one = static_cast<int32_t>(rng() % count);
  const auto other = static_cast<int32_t>((static_cast<uint32_t>(one) + 1 + rng() % (count - 1)) % count);
  for (RankProgram& p : b.programs) {
    for (runtime::ScheduleEntry& e : p.program.schedule) {
      const Segment kind = segment_of(p.program, e).kind;
      if (kind != Segment::kForward && kind != Segment::kBackward) continue;
      e.micro_batch = e.micro_batch == one ? other : e.micro_batch == other ? one : e.micro_batch;
    }
  }
  return true;
}

// Samples are dealt out in turn: those of several ranks are nearer to each other than a rank's own.
bool samples_in_turn(Bundle& b, std::mt19937&) {
  bool any = false;
  for (RankProgram& p : b.programs) {
    for (runtime::ProgramInput& in : p.program.inputs) {
      if (in.slice_samples == 0) continue;
      for (auto& dim : in.placement.axes) {
        for (runtime::AxisStride& a : dim) std::swap(a.stride, in.slice_samples), any = true;
      }
    }
  }
  return any;
}

bool other_parts(Bundle& b, std::mt19937& rng) {
  nlohmann::json& said = b.run["reproducible"];
  nlohmann::json& number = !said.is_object() ? said : said[rng() % 2 == 0 ? "samples" : "tensor"];
  const int64_t parts = number.get<int64_t>();
  number = rng() % 2 == 0 ? parts * 2 : parts / 2;
  return true;
}

void launch(runtime::Step& step, const LoopNest& nest) {
  step.units = units(nest);
  if (!step.params.contains("threads")) return;
  const DeviceSchedule s = device_schedule(device_nest(nest));
  step.units = s.blocks;
  step.params["threads"] = int64_t{s.threads};
}

// Changes the schedule of one of the nests that fit; the steps that run it follow.
bool change_nest(Bundle& b, std::mt19937& rng, const std::function<bool(const LoopNest&)>& fits,
                 const std::function<void(LoopNest&)>& change) {
  std::vector<std::pair<RankProgram*, KernelNest*>> found;
  for (RankProgram& p : b.programs) {
    for (KernelNest& k : p.nests.kernels) {
      if (fits(k.nest)) found.emplace_back(&p, &k);
    }
  }
  if (found.empty()) return false;
  const auto [program, kernel] = found[rng() % found.size()];
  change(kernel->nest);
  for (runtime::ProgramSegment& s : program->program.segments) {
    for (runtime::Step& step : s.steps) {
      if (step.kind == runtime::StepKind::kKernel && step.name == kernel->name) launch(step, kernel->nest);
    }
  }
  return true;
}

bool reduces_floats(const LoopNest& nest) {
  return nest.columns > 0 && std::any_of(nest.nodes.begin(), nest.nodes.end(), [](const NestNode& n) {
           return n.op == NestOp::kReduce && n.reduce == ReduceKind::kSum && is_float(n.scalar.type);
         });
}

// Vectors along what is reduced, or along what is not.
bool other_lanes(Bundle& b, std::mt19937& rng) {
  return change_nest(
      b, rng, [](const LoopNest& n) { return reduces_floats(n) && n.rows() > 0 && n.folds.empty() && n.clip == 0; },
      [](LoopNest& n) { n.lane_is_row = !n.lane_is_row; });
}

// The columns of a row two by two.
bool columns_in_pairs(Bundle& b, std::mt19937& rng) {
  return change_nest(
      b, rng,
      [](const LoopNest& n) {
        return reduces_floats(n) && n.clip == 0 && n.sizes.back() % 2 == 0 && n.sizes.back() > 2;
      },
      [](LoopNest& n) {
        const auto halve = [](std::vector<int64_t>& s) {
          s.push_back(s.back());
          s[s.size() - 2] *= 2;
        };
        n.sizes.back() /= 2;
        n.sizes.push_back(2);
        ++n.columns;
        for (NestNode& x : n.nodes) {
          if (x.op == NestOp::kLoad || x.op == NestOp::kIndex) halve(x.access.strides);
        }
        for (NestStore& s : n.stores) halve(s.access.strides);
        for (NestStore& s : n.kept) halve(s.access.strides);
        for (NestFold& f : n.folds) halve(f.access.strides);
      });
}

// A unit of a fold has other rows.
bool other_units(Bundle& b, std::mt19937& rng) {
  return change_nest(
      b, rng, [](const LoopNest& n) { return !n.folds.empty() && n.items() > n.rows_per_unit; },
      [](LoopNest& n) { ++n.rows_per_unit; });
}

// Ranks are added up in the order that their links give.
bool ranks_in_any_order(Bundle& b, std::mt19937& rng) {
  std::vector<runtime::Step*> sums;
  for (RankProgram& p : b.programs) {
    for (runtime::ProgramSegment& s : p.program.segments) {
      for (runtime::Step& step : s.steps) {
        if (runtime::adds_up_ranks(step)) sums.push_back(&step);
      }
    }
  }
  if (sums.empty()) return false;
  sums[rng() % sums.size()]->params.erase("ordered");
  return true;
}

bool not_strict(Bundle& b, std::mt19937& rng) {
  return change_nest(
      b, rng, [](const LoopNest&) { return true; }, [](LoopNest& n) { n.strict = false; });
}

constexpr TreeMutation kMutations[] = {
    {.name = "micro-batches in another order", .in_programs = micro_batches_in_turn},
    {.name = "samples dealt out in turn", .in_programs = samples_in_turn},
    {.name = "another number of parts or blocks", .in_programs = other_parts},
    {.name = "vectors along another loop", .in_programs = other_lanes},
    {.name = "columns in pairs", .in_programs = columns_in_pairs},
    {.name = "other units of a fold", .in_programs = other_units},
    {.name = "a kernel that is not strict", .in_programs = not_strict},
    {.name = "ranks in any order", .in_programs = ranks_in_any_order},
};

}  // namespace

std::span<const TreeMutation> tree_program_mutations() { return kMutations; }

}  // namespace partita
