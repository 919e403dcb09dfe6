// Values are made when they are asked for, from what leaves the step backwards; what several stages compute alike is
// computed once. Example, a gradient of a table that the first and the last stage read, over micro-batches:
//   stage 0: a' = accumulate(a, add(x, 0)), sent      stage 1: b' = accumulate(b, add(0, y)); add(b', received)
// is add(b', a') of one graph, and since add and accumulate are linear in their operands together, that is
//   accumulate(a + b, add(x + 0, 0 + y)), where a + b is the serial program's accumulator.
#include "tools/verify/join_stages.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "base/quote.h"
#include "base/status.h"
#include "ir/builder.h"
#include "tools/verify/differs.h"
#include "tools/verify/serial_values.h"

namespace partita::verifier {
namespace {

class StageJoiner {
 public:
  StageJoiner(const ProgramSet& set, const StageLinks& links) : set_(set), links_(links) {
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
    PARTITA_RETURN_IF_ERROR(join_accumulators());
    PARTITA_RETURN_IF_ERROR(keep_live());
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
    out_.program.mesh = first.mesh;
    out_.program.micro_batches = first.micro_batches;
    out_.program.parts = first.parts;
    out_.program.samples_per_step = first.samples_per_step;
    for (size_t s = 0; s < set_.programs.size(); ++s) {
      const RankProgram& p = set_.programs[s];
      auto same_mesh = [](const runtime::MeshAxis& a, const runtime::MeshAxis& b) {
        return a.name == b.name && a.size == b.size;
      };
      if (!std::equal(first.mesh.begin(), first.mesh.end(), p.program.mesh.begin(), p.program.mesh.end(), same_mesh) ||
          p.program.micro_batches != first.micro_batches || p.program.parts != first.parts ||
          p.program.samples_per_step != first.samples_per_step)
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
      auto [at, fresh] = states_.try_emplace(s.name, out_.program.states.size());
      if (fresh) {
        State own = s;
        own.next = kNoValue;
        out_.program.states.push_back(p.program.states[k]);
        if (s.kind == StateKind::kAccumulator) {
          accumulators_[whole_name(s.name)].push_back(at->second);
          // Only the stage that owns the parameter knows whose gradient it is.
          auto serial = serial_states_.find(whole_name(s.name));
          own.parameter = serial == serial_states_.end() ? "" : serial->second->parameter;
          out_.program.states.back().parameter = own.parameter;
        }
        b_.state(std::move(own), p.rank.type(s.value));
      }
      const State& known = b_.graph().states[at->second];
      if (b_.type(known.value) != p.rank.type(s.value) || known.kind != s.kind ||
          (s.kind != StateKind::kAccumulator && known.parameter != s.parameter) ||
          !same_placement(out_.program.states[at->second].placement, p.program.states[k].placement))
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
    for (size_t i = 0; i < out_.program.inputs.size(); ++i) {
      const GraphInput& x = b_.graph().inputs[i];
      const runtime::ProgramInput& known = out_.program.inputs[i];
      if (x.name == in.name && x.kind == in.kind && b_.type(x.value) == p.rank.type(in.value) &&
          known.name == own.name && known.kind == own.kind && known.part_samples == own.part_samples &&
          same_placement(known.placement, own.placement))
        return x.value;
    }
    out_.program.inputs.push_back(own);
    return b_.input(in.name, p.rank.type(in.value), in.kind);
  }

  absl::Status join_outputs(int stage) {
    const RankProgram& p = set_.programs[static_cast<size_t>(stage)];
    for (size_t k = 0; k < p.rank.outputs.size(); ++k) {
      const GraphOutput& o = p.rank.outputs[k];
      PARTITA_ASSIGN_OR_RETURN(ValueId v, value(stage, o.value));
      auto [at, fresh] = outputs_.try_emplace(o.name, out_.program.outputs.size());
      if (fresh) {
        b_.output(o.name, v);
        out_.program.outputs.push_back(p.program.outputs[k]);
      }
      if (b_.graph().outputs[at->second].value != v ||
          !same_placement(out_.program.outputs[at->second].placement, p.program.outputs[k].placement))
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
      State& whole = b_.mutable_graph().states[k];
      if (next_known_.insert(k).second) whole.next = next;
      if (whole.next != next)
        return differs("state ", quote(s.name), " of stage ", stage, ": expected what an earlier stage leaves in it");
    }
    return absl::OkStatus();
  }

  // The accumulators of one sum's terms give way to one of the sum, if what they become adds up.
  absl::Status join_accumulators() {
    std::set<size_t> gone;
    for (const auto& [name, parts] : accumulators_) {
      if (parts.size() == 1) continue;
      std::vector<ValueId> values, next;
      for (size_t k : parts) {
        gone.insert(k);
        values.push_back(b_.graph().states[k].value);
        next.push_back(b_.graph().states[k].next);
      }
      const bool changed = std::count(next.begin(), next.end(), kNoValue) == 0;
      std::optional<ValueId> sum = changed ? merged(std::move(next)) : std::nullopt;
      if (!sum) return differs("state ", quote(name), ": what it gets on the stages are not the terms of one sum");
      merged_accumulators(values);  // is there now, read or not
      b_.mutable_graph().states[whole_.at(name)].next = *sum;
    }
    for (auto k = gone.rbegin(); k != gone.rend(); ++k) {
      parts_.insert(b_.graph().states[*k].value);
      b_.mutable_graph().states.erase(b_.mutable_graph().states.begin() + static_cast<std::ptrdiff_t>(*k));
      out_.program.states.erase(out_.program.states.begin() + static_cast<std::ptrdiff_t>(*k));
    }
    return absl::OkStatus();
  }

  // What no output or state needs: terms that have become one sum.
  absl::Status keep_live() {
    Graph all = std::move(b_).finish();
    std::vector<bool> live(all.values.size(), false);
    for (const GraphOutput& o : all.outputs) live[o.value] = true;
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
        if (parts_.count(v))
          return differs("stage ", nodes_[n].stage, ", ", quote(all.origin(node)),
                         ": expected a reader of a whole sum over the stages, found one of a part of it");
        live[v] = true;
      }
    }
    Rewriter r(all);
    for (size_t n = 0; n < all.nodes.size(); ++n) {
      if (!kept[n]) continue;
      r.copy(all.nodes[n]);
      out_.nodes.push_back(nodes_[n]);
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
    if (node(n).op->name == "recv") {
      auto sender = links_.sender.find(n);
      if (sender == links_.sender.end())
        return differs("stage ", n.stage, ", node ", n.node, ": nothing is sent to it");
      all.emplace_back(sender->second.stage, node(sender->second).inputs[0]);
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

  absl::Status make(const StageNode& n) {
    const Node& x = node(n);
    at_ = n;
    if (x.op->name == "recv") {
      const StageNode& sender = links_.sender.at(n);
      return take(n.stage, x.outputs[0], joined(sender.stage, node(sender).inputs[0]));
    }
    if (auto sum = sum_of_.find(n); sum != sum_of_.end()) return make_sum(links_.sums[sum->second]);
    if (x.op->name == "stash") return take(n.stage, x.outputs[0], joined(n.stage, x.inputs[0]));
    std::vector<ValueId> inputs;
    for (ValueId v : x.inputs) inputs.push_back(v == kNoValue ? v : joined(n.stage, v));
    if (adds_terms(x, inputs)) {
      if (std::optional<ValueId> sum = merged(inputs)) return take(n.stage, x.outputs[0], *sum);
    }
    // A collective of several operands is one of each.
    bool each = x.op->communicates && x.inputs.size() > 1 && x.inputs.size() == x.outputs.size();
    for (size_t k = 0; k < (each ? inputs.size() : 1); ++k) {
      PARTITA_ASSIGN_OR_RETURN(std::vector<ValueId> results, emit(x, each ? std::vector<ValueId>{inputs[k]} : inputs));
      for (size_t i = 0; i < results.size(); ++i)
        PARTITA_RETURN_IF_ERROR(take(n.stage, x.outputs[each ? k : i], results[i]));
    }
    return absl::OkStatus();
  }

  absl::Status make_sum(const std::vector<NodeId>& nodes) {
    const Node& first = graph(0).nodes[static_cast<size_t>(nodes[0])];
    for (size_t k = 0; k < first.inputs.size(); ++k) {
      std::vector<ValueId> terms;
      for (size_t s = 0; s < nodes.size(); ++s) {
        const Node& x = node({static_cast<int>(s), nodes[s]});
        if (x.inputs.size() != first.inputs.size() || x.attrs.s("reduce", "sum") != "sum")
          return differs("expected a sum of ", first.inputs.size(), " values on every stage");
        terms.push_back(joined(static_cast<int>(s), x.inputs[k]));
      }
      std::optional<ValueId> sum = merged(terms);
      if (!sum) return differs("its terms on the stages are not those of one sum");
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

  // Whether a node adds, after the micro-batches, a term that was made with them: stages' and chunks' terms are.
  bool adds_terms(const Node& x, const std::vector<ValueId>& inputs) const {
    if (x.op->name != "add" || runs_of(x.segment) != Runs::kOnce) return false;
    const Node* term = b_.graph().producer(inputs[1]);
    return term != nullptr && runs_of(term->segment) == Runs::kEach;
  }

  bool is_zero(ValueId v) const {
    while (const Node* x = b_.graph().producer(v)) {
      Movement movement = movement_of(*x->op);
      if (movement == Movement::kNone || movement == Movement::kCollective) return false;
      v = x->inputs[0];
    }
    const Literal* literal = b_.literal(v);
    if (literal == nullptr) return false;
    auto bytes = literal->bytes();
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
  }

  // The sum of values as one value: what an op does to several terms alike, it does to their sum where it is linear in
  // them. None where they are not made alike.
  std::optional<ValueId> merged(std::vector<ValueId> terms) {
    const ValueId any = terms.front();
    for (size_t k = 0; k < terms.size(); ++k) {
      const Node* x = b_.graph().producer(terms[k]);
      while (x != nullptr && adds_terms(*x, x->inputs)) {
        terms.push_back(x->inputs[1]);
        terms[k] = x->inputs[0];
        x = b_.graph().producer(terms[k]);
      }
    }
    std::erase_if(terms, [&](ValueId v) { return is_zero(v); });
    if (terms.empty()) return any;
    if (terms.size() == 1) return terms[0];
    std::sort(terms.begin(), terms.end());
    auto known = merged_.find(terms);
    if (known != merged_.end()) return known->second;
    std::optional<ValueId> sum = merged_accumulators(terms);
    if (!sum) sum = merged_results(terms);
    return merged_[std::move(terms)] = sum;
  }

  // All accumulators of one sum, each of which starts from zero, are that of the serial program.
  std::optional<ValueId> merged_accumulators(std::vector<ValueId> terms) {
    std::sort(terms.begin(), terms.end());
    for (const auto& [name, parts] : accumulators_) {
      std::vector<ValueId> values;
      for (size_t k : parts) values.push_back(b_.graph().states[k].value);
      std::sort(values.begin(), values.end());
      if (values != terms) continue;
      auto [at, fresh] = whole_.try_emplace(name, out_.program.states.size());
      if (fresh) {
        State whole = b_.graph().states[parts.front()];
        whole.name = name;
        whole.next = kNoValue;
        out_.program.states.push_back(out_.program.states[parts.front()]);
        out_.program.states.back().name = name;
        b_.state(std::move(whole), b_.type(terms[0]));
      }
      return b_.graph().states[at->second].value;
    }
    return std::nullopt;
  }

  std::optional<ValueId> merged_results(const std::vector<ValueId>& terms) {
    std::vector<Node> makers;
    for (ValueId v : terms) {
      const Node* x = b_.graph().producer(v);
      if (x == nullptr || x->outputs.size() != 1) return std::nullopt;
      makers.push_back(*x);
    }
    const Node& first = makers.front();
    auto alike = [&](const Node& x) {
      return x.op == first.op && x.attrs == first.attrs && x.inputs.size() == first.inputs.size() &&
             runs_of(x.segment) == runs_of(first.segment) &&
             std::count(x.inputs.begin(), x.inputs.end(), kNoValue) == 0;
    };
    if (!std::all_of(makers.begin(), makers.end(), alike)) return std::nullopt;
    if (first.op->communicates && first.attrs.s("reduce", "sum") != "sum") return std::nullopt;
    const Formula f = bound_formula(b_.graph(), first);
    std::set<int> groups;
    for (const FormulaOperand& o : f.inputs) groups.insert(o.linear);
    groups.erase(-1);
    for (int linear : groups) {
      if (auto inputs = merged_operands(makers, f, linear)) {
        auto results = emit(first, *std::move(inputs));
        if (results.ok()) return results->front();
      }
    }
    return std::nullopt;
  }

  // The operands of one linearity group summed, the others as all have them.
  std::optional<std::vector<ValueId>> merged_operands(const std::vector<Node>& makers, const Formula& f, int linear) {
    std::vector<ValueId> inputs = makers.front().inputs;
    for (size_t k = 0; k < inputs.size(); ++k) {
      bool one = std::all_of(makers.begin(), makers.end(), [&](const Node& x) { return x.inputs[k] == inputs[k]; });
      if (f.inputs[k].linear != linear && !one) return std::nullopt;
    }
    for (size_t k = 0; k < inputs.size(); ++k) {
      if (f.inputs[k].linear != linear) continue;
      std::vector<ValueId> terms;
      for (const Node& x : makers) terms.push_back(x.inputs[k]);
      std::optional<ValueId> sum = merged(std::move(terms));
      if (!sum) return std::nullopt;
      inputs[k] = *sum;
    }
    return inputs;
  }

  // The same op on values of the joined graph, once.
  absl::StatusOr<std::vector<ValueId>> emit(const Node& x, std::vector<ValueId> inputs) {
    std::vector<NodeId>& known = made_[{x.op, x.segment, inputs}];
    for (NodeId n : known) {
      const Node& other = b_.graph().nodes[static_cast<size_t>(n)];
      if (other.attrs == x.attrs && other.inputs == inputs) return other.outputs;
    }
    auto [origin, fresh] = origins_.try_emplace(graph(at_.stage).origin(node(at_)), -1);
    if (fresh) origin->second = b_.origin(origin->first);
    b_.context() = {.segment = x.segment, .origin = origin->second};
    PARTITA_ASSIGN_OR_RETURN(std::vector<ValueId> results, b_.try_emit(*x.op, std::move(inputs), x.attrs));
    nodes_.resize(b_.graph().nodes.size(), at_);
    known.push_back(static_cast<NodeId>(b_.graph().nodes.size() - 1));
    return results;
  }

  const ProgramSet& set_;
  const StageLinks& links_;
  std::map<StageNode, size_t> sum_of_;
  std::map<std::string, size_t> states_, outputs_;
  std::map<std::string, const State*> serial_states_;
  std::map<std::string, std::vector<size_t>> accumulators_;  // per sum, the states of its terms
  std::map<std::string, size_t> whole_;                      // per sum of several, its own state
  std::map<std::string, ValueId> constants_;
  std::map<std::string, int32_t> origins_;
  std::set<size_t> next_known_;
  std::set<ValueId> parts_;                   // accumulators that have become part of another
  std::vector<std::vector<ValueId>> joined_;  // per stage and value
  size_t deepest_ = 1;                        // more values than can wait for each other
  std::map<std::tuple<const OpDef*, Segment, std::vector<ValueId>>, std::vector<NodeId>> made_;
  std::map<std::vector<ValueId>, std::optional<ValueId>> merged_;
  StageNode at_;
  std::vector<StageNode> nodes_;  // per node of the joined graph
  Builder b_;
  JoinedStages out_;
};

}  // namespace

absl::StatusOr<JoinedStages> join_stages(const ProgramSet& set, const StageLinks& links) {
  return StageJoiner(set, links).run();
}

}  // namespace partita::verifier
