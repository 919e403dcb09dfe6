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
    mesh_ = mesh_of(set.programs.front().program);
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
      if (p.program.mesh != first.mesh || p.program.micro_batches != first.micro_batches ||
          p.program.parts != first.parts || p.program.samples_per_step != first.samples_per_step)
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
    if (const std::vector<const Sources*> parts = received_parts(n); !parts.empty()) {
      PARTITA_ASSIGN_OR_RETURN(Sent sent, what_is_sent(graph(parts[0]->stage), *parts[0], mesh_));
      all.emplace_back(parts[0]->stage, sent.value);
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
  std::vector<const Sources*> received_parts(const StageNode& n) const {
    const Node& x = node(n);
    std::vector<const Sources*> parts;
    auto add = [&](NodeId from) {
      auto at = from == kNoNode ? links_.sources.end() : links_.sources.find({n.stage, from});
      if (at != links_.sources.end()) parts.push_back(&at->second);
    };
    if (x.op->name == "recv") add(n.node);
    if (x.op->name != "concat" || x.attrs.i("dim") != 0) return parts;
    for (ValueId v : x.inputs) {
      const NodeId from = graph(n.stage).values[static_cast<size_t>(v)].producer;
      if (from != kNoNode && node({n.stage, from}).op->name == "recv") add(from);
    }
    if (parts.size() != x.inputs.size() || parts[0]->gathered.empty()) parts.clear();
    return parts;
  }

  // What a stage gets of another one: the parts that ranks along axes of its own have, in turn, are its all-gather;
  // what comes from the first of them alone, all of them have to have.
  absl::StatusOr<ValueId> received(const std::vector<const Sources*>& parts) {
    const Sources& first = *parts.front();
    PARTITA_ASSIGN_OR_RETURN(Sent sent, what_is_sent(graph(first.stage), first, mesh_));
    std::vector<int> gathered, same;
    if (!are_all_parts(parts, mesh_, gathered))
      return differs("expected the parts of all ranks of stage ", first.stage, ", or that of its first ones, in order");
    for (int a : first.gathered) {
      if (std::count(gathered.begin(), gathered.end(), a) == 0) same.push_back(a);
    }
    ValueId v = joined(first.stage, sent.value);
    if (!sent.cut.empty()) {
      const Shape rows = b_.shape(v);
      Shape cut(rows.begin() + 1, rows.end()), part = cut;
      part.insert(part.begin(), 1);
      for (size_t k = sent.cut.size(); k-- > 0;)
        cut.insert(cut.begin(), mesh_.axes[static_cast<size_t>(sent.cut[k])].size);
      PARTITA_ASSIGN_OR_RETURN(v, apply("reshape", {v}, {{"shape", cut}}));
      for (size_t k = 0; k < sent.cut.size(); ++k) {
        const Attrs attrs = {{"dim", static_cast<int64_t>(k)},
                             {"parts", mesh_.axes[static_cast<size_t>(sent.cut[k])].size}};
        PARTITA_ASSIGN_OR_RETURN(v, apply("shard_slice", {v, coordinate(sent.cut[k])}, attrs));
      }
      PARTITA_ASSIGN_OR_RETURN(v, apply("reshape", {v}, {{"shape", part}}));
    }
    PARTITA_RETURN_IF_ERROR(expect_same_along(v, same));
    if (gathered.empty()) return v;
    Shape whole = b_.shape(v);
    if (whole.empty()) return differs("expected parts with a first dimension, found scalars");
    PARTITA_ASSIGN_OR_RETURN(v, apply("all_gather", {v}, group(gathered)));
    whole[0] *= mesh_.ways(gathered);
    return apply("reshape", {v}, {{"shape", whole}});
  }

  // Notes that all ranks along the axes have to have the value: as the one of the first of them it is refused later
  // where the others have another one.
  absl::Status expect_same_along(ValueId v, const std::vector<int>& axes) {
    if (axes.empty()) return absl::OkStatus();
    for (int a : axes) {
      PARTITA_ASSIGN_OR_RETURN(ValueId first, apply("eq", {coordinate(a), b_.scalar(DType::kI64, 0)}, {}));
      PARTITA_ASSIGN_OR_RETURN(v, apply("select", {first, v, b_.scalar(b_.dtype(v), 0)}, {}));
    }
    PARTITA_ASSIGN_OR_RETURN(v, sum_along(v, axes));
    checked_.push_back(v);
    return absl::OkStatus();
  }

  absl::StatusOr<ValueId> sum_along(ValueId v, const std::vector<int>& axes) {
    Attrs attrs = group(axes);
    attrs.set("reduce", std::string("sum"));
    return apply("all_reduce", {v}, std::move(attrs));
  }

  // The value where the coordinate along the axis is 0, else zero; put as far back as what is made of it is linear.
  absl::StatusOr<ValueId> once_along(ValueId v, int axis) {
    if (is_zero(v)) return v;
    const Node* made = b_.graph().producer(v);
    if (made != nullptr && made->outputs.size() == 1 && !made->op->communicates) {
      const Node x = *made;
      std::vector<ValueId> inputs = x.inputs;
      const std::vector<size_t> through = linear_operands(x);
      for (size_t k : through) {
        PARTITA_ASSIGN_OR_RETURN(inputs[k], once_along(inputs[k], axis));
      }
      if (!through.empty()) {
        PARTITA_ASSIGN_OR_RETURN(std::vector<ValueId> results, emit(x, std::move(inputs)));
        return results[0];
      }
    }
    PARTITA_ASSIGN_OR_RETURN(ValueId first, apply("eq", {coordinate(axis), b_.scalar(DType::kI64, 0)}, {}));
    return apply("select", {first, v, b_.scalar(b_.dtype(v), 0)}, {});
  }

  // The same value with such conditions, on whichever axis, put as far back.
  absl::StatusOr<ValueId> with_conditions_back(ValueId v) {
    const Node* made = b_.graph().producer(v);
    if (made == nullptr || is_zero(v) || made->outputs.size() != 1 || made->op->communicates) return v;
    const Node x = *made;
    if (x.op->name == "select" && is_zero(x.inputs[2])) {
      for (int a = 0; a < static_cast<int>(mesh_.axes.size()); ++a) {
        if (!is_first_along(x.inputs[0], a)) continue;
        PARTITA_ASSIGN_OR_RETURN(ValueId all, with_conditions_back(x.inputs[1]));
        return once_along(all, a);
      }
    }
    std::vector<ValueId> inputs = x.inputs;
    for (size_t k : linear_operands(x)) {
      PARTITA_ASSIGN_OR_RETURN(inputs[k], with_conditions_back(inputs[k]));
    }
    if (inputs == x.inputs) return v;
    PARTITA_ASSIGN_OR_RETURN(std::vector<ValueId> results, emit(x, std::move(inputs)));
    return results[0];
  }

  // The operands in which a node is linear jointly, where the others are constants; of a sum over micro-batches, that
  // starts from zero, the term.
  std::vector<size_t> linear_operands(const Node& x) const {
    if (x.op->sums_micro_batches) return {x.inputs.size() - 1};
    if (std::count(x.inputs.begin(), x.inputs.end(), kNoValue) > 0) return {};
    const Formula f = bound_formula(b_.graph(), x);
    std::vector<size_t> some;
    for (size_t k = 0; k < x.inputs.size(); ++k) {
      if (b_.literal(x.inputs[k]) != nullptr) continue;
      if (f.inputs[k].linear < 0 || (!some.empty() && f.inputs[k].linear != f.inputs[some[0]].linear)) return {};
      some.push_back(k);
    }
    for (size_t k = 0; !some.empty() && k < x.inputs.size(); ++k) {
      const bool among = f.inputs[k].linear == f.inputs[some[0]].linear;
      if (among && b_.literal(x.inputs[k]) != nullptr && !is_zero(x.inputs[k])) return {};
    }
    return some;
  }

  // Terms of a sum over all stages that each of them has summed along axes of its own, before it: the terms that went
  // into those sums, counted once along the axes that their stage lacks, and the axes that sums are owed along.
  absl::StatusOr<std::vector<int>> take_off_own_sums(std::vector<ValueId>& terms) {
    std::set<int> all;
    std::vector<std::set<int>> own(terms.size());
    for (size_t s = 0; s < terms.size(); ++s) {
      const Node* x = b_.graph().producer(terms[s]);
      if (x == nullptr || x->op->name != "all_reduce" || x->attrs.s("reduce", "") != "sum") continue;
      for (int64_t a : x->attrs.ints("axes")) own[s].insert(static_cast<int>(a));
      all.insert(own[s].begin(), own[s].end());
    }
    const std::vector<int> some_lack = mesh_.irregular();
    if (std::none_of(some_lack.begin(), some_lack.end(), [&](int a) { return all.count(a) > 0; }))
      return std::vector<int>{};
    for (size_t s = 0; s < terms.size(); ++s) {
      if (is_zero(terms[s])) continue;
      std::set<int> expected = all;
      std::erase_if(expected, [&](int a) { return !mesh_.has(a, static_cast<int64_t>(s)); });
      if (own[s] != expected)
        return differs("stage ", s, ": expected its term to be a sum along the axes that others sum along");
      if (!own[s].empty()) terms[s] = b_.graph().producer(terms[s])->inputs[0];
      PARTITA_ASSIGN_OR_RETURN(terms[s], with_conditions_back(terms[s]));
      for (int a : all) {
        if (mesh_.has(a, static_cast<int64_t>(s))) continue;
        PARTITA_ASSIGN_OR_RETURN(terms[s], once_along(terms[s], a));
      }
    }
    return std::vector<int>(all.begin(), all.end());
  }

  Attrs group(const std::vector<int>& axes) const {
    return {{"axes", std::vector<int64_t>(axes.begin(), axes.end())}, {"parts", mesh_.ways(axes)}};
  }

  absl::StatusOr<ValueId> apply(std::string_view op, std::vector<ValueId> inputs, Attrs attrs) {
    Node n;
    n.op = find_op(op);
    n.attrs = std::move(attrs);
    n.segment = node(at_).segment;
    PARTITA_ASSIGN_OR_RETURN(std::vector<ValueId> results, emit(n, std::move(inputs)));
    return results[0];
  }

  ValueId coordinate(int axis) {
    const std::string& name = mesh_.axes[static_cast<size_t>(axis)].name;
    for (const GraphInput& in : b_.graph().inputs) {
      if (in.kind == InputKind::kCoordinate && in.name == name) return in.value;
    }
    out_.program.inputs.push_back({.name = name, .kind = "coordinate"});
    return b_.input(name, {DType::kI64, {}}, InputKind::kCoordinate);
  }

  absl::Status make(const StageNode& n) {
    const Node& x = node(n);
    at_ = n;
    if (const std::vector<const Sources*> parts = received_parts(n); !parts.empty()) {
      PARTITA_ASSIGN_OR_RETURN(ValueId v, received(parts));
      return take(n.stage, x.outputs[0], v);
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
        PARTITA_ASSIGN_OR_RETURN(ValueId term, counted_once(joined(static_cast<int>(s), x.inputs[k]), s));
        terms.push_back(term);
      }
      PARTITA_ASSIGN_OR_RETURN(std::vector<int> owed, take_off_own_sums(terms));
      std::optional<ValueId> sum = merged(terms);
      if (!sum) return differs("its terms on the stages are not those of one sum");
      if (!owed.empty()) {
        PARTITA_ASSIGN_OR_RETURN(sum, sum_along(*sum, owed));
      }
      PARTITA_RETURN_IF_ERROR(expect_same_along(*sum, mesh_.irregular()));
      for (size_t s = 0; s < nodes.size(); ++s) {
        const Node& x = node({static_cast<int>(s), nodes[s]});
        PARTITA_RETURN_IF_ERROR(take(static_cast<int>(s), x.outputs[k], *sum));
      }
    }
    return absl::OkStatus();
  }

  // The term of a sum that the first of a stage's ranks along the axes that others lack holds, each of which the others
  // leave at zero: all of them would have it.
  absl::StatusOr<ValueId> counted_once(ValueId term, size_t stage) const {
    std::vector<int> axes;
    for (int a : mesh_.irregular()) {
      if (mesh_.has(a, static_cast<int64_t>(stage))) axes.push_back(a);
    }
    while (!axes.empty()) {
      const Node* x = b_.graph().producer(term);
      if (x == nullptr || x->op->name != "select" || !is_zero(x->inputs[2]))
        return differs("stage ", stage, ": expected its term to count once along axes that other stages lack");
      auto at = std::find_if(axes.begin(), axes.end(), [&](int a) { return is_first_along(x->inputs[0], a); });
      if (at == axes.end())
        return differs("stage ", stage, ": expected a condition on the axes that other stages lack");
      axes.erase(at);
      term = x->inputs[1];
    }
    return term;
  }

  bool is_first_along(ValueId v, int axis) const {
    const Node* x = b_.graph().producer(v);
    if (x == nullptr || x->op->name != "eq" || !is_zero(x->inputs[1])) return false;
    return std::any_of(b_.graph().inputs.begin(), b_.graph().inputs.end(), [&](const GraphInput& in) {
      return in.kind == InputKind::kCoordinate && in.value == x->inputs[0] &&
             in.name == mesh_.axes[static_cast<size_t>(axis)].name;
    });
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
      if (x->op->name == "add") {
        if (!is_zero(x->inputs[1])) return false;
      } else if (movement == Movement::kNone || movement == Movement::kCollective)
        return false;
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
  Mesh mesh_;
  std::map<StageNode, size_t> sum_of_;
  std::map<std::string, size_t> states_, outputs_;
  std::map<std::string, const State*> serial_states_;
  std::map<std::string, std::vector<size_t>> accumulators_;  // per sum, the states of its terms
  std::map<std::string, size_t> whole_;                      // per sum of several, its own state
  std::map<std::string, ValueId> constants_;
  std::map<std::string, int32_t> origins_;
  std::set<size_t> next_known_;
  std::vector<ValueId> checked_;              // values that are there to be checked
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
