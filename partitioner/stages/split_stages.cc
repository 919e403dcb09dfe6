// Each stage's graph is made by one walk over the whole one: nodes of the stage are copied, what nodes of no stage make
// is copied when it is first read, what another stage makes is received. A place with several chunks of the model has
// several stages of the assignment; each of its chunks has its own of all that a micro-batch makes or receives.
#include "partitioner/stages/split_stages.h"

#include <algorithm>
#include <map>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "partitioner/localize/cross_mesh_reshard.h"
#include "partitioner/stages/stage_messages.h"
#include "partitioner/stages/stash_weights.h"

namespace partita {
namespace {

class StageCutter {
 public:
  StageCutter(const LocalProgram& whole, const StageAssignment& stages, const StageMessages& messages,
              const PipelineStage& at, bool keep_unread)
      : whole_(whole),
        graph_(whole.graph),
        stages_(stages),
        messages_(messages),
        at_(at),
        places_(static_cast<int>(whole.mesh.axes[static_cast<size_t>(at.axis)].size)),
        keep_unread_(keep_unread),
        here_(static_cast<size_t>(at.chunks), std::vector<ValueId>(graph_.values.size(), kNoValue)),
        place_(graph_.values.size(), kAnywhere),
        each_(graph_.values.size(), false),
        state_of_(graph_.values.size(), -1),
        sent_when_made_(graph_.values.size()),
        literals_(constant_values(graph_)) {
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      if (graph_.states[k].kind == StateKind::kParameter) parameters_.emplace(graph_.states[k].name, k);
      each_[graph_.states[k].value] = sums(k);  // every stage with terms has an accumulator of its own
      place_[graph_.states[k].value] = sums(k) ? kAnywhere : stages.state[k];
      state_of_[graph_.states[k].value] = static_cast<int>(k);
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      for (ValueId v : graph_.nodes[n].outputs) {
        place_[v] = stages.node[n];
        each_[v] = with_each_micro_batch(graph_.nodes[n].segment);
      }
    }
    for (size_t k = 0; k < messages.all.size(); ++k) {
      if (!messages.all[k].early) sent_when_made_[messages.all[k].value].push_back(k);
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
      chunk_ = is_here(place) && with_each_micro_batch(node.segment) ? chunk_of(place) : 0;
      if (node.segment > Segment::kBackward && place != kOwed) complete_inputs(node);
      if (is_here(place)) {
        copy(node);
        send_results(node);
      } else if (place == kOwed) {
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

 private:
  void begin() {
    out_.mesh = whole_.mesh;
    out_.micro_batches = whole_.micro_batches;
    out_.samples_per_step = whole_.samples_per_step;
    out_.stage = at_;
    b_.mutable_graph().name = graph_.name;
    b_.mutable_graph().origins = graph_.origins;
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

  bool has_axis(int axis) const { return whole_.mesh.has(axis, at_.index); }

  // This rank's coordinate along an axis that it may not have read before.
  ValueId coordinate(int axis) {
    const std::string& name = whole_.mesh.axes[static_cast<size_t>(axis)].name;
    if (!has_axis(axis)) return b_.scalar(DType::kI64, 0);
    for (const GraphInput& in : b_.graph().inputs) {
      if (in.kind == InputKind::kCoordinate && in.name == name) return in.value;
    }
    out_.inputs.push_back({{}, Sharding{}});
    return b_.input(name, {DType::kI64, {}}, InputKind::kCoordinate);
  }

  // The ranks that differ along the stages and these axes.
  Attrs group(const std::vector<int>& along) const {
    std::vector<int64_t> axes = {at_.axis};
    axes.insert(axes.end(), along.begin(), along.end());
    return {{"axes", std::move(axes)}, {"parts", places_ * whole_.mesh.ways(along)}};
  }

  // The axes that a message's sender and receiver differ in, and which of them `stage` has.
  std::vector<int> differing(const Message& m) const { return whole_.mesh.differing(m.from % places_, m.to % places_); }
  std::vector<int64_t> those_of(int stage, const std::vector<int>& axes) const {
    std::vector<int64_t> some;
    for (int a : axes) {
      if (whole_.mesh.has(a, stage % places_)) some.push_back(a);
    }
    return some;
  }

  // Calls visit(attributes of the message, coordinates along `own` of the other side) for each rank that `stage` has in
  // the group of a message between stages.
  template <typename Visit>
  void each_peer(const Message& m, int stage, Visit visit) const {
    const std::vector<int> along = differing(m);
    const std::vector<int64_t> own = those_of(stage, along);
    std::vector<int64_t> at(own.size(), 0);
    while (true) {
      int64_t place = stage % places_;
      for (int a : along) {
        auto k = std::find(own.begin(), own.end(), a);
        place = place * whole_.mesh.axes[static_cast<size_t>(a)].size +
                (k == own.end() ? 0 : at[static_cast<size_t>(k - own.begin())]);
      }
      Attrs attrs = group(along);
      attrs.set("peer", place);
      if (m.channel != 0) attrs.set("channel", static_cast<int64_t>(m.channel));
      visit(std::move(attrs), at);
      size_t k = own.size();
      while (k > 0 && ++at[k - 1] == whole_.mesh.axes[static_cast<size_t>(own[k - 1])].size) at[--k] = 0;
      if (k == 0) return;
    }
  }

  // The node that the value of a message between stages with other axes is for; none: a scalar, which goes as it is.
  const Node* crossing(const Message& m) const {
    for (const Node& node : graph_.nodes) {
      if (node.op->crosses_stages && node.inputs[0] == m.value &&
          static_cast<int>(node.attrs.i("to")) % places_ == m.to % places_ && is_reader(m, node))
        return &node;
    }
    PARTITA_CHECK(elements(graph_.type(m.value).shape) == 1,
                  cat("%", m.value, " goes to stage ", m.to, " as stage ", m.from, " has it"));
    return nullptr;
  }
  // Once a step, the place alone is told.
  bool is_reader(const Message& m, const Node& node) const {
    return !with_each_micro_batch(m.segment) || node.attrs.i("to") == m.to;
  }

  // Of stages of the assignment; kAnywhere and kOwed are nowhere.
  bool is_here(int stage) const { return stage >= 0 && stage % places_ == at_.index; }
  int chunk_of(int stage) const { return stage / places_; }
  int stage_of(int chunk) const { return chunk * places_ + static_cast<int>(at_.index); }

  void at(const Node& node) {
    b_.context() = {node.segment,         node.origin, node.block,
                    node.weight_gradient, node.device, with_each_micro_batch(node.segment) ? chunk_ : 0};
  }
  // The context of what is sent or received in `segment` for a value.
  void at(ValueId v, Segment segment) {
    const Node* producer = graph_.producer(v);
    b_.context() = {.segment = segment,
                    .origin = producer != nullptr ? producer->origin : -1,
                    .block = producer != nullptr ? producer->block : -1,
                    .chunk = with_each_micro_batch(segment) ? chunk_ : 0};
  }

  // Where the value is, once it is here: what micro-batches make and receive is the current chunk's own.
  ValueId& here(ValueId v) {
    auto of = [&](int chunk) -> ValueId& { return here_[static_cast<size_t>(chunk)][v]; };
    if (!each_[v]) return of(0);
    // What another chunk of this place makes is this one's where it was received; sums are read where they are made.
    return is_here(place_[v]) && of(chunk_) == kNoValue ? of(chunk_of(place_[v])) : of(chunk_);
  }

  ValueId& receive_here(ValueId v) { return here_[each_[v] ? static_cast<size_t>(chunk_) : 0][v]; }

  // Receives are asked for first: no stage waits for another before all that comes to it can come. What is made after
  // the micro-batches is asked for at its turn, among the sums over all stages.
  void enter_segment(Segment segment) {
    for (const Message& m : messages_.all) {
      if (m.segment == segment && is_here(m.to) && (m.early || segment <= Segment::kBackward)) receive(m);
    }
    for (const Message& m : messages_.all) {
      if (m.segment == segment && is_here(m.from) && m.early) send(m);
    }
  }

  void send(const Message& m) {
    chunk_ = with_each_micro_batch(m.segment) ? chunk_of(m.from) : 0;
    ValueId v = place_[m.value] == kOwed ? own_terms_.at({m.value, term_chunk(m.value, m.from)}) : value_of(m.value);
    at(m.value, m.segment);
    if (differing(m).empty()) {
      each_peer(m, m.to, [&](Attrs attrs, const auto&) { send_part(m, v, std::move(attrs)); });
      return;
    }
    const Node* node = crossing(m);
    std::vector<ValueId> parts = {v};
    if (node != nullptr) parts = parts_to_send(b_, v, node->attrs, whole_.mesh, [&](int a) { return coordinate(a); });
    const std::vector<int64_t> own = those_of(m.to, differing(m));
    each_peer(m, m.to, [&](Attrs attrs, const std::vector<int64_t>& at) {
      const size_t part = node == nullptr ? 0 : index_along(node->attrs.ints("scatter_axes"), own, at);
      send_part(m, parts[part], std::move(attrs));
    });
  }

  // A stage that is n behind takes up a micro-batch's message when this one has gone on to the n-th after it.
  void send_part(const Message& m, ValueId part, Attrs attrs) {
    if (with_each_micro_batch(m.segment)) attrs.set("in_flight", int64_t{std::abs(m.to - m.from)});
    b_.emit_all("send", {part}, std::move(attrs));
  }

  // The row-major index of coordinates `at` along `axes`, which are among `own`.
  size_t index_along(const std::vector<int64_t>& axes, const std::vector<int64_t>& own,
                     const std::vector<int64_t>& at) const {
    int64_t index = 0;
    for (int64_t a : axes) {
      const auto k = static_cast<size_t>(std::find(own.begin(), own.end(), a) - own.begin());
      index = index * whole_.mesh.axes[static_cast<size_t>(a)].size + at[k];
    }
    return static_cast<size_t>(index);
  }

  void receive(const Message& m) {
    chunk_ = with_each_micro_batch(m.segment) ? chunk_of(m.to) : 0;
    at(m.value, m.segment);
    if (!differing(m).empty()) return receive_parts(m);
    each_peer(m, m.from, [&](Attrs attrs, const auto&) {
      ValueId received = receive_from(std::move(attrs), graph_.type(m.value));
      if (place_[m.value] == kOwed) {
        received_[m.value].push_back(received);
      } else {
        receive_here(m.value) = received;
      }
    });
  }

  ValueId receive_from(Attrs attrs, const TensorType& type) {
    attrs.set("shape", type.shape);
    attrs.set("type", type.dtype);
    return b_.emit("recv", {}, std::move(attrs));
  }

  // The sender's ranks that have other parts; those that have the same as another one send for nothing.
  void receive_parts(const Message& m) {
    PARTITA_CHECK(place_[m.value] != kOwed, "terms of a sum come laid out as it is");
    const Node* node = crossing(m);
    const std::vector<int64_t> own = those_of(m.from, differing(m));
    TensorType type = graph_.type(m.value);
    std::vector<int> gathered;
    if (node != nullptr) {
      for (int64_t a : node->attrs.ints("gather_axes")) gathered.push_back(static_cast<int>(a));
      type.shape = {1, elements(node->attrs.ints("shape")) / whole_.mesh.ways(gathered)};
    }
    std::vector<ValueId> parts;
    each_peer(m, m.from, [&](Attrs attrs, const std::vector<int64_t>& at) {
      ValueId received = receive_from(std::move(attrs), type);
      bool first = true;
      for (size_t k = 0; k < own.size(); ++k)
        first = first && (at[k] == 0 || std::count(gathered.begin(), gathered.end(), own[k]) > 0);
      if (first) parts.push_back(received);
    });
    if (node != nullptr) {
      parts_[{node->outputs[0], chunk_}] = std::move(parts);
    } else {
      receive_here(m.value) = parts[0];
    }
  }

  void receive_results(const Node& node) {
    for (size_t k : messages_with(node)) {
      const Message& m = messages_.all[k];
      if (is_here(m.to) && m.segment > Segment::kBackward) receive(m);
    }
  }

  void send_results(const Node& node) {
    for (size_t k : messages_with(node)) {
      if (is_here(messages_.all[k].from)) send(messages_.all[k]);
    }
  }

  // Those that go as soon as the node has made their values, in their order.
  std::vector<size_t> messages_with(const Node& node) const {
    std::vector<size_t> all;
    for (ValueId v : node.outputs) all.insert(all.end(), sent_when_made_[v].begin(), sent_when_made_[v].end());
    std::sort(all.begin(), all.end());
    return all;
  }

  // The value as the current chunk has it.
  ValueId value_of(ValueId v) {
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
      PARTITA_CHECK(place_[x] == kAnywhere, cat("a value of stage ", place_[x], " was not sent to stage ", at_.index,
                                                ": ", graph_.origin(*node)));
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

  bool sums(size_t k) const { return graph_.states[k].kind == StateKind::kAccumulator; }

  // A state of this place. Terms of one accumulator on several stages are states of their own; here the current
  // chunk's.
  ValueId declare(size_t k) {
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

  void copy(const Node& node) {
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

  void emit(const Node& node, std::vector<ValueId> inputs) {
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

  // What a node is here because this place lacks a mesh axis: its coordinate is 0, and a sum along it is of one term.
  ValueId known_result(const Node& node, const std::vector<ValueId>& inputs) {
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

  ValueId sum_along_own_axes(const Node& node, ValueId x) {
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

  // The terms of a sum that is owed which its stages here have: with each micro-batch every stage's own, afterwards
  // one.
  void copy_terms(const Node& node) {
    std::set<int> mine;
    for (int stage : stages_.terms[node.outputs[0]]) {
      if (is_here(stage)) mine.insert(stage);
    }
    if (!with_each_micro_batch(node.segment)) return mine.empty() ? void() : copy_term(node, mine);
    for (int stage : mine) copy_term(node, {stage});
  }

  // The term of `stages`: operands of other stages count as zero in it.
  void copy_term(const Node& node, const std::set<int>& stages) {
    const std::set<int>& terms = stages_.terms[node.outputs[0]];
    chunk_ = term_chunk(node.outputs[0], *stages.begin());
    size_t owed = 0;
    while (place_[node.inputs[owed]] == kAnywhere) ++owed;
    std::vector<bool> summed = summed_operands(graph_, node, owed);
    std::vector<ValueId> inputs;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      ValueId v = node.inputs[k];
      bool own = node.op->sums_micro_batches || stages.count(place_[v]) > 0 ||
                 (place_[v] == kOwed && !own_stages(v, stages).empty()) ||
                 (place_[v] == kAnywhere && (!summed[k] || stages.count(*terms.begin()) > 0));
      at(node);
      inputs.push_back(own ? term_of(v, stages) : b_.full(graph_.type(v).dtype, graph_.type(v).shape, 0));
    }
    emit(node, std::move(inputs));
    own_terms_[{node.outputs[0], chunk_}] = here(node.outputs[0]);
    here(node.outputs[0]) = kNoValue;  // as long as it is not complete
  }

  // Chunks have terms of their own as long as micro-batches run.
  int term_chunk(ValueId v, int stage) const { return each_[v] ? chunk_of(stage) : 0; }

  std::set<int> own_stages(ValueId v, const std::set<int>& stages) const {
    std::set<int> own;
    for (int stage : stages_.terms[v]) {
      if (stages.count(stage) > 0) own.insert(stage);
    }
    return own;
  }

  // A value as a term of `stages` has it: of a sum, their own terms.
  ValueId term_of(ValueId v, const std::set<int>& stages) {
    return place_[v] == kOwed ? own_sum(v, own_stages(v, stages)) : value_of(v);
  }

  // The sum of this place's terms, of some of its stages.
  ValueId own_sum(ValueId v, const std::set<int>& stages) {
    ValueId sum = kNoValue;
    std::set<int> chunks;
    for (int stage : stages) {
      if (!is_here(stage) || !chunks.insert(term_chunk(v, stage)).second) continue;
      ValueId term = own_terms_.at({v, term_chunk(v, stage)});
      sum = sum == kNoValue ? term : b_.add(sum, term);
    }
    return sum;
  }

  // Sums become whole where they are first read for what they are: scalars on every stage, by all of them together.
  void complete_inputs(const Node& node) {
    for (ValueId v : node.inputs) {
      if (v != kNoValue && place_[v] == kOwed) complete(v, node.segment);
    }
  }

  void complete(ValueId v, Segment segment) {
    int home = stages_.home[v];
    if (!completed_.insert(v).second || (home >= 0 && !is_here(home))) return;
    at(v, segment);
    ValueId sum = own_sum(v, stages_.terms[v]);
    if (home < 0) {
      const std::vector<int> along = whole_.mesh.irregular();
      Attrs attrs = group(along);
      attrs.set("reduce", std::string("sum"));
      if (sum == kNoValue) sum = b_.full(graph_.type(v).dtype, graph_.type(v).shape, 0);
      PARTITA_CHECK(along.empty() || elements(b_.shape(sum)) == 1, "a sum over stages that may lie in parts");
      for (int a : along) {  // one of those that have the same counts
        if (!has_axis(a)) continue;
        ValueId first = b_.emit("eq", {coordinate(a), b_.scalar(DType::kI64, 0)});
        sum = b_.select(first, sum, b_.scalar(b_.dtype(sum), 0));
      }
      sum = b_.emit("all_reduce", {sum}, std::move(attrs));
    } else {
      for (ValueId term : received_[v]) sum = sum == kNoValue ? term : b_.add(sum, term);
    }
    here(v) = sum;
  }

  void finish_states() {
    for (size_t k = 0; k < graph_.states.size(); ++k) {
      const State& s = graph_.states[k];
      bool unread = keep_unread_ && messages_.needed[s.value].empty() && at_.index == 0;
      bool mine =
          is_here(stages_.state[k]) || (stages_.state[k] == kAnywhere && (s.kind == StateKind::kStep || unread));
      bool by_terms = s.next != kNoValue && place_[s.next] == kOwed;
      chunk_ = sums(k) ? chunk_of(stages_.state[k]) : 0;
      if (mine && !by_terms) value_of(s.value);
    }
    chunk_ = 0;
    for (size_t i = 0; i < declared_.size(); ++i) {
      const auto& [k, chunk] = declared_[i];
      const State& s = graph_.states[k];
      if (s.next == kNoValue) continue;
      auto term = own_terms_.find({s.next, chunk});
      b_.mutable_graph().states[i].next = term != own_terms_.end() ? term->second : value_of(s.next);
    }
  }

  void finish_outputs() {
    for (size_t k = 0; k < graph_.outputs.size(); ++k) {
      const GraphOutput& o = graph_.outputs[k];
      if (place_[o.value] == kOwed) complete(o.value, Segment::kUpdate);
      if (messages_.needed[o.value].count(static_cast<int>(at_.index)) == 0) continue;
      const bool elsewhere = place_[o.value] >= 0 && !is_here(place_[o.value]);
      if (elsewhere && here(o.value) == kNoValue) continue;  // handed over, to lie in another way
      b_.output(o.name, value_of(o.value));
      out_.outputs.push_back(whole_.outputs[k]);
    }
  }

  const LocalProgram& whole_;
  const Graph& graph_;
  const StageAssignment& stages_;
  const StageMessages& messages_;
  const PipelineStage at_;
  const int places_;
  const bool keep_unread_;  // states that no node reads
  Builder b_;
  int chunk_ = 0;                                    // of the node at hand
  std::vector<std::vector<ValueId>> here_;           // per chunk and value of the whole graph
  std::vector<int> place_;                           // per value: as StageAssignment::node
  std::vector<bool> each_;                           // per value: made with each micro-batch
  std::vector<int> state_of_;                        // per value: the state that it is, or -1
  std::vector<std::vector<size_t>> sent_when_made_;  // per value: messages that are not early
  std::map<std::string, size_t> parameters_;         // states, by name
  std::vector<const Literal*> literals_;
  std::vector<std::pair<size_t, int>> declared_;                   // states, and the chunk that declared each
  std::map<ValueId, std::vector<ValueId>> received_;               // terms of sums
  std::map<std::pair<ValueId, int>, std::vector<ValueId>> parts_;  // received, of what is handed over, by chunk
  std::map<std::pair<ValueId, int>, ValueId> own_terms_;           // likewise, of this place's chunks
  std::set<ValueId> completed_;
  LocalProgram out_;
};

// Nodes of the backward segment that nothing sent depends on, gradients of weights and what follows from them, run
// apart.
void put_weights_apart(Graph& g) {
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
}

// A parameter is sent to the other stages that read it once a step; with PipeDream it changes with every micro-batch.
absl::Status refuse_tied(const Graph& g, const StageMessages& messages) {
  for (const State& s : g.states) {
    for (const Message& m : messages.all) {
      if (m.value == s.value && s.next != kNoValue)
        return absl::InvalidArgumentError(
            cat("pin schedule: pipedream: ", quote(s.name), " is read by stages ", m.from, " and ", m.to,
                ", which update at different times; pin cuts so that one stage reads it, or use schedule: 1f1b"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<LocalProgram>> split_stages(const LocalProgram& local, int axis, const PipelineShape& shape,
                                                       const StateOwners& owners) {
  const int64_t chunks = shape.chunks;
  int64_t places = local.mesh.axes[static_cast<size_t>(axis)].size;
  if (chunks > 1 && local.micro_batches % places != 0) {
    return absl::InvalidArgumentError(
        cat("pin schedule: interleaved: ", local.micro_batches, " micro-batches a step over ", places,
            " stages; expected a multiple of the stages: pin micro_batch or the batch accordingly, or use 1f1b"));
  }
  PARTITA_ASSIGN_OR_RETURN(StageAssignment stages, assign_stages(local.graph, places * chunks, owners, shape.cuts));
  StageMessages messages = plan_messages(local.graph, stages, static_cast<int>(places));
  if (shape.schedule == PipelineSchedule::kPipedream) PARTITA_RETURN_IF_ERROR(refuse_tied(local.graph, messages));
  std::vector<LocalProgram> programs;
  for (int64_t s = 0; s < places; ++s) {
    PipelineStage stage = {
        .axis = axis, .index = s, .schedule = shape.schedule, .chunks = chunks, .channels = messages.channels};
    programs.push_back(StageCutter(local, stages, messages, stage, owners.empty()).run());
    if (shape.schedule == PipelineSchedule::kZeroBubble) put_weights_apart(programs.back().graph);
    sort_by_execution(programs.back().graph, stage);
    if (stage.updates_each()) PARTITA_RETURN_IF_ERROR(stash_weights(programs.back()));
  }
  return programs;
}

StateOwners state_owners(const std::vector<LocalProgram>& stages) {
  StateOwners owners;
  for (const LocalProgram& p : stages) {
    const int places = p.stage.axis < 0 ? 1 : static_cast<int>(p.mesh.axes[static_cast<size_t>(p.stage.axis)].size);
    const std::vector<std::vector<NodeId>> readers = uses(p.graph);
    for (const State& s : p.graph.states) {
      int chunk = readers[s.value].empty() ? 0 : p.graph.nodes[static_cast<size_t>(readers[s.value].front())].chunk;
      owners.try_emplace(s.name, chunk * places + static_cast<int>(p.stage.index));
    }
  }
  return owners;
}

}  // namespace partita
