// Values are made when they are asked for, from what leaves the step backwards; what several stages compute alike is
// computed once. Example, a gradient of a table that the first and the last stage read, over micro-batches:
//   stage 0: a' = accumulate(a, add(x, 0)), sent      stage 1: b' = accumulate(b, add(0, y)); add(b', received)
// is add(b', a') of one graph, and since add and accumulate are linear in their operands together, that is
//   accumulate(a + b, add(x + 0, 0 + y)), where a + b is the serial program's accumulator.
#include "tools/verify/stages/join_stages.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/layout/serial_values.h"
#include "tools/verify/stages/absent_axes.h"
#include "tools/verify/stages/joined_graph.h"
#include "tools/verify/stages/merge_terms.h"

namespace partita::verifier {
namespace {

class StageJoiner {
 public:
  StageJoiner(const ProgramSet& set, const StageLinks& links, bool ordered)
      : set_(set), links_(links), ordered_(ordered), g_(mesh_of(set.programs.front().program)) {
    for (const State& s : set.serial.states) serial_states_[s.name] = &s;
    for (size_t i = 0; i < links.sums.size(); ++i) {
      for (size_t s = 0; s < links.sums[i].size(); ++s) sum_of_[{static_cast<int>(s), links.sums[i][s]}] = i;
    }
  }

  absl::StatusOr<JoinedStages> run() {
    PARTITA_RETURN_IF_ERROR(join_interfaces());
    for (size_t s = 0; s < set_.programs.size(); ++s) {
      PARTITA_RETURN_IF_ERROR(join_outputs(static_cast<int>(s)));
      PARTITA_RETURN_IF_ERROR(join_states(static_cast<int>(s)));
    }
    PARTITA_ASSIGN_OR_RETURN(merged_away_, merger_.join_accumulators());
    PARTITA_RETURN_IF_ERROR(keep_live());
    out_.program = std::move(g_.program);
    return std::move(out_);
  }

 private:
  const Graph& graph(int stage) const { return set_.programs[static_cast<size_t>(stage)].rank; }
  ValueId& joined(int stage, ValueId v) { return joined_[static_cast<size_t>(stage)][static_cast<size_t>(v)]; }
  const Node& node(const StageNode& n) const { return graph(n.stage).nodes[static_cast<size_t>(n.node)]; }

  // The serial program's name of an accumulator, which may hold one stage's terms alone.
  std::string whole_name(const std::string& name) const {
    return serial_states_.count(name) ? name : name.substr(0, name.rfind("@stage"));
  }

  // Inputs, states and constants; equal ones are one.
  absl::Status join_interfaces() {
    const runtime::Program& first = set_.programs.front().program;
    g_.program.mesh = first.mesh;
    g_.program.micro_batches = first.micro_batches;
    g_.program.micro_slices = first.micro_slices;
    g_.program.samples_per_step = first.samples_per_step;
    for (size_t s = 0; s < set_.programs.size(); ++s) {
      const RankProgram& p = set_.programs[s];
      if (p.program.mesh != first.mesh || p.program.micro_batches != first.micro_batches ||
          p.program.micro_slices != first.micro_slices || p.program.samples_per_step != first.samples_per_step)
        return differs("stage ", s, ": expected the mesh, samples and micro-batches of stage 0");
      if (p.rank.inputs.size() != p.program.inputs.size() || p.rank.states.size() != p.program.states.size() ||
          p.rank.outputs.size() != p.program.outputs.size())
        return differs("stage ", s, ": the program's interface is not the graph's");
      joined_.emplace_back(p.rank.values.size(), kNoValue);
      for (const Node& n : p.rank.nodes) deepest_ += (n.inputs.size() + 1) * (set_.programs.size() + 1);
      absl::Status status = join_interface(static_cast<int>(s), p);
      if (!status.ok()) return differs("stage ", s, ": ", status.message());
    }
    return absl::OkStatus();
  }

  absl::Status join_interface(int stage, const RankProgram& p) {
    for (size_t k = 0; k < p.rank.inputs.size(); ++k) joined(stage, p.rank.inputs[k].value) = join_input(p, k);
    for (size_t k = 0; k < p.rank.states.size(); ++k) {
      const State& s = p.rank.states[k];
      auto [at, fresh] = states_.try_emplace(s.name, g_.program.states.size());
      if (fresh) {
        State own = s;
        own.next = kNoValue;
        g_.program.states.push_back(p.program.states[k]);
        if (s.kind == StateKind::kAccumulator) {
          merger_.add_accumulator(whole_name(s.name), at->second);
          // Only the stage that owns the parameter knows whose gradient it is.
          auto serial = serial_states_.find(whole_name(s.name));
          own.parameter = serial == serial_states_.end() ? "" : serial->second->parameter;
          g_.program.states.back().parameter = own.parameter;
        }
        b_.state(std::move(own), p.rank.type(s.value));
      }
      const State& known = g_.graph().states[at->second];
      if (b_.type(known.value) != p.rank.type(s.value) || known.kind != s.kind ||
          (s.kind != StateKind::kAccumulator && known.parameter != s.parameter) ||
          !same_placement(g_.program.states[at->second].placement, p.program.states[k].placement))
        return differs("state ", quote(s.name), ": expected it as an earlier stage has it");
      joined(stage, s.value) = known.value;
    }
    for (const Constant& c : p.rank.constants) {
      auto bytes = c.literal.bytes();
      std::string key = to_string(c.literal.type);
      key.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      auto [at, fresh] = constants_.try_emplace(std::move(key), kNoValue);
      if (fresh) at->second = b_.constant(c.literal);
      joined(stage, c.value) = at->second;
    }
    return absl::OkStatus();
  }

  // One name may stand for several inputs: a part of a run's samples with each micro-batch, and all of them.
  ValueId join_input(const RankProgram& p, size_t k) {
    const GraphInput& in = p.rank.inputs[k];
    const runtime::ProgramInput& own = p.program.inputs[k];
    for (size_t i = 0; i < g_.program.inputs.size(); ++i) {
      const GraphInput& x = g_.graph().inputs[i];
      const runtime::ProgramInput& known = g_.program.inputs[i];
      if (x.name == in.name && x.kind == in.kind && b_.type(x.value) == p.rank.type(in.value) &&
          known.name == own.name && known.kind == own.kind && known.slice_samples == own.slice_samples &&
          same_placement(known.placement, own.placement))
        return x.value;
    }
    g_.program.inputs.push_back(own);
    return b_.input(in.name, p.rank.type(in.value), in.kind);
  }

  absl::Status join_outputs(int stage) {
    const RankProgram& p = set_.programs[static_cast<size_t>(stage)];
    for (size_t k = 0; k < p.rank.outputs.size(); ++k) {
      const GraphOutput& o = p.rank.outputs[k];
      PARTITA_ASSIGN_OR_RETURN(ValueId v, value(stage, o.value));
      auto [at, fresh] = outputs_.try_emplace(o.name, g_.program.outputs.size());
      if (fresh) {
        b_.output(o.name, v);
        g_.program.outputs.push_back(p.program.outputs[k]);
      }
      if (g_.graph().outputs[at->second].value != v ||
          !same_placement(g_.program.outputs[at->second].placement, p.program.outputs[k].placement))
        return differs("output ", quote(o.name), " of stage ", stage, ": expected what an earlier stage computes");
    }
    return absl::OkStatus();
  }

  absl::Status join_states(int stage) {
    for (const State& s : graph(stage).states) {
      size_t k = states_.at(s.name);
      ValueId next = kNoValue;
      if (s.next != kNoValue) {
        PARTITA_ASSIGN_OR_RETURN(next, value(stage, s.next));
      }
      if (next_known_.insert(k).second) b_.set_next_of(k, next);
      if (b_.graph().states[k].next != next)
        return differs("state ", quote(s.name), " of stage ", stage, ": expected what an earlier stage leaves in it");
    }
    return absl::OkStatus();
  }

  // What no output, state or check needs: terms that have become one sum.
  absl::Status keep_live() {
    Graph all = std::move(b_).finish();
    std::vector<bool> live(all.values.size(), false);
    for (const GraphOutput& o : all.outputs) live[o.value] = true;
    for (ValueId v : checked_) live[v] = true;
    for (const State& s : all.states) {
      if (s.next != kNoValue) live[s.next] = true;
    }
    std::vector<bool> kept(all.nodes.size(), false);
    for (size_t n = all.nodes.size(); n-- > 0;) {
      const Node& node = all.nodes[n];
      kept[n] = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return live[v]; });
      if (!kept[n]) continue;
      for (ValueId v : node.inputs) {
        if (v == kNoValue) continue;
        if (merged_away_.count(v))
          return differs("stage ", g_.nodes()[n].stage, ", ", quote(all.origin(node)),
                         ": expected a reader of a whole sum over the stages, found one of a part of it");
        live[v] = true;
      }
    }
    Rewriter r(all);
    for (size_t n = 0; n < all.nodes.size(); ++n) {
      if (!kept[n]) continue;
      r.copy(all.nodes[n]);
      out_.nodes.push_back(g_.nodes()[n]);
    }
    out_.values = joined_;
    for (std::vector<ValueId>& stage : out_.values) {
      for (ValueId& v : stage) v = v == kNoValue || !r.has(v) ? kNoValue : r(v);
    }
    out_.graph = std::move(r).finish();
    return absl::OkStatus();
  }

  // A stage's value in the joined graph.
  absl::StatusOr<ValueId> value(int stage, ValueId v) {
    std::vector<std::pair<int, ValueId>> todo = {{stage, v}};
    while (!todo.empty()) {
      auto [s, x] = todo.back();
      if (joined(s, x) != kNoValue) {
        todo.pop_back();
        continue;
      }
      const StageNode from{s, graph(s).values[static_cast<size_t>(x)].producer};
      if (from.node < 0) return differs("stage ", s, ": value %", x, " is made nowhere");
      PARTITA_ASSIGN_OR_RETURN(auto operands, operands_of(from));
      size_t before = todo.size();
      for (const auto& [t, in] : operands) {
        if (in != kNoValue && joined(t, in) == kNoValue) todo.emplace_back(t, in);
      }
      if (todo.size() > deepest_) return differs("stage ", s, ": value %", x, " is made from itself");
      if (todo.size() > before) continue;
      absl::Status status = make(from);
      if (!status.ok())
        return differs("stage ", s, ", node ", from.node, " (", quote(graph(s).origin(node(from))),
                       "): ", status.message());
      todo.pop_back();
    }
    return joined(stage, v);
  }

  // The stages and their values that a node reads, over messages and sums.
  absl::StatusOr<std::vector<std::pair<int, ValueId>>> operands_of(const StageNode& n) const {
    std::vector<std::pair<int, ValueId>> all;
    if (const std::vector<const Sources*> shards = received_shards(n); !shards.empty()) {
      PARTITA_ASSIGN_OR_RETURN(Sent sent, what_is_sent(graph(shards[0]->stage), *shards[0], g_.mesh()));
      all.emplace_back(shards[0]->stage, sent.value);
    } else if (node(n).op->name == "recv") {
      return differs("stage ", n.stage, ", node ", n.node, ": nothing is sent to it");
    } else if (auto sum = sum_of_.find(n); sum != sum_of_.end()) {
      for (size_t s = 0; s < links_.sums[sum->second].size(); ++s) {
        StageNode term{static_cast<int>(s), links_.sums[sum->second][s]};
        for (ValueId v : node(term).inputs) all.emplace_back(term.stage, v);
      }
    } else {
      for (ValueId v : node(n).inputs) all.emplace_back(n.stage, v);
    }
    return all;
  }

  // Where a receive's value comes from, or those of the receives that a node puts together; none of any other node.
  std::vector<const Sources*> received_shards(const StageNode& n) const {
    const Node& x = node(n);
    std::vector<const Sources*> shards;
    auto add = [&](NodeId from) {
      auto at = from == kNoNode ? links_.sources.end() : links_.sources.find({n.stage, from});
      if (at != links_.sources.end()) shards.push_back(&at->second);
    };
    if (x.op->name == "recv") add(n.node);
    if (x.op->name != "concat" || x.attrs.i("dim") != 0) return shards;
    for (ValueId v : x.inputs) {
      const NodeId from = graph(n.stage).values[static_cast<size_t>(v)].producer;
      if (from != kNoNode && node({n.stage, from}).op->name == "recv") add(from);
    }
    if (shards.size() != x.inputs.size() || shards[0]->gathered.empty()) shards.clear();
    return shards;
  }

  // What a stage gets of another one: the shards that ranks along axes of its own have, in turn, are its all-gather;
  // what comes from the first of them alone, all of them have to have.
  absl::StatusOr<ValueId> received(const std::vector<const Sources*>& shards) {
    const Sources& first = *shards.front();
    PARTITA_ASSIGN_OR_RETURN(Sent sent, what_is_sent(graph(first.stage), first, g_.mesh()));
    std::vector<int> gathered, same;
    if (!are_all_shards(shards, g_.mesh(), gathered))
      return differs("expected the shards of all ranks of stage ", first.stage,
                     ", or that of its first ones, in order");
    for (int a : first.gathered) {
      if (std::count(gathered.begin(), gathered.end(), a) == 0) same.push_back(a);
    }
    ValueId v = joined(first.stage, sent.value);
    if (!sent.cut.empty()) {
      const Shape rows = b_.shape(v);
      Shape cut(rows.begin() + 1, rows.end()), part = cut;
      part.insert(part.begin(), 1);
      for (size_t k = sent.cut.size(); k-- > 0;)
        cut.insert(cut.begin(), g_.mesh().axes[static_cast<size_t>(sent.cut[k])].size);
      PARTITA_ASSIGN_OR_RETURN(v, g_.apply("reshape", {v}, {{"shape", cut}}));
      for (size_t k = 0; k < sent.cut.size(); ++k) {
        const Attrs attrs = {{"dim", static_cast<int64_t>(k)},
                             {"parts", g_.mesh().axes[static_cast<size_t>(sent.cut[k])].size}};
        PARTITA_ASSIGN_OR_RETURN(v, g_.apply("shard_slice", {v, g_.coordinate(sent.cut[k])}, attrs));
      }
      PARTITA_ASSIGN_OR_RETURN(v, g_.apply("reshape", {v}, {{"shape", part}}));
    }
    PARTITA_RETURN_IF_ERROR(expect_same_along(v, same));
    if (gathered.empty()) return v;
    Shape whole = b_.shape(v);
    if (whole.empty()) return differs("expected shards with a first dimension, found scalars");
    PARTITA_ASSIGN_OR_RETURN(v, g_.apply("all_gather", {v}, g_.group(gathered)));
    whole[0] *= g_.mesh().ways(gathered);
    return g_.apply("reshape", {v}, {{"shape", whole}});
  }

  // Notes that all ranks along the axes have to have the value: as the one of the first of them it is refused later
  // where the others have another one.
  absl::Status expect_same_along(ValueId v, const std::vector<int>& axes) {
    if (axes.empty()) return absl::OkStatus();
    for (int a : axes) {
      PARTITA_ASSIGN_OR_RETURN(v, g_.first_along(v, a));
    }
    PARTITA_ASSIGN_OR_RETURN(v, g_.sum_along(v, axes));
    checked_.push_back(v);
    return absl::OkStatus();
  }

  absl::Status make(const StageNode& n) {
    const Node& x = node(n);
    g_.come_from(n, x.segment, graph(n.stage).origin(x));
    if (const std::vector<const Sources*> shards = received_shards(n); !shards.empty()) {
      PARTITA_ASSIGN_OR_RETURN(ValueId v, received(shards));
      return take(n.stage, x.outputs[0], v);
    }
    if (auto sum = sum_of_.find(n); sum != sum_of_.end()) return make_sum(links_.sums[sum->second]);
    if (x.op->name == "stash") return take(n.stage, x.outputs[0], joined(n.stage, x.inputs[0]));
    std::vector<ValueId> inputs;
    for (ValueId v : x.inputs) inputs.push_back(v == kNoValue ? v : joined(n.stage, v));
    if (!ordered_ && merger_.adds_terms(x, inputs)) {
      if (std::optional<ValueId> sum = merger_.merged(inputs)) return take(n.stage, x.outputs[0], *sum);
    }
    // A collective of several operands is one of each.
    bool each = x.op->communicates && x.inputs.size() > 1 && x.inputs.size() == x.outputs.size();
    for (size_t k = 0; k < (each ? inputs.size() : 1); ++k) {
      PARTITA_ASSIGN_OR_RETURN(std::vector<ValueId> results,
                               g_.emit(x, each ? std::vector<ValueId>{inputs[k]} : inputs));
      for (size_t i = 0; i < results.size(); ++i)
        PARTITA_RETURN_IF_ERROR(take(n.stage, x.outputs[each ? k : i], results[i]));
    }
    return absl::OkStatus();
  }

  absl::Status make_sum(const std::vector<NodeId>& nodes) {
    if (ordered_) return differs("expected a sum in a fixed order, found one that stages have parts of");
    const Node& first = graph(0).nodes[static_cast<size_t>(nodes[0])];
    for (size_t k = 0; k < first.inputs.size(); ++k) {
      std::vector<ValueId> terms;
      for (size_t s = 0; s < nodes.size(); ++s) {
        const Node& x = node({static_cast<int>(s), nodes[s]});
        if (x.inputs.size() != first.inputs.size() || x.attrs.s("reduce", "sum") != "sum")
          return differs("expected a sum of ", first.inputs.size(), " values on every stage");
        PARTITA_ASSIGN_OR_RETURN(ValueId term, counted_once(g_, joined(static_cast<int>(s), x.inputs[k]), s));
        terms.push_back(term);
      }
      PARTITA_ASSIGN_OR_RETURN(std::vector<int> partial, take_off_own_sums(g_, terms));
      std::optional<ValueId> sum = merger_.merged(terms);
      if (!sum) return differs("its terms on the stages are not those of one sum");
      if (!partial.empty()) {
        PARTITA_ASSIGN_OR_RETURN(sum, g_.sum_along(*sum, partial));
      }
      PARTITA_RETURN_IF_ERROR(expect_same_along(*sum, g_.mesh().irregular()));
      for (size_t s = 0; s < nodes.size(); ++s) {
        const Node& x = node({static_cast<int>(s), nodes[s]});
        PARTITA_RETURN_IF_ERROR(take(static_cast<int>(s), x.outputs[k], *sum));
      }
    }
    return absl::OkStatus();
  }

  absl::Status take(int stage, ValueId v, ValueId made) {
    if (b_.type(made) != graph(stage).type(v))
      return differs("value %", v, ": expected ", to_string(b_.type(made)), ", found ",
                     to_string(graph(stage).type(v)));
    joined(stage, v) = made;
    return absl::OkStatus();
  }

  const ProgramSet& set_;
  const StageLinks& links_;
  const bool ordered_;
  std::map<StageNode, size_t> sum_of_;
  std::map<std::string, size_t> states_, outputs_;
  std::map<std::string, const State*> serial_states_;
  std::map<std::string, ValueId> constants_;
  std::set<size_t> next_known_;
  std::vector<ValueId> checked_;              // values that are there to be checked
  std::set<ValueId> merged_away_;             // accumulators that have become terms of another
  std::vector<std::vector<ValueId>> joined_;  // per stage and value
  size_t deepest_ = 1;                        // more values than can wait for each other
  JoinedGraph g_;
  Builder& b_ = g_.builder();
  TermMerger merger_{g_};
  JoinedStages out_;
};

}  // namespace

absl::StatusOr<JoinedStages> join_stages(const ProgramSet& set, const StageLinks& links, bool ordered) {
  return StageJoiner(set, links, ordered).run();
}

}  // namespace partita::verifier
