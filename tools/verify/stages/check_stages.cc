#include "tools/verify/stages/check_stages.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/steps/check_steps.h"

namespace partita::verifier {
namespace {

using runtime::Step;
using runtime::StepKind;

// What both sides of an operation between stages must have alike.
struct Kind {
  std::string name;
  DType dtype = DType::kInvalid;
  std::vector<int64_t> shape;
  std::string reduce;
  bool operator==(const Kind&) const = default;
};

struct Event {
  Kind kind;
  int64_t step = 0;
  int64_t micro_batch = 0;
};

// The messages from one stage's ranks to another's in one channel (a group of the program's, numbered alike on all
// stages). Where the stages' ranks lie along different axes, each pair of them has its own.
struct Lane {
  std::vector<Event> sends, recvs;
};

// A sum over all stages, of several values at once.
struct Sum {
  std::vector<Kind> kinds;
  std::map<size_t, int64_t> steps;  // per stage that has started it
};

// An operation that has been started, by its number on its lanes or, without any, among the sums over all stages.
struct Operation {
  std::vector<std::pair<const Lane*, size_t>> lanes;
  bool is_send = false;
  size_t number = 0;
};

// Messages that have left an outbox, by their places.
struct Outbox {
  std::vector<std::optional<Operation>> under_way;
  size_t next = 0;
};

// From a stage to another; the channel; the sender's and the receiver's index along the axes that only it has.
using LaneKey = std::tuple<int, int, int64_t, int64_t, int64_t>;

// One rank stands for its stage: ranks that differ in other coordinates run the same program, each with its own peers.
struct Stage {
  const RankProgram* p = nullptr;
  size_t entry = 0, step = 0;
  std::map<std::pair<int64_t, int32_t>, Operation> started;  // by step and slot, the newest
  std::map<int64_t, Outbox> outboxes;                        // by number
  size_t sums = 0;                                           // over all stages, started
};

class StageChecker {
 public:
  explicit StageChecker(const ProgramSet& set) : set_(set) {
    const auto& mesh = set.programs.front().program.mesh;
    while (stage_axis_ < static_cast<int32_t>(mesh.size()) && mesh[static_cast<size_t>(stage_axis_)].name != "pipeline")
      ++stage_axis_;
    for (const RankProgram& p : set.programs) stages_.push_back({.p = &p});
    mesh_ = mesh_of(set.programs.front().program);
  }

  absl::StatusOr<StagesReport> run() {
    for (size_t s = 0; s < stages_.size(); ++s)
      PARTITA_RETURN_IF_ERROR(check_axes(*stages_[s].p, mesh_, static_cast<int64_t>(s)));
    PARTITA_RETURN_IF_ERROR(run_schedules());
    PARTITA_RETURN_IF_ERROR(link_messages());
    PARTITA_RETURN_IF_ERROR(check_states());
    return std::move(report_);
  }

 private:
  std::string where(size_t s) const {
    const runtime::Program& program = stages_[s].p->program;
    if (stages_[s].entry >= program.schedule.size()) return cat("stage ", s, " at its end");
    const runtime::ScheduleEntry& e = program.schedule[stages_[s].entry];
    const Step& step = program.segments[static_cast<size_t>(e.segment)].steps[stages_[s].step];
    return cat("stage ", s, ", micro-batch ", e.micro_batch, ", ", describe_step(program, static_cast<int>(step.id)));
  }

  absl::Status run_schedules() {
    bool all = false;
    for (bool moved = true; moved && !all;) {
      moved = false;
      all = true;
      for (size_t s = 0; s < stages_.size(); ++s) {
        PARTITA_ASSIGN_OR_RETURN(bool went, advance(s));
        moved = moved || went;
        all = all && stages_[s].entry == stages_[s].p->program.schedule.size();
      }
    }
    if (!all) {
      std::string waiting;
      for (size_t s = 0; s < stages_.size(); ++s) append(waiting, s ? "; " : "", where(s));
      return differs("expected no stages that wait for each other, found ", waiting);
    }
    for (const auto& [lane, ends] : lanes_) {
      if (ends.sends.size() != ends.recvs.size())
        return differs("from stage ", std::get<0>(lane), " to ", std::get<1>(lane),
                       ": expected as many sends as receives, found ", ends.sends.size(), " and ", ends.recvs.size());
      report_.messages += static_cast<int64_t>(ends.sends.size());
    }
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (stages_[s].sums != sums_.size())
        return differs("stage ", s, ": expected ", sums_.size(), " sums over all stages, found ", stages_[s].sums);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<bool> advance(size_t s) {
    Stage& stage = stages_[s];
    const runtime::Program& program = stage.p->program;
    bool moved = false;
    for (; stage.entry < program.schedule.size(); ++stage.entry, stage.step = 0) {
      const runtime::ScheduleEntry& e = program.schedule[stage.entry];
      const auto& steps = program.segments[static_cast<size_t>(e.segment)].steps;
      for (; stage.step < steps.size(); ++stage.step) {
        PARTITA_ASSIGN_OR_RETURN(bool went, run(s, steps[stage.step], e.slot, e.micro_batch));
        if (!went) return moved;
        moved = true;
      }
    }
    return moved;
  }

  absl::StatusOr<bool> run(size_t s, const Step& step, int32_t slot, int64_t micro_batch) {
    Stage& stage = stages_[s];
    if (step.kind == StepKind::kCollectiveWait) {
      auto of = step.params.find("of");
      int64_t start = of == step.params.end() ? -1 : std::get<int64_t>(of->second);
      auto at = stage.started.find({start, slot});
      if (at == stage.started.end()) at = stage.started.lower_bound({start, 0});  // the prologue's
      return at == stage.started.end() || at->first.first != start || is_done(at->second);
    }
    if (step.kind != StepKind::kCollectiveStart) return true;
    // A sum over all stages holds later operations back.
    if (stage.sums > 0 && sums_[stage.sums - 1].steps.size() < stages_.size()) return false;
    const std::vector<int32_t>& axes = stage.p->program.groups[static_cast<size_t>(number(step, "group"))].axes;
    if (std::count(axes.begin(), axes.end(), stage_axis_) == 0) return true;
    const runtime::Operand& o = step.operands.front();
    Kind kind{step.name, o.dtype, o.shape, ""};
    if (const int64_t number = StageChecker::number(step, "outbox"); step.name == "send" && number >= 0) {
      Outbox& box = stage.outboxes[number];
      box.under_way.resize(static_cast<size_t>(step.operands[1].shape[0]));
      std::optional<Operation>& last = box.under_way[box.next];
      if (last && !is_done(*last)) return false;
      PARTITA_RETURN_IF_ERROR(post(s, step, axes, std::move(kind), slot, micro_batch).status());
      last = stage.started.at({step.id, slot});
      box.next = (box.next + 1) % box.under_way.size();
      return true;
    }
    if (step.name == "send" || step.name == "recv") return post(s, step, axes, std::move(kind), slot, micro_batch);
    if (!along_stages(axes, mesh_.irregular()))
      return differs(where(s), ": expected a group of the stages, and of the axes that some of them lack, alone");
    auto reduce = step.params.find("reduce");
    if (reduce != step.params.end()) kind.reduce = std::get<std::string>(reduce->second);
    std::vector<Kind> kinds;
    for (int32_t k = 0; k < step.inputs; ++k) {
      const runtime::Operand& term = step.operands[static_cast<size_t>(k)];
      kinds.push_back({step.name, term.dtype, term.shape, kind.reduce});
    }
    if (stage.sums == sums_.size()) sums_.push_back({kinds, {}});
    Sum& sum = sums_[stage.sums];
    for (size_t k = 0; k < std::max(kinds.size(), sum.kinds.size()); ++k) {
      if (k >= kinds.size() || k >= sum.kinds.size() || !(sum.kinds[k] == kinds[k]))
        return differs(where(s), ": expected ", k < sum.kinds.size() ? describe(sum.kinds[k]) : "no more operands",
                       " as the other stages have it, found ", k < kinds.size() ? describe(kinds[k]) : "none");
    }
    sum.steps[s] = step.id;
    stage.started[{step.id, slot}] = {{}, false, stage.sums++};
    return true;
  }

  // Whether a group's axes are that of the stages and then these.
  bool along_stages(const std::vector<int32_t>& axes, const std::vector<int>& others) const {
    return axes.size() == others.size() + 1 && axes[0] == stage_axis_ &&
           std::equal(others.begin(), others.end(), axes.begin() + 1);
  }

  absl::StatusOr<bool> post(size_t s, const Step& step, const std::vector<int32_t>& axes, Kind kind, int32_t slot,
                            int64_t micro_batch) {
    const int64_t index = number(step, "peer");
    const std::vector<int64_t> at = coordinates_along(axes, index, mesh_);
    const auto own = static_cast<int>(s), peer = static_cast<int>(at[0]);
    if (index < 0 || index >= mesh_.ways(axes) || axes[0] != stage_axis_)
      return differs(where(s), ": expected a stage as its peer, found ", number(step, "peer"));
    const std::vector<int> along = mesh_.differing(own, peer);
    if (!along_stages(axes, along))
      return differs(where(s), ": expected a group of the stages, and of the axes that one of them lacks, alone");
    int64_t other_index = 0, own_indices = 1;  // of the peer and of this stage's ranks, along the axes that each has
    for (size_t k = 1; k < axes.size(); ++k) {
      const int64_t n = mesh_.axes[static_cast<size_t>(axes[k])].size;
      if (mesh_.has(axes[k], own)) {
        if (at[k] != 0) return differs(where(s), ": expected a rank as its peer that stage ", peer, " has");
        own_indices *= n;
      } else {
        other_index = other_index * n + at[k];
      }
    }
    const bool sends = step.name == "send";
    const int64_t channel = number(step, "group");
    kind.name = "message";
    Operation& operation = stages_[s].started[{step.id, slot}];
    operation = {{}, sends, 0};
    for (int64_t mine_at = 0; mine_at < own_indices; ++mine_at) {
      Lane& lane = lanes_[sends ? LaneKey{own, peer, channel, mine_at, other_index}
                                : LaneKey{peer, own, channel, other_index, mine_at}];
      auto& mine = sends ? lane.sends : lane.recvs;
      const auto& other = sends ? lane.recvs : lane.sends;
      if (other.size() > mine.size() && !(other[mine.size()].kind == kind))
        return differs(where(s), ": expected ", describe(other[mine.size()].kind), " as stage ", peer,
                       " has it, found ", describe(kind));
      if (peer == own && !sends && other.size() == mine.size())
        return differs(where(s), ": expected what the stage sends itself to be sent before, found it later");
      operation.lanes.emplace_back(&lane, mine.size());
      mine.push_back({kind, step.id, micro_batch});
    }
    return true;
  }

  static int64_t number(const Step& step, const char* name) {
    auto at = step.params.find(name);
    const int64_t* value = at == step.params.end() ? nullptr : std::get_if<int64_t>(&at->second);
    return value == nullptr ? -1 : *value;
  }
  static std::string describe(const Kind& k) {
    return cat("a ", k.name, k.reduce.empty() ? "" : " by " + k.reduce, " of ", dtype_name(k.dtype),
               to_string(k.shape));
  }

  bool is_done(const Operation& o) const {
    if (o.lanes.empty()) return sums_[o.number].steps.size() == stages_.size();
    return std::all_of(o.lanes.begin(), o.lanes.end(), [&](const auto& at) {
      return (o.is_send ? at.first->recvs : at.first->sends).size() > at.second;
    });
  }

  NodeId node_of(size_t stage, int64_t step) const {
    const RankProgram& p = *stages_[stage].p;
    if (step >= static_cast<int64_t>(p.claims.size())) return kNoNode;
    NodeId node = p.claims[static_cast<size_t>(step)].node;
    return node == kNoNode ? kNoNode : p.from[static_cast<size_t>(node)];
  }

  // Of what the ranks of a stage get from those at an index along the axes that it lacks.
  Sources sources_of(int from, int to, int64_t index) const {
    Sources s{.stage = from};
    int64_t receivers = 1;
    for (int a : mesh_.differing(from, to)) {
      const bool theirs = mesh_.has(a, from);
      (theirs ? s.gathered : s.scattered).push_back(a);
      if (!theirs) receivers *= mesh_.axes[static_cast<size_t>(a)].size;
    }
    s.at = coordinates_along(s.gathered, index, mesh_);
    s.nodes.assign(static_cast<size_t>(receivers), kNoNode);
    return s;
  }

  // Which node gets what which node sends: of the same micro-batch, and the same in all of them.
  absl::Status link_messages() {
    for (const auto& [lane, ends] : lanes_) {
      const auto& [from, to, channel, sender_index, receiver_index] = lane;
      for (size_t i = 0; i < ends.sends.size(); ++i) {
        const Event &sent = ends.sends[i], &received = ends.recvs[i];
        NodeId sender = node_of(static_cast<size_t>(from), sent.step);
        StageNode receiver{to, node_of(static_cast<size_t>(to), received.step)};
        auto [at, fresh] = report_.links.sources.try_emplace(receiver);
        if (fresh) at->second = sources_of(from, to, sender_index);
        NodeId& known = at->second.nodes[static_cast<size_t>(receiver_index)];
        if (known == kNoNode) known = sender;
        if (sent.micro_batch != received.micro_batch || known != sender || at->second.stage != from)
          return differs("stage ", to, ", micro-batch ", received.micro_batch, ", ",
                         describe_step(stages_[static_cast<size_t>(to)].p->program, static_cast<int>(received.step)),
                         ": expected what the same node of stage ", from, " sends of the same micro-batch, found ",
                         describe_step(stages_[static_cast<size_t>(from)].p->program, static_cast<int>(sent.step)),
                         " of micro-batch ", sent.micro_batch);
      }
    }
    for (const Sum& sum : sums_) {
      std::vector<NodeId>& nodes = report_.links.sums.emplace_back();
      for (size_t s = 0; s < stages_.size(); ++s) nodes.push_back(node_of(s, sum.steps.at(s)));
    }
    return absl::OkStatus();
  }

  // What error feedback may keep: undoing the compression accounts for it, or it is refused as a state that the serial
  // program has not.
  bool is_remainder(const State& s) const {
    bool known = std::any_of(set_.serial.states.begin(), set_.serial.states.end(),
                             [&](const State& x) { return x.name == s.name; });
    return !known && s.kind == StateKind::kOptimizer && s.parameter.empty();
  }

  // Trained and optimizer states on one stage each; what every stage may have, on one at least.
  absl::Status check_states() {
    std::map<std::string, int> holders;
    std::set<std::string> sums;
    for (const State& s : set_.serial.states) {
      if (s.kind == StateKind::kAccumulator) sums.insert(s.name);
    }
    for (size_t k = 0; k < set_.programs.size(); ++k) {
      for (const State& s : set_.programs[k].rank.states) {
        if (is_remainder(s)) continue;
        if (s.kind != StateKind::kAccumulator) {
          ++holders[s.name];
        } else if (!sums.count(s.name) && !sums.count(s.name.substr(0, s.name.rfind("@stage")))) {
          return differs("state ", quote(s.name), " of stage ", k, ": the serial program has none of this name");
        }
      }
    }
    for (const State& s : set_.serial.states) {
      if (s.kind == StateKind::kAccumulator) continue;
      bool shared = s.kind == StateKind::kFrozen || s.kind == StateKind::kStep;
      int count = holders[s.name];
      if (shared ? count < 1 : count != 1)
        return differs("state ", quote(s.name), ": expected it on ", shared ? "a stage" : "one stage", ", found it on ",
                       count);
      holders.erase(s.name);
    }
    if (!holders.empty())
      return differs("state ", quote(holders.begin()->first), ": the serial program has none of this name");
    return absl::OkStatus();
  }

  const ProgramSet& set_;
  int32_t stage_axis_ = 0;  // of the mesh
  std::vector<Stage> stages_;
  Mesh mesh_;
  std::map<LaneKey, Lane> lanes_;
  std::vector<Sum> sums_;  // in the order in which all start them
  StagesReport report_;
};

}  // namespace

absl::StatusOr<StagesReport> check_stages(const ProgramSet& set) { return StageChecker(set).run(); }

}  // namespace partita::verifier
