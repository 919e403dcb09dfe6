// One walk backwards finds who reads each value under which plan, one walk forwards makes the graph. Example, samples
// over axis m in stage 0 and features over the same axis in stage 1:
//   y = matmul(x, w)                     stage 0: [b@m, h]
//   y' = y laid out anew                 [b@m, h] is sent, rank to rank, then gathered: [b, h]
//   z = matmul(y', v)                    stage 1: [b, f@m]
#include "partitioner/shard/join_plans.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "partitioner/layout/layout.h"

namespace partita {
namespace {

// A prime factor of an axis of a stage's mesh is one axis of the joined one.
std::vector<int64_t> prime_factors(int64_t n) {
  std::vector<int64_t> factors;
  for (int64_t p = 2; n > 1; ++p) {
    for (; n % p == 0; n /= p) factors.push_back(p);
  }
  return factors;
}

// The axes of stages' meshes as lists of axes of the joined one.
struct Refinement {
  std::vector<int64_t> sizes;
  std::vector<std::map<int, std::vector<int>>> axes;  // per stage and axis of its mesh, outermost first
};

bool is_between_ranks(const Mesh& mesh, int axis) {
  return axis != mesh.time && mesh.axes[static_cast<size_t>(axis)].name != kStageAxis;
}

Refinement refine(const std::vector<ShardingPlan>& stages) {
  Refinement r;
  for (const ShardingPlan& plan : stages) {
    std::map<int, std::vector<int>>& own = r.axes.emplace_back();
    std::set<size_t> taken;
    for (int a = 0; a < static_cast<int>(plan.mesh.axes.size()); ++a) {
      if (!is_between_ranks(plan.mesh, a)) continue;
      for (int64_t p : prime_factors(plan.mesh.axes[static_cast<size_t>(a)].size)) {
        size_t at = 0;
        while (at < r.sizes.size() && (r.sizes[at] != p || taken.count(at))) ++at;
        if (at == r.sizes.size()) r.sizes.push_back(p);
        taken.insert(at);
        own[a].push_back(static_cast<int>(at));
      }
    }
  }
  return r;
}

bool has_factor(const std::map<int, std::vector<int>>& own, int factor) {
  return std::any_of(own.begin(), own.end(),
                     [&](const auto& axis) { return std::count(axis.second.begin(), axis.second.end(), factor) > 0; });
}

// Whether every stage has the factor and the next one side by side in one axis, or neither.
bool belongs_together(const Refinement& r, int factor) {
  return std::all_of(r.axes.begin(), r.axes.end(), [&](const auto& own) {
    if (!has_factor(own, factor) && !has_factor(own, factor + 1)) return true;
    return std::any_of(own.begin(), own.end(), [&](const auto& axis) {
      auto at = std::find(axis.second.begin(), axis.second.end(), factor);
      return at != axis.second.end() && std::next(at) != axis.second.end() && *std::next(at) == factor + 1;
    });
  });
}

void merge_factors(Refinement& r) {
  for (int f = 0; f + 1 < static_cast<int>(r.sizes.size());) {
    if (!belongs_together(r, f)) {
      ++f;
      continue;
    }
    r.sizes[static_cast<size_t>(f)] *= r.sizes[static_cast<size_t>(f) + 1];
    r.sizes.erase(r.sizes.begin() + f + 1);
    for (auto& own : r.axes) {
      for (auto& [axis, factors] : own) {
        std::erase(factors, f + 1);
        for (int& x : factors) x -= x > f + 1;
      }
    }
  }
}

// "data/tensor": what stages call it.
std::string axis_name(const std::vector<ShardingPlan>& stages, const Refinement& r, int factor) {
  std::vector<std::string> names;
  for (size_t s = 0; s < stages.size(); ++s) {
    for (const auto& [axis, factors] : r.axes[s]) {
      const std::string& name = stages[s].mesh.axes[static_cast<size_t>(axis)].name;
      if (std::count(factors.begin(), factors.end(), factor) && !std::count(names.begin(), names.end(), name))
        names.push_back(name);
    }
  }
  std::string joined;
  for (const std::string& name : names) append(joined, joined.empty() ? "" : "/", name);
  return joined;
}

void move_axes(std::vector<int>& axes, const std::vector<std::vector<int>>& to) {
  std::vector<int> moved;
  for (int a : axes) moved.insert(moved.end(), to[static_cast<size_t>(a)].begin(), to[static_cast<size_t>(a)].end());
  axes = std::move(moved);
}

void move_axes(Sharding& s, const std::vector<std::vector<int>>& to) {
  for (auto& dim : s.dims) {
    for (Piece& p : dim) move_axes(p.axes, to);
  }
  move_axes(s.partial, to);
}

}  // namespace

std::vector<ShardingPlan> on_one_mesh(std::vector<ShardingPlan> stages) {
  Refinement r = refine(stages);
  merge_factors(r);
  const Mesh& first = stages[0].mesh;
  Mesh mesh;
  if (int stage = first.find(kStageAxis); stage >= 0) mesh.axes.push_back(first.axes[static_cast<size_t>(stage)]);
  const int inside = static_cast<int>(mesh.axes.size());
  for (size_t f = 0; f < r.sizes.size(); ++f) {
    std::string name = axis_name(stages, r, static_cast<int>(f));
    for (int k = 1; mesh.find(name) >= 0; ++k) {
      if (mesh.find(cat(name, ":", k)) < 0) name = cat(name, ":", k);
    }
    MeshAxis& axis = mesh.axes.emplace_back(MeshAxis{std::move(name), r.sizes[f]});
    for (size_t s = 0; s < stages.size(); ++s) {
      if (!has_factor(r.axes[s], static_cast<int>(f))) axis.absent.push_back(static_cast<int64_t>(s));
    }
  }
  if (first.time >= 0) {
    mesh.time = static_cast<int>(mesh.axes.size());
    mesh.axes.push_back(first.axes[static_cast<size_t>(first.time)]);
  }
  for (size_t s = 0; s < stages.size(); ++s) {
    ShardingPlan& plan = stages[s];
    std::vector<std::vector<int>> to(plan.mesh.axes.size());
    for (size_t a = 0; a < to.size(); ++a) {
      if (is_between_ranks(plan.mesh, static_cast<int>(a))) {
        for (int f : r.axes[s][static_cast<int>(a)]) to[a].push_back(inside + f);
      } else {
        to[a] = {static_cast<int>(a) == plan.mesh.time ? mesh.time : 0};
      }
    }
    for (Sharding& in : plan.inputs) move_axes(in, to);
    for (auto& state : plan.states) {
      if (state) move_axes(state->stored, to), move_axes(state->compute, to);
    }
    move_axes(plan.slice_axes, to);
    move_axes(plan.scatter_axes, to);
    plan.mesh = mesh;
  }
  return stages;
}

namespace {

bool same_layout(const std::optional<StateLayout>& a, const std::optional<StateLayout>& b) {
  if (!a || !b) return a.has_value() == b.has_value();
  return a->stored == b->stored && a->compute == b->compute && a->gather == b->gather && a->host == b->host;
}

bool same_plan(const ShardingPlan& a, const ShardingPlan& b) {
  return a.inputs == b.inputs && a.scatter_axes == b.scatter_axes &&
         std::equal(a.states.begin(), a.states.end(), b.states.begin(), b.states.end(), same_layout);
}

constexpr int kShared = -1;  // made once, or the same under all plans
constexpr int kEach = -2;    // made anew under each plan that needs it

class PlanJoiner {
 public:
  PlanJoiner(const Graph& graph, const StageAssignment& stages, const std::vector<ShardingPlan>& plans)
      : graph_(graph), stages_(stages), plans_(plans), home_(graph.values.size(), kShared) {
    for (size_t stage = 0; stage < plans.size(); ++stage) {
      size_t k = 0;
      while (k < kinds_.size() && !(same_plan(plans[kinds_[k]], plans[stage]) && same_axes(kinds_[k], stage))) ++k;
      if (k == kinds_.size()) kinds_.push_back(stage);
      kind_of_place_.push_back(static_cast<int>(k));
    }
    readers_.resize(graph.values.size());
    here_.assign(kinds_.size(), std::vector<ValueId>(graph.values.size(), kNoValue));
  }

  absl::StatusOr<JoinedPlan> run() {
    for (size_t stage : kinds_) {
      PARTITA_ASSIGN_OR_RETURN(std::vector<Sharding> values, value_shardings(graph_, plans_[stage]));
      lies_.push_back(std::move(values));
    }
    find_homes();
    find_readers();
    begin();
    for (size_t n = 0; n < graph_.nodes.size(); ++n) visit(n);
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      const State& s = graph_.states[k];
      if (s.next != kNoValue) b_.set_next_of(k, at_hand(s.next, state_kind(k)));
    }
    for (const GraphOutput& o : graph_.outputs) b_.output(o.name, at_hand(o.value, output_kind(o.value)));
    out_.graph = std::move(b_).finish();
    return std::move(out_);
  }

 private:
  struct Reader {
    int stage = 0;
    Segment segment = Segment::kForward;
    int32_t origin = -1, block = -1;
  };

  bool same_axes(size_t stage, size_t other) const {
    return plans_[0].mesh.differing(static_cast<int64_t>(stage), static_cast<int64_t>(other)).empty();
  }

  int kind_of(int stage) const { return kind_of_place_[static_cast<size_t>(stage) % plans_.size()]; }
  const ShardingPlan& plan_of(int kind) const { return plans_[kinds_[static_cast<size_t>(kind)]]; }

  void find_homes() {
    for (const GraphInput& in : graph_.inputs) home_[in.value] = in.kind == InputKind::kData ? kEach : kShared;
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      if (stages_.state[k] >= 0) home_[graph_.states[k].value] = state_kind(k);
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const int stage = stage_of(n);
      for (ValueId v : graph_.nodes[n].outputs) {
        home_[v] = stage >= 0 ? kind_of(stage) : stage == kPartial ? kShared : kEach;
      }
    }
  }

  // An accumulator of a sum over stages lies as the sum's home has it.
  int state_kind(size_t k) const {
    const State& s = graph_.states[k];
    if (s.next != kNoValue && stages_.home[s.next] >= 0) return kind_of(home_of(s.next));
    return stages_.state[k] >= 0 ? kind_of(stages_.state[k]) : 0;
  }

  int output_kind(ValueId v) const { return std::max(home_[v], 0); }

  // The plan that a sum over stages is computed under; kShared: a scalar, whose terms stay as they are.
  int partial_kind(const Node& node) const {
    int home = home_of(node.outputs[0]);
    return home >= 0 ? kind_of(home) : kShared;
  }

  // Where stages lack axes, not all can lay out a term as its sum's home does: the first stage that has a term adds up
  // what the others send with each micro-batch.
  int home_of(ValueId v) const {
    const int home = stages_.home[v];
    return home < 0 || plans_[0].mesh.irregular().empty() ? home : *stages_.terms[v].begin();
  }

  int stage_of(size_t n) const {
    const int stage = stages_.node[n];
    if (stage != kPartial || plans_[0].mesh.irregular().empty()) return stage;
    const int home = home_of(graph_.nodes[n].outputs[0]);
    return home >= 0 ? home : stage;
  }

  // The plan under which a node that runs under `kind` reads the value.
  int read_under(ValueId v, int kind) const { return kind != kShared ? kind : std::max(home_[v], 0); }

  // The first reader of each value under each plan; what is made anew for a reader reads for it.
  void find_readers() {
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      if (graph_.states[k].next != kNoValue)
        read(graph_.states[k].next, state_kind(k), {std::max(stages_.state[k], 0), Segment::kUpdate});
    }
    for (const GraphOutput& o : graph_.outputs) read(o.value, output_kind(o.value), {0, Segment::kUpdate});
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      const int stage = stage_of(n);
      Reader self{stage, node.segment, node.origin, node.block};
      for (ValueId v : node.inputs) {
        if (v == kNoValue) continue;
        if (stage >= 0) read(v, kind_of(stage), self);
        if (stage == kPartial) {  // terms are laid out where they are made, and sent when they are summed
          const Node* from = graph_.producer(v);
          Reader maker = from == nullptr ? self : Reader{stage_of_value(v), node.segment, from->origin, from->block};
          read(v, read_under(v, partial_kind(node)), maker);
        }
        if (stage == kAnywhere) {
          for (ValueId made : node.outputs) {
            for (const auto& [kind, reader] : readers_[made])
              read(v, kind, {reader.stage, node.segment, reader.origin, reader.block});
          }
        }
      }
    }
  }

  int stage_of_value(ValueId v) const {
    const NodeId n = graph_.values[v].producer;
    return n < 0 ? 0 : std::max(stage_of(static_cast<size_t>(n)), 0);
  }

  void read(ValueId v, int kind, Reader reader) { readers_[v][kind] = reader; }

  void begin() {
    b_.take_names(graph_);
    out_.plan = plans_[0];
    out_.plan.inputs.clear();
    out_.plan.states.clear();
    out_.plan.scatter_axes.clear();
    out_.plan.axis_uses.resize(1);
    for (int stage = 0; stage < stages_.stages; ++stage) {
      const ShardingPlan& own = plan_of(kind_of(stage));
      out_.plan.axis_uses.push_back({sample_axes(own), own.scatter_axes});
    }
    for (const Constant& c : graph_.constants) have(c.value, b_.constant(c.literal, graph_.values[c.value].name));
    for (size_t k = 0; k < graph_.inputs.size(); ++k) add_input(k);
    for (size_t k = 0; k < graph_.states.size(); ++k) add_state(k);
    for (const State& s : graph_.states) reshard(s.value);
  }

  void have(ValueId v, ValueId now) {
    for (auto& of_kind : here_) of_kind[v] = now;
  }

  void add_input(size_t k) {
    const GraphInput& in = graph_.inputs[k];
    std::map<int, std::pair<ValueId, const Sharding*>> made;
    for (int kind = 0; kind < static_cast<int>(kinds_.size()); ++kind) {
      if (kind > 0 && in.kind != InputKind::kData) break;
      if (kind > 0 && readers_[in.value].count(kind) == 0) continue;
      const Sharding& lies = plan_of(kind).inputs[k];
      ValueId same = kNoValue;
      for (const auto& [other, known] : made) same = *known.second == lies ? known.first : same;
      if (same == kNoValue) {
        same = b_.input(in.name, graph_.type(in.value), in.kind);
        out_.plan.inputs.push_back(lies);
      }
      made[kind] = {same, &lies};
      here_[static_cast<size_t>(kind)][in.value] = same;
    }
    if (in.kind != InputKind::kData) have(in.value, made.at(0).first);
  }

  void add_state(size_t k) {
    State s = graph_.states[k];
    const TensorType& type = graph_.type(s.value);
    const ValueId old = s.value;
    s.next = kNoValue;
    ValueId now = b_.state(std::move(s), type);
    std::optional<StateLayout> layout = plan_of(state_kind(k)).states[k];
    if (home_[old] == kShared) {
      const Sharding whole = Sharding::replicated(type.shape);
      if (layout) layout = StateLayout{whole, whole, GatherTime::kPass, layout->host};
      have(old, now);
    } else {
      here_[static_cast<size_t>(home_[old])][old] = now;
    }
    out_.plan.states.push_back(std::move(layout));
  }

  void visit(size_t n) {
    const Node& node = graph_.nodes[n];
    const int stage = stage_of(n);
    if (stage == kAnywhere) {
      std::set<int> wanted;
      for (ValueId v : node.outputs) {
        for (const auto& [kind, reader] : readers_[v]) wanted.insert(kind);
      }
      const bool scalar = std::all_of(node.outputs.begin(), node.outputs.end(),
                                      [&](ValueId v) { return elements(graph_.type(v).shape) == 1; });
      std::map<std::vector<ValueId>, std::vector<ValueId>> known;  // scalars of the same operands lie alike
      for (int kind : wanted) {
        std::vector<ValueId> inputs = operands(node, kind);
        auto same = scalar ? known.find(inputs) : known.end();
        std::vector<ValueId> made = same != known.end() ? same->second : copy(node, inputs, 0);
        known[inputs] = made;
        for (size_t k = 0; k < made.size(); ++k) here_[static_cast<size_t>(kind)][node.outputs[k]] = made[k];
      }
      return;
    }
    const int kind = stage >= 0 ? kind_of(stage) : partial_kind(node);
    std::vector<ValueId> made = copy(node, operands(node, kind), std::max(stage, -1) + 1);
    for (size_t k = 0; k < made.size(); ++k) {
      if (stage == kPartial) {
        have(node.outputs[k], made[k]);
      } else {
        here_[static_cast<size_t>(kind)][node.outputs[k]] = made[k];
        reshard(node.outputs[k]);
      }
    }
  }

  std::vector<ValueId> operands(const Node& node, int kind) const {
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) inputs.push_back(v == kNoValue ? v : at_hand(v, read_under(v, kind)));
    return inputs;
  }

  std::vector<ValueId> copy(const Node& node, std::vector<ValueId> inputs, int32_t mark) {
    b_.context() = {node.segment, node.origin, node.block, node.weight_gradient, node.device, mark};
    auto made = b_.try_emit(*node.op, std::move(inputs), node.attrs);
    PARTITA_CHECK(made.ok(), cat(graph_.origin(node), ": ", made.status().message()));
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      const std::string& name = graph_.values[node.outputs[k]].name;
      if (!name.empty()) b_.name((*made)[k], name);
    }
    return *std::move(made);
  }

  ValueId at_hand(ValueId v, int kind) const {
    ValueId now = here_[static_cast<size_t>(kind)][v];
    PARTITA_CHECK(now != kNoValue, cat("a value that was not laid out for its reader: %", v));
    return now;
  }

  // The value under the plans of its other readers.
  void reshard(ValueId v) {
    if (home_[v] < 0) return;
    const Node* producer = graph_.producer(v);
    for (const auto& [kind, reader] : readers_[v]) {
      if (kind == home_[v]) continue;
      Segment segment = producer != nullptr ? producer->segment : Segment::kPrologue;
      if (reader.segment > Segment::kBackward) segment = reader.segment;
      b_.context() = {.segment = segment, .origin = reader.origin, .block = reader.block, .chunk = reader.stage + 1};
      ValueId now = b_.emit("reshape", {at_hand(v, home_[v])}, {{"shape", graph_.type(v).shape}});
      here_[static_cast<size_t>(kind)][v] = now;
      const int from = producer != nullptr ? stage_of_value(v) : stage_of_state(v);
      out_.plan.stage_reshards[now] = {lies_under(v, kind), from, reader.stage};
    }
  }

  int stage_of_state(ValueId v) const {
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      if (graph_.states[k].value == v) return std::max(stages_.state[k], 0);
    }
    return 0;
  }

  // A parameter as the plan computes with it.
  Sharding lies_under(ValueId v, int kind) const {
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      if (graph_.states[k].value == v && plan_of(kind).states[k]) return plan_of(kind).states[k]->compute;
    }
    return lies_[static_cast<size_t>(kind)][v];
  }

  const Graph& graph_;
  const StageAssignment& stages_;
  const std::vector<ShardingPlan>& plans_;
  std::vector<size_t> kinds_;  // a stage for each kind of plan
  std::vector<int> kind_of_place_;
  std::vector<std::vector<Sharding>> lies_;  // per kind and value
  std::vector<int> home_;                    // per value: the kind of plan that it is made under, kShared or kEach
  std::vector<std::map<int, Reader>> readers_;
  Builder b_;
  std::vector<std::vector<ValueId>> here_;  // per kind: values of the new graph
  JoinedPlan out_;
};

}  // namespace

absl::StatusOr<JoinedPlan> join_plans(const Graph& graph, const StageAssignment& stages,
                                      const std::vector<ShardingPlan>& plans) {
  return PlanJoiner(graph, stages, plans).run();
}

}  // namespace partita
