#include "tools/verify/check_values.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "tools/verify/bundle/pad_serial.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/stages/check_stages.h"
#include "tools/verify/stages/join_stages.h"
#include "tools/verify/steps/check_steps.h"
#include "tools/verify/steps/check_versions.h"
#include "tools/verify/undo/undo_compression.h"

namespace partita::verifier {
namespace {

// Says of a node of a rank's graph which step computes it.
class NodePlaces {
 public:
  explicit NodePlaces(const ProgramSet& set) : set_(set) {
    for (const RankProgram& p : set.programs) {
      std::vector<int>& steps = steps_.emplace_back(p.rank.nodes.size(), -1);
      std::vector<int> code_steps = steps_of_nodes(p.code, p.claims);
      for (size_t n = code_steps.size(); n-- > 0;) {
        if (code_steps[n] >= 0) steps[p.from[n]] = code_steps[n];
      }
    }
  }

  std::string operator()(const StageNode& n) const {
    const RankProgram& p = set_.programs[static_cast<size_t>(n.stage)];
    std::string node = cat("node ", n.node, " (", quote(p.rank.origin(p.rank.nodes[n.node])), ")");
    std::string ranks = set_.programs.size() > 1 ? cat("every rank of stage ", n.stage) : "every rank";
    int step = steps_[static_cast<size_t>(n.stage)][n.node];
    return step < 0 ? cat("on ", ranks, ", ", node) : cat(describe_step(p.program, step), " on ", ranks, ", ", node);
  }

 private:
  const ProgramSet& set_;
  std::vector<std::vector<int>> steps_;  // per stage and node, -1: none
};

// Whether ranks that differ along some of the axes have different sums of strides: the axes are digits of one number.
bool counts_once(std::vector<runtime::AxisStride> axes, const std::vector<runtime::MeshAxis>& mesh) {
  std::sort(axes.begin(), axes.end(), [](const auto& a, const auto& b) { return a.stride < b.stride; });
  int64_t next = 1;
  for (const runtime::AxisStride& a : axes) {
    if (a.stride != next) return false;
    next *= mesh[static_cast<size_t>(a.axis)].size;
  }
  return true;
}

// The axes along which ranks of the stage that has the state differ.
std::vector<int> axes_with_state(const ProgramSet& set, const std::string& name) {
  const Mesh mesh = mesh_of(set.programs.front().program);
  const bool several = set.programs.size() > 1;  // stages, along axis 0
  for (size_t s = 0; s < set.programs.size(); ++s) {
    const auto& states = set.programs[s].rank.states;
    if (several && std::none_of(states.begin(), states.end(), [&](const State& x) { return x.name == name; })) continue;
    std::vector<int> axes;
    for (int a = several ? 1 : 0; a < static_cast<int>(mesh.axes.size()); ++a) {
      if (a != mesh.time && (!several || mesh.has(a, static_cast<int64_t>(s)))) axes.push_back(a);
    }
    return axes;
  }
  return {};
}

// A kept state that ranks share which its sum is not over: their gradients have to be alike.
struct SharedState {
  std::string name;
  ValueId gradient;
  std::vector<int> along;
};

absl::Status wrong_state(const std::string& name, std::string_view expected) {
  return differs("state ", quote(name), ": expected ", expected);
}

// Takes away the states that compression keeps: with those who do not share them as a first dimension, which they
// split; what no ranks share is zero at first.
absl::StatusOr<std::vector<SharedState>> drop_states(const Uncompressed& whole, const ProgramSet& set,
                                                     runtime::Program& program) {
  std::vector<SharedState> more;
  auto drop = [&](const Uncompressed::Kept& kept) {
    const auto& [name, shared, gradient] = kept;
    const std::vector<int> all = axes_with_state(set, name);
    int64_t ranks = 1;
    for (int a : all) ranks *= program.mesh[static_cast<size_t>(a)].size;
    auto at = std::find_if(program.states.begin(), program.states.end(), [&](const auto& s) { return s.name == name; });
    if (at == program.states.end()) return wrong_state(name, "it in the program's interface");
    if (shared.empty() && (at->initial.kind != runtime::InitialKind::kFill || at->initial.a != 0))
      return wrong_state(name, "zeros at first");
    const runtime::Placement& p = at->placement;
    int64_t split = 1, owners = ranks;
    for (int64_t a : shared) owners /= program.mesh[static_cast<size_t>(a)].size;
    std::set<int32_t> axes;
    for (const auto& dim : p.axes) {
      for (const runtime::AxisStride& a : dim) {
        split *= program.mesh[static_cast<size_t>(a.axis)].size;
        axes.insert(a.axis);
      }
    }
    if (gradient != kNoValue && split < owners) {
      SharedState& s = more.emplace_back(SharedState{name, gradient, {}});
      for (int a : all) {
        const int64_t size = program.mesh[static_cast<size_t>(a)].size;
        if (size == 1 || axes.count(a) > 0 || std::ranges::count(shared, a) > 0) continue;
        s.along.push_back(a), owners /= size;
      }
    }
    const bool among_sharers =
        std::any_of(shared.begin(), shared.end(), [&](int64_t a) { return axes.count(static_cast<int32_t>(a)) > 0; });
    if (p.logical.empty() || p.logical != p.shape || p.logical[0] != owners || split != owners || p.local[0] != 1 ||
        among_sharers || axes.size() != p.axes[0].size() || !counts_once(p.axes[0], program.mesh))
      return wrong_state(name,
                         cat("a part of its own on each of ", owners, owners == ranks ? " ranks" : " groups of ranks"));
    program.states.erase(at);
    return absl::OkStatus();
  };
  for (const Uncompressed::Kept& kept : whole.kept) PARTITA_RETURN_IF_ERROR(drop(kept));
  return more;
}

// The graph that all ranks run, whole, and what its values and nodes are of the stages' graphs.
struct AllRanks {
  Graph graph;
  runtime::Program program;                  // the interface alone counts
  std::vector<StageNode> nodes;              // per node
  std::vector<std::vector<ValueId>> values;  // per stage and value of its graph; kNoValue: none
};

AllRanks one_stage(const RankProgram& p) {
  AllRanks all{.graph = p.rank, .program = p.program, .nodes = {}, .values = {{}}};
  for (size_t n = 0; n < p.rank.nodes.size(); ++n) all.nodes.push_back({0, static_cast<NodeId>(n)});
  for (size_t v = 0; v < p.rank.values.size(); ++v) all.values[0].push_back(static_cast<ValueId>(v));
  return all;
}

absl::StatusOr<RankValues> check_values(const Graph& serial, const ProgramSet& set, AllRanks ranks,
                                        const std::string& compress, const FixedSums& fixed) {
  const NodePlaces places(set);
  PARTITA_ASSIGN_OR_RETURN(Uncompressed whole, undo_compression(ranks.graph, compress));
  PARTITA_ASSIGN_OR_RETURN(const std::vector<SharedState> shared, drop_states(whole, set, ranks.program));
  auto place = [&](NodeId n) { return places(ranks.nodes[static_cast<size_t>(whole.from[static_cast<size_t>(n)])]); };
  PARTITA_ASSIGN_OR_RETURN(PaddedSerial padded, pad_serial(serial, ranks.program));
  auto values = SerialValues::create(padded.graph);
  if (!values.ok()) return absl::AbortedError(values.status().message());
  PARTITA_ASSIGN_OR_RETURN(GraphReport report, check_graph(*values, whole.graph, padded.program, fixed, place));
  for (const SharedState& s : shared) {
    const IndexMap& gradient = report.layouts[static_cast<size_t>(s.gradient)];
    for (int a : s.along) {
      if (gradient.depends_on(a) || gradient.is_partial(a))
        return wrong_state(s.name, "a part of its own on ranks whose gradients differ");
    }
  }
  RankValues out{.serial = *std::move(values), .report = std::move(report), .compressed_sums = whole.sums};
  // Of compressed sums the ranks' values are not those of the graph that was proved.
  for (std::vector<ValueId>& stage : ranks.values) {
    if (whole.sums > 0) std::fill(stage.begin(), stage.end(), kNoValue);
  }
  out.values = std::move(ranks.values);
  return out;
}

}  // namespace

absl::StatusOr<RankValues> check_values(const ProgramSet& set, const std::string& compress, const FixedSums& fixed) {
  if (set.programs.size() == 1) return check_values(set.serial, set, one_stage(set.programs.front()), compress, fixed);
  PARTITA_ASSIGN_OR_RETURN(StagesReport between, check_stages(set));
  PARTITA_ASSIGN_OR_RETURN(JoinedStages joined, join_stages(set, between.links, fixed.samples > 0));
  std::vector<int64_t> delays;
  if (std::any_of(set.programs.begin(), set.programs.end(),
                  [](const RankProgram& p) { return updates_each(p.program); })) {
    PARTITA_ASSIGN_OR_RETURN(delays, check_versions(set));
  }
  const Graph serial = delays.empty() ? set.serial : as_one_micro_batch(set.serial);
  AllRanks all{.graph = std::move(joined.graph),
               .program = std::move(joined.program),
               .nodes = std::move(joined.nodes),
               .values = std::move(joined.values)};
  PARTITA_ASSIGN_OR_RETURN(RankValues values, check_values(serial, set, std::move(all), compress, fixed));
  values.delays = std::move(delays);
  return values;
}

}  // namespace partita::verifier
