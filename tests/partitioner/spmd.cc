#include "tests/partitioner/spmd.h"

#include <algorithm>
#include <functional>

#include "base/cat.h"
#include "base/status.h"
#include "ir/builder.h"

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

// Calls visit(global element, local element) for every element of a rank's part.
void each_element(const Shape& shape, const Sharding& sharding, const Mesh& mesh,
                  const std::vector<int64_t>& coordinates, const std::function<void(int64_t, int64_t)>& visit) {
  struct P {
    int64_t local, stride, first;
  };
  std::vector<P> pieces;
  auto strides = row_major_strides(shape);
  for (size_t d = 0; d < shape.size(); ++d) {
    int64_t inner = shape[d];
    for (const Piece& p : sharding.dims[d]) {
      inner /= p.size;
      int64_t block = 0, parts = 1;
      for (int a : p.axes) {
        block = block * mesh.axes[a].size + coordinates[a];
        parts *= mesh.axes[a].size;
      }
      int64_t local = p.size / parts;
      pieces.push_back({local, inner * strides[d], block * local});
    }
  }
  int64_t n = 1;
  for (const P& p : pieces) n *= p.local;
  std::vector<int64_t> index(pieces.size(), 0);
  for (int64_t k = 0; k < n; ++k) {
    int64_t global = 0;
    for (size_t i = 0; i < pieces.size(); ++i) global += (pieces[i].first + index[i]) * pieces[i].stride;
    visit(global, k);
    for (size_t i = pieces.size(); i-- > 0 && ++index[i] == pieces[i].local;) index[i] = 0;
  }
}

class Spmd {
 public:
  Spmd(const LocalProgram& program, const Tensors& inputs)
      : p_(program), g_(program.graph), inputs_(inputs), ranks_(program.mesh.ranks()) {
    for (int64_t r = 0; r < ranks_; ++r) {
      coordinates_.push_back(p_.mesh.coordinates(r));
      values_.emplace_back(g_.values.size());
    }
  }

  SpmdResult run(const Tensors& states) {
    start(states);
    run_segment(Segment::kPrologue);
    for (int64_t m = 0; m < p_.micro_batches; ++m) {
      stage(m);
      run_segment(Segment::kForward);
      run_segment(Segment::kBackward);
      if (m + 1 < p_.micro_batches) advance(Segment::kBackward);
    }
    run_segment(Segment::kReduce);
    run_segment(Segment::kUpdate);
    return collect();
  }

 private:
  void start(const Tensors& states) {
    for (int64_t r = 0; r < ranks_; ++r) {
      for (const Constant& c : g_.constants) values_[r][c.value] = to_tensor(c.literal);
      for (size_t k = 0; k < g_.states.size(); ++k) {
        const State& s = g_.states[k];
        auto at = states.find(s.name);
        Tensor whole = at != states.end() ? at->second : Tensor::zeros({g_.type(s.value).dtype, p_.states[k].logical});
        values_[r][s.value] = shard_of(whole, p_.states[k].sharding, p_.mesh, coordinates_[r]);
      }
      for (const GraphInput& in : g_.inputs) {
        if (in.kind != InputKind::kCoordinate) continue;
        values_[r][in.value] = Tensor::zeros({DType::kI64, {}});
        values_[r][in.value].i[0] = coordinates_[r][p_.mesh.find(in.name)];
      }
    }
  }

  void stage(int64_t m) {
    int time = p_.mesh.time;
    int64_t parts = time < 0 ? 1 : p_.mesh.axes[time].size;
    for (size_t k = 0; k < g_.inputs.size(); ++k) {
      const GraphInput& in = g_.inputs[k];
      for (int64_t r = 0; r < ranks_; ++r) {
        Tensor& v = values_[r][in.value];
        if (in.kind == InputKind::kMicroBatch) {
          v = Tensor::zeros({DType::kI64, {}});
          v.i[0] = m;
        } else if (in.kind == InputKind::kData) {
          std::vector<int64_t> at = coordinates_[r];
          if (time >= 0) at[time] = m % parts;
          v = shard_of(micro_batch(inputs_.at(in.name), p_.inputs[k].logical, m / parts), p_.inputs[k].sharding,
                       p_.mesh, at);
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
  void advance(Segment segment) {
    for (const State& s : g_.states) {
      const Node* p = g_.producer(s.next == kNoValue ? s.value : s.next);
      if (s.next == kNoValue || p == nullptr || p->segment > segment) continue;
      for (auto& v : values_) v[s.value] = v[s.next];
    }
  }

  void run_segment(Segment segment) {
    for (const Node& node : g_.nodes) {
      if (node.segment != segment) continue;
      if (node.op->communicates) {
        communicate(node);
        continue;
      }
      for (auto& v : values_) {
        std::vector<const Tensor*> in;
        for (ValueId x : node.inputs) in.push_back(x == kNoValue ? nullptr : &v[x]);
        std::vector<Tensor> out = evaluate_op(*node.op, node.attrs, in);
        for (size_t k = 0; k < out.size(); ++k) v[node.outputs[k]] = std::move(out[k]);
      }
    }
  }

  // Ranks of `rank`'s group, in group order: those that differ in `axes` alone.
  std::vector<int64_t> group(int64_t rank, const std::vector<int64_t>& axes) const {
    std::vector<int64_t> members;
    for (int64_t r = 0; r < ranks_; ++r) {
      bool same = true;
      for (size_t a = 0; a < p_.mesh.axes.size(); ++a) {
        same = same && (std::count(axes.begin(), axes.end(), static_cast<int64_t>(a)) ||
                        coordinates_[r][a] == coordinates_[rank][a]);
      }
      if (same) members.push_back(r);
    }
    return members;
  }

  void communicate(const Node& node) {
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      std::vector<Tensor> in;
      for (int64_t r = 0; r < ranks_; ++r) in.push_back(values_[r][node.inputs[k]]);
      for (int64_t r = 0; r < ranks_; ++r) {
        auto members = group(r, node.attrs.ints("axes"));
        Tensor out = Tensor::zeros(g_.type(node.outputs[k]));
        int64_t n = elements(out.type.shape), parts = static_cast<int64_t>(members.size());
        int64_t mine = std::find(members.begin(), members.end(), r) - members.begin();
        std::string op(node.op->name), reduce = node.attrs.s("reduce", "sum");
        for (int64_t e = 0; e < n; ++e) {
          if (op == "all_gather") {
            put(out, e, get(in[members[e / (n / parts)]], e % (n / parts)));
          } else if (op == "all_to_all") {
            put(out, e, get(in[members[e / (n / parts)]], mine * (n / parts) + e % (n / parts)));
          } else {
            int64_t from = op == "reduce_scatter" ? mine * n + e : e;
            double v = get(in[members[0]], from);
            for (int64_t q = 1; q < parts; ++q) {
              double x = get(in[members[q]], from);
              v = reduce == "sum" ? v + x : reduce == "max" ? std::max(v, x) : std::min(v, x);
            }
            put(out, e, v);
          }
        }
        values_[r][node.outputs[k]] = std::move(out);
      }
    }
  }

  Tensor assemble(ValueId v, const PlacedTensor& placed) const {
    Tensor whole = Tensor::zeros({g_.type(v).dtype, placed.logical});
    for (int64_t r = 0; r < ranks_; ++r) unshard(whole, values_[r][v], placed.sharding, p_.mesh, coordinates_[r]);
    return whole;
  }

  SpmdResult collect() const {
    SpmdResult result;
    for (size_t k = 0; k < g_.outputs.size(); ++k)
      result.outputs[g_.outputs[k].name] = assemble(g_.outputs[k].value, p_.outputs[k]);
    for (size_t k = 0; k < g_.states.size(); ++k) {
      const State& s = g_.states[k];
      result.states[s.name] = assemble(s.next == kNoValue ? s.value : s.next, p_.states[k]);
    }
    return result;
  }

  const LocalProgram& p_;
  const Graph& g_;
  const Tensors& inputs_;
  int64_t ranks_;
  std::vector<std::vector<int64_t>> coordinates_;
  std::vector<std::vector<Tensor>> values_;  // [rank][value]
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

SpmdResult run_spmd(const LocalProgram& program, const Tensors& inputs, const Tensors& states) {
  return Spmd(program, inputs).run(states);
}

}  // namespace partita
