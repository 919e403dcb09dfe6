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

// The ranks of the stage that has the state.
int64_t ranks_with_state(const ProgramSet& set, const std::string& name) {
  const Mesh mesh = mesh_of(set.programs.front().program);
  for (size_t s = 0; set.programs.size() > 1 && s < set.programs.size(); ++s) {
    const auto& states = set.programs[s].rank.states;
    if (std::none_of(states.begin(), states.end(), [&](const State& x) { return x.name == name; })) continue;
    int64_t ranks = 1;
    for (int a = 1; a < static_cast<int>(mesh.axes.size()); ++a)
      ranks *= mesh.has(a, static_cast<int64_t>(s)) ? mesh.axes[static_cast<size_t>(a)].size : 1;
    return ranks;
  }
  return mesh.ranks();
}

// Takes away the states that compression keeps: with those who do not share them as a first dimension, which they
// split; what no ranks share is zero at first.
absl::Status drop_states(const Uncompressed& whole, const ProgramSet& set, runtime::Program& program) {
  auto drop = [&](const std::string& name, const std::vector<int64_t>& shared) {
    const int64_t ranks = ranks_with_state(set, name);
    auto at = std::find_if(program.states.begin(), program.states.end(), [&](const auto& s) { return s.name == name; });
    auto expected = [&](std::string_view what) { return differs("state ", quote(name), ": expected ", what); };
    if (at == program.states.end()) return expected("it in the program's interface");
    if (shared.empty() && (at->initial.kind != runtime::InitialKind::kFill || at->initial.a != 0))
      return expected("zeros at first");
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
    const bool among_sharers =
        std::any_of(shared.begin(), shared.end(), [&](int64_t a) { return axes.count(static_cast<int32_t>(a)) > 0; });
    if (p.logical.empty() || p.logical != p.shape || p.logical[0] != owners || split != owners || p.local[0] != 1 ||
        among_sharers || axes.size() != p.axes[0].size() || !counts_once(p.axes[0], program.mesh))
      return expected(cat("a part of its own on each of ", owners, owners == ranks ? " ranks" : " groups of ranks"));
    program.states.erase(at);
    return absl::OkStatus();
  };
  for (const auto& [name, shared] : whole.kept) PARTITA_RETURN_IF_ERROR(drop(name, shared));
  return absl::OkStatus();
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
  PARTITA_RETURN_IF_ERROR(drop_states(whole, set, ranks.program));
  auto place = [&](NodeId n) { return places(ranks.nodes[static_cast<size_t>(whole.from[static_cast<size_t>(n)])]); };
  PARTITA_ASSIGN_OR_RETURN(PaddedSerial padded, pad_serial(serial, ranks.program));
  auto values = SerialValues::create(padded.graph);
  if (!values.ok()) return absl::AbortedError(values.status().message());
  PARTITA_ASSIGN_OR_RETURN(GraphReport report, check_graph(*values, whole.graph, padded.program, fixed, place));
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
