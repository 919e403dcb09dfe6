#include "partitioner/stages/stage_cutter.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "partitioner/localize/cross_mesh_reshard.h"

namespace partita {

// The ranks that differ along the stages and these axes.
Attrs StageCutter::group(const std::vector<int>& along) const {
  std::vector<int64_t> axes = {at_.axis};
  axes.insert(axes.end(), along.begin(), along.end());
  return {{"axes", std::move(axes)}, {"parts", pipeline_size_ * whole_.mesh.ways(along)}};
}

// The axes that a message's sender and receiver differ in, and which of them `stage` has.
std::vector<int> StageCutter::differing(const Message& m) const {
  return whole_.mesh.differing(m.from % pipeline_size_, m.to % pipeline_size_);
}

std::vector<int64_t> StageCutter::those_of(int stage, const std::vector<int>& axes) const {
  std::vector<int64_t> some;
  for (int a : axes) {
    if (whole_.mesh.has(a, stage % pipeline_size_)) some.push_back(a);
  }
  return some;
}

void StageCutter::each_peer(const Message& m, int stage,
                            const std::function<void(Attrs, const std::vector<int64_t>& at)>& visit) const {
  const std::vector<int> along = differing(m);
  const std::vector<int64_t> own = those_of(stage, along);
  std::vector<int64_t> at(own.size(), 0);
  while (true) {
    int64_t peer = stage % pipeline_size_;
    for (int a : along) {
      auto k = std::find(own.begin(), own.end(), a);
      peer = peer * whole_.mesh.axes[static_cast<size_t>(a)].size +
             (k == own.end() ? 0 : at[static_cast<size_t>(k - own.begin())]);
    }
    Attrs attrs = group(along);
    attrs.set("peer", peer);
    if (m.channel != 0) attrs.set("channel", static_cast<int64_t>(m.channel));
    visit(std::move(attrs), at);
    size_t k = own.size();
    while (k > 0 && ++at[k - 1] == whole_.mesh.axes[static_cast<size_t>(own[k - 1])].size) at[--k] = 0;
    if (k == 0) return;
  }
}

// The node that the value of a message between stages with other axes is for; none: a scalar, which goes as it is.
const Node* StageCutter::reshard_node(const Message& m) const {
  for (const Node& node : graph_.nodes) {
    if (node.op->crosses_stages && node.inputs[0] == m.value &&
        static_cast<int>(node.attrs.i("to")) % pipeline_size_ == m.to % pipeline_size_ && is_reader(m, node))
      return &node;
  }
  PARTITA_CHECK(elements(graph_.type(m.value).shape) == 1,
                cat("%", m.value, " goes to stage ", m.to, " as stage ", m.from, " has it"));
  return nullptr;
}

// Once a step, the stage of the pipeline alone is told.
bool StageCutter::is_reader(const Message& m, const Node& node) const {
  return !with_each_micro_batch(m.segment) || node.attrs.i("to") == m.to;
}

// Receives are asked for first: no stage waits for another before all that comes to it can come. What is made after
// the micro-batches is asked for at its turn, among the sums over all stages.
void StageCutter::enter_segment(Segment segment) {
  for (const Message& m : messages_.all) {
    if (m.segment == segment && is_here(m.to) && (m.early || segment <= Segment::kBackward)) receive(m);
  }
  for (const Message& m : messages_.all) {
    if (m.segment == segment && is_here(m.from) && m.early) send(m);
  }
}

void StageCutter::send(const Message& m) {
  chunk_ = with_each_micro_batch(m.segment) ? chunk_of(m.from) : 0;
  ValueId v =
      value_stage_[m.value] == kPartial ? own_terms_.at({m.value, term_chunk(m.value, m.from)}) : value_of(m.value);
  at(m.value, m.segment);
  if (differing(m).empty()) {
    each_peer(m, m.to, [&](Attrs attrs, const auto&) { send_part(m, v, std::move(attrs)); });
    return;
  }
  const Node* node = reshard_node(m);
  std::vector<ValueId> parts = {v};
  if (node != nullptr) parts = parts_to_send(b_, v, node->attrs, whole_.mesh, [&](int a) { return coordinate(a); });
  const std::vector<int64_t> own = those_of(m.to, differing(m));
  each_peer(m, m.to, [&](Attrs attrs, const std::vector<int64_t>& at) {
    const size_t part = node == nullptr ? 0 : index_along(node->attrs.ints("scatter_axes"), own, at);
    send_part(m, parts[part], std::move(attrs));
  });
}

// A stage that is n behind takes up a micro-batch's message when this one has gone on to the n-th after it, or to the
// n-th group of those that take turns.
void StageCutter::send_part(const Message& m, ValueId part, Attrs attrs) {
  if (with_each_micro_batch(m.segment)) attrs.set("in_flight", std::abs(m.to - m.from) * at_.overlapped);
  b_.emit_all("send", {part}, std::move(attrs));
}

// The row-major index of coordinates `at` along `axes`, which are among `own`.
size_t StageCutter::index_along(const std::vector<int64_t>& axes, const std::vector<int64_t>& own,
                                const std::vector<int64_t>& at) const {
  int64_t index = 0;
  for (int64_t a : axes) {
    const auto k = static_cast<size_t>(std::find(own.begin(), own.end(), a) - own.begin());
    index = index * whole_.mesh.axes[static_cast<size_t>(a)].size + at[k];
  }
  return static_cast<size_t>(index);
}

void StageCutter::receive(const Message& m) {
  chunk_ = with_each_micro_batch(m.segment) ? chunk_of(m.to) : 0;
  at(m.value, m.segment);
  if (!differing(m).empty()) return receive_parts(m);
  each_peer(m, m.from, [&](Attrs attrs, const auto&) {
    ValueId received = receive_from(std::move(attrs), graph_.type(m.value));
    if (value_stage_[m.value] == kPartial) {
      received_[m.value].push_back(received);
    } else {
      receive_here(m.value) = received;
    }
  });
}

ValueId StageCutter::receive_from(Attrs attrs, const TensorType& type) {
  attrs.set("shape", type.shape);
  attrs.set("type", type.dtype);
  return b_.emit("recv", {}, std::move(attrs));
}

// The sender's ranks that have other parts; those that have the same as another one send for nothing.
void StageCutter::receive_parts(const Message& m) {
  PARTITA_CHECK(value_stage_[m.value] != kPartial, "terms of a sum come laid out as it is");
  const Node* node = reshard_node(m);
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

void StageCutter::receive_results(const Node& node) {
  for (size_t k : messages_with(node)) {
    const Message& m = messages_.all[k];
    if (is_here(m.to) && m.segment > Segment::kBackward) receive(m);
  }
}

void StageCutter::send_results(const Node& node) {
  for (size_t k : messages_with(node)) {
    if (is_here(messages_.all[k].from)) send(messages_.all[k]);
  }
}

// Those that go as soon as the node has made their values, in their order.
std::vector<size_t> StageCutter::messages_with(const Node& node) const {
  std::vector<size_t> all;
  for (ValueId v : node.outputs) all.insert(all.end(), sent_when_made_[v].begin(), sent_when_made_[v].end());
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace partita
