#include "partitioner/stages/stage_cutter.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/evaluate.h"
#include "partitioner/localize/cross_mesh_reshard.h"

namespace partita {

StageCutter::StageCutter(const LocalProgram& whole, const StageAssignment& stages, const StageMessages& messages,
                         const PipelineStage& at, bool keep_unread)
    : whole_(whole),
      graph_(whole.graph),
      stages_(stages),
      messages_(messages),
      at_(at),
      pipeline_size_(static_cast<int>(whole.mesh.axes[static_cast<size_t>(at.axis)].size)),
      keep_unread_(keep_unread),
      here_(static_cast<size_t>(at.chunks), std::vector<ValueId>(graph_.values.size(), kNoValue)),
      value_stage_(graph_.values.size(), kAnywhere),
      each_(graph_.values.size(), false),
      state_of_(graph_.values.size(), -1),
      sent_when_made_(graph_.values.size()),
      literals_(constant_values(graph_)) {
  for (size_t k = 0; k < graph_.states.size(); ++k) {
    if (graph_.states[k].kind == StateKind::kParameter) parameters_.emplace(graph_.states[k].name, k);
    each_[graph_.states[k].value] = sums(k);  // every stage with terms has an accumulator of its own
    value_stage_[graph_.states[k].value] = sums(k) ? kAnywhere : stages.state[k];
    state_of_[graph_.states[k].value] = static_cast<int>(k);
  }
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    for (ValueId v : graph_.nodes[n].outputs) {
      value_stage_[v] = stages.node[n];
      each_[v] = with_each_micro_batch(graph_.nodes[n].segment);
    }
  }
  for (size_t k = 0; k < messages.all.size(); ++k) {
    if (!messages.all[k].early) sent_when_made_[messages.all[k].value].push_back(k);
  }
}

LocalProgram StageCutter::run() {
  begin();
  int entered = -1;
  auto enter = [&](Segment until) {
    while (entered < static_cast<int>(until)) enter_segment(static_cast<Segment>(++entered));
  };
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    if (!messages_.live[n]) continue;
    enter(node.segment);
    int stage = stages_.node[n];
    chunk_ = is_here(stage) && with_each_micro_batch(node.segment) ? chunk_of(stage) : 0;
    if (node.segment > Segment::kBackward && stage != kPartial) complete_inputs(node);
    if (is_here(stage)) {
      copy(node);
      send_results(node);
    } else if (stage == kPartial) {
      copy_terms(node);
    }
    receive_results(node);
  }
  enter(Segment::kUpdate);
  chunk_ = 0;
  finish_states();
  finish_outputs();
  out_.graph = std::move(b_).finish();
  return std::move(out_);
}

void StageCutter::begin() {
  out_.mesh = whole_.mesh;
  out_.micro_batches = whole_.micro_batches;
  out_.samples_per_step = whole_.samples_per_step;
  out_.blocks_on_host = whole_.blocks_on_host;
  out_.stage = at_;
  b_.take_names(graph_);
  for (size_t k = 0; k < graph_.inputs.size(); ++k) {
    const GraphInput& in = graph_.inputs[k];
    if (in.kind == InputKind::kCoordinate && !has_axis(whole_.mesh.find(in.name))) {
      here_[0][in.value] = b_.scalar(DType::kI64, 0);
      continue;
    }
    // What another stage reads by axes that this one lacks is whole here, and not read.
    PlacedTensor& placed = out_.inputs.emplace_back(whole_.inputs[k]);
    for (auto& dim : placed.sharding.dims) {
      for (Piece& p : dim) std::erase_if(p.axes, [&](int a) { return !has_axis(a); });
    }
    TensorType type = graph_.type(in.value);
    if (in.kind == InputKind::kData) type.shape = local_shape(placed.sharding, whole_.mesh);
    here_[0][in.value] = b_.input(in.name, std::move(type), in.kind);
  }
}

// This rank's coordinate along an axis that it may not have read before.
ValueId StageCutter::coordinate(int axis) {
  const std::string& name = whole_.mesh.axes[static_cast<size_t>(axis)].name;
  if (!has_axis(axis)) return b_.scalar(DType::kI64, 0);
  for (const GraphInput& in : b_.graph().inputs) {
    if (in.kind == InputKind::kCoordinate && in.name == name) return in.value;
  }
  out_.inputs.push_back({{}, Sharding{}});
  return b_.input(name, {DType::kI64, {}}, InputKind::kCoordinate);
}

void StageCutter::at(const Node& node) {
  b_.context() = {node.segment,         node.origin, node.block,
                  node.weight_gradient, node.device, with_each_micro_batch(node.segment) ? chunk_ : 0};
}

// The context of what is sent or received in `segment` for a value.
void StageCutter::at(ValueId v, Segment segment) {
  const Node* producer = graph_.producer(v);
  b_.context() = {.segment = segment,
                  .origin = producer != nullptr ? producer->origin : -1,
                  .block = producer != nullptr ? producer->block : -1,
                  .chunk = with_each_micro_batch(segment) ? chunk_ : 0};
}

// Where the value is, once it is here: what micro-batches make and receive is the current chunk's own.
ValueId& StageCutter::here(ValueId v) {
  auto of = [&](int chunk) -> ValueId& { return here_[static_cast<size_t>(chunk)][v]; };
  if (!each_[v]) return of(0);
  // What another chunk of this stage makes is this one's where it was received; sums are read where they are made.
  return is_here(value_stage_[v]) && of(chunk_) == kNoValue ? of(chunk_of(value_stage_[v])) : of(chunk_);
}

// The value as the current chunk has it.
ValueId StageCutter::value_of(ValueId v) {
  if (v == kNoValue || here(v) != kNoValue) return v == kNoValue ? v : here(v);
  std::vector<ValueId> todo = {v};
  while (!todo.empty()) {
    ValueId x = todo.back();
    if (here(x) != kNoValue) {
      todo.pop_back();
      continue;
    }
    const Node* node = graph_.producer(x);
    if (node == nullptr) {
      here(x) = state_of_[x] >= 0 ? declare(static_cast<size_t>(state_of_[x]))
                                  : b_.constant(*literals_[x], graph_.values[x].name);
      continue;
    }
    PARTITA_CHECK(value_stage_[x] == kAnywhere, cat("a value of stage ", value_stage_[x], " was not sent to stage ",
                                                    at_.index, ": ", graph_.origin(*node)));
    bool ready = true;
    for (ValueId in : node->inputs) {
      if (in == kNoValue || here(in) != kNoValue) continue;
      todo.push_back(in);
      ready = false;
    }
    if (ready) {
      NodeContext context = b_.context();
      copy(*node);
      b_.context() = context;
    }
  }
  return here(v);
}

// A state of this stage. Terms of one accumulator on several stages are states of their own; here the current
// chunk's.
ValueId StageCutter::declare(size_t k) {
  const int stage = sums(k) ? stage_of(chunk_) : stages_.state[k];
  State s = graph_.states[k];
  if (stages_.state[k] >= 0 && stages_.state[k] != stage) s.name = cat(s.name, "@stage", stage);
  if (const auto p = parameters_.find(s.parameter); p != parameters_.end() && !is_here(stages_.state[p->second]))
    s.parameter.clear();
  s.next = kNoValue;
  ValueId v = b_.state(std::move(s), graph_.type(graph_.states[k].value));
  out_.states.push_back(whole_.states[k]);
  declared_.emplace_back(k, chunk_of(std::max(stage, 0)));
  return v;
}

void StageCutter::copy(const Node& node) {
  if (auto parts = node.op->crosses_stages ? parts_.find({node.outputs[0], chunk_}) : parts_.end();
      parts != parts_.end()) {
    at(node);
    here(node.outputs[0]) = parts_together(b_, parts->second, node.attrs, whole_.mesh);
    return;
  }
  PARTITA_CHECK(!node.op->crosses_stages, cat("stage ", at_.index, " was sent nothing for ", graph_.origin(node)));
  std::vector<ValueId> inputs;
  for (ValueId v : node.inputs) inputs.push_back(value_of(v));
  emit(node, std::move(inputs));
}

void StageCutter::emit(const Node& node, std::vector<ValueId> inputs) {
  at(node);
  if (ValueId known = known_result(node, inputs); known != kNoValue) {
    here(node.outputs[0]) = known;
    return;
  }
  auto made = b_.try_emit(*node.op, std::move(inputs), node.attrs);
  PARTITA_CHECK(made.ok(), cat(graph_.origin(node), ": ", made.status().message()));
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    here(node.outputs[k]) = (*made)[k];
    if (!graph_.values[node.outputs[k]].name.empty()) b_.name((*made)[k], graph_.values[node.outputs[k]].name);
  }
}

// What a node is here because this stage lacks a mesh axis: its coordinate is 0, and a sum along it is of one term.
ValueId StageCutter::known_result(const Node& node, const std::vector<ValueId>& inputs) {
  if (whole_.mesh.irregular().empty() || node.outputs.size() != 1) return kNoValue;
  const bool lacking =
      node.op->communicates && std::any_of(node.attrs.ints("axes").begin(), node.attrs.ints("axes").end(),
                                           [&](int64_t a) { return !has_axis(static_cast<int>(a)); });
  if (lacking) {
    PARTITA_CHECK(elements(b_.shape(inputs[0])) == 1 && node.attrs.s("reduce", "") == "sum",
                  cat("a collective along an axis that stage ", at_.index, " lacks: ", graph_.origin(node)));
    return sum_along_own_axes(node, inputs[0]);
  }
  if (std::count(inputs.begin(), inputs.end(), kNoValue) > 0) return kNoValue;
  std::vector<TensorType> types;
  for (ValueId v : inputs) types.push_back(b_.type(v));
  const bool scalars = std::all_of(types.begin(), types.end(), [](const TensorType& t) { return t.rank() == 0; });
  const bool literal = std::all_of(inputs.begin(), inputs.end(), [&](ValueId v) { return b_.literal(v) != nullptr; });
  const TensorType& type = graph_.type(node.outputs[0]);
  if (!inputs.empty() && scalars && literal && node.op->scalar != nullptr && type == TensorType{DType::kBool, {}}) {
    std::vector<Tensor> in;
    std::vector<const Tensor*> operands;
    for (ValueId v : inputs) in.push_back(to_tensor(*b_.literal(v)));
    for (const Tensor& t : in) operands.push_back(&t);
    return b_.scalar(type.dtype, static_cast<double>(evaluate_op(*node.op, node.attrs, operands)[0].i[0]));
  }
  const bool decided = !inputs.empty() && types[0].dtype == DType::kBool && b_.literal(inputs[0]) != nullptr;
  if (!decided || node.op->simpler == nullptr) return kNoValue;
  return node.op->simpler({b_, node.attrs, types, inputs, {}, {}});
}

ValueId StageCutter::sum_along_own_axes(const Node& node, ValueId x) {
  std::vector<int> axes;
  for (int64_t a : node.attrs.ints("axes")) {
    if (has_axis(static_cast<int>(a))) axes.push_back(static_cast<int>(a));
  }
  if (axes.empty()) return x;
  Attrs attrs = node.attrs;
  attrs.set("axes", std::vector<int64_t>(axes.begin(), axes.end()));
  attrs.set("parts", whole_.mesh.ways(axes));
  return b_.emit("all_reduce", {x}, std::move(attrs));
}

void StageCutter::finish_states() {
  for (size_t k = 0; k < graph_.states.size(); ++k) {
    const State& s = graph_.states[k];
    bool unread = keep_unread_ && messages_.needed[s.value].empty() && at_.index == 0;
    bool mine = is_here(stages_.state[k]) || (stages_.state[k] == kAnywhere && (s.kind == StateKind::kStep || unread));
    bool by_terms = s.next != kNoValue && value_stage_[s.next] == kPartial;
    chunk_ = sums(k) ? chunk_of(stages_.state[k]) : 0;
    if (mine && !by_terms) value_of(s.value);
  }
  chunk_ = 0;
  for (size_t i = 0; i < declared_.size(); ++i) {
    const auto& [k, chunk] = declared_[i];
    const State& s = graph_.states[k];
    if (s.next == kNoValue) continue;
    auto term = own_terms_.find({s.next, chunk});
    b_.set_next_of(i, term != own_terms_.end() ? term->second : value_of(s.next));
  }
}

void StageCutter::finish_outputs() {
  for (size_t k = 0; k < graph_.outputs.size(); ++k) {
    const GraphOutput& o = graph_.outputs[k];
    if (value_stage_[o.value] == kPartial) complete(o.value, Segment::kUpdate);
    if (messages_.needed[o.value].count(static_cast<int>(at_.index)) == 0) continue;
    const bool elsewhere = value_stage_[o.value] >= 0 && !is_here(value_stage_[o.value]);
    if (elsewhere && here(o.value) == kNoValue) continue;  // resharded for there
    b_.output(o.name, value_of(o.value));
    out_.outputs.push_back(whole_.outputs[k]);
  }
}

}  // namespace partita
