// Each stage's graph is made by one walk over the whole one: nodes of the stage are copied, what nodes of no stage make
// is copied when it is first read, what another stage makes is received.
#include "partitioner/split_stages.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "base/status.h"
#include "ir/builder.h"
#include "partitioner/stage_messages.h"

namespace partita {
namespace {

class StageCutter {
 public:
  StageCutter(const LocalProgram& whole, const StageAssignment& stages, const StageMessages& messages, int axis,
              int stage, bool keep_unread)
      : whole_(whole),
        graph_(whole.graph),
        stages_(stages),
        messages_(messages),
        axis_(axis),
        stage_(stage),
        keep_unread_(keep_unread),
        here_(graph_.values.size(), kNoValue),
        place_(graph_.values.size(), kAnywhere),
        state_of_(graph_.values.size(), -1),
        literals_(constant_values(graph_)) {
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      place_[graph_.states[k].value] = stages.state[k];
      state_of_[graph_.states[k].value] = static_cast<int>(k);
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (ValueId v : graph_.nodes[n].outputs) place_[v] = stages.node[n];
    }
  }

  LocalProgram run() {
    begin();
    int entered = -1;
    auto enter = [&](Segment until) {
      while (entered < static_cast<int>(until)) enter_segment(static_cast<Segment>(++entered));
    };
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (!messages_.live[n]) continue;
      enter(node.segment);
      int place = stages_.node[n];
      if (node.segment > Segment::kBackward && place != kOwed) complete_inputs(node);
      if (place == stage_) {
        copy(node);
        send_results(node);
      } else if (place == kOwed) {
        copy_term(node);
      }
      receive_results(node);
    }
    enter(Segment::kUpdate);
    finish_states();
    finish_outputs();
    out_.graph = std::move(b_).finish();
    sort_by_execution(out_.graph);
    return std::move(out_);
  }

 private:
  void begin() {
    out_.mesh = whole_.mesh;
    out_.micro_batches = whole_.micro_batches;
    out_.samples_per_step = whole_.samples_per_step;
    b_.mutable_graph().name = graph_.name;
    b_.mutable_graph().origins = graph_.origins;
    for (size_t k = 0; k < graph_.inputs.size(); ++k) {
      const GraphInput& in = graph_.inputs[k];
      here_[in.value] = b_.input(in.name, graph_.type(in.value), in.kind);
      out_.inputs.push_back(whole_.inputs[k]);
    }
  }

  Attrs peer(int stage) const {
    Attrs attrs = group();
    attrs.set("peer", static_cast<int64_t>(stage));
    return attrs;
  }
  Attrs group() const {
    return {{"axes", std::vector<int64_t>{axis_}}, {"parts", whole_.mesh.axes[static_cast<size_t>(axis_)].size}};
  }

  void at(const Node& node) {
    b_.context() = {node.segment, node.origin, node.block, node.weight_gradient, node.device};
  }
  // The context of what is sent or received in `segment` for a value.
  void at(ValueId v, Segment segment) {
    const Node* producer = graph_.producer(v);
    b_.context() = {.segment = segment,
                    .origin = producer != nullptr ? producer->origin : -1,
                    .block = producer != nullptr ? producer->block : -1};
  }

  // Receives are asked for first: no stage waits for another before all that comes to it can come. What is made after
  // the micro-batches is asked for at its turn, among the sums over all stages.
  void enter_segment(Segment segment) {
    for (const Message& m : messages_.all) {
      if (m.segment == segment && m.to == stage_ && (m.early || segment <= Segment::kBackward)) receive(m);
    }
    for (const Message& m : messages_.all) {
      if (m.segment == segment && m.from == stage_ && m.early) send(m);
    }
  }

  void send(const Message& m) {
    ValueId v = value_of(m.value);
    at(m.value, m.segment);
    b_.emit_all("send", {v}, peer(m.to));
  }

  void receive(const Message& m) {
    at(m.value, m.segment);
    Attrs attrs = peer(m.from);
    attrs.set("shape", graph_.type(m.value).shape);
    attrs.set("type", graph_.type(m.value).dtype);
    ValueId received = b_.emit("recv", {}, std::move(attrs));
    if (place_[m.value] == kOwed) {
      received_[m.value].push_back(received);
    } else {
      here_[m.value] = received;
    }
  }

  void receive_results(const Node& node) {
    for (const Message& m : messages_.all) {
      if (m.to == stage_ && !m.early && m.segment > Segment::kBackward &&
          std::count(node.outputs.begin(), node.outputs.end(), m.value) > 0)
        receive(m);
    }
  }

  void send_results(const Node& node) {
    for (const Message& m : messages_.all) {
      if (m.from == stage_ && !m.early && std::count(node.outputs.begin(), node.outputs.end(), m.value) > 0) send(m);
    }
  }

  // The value as this stage has it: of a sum that is owed and not yet completed, its own term.
  ValueId value_of(ValueId v) {
    if (v == kNoValue || here_[v] != kNoValue) return v == kNoValue ? v : here_[v];
    std::vector<ValueId> todo = {v};
    while (!todo.empty()) {
      ValueId x = todo.back();
      if (here_[x] != kNoValue) {
        todo.pop_back();
        continue;
      }
      const Node* node = graph_.producer(x);
      if (node == nullptr) {
        here_[x] = state_of_[x] >= 0 ? declare(static_cast<size_t>(state_of_[x]))
                                     : b_.constant(*literals_[x], graph_.values[x].name);
        continue;
      }
      PARTITA_CHECK(place_[x] == kAnywhere, cat("a value of stage ", place_[x], " was not sent to stage ", stage_));
      bool ready = true;
      for (ValueId in : node->inputs) {
        if (in == kNoValue || here_[in] != kNoValue) continue;
        todo.push_back(in);
        ready = false;
      }
      if (ready) {
        NodeContext context = b_.context();
        copy(*node);
        b_.context() = context;
      }
    }
    return here_[v];
  }

  // A state of this stage. Terms of one accumulator on several stages are states of their own.
  ValueId declare(size_t k) {
    State s = graph_.states[k];
    if (stages_.state[k] >= 0 && stages_.state[k] != stage_) s.name = cat(s.name, "@stage", stage_);
    bool owns_parameter = true;
    for (size_t p = 0; p < graph_.states.size(); ++p) {
      if (graph_.states[p].kind == StateKind::kParameter && graph_.states[p].name == s.parameter)
        owns_parameter = stages_.state[p] == stage_;
    }
    if (!owns_parameter) s.parameter.clear();
    s.next = kNoValue;
    ValueId v = b_.state(std::move(s), graph_.type(graph_.states[k].value));
    out_.states.push_back(whole_.states[k]);
    declared_.push_back(k);
    return v;
  }

  void copy(const Node& node) {
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) inputs.push_back(value_of(v));
    emit(node, std::move(inputs));
  }

  void emit(const Node& node, std::vector<ValueId> inputs) {
    at(node);
    auto made = b_.try_emit(*node.op, std::move(inputs), node.attrs);
    PARTITA_CHECK(made.ok(), cat(graph_.origin(node), ": ", made.status().message()));
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      here_[node.outputs[k]] = (*made)[k];
      if (!graph_.values[node.outputs[k]].name.empty()) b_.name((*made)[k], graph_.values[node.outputs[k]].name);
    }
  }

  // This stage's term of a sum that is owed, where it has one: operands of other stages count as zero here.
  void copy_term(const Node& node) {
    const std::set<int>& terms = stages_.terms[node.outputs[0]];
    if (terms.count(stage_) == 0) return;
    size_t owed = 0;
    while (place_[node.inputs[owed]] == kAnywhere) ++owed;
    std::vector<bool> summed = summed_operands(graph_, node, owed);
    std::vector<ValueId> inputs;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      ValueId v = node.inputs[k];
      bool own = node.op->sums_micro_batches || place_[v] == stage_ ||
                 (place_[v] == kOwed && stages_.terms[v].count(stage_) > 0) ||
                 (place_[v] == kAnywhere && (!summed[k] || *terms.begin() == stage_));
      at(node);
      inputs.push_back(own ? value_of(v) : b_.full(graph_.type(v).dtype, graph_.type(v).shape, 0));
    }
    emit(node, std::move(inputs));
    own_terms_[node.outputs[0]] = here_[node.outputs[0]];
  }

  // Sums become whole where they are first read for what they are: scalars on every stage, by all of them together.
  void complete_inputs(const Node& node) {
    for (ValueId v : node.inputs) {
      if (v != kNoValue && place_[v] == kOwed) complete(v, node.segment);
    }
  }

  void complete(ValueId v, Segment segment) {
    int home = stages_.home[v];
    if (!completed_.insert(v).second || (home >= 0 && home != stage_)) return;
    at(v, segment);
    if (home < 0) {
      Attrs attrs = group();
      attrs.set("reduce", std::string("sum"));
      ValueId term = here_[v] != kNoValue ? here_[v] : b_.full(graph_.type(v).dtype, graph_.type(v).shape, 0);
      here_[v] = b_.emit("all_reduce", {term}, std::move(attrs));
      return;
    }
    for (ValueId term : received_[v]) here_[v] = here_[v] == kNoValue ? term : b_.add(here_[v], term);
  }

  void finish_states() {
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      const State& s = graph_.states[k];
      bool unread = keep_unread_ && messages_.needed[s.value].empty() && stage_ == 0;
      bool mine =
          stages_.state[k] == stage_ || (stages_.state[k] == kAnywhere && (s.kind == StateKind::kStep || unread));
      bool summed_elsewhere = s.next != kNoValue && place_[s.next] == kOwed && own_terms_.count(s.next) == 0;
      if (mine && !summed_elsewhere) value_of(s.value);
    }
    for (size_t i = 0; i < declared_.size(); ++i) {
      const State& s = graph_.states[declared_[i]];
      if (s.next == kNoValue) continue;
      ValueId next = own_terms_.count(s.next) ? own_terms_[s.next] : value_of(s.next);
      b_.mutable_graph().states[i].next = next;
    }
  }

  void finish_outputs() {
    for (size_t k = 0; k < graph_.outputs.size(); ++k) {
      const GraphOutput& o = graph_.outputs[k];
      if (place_[o.value] == kOwed) complete(o.value, Segment::kUpdate);
      if (messages_.needed[o.value].count(stage_) == 0) continue;
      b_.output(o.name, value_of(o.value));
      out_.outputs.push_back(whole_.outputs[k]);
    }
  }

  const LocalProgram& whole_;
  const Graph& graph_;
  const StageAssignment& stages_;
  const StageMessages& messages_;
  const int axis_, stage_;
  const bool keep_unread_;  // states that no node reads
  Builder b_;
  std::vector<ValueId> here_;  // per value of the whole graph
  std::vector<int> place_;     // per value: as StageAssignment::node
  std::vector<int> state_of_;  // per value: the state that it is, or -1
  std::vector<const Literal*> literals_;
  std::vector<size_t> declared_;
  std::map<ValueId, std::vector<ValueId>> received_;  // terms of sums
  std::map<ValueId, ValueId> own_terms_;              // likewise, of this stage
  std::set<ValueId> completed_;
  LocalProgram out_;
};

// Nodes of the backward segment that nothing sent depends on, gradients of weights and what follows from them, run
// apart.
void put_weights_apart(LocalProgram& program) {
  Graph& g = program.graph;
  std::vector<bool> sent(g.values.size(), false);
  for (size_t n = g.nodes.size(); n-- > 0;) {
    Node& node = g.nodes[n];
    if (node.segment != Segment::kBackward) continue;
    bool leads = node.outputs.empty() || node.inputs.empty() ||
                 std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return sent[v]; });
    node.weight_gradient = !leads;
    for (ValueId v : node.inputs) {
      if (leads && v != kNoValue) sent[v] = true;
    }
  }
  sort_by_execution(g, program.stage);
}

}  // namespace

absl::StatusOr<std::vector<LocalProgram>> split_stages(const LocalProgram& local, int axis, PipelineSchedule schedule,
                                                       const StateOwners& owners) {
  int64_t count = local.mesh.axes[static_cast<size_t>(axis)].size;
  PARTITA_ASSIGN_OR_RETURN(StageAssignment stages, assign_stages(local.graph, count, owners));
  StageMessages messages = plan_messages(local.graph, stages);
  std::vector<LocalProgram> programs;
  for (int s = 0; s < stages.stages; ++s) {
    programs.push_back(StageCutter(local, stages, messages, axis, s, owners.empty()).run());
    programs.back().stage = {.axis = axis, .index = s, .schedule = schedule};
    if (schedule == PipelineSchedule::kZeroBubble) put_weights_apart(programs.back());
  }
  return programs;
}

StateOwners state_owners(const std::vector<LocalProgram>& stages) {
  StateOwners owners;
  for (const LocalProgram& stage : stages) {
    for (const State& s : stage.graph.states) owners.try_emplace(s.name, static_cast<int>(stage.stage.index));
  }
  return owners;
}

}  // namespace partita
