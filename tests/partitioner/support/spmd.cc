#include "tests/partitioner/support/spmd.h"

#include <algorithm>
#include <functional>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "partitioner/layout/pipeline_schedule.h"

namespace partita {
namespace {

double get(const Tensor& t, int64_t k) { return is_float(t.type.dtype) ? t.f[k] : static_cast<double>(t.i[k]); }
void put(Tensor& t, int64_t k, double v) {
  if (is_float(t.type.dtype)) {
    t.f[k] = v;
  } else {
    t.i[k] = static_cast<int64_t>(v);
  }
}

// Calls visit(global element, local element) for every element of a rank's part that is no padding.
void each_element(const Shape& shape, const Sharding& sharding, const Mesh& mesh,
                  const std::vector<int64_t>& coordinates, const std::function<void(int64_t, int64_t)>& visit) {
  struct P {
    int64_t local, stride, first;
    size_t dim;
  };
  std::vector<P> pieces;
  auto strides = row_major_strides(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t inner = 1;
    for (const Piece& p : sharding.dims[d]) inner *= p.size;
    for (const Piece& p : sharding.dims[d]) {
      inner /= p.size;
      int64_t block = 0, parts = 1;
      for (int a : p.axes) {
        block = block * mesh.axes[a].size + coordinates[a];
        parts *= mesh.axes[a].size;
      }
      int64_t local = p.size / parts;
      pieces.push_back({local, inner, block * local, d});
    }
  }
  int64_t n = 1;
  for (const P& p : pieces) n *= p.local;
  std::vector<int64_t> index(pieces.size(), 0);
  for (int64_t k = 0; k < n; ++k) {
    Shape at(shape.size(), 0);
    for (size_t i = 0; i < pieces.size(); ++i) at[pieces[i].dim] += (pieces[i].first + index[i]) * pieces[i].stride;
    int64_t global = 0;
    bool inside = true;
    for (size_t d = 0; d < shape.size(); ++d) {
      inside = inside && at[d] < shape[d];
      global += at[d] * strides[d];
    }
    if (inside) visit(global, k);
    for (size_t i = pieces.size(); i-- > 0 && ++index[i] == pieces[i].local;) index[i] = 0;
  }
}

// What ranks of different stages exchange.
struct Wires {
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::vector<Tensor>> sent;  // from, to, channel -> messages in order
  // Sums over stages: (lowest rank of the group, how many it had before) -> each rank's term.
  std::map<std::pair<int64_t, int64_t>, std::map<int64_t, Tensor>> sums;
};

// The ranks of one stage (all of them, where there is no pipeline), in lock step. What is received is waited for where
// it is read.
class Stage {
 public:
  Stage(const LocalProgram& program, const Tensors& inputs, const Tensors& states, Wires& wires)
      : p_(program), g_(program.graph), inputs_(inputs), wires_(wires) {
    for (int64_t r = 0; r < p_.mesh.ranks(); ++r) {
      std::vector<int64_t> at = p_.mesh.coordinates(r);
      if (p_.stage.axis >= 0 && at[static_cast<size_t>(p_.stage.axis)] != p_.stage.index) continue;
      ranks_.push_back(r);
      coordinates_.push_back(std::move(at));
    }
    make_order();
    start(states);
  }

  bool done() const { return done_; }

  // Runs until something has to be waited for; whether anything was run.
  bool advance() {
    bool moved = false;
    for (; entry_ < order_.size(); ++entry_, next_ = 0) {
      const Entry& e = order_[entry_];
      if (next_ == 0 && e.segment >= Segment::kForward && e.segment <= Segment::kBackward) stage(e.micro_batch, e.slot);
      for (; next_ < g_.nodes.size(); ++next_) {
        const Node& node = g_.nodes[next_];
        if (node.segment != e.segment || p_.stage.phase(node) != e.phase) continue;
        if (!run(node, e.slot)) return moved;
        moved = true;
      }
      keep_states(e);
    }
    const bool before = done_;
    done_ = std::all_of(g_.outputs.begin(), g_.outputs.end(),
                        [&](const GraphOutput& o) { return all_arrived(o.value, order_.back().slot); });
    return moved || done_ != before;
  }

  void collect(SpmdResult& result) const {
    for (size_t k = 0; k < g_.outputs.size(); ++k)
      assemble(g_.outputs[k].value, p_.outputs[k], result.outputs[g_.outputs[k].name]);
    for (size_t k = 0; k < g_.states.size(); ++k) {
      const State& s = g_.states[k];
      const Node* p = s.next == kNoValue ? nullptr : g_.producer(s.next);
      bool kept = s.next == kNoValue || (p != nullptr && p->segment <= Segment::kBackward);  // by keep_states
      assemble(kept ? s.value : s.next, p_.states[k], result.states[s.name]);
    }
  }

 private:
  struct Entry {
    Segment segment;
    int32_t phase = 0;
    int64_t micro_batch = 0, slot = 0;
  };
  struct Held {
    Tensor tensor;
    int64_t from = -1, channel = 0, number = 0;  // to come from that rank, as that message of the channel
  };

  void make_order() {
    const std::vector<StageStep> steps = p_.order();
    values_.resize(static_cast<size_t>(slots_of(steps)), std::vector<std::vector<Held>>(ranks_.size()));
    for (auto& slot : values_) {
      for (auto& rank : slot) rank.resize(g_.values.size());
    }
    order_.push_back({Segment::kPrologue});
    int64_t last = 0;
    for (const StageStep& x : steps) {
      Segment segment = x.kind == StageWork::kForward ? Segment::kForward : Segment::kBackward;
      order_.push_back({segment, p_.stage.phase(x.kind, x.chunk, x.turn), x.micro_batch, x.slot});
      if (x.micro_batch + 1 == p_.micro_batches) last = x.slot;
    }
    order_.push_back({Segment::kReduce, 0, 0, last});
    order_.push_back({Segment::kUpdate, 0, 0, last});
  }

  static bool is_once(const Node* producer) {
    return producer == nullptr || producer->segment == Segment::kPrologue || producer->op->sums_micro_batches;
  }

  // Values of no micro-batch are in slot 0.
  Held& held(size_t r, ValueId v, int64_t slot) {
    const Node* producer = g_.producer(v);
    return values_[data_.count(v) == 0 && is_once(producer) ? 0 : static_cast<size_t>(slot)][r][static_cast<size_t>(v)];
  }

  void start(const Tensors& states) {
    for (const GraphInput& in : g_.inputs) {
      if (in.kind != InputKind::kCoordinate) data_.insert(in.value);
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const Constant& c : g_.constants) held(r, c.value, 0).tensor = to_tensor(c.literal);
      for (size_t k = 0; k < g_.states.size(); ++k) {
        const State& s = g_.states[k];
        auto at = states.find(s.name);
        Tensor whole = at != states.end() ? at->second : Tensor::zeros({g_.type(s.value).dtype, p_.states[k].logical});
        held(r, s.value, 0).tensor = shard_of(whole, p_.states[k].sharding, p_.mesh, coordinates_[r]);
      }
      for (const GraphInput& in : g_.inputs) {
        if (in.kind != InputKind::kCoordinate) continue;
        Tensor& t = held(r, in.value, 0).tensor = Tensor::zeros({DType::kI64, {}});
        t.i[0] = coordinates_[r][p_.mesh.find(in.name)];
      }
    }
  }

  void stage(int64_t m, int64_t slot) {
    int time = p_.mesh.time;
    int64_t parts = time < 0 ? 1 : p_.mesh.axes[time].size;
    for (size_t k = 0; k < g_.inputs.size(); ++k) {
      const GraphInput& in = g_.inputs[k];
      for (size_t r = 0; r < ranks_.size(); ++r) {
        if (in.kind == InputKind::kMicroBatch) {
          Tensor& v = held(r, in.value, slot).tensor = Tensor::zeros({DType::kI64, {}});
          v.i[0] = m;
        } else if (in.kind == InputKind::kData) {
          std::vector<int64_t> at = coordinates_[r];
          if (time >= 0) at[time] = m % parts;
          held(r, in.value, slot).tensor = shard_of(micro_batch(inputs_.at(in.name), p_.inputs[k].logical, m / parts),
                                                    p_.inputs[k].sharding, p_.mesh, at);
        }
      }
    }
  }

  static Tensor micro_batch(const Tensor& all, const Shape& shape, int64_t m) {
    Tensor t = Tensor::zeros({all.type.dtype, shape});
    int64_t n = elements(shape);
    for (int64_t k = 0; k < n; ++k) put(t, k, get(all, m * n + k));
    return t;
  }

  // States written by a repeated segment are read anew by its next run.
  void keep_states(const Entry& e) {
    for (const State& s : g_.states) {
      const Node* p = s.next == kNoValue ? nullptr : g_.producer(s.next);
      if (p == nullptr || p->segment > Segment::kBackward || p->segment != e.segment || p_.stage.phase(*p) != e.phase)
        continue;
      for (size_t r = 0; r < ranks_.size(); ++r) held(r, s.value, 0).tensor = held(r, s.next, e.slot).tensor;
    }
  }

  // False where it has to wait; then nothing has happened.
  bool run(const Node& node, int64_t slot) {
    for (ValueId v : node.inputs) {
      if (v != kNoValue && !all_arrived(v, slot)) return false;
    }
    if (node.op->communicates) return communicate(node, slot);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      std::vector<const Tensor*> in;
      for (ValueId x : node.inputs) in.push_back(x == kNoValue ? nullptr : &held(r, x, slot).tensor);
      std::vector<Tensor> out = evaluate_op(*node.op, node.attrs, in);
      for (size_t k = 0; k < out.size(); ++k) held(r, node.outputs[k], slot) = {std::move(out[k])};
    }
    return true;
  }

  bool all_arrived(ValueId v, int64_t slot) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (!arrived(held(r, v, slot), r, g_.type(v))) return false;
    }
    return true;
  }

  bool arrived(Held& h, size_t r, const TensorType& type) {
    if (h.from < 0) return true;
    const std::vector<Tensor>& sent = wires_.sent[{h.from, ranks_[r], h.channel}];
    if (static_cast<int64_t>(sent.size()) <= h.number) return false;
    h = {sent[static_cast<size_t>(h.number)]};
    PARTITA_CHECK(h.tensor.type == type, "what is sent and what is received are of one type");
    return true;
  }

  // Ranks of `rank`'s group, in group order: those that differ in `axes` alone.
  std::vector<int64_t> group(int64_t rank, const std::vector<int64_t>& axes) const {
    std::vector<int64_t> members, own = p_.mesh.coordinates(rank);
    for (int64_t r = 0; r < p_.mesh.ranks(); ++r) {
      std::vector<int64_t> other = p_.mesh.coordinates(r);
      bool same = true;
      for (size_t a = 0; a < p_.mesh.axes.size(); ++a)
        same = same && (std::count(axes.begin(), axes.end(), static_cast<int64_t>(a)) || other[a] == own[a]);
      if (same) members.push_back(r);
    }
    return members;
  }

  // The rank at the place of the group that `place` counts over all coordinates along `axes`.
  int64_t peer(int64_t rank, const std::vector<int64_t>& axes, int64_t place) const {
    std::vector<int64_t> at = p_.mesh.coordinates(rank);
    for (size_t k = axes.size(); k-- > 0;) {
      const int64_t n = p_.mesh.axes[static_cast<size_t>(axes[k])].size;
      at[static_cast<size_t>(axes[k])] = place % n;
      place /= n;
    }
    for (int64_t r = 0; r < p_.mesh.ranks(); ++r) {
      if (p_.mesh.coordinates(r) == at) return r;
    }
    PARTITA_CHECK(false, "a peer that is not there");
    return -1;
  }

  bool communicate(const Node& node, int64_t slot) {
    const auto& axes = node.attrs.ints("axes");
    std::string op(node.op->name);
    if (op == "send" || op == "recv") {
      for (size_t r = 0; r < ranks_.size(); ++r) {
        int64_t peer = this->peer(ranks_[r], axes, node.attrs.i("peer"));
        int64_t channel = node.attrs.i("channel", 0);
        if (op == "send") {
          wires_.sent[{ranks_[r], peer, channel}].push_back(held(r, node.inputs[0], slot).tensor);
        } else {
          held(r, node.outputs[0], slot) = {{}, peer, channel, received_[{peer, ranks_[r], channel}]++};
        }
      }
      return true;
    }
    if (std::count(axes.begin(), axes.end(), p_.stage.axis) > 0) return sum_over_stages(node, slot);
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      std::map<int64_t, Tensor> in;
      for (size_t r = 0; r < ranks_.size(); ++r) in[ranks_[r]] = held(r, node.inputs[k], slot).tensor;
      for (size_t r = 0; r < ranks_.size(); ++r) held(r, node.outputs[k], slot) = {combine(node, k, r, in)};
    }
    return true;
  }

  // Every rank of the group has to be there.
  bool sum_over_stages(const Node& node, int64_t slot) {
    PARTITA_CHECK(node.inputs.size() == 1, "stages sum one value at a time");
    std::vector<std::map<int64_t, Tensor>*> boards;
    bool whole = true;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      auto members = group(ranks_[r], node.attrs.ints("axes"));
      auto& board = wires_.sums[{members[0], summed_}];
      board[ranks_[r]] = held(r, node.inputs[0], slot).tensor;
      whole = whole && board.size() == members.size();
      boards.push_back(&board);
    }
    if (!whole) return false;
    for (size_t r = 0; r < ranks_.size(); ++r) held(r, node.outputs[0], slot) = {combine(node, 0, r, *boards[r])};
    ++summed_;
    return true;
  }

  Tensor combine(const Node& node, size_t k, size_t r, const std::map<int64_t, Tensor>& in) const {
    auto members = group(ranks_[r], node.attrs.ints("axes"));
    Tensor out = Tensor::zeros(g_.type(node.outputs[k]));
    int64_t n = elements(out.type.shape), parts = static_cast<int64_t>(members.size());
    int64_t mine = std::find(members.begin(), members.end(), ranks_[r]) - members.begin();
    std::string op(node.op->name), reduce = node.attrs.s("reduce", "sum");
    for (int64_t e = 0; e < n; ++e) {
      if (op == "all_gather") {
        put(out, e, get(in.at(members[e / (n / parts)]), e % (n / parts)));
      } else if (op == "all_to_all") {
        put(out, e, get(in.at(members[e / (n / parts)]), mine * (n / parts) + e % (n / parts)));
      } else {
        int64_t from = op == "reduce_scatter" ? mine * n + e : e;
        double v = get(in.at(members[0]), from);
        for (int64_t q = 1; q < parts; ++q) {
          double x = get(in.at(members[q]), from);
          v = reduce == "sum" ? v + x : reduce == "max" ? std::max(v, x) : std::min(v, x);
        }
        put(out, e, v);
      }
    }
    return out;
  }

  void assemble(ValueId v, const PlacedTensor& placed, Tensor& whole) const {
    const Node* producer = g_.producer(v);
    if (whole.type.dtype == DType::kInvalid) whole = Tensor::zeros({g_.type(v).dtype, placed.logical});
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Held& held =
          values_[is_once(producer) ? 0 : static_cast<size_t>(order_.back().slot)][r][static_cast<size_t>(v)];
      PARTITA_CHECK(held.tensor.type == g_.type(v), cat("stage ", p_.stage.index, " has no value for ",
                                                        producer != nullptr ? producer->op->name : "?"));
      unshard(whole, held.tensor, placed.sharding, p_.mesh, coordinates_[r]);
    }
  }

  const LocalProgram& p_;
  const Graph& g_;
  const Tensors& inputs_;
  Wires& wires_;
  std::vector<int64_t> ranks_;
  std::vector<std::vector<int64_t>> coordinates_;
  std::vector<Entry> order_;
  std::vector<std::vector<std::vector<Held>>> values_;  // [slot][rank][value]
  std::set<ValueId> data_;                              // inputs that each micro-batch has its own of
  std::map<std::tuple<int64_t, int64_t, int64_t>, int64_t> received_;
  int64_t summed_ = 0;
  size_t entry_ = 0, next_ = 0;
  bool done_ = false;
};

}  // namespace

Tensor shard_of(const Tensor& whole, const Sharding& sharding, const Mesh& mesh,
                const std::vector<int64_t>& coordinates) {
  Tensor part = Tensor::zeros({whole.type.dtype, local_shape(sharding, mesh)});
  each_element(whole.type.shape, sharding, mesh, coordinates,
               [&](int64_t global, int64_t local) { put(part, local, get(whole, global)); });
  return part;
}

void unshard(Tensor& whole, const Tensor& part, const Sharding& sharding, const Mesh& mesh,
             const std::vector<int64_t>& coordinates) {
  each_element(whole.type.shape, sharding, mesh, coordinates,
               [&](int64_t global, int64_t local) { put(whole, global, get(part, local)); });
}

SpmdResult run_spmd(const std::vector<LocalProgram>& stages, const Tensors& inputs, const Tensors& states) {
  Wires wires;
  std::vector<Stage> all;
  for (const LocalProgram& p : stages) all.emplace_back(p, inputs, states, wires);
  for (bool moved = true; moved;) {
    moved = false;
    for (Stage& s : all) moved = s.advance() || moved;
  }
  SpmdResult result;
  for (const Stage& s : all) {
    PARTITA_CHECK(s.done(), "stages that wait for each other");
    s.collect(result);
  }
  return result;
}

SpmdResult run_spmd(const LocalProgram& program, const Tensors& inputs, const Tensors& states) {
  return run_spmd(std::vector<LocalProgram>{program}, inputs, states);
}

}  // namespace partita
